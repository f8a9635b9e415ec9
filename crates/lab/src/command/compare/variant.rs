//! A variant of the comparison: a testbed with the programs of one column.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use braid_testbed::fixture::Fixture;
use braid_testbed::{LinkChange, netns};

use crate::cli::CompareArgs;
use crate::command::demo::fixture::{self, Background, LINKS};
use crate::command::demo::interrupt::Interrupt;
use crate::content::{self, fetch};
use braid::failure::Failure;

/// Port on which the relays listen, at box and server. Any unused port works.
const RELAY_PORT: u16 = 7001;
/// Maximum time in which a program must start. A guess, generous for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A column: a testbed of its own, with the programs that carry the user's connections.
pub struct Variant {
    /// Name of the column.
    pub name: &'static str,
    /// The testbed.
    pub fixture: Fixture,
    /// The user host.
    pub user: User,
    /// The relays; empty in the variant with box and server.
    relays: Vec<Background>,
}

impl Variant {
    /// Builds the variant with relays of kernel sockets, and starts them.
    pub fn kernel(args: &CompareArgs, interrupt: Interrupt) -> Result<Variant, Failure> {
        let mut variant = Variant::build("kernel", args, interrupt)?;
        let fixture = &variant.fixture;
        let near = SocketAddr::new(fixture.lan_address("box")?, RELAY_PORT);
        let far = SocketAddr::new(fixture.address("server")?, RELAY_PORT);
        let (content, cc) = (variant.user.content, &args.congestion);
        variant.relays = vec![
            fixture::relay(fixture, "server", (far, "mptcp"), (content, "tcp"), cc)?,
            fixture::relay(fixture, "box", (near, "tcp"), (far, "mptcp"), cc)?,
        ];
        variant.user.content = near;
        variant.warmed_up()
    }

    /// Builds the variant with box and server, and starts them.
    pub fn braid(args: &CompareArgs, interrupt: Interrupt) -> Result<Variant, Failure> {
        let mut variant = Variant::build("braid", args, interrupt)?;
        variant.fixture.start("server", START_TIMEOUT)?;
        variant.fixture.start("box", START_TIMEOUT)?;
        variant.fixture.wait_for_interception(START_TIMEOUT)?;
        variant.warmed_up()
    }

    fn build(
        name: &'static str,
        args: &CompareArgs,
        interrupt: Interrupt,
    ) -> Result<Variant, Failure> {
        let mut fixture = fixture::up(
            &format!("braid-compare-{name}"),
            &args.congestion,
            interrupt,
        )?;
        for (link, settings) in LINKS.iter().zip(&args.links) {
            let mut change = LinkChange::parse(settings.split_whitespace())?;
            change.load(&std::env::current_dir()?)?;
            fixture.testbed.set(link, None, &change)?;
        }
        let user = User {
            namespace: fixture.testbed.layout().host("user")?.namespace.clone(),
            content: content::offer(&fixture)?,
        };
        Ok(Variant {
            name,
            fixture,
            user,
            relays: Vec::new(),
        })
    }

    /// Makes a transfer that is not measured, so that no figure includes the start of the programs.
    fn warmed_up(self) -> Result<Variant, Failure> {
        self.user.run(|content| fetch(content, 1_000).map(drop))?;
        self.fixture.testbed.reset_delivery_lag()?;
        Ok(self)
    }

    /// Returns the processor time that the two programs between user and content host have used, in seconds.
    pub fn cpu_seconds(&mut self) -> Result<f64, Failure> {
        let mut pids: Vec<u32> = self.relays.iter().map(Background::id).collect();
        if pids.is_empty() {
            let running = ["box", "server"].map(|host| self.fixture.testbed.pid(host));
            pids.extend(running.into_iter().flatten());
        }
        let mut seconds = 0.0;
        for pid in pids {
            seconds += crate::kernel_peer::Cost::of(&pid.to_string())?.cpu_seconds;
        }
        Ok(seconds)
    }

    /// Returns the 99th percentile of the emulator's delivery lag, µs.
    pub fn delivery_lag_us(&self) -> Result<f64, Failure> {
        Ok(self.fixture.testbed.delivery_lag()?.p99_us)
    }
}

/// The user host, for threads that transfer on it.
#[derive(Debug, Clone)]
pub struct User {
    namespace: String,
    /// The address that users connect to for the content host.
    content: SocketAddr,
}

impl User {
    /// Runs `work` in the user's namespace, with the address of the content host.
    pub fn run<T: Send>(
        &self,
        work: impl FnOnce(SocketAddr) -> io::Result<T> + Send,
    ) -> Result<T, Failure> {
        let result = netns::run_inside(&self.namespace, || work(self.content));
        result.map_err(|error| Failure::run("a transfer failed", error))
    }
}
