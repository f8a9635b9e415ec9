//! A testbed in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::emulator::{Course, Direction, Emulator};
use crate::error::Error;
use crate::layout::{HostLayout, Layout};
use crate::links::LinkState;
use crate::model::LinkChange;
use crate::process::Process;
use crate::spec::Spec;
use crate::status::{LinkStatus, Status};
use crate::{build, control, state};

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
    pub(crate) spec: Spec,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) state_dir: PathBuf,
    /// Links in the order of the file, once they run.
    pub(crate) link_states: Vec<LinkState>,
    pub(crate) emulator: Option<Emulator>,
    pub(crate) processes: BTreeMap<String, Process>,
    pub(crate) mortal: bool,
    pub(crate) removed: bool,
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
    pub(crate) fn up_with(spec: Spec, options: Options, mortal: bool) -> Result<Testbed, Error> {
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
