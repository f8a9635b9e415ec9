//! Safe wrappers of system calls that the standard library and rustix lack, or offer only as unsafe functions.
#![expect(
    unsafe_code,
    reason = "this module wraps system calls, so that its callers need no unsafe code"
)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::Signal;
use rustix::thread::{UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Moves the calling thread into a new network namespace. The thread cannot return.
///
/// # Errors
/// Fails if `unshare` does, for example without the capability to create a namespace.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: only the flag FILES makes `unshare` unsafe, since it separates the threads' file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(())
}

/// Makes `command` join `namespaces` in this order when it starts, and unblocks all signals for it. A process
/// that reads its signals from a descriptor blocks them. The command would inherit the blocked signals, and
/// SIGTERM would not end it.
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
    let result = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    check(result)
}

/// Makes `command` start as root of a new user namespace, with a network namespace, mounts and `/run` of its own.
/// The start fails if `command` could not create TUN devices.
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
        // Opening the file needs the rights of the outer user. If these rights are missing, the start fails
        // here, and not a later step.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())?;
        Ok(())
    });
}

/// Makes the kernel kill the process of `command` when the thread that started it ends.
pub fn die_with_parent(command: &mut Command) {
    before_exec(command, || {
        Ok(rustix::process::set_parent_process_death_signal(Some(
            Signal::KILL,
        ))?)
    });
}

/// Makes `command` start in a session of its own, so that the terminal's interrupt does not reach it, and with
/// no descriptors except the standard streams. So if another process waits for the end of a pipe or for a lock
/// of this process, it does not also wait for the command.
pub fn detach_on_exec(command: &mut Command) {
    before_exec(command, || {
        // SAFETY: the descriptors are closed only by `exec`, and the new program does not know them.
        let result = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
        check(result)?;
        Ok(rustix::process::setsid().map(drop)?)
    });
}

/// Makes `command` run a hook between fork and exec. Such a hook must only make system calls on values from before
/// the fork. It must neither allocate memory nor take locks, as another thread may have held them at the fork.
fn before_exec(
    command: &mut Command,
    hook: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the hooks of this module, which alone calls this function, only make async-signal-safe calls.
    unsafe { command.pre_exec(hook) };
}

/// Writes a file by one system call, without allocation.
fn write_raw(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

/// Runs `work` while the terminal's interrupt (SIGINT) is ignored.
pub fn ignoring_interrupts<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the call installs no handler: it makes the process ignore the signal.
    let disposition = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let result = work();
    // SAFETY: the earlier call of `signal` returned this disposition.
    unsafe { libc::signal(libc::SIGINT, disposition) };
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

/// Makes a packet socket receive the packets of `protocol` (`ETH_P_…`) that `interface` sends and receives. If
/// `interface` is 0, the socket receives the packets of all interfaces.
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

/// Returns the time at which the kernel received or sent the packet that was read last. The first call switches
/// these timestamps on for the socket. For a packet that arrived before the first call, the call returns the
/// current time.
///
/// # Errors
/// Fails with `NotFound` if no packet has been read yet.
pub fn packet_timestamp(socket: BorrowedFd<'_>) -> io::Result<SystemTime> {
    /// From asm-generic/sockios.h.
    const SIOCGSTAMPNS_OLD: libc::Ioctl = 0x8907;
    // The request writes a `timespec` of two longs, so `libc::timespec` has to have this layout.
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
    set_socket_option(socket, level, option, 1)
}

/// Sets a socket option of type int.
///
/// # Errors
/// Fails if `setsockopt` does.
pub(crate) fn set_socket_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the option is an int, of which pointer and length are
    // given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Lets a UDP socket receive datagrams of one sender and length that the kernel has joined (`UDP_GRO`, since Linux
/// 5.0).
///
/// # Errors
/// Fails if `setsockopt` does.
pub fn receive_joined_datagrams(socket: BorrowedFd<'_>) -> io::Result<()> {
    enable_socket_option(socket, libc::SOL_UDP, libc::UDP_GRO)
}

/// Makes the kernel cut what a UDP socket sends into datagrams of `len` bytes, of which the last may be shorter
/// (`UDP_SEGMENT`, since Linux 4.18).
///
/// # Errors
/// Fails if `setsockopt` does.
pub fn cut_sent_datagrams(socket: BorrowedFd<'_>, len: u16) -> io::Result<()> {
    set_socket_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, len.into())
}

/// A message that [`receive_message`] read.
#[derive(Debug)]
pub(crate) struct Message {
    /// The address of the sender.
    pub from: SocketAddr,
    /// Number of bytes of the message in the buffer.
    pub len: usize,
    /// Number of bytes of control messages in their buffer.
    pub control_len: usize,
}

/// Reads a message of an Internet socket into `buffer`, and its control messages into `control`. If a message is
/// longer than `buffer`, the rest of it is lost.
///
/// # Errors
/// Fails if `recvmsg` does, and with `InvalidData` if the sender has no Internet address.
pub(crate) fn receive_message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Message> {
    let mut parts = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: `msghdr` is plain data, for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut parts;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
    // SAFETY: `try_init` gives a live address and its size, which the header holds. The header's other pointers are
    // to slices that are mutably borrowed for the call, with their lengths. `recvmsg` writes at most these lengths,
    // and sets the length of the address to the number of its bytes that it wrote.
    let (len, from) = unsafe {
        socket2::SockAddr::try_init(|address, address_len| {
            header.msg_name = address.cast();
            header.msg_namelen = *address_len;
            let len = libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0);
            *address_len = header.msg_namelen;
            usize::try_from(len).map_err(|_| io::Error::last_os_error())
        })?
    };
    Ok(Message {
        from: from.as_socket().ok_or(io::ErrorKind::InvalidData)?,
        len,
        control_len: header.msg_controllen as usize,
    })
}

/// Gives the calling thread the scheduling policy SCHED_FIFO with `priority` (1 to 99), if the kernel permits it,
/// and reduces the thread's timer slack from 50 µs to 1 ns. Returns whether the thread has SCHED_FIFO.
pub fn become_realtime(priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameter lives through the call; 0 means the calling thread.
    let is_realtime = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } == 0;
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    is_realtime
}

/// Returns free memory to the kernel. Does nothing unless the allocator is glibc's, which keeps free memory.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the argument is an integer, and the allocator locks its data against other threads.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns whether the system's clock is synchronised, for example by NTP.
///
/// # Errors
/// Fails if `adjtimex` does.
pub(crate) fn clock_is_synchronised() -> io::Result<bool> {
    // SAFETY: `timex` is plain data, for which all zeroes is a valid value.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads and writes one `timex`; with no mode it changes nothing.
    match unsafe { libc::adjtimex(&raw mut state) } {
        0.. => Ok(state.status & libc::STA_UNSYNC == 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates the TUN device `name` in the calling thread's network namespace, for the descriptor `device` of
/// `/dev/net/tun`. Each packet has a `virtio_net_hdr` in front of it.
///
/// # Errors
/// Fails with `InvalidInput` if no interface may have this name. Fails also if `TUNSETIFF` fails.
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

/// Returns the name of the TUN device of the descriptor `device`; `None` after the device was removed.
///
/// # Errors
/// Fails if `TUNGETIFF` fails.
pub(crate) fn tun_name(device: &OwnedFd) -> io::Result<Option<String>> {
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut answer: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and TUNGETIFF writes one `ifreq`.
    match check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNGETIFF, &raw mut answer) }) {
        Err(error) if error.raw_os_error() == Some(libc::EBADFD) => return Ok(None),
        result => result?,
    }
    let bytes = answer.ifr_name.iter().map(|c| *c as u8);
    let name = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).map(Some).map_err(io::Error::other)
}

/// Tells the kernel which offloads (`TUN_F_…`) the reader of a TUN device can handle.
///
/// # Errors
/// Fails with `InvalidInput` if the kernel does not know one of them.
pub(crate) fn set_tun_offload(device: &OwnedFd, offloads: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(offloads);
    // SAFETY: the descriptor is open, and this request takes its argument by value.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })
}

/// Returns the error of a C call, which is negative if it failed.
fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
