//! Safe wrappers of system calls that the standard library and rustix do not offer, or only as unsafe.
#![expect(
    unsafe_code,
    reason = "here so that those who need such a call need no unsafe"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::Signal;
use rustix::thread::{UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Moves the calling thread into a new network namespace, for good.
///
/// # Errors
/// Fails if the system refuses.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: unshare is unsafe for its flag FILES alone, which parts file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(())
}

/// Makes `command` start inside `namespaces`, which it joins in this order, with no signal blocked. A process
/// that reads its signals from a descriptor blocks them, and a command would inherit that: a SIGTERM would
/// not end it.
pub fn join_on_exec(command: &mut Command, namespaces: Vec<OwnedFd>) {
    before_exec(command, move || {
        for namespace in &namespaces {
            move_into_link_name_space(namespace.as_fd(), None)?;
        }
        unblock_signals()
    });
}

/// Unblocks every signal for the calling thread.
fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is plain data that `sigemptyset` fills before it is read; nothing else is touched.
    let unblocked = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    check(unblocked)
}

/// Makes `command` start as root of a new user namespace, with a network, mounts and `/run` of its own. The
/// start fails if TUN devices could not be opened there.
pub fn isolate_on_exec(command: &mut Command) {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let (uid_map, gid_map) = (format!("0 {uid} 1\n"), format!("0 {gid} 1\n"));
    before_exec(command, move || {
        // SAFETY: as in `unshare_network`; after the fork there is one thread.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS)?;
        }
        write_raw(c"/proc/self/setgroups", b"deny")?;
        write_raw(c"/proc/self/uid_map", uid_map.as_bytes())?;
        write_raw(c"/proc/self/gid_map", gid_map.as_bytes())?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change(c"/", private)?;
        mount(c"braid", c"/run", c"tmpfs", MountFlags::empty(), None)?;
        // Opening it takes rights of the outer user; a missing right has to show now.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())?;
        Ok(())
    });
}

/// Makes the kernel kill the process of `command` when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command) {
    before_exec(command, || {
        Ok(rustix::process::set_parent_process_death_signal(Some(
            Signal::KILL,
        ))?)
    });
}

/// Makes `command` start in a session of its own, which the terminal's interrupt does not reach, with nothing
/// open but the standard streams. Another process that waits for the end of a pipe or a lock of this process
/// does not wait for the command.
pub fn detach_on_exec(command: &mut Command) {
    before_exec(command, || {
        // SAFETY: nothing is closed before the new program begins, which knows of none of these.
        let marked = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
        check(marked)?;
        Ok(rustix::process::setsid().map(drop)?)
    });
}

/// Runs a hook between fork and exec. Only hooks of this module qualify: they make system calls on values
/// from before the fork, and neither allocate nor lock.
fn before_exec(
    command: &mut Command,
    hook: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: see above; all calls are async-signal-safe.
    unsafe { command.pre_exec(hook) };
}

/// Writes a file in one call, without allocating.
fn write_raw(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

/// Runs `work` while the terminal's interrupt (SIGINT) is ignored.
pub fn ignoring_interrupts<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no handler is installed, the signal is ignored from now on.
    let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let result = work();
    // SAFETY: the disposition is what the call above answered.
    unsafe { libc::signal(libc::SIGINT, before) };
    result
}

/// Reads a socket option into `value`, whose length bounds the bytes written.
///
/// # Errors
/// Fails if `getsockopt` does.
pub fn socket_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: `value` and `len` are live and writable for the call, `len` holds the size of
    // `value`, and the kernel writes at most that many bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result)
}

/// Makes a packet socket receive the packets of `protocol` (`ETH_P_…`) that an interface sends and receives,
/// or those of all interfaces if `interface` is 0.
///
/// # Errors
/// Fails if `bind` does.
pub fn bind_packet_socket(
    socket: BorrowedFd<'_>,
    protocol: libc::c_int,
    interface: u32,
) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain data, for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = interface as libc::c_int;
    // SAFETY: the descriptor is open, and `bind` reads one `sockaddr_ll`, of which pointer and length
    // are given.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
}

/// Returns the time at which the packet that was read last passed the kernel. The first call turns these
/// timestamps on for the socket; a packet that came before gets the present time.
///
/// # Errors
/// Fails with `NotFound` if no packet has been read yet.
pub fn packet_timestamp(socket: BorrowedFd<'_>) -> io::Result<SystemTime> {
    /// From asm-generic/sockios.h.
    const SIOCGSTAMPNS_OLD: libc::Ioctl = 0x8907;
    // The old request writes a `timespec` of two longs.
    const { assert!(size_of::<libc::timespec>() == 2 * size_of::<libc::c_long>()) };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the descriptor is open, and this request writes one `timespec`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS_OLD, &raw mut time) })?;
    Ok(SystemTime::UNIX_EPOCH + Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Switches on a socket option of type int.
///
/// # Errors
/// Fails if `setsockopt` does.
pub(crate) fn enable_socket_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option is an int, of which pointer and length are
    // given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Puts the calling thread under SCHED_FIFO with `priority` (1 to 99). In any case it removes the slack of
/// the thread's timers (50 µs by default). Returns whether the thread is under SCHED_FIFO.
pub fn become_realtime(priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameter lives through the call; 0 means the calling thread.
    let realtime = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } == 0;
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    realtime
}

/// Returns free memory to the system, if the allocator is glibc's, which keeps it.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer only; the allocator's own locks keep other threads out.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns whether the system's clock is synchronised, for example by NTP.
///
/// # Errors
/// Fails if the system does not tell.
pub(crate) fn clock_is_synchronised() -> io::Result<bool> {
    // SAFETY: `timex` is plain data, for which all zeroes is a valid value.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads and writes one `timex`; with no mode it changes nothing.
    match unsafe { libc::adjtimex(&raw mut state) } {
        0.. => Ok(state.status & libc::STA_UNSYNC == 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches `device`, an open `/dev/net/tun`, to a new device `name` of the calling thread's network
/// namespace. Each packet has a `virtio_net_hdr` in front of it.
///
/// # Errors
/// Fails with `InvalidInput` if `name` cannot name an interface, and if the system refuses.
pub(crate) fn attach_tun(device: &OwnedFd, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', ' ', '\0', '%']) {
        let message = format!("`{name}` cannot name an interface");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one `ifreq`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
}

/// Tells the kernel which offloads (`TUN_F_…`) the reader of a TUN device understands.
///
/// # Errors
/// Fails with `InvalidInput` if the kernel does not know one.
pub(crate) fn set_tun_offload(device: &OwnedFd, offloads: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(offloads);
    // SAFETY: the descriptor is open, and this request takes its argument by value.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
