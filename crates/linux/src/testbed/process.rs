//! The processes of the hosts.

use std::path::PathBuf;

use super::Testbed;
use super::error::Error;

/// A process of a host.
pub(super) struct Process {}

impl Process {
    pub fn running_pid(&mut self) -> Option<u32> {
        todo!()
    }
}

impl Testbed {
    pub(super) fn start_process(&mut self, _host: &str) -> Result<(), Error> {
        todo!()
    }
    pub(super) fn stop_process(&mut self, _host: &str, _gently: bool) -> Result<(), Error> {
        todo!()
    }
}

/// Makes the state directory of the testbed named `name`.
pub(super) fn create_state_dir(_name: &str) -> Result<PathBuf, Error> {
    todo!()
}
