//! Named network namespaces, compatible with `ip netns`. Each is mounted on a file in `/run/netns`.
//!
//! The functions work as root, or as root of an unprivileged user namespace with its own mounts.
//! [`ensure_capable`] moves a program that is not root into such a user namespace.

use std::fmt;
use std::fs::{self, File, OpenOptions};
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
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Environment variable that [`ensure_capable`] sets for the program in the user namespace. Its value is the
/// user id outside the user namespace.
pub const USER_NAMESPACE_VARIABLE: &str = "BRAID_USER_NAMESPACE";

const DIRECTORY: &str = "/run/netns";

/// Creates a namespace named `name`. It has only a loopback interface, which is down.
///
/// # Errors
///
/// `AlreadyExists` if a namespace has this name; otherwise the error of the system call.
pub fn create(name: &str) -> io::Result<()> {
    prepare_directory()?;
    let path = path(name)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)?;
    // Only the thread that calls `unshare` moves to the new namespace, and it ends here. The mount keeps the
    // namespace.
    let created = on_thread(|| {
        sys::unshare_network()?;
        mount_bind("/proc/thread-self/ns/net", &path)?;
        Ok(())
    });
    if created.is_err() {
        let _ = fs::remove_file(&path);
    }
    created
}

/// Removes the name of the namespace `name`. The kernel removes the namespace and its interfaces when no
/// process is left in it. Succeeds if there is no such namespace.
///
/// # Errors
///
/// The error of the system call.
pub fn delete(name: &str) -> io::Result<()> {
    let path = path(name)?;
    // Errors mean that nothing is mounted (EINVAL) or that there is no file (ENOENT). Both are handled below.
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
/// The error of the system call. A missing directory is no error: there are no namespaces.
pub fn list() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Returns a handle on the namespace named `name`, which keeps it alive.
///
/// # Errors
///
/// `NotFound` if there is none.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    Ok(File::open(path(name)?)?.into())
}

/// Moves the calling thread into the namespace named `name`. It does not move back.
///
/// # Errors
///
/// `NotFound` if there is none; otherwise the error of the system call.
pub fn enter(name: &str) -> io::Result<()> {
    let namespace = open(name)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Runs `work` on a new thread inside the namespace named `name`, and waits for it. Sockets and TUN devices
/// that `work` opens stay in that namespace.
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
    std::thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
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
pub fn processes(name: &str) -> io::Result<Vec<u32>> {
    let namespace = identity(&path(name)?)?;
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        // The process may have ended since it was listed.
        let Ok(tasks) = fs::read_dir(entry.path().join("task")) else {
            continue;
        };
        let inside = tasks
            .flatten()
            .any(|t| identity(&t.path().join("ns/net")).ok() == Some(namespace));
        if inside && pid != own {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns device and inode of a file, which identify a namespace.
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

/// Makes the directory a shared mount, as `ip netns` does. Otherwise a mount namespace that was cloned
/// meanwhile would keep a namespace that is deleted here.
fn prepare_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    if mount_change(DIRECTORY, shared).is_err() {
        mount_bind_recursive(DIRECTORY, DIRECTORY)?;
        mount_change(DIRECTORY, shared)?;
    }
    Ok(())
}

/// The privilege by which a program may create namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// The program is root.
    Root,
    /// The program runs in an unprivileged user namespace with network and mounts of its own.
    UserNamespace,
}

/// The reason why this program cannot create namespaces, as a text to follow "skipped: ".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(pub String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Reason {}

impl Reason {
    /// Reports on standard error that `what` is skipped. It writes directly, since the test runner captures and
    /// drops what `eprintln!` prints in a test that succeeds.
    pub fn announce(&self, what: &str) {
        let _ = writeln!(io::stderr(), "{what} skipped: {self}");
    }
}

/// Returns the privilege by which this program can create network namespaces and TUN devices. For
/// [`Capability::UserNamespace`], the caller must first move to a user namespace by [`ensure_capable`].
///
/// # Errors
///
/// The reason why the program can create none.
pub fn capability() -> Result<Capability, Reason> {
    if std::env::var_os(USER_NAMESPACE_VARIABLE).is_some() {
        let failed = |e| Reason(format!("cannot mount /run/netns in a user namespace ({e})"));
        prepare_directory().map_err(failed)?;
        return Ok(Capability::UserNamespace);
    }
    if rustix::process::geteuid().is_root() {
        let failed = |what| move |e| Reason(format!("root may not {what} here ({e})"));
        open_tun().map_err(failed("open /dev/net/tun"))?;
        probe().map_err(failed("make network namespaces"))?;
        return Ok(Capability::Root);
    }
    match run_in_user_namespace(Command::new("true").stdin(Stdio::null())) {
        Ok(_) => Ok(Capability::UserNamespace),
        Err(e) => Err(Reason(format!(
            "not root, and cannot create an unprivileged user namespace with TUN devices ({e})"
        ))),
    }
}

/// Makes sure that this program may create network namespaces and TUN devices. Must be the first call of a
/// program.
///
/// As root, or inside a user namespace that an earlier call has created, it returns at once. Otherwise it
/// starts this executable again with the same arguments, inside a new user namespace with its own network,
/// mounts and `/run`. It waits for the end of that process, and ends this process with the same exit code.
///
/// # Errors
///
/// The reason why the program can create none. A test should report that it is skipped.
pub fn ensure_capable() -> Result<Capability, Reason> {
    // Several threads of a test program may call this function, but only one may start the program again.
    static RESTART_LOCK: Mutex<()> = Mutex::new(());
    let _lock = RESTART_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
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

fn open_tun() -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).open("/dev/net/tun")
}

/// Tries to create a network namespace, which vanishes with its thread.
fn probe() -> io::Result<()> {
    on_thread(sys::unshare_network)
}

/// Runs `command` as root of a new user namespace, with its own network and mounts.
fn run_in_user_namespace(command: &mut Command) -> io::Result<std::process::ExitStatus> {
    command.env(
        USER_NAMESPACE_VARIABLE,
        rustix::process::getuid().as_raw().to_string(),
    );
    sys::isolate_on_exec(command);
    let mut child = command.spawn()?;
    // Ctrl-C in the terminal reaches both processes. This one must outlive the child, which cleans up.
    sys::ignoring_interrupts(|| child.wait())
}
