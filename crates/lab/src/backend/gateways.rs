//! A network for measurements through a Braid box and Braid servers: a user behind the box, the servers,
//! and a content host, in network namespaces connected by emulated links. The user runs curl and the
//! content host nginx, both without settings for Braid; box and servers are processes of `braid`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use braid::program::{self, BRAID};
use braid_testbed::Options;
use braid_testbed::fixture::{self as testbed_fixture, Download, Fixture};
use braid_testbed::render::render_config;
use serde_json::Value;

use super::error::{Error, run_error};
use super::fixture;
use super::threads;

/// Maximum time in which the box or a server must start. A guess, generous for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Rate from which the timeout of a download follows, bytes per second. The timeout is the time that the
/// download takes at this rate, plus [`START_TIMEOUT`]. A guess, below the rate of every path over which an
/// experiment downloads.
const MIN_RATE: u64 = 50_000;
/// Maximum wait for a state of the box. A guess, generous for a busy machine.
const STATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of attempts at a measurement while the links are late. It is lower than the number for
/// a run, because a measurement takes longer.
const ATTEMPTS: u32 = 4;
/// Name of the file that the content host offers.
const FILE: &str = "file";

/// The network of a measurement through box and servers.
#[derive(Debug)]
pub(crate) struct Gateways {
    pub fixture: Fixture,
    /// The path of the offered file, to compare downloads with.
    file: PathBuf,
    /// Number of measurements that were discarded because the links were late.
    repeated: u64,
}

impl Gateways {
    /// Builds a testbed with a file of `bytes` bytes on the content host. `describe` returns the
    /// description of the testbed with the name that it is given. `congestion` is the congestion control
    /// of box and servers, or `None` for their default. Does not start box or servers.
    pub fn build(
        describe: impl FnOnce(&str) -> String,
        congestion: Option<&str>,
        bytes: u64,
    ) -> Result<Gateways, Error> {
        let spec = testbed_fixture::spec(&describe(&fixture::new_name()?))?;
        let options = Options {
            render: Some(render_config(congestion)?),
            ..Options::default()
        };
        let fixture = Fixture::up(spec, options, threads::interrupted)?;
        Ok(Gateways {
            file: fixture.offer(FILE, bytes)?,
            fixture,
            repeated: 0,
        })
    }

    /// Starts a server.
    pub fn start_server(&mut self, server: &str) -> Result<(), Error> {
        Ok(self.fixture.start(server, START_TIMEOUT)?)
    }

    /// Starts the box, and waits until it intercepts connections.
    pub fn start_box(&mut self) -> Result<(), Error> {
        self.fixture.start("box", START_TIMEOUT)?;
        Ok(self.fixture.wait_for_interception(START_TIMEOUT)?)
    }

    /// Stops the box.
    pub fn stop_box(&mut self) -> Result<(), Error> {
        Ok(self.fixture.testbed.stop("box")?)
    }

    /// Downloads the first `bytes` bytes of the file with curl on `host`, and returns the time in seconds.
    /// Repeats the download if the links were late. `progress` receives the number of bytes so far, at the
    /// start and at intervals.
    pub fn download(
        &mut self,
        host: &str,
        bytes: u64,
        mut progress: impl FnMut(&Fixture, Duration, u64),
    ) -> Result<f64, Error> {
        self.retry_while_late(|net| net.download_once(host, bytes, &mut progress))
    }

    /// Repeats `measure` until the links were on time, and returns that result.
    pub fn retry_while_late<T>(
        &mut self,
        mut measure: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut repeated = 0;
        let result = fixture::retry_while_late(
            (ATTEMPTS, fixture::MAX_DELIVERY_LAG_US),
            &mut repeated,
            || {
                self.fixture.testbed.reset_delivery_lag()?;
                let result = measure(self)?;
                Ok((result, self.fixture.testbed.delivery_lag()?.p99_us))
            },
        );
        self.repeated += repeated;
        result
    }

    /// Downloads like [`Self::download`], but only once, even if the links were late.
    pub fn download_once(
        &self,
        host: &str,
        bytes: u64,
        mut progress: impl FnMut(&Fixture, Duration, u64),
    ) -> Result<f64, Error> {
        let fixture = &self.fixture;
        let content = fixture.address("content")?;
        let target = fixture.testbed.state_dir().join("fetched");
        let download = Download {
            host,
            url: format!("http://{content}/{FILE}"),
            to: &target,
            bytes: Some(bytes),
            longest: START_TIMEOUT + Duration::from_secs(bytes / MIN_RATE),
        };
        progress(fixture, Duration::ZERO, 0);
        let begun = Instant::now();
        let progress = |bytes| progress(fixture, begun.elapsed(), bytes);
        let seconds = fixture.download(&download, progress)?;
        let intact = is_prefix(&self.file, &target, bytes)?;
        fs::remove_file(&target)?;
        match intact {
            true => Ok(seconds),
            false => Err(run_error("a download differs from the offered file")),
        }
    }

    /// Returns the JSON output of `braid --json box` with these arguments.
    pub fn ask(&self, arguments: &[&str]) -> Result<Value, Error> {
        let braid = program::find(BRAID)?;
        let config = self.fixture.testbed.state_dir().join("box/box.toml");
        let mut command = Command::new(braid);
        command.args(["--json", "box"]).args(arguments);
        let output = command.arg("--config").arg(config).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        match serde_json::from_slice(&output.stdout) {
            Ok(value) if output.status.success() => Ok(value),
            _ => Err(Error::Run(format!("braid box {arguments:?}: {stderr}"))),
        }
    }

    /// Waits until the box has a connection in its idle pool.
    pub fn wait_for_pool(&self) -> Result<(), Error> {
        self.wait_for("a connection in the idle pool", |net| {
            // "warm" is the key of the idle pool in the status.
            Ok(net.ask(&["status"])?["warm"]["ready"].as_u64() > Some(0))
        })
    }

    /// Waits until `condition` is true; an error after [`STATE_TIMEOUT`]. `what` names the expected state
    /// in the error.
    pub fn wait_for(
        &self,
        what: &str,
        condition: impl Fn(&Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let end = Instant::now() + STATE_TIMEOUT;
        while !condition(self)? {
            if Instant::now() > end {
                let seconds = STATE_TIMEOUT.as_secs();
                return Err(Error::Run(format!("waited {seconds} s in vain for {what}")));
            }
            self.fixture.sleep(testbed_fixture::POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Returns the number of measurements that were repeated because the links were late.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }
}

/// Returns whether `fetched` contains exactly the first `bytes` bytes of `offered`.
fn is_prefix(offered: &Path, fetched: &Path, bytes: u64) -> io::Result<bool> {
    if fs::metadata(fetched)?.len() != bytes {
        return Ok(false);
    }
    let (mut offered, mut fetched) = (File::open(offered)?, File::open(fetched)?);
    let [mut expected, mut actual] = [(); 2].map(|()| vec![0; 1 << 16]);
    loop {
        let n = fetched.read(&mut actual)?;
        if n == 0 {
            return Ok(true);
        }
        offered.read_exact(&mut expected[..n])?;
        if expected[..n] != actual[..n] {
            return Ok(false);
        }
    }
}
