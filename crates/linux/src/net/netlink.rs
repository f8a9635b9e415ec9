//! A synchronous routing-netlink socket: requests with their acknowledgement, dumps, and
//! notifications.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kernel fills at most this much with one datagram of a dump.
const BUFFER_LEN: usize = 64 * 1024;
/// A request that is not answered within this many datagrams never will be.
const MAX_DATAGRAMS: usize = 100_000;

/// A routing-netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket for requests.
    ///
    /// # Errors
    /// As `socket` and `bind` give.
    pub fn open() -> io::Result<Netlink> {
        Netlink::with_groups(0, SocketFlags::CLOEXEC)
    }

    /// A non-blocking socket that hears of changes in `groups` (bits of `RTMGRP_*`).
    ///
    /// # Errors
    /// As `socket` and `bind` give.
    pub fn subscribe(groups: u32) -> io::Result<Netlink> {
        Netlink::with_groups(groups, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn with_groups(groups: u32, flags: SocketFlags) -> io::Result<Netlink> {
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        // A lost answer must not hang the caller; has no effect on a non-blocking socket.
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(5)))?;
        Ok(Netlink {
            fd,
            sequence: 0,
            buffer: vec![0; BUFFER_LEN],
        })
    }

    /// What to wait on for notifications.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Carries out `message` with the further `flags` (`NLM_F_CREATE` …) and waits for the
    /// kernel's answer.
    ///
    /// # Errors
    /// As the kernel answers.
    pub fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.exchange(message, flags | NLM_F_ACK, |_| {})
    }

    /// Everything that matches `message` (one of the `Get…` kind). What this library cannot read
    /// is left out.
    ///
    /// # Errors
    /// As the kernel answers.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut found = Vec::new();
        self.exchange(message, NLM_F_DUMP, |m| found.push(m))?;
        Ok(found)
    }

    /// Reads the notifications that are there and returns whether some were lost (then the state
    /// is to be read anew). Bounded: what comes while this runs waits for the next call.
    ///
    /// # Errors
    /// As `recv` gives.
    pub fn drain(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<bool> {
        let mut lost = false;
        for _ in 0..64 {
            match self.receive() {
                Ok(len) => self.messages(len, |payload| {
                    if let NetlinkPayload::InnerMessage(message) = payload {
                        each(message);
                    }
                }),
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS) => lost = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(lost)
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
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
        for _ in 0..MAX_DATAGRAMS {
            let len = match self.receive() {
                Ok(len) => len,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.messages(len, |payload| match payload {
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

    /// Calls `each` for every message of this socket's current request, or for every
    /// notification, in the first `len` bytes of the buffer.
    fn messages(&self, len: usize, mut each: impl FnMut(NetlinkPayload<RouteNetlinkMessage>)) {
        let mut rest = &self.buffer[..len];
        while let Some(header) = rest.first_chunk::<16>() {
            let word = |at: usize| {
                u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
            };
            let message_len = word(0) as usize;
            if message_len < header.len() || message_len > rest.len() {
                return;
            }
            let sequence = word(8);
            if sequence == self.sequence || self.sequence == 0 {
                match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&rest[..message_len]) {
                    Ok(message) => each(message.payload),
                    Err(error) => tracing::debug!(%error, "netlink message not understood"),
                }
            }
            // Messages start on 4 bytes (NLMSG_ALIGNTO).
            rest = &rest[message_len.next_multiple_of(4).min(rest.len())..];
        }
    }
}
