//! The state directory of a testbed: logs, generated configuration, control socket, and the lock on its name.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;

use crate::error::Error;
use crate::netns;

/// The longest wait for a child of a killed owner to call `exec`, until which the child holds the lock too. A
/// guess: only a child that hangs takes seconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of attempts to make a directory while other testbeds remove its parent. A number, and not a
/// time: on a machine under load, a time may pass before the second attempt, and if the parent can never exist, a
/// number is reached at once.
const MAX_ATTEMPTS: u32 = 100;

/// Returns the state directory of the testbed named `name`: in `/run/braid` for root, otherwise in a directory
/// of the user in the directory for temporary files. The control socket must be reachable from outside a user
/// namespace, which has a private `/run`.
pub(crate) fn directory(name: &str) -> PathBuf {
    root().join(name)
}

fn root() -> PathBuf {
    let uid = rustix::process::getuid();
    match std::env::var(netns::USER_NAMESPACE_VARIABLE) {
        Err(_) if uid.is_root() => PathBuf::from("/run/braid"),
        Err(_) => std::env::temp_dir().join(format!("braid-{}", uid.as_raw())),
        // The user id outside the user namespace; inside, the user is root.
        Ok(outer_uid) => std::env::temp_dir().join(format!("braid-{outer_uid}")),
    }
}

/// Removes the parent of all state directories if it is empty.
pub(crate) fn remove_root_if_empty() {
    let _ = fs::remove_dir(root());
}

/// Returns the path of the control socket of the testbed named `name`.
pub(crate) fn socket(name: &str) -> PathBuf {
    directory(name).join("control")
}

/// The lock on a testbed's name. It is released when this value is dropped or the process ends.
pub(crate) struct NameLock {
    _lock: File,
}

/// Returns whether a living process has locked the name of the testbed named `name`.
pub(crate) fn is_locked(name: &str) -> bool {
    File::open(directory(name).join("lock"))
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Returns the process that holds the lock on `name`, according to the id that it wrote into the file.
pub(crate) fn lock_holder(name: &str) -> Option<Pid> {
    if !is_locked(name) {
        return None;
    }
    let text = fs::read_to_string(directory(name).join("lock")).ok()?;
    Pid::from_raw(text.parse().ok()?)
}

/// Returns whether the lock on `name` is held although its owner is dead: a child has inherited the file.
pub(crate) fn is_lock_orphaned(name: &str) -> bool {
    let dead = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
    lock_holder(name).is_some_and(dead)
}

/// Returns whether a living process holds a testbed named `name`.
pub fn is_up(name: &str) -> bool {
    // A child that a killed process has just forked holds the lock until it calls `exec`.
    let deadline = Instant::now() + EXEC_TIMEOUT;
    while is_locked(name) {
        if !is_lock_orphaned(name) || Instant::now() > deadline {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Locks the name, and makes its state directory if necessary.
pub(crate) fn lock_name(name: &str) -> Result<NameLock, Error> {
    let directory = directory(name);
    let make_lock = || -> io::Result<File> {
        // Another testbed that goes down may remove the root between the two calls.
        let mut attempts = 1;
        while let Err(e) = create_private(&root()).and_then(|()| create_private(&directory)) {
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
    let lock =
        make_lock().map_err(|e| Error::system(format!("make {}", directory.display()), e))?;
    Ok(NameLock { _lock: lock })
}

fn create_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    // In the directory for temporary files, another user may have made the directory or a symbolic link.
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() && metadata.uid() == rustix::process::getuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it exists and is no directory of this user",
    ))
}
