//! Kernel stream sockets with a chosen transport and congestion control: the peer in tests, and the yardstick
//! of measurements.

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

/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// Time that a connection attempt may take: by then Linux has sent five SYNs, and would go on for two minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A listening socket. Its congestion control is also set on the sockets [`accept`] returns.
///
/// # Errors
/// Fails if the system refuses; with `NotFound` for an unknown congestion control.
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
/// Fails if the system refuses; with `NotFound` for an unknown congestion control.
pub fn accept(listener: &TcpListener, congestion: &str) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    SockRef::from(&stream).set_tcp_congestion(congestion.as_bytes())?;
    Ok(stream)
}

/// Returns the next connection of `listener`; `None` if none comes within `time`, or if a signal comes first.
///
/// # Errors
/// Fails if the system refuses; with `NotFound` for an unknown congestion control.
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

/// Makes the connection end by a reset as soon as `stream` is dropped: no more data is sent then.
///
/// # Errors
/// Fails if the system refuses.
pub fn reset_on_drop(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Returns the congestion control that a socket really has.
///
/// # Errors
/// Fails if the system refuses.
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
/// Fails if the system refuses; with `NotFound` for an unknown congestion control; with `TimedOut` after 20 s.
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

/// Makes reads and writes fail that make no progress for `stall`. Zero waits for ever.
///
/// # Errors
/// Fails if the system refuses.
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
        // A Multipath TCP socket takes any name and fails with its first subflow only, so a TCP socket tries it.
        open(address, Transport::Tcp, congestion)?;
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    Ok(socket)
}
