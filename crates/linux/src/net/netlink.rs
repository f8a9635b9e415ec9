//! A synchronous netlink socket for requests, dumps and notifications.

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

/// Length of the receive buffer in bytes. The kernel puts at most 32 KiB of a dump into one datagram.
const BUFFER_LEN: usize = 64 * 1024;
/// Maximum number of datagrams that one request reads, so that the request ends in any case. The number is a
/// guess: far more than the dump of a large routing table has.
const MAX_DATAGRAMS: usize = 100_000;

/// The messages of one netlink protocol.
pub trait Messages: NetlinkSerializable + NetlinkDeserializable {
    /// The netlink protocol; `None` is routing.
    const PROTOCOL: Option<Protocol>;
    /// Types of notifications that are relevant although this program does not decode them.
    const UNDECODED_NEWS: &[u16];
}

impl Messages for RouteNetlinkMessage {
    const PROTOCOL: Option<Protocol> = None;
    /// `RTM_NEWNETCONF`: a kernel setting of an interface, such as forwarding, has changed. The caller reads
    /// all settings again, so the contents of the message do not matter.
    const UNDECODED_NEWS: &[u16] = &[80];
}

/// A netlink socket in the network namespace of the thread that opened it. By default its protocol is routing.
#[derive(Debug)]
pub struct Netlink<M = RouteNetlinkMessage> {
    fd: OwnedFd,
    /// Sequence number of the last request; 0 on a socket for notifications.
    sequence: u32,
    buffer: Vec<u8>,
    /// True if the dumped objects changed during the last dump.
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

    /// Opens a non-blocking socket that is notified of changes in the multicast groups `groups`: group n is bit
    /// n - 1.
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
        // A lost answer must not block the caller for ever. The kernel answers within milliseconds. The 5 s are
        // a guess: enough even under load. The timeout has no effect on a non-blocking socket.
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(5)))?;
        Ok(Netlink {
            fd,
            sequence: 0,
            buffer: vec![0; BUFFER_LEN],
            interrupted: false,
            messages: PhantomData,
        })
    }

    /// Returns the socket's descriptor, which is readable while notifications are pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends `message` with `flags` (such as `NLM_F_CREATE`) and waits until the kernel acknowledges it.
    ///
    /// # Errors
    /// Fails with the kernel's error if the kernel refuses the request, or with a timeout.
    pub fn request(&mut self, message: M, flags: u16) -> io::Result<()> {
        self.exchange(message, flags | NLM_F_ACK, |_| {})
    }

    /// Returns the object that the request `message` (`GetLink` …) names; `None` if the netlink library cannot
    /// parse the object.
    ///
    /// # Errors
    /// Fails with the kernel's error if the kernel refuses the request: with `ENODEV` if there is no such
    /// interface.
    pub fn get(&mut self, message: M) -> io::Result<Option<M>> {
        let mut found = None;
        self.exchange(message, NLM_F_ACK, |m| found = Some(m))?;
        Ok(found)
    }

    /// Returns all objects that match the request `message` (`GetLink` …), except objects that the netlink
    /// library cannot parse.
    ///
    /// # Errors
    /// Fails with the kernel's error if the kernel refuses the request, or with a timeout.
    pub fn dump(&mut self, message: M) -> io::Result<Vec<M>> {
        let mut found = Vec::new();
        self.exchange(message, NLM_F_DUMP, |m| found.push(m))?;
        Ok(found)
    }

    /// Returns whether the objects changed during the last dump, so that some may be missing.
    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Passes the pending notifications to `on_message`. Returns true if notifications were lost or not decoded.
    /// The caller then has to read the state itself again.
    ///
    /// # Errors
    /// Fails if `recv` does.
    pub fn drain(&mut self, mut on_message: impl FnMut(M)) -> io::Result<bool> {
        let mut lost = false;
        // The bound keeps a stream of notifications from holding the caller up. The remaining notifications wait
        // for the next call. The number is a guess.
        for _ in 0..64 {
            match self.receive() {
                Ok(len) => {
                    let findings = self.messages(len, |payload| {
                        if let NetlinkPayload::InnerMessage(message) = payload {
                            on_message(message);
                        }
                    });
                    lost |= findings.undecoded;
                }
                Err(Errno::AGAIN) => break,
                // The socket's receive buffer was full, so the kernel dropped notifications.
                Err(Errno::NOBUFS) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(lost)
    }

    /// Sends a request and passes every object of the answer to `on_message`.
    fn exchange(
        &mut self,
        message: M,
        flags: u16,
        mut on_message: impl FnMut(M),
    ) -> io::Result<()> {
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
            let findings = self.messages(len, |payload| match payload {
                NetlinkPayload::InnerMessage(message) => on_message(message),
                NetlinkPayload::Error(error) => {
                    outcome = Some(match error.code {
                        Some(_) => Err(error.to_io()),
                        // An error message with code 0 is an acknowledgement.
                        None => Ok(()),
                    });
                }
                NetlinkPayload::Done(_) => outcome = Some(Ok(())),
                _ => {}
            });
            self.interrupted |= findings.interrupted;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Receives one datagram into the buffer and returns its length.
    fn receive(&mut self) -> Result<usize, Errno> {
        let (_, len) = rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
        Ok(len.min(self.buffer.len()))
    }

    /// Calls `on_message` for every message of this socket's current request, or for every notification, in the
    /// first `len` bytes of the buffer.
    fn messages(&self, len: usize, mut on_message: impl FnMut(NetlinkPayload<M>)) -> Findings {
        let mut findings = Findings::default();
        let mut rest = &self.buffer[..len];
        // The fields of `nlmsghdr`, 16 bytes long: length (0), type (4), flags (6) and sequence number (8).
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
            findings.interrupted |= flags & NLM_F_DUMP_INTR != 0;
            let sequence = word(8);
            if M::UNDECODED_NEWS.contains(&kind) {
                findings.undecoded = true;
            // Answers to an earlier request that timed out have another sequence number. The sequence number
            // of a socket for notifications stays 0, since it sends no requests.
            } else if sequence == self.sequence || self.sequence == 0 {
                match NetlinkMessage::<M>::deserialize(&rest[..message_len]) {
                    Ok(message) => on_message(message.payload),
                    Err(error) => {
                        tracing::debug!(%error, "ignored a netlink message that cannot be parsed")
                    }
                }
            }
            // Messages start on multiples of 4 bytes (NLMSG_ALIGNTO).
            rest = &rest[message_len.next_multiple_of(4).min(rest.len())..];
        }
        findings
    }
}

/// Facts about the messages of a datagram, beside the messages themselves.
#[derive(Debug, Clone, Copy, Default)]
struct Findings {
    /// True if the objects changed during the dump.
    interrupted: bool,
    /// True if a relevant message was not decoded.
    undecoded: bool,
}
