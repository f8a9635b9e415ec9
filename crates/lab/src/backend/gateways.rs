//! A user behind a box, servers, and a content host, in network namespaces connected by emulated links.
//! curl and nginx know nothing of the box; box and servers are processes of `braid`.

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

use super::error::Error;
use super::fixture::{self, run_error};

/// Longest that box and servers may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Slowest download that is waited for, bytes per second; [`START_TIMEOUT`] is added to its time.
const MIN_RATE: u64 = 50_000;
/// Longest wait for a state of the box.
const STATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most attempts at a measurement while the links are late, fewer than for a run because each takes
/// long.
const ATTEMPTS: u32 = 4;
/// Name of the file that the content host offers.
const FILE: &str = "file";

/// The network of a measurement through box and servers.
#[derive(Debug)]
pub(crate) struct Gateways {
    pub fixture: Fixture,
    /// The file that the content host offers.
    file: PathBuf,
    repeated: u64,
}

impl Gateways {
    /// Builds the testbed that `describe` returns for its name, with a file of `bytes` bytes on the
    /// content host. Box and servers are not started; `congestion` is their congestion control, or
    /// `None` for their default.
    pub fn build(
        describe: impl FnOnce(&str) -> String,
        congestion: Option<&str>,
        bytes: u64,
    ) -> Result<Gateways, Error> {
        let spec = testbed_fixture::spec(&describe(&fixture::new_name()?)).map_err(run_error)?;
        let options = Options {
            render: Some(render_config(congestion).map_err(run_error)?),
            ..Options::default()
        };
        let fixture = Fixture::up(spec, options, fixture::interrupted).map_err(run_error)?;
        Ok(Gateways {
            file: fixture.offer(FILE, bytes).map_err(run_error)?,
            fixture,
            repeated: 0,
        })
    }

    /// Starts a server.
    pub fn start_server(&mut self, server: &str) -> Result<(), Error> {
        self.fixture.start(server, START_TIMEOUT).map_err(run_error)
    }

    /// Starts the box, and waits until it takes connections in.
    pub fn start_box(&mut self) -> Result<(), Error> {
        self.fixture
            .start("box", START_TIMEOUT)
            .map_err(run_error)?;
        self.fixture
            .wait_for_interception(START_TIMEOUT)
            .map_err(run_error)
    }

    /// Stops the box.
    pub fn stop_box(&mut self) -> Result<(), Error> {
        self.fixture.testbed.stop("box").map_err(run_error)
    }

    /// Downloads the first `bytes` bytes of the file by curl on `host`. Returns the time in seconds.
    /// `progress` receives the bytes so far, at the start and now and then. The download is repeated
    /// where the links were late.
    pub fn download(
        &mut self,
        host: &str,
        bytes: u64,
        mut progress: impl FnMut(&Fixture, Duration, u64),
    ) -> Result<f64, Error> {
        self.retry_while_late(|net| net.download_once(host, bytes, &mut progress))
    }

    /// Returns the first result of `measure` during which the links were on time.
    pub fn retry_while_late<T>(
        &mut self,
        mut measure: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut repeated = 0;
        let result = fixture::retry_while_late(
            (ATTEMPTS, fixture::MAX_DELIVERY_LAG_US),
            &mut repeated,
            || {
                self.fixture
                    .testbed
                    .reset_delivery_lag()
                    .map_err(run_error)?;
                let result = measure(self)?;
                let delivery_lag = self.fixture.testbed.delivery_lag().map_err(run_error)?;
                Ok((result, delivery_lag.p99_us))
            },
        );
        self.repeated += repeated;
        result
    }

    /// Downloads once like [`Self::download`], and keeps the result even if the links were late.
    pub fn download_once(
        &self,
        host: &str,
        bytes: u64,
        mut progress: impl FnMut(&Fixture, Duration, u64),
    ) -> Result<f64, Error> {
        let fixture = &self.fixture;
        let content = fixture.address("content").map_err(run_error)?;
        let to = fixture.testbed.state_dir().join("fetched");
        let what = Download {
            host,
            url: format!("http://{content}/{FILE}"),
            to: &to,
            bytes: Some(bytes),
            longest: START_TIMEOUT + Duration::from_secs(bytes / MIN_RATE),
        };
        progress(fixture, Duration::ZERO, 0);
        let begun = Instant::now();
        let seconds = fixture.download(&what, |bytes| progress(fixture, begun.elapsed(), bytes));
        let seconds = seconds.map_err(run_error)?;
        let right = starts_so(&self.file, &to, bytes).map_err(run_error)?;
        fs::remove_file(&to).map_err(run_error)?;
        match right {
            true => Ok(seconds),
            false => Err(Error::Run("a download came damaged".to_owned())),
        }
    }

    /// Returns the JSON output of `braid box` with these arguments.
    pub fn ask(&self, arguments: &[&str]) -> Result<Value, Error> {
        let braid = program::find(BRAID).map_err(run_error)?;
        let config = self.fixture.testbed.state_dir().join("box/box.toml");
        let mut command = Command::new(braid);
        command.args(["--json", "box"]).args(arguments);
        let output = command.arg("--config").arg(config).output();
        let output = output.map_err(run_error)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        match serde_json::from_slice(&output.stdout) {
            Ok(value) if output.status.success() => Ok(value),
            _ => Err(Error::Run(format!("braid box {arguments:?}: {stderr}"))),
        }
    }

    /// Waits until the box has a connection in its idle pool.
    pub fn wait_for_pool(&self) -> Result<(), Error> {
        self.wait_for("a warm connection", |net| {
            Ok(net.ask(&["status"])?["warm"]["ready"].as_u64() > Some(0))
        })
    }

    /// Waits until `condition` holds, with an error after [`STATE_TIMEOUT`].
    pub fn wait_for(
        &self,
        what: &str,
        condition: impl Fn(&Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let end = Instant::now() + STATE_TIMEOUT;
        while !condition(self)? {
            if Instant::now() > end {
                return Err(Error::Run(format!("waited in vain for {what}")));
            }
            self.fixture
                .sleep(testbed_fixture::POLL_INTERVAL)
                .map_err(run_error)?;
        }
        Ok(())
    }

    /// Returns the number of measurements that were repeated because the links were late.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }
}

/// Returns whether `fetched` holds exactly the first `bytes` bytes of `offered`.
fn starts_so(offered: &Path, fetched: &Path, bytes: u64) -> io::Result<bool> {
    if fs::metadata(fetched)?.len() != bytes {
        return Ok(false);
    }
    let (mut offered, mut fetched) = (File::open(offered)?, File::open(fetched)?);
    let [mut expected, mut came] = [(); 2].map(|()| vec![0; 1 << 16]);
    loop {
        let n = fetched.read(&mut came)?;
        if n == 0 {
            return Ok(true);
        }
        offered.read_exact(&mut expected[..n])?;
        if expected[..n] != came[..n] {
            return Ok(false);
        }
    }
}
