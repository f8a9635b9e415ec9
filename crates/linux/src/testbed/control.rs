//! A testbed in a process of its own, and the socket to talk to it.

use std::ffi::OsStr;
use std::process::Command;

use super::error::Error;
use super::spec::Spec;
use super::status::Status;
use super::units::LinkChange;
use super::{Options, Testbed};
use crate::emulator::Direction;

/// Starts this executable again with `arguments` (a hidden subcommand that ends up in
/// [`run_daemon`]) in the background, and waits until the testbed named `name` is up.
///
/// # Errors
///
/// [`Error::Busy`], or [`Error::Daemon`] with what the daemon said before it ended.
pub fn spawn_daemon<S: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Client, Error> {
    let _ = (name, arguments.into_iter().count());
    todo!()
}

/// The daemon itself: brings the testbed up, answers on the control socket, and returns once a
/// client asked it to end or a SIGTERM or SIGINT came; everything is removed then.
///
/// # Errors
///
/// As of [`Testbed::up`].
pub fn run_daemon(spec: Spec, options: Options) -> Result<(), Error> {
    let _ = Testbed::up(spec, options)?;
    todo!()
}

/// A connection to the daemon of a testbed. Each call connects anew.
#[derive(Debug, Clone)]
pub struct Client {
    name: String,
}

impl Client {
    /// A client of the testbed named `name`.
    ///
    /// # Errors
    ///
    /// [`Error::NotUp`].
    pub fn connect(name: &str) -> Result<Client, Error> {
        let _ = name;
        todo!()
    }

    /// As [`Testbed::status`].
    ///
    /// # Errors
    ///
    /// [`Error::NotUp`] if the daemon went away.
    pub fn status(&self) -> Result<Status, Error> {
        todo!("{}", self.name)
    }

    /// As [`Testbed::exec`]; also works from outside the daemon's user namespace.
    ///
    /// # Errors
    ///
    /// As of [`Testbed::exec`].
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        let _ = (host, program);
        todo!()
    }

    /// As [`Testbed::set_link`].
    ///
    /// # Errors
    ///
    /// As of [`Testbed::set_link`].
    pub fn set_link(
        &self,
        link: &str,
        direction: Option<Direction>,
        change: &LinkChange,
    ) -> Result<(), Error> {
        let _ = (link, direction, change);
        todo!()
    }

    /// As [`Testbed::start`].
    ///
    /// # Errors
    ///
    /// As of [`Testbed::start`].
    pub fn start(&self, host: &str) -> Result<(), Error> {
        let _ = host;
        todo!()
    }

    /// As [`Testbed::stop`].
    ///
    /// # Errors
    ///
    /// As of [`Testbed::stop`].
    pub fn stop(&self, host: &str) -> Result<(), Error> {
        let _ = host;
        todo!()
    }

    /// As [`Testbed::kill`].
    ///
    /// # Errors
    ///
    /// As of [`Testbed::kill`].
    pub fn kill(&self, host: &str) -> Result<(), Error> {
        let _ = host;
        todo!()
    }

    /// As [`Testbed::restart`].
    ///
    /// # Errors
    ///
    /// As of [`Testbed::restart`].
    pub fn restart(&self, host: &str) -> Result<(), Error> {
        let _ = host;
        todo!()
    }
}

/// Asks the daemon of testbed `name` to end and waits for it; nothing if there is none.
pub(super) fn stop_daemon(_name: &str) -> Result<(), Error> {
    todo!()
}
