//! A testbed with the programs of one column.

use std::io;
use std::net::SocketAddr;

use braid_testbed::fixture::Fixture;
use braid_testbed::{LinkChange, netns};

use crate::cli::CompareArgs;
use crate::command::demo::fixture::{self, Background, LINKS};
use crate::content::{self, fetch};
use crate::kernel_peer::Cost;
use braid::failure::Failure;

/// One column: a separate testbed, with the programs that carry users' connections.
pub struct Variant {
    /// Name of the column.
    pub name: &'static str,
    /// The testbed.
    pub fixture: Fixture,
    /// The user host.
    pub user: User,
    /// The relays of the column `kernel`; empty in the column `braid`, which runs box and server.
    relays: Vec<Background>,
}

impl Variant {
    /// Builds the column with box and server, or with relays of kernel sockets in their place (`has_relays`).
    pub fn up(
        name: &'static str,
        args: &CompareArgs,
        has_relays: bool,
    ) -> Result<Variant, Failure> {
        let mut fixture = fixture::up(
            &format!("braid-compare-{name}"),
            &args.congestion,
            braid_strategy::DEFAULT,
        )?;
        for (link, settings) in LINKS.iter().zip(&args.links) {
            let mut change = LinkChange::parse(settings.split_whitespace())?;
            change.load(&std::env::current_dir()?)?;
            fixture.testbed.set(link, None, &change)?;
        }
        let namespace = fixture.testbed.layout().host("user")?.namespace.clone();
        let content = content::offer(&fixture)?;
        let (content, relays) = if has_relays {
            fixture::start_relays(&fixture, content, &args.congestion)?
        } else {
            fixture::start_gateways(&mut fixture)?;
            (content, Vec::new())
        };
        let user = User { namespace, content };
        // One transfer is not measured, so that no measurement includes the start of the programs.
        user.run(|content| fetch(content, 1_000).map(drop))?;
        fixture.testbed.reset_delivery_lag()?;
        Ok(Variant {
            name,
            fixture,
            user,
            relays,
        })
    }

    /// Returns the processor time that the two programs between user and content host have used so far, in
    /// seconds.
    pub fn cpu_seconds(&mut self) -> Result<f64, Failure> {
        let mut pids: Vec<u32> = self.relays.iter().map(Background::id).collect();
        if pids.is_empty() {
            let running = ["box", "server"].map(|host| self.fixture.testbed.pid(host));
            pids.extend(running.into_iter().flatten());
        }
        let seconds = |pid: &u32| Ok(Cost::of(&pid.to_string())?.cpu_seconds);
        pids.iter().map(seconds).sum()
    }

    /// Returns the 99th percentile of the emulator's lateness, µs.
    pub fn lateness_us(&self) -> Result<f64, Failure> {
        Ok(self.fixture.testbed.delivery_lag()?.p99_us)
    }
}

/// The user host. Threads run their transfers on it.
#[derive(Debug, Clone)]
pub struct User {
    namespace: String,
    /// The address of the content host, or of the relay to it.
    content: SocketAddr,
}

impl User {
    /// Runs `work` in the user's namespace, with the address of the content host.
    pub fn run<T: Send>(
        &self,
        work: impl FnOnce(SocketAddr) -> io::Result<T> + Send,
    ) -> Result<T, Failure> {
        let done = netns::run_inside(&self.namespace, || work(self.content));
        done.map_err(|error| Failure::run("a transfer", error))
    }
}
