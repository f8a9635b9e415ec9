//! Named network namespaces, compatible with `ip netns`: each is a file in `/run/netns` on which
//! the namespace is mounted.
//!
//! Namespaces need root, or an unprivileged user namespace with separate mounts. If a program is not root,
//! [`ensure_capable`] starts it again in such a user namespace.

use std::fs::{self, DirEntry, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use braid_linux::sys;
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Environment variable of a program that [`ensure_capable`] has started in a new user namespace. Its value is
/// the user ID outside.
pub const USER_NAMESPACE_VARIABLE: &str = "BRAID_USER_NAMESPACE";

const DIRECTORY: &str = "/run/netns";

/// Makes a namespace named `name` that holds only a loopback interface, which is down.
///
/// # Errors
///
/// `AlreadyExists` if there is a namespace of this name; otherwise the system's error.
pub fn create(name: &str) -> io::Result<()> {
    prepare_directory()?;
    let path = path(name)?;
    let mut options = File::options();
    options
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)?;
    // A new thread moves into the namespace, because the calling thread must stay in its own namespace.
    let made = on_thread(|| {
        sys::unshare_network()?;
        mount_bind("/proc/thread-self/ns/net", &path)?;
        Ok(())
    });
    if made.is_err() {
        let _ = fs::remove_file(&path);
    }
    made
}

/// Removes the namespace named `name`. Its interfaces vanish when no process is left in it. Succeeds if there is
/// no such namespace.
///
/// # Errors
///
/// The system's error.
pub fn delete(name: &str) -> io::Result<()> {
    let path = path(name)?;
    // Errors are ignored: EINVAL means that nothing is mounted there, ENOENT that there is no file. In both cases
    // at most the file remains.
    let _ = unmount(&path, UnmountFlags::DETACH);
    match fs::remove_file(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns whether there is a namespace named `name`.
pub fn exists(name: &str) -> bool {
    path(name).is_ok_and(|p| p.exists())
}

/// Returns the names of all namespaces.
///
/// # Errors
///
/// The system's error; a missing directory counts as no namespaces.
pub fn list() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.flatten().map(|e| e.file_name().into_string());
    let mut names: Vec<String> = names.filter_map(Result::ok).collect();
    names.sort();
    Ok(names)
}

/// Returns a handle on the namespace named `name`. The handle keeps the namespace alive.
///
/// # Errors
///
/// `NotFound` if there is none.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    Ok(File::open(path(name)?)?.into())
}

/// Moves the calling thread into the namespace named `name`. The thread stays there.
///
/// # Errors
///
/// `NotFound` if there is none; otherwise the system's error.
pub fn enter(name: &str) -> io::Result<()> {
    let namespace = open(name)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Runs `work` on a new thread inside the namespace named `name`, and waits for its result. Sockets and TUN
/// devices that `work` makes stay in that namespace.
///
/// # Errors
///
/// As [`enter`], and as `work`.
pub fn run_inside<T: Send>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_thread(|| {
        enter(name)?;
        work()
    })
}

fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let result = std::thread::scope(|scope| scope.spawn(work).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes `command` start inside the namespace named `name`.
///
/// # Errors
///
/// `NotFound` if there is none.
pub fn enter_on_exec(command: &mut Command, name: &str) -> io::Result<()> {
    sys::join_on_exec(command, vec![open(name)?]);
    Ok(())
}

/// Returns a command that runs `program` inside the namespace named `name`.
///
/// # Errors
///
/// As [`enter_on_exec`].
pub fn command(name: &str, program: &str) -> io::Result<Command> {
    let mut command = Command::new(program);
    enter_on_exec(&mut command, name)?;
    Ok(command)
}

/// Returns the ids of the processes that have a thread in the namespace named `name`, except this one.
///
/// # Errors
///
/// `NotFound` if there is none.
pub fn processes(name: &str) -> io::Result<Vec<Pid>> {
    let namespace = identity(&path(name)?)?;
    let own = rustix::process::getpid();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| Pid::from_raw(n.parse().ok()?)) else {
            continue;
        };
        // The process may have ended since it was listed.
        let Ok(tasks) = fs::read_dir(entry.path().join("task")) else {
            continue;
        };
        let is_inside = |task: DirEntry| {
            identity(&task.path().join("ns/net")).is_ok_and(|found| found == namespace)
        };
        if pid != own && tasks.flatten().any(is_inside) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns device and inode, which identify a namespace.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn path(name: &str) -> io::Result<PathBuf> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        let message = format!("`{name}` cannot name a network namespace");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

/// Makes the directory, and a shared mount of it, as `ip netns` does. Because the mount is shared, a namespace
/// that is deleted here also vanishes from mount namespaces that were copied from this one.
fn prepare_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    // The change fails if the directory is no mount point yet. In this case the directory is mounted on itself.
    if mount_change(DIRECTORY, shared).is_err() {
        mount_bind_recursive(DIRECTORY, DIRECTORY)?;
        mount_change(DIRECTORY, shared)?;
    }
    Ok(())
}

/// The privilege with which a program makes namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// The program is root.
    Root,
    /// The program runs in an unprivileged user namespace, with a separate network and separate mounts.
    UserNamespace,
}

/// The reason why this program cannot make namespaces. The text is worded to follow "skipped: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(pub String);

impl Reason {
    /// Reports on standard error that `what` is skipped. Writes to standard error directly: `eprintln` would not
    /// appear in a test that succeeds.
    pub fn announce(&self, what: &str) {
        let _ = writeln!(io::stderr(), "{what} skipped: {self}");
    }
}

/// Returns the privilege with which this program can make network namespaces and TUN devices. For
/// [`Capability::UserNamespace`], the caller has to enter a user namespace by [`ensure_capable`].
///
/// # Errors
///
/// The reason if this program cannot make them.
pub fn capability() -> Result<Capability, Reason> {
    if std::env::var_os(USER_NAMESPACE_VARIABLE).is_some() {
        let failed = |e| Reason(format!("cannot mount /run/netns in a user namespace ({e})"));
        prepare_directory().map_err(failed)?;
        return Ok(Capability::UserNamespace);
    }
    if rustix::process::geteuid().is_root() {
        let failed = |what| move |e| Reason(format!("root may not {what} here ({e})"));
        let tun = File::options().read(true).write(true).open("/dev/net/tun");
        tun.map_err(failed("open /dev/net/tun"))?;
        // An unnamed namespace shows whether the system allows namespaces.
        on_thread(sys::unshare_network).map_err(failed("make network namespaces"))?;
        return Ok(Capability::Root);
    }
    match run_in_user_namespace(Command::new("true").stdin(Stdio::null())) {
        Ok(_) => Ok(Capability::UserNamespace),
        Err(e) => Err(Reason(format!(
            "not root, and no unprivileged user namespace with TUN devices is available ({e})"
        ))),
    }
}

/// Makes sure that this program may make network namespaces and TUN devices.
///
/// If the program is root, the function returns at once. Otherwise it starts this executable again, with the same
/// arguments, inside a new user namespace with its own network, mounts and `/run`. It waits for the end of that
/// child, and ends this process with the child's exit code. In the child, the function returns at once. So a
/// program has to call it before it does anything else.
///
/// # Errors
///
/// The reason if the program is not root and cannot have a user namespace. The caller then skips its work and
/// reports the reason.
pub fn ensure_capable() -> Result<Capability, Reason> {
    // Several threads of a test program may call this function, but only one may start the program again.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let capability = capability()?;
    if capability == Capability::Root || std::env::var_os(USER_NAMESPACE_VARIABLE).is_some() {
        return Ok(capability);
    }
    let reason = |e: io::Error| Reason(format!("cannot start again in a user namespace ({e})"));
    let program = std::env::current_exe().map_err(reason)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    let status = run_in_user_namespace(&mut command).map_err(reason)?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Runs `command` as root of a new user namespace, with its own network and mounts.
fn run_in_user_namespace(command: &mut Command) -> io::Result<std::process::ExitStatus> {
    let uid = rustix::process::getuid().as_raw();
    command.env(USER_NAMESPACE_VARIABLE, uid.to_string());
    sys::isolate_on_exec(command);
    let mut child = command.spawn()?;
    // Ctrl-C reaches both processes. This process ignores it and waits until the child has cleaned up.
    sys::ignoring_interrupts(|| child.wait())
}
