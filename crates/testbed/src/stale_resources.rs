//! Removal of everything that a testbed leaves behind, found by the testbed's name.

use std::time::Duration;
use std::{fs, io};

use rustix::process::{Signal, kill_process};

use crate::error::Error;
use crate::programs::wait_until;
use crate::{layout, netns, state};

/// Maximum time for processes to end after SIGKILL. The limit matters only for processes that hang in the kernel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Removes the namespaces, processes and state of a testbed named `name`.
pub(crate) fn remove(name: &str) -> Result<(), Error> {
    // A failure must not stop the removal of the other resources, so only the first error is kept.
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

/// Kills all processes in a namespace, and waits for their end for at most [`EXIT_TIMEOUT`]. Repeats the search,
/// since a process may start another before it dies.
fn kill_all_in(namespace: &str) {
    wait_until(EXIT_TIMEOUT, || {
        let found = netns::processes(namespace).unwrap_or_default();
        for pid in &found {
            let _ = kill_process(*pid, Signal::KILL);
        }
        found.is_empty()
    });
}
