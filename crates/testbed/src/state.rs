//! The state directory: logs, generated configuration, control socket, and the lock of its owner.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;

use crate::error::Error;
use crate::netns;
use crate::programs::wait_until;

/// Maximum time for which a child of a killed daemon may hold the daemon's lock. The limit matters only for a
/// child that hangs: a child inherits the lock, and releases it when it executes its program.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of attempts to make a state directory. Another testbed may remove the parent directory during an
/// attempt. The limit is a number and not a time, because the machine may stand still between two attempts. 100 is
/// a guess: if the parent directory cannot be made at all, 100 attempts take no noticeable time.
const MAX_ATTEMPTS: u32 = 100;

/// Returns the state directory of the testbed named `name`. For root it is below `/run/braid`. For another user it
/// is below a directory of that user among the temporary files. The testbed of such a user runs in a user
/// namespace, whose `/run` is not visible outside. But the control socket must be reachable from outside.
pub(crate) fn directory(name: &str) -> PathBuf {
    root().join(name)
}

/// Returns the directory above all state directories of this user.
fn root() -> PathBuf {
    let uid = rustix::process::getuid();
    match std::env::var(netns::USER_NAMESPACE_VARIABLE) {
        Err(_) if uid.is_root() => PathBuf::from("/run/braid"),
        Err(_) => std::env::temp_dir().join(format!("braid-{}", uid.as_raw())),
        Ok(outside) => std::env::temp_dir().join(format!("braid-{outside}")),
    }
}

/// Removes the directory above all state directories if it is empty.
pub(crate) fn remove_root_if_empty() {
    let _ = fs::remove_dir(root());
}

/// Returns the path of the control socket of the testbed named `name`.
pub(crate) fn socket(name: &str) -> PathBuf {
    directory(name).join("control")
}

/// Returns whether a living process holds the lock of the testbed named `name`.
pub(crate) fn is_locked(name: &str) -> bool {
    File::open(directory(name).join("lock"))
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Returns the process that took the lock of the testbed named `name`: its ID is in the lock file.
pub(crate) fn lock_holder(name: &str) -> Option<Pid> {
    if !is_locked(name) {
        return None;
    }
    let text = fs::read_to_string(directory(name).join("lock")).ok()?;
    Pid::from_raw(text.parse().ok()?)
}

/// Returns whether the process that took the lock of the testbed named `name` is dead, while a child of that
/// process still holds the lock.
pub(crate) fn is_lock_orphaned(name: &str) -> bool {
    let dead = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
    lock_holder(name).is_some_and(dead)
}

/// Returns whether a living process holds a testbed named `name`.
pub fn is_up(name: &str) -> bool {
    // A child of a killed daemon holds the lock until it executes its program.
    wait_until(EXEC_TIMEOUT, || !is_lock_orphaned(name));
    is_locked(name)
}

/// Makes the directory of the testbed named `name`, and locks the name. Fails if another process holds the lock.
/// The lock ends when the returned file is closed or the process dies.
pub(crate) fn lock_name(name: &str) -> Result<File, Error> {
    let directory = directory(name);
    let make = || -> io::Result<File> {
        // Another testbed that goes down may remove the root between the two calls of `create_owned`.
        let mut attempts = 1;
        while let Err(e) = create_owned(&root()).and_then(|()| create_owned(&directory)) {
            if e.kind() != io::ErrorKind::NotFound || attempts >= MAX_ATTEMPTS {
                return Err(e);
            }
            attempts += 1;
        }
        let mut lock = File::create(directory.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        write!(lock, "{}", std::process::id())?;
        Ok(lock)
    };
    make().map_err(|e| Error::system(format!("make {}", directory.display()), e))
}

/// Makes a directory. An existing one must belong to this user.
fn create_owned(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    // Every user may write into the directory of temporary files, so another user may have made a directory of
    // this name.
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() && metadata.uid() == rustix::process::getuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to another user",
    ))
}
