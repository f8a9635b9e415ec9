//! A synchronous netlink socket: requests with their acknowledgement, dumps, and notifications.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of the receive buffer. The kernel fills at most half of it with one datagram of a dump.
const BUFFER_LEN: usize = 64 * 1024;
/// Datagrams to read for one request. A kernel that has not answered by then never will.
const MAX_DATAGRAMS: usize = 100_000;

/// The messages of one netlink protocol.
pub trait Messages: NetlinkSerializable + NetlinkDeserializable {
    /// The netlink protocol; `None` is routing.
    const PROTOCOL: Option<Protocol>;
    /// Types of notifications that count as news although this program does not decode them.
    const UNREAD: &[u16];
}

impl Messages for RouteNetlinkMessage {
    const PROTOCOL: Option<Protocol> = None;
    /// `RTM_NEWNETCONF`: a kernel setting of an interface, such as forwarding, has changed.
    const UNREAD: &[u16] = &[80];
}

/// A netlink socket in the network namespace of the thread that opened it, for routing by default.
#[derive(Debug)]
pub struct Netlink<M = RouteNetlinkMessage> {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    interrupted: bool,
    messages: PhantomData<fn() -> M>,
}

impl Netlink {
    /// Opens a socket for requests about routing.
    ///
    /// # Errors
    /// Fails if `socket` or `bind` does.
    pub fn open() -> io::Result<Netlink> {
        Netlink::requests()
    }
}

impl<M: Messages> Netlink<M> {
    /// Opens a socket for requests.
    ///
    /// # Errors
    /// Fails if `socket` or `bind` does.
    pub fn requests() -> io::Result<Self> {
        Self::with_groups(0, SocketFlags::CLOEXEC)
    }

    /// Opens a non-blocking socket that is notified of changes in `groups`, one bit each.
    ///
    /// # Errors
    /// Fails if `socket` or `bind` does.
    pub fn subscribe(groups: u32) -> io::Result<Self> {
        Self::with_groups(groups, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn with_groups(groups: u32, flags: SocketFlags) -> io::Result<Self> {
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, M::PROTOCOL)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        // A lost answer must not hang the caller. The timeout has no effect on a non-blocking socket.
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(5)))?;
        Ok(Netlink {
            fd,
            sequence: 0,
            buffer: vec![0; BUFFER_LEN],
            interrupted: false,
            messages: PhantomData,
        })
    }

    /// Returns the descriptor that is readable when there are notifications.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends `message` with the further `flags` (`NLM_F_CREATE` …) and waits for the kernel's answer.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn request(&mut self, message: M, flags: u16) -> io::Result<()> {
        self.exchange(message, flags | NLM_F_ACK, |_| {})
    }

    /// Returns the one object that `message` (one of the `Get…` kind) names; `None` if this library cannot
    /// parse the object.
    ///
    /// # Errors
    /// Fails if the kernel refuses; with `ENODEV` if there is no such interface.
    pub fn get(&mut self, message: M) -> io::Result<Option<M>> {
        let mut found = None;
        self.exchange(message, NLM_F_ACK, |m| found = Some(m))?;
        Ok(found)
    }

    /// Returns all objects that match `message` (one of the `Get…` kind). Objects that this library cannot
    /// parse are left out.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn dump(&mut self, message: M) -> io::Result<Vec<M>> {
        let mut found = Vec::new();
        self.exchange(message, NLM_F_DUMP, |m| found.push(m))?;
        Ok(found)
    }

    /// Returns whether the objects changed during the last dump, so that some may be missing.
    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Reads the pending notifications, and returns whether some were lost or were not decoded; then the
    /// caller has to read the state anew. The number of reads is bounded: whatever comes meanwhile waits for
    /// the next call.
    ///
    /// # Errors
    /// Fails if `recv` does.
    pub fn drain(&mut self, mut each: impl FnMut(M)) -> io::Result<bool> {
        let mut lost = false;
        for _ in 0..64 {
            match self.receive() {
                Ok(len) => {
                    let seen = self.messages(len, |payload| {
                        if let NetlinkPayload::InnerMessage(message) = payload {
                            each(message);
                        }
                    });
                    lost |= seen.unread;
                }
                Err(Errno::AGAIN) => break,
                // The socket's buffer ran over, so the kernel dropped notifications.
                Err(Errno::NOBUFS) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(lost)
    }

    fn exchange(&mut self, message: M, flags: u16, mut each: impl FnMut(M)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut out = vec![0; message.buffer_len()];
        message.serialize(&mut out);
        rustix::net::send(&self.fd, &out, SendFlags::empty())?;

        let mut outcome = None;
        self.interrupted = false;
        for _ in 0..MAX_DATAGRAMS {
            let len = match self.receive() {
                Ok(len) => len,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let seen = self.messages(len, |payload| match payload {
                NetlinkPayload::InnerMessage(message) => each(message),
                NetlinkPayload::Error(error) => {
                    outcome = Some(match error.code {
                        Some(_) => Err(error.to_io()),
                        None => Ok(()),
                    });
                }
                NetlinkPayload::Done(_) => outcome = Some(Ok(())),
                _ => {}
            });
            self.interrupted |= seen.interrupted;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn receive(&mut self) -> Result<usize, Errno> {
        let (_, len) = rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
        Ok(len.min(self.buffer.len()))
    }

    /// Calls `each` for every message of this socket's current request, or for every notification, in the
    /// first `len` bytes of the buffer.
    fn messages(&self, len: usize, mut each: impl FnMut(NetlinkPayload<M>)) -> Seen {
        let mut seen = Seen::default();
        let mut rest = &self.buffer[..len];
        while let Some(header) = rest.first_chunk::<16>() {
            let word = |at: usize| {
                u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
            };
            let message_len = word(0) as usize;
            if message_len < header.len() || message_len > rest.len() {
                break;
            }
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let flags = u16::from_ne_bytes([header[6], header[7]]);
            seen.interrupted |= flags & NLM_F_DUMP_INTR != 0;
            let sequence = word(8);
            if M::UNREAD.contains(&kind) {
                seen.unread = true;
            // A socket for notifications never sent a request: its sequence stays 0.
            } else if sequence == self.sequence || self.sequence == 0 {
                match NetlinkMessage::<M>::deserialize(&rest[..message_len]) {
                    Ok(message) => each(message.payload),
                    Err(error) => {
                        tracing::debug!(%error, "ignored a netlink message that cannot be parsed")
                    }
                }
            }
            // Messages start on multiples of 4 bytes (NLMSG_ALIGNTO).
            rest = &rest[message_len.next_multiple_of(4).min(rest.len())..];
        }
        seen
    }
}

/// Findings about messages besides those that were handed on.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// The objects changed during the dump.
    interrupted: bool,
    /// Some messages were not decoded.
    unread: bool,
}
