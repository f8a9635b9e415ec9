//! Kernel stream sockets with a chosen transport and congestion control. They are the peers in tests, and the
//! baseline of measurements.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// Multipath TCP.
    Mptcp,
}

/// The maximum number of connections that wait to be accepted. A guess: more than any test opens at once.
const BACKLOG: i32 = 1024;
/// The timeout of a connection attempt. After 20 s Linux has sent five SYNs; it would go on for two minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a listening socket. [`accept`] sets the congestion control of the accepted sockets again.
///
/// # Errors
/// Fails with the error of the system call, which is `NotFound` for an unknown congestion control.
pub fn listen(
    address: SocketAddr,
    transport: Transport,
    congestion: &str,
) -> io::Result<TcpListener> {
    let socket = open(address, transport, congestion)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns the next connection of `listener`.
///
/// # Errors
/// Fails with the error of the system call, which is `NotFound` for an unknown congestion control.
pub fn accept(listener: &TcpListener, congestion: &str) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    SockRef::from(&stream).set_tcp_congestion(congestion.as_bytes())?;
    Ok(stream)
}

/// Returns the next connection of `listener`, or `None` after `time` without one or if a signal interrupts the
/// wait.
///
/// # Errors
/// Fails with the error of the system call, which is `NotFound` for an unknown congestion control.
pub fn accept_within(
    listener: &TcpListener,
    congestion: &str,
    time: Duration,
) -> io::Result<Option<TcpStream>> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    let mut waiting = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut waiting, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => Ok(None),
        Ok(_) => accept(listener, congestion).map(Some),
        Err(error) => Err(error.into()),
    }
}

/// Makes the kernel reset the connection when `stream` is dropped. Unsent data is discarded.
///
/// # Errors
/// Fails with the error of the system call.
pub fn reset_on_drop(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Returns the congestion control of a socket according to the kernel.
///
/// # Errors
/// Fails with the error of the system call.
pub fn congestion(stream: &TcpStream) -> io::Result<String> {
    let name = SockRef::from(stream).tcp_congestion()?;
    let end = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Returns a connected socket, bound to `bind` if there is one.
///
/// # Errors
/// Fails with the error of the system call: `NotFound` for an unknown congestion control, `TimedOut` after 20 s.
pub fn connect(
    address: SocketAddr,
    bind: Option<SocketAddr>,
    transport: Transport,
    congestion: &str,
) -> io::Result<TcpStream> {
    let socket = open(address, transport, congestion)?;
    if let Some(bind) = bind {
        socket.bind(&SockAddr::from(bind))?;
    }
    socket.connect_timeout(&SockAddr::from(address), CONNECT_TIMEOUT)?;
    Ok(socket.into())
}

/// Makes reads and writes fail after `stall` without progress. With zero, they wait for ever.
///
/// # Errors
/// Fails with the error of the system call.
pub fn set_stall(stream: &TcpStream, stall: Duration) -> io::Result<()> {
    let stall = (!stall.is_zero()).then_some(stall);
    stream.set_read_timeout(stall)?;
    stream.set_write_timeout(stall)
}

fn open(address: SocketAddr, transport: Transport, congestion: &str) -> io::Result<Socket> {
    let protocol = match transport {
        Transport::Tcp => Protocol::TCP,
        Transport::Mptcp => Protocol::MPTCP,
    };
    if transport == Transport::Mptcp {
        // A Multipath TCP socket accepts any name of a congestion control, and fails later with its first
        // subflow. A TCP socket fails at once for an unknown name.
        open(address, Transport::Tcp, congestion)?;
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    Ok(socket)
}
