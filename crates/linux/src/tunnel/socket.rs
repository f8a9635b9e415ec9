//! A UDP socket of the tunnel. The kernel cuts a run of datagrams of one length into datagrams (`UDP_SEGMENT`), and
//! joins received datagrams of one sender and length to such a run (`UDP_GRO`), so that a system call moves many
//! datagrams.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, MsgHdr, SockAddr, Socket, Type};

use super::batch::{MAX_RUN, Run};
use crate::sockets::without_scope;
use crate::sys;

/// Size of the kernel's buffers of a socket in bytes, in each direction. The loop may be busy elsewhere for 10 ms, in
/// which 1.25 MB arrive at 1 Gbit/s; the kernel also charges its own records of each packet, up to the size of the
/// data.
const SOCKET_BUFFER: usize = 4 << 20;
/// Room for one control message with a value of up to 8 bytes.
const CONTROL_LEN: usize = CONTROL_HEADER_LEN + 8;
const CONTROL_HEADER_LEN: usize = size_of::<libc::cmsghdr>();

/// The local end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Local {
    /// The address, or the unspecified address: the kernel then takes the address of the link. This host may not have
    /// the address yet.
    pub addr: SocketAddr,
    /// The packet mark, by which a routing rule finds the routes of the link.
    pub mark: u32,
}

/// A UDP socket of the tunnel.
#[derive(Debug)]
pub(super) struct DatagramSocket {
    socket: Socket,
    /// True while the kernel cuts runs. Some devices do not compute checksums, which cutting needs.
    cuts_runs: bool,
}

/// The datagrams of a run that the kernel took and those it did not.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Number of datagrams that were sent.
    pub sent: u64,
    /// Number of datagrams that the kernel refused.
    pub refused: u64,
    /// The last error, if a datagram was refused.
    pub error: Option<io::Error>,
}

/// A run of datagrams that was received.
#[derive(Debug)]
pub(super) struct Received {
    /// The sender.
    pub from: SocketAddr,
    /// Number of bytes of all datagrams.
    pub len: usize,
    /// Number of bytes of each datagram; the last one may be shorter.
    pub datagram_len: usize,
}

impl DatagramSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket, its mark (which needs `CAP_NET_ADMIN`) or its address.
    pub fn open(local: Local) -> io::Result<DatagramSocket> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(local.addr), kind, None)?;
        // Even the mark 0, which every socket has, needs privileges.
        if local.mark != 0 {
            socket.set_mark(local.mark)?;
        }
        let fd = socket.as_fd();
        // PROBE: datagrams carry DF and are never fragmented, and the tunnel itself probes the path MTU (RFC 8899). So
        // what ICMP messages say of the path MTU is ignored, as anybody can send them.
        if local.addr.is_ipv4() {
            socket.set_freebind_v4(true)?;
            let probe = libc::IP_PMTUDISC_PROBE;
            sys::set_socket_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_freebind_v6(true)?;
            let probe = libc::IPV6_PMTUDISC_PROBE;
            sys::set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
            sys::enable_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG)?;
        }
        set_buffers(fd);
        // Older kernels than 5.0 join nothing.
        let _ = sys::receive_joined_datagrams(fd);
        socket.bind(&local.addr.into())?;
        Ok(DatagramSocket {
            socket,
            cuts_runs: true,
        })
    }

    /// Returns the descriptor that is readable while datagrams wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a run. A datagram that the kernel refuses is lost, as it may be on any link.
    pub fn send(&mut self, run: &Run<'_>) -> Sent {
        let to = SockAddr::from(run.head.remote);
        if run.datagrams > 1 && self.cuts_runs {
            let error = match self.send_run(&to, run) {
                Ok(()) => {
                    return Sent {
                        sent: run.datagrams as u64,
                        ..Sent::default()
                    };
                }
                Err(error) => error,
            };
            if error.raw_os_error() == Some(libc::EIO) {
                // The device computes no checksums.
                self.cuts_runs = false;
            } else if !is_too_large(&error) {
                return Sent {
                    refused: run.datagrams as u64,
                    error: Some(error),
                    ..Sent::default()
                };
            }
            // A datagram is larger than the MTU of the device (EINVAL before Linux 6.15). The last one may fit.
        }
        let mut outcome = Sent::default();
        for datagram in run.each() {
            match self.socket.send_to(datagram, &to) {
                Ok(_) => outcome.sent += 1,
                Err(error) => {
                    outcome.refused += 1;
                    outcome.error = Some(error);
                }
            }
        }
        outcome
    }

    fn send_run(&self, to: &SockAddr, run: &Run<'_>) -> io::Result<()> {
        let segment = u16::try_from(run.head.len).map_err(|_| ErrorKind::InvalidInput)?;
        let control = segment_message(segment);
        let parts: ArrayVec<_, MAX_RUN> = run.parts.iter().map(|part| IoSlice::new(part)).collect();
        let message = MsgHdr::new()
            .with_addr(to)
            .with_buffers(&parts)
            .with_control(&control);
        self.socket.sendmsg(&message, 0)?;
        Ok(())
    }

    /// Receives a run of datagrams into `buffer`; `None` if none waits.
    ///
    /// # Errors
    /// Fails if the kernel reports an error of the socket.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut control = [0; CONTROL_LEN];
        let message = match sys::receive_message(self.fd(), buffer, &mut control) {
            Ok(message) => message,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        };
        let control = &control[..message.control_len.min(CONTROL_LEN)];
        let datagram_len = joined_len(control).unwrap_or(message.len);
        Ok(Some(Received {
            from: without_scope(message.from),
            len: message.len,
            datagram_len: datagram_len.max(1),
        }))
    }
}

/// Sets the sizes of the kernel's buffers. The forced sizes need `CAP_NET_ADMIN`; without it, the system's limits hold.
fn set_buffers(fd: BorrowedFd<'_>) {
    let forced = sockopt::set_socket_recv_buffer_size_force(fd, SOCKET_BUFFER);
    let _ = forced.or_else(|_| sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER));
    let forced = sockopt::set_socket_send_buffer_size_force(fd, SOCKET_BUFFER);
    let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER));
}

fn is_too_large(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MSGSIZE | Errno::INVAL))
}

/// Returns the control message that makes the kernel cut a run into datagrams of `len` bytes.
fn segment_message(len: u16) -> [u8; CONTROL_LEN] {
    let mut message = [0; CONTROL_LEN];
    // `struct cmsghdr` of the kernel: the length without padding, level and type. Its alignment leaves no gaps.
    let parts: [&[u8]; 4] = [
        &(CONTROL_HEADER_LEN + size_of::<u16>()).to_ne_bytes(),
        &libc::SOL_UDP.to_ne_bytes(),
        &libc::UDP_SEGMENT.to_ne_bytes(),
        &len.to_ne_bytes(),
    ];
    let mut at = 0;
    for part in parts {
        message[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    message
}

/// Returns the length of the datagrams of a run, if `control` has a message that tells it. The socket asks for no
/// other control messages.
fn joined_len(control: &[u8]) -> Option<usize> {
    let (header, value) = control.split_first_chunk::<CONTROL_HEADER_LEN>()?;
    let word = |at: usize| Some(i32::from_ne_bytes(*header[at..].first_chunk()?));
    let (level, kind) = (size_of::<usize>(), size_of::<usize>() + 4);
    if word(level)? != libc::SOL_UDP || word(kind)? != libc::UDP_GRO {
        return None;
    }
    let len = i32::from_ne_bytes(*value.first_chunk()?);
    usize::try_from(len).ok()
}

#[cfg(test)]
mod tests {
    use braid_proxy::app::{PathId, TunnelTransmit};

    use super::*;
    use crate::tunnel::batch::Batch;

    fn open(addr: &str) -> DatagramSocket {
        // A mark other than 0 needs privileges.
        let addr = addr.parse().unwrap();
        DatagramSocket::open(Local { addr, mark: 0 }).unwrap()
    }

    /// Sends a run of datagrams of `len` bytes, of which the last may be shorter.
    fn send(from: &mut DatagramSocket, remote: SocketAddr, bytes: &[u8], len: usize) -> Sent {
        let mut batch = Batch::new();
        for datagram in bytes.chunks(len) {
            batch.buffer().extend_from_slice(datagram);
            let (path, len) = (PathId(0), datagram.len());
            batch.add(TunnelTransmit { path, remote, len });
        }
        let run = batch.next_run().unwrap();
        assert_eq!(run.datagrams, bytes.len().div_ceil(len));
        from.send(&run)
    }

    fn addr(socket: &DatagramSocket) -> SocketAddr {
        socket.socket.local_addr().unwrap().as_socket().unwrap()
    }

    /// Receives until `count` datagrams are there.
    fn receive(socket: &DatagramSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 16];
        let mut found = Vec::new();
        while found.len() < count {
            let mut fds = [rustix::event::PollFd::new(
                &socket.socket,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, None).unwrap();
            if let Some(run) = socket.receive(&mut buffer).unwrap() {
                let datagrams = buffer[..run.len].chunks(run.datagram_len);
                found.extend(datagrams.map(|datagram| (run.from, datagram.to_vec())));
            }
        }
        found
    }

    #[test]
    fn a_run_arrives_as_its_datagrams() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (mut from, to) = (open(any), open(any));
            let run: Vec<u8> = (0..1_000 * 40 + 7).map(|i| (i % 251) as u8).collect();
            let outcome = send(&mut from, addr(&to), &run, 1_000);
            assert_eq!((outcome.sent, outcome.refused), (41, 0));
            let found = receive(&to, 41);
            let expected: Vec<_> = run.chunks(1_000).map(<[u8]>::to_vec).collect();
            assert!(found.iter().all(|(sender, _)| *sender == addr(&from)));
            let found: Vec<_> = found.into_iter().map(|(_, datagram)| datagram).collect();
            assert_eq!(found, expected);
        }
    }

    /// A device that does not compute checksums refuses runs, and the datagrams go out one by one.
    #[test]
    fn datagrams_are_sent_one_by_one_where_the_kernel_does_not_cut() {
        let (mut from, to) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
        from.cuts_runs = false;
        let run = [7; 2_500];
        assert_eq!(send(&mut from, addr(&to), &run, 1_000).sent, 3);
        let lens: Vec<usize> = receive(&to, 3).iter().map(|(_, d)| d.len()).collect();
        assert_eq!(lens, [1_000, 1_000, 500]);
    }

    /// The MTU of the loopback device is 65,536 bytes.
    #[test]
    fn a_datagram_above_the_mtu_is_refused_and_the_others_are_sent() {
        let (mut from, to) = (open("[::1]:0"), open("[::1]:0"));
        let large = vec![0; 65_527];
        let outcome = send(&mut from, addr(&to), &large, 65_527);
        assert_eq!((outcome.sent, outcome.refused), (0, 1));
        assert!(is_too_large(&outcome.error.unwrap()));
        assert_eq!(send(&mut from, addr(&to), b"small", 5).sent, 1);
        assert_eq!(receive(&to, 1)[0].1, b"small");
    }

    #[test]
    fn control_messages_are_read_as_the_kernel_writes_them() {
        let mut message = segment_message(1_400);
        assert_eq!(joined_len(&message), None, "of another type");
        let kind = size_of::<usize>() + 4;
        message[kind..kind + 4].copy_from_slice(&libc::UDP_GRO.to_ne_bytes());
        message[CONTROL_HEADER_LEN..CONTROL_HEADER_LEN + 4]
            .copy_from_slice(&1_400i32.to_ne_bytes());
        assert_eq!(joined_len(&message), Some(1_400));
        for len in 0..CONTROL_HEADER_LEN + 4 {
            assert_eq!(joined_len(&message[..len]), None);
        }
    }
}
