//! Removal of the resources that a testbed has left behind.

use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::{layout, netns, state};

/// The longest wait for processes to end after SIGKILL. A guess: only a process that hangs in the kernel takes
/// seconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Removes the namespaces, the processes and the state directory of the testbed named `name`. Goes on after a
/// failure, and returns the first error.
pub(crate) fn remove(name: &str) -> Result<(), Error> {
    let mut first_error = Ok(());
    let namespaces = netns::list().map_err(|e| Error::system("list namespaces", e))?;
    for namespace in namespaces.iter().filter(|n| layout::belongs_to(n, name)) {
        kill_all_in(namespace);
        let deleted = netns::delete(namespace);
        let error = deleted.map_err(|e| Error::system(format!("delete namespace {namespace}"), e));
        first_error = first_error.and(error);
    }
    let directory = state::directory(name);
    let removed = match fs::remove_dir_all(&directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    state::remove_root_if_empty();
    first_error
        .and(removed.map_err(|e| Error::system(format!("remove {}", directory.display()), e)))
}

/// Kills all processes in a namespace, and waits at most [`EXIT_TIMEOUT`] for their end. Kills repeatedly, since a
/// process may fork before it ends.
fn kill_all_in(namespace: &str) {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while Instant::now() < deadline {
        let found = netns::processes(namespace).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        for pid in found.into_iter().filter_map(|p| Pid::from_raw(p as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
