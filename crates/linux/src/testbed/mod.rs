//! Testbeds: hosts as network namespaces, emulated links and plain LANs between them, and the
//! processes that run on the hosts, all described by one TOML file.
//!
//! Two ways to use it. In process: [`Testbed::up`] builds everything and owns it; dropping the
//! value takes it down. As a daemon: [`spawn_daemon`] starts this executable again in the
//! background, where [`run_daemon`] holds the [`Testbed`] and answers on a control socket; a
//! [`Client`] talks to it.
//!
//! ```no_run
//! use braid_linux::testbed::{LinkChange, Options, Spec, Testbed};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = Spec::read("examples/testbed/demo.toml".as_ref())?;
//! let mut testbed = Testbed::up(spec, Options::default())?;
//! testbed.start("content")?;
//! testbed.exec("user", "curl")?.arg("http://203.0.113.80/").status()?;
//! testbed.set_link("link1", None, &LinkChange::parse(["loss=1%"])?)?;
//! let carried = testbed.link_stats("link1")?.reverse.bytes_delivered;
//! testbed.down()?;
//! # Ok(()) }
//! ```
//!
//! What a testbed makes is found again by name: namespaces `<testbed>.<host>`, so that
//! [`down`] removes all of it even after the daemon was killed. Whatever process still runs in
//! one of its namespaces is killed then.

mod build;
mod control;
mod error;
mod layout;
mod links;
mod model;
mod process;
mod routes;
mod spec;
mod state;
mod status;
mod subnet;
mod units;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use control::{Client, run_daemon, spawn_daemon};
pub use error::{Error, SpecError};
pub use layout::{HostLayout, InterfaceLayout, Layout, SegmentKind};
pub use model::{LinkChange, LinkModel, ScheduledChange, TraceFile};
pub use spec::{HostSpec, LanSpec, LinkSpec, Role, Spec, Start};
pub use status::{ChildStatus, DirectionStatus, HostStatus, LatenessStatus, LinkStatus, Status};
pub use subnet::{Subnet4, Subnet6};
pub use units::{
    CodelValue, LossValue, Probability, QueueSize, RateValue, ReorderValue, TimeValue,
};

use crate::emulator::{Course, Direction, Emulator};
use links::LinkState;
use process::Process;

/// Makes the configuration of a box or server from the resolved addresses: given the layout and
/// the host's name, the text of the file handed to `braid box -c` or `braid server -c`. `None`
/// where it has nothing to offer for that host.
pub type RenderConfig = Box<dyn Fn(&Layout, &HostLayout) -> Option<String> + Send + Sync>;

/// How to bring a testbed up, apart from what the file says.
#[derive(Default)]
pub struct Options {
    /// The program that has the `box` and `server` commands; by default this very executable.
    pub executable: Option<PathBuf>,
    /// Makes the configuration of boxes and servers whose `config` the file does not name.
    pub render: Option<RenderConfig>,
    /// Leave the hosts' processes to [`Testbed::start`], whatever `start` says in the file.
    pub start_nothing: bool,
}

/// A running testbed, owned by this process. Dropping it takes it down.
pub struct Testbed {
    spec: Spec,
    layout: Layout,
    options: Options,
    state_dir: PathBuf,
    /// Links in the order of the file, once they run.
    link_states: Vec<LinkState>,
    emulator: Option<Emulator>,
    processes: BTreeMap<String, Process>,
    mortal: bool,
    removed: bool,
    _claim: state::Claim,
}

impl Testbed {
    /// Builds namespaces, links, LANs, addresses and routes, then starts the processes of the
    /// hosts whose `start` is `"auto"`. Removes first what an earlier testbed of the same name
    /// left behind.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] when a daemon holds a testbed of this name; [`Error::System`] with the step
    /// that failed otherwise, and nothing is left over.
    pub fn up(spec: Spec, options: Options) -> Result<Testbed, Error> {
        Testbed::up_with(spec, options, false)
    }

    /// [`up`](Self::up); `mortal` processes are killed when the calling thread ends.
    fn up_with(spec: Spec, options: Options, mortal: bool) -> Result<Testbed, Error> {
        let layout = Layout::resolve(&spec)?;
        let claim = state::claim(&spec.name)?;
        let state_dir = state::directory(&spec.name);
        let mut testbed = Testbed {
            spec,
            layout,
            options,
            state_dir,
            link_states: Vec::new(),
            emulator: None,
            processes: BTreeMap::new(),
            mortal,
            removed: false,
            _claim: claim,
        };
        testbed.build()?;
        Ok(testbed)
    }

    /// Addresses, interfaces and namespaces as they were resolved.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where logs, generated configuration and sockets lie; gone after `down`.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// A command that will run on `host`, that is in its network namespace; everything else of
    /// the environment is the caller's.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        let host = self.layout.host(host)?;
        let mut command = Command::new(program);
        crate::netns::enter_on_exec(&mut command, &host.namespace)
            .map_err(|e| Error::system(format!("open namespace {}", host.namespace), e))?;
        Ok(command)
    }

    /// Changes a running link; `None` changes both directions.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchLink`].
    pub fn set_link(
        &mut self,
        link: &str,
        direction: Option<Direction>,
        change: &LinkChange,
    ) -> Result<(), Error> {
        self.change_link(link, direction, change)
    }

    /// Starts all links anew, each forward and reverse as in `courses`, whatever the file says,
    /// and with random streams of `seed`: the next run of a measurement begins.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    ///
    /// # Panics
    ///
    /// If there are fewer links than courses.
    pub fn restart_links(&self, courses: Vec<[Course; 2]>, seed: u64) -> Result<(), Error> {
        self.restart_all(courses, seed)
    }

    /// Runs the lines of `script` by `ip -4 -batch` on `host`, for what the file has no words for.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::System`] with the first line that was refused.
    pub fn ip(&self, host: &str, script: &str) -> Result<(), Error> {
        build::ip(&self.layout.host(host)?.namespace, "-4", script)
    }

    /// Settings and counters of a link, now.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchLink`].
    pub fn link_stats(&self, link: &str) -> Result<LinkStatus, Error> {
        self.link_status(link)
    }

    /// Everything at once, ready to print or serialise.
    pub fn status(&mut self) -> Result<Status, Error> {
        self.collect_status()
    }

    /// Starts the process of `host` (box, server or content). Nothing happens if it runs already.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::NoProcess`] for a host whose role has none or whose
    /// configuration nobody makes.
    pub fn start(&mut self, host: &str) -> Result<(), Error> {
        self.start_process(host)
    }

    /// Ends the process of `host`: SIGTERM, and SIGKILL after 3 s.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn stop(&mut self, host: &str) -> Result<(), Error> {
        self.stop_process(host, true)
    }

    /// Ends the process of `host` by SIGKILL, as a crash would.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn kill(&mut self, host: &str) -> Result<(), Error> {
        self.stop_process(host, false)
    }

    /// [`stop`](Self::stop), then [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// As of the two.
    pub fn restart(&mut self, host: &str) -> Result<(), Error> {
        self.stop(host)?;
        self.start(host)
    }

    /// The process id of the process of `host`, while it runs.
    pub fn pid(&mut self, host: &str) -> Option<u32> {
        self.processes.get_mut(host).and_then(Process::running_pid)
    }

    /// Ends all processes and removes all that was made.
    ///
    /// # Errors
    ///
    /// [`Error::System`] with the first step that failed; the others are still done.
    pub fn down(mut self) -> Result<(), Error> {
        self.tear_down()
    }

    /// Gives a host its addresses and routes again, after an interface was down or addresses were
    /// taken away.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`].
    pub fn reconfigure(&self, host: &str) -> Result<(), Error> {
        self.configure_host(host)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Err(error) = self.tear_down() {
            tracing::warn!(%error, "testbed not entirely removed");
        }
    }
}

/// Whether a living process holds a testbed named `name`.
pub fn is_up(name: &str) -> bool {
    // Of a killed process, a child that was about to become another program holds the name for a
    // moment longer.
    let deadline = Instant::now() + Duration::from_secs(1);
    while state::is_claimed(name) {
        if !state::is_orphaned(name) || Instant::now() > deadline {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Takes the testbed named `name` down, whoever made it and whether that one still lives: asks
/// its daemon to end if there is one, then removes whatever is left: processes, namespaces, state
/// directory. Succeeds when there is nothing to do.
///
/// # Errors
///
/// [`Error::System`] with the first step that failed.
pub fn down(name: &str) -> Result<(), Error> {
    control::stop_daemon(name)?;
    build::remove_leftovers(name)
}
