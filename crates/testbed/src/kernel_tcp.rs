//! The kernel's stream sockets with a chosen transport and congestion control: the peer in tests, and the
//! reference in measurements.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::tcp_congestion;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// Multipath TCP.
    Mptcp,
}

/// Maximum number of connections that wait to be accepted. 1024 is a guess: more than tests open at once.
const BACKLOG: i32 = 1024;
/// Maximum time of a connection attempt. In 20 s Linux sends five SYNs (at 0, 1, 3, 7 and 15 s). Without a limit
/// Linux gives up only after about two minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a listening socket with the congestion control `congestion`.
///
/// # Errors
/// Fails if the socket cannot be made or bound. `NotFound` means an unknown congestion control.
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

/// Returns the next connection of `listener`, with the congestion control `congestion`.
///
/// # Errors
/// Fails if no connection can be accepted; with `NotFound` for an unknown congestion control.
pub fn accept(listener: &TcpListener, congestion: &str) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    SockRef::from(&stream).set_tcp_congestion(congestion.as_bytes())?;
    Ok(stream)
}

/// Returns the next connection of `listener`, or `None` if no connection comes within `time` or before a signal.
///
/// # Errors
/// Fails if no connection can be accepted; with `NotFound` for an unknown congestion control.
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

/// Makes the connection end by a reset when `stream` is dropped, so that no buffered data is sent after the drop.
///
/// # Errors
/// Fails if `SO_LINGER` cannot be set.
pub fn reset_on_drop(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Returns the congestion control of a socket, as the kernel reports it.
///
/// # Errors
/// Fails if `TCP_CONGESTION` cannot be read.
pub fn congestion(stream: &TcpStream) -> io::Result<String> {
    Ok(tcp_congestion(stream)?)
}

/// Returns a connected socket, bound to `bind` if there is one.
///
/// # Errors
/// Fails if the connection does not open; with `NotFound` for an unknown congestion control; with `TimedOut`
/// after 20 s.
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

/// Makes a read or write of `stream` fail if it makes no progress for `stall`. Zero means no limit.
///
/// # Errors
/// Fails if the socket's timeouts cannot be set.
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
        // An MPTCP socket accepts any name of a congestion control, and fails only when its first subflow opens.
        // So a TCP socket checks the name.
        open(address, Transport::Tcp, congestion)?;
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    Ok(socket)
}
