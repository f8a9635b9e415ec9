//! A testbed that this process owns.

mod build;
mod links;
mod process;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid_secure::keys::PrivateKey;

use crate::emulator::Emulator;
use crate::error::Error;
use crate::layout::{HostLayout, Layout};
use crate::spec::Spec;
use crate::{netns, stale_resources, state};
use links::LinkState;
use process::Process;

/// A function that makes the configuration of a box or server from the layout and the host. It returns `None`
/// for other hosts.
pub type RenderConfig = Box<dyn Fn(&Layout, &HostLayout) -> Option<Rendered> + Send + Sync>;

/// The configuration of a box or server.
#[derive(Debug, Clone)]
pub struct Rendered {
    /// The text of the file handed to `braid box -c` or `braid server -c`.
    pub text: String,
    /// The private key, for the file `box.key` or `server.key` beside it.
    pub key: PrivateKey,
}

/// The options for building a testbed that are not in its file.
#[derive(Default)]
pub struct Options {
    /// The program that has the `box` and `server` commands. By default it is `braid`, beside this program or in
    /// `PATH`.
    pub executable: Option<PathBuf>,
    /// Makes the configuration of boxes and servers whose `config` the file does not name.
    pub render: Option<RenderConfig>,
    /// True to start no processes with the testbed, even those with `start = "auto"` in the file.
    /// [`Testbed::start`] starts them later.
    pub start_nothing: bool,
}

/// A running testbed, owned by this process. Dropping this value takes the testbed down.
pub struct Testbed {
    spec: Spec,
    layout: Layout,
    options: Options,
    state_dir: PathBuf,
    /// The links in the order of the file, once they run.
    link_states: Vec<LinkState>,
    emulator: Option<Emulator>,
    processes: BTreeMap<String, Process>,
    /// True if the kernel kills the hosts' processes when the thread that started them ends.
    dies_with_thread: bool,
    /// True once the testbed has been taken down.
    removed: bool,
    _name_lock: File,
}

impl Testbed {
    /// Removes the remains of an earlier testbed of the same name. Builds namespaces, links, LANs, addresses and
    /// routes. Then starts the processes of the hosts whose `start` is `"auto"`.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if a daemon holds a testbed of this name; otherwise [`Error::System`] with the step
    /// that failed, after everything was removed.
    pub fn up(spec: Spec, options: Options) -> Result<Testbed, Error> {
        Testbed::up_with(spec, options, false)
    }

    /// Does the same as [`up`](Self::up). If `dies_with_thread`, the processes are killed when the calling thread
    /// ends.
    pub(crate) fn up_with(
        spec: Spec,
        options: Options,
        dies_with_thread: bool,
    ) -> Result<Testbed, Error> {
        let layout = Layout::resolve(&spec)?;
        if state::is_locked(&spec.name) {
            return Err(Error::Busy(spec.name.to_string()));
        }
        stale_resources::remove(&spec.name)?;
        let name_lock = state::lock_name(&spec.name)?;
        let state_dir = state::directory(&spec.name);
        let mut testbed = Testbed {
            spec,
            layout,
            options,
            state_dir,
            link_states: Vec::new(),
            emulator: None,
            processes: BTreeMap::new(),
            dies_with_thread,
            removed: false,
            _name_lock: name_lock,
        };
        testbed.build()?;
        Ok(testbed)
    }

    /// Returns the addresses, interfaces and namespaces of the hosts.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the directory of logs, generated configuration and sockets; `down` removes it.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Returns a command that runs in the network namespace of `host`; the rest of its environment is the
    /// caller's.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        let host = self.layout.host(host)?;
        netns::command(&host.namespace, program)
            .map_err(|e| Error::system(format!("open namespace {}", host.namespace), e))
    }

    /// Ends all processes and removes everything that was made.
    ///
    /// # Errors
    ///
    /// [`Error::System`] with the first step that failed. The steps after a failed step are still done.
    pub fn down(mut self) -> Result<(), Error> {
        self.tear_down()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Err(error) = self.tear_down() {
            tracing::warn!(%error, "the testbed was not removed completely");
        }
    }
}
