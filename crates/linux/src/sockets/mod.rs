//! Kernel sockets that serve as the downstream sockets of a relay.
//!
//! Sockets are watched edge-triggered and never block. Each stream remembers whether it is readable and writable.
//! So a read or write that cannot succeed costs no system call, and the core gets an event only after a read or
//! write has failed with `WouldBlock`.

pub(crate) mod resolver;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use braid_proxy::app::{
    Arrival, ConnectFailure, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};
use braid_wire::{Instant, ip};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, ipproto, sockopt};

use crate::net::internet;
use crate::net::{Result, SystemError};
use crate::sys;
use resolver::Resolver;

/// Maximum number of connections accepted from one listener before other work gets its turn. The number is a
/// guess.
const ACCEPT_BATCH: usize = 64;
/// Number of queued events at which no more connections are accepted until the core has handled some events.
/// This limits the memory of the queue. The number is a guess.
const MAX_EVENTS: usize = 4_096;
/// Maximum number of connections that wait to be accepted. The kernel caps it at the setting
/// `net.core.somaxconn`. The value is the default of this setting.
const BACKLOG: i32 = 4_096;
// A user that vanished is noticed after 120 s without a segment and 4 probes at intervals of 30 s: 4 minutes in
// all. The values are guesses. Linux's default of more than 2 hours would keep the memory of the connection too
// long.
/// Time without a segment after which the kernel sends the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
/// Number of unanswered probes after which the kernel ends the connection.
const KEEPALIVE_COUNT: u32 = 4;
/// Interval of the probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Bounds of [`Sockets`].
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of streams at a time. Connection attempts count too.
    pub streams: usize,
    /// Maximum duration of a connection attempt.
    pub connect_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            // The programs replace this number by the number in their configuration.
            streams: 65_536,
            // The value is a guess: enough for a SYN and its retransmissions after 1, 3 and 7 s.
            connect_timeout: Duration::from_secs(15),
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Connections accepted from the local network.
    pub accepted: u64,
    /// Connections reset right after they were accepted, because descriptors or streams ran out.
    pub accept_refused: u64,
    /// Connection attempts that failed.
    pub connect_failed: u64,
}

/// The bit that tells a driver's own tokens from the tokens of this module. It is set in the token of a
/// descriptor that the driver itself registers, and clear in the tokens of this module.
pub const FOREIGN_TOKEN: u64 = 1 << 63;
// One of these bits is set in the token of a listener, the other in the token of the resolver. Both are clear in
// the token of a stream, which is the stream's id.
const LISTENER_TOKEN: u64 = 1 << 62;
const RESOLVER_TOKEN: u64 = 1 << 61;
/// Length of the buffer for the headers of a SYN in bytes. An IPv4 header has at most 60 and an IPv6 header 40
/// bytes, a TCP header at most 60. The rest is for IPv6 extension headers.
const MAX_SYN_LEN: usize = 256;

/// Kernel sockets behind [`DownstreamSockets`].
#[derive(Debug)]
pub struct Sockets {
    epoll: OwnedFd,
    limits: Limits,
    /// Sockets that keep the port for intercepted connections while nothing listens on it.
    reserved: Vec<(OwnedFd, SocketAddr)>,
    listeners: Vec<Listener>,
    /// The streams. The low 32 bits of a stream's id are its index here.
    streams: Vec<Slot>,
    /// Indices of the slots without a stream.
    free: Vec<u32>,
    /// Connection attempts under way, in order of their deadline.
    connecting: VecDeque<(Instant, DownstreamId)>,
    events: VecDeque<DownstreamEvent>,
    resolver: Resolver,
    /// A duplicate descriptor, kept in reserve. When no other descriptor is left, the duplicate is closed, so
    /// that a connection can be accepted and reset.
    spare_descriptor: Option<OwnedFd>,
    now: Instant,
    counters: Counters,
}

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    arrival: Arrival,
    /// The address that the caller gave, to compare with the addresses of a reload.
    addr: SocketAddr,
}

#[derive(Debug, Default)]
struct Slot {
    /// Counts the streams of the slot. The count is part of a stream's id, so that the id of a closed stream
    /// differs from the id of the next stream in the slot.
    generation: u32,
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    fd: OwnedFd,
    /// True during the connection attempt.
    connecting: bool,
    /// True if a read may find data. A read that empties the socket's buffer makes it false, and the next event
    /// that reports data makes it true.
    may_read: bool,
    /// True if a write may find room. A write that fills the socket's buffer makes it false, and the next event
    /// that reports room makes it true.
    may_write: bool,
    /// True once the peer has closed its direction. The end of the stream then follows the data.
    peer_closed: bool,
}

impl Sockets {
    /// Returns sockets without streams. `epoll`, a duplicate of the driver's descriptor, watches them.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn new(epoll: OwnedFd, limits: Limits) -> Result<Sockets> {
        let cannot = || SystemError::cannot("prepare sockets");
        let resolver = Resolver::new().map_err(cannot())?;
        watch_input(&epoll, resolver.fd(), RESOLVER_TOKEN).map_err(cannot())?;
        Ok(Sockets {
            spare_descriptor: Some(duplicate(&epoll).map_err(cannot())?),
            epoll,
            limits,
            reserved: Vec::new(),
            listeners: Vec::new(),
            streams: Vec::new(),
            free: Vec::new(),
            connecting: VecDeque::new(),
            events: VecDeque::new(),
            resolver,
            now: Instant::ZERO,
            counters: Counters::default(),
        })
    }

    /// Reserves a port for the listeners of intercepted connections, on 127.0.0.1 and, if `v6` is true, on
    /// `::1`. Returns the port. The addresses are loopback addresses, so that other hosts reach the listeners by
    /// interception only. Nothing listens before [`Self::set_intercepting`].
    ///
    /// # Errors
    /// Fails if the kernel refuses a socket: transparent sockets need `CAP_NET_ADMIN`.
    pub fn reserve_intercept_port(&mut self, v6: bool) -> Result<u16> {
        let cannot = || SystemError::cannot("reserve a port for intercepted connections");
        // The port that the kernel picks for IPv4 may be in use for IPv6, so several are tried. 16 is a guess.
        for _ in 0..16 {
            let fd = bind_transparent((Ipv4Addr::LOCALHOST, 0).into()).map_err(cannot())?;
            let addr = local_addr(&fd).map_err(cannot())?;
            let mut reserved = vec![(fd, addr)];
            if v6 {
                let addr = (Ipv6Addr::LOCALHOST, addr.port()).into();
                match bind_transparent(addr) {
                    Ok(fd) => reserved.push((fd, addr)),
                    Err(Errno::ADDRINUSE) => continue,
                    Err(error) => return Err(cannot()(error)),
                }
            }
            self.reserved = reserved;
            return Ok(addr.port());
        }
        Err(SystemError::other(
            "reserve a port for intercepted connections",
            "no port is free in both address families",
        ))
    }

    /// Opens or closes the listeners on the reserved port. While they are closed, new connections are forwarded
    /// and not intercepted. Before a listener is closed, its waiting connections are accepted.
    ///
    /// # Errors
    /// Fails if the kernel refuses a listener.
    pub fn set_intercepting(&mut self, open: bool) -> Result<()> {
        let is_intercepting = |l: &Listener| l.arrival == Arrival::Intercepted;
        if !open {
            // Closing a listener resets the connections that wait there.
            for at in 0..self.listeners.len() {
                if is_intercepting(&self.listeners[at]) {
                    self.accept(at, BACKLOG as usize);
                }
            }
            // Closing a descriptor removes it from the epoll instance.
            self.listeners.retain(|l| !is_intercepting(l));
            return Ok(());
        }
        if self.listeners.iter().any(is_intercepting) {
            return Ok(());
        }
        let open = |(_, addr): &(OwnedFd, SocketAddr)| {
            self.listener((bind_transparent(*addr)?, *addr), Arrival::Intercepted)
        };
        let listeners: std::result::Result<Vec<_>, _> = self.reserved.iter().map(open).collect();
        let cannot = SystemError::cannot("listen for intercepted connections");
        self.listeners.extend(listeners.map_err(cannot)?);
        Ok(())
    }

    /// Listens for programs that connect to an address of this host. The host may get the address later.
    ///
    /// # Errors
    /// Fails if the kernel refuses the listener, for example because another program listens there.
    pub fn listen(&mut self, addr: SocketAddr) -> Result<()> {
        let listener = self.own_listener(addr)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Listens at these addresses, and closes the listeners at other addresses of this host. Accepted connections
    /// stay.
    ///
    /// # Errors
    /// Fails if the kernel refuses a listener. The listeners are then as before.
    pub fn listen_only(&mut self, addrs: &[SocketAddr]) -> Result<()> {
        let is_own = |l: &Listener| l.arrival == Arrival::Addressed;
        let is_listening =
            |addr: &SocketAddr| self.listeners.iter().any(|l| is_own(l) && l.addr == *addr);
        let new = addrs.iter().filter(|addr| !is_listening(addr));
        let new: Result<Vec<Listener>> = new.map(|addr| self.own_listener(*addr)).collect();
        let new = new?;
        self.listeners
            .retain(|l| !is_own(l) || addrs.contains(&l.addr));
        self.listeners.extend(new);
        Ok(())
    }

    /// Returns a listener at an address of this host.
    fn own_listener(&self, addr: SocketAddr) -> Result<Listener> {
        let listener = bind_own(addr).and_then(|fd| self.listener((fd, addr), Arrival::Addressed));
        listener.map_err(SystemError::cannot(format!("listen at {addr}")))
    }

    /// Changes the maximum number of streams at a time. Existing streams stay.
    pub fn set_max_streams(&mut self, streams: usize) {
        self.limits.streams = streams;
    }

    /// Starts to listen on `fd`, which is bound to `addr`.
    fn listener(
        &self,
        (fd, addr): (OwnedFd, SocketAddr),
        arrival: Arrival,
    ) -> std::result::Result<Listener, Errno> {
        // Makes the kernel keep the headers of each connection's SYN. The DSCP is read from these headers.
        enable(&fd, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN)?;
        rustix::net::listen(&fd, BACKLOG)?;
        let token = LISTENER_TOKEN | fd.as_raw_fd() as u64;
        watch_input(&self.epoll, fd.as_fd(), token)?;
        Ok(Listener { fd, arrival, addr })
    }

    /// Sets the time. Must be called before the core uses the sockets: the timeout of a connection attempt starts
    /// from this time.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Handles an event that the driver got from the epoll instance for a token of this module.
    pub fn on_ready(&mut self, token: u64, flags: epoll::EventFlags) {
        if token & LISTENER_TOKEN != 0 {
            let fd = (token & !LISTENER_TOKEN) as i32;
            // The listener may have been closed since the event was queued.
            let at = self.listeners.iter().position(|l| l.fd.as_raw_fd() == fd);
            let room = MAX_EVENTS.saturating_sub(self.events.len());
            if let Some(at) = at {
                self.accept(at, room.min(ACCEPT_BATCH));
            }
        } else if token & RESOLVER_TOKEN != 0 {
            for (id, addresses) in self.resolver.finished() {
                self.events
                    .push_back(DownstreamEvent::Resolved { id, addresses });
            }
        } else {
            self.on_stream_ready(DownstreamId(token), flags);
        }
    }

    /// Returns the next event for the core. Skips events of streams that were closed after the event was queued.
    pub fn next_event(&mut self) -> Option<DownstreamEvent> {
        while let Some(event) = self.events.pop_front() {
            if event.ends_id() || self.get(event.id()).is_some() {
                return Some(event);
            }
        }
        None
    }

    /// Returns whether there is an event for the core.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.connecting.front().map(|(deadline, _)| *deadline)
    }

    /// Ends connection attempts that took too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.connecting.front() {
            // Attempts that have ended are still in the queue.
            let pending = self.get(id).is_some_and(|s| s.connecting);
            if pending && deadline > now {
                return;
            }
            self.connecting.pop_front();
            if pending {
                self.fail_connect(id, ConnectFailure::TimedOut);
            }
        }
    }

    /// Returns the number of streams, including connection attempts.
    pub fn len(&self) -> usize {
        self.streams.len() - self.free.len()
    }

    /// Returns whether there is no stream.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns a stream, unless it was closed.
    fn get(&mut self, id: DownstreamId) -> Option<&mut Stream> {
        let slot = self.streams.get_mut(index(id))?;
        if slot.generation != (id.0 >> 32) as u32 {
            return None;
        }
        slot.stream.as_mut()
    }

    /// Adds a stream and watches its descriptor.
    fn insert(
        &mut self,
        fd: OwnedFd,
        connecting: bool,
    ) -> std::result::Result<DownstreamId, Errno> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.streams.len()).map_err(|_| Errno::NOMEM)?;
                self.streams.push(Slot::default());
                slot
            }
        };
        let entry = &mut self.streams[slot as usize];
        // The generation has 29 bits of the id. The slot has the 32 bits below them, and the three bits above
        // them tell the kinds of tokens. An id repeats only after 2^29 streams of the same slot.
        entry.generation = (entry.generation + 1) & 0x1fff_ffff;
        let id = DownstreamId(u64::from(entry.generation) << 32 | u64::from(slot));
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let watched = watch(&self.epoll, fd.as_fd(), id.0, flags);
        entry.stream = watched.is_ok().then_some(Stream {
            fd,
            connecting,
            may_read: false,
            may_write: false,
            peer_closed: false,
        });
        if let Err(error) = watched {
            self.free.push(slot);
            return Err(error);
        }
        Ok(id)
    }

    /// Removes a stream and returns its descriptor. Closing the descriptor removes it from the epoll instance.
    fn remove(&mut self, id: DownstreamId) -> Option<OwnedFd> {
        self.get(id)?;
        let stream = self.streams[index(id)].stream.take()?;
        self.free.push(index(id) as u32);
        Some(stream.fd)
    }

    /// Accepts at most `max` connections from a listener.
    fn accept(&mut self, listener: usize, max: usize) {
        for _ in 0..max {
            let Listener { fd, arrival, .. } = &self.listeners[listener];
            let (arrival, flags) = (*arrival, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            match rustix::net::acceptfrom_with(fd, flags) {
                Ok((stream, peer)) => self.accepted(stream, peer, arrival),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if !self.refuse_one(listener) {
                        return;
                    }
                }
                // Any other error concerns only the connection that was to be accepted (accept(2)).
                Err(_) => {}
            }
        }
    }

    /// Adds an accepted connection, or resets it if there are too many streams.
    fn accepted(
        &mut self,
        fd: OwnedFd,
        peer: Option<rustix::net::SocketAddrAny>,
        arrival: Arrival,
    ) {
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let (Some(peer), Ok(destination)) = (peer, local_addr(&fd)) else {
            return;
        };
        // Dropping the descriptor resets the connection: an accepted socket inherits the listener's options, and
        // `set_stream_options` set a linger time of zero.
        if self.len() >= self.limits.streams {
            self.counters.accept_refused += 1;
            return;
        }
        let dscp = dscp_of_syn(&fd);
        match self.insert(fd, false) {
            Ok(id) => {
                self.counters.accepted += 1;
                self.events.push_back(DownstreamEvent::Accepted {
                    id,
                    peer: without_scope(peer),
                    destination: without_scope(destination),
                    arrival,
                    dscp,
                });
            }
            Err(_) => self.counters.accept_refused += 1,
        }
    }

    /// Accepts one connection and resets it, although no file descriptor is left: the spare one is used. So the
    /// user learns of the failure at once, and the listener does not stay readable for ever. Returns false if no
    /// connection can be accepted, or if the spare descriptor cannot be replaced.
    fn refuse_one(&mut self, listener: usize) -> bool {
        // One message is enough; the counter shows the number.
        if self.counters.accept_refused == 0 {
            tracing::warn!(
                "no file descriptor is left: refusing connections of users; raise the limit of open \
                            files or lower max_connections in [expert]"
            );
        }
        self.counters.accept_refused += 1;
        self.spare_descriptor = None;
        let accepted = rustix::net::accept_with(&self.listeners[listener].fd, SocketFlags::CLOEXEC);
        let refused = accepted.is_ok();
        drop(accepted);
        self.spare_descriptor = duplicate(&self.epoll).ok();
        refused && self.spare_descriptor.is_some()
    }

    /// Handles an event of a stream's descriptor.
    fn on_stream_ready(&mut self, id: DownstreamId, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        let Some(stream) = self.get(id) else {
            return;
        };
        if stream.connecting {
            if flags.intersects(F::OUT | F::ERR | F::HUP) {
                self.finish_connect(id, flags);
            }
            return;
        }
        let mut new_events = [None, None];
        if flags.contains(F::ERR) {
            // The connection is broken in both directions. Unread data is lost, as after any reset.
            new_events[0] = Some(DownstreamEvent::Broken { id });
        } else {
            stream.peer_closed |= flags.intersects(F::RDHUP | F::HUP);
            if flags.intersects(F::IN | F::RDHUP | F::HUP) && !stream.may_read {
                stream.may_read = true;
                new_events[0] = Some(DownstreamEvent::Readable { id });
            }
            if flags.contains(F::OUT) && !stream.may_write {
                stream.may_write = true;
                new_events[1] = Some(DownstreamEvent::Writable { id });
            }
        }
        self.events.extend(new_events.into_iter().flatten());
    }

    /// Handles the end of a connection attempt.
    fn finish_connect(&mut self, id: DownstreamId, flags: epoll::EventFlags) {
        let Some(stream) = self.get(id) else {
            return;
        };
        match sockopt::socket_error(&stream.fd) {
            Ok(Ok(())) => {
                stream.connecting = false;
                stream.may_write = true;
                self.events.push_back(DownstreamEvent::Connected { id });
                // Epoll does not repeat the other flags of this event (edge-triggered), so they are handled here.
                // `OUT` is left out: the core may write without an event of its own.
                let more = flags & !epoll::EventFlags::OUT;
                self.on_stream_ready(id, more);
            }
            Ok(Err(error)) | Err(error) => self.fail_connect(id, failure(error)),
        }
    }

    fn fail_connect(&mut self, id: DownstreamId, failure: ConnectFailure) {
        drop(self.remove(id));
        self.counters.connect_failed += 1;
        self.events
            .push_back(DownstreamEvent::ConnectFailed { id, failure });
    }
}

impl DownstreamSockets for Sockets {
    fn connect(
        &mut self,
        destination: SocketAddr,
    ) -> std::result::Result<DownstreamId, ConnectFailure> {
        if self.len() >= self.limits.streams {
            return Err(ConnectFailure::NoResources);
        }
        let immediate_failure = |error| failure_before_sending(error, destination.is_ipv6());
        let fd = socket(destination).map_err(immediate_failure)?;
        set_stream_options(&fd).map_err(failure)?;
        match rustix::net::connect(&fd, &destination) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(immediate_failure(error)),
        }
        let id = self.insert(fd, true).map_err(failure)?;
        let deadline = self.now + self.limits.connect_timeout;
        self.connecting.push_back((deadline, id));
        Ok(id)
    }

    fn resolve(&mut self, name: &str, port: u16) -> Option<DownstreamId> {
        self.resolver.submit(name, port)
    }

    fn read(
        &mut self,
        id: DownstreamId,
        bufs: &mut [IoSliceMut<'_>],
    ) -> std::result::Result<usize, DownstreamError> {
        let stream = self.get(id).ok_or(DownstreamError::Broken)?;
        if !stream.may_read {
            return Err(DownstreamError::WouldBlock);
        }
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        match rustix::io::readv(&stream.fd, bufs) {
            Ok(read) => {
                // A short read emptied the socket's buffer. If the peer has closed its direction, epoll may report
                // nothing further, so the core has to read again to find the end of the stream.
                if read < room && !stream.peer_closed {
                    stream.may_read = false;
                }
                Ok(read)
            }
            Err(Errno::AGAIN) => {
                stream.may_read = false;
                Err(DownstreamError::WouldBlock)
            }
            Err(Errno::INTR) => Ok(self.read(id, bufs)?),
            Err(_) => Err(DownstreamError::Broken),
        }
    }

    fn peek(
        &mut self,
        id: DownstreamId,
        buf: &mut [u8],
    ) -> std::result::Result<usize, DownstreamError> {
        let stream = self.get(id).ok_or(DownstreamError::Broken)?;
        if !stream.may_read {
            return Err(DownstreamError::WouldBlock);
        }
        match rustix::net::recv(&stream.fd, &mut *buf, RecvFlags::PEEK) {
            Ok((read, _)) => Ok(read),
            Err(Errno::AGAIN) => {
                stream.may_read = false;
                Err(DownstreamError::WouldBlock)
            }
            Err(Errno::INTR) => self.peek(id, buf),
            Err(_) => Err(DownstreamError::Broken),
        }
    }

    fn write(
        &mut self,
        id: DownstreamId,
        bufs: &[IoSlice<'_>],
    ) -> std::result::Result<usize, DownstreamError> {
        let stream = self.get(id).ok_or(DownstreamError::Broken)?;
        if !stream.may_write {
            return Err(DownstreamError::WouldBlock);
        }
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        match rustix::io::writev(&stream.fd, bufs) {
            Ok(written) => {
                // After a short write, as after EAGAIN, epoll reports when there is room again.
                stream.may_write = written == wanted;
                Ok(written)
            }
            Err(Errno::AGAIN) => {
                stream.may_write = false;
                Err(DownstreamError::WouldBlock)
            }
            Err(Errno::INTR) => Ok(self.write(id, bufs)?),
            Err(_) => Err(DownstreamError::Broken),
        }
    }

    fn shutdown(&mut self, id: DownstreamId) {
        if let Some(stream) = self.get(id) {
            // Fails only if the stream is broken, which an event reports.
            let _ = rustix::net::shutdown(&stream.fd, Shutdown::Write);
        }
    }

    fn close(&mut self, id: DownstreamId) {
        if let Some(fd) = self.remove(id) {
            // Removes the linger time of zero, so that closing sends the remaining data and a FIN.
            let _ = sockopt::set_socket_linger(&fd, None);
        }
    }

    fn reset(&mut self, id: DownstreamId) {
        // `set_stream_options` set a linger time of zero, so closing the descriptor resets the connection.
        drop(self.remove(id));
    }
}

/// Returns the index of a stream's slot.
fn index(id: DownstreamId) -> usize {
    (id.0 & 0xffff_ffff) as usize
}

/// Makes an epoll instance report as `token` when `fd` has input.
pub(crate) fn watch_input(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    token: u64,
) -> std::result::Result<(), Errno> {
    watch(epoll, fd, token, epoll::EventFlags::IN)
}

fn watch(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    token: u64,
    flags: epoll::EventFlags,
) -> std::result::Result<(), Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), flags)
}

fn duplicate(fd: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

fn socket(addr: SocketAddr) -> std::result::Result<OwnedFd, Errno> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Sets the options of a stream. A linger time of zero makes the kernel reset the connection when its descriptor
/// is closed, unless [`Sockets::close`] removes the linger time: a stream that the end of this process cuts off
/// must not look complete to its reader. Nagle's algorithm is off, since the relay collects data and writes
/// large buffers itself.
fn set_stream_options(fd: &OwnedFd) -> std::result::Result<(), Errno> {
    sockopt::set_socket_linger(fd, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(fd, KEEPALIVE_COUNT)?;
    sockopt::set_socket_keepalive(fd, true)
}

/// Returns a transparent socket bound to `addr`. Several sockets may be bound to `addr` as long as at most one
/// listens: one reserves the port, another listens.
fn bind_transparent(addr: SocketAddr) -> std::result::Result<OwnedFd, Errno> {
    let fd = socket(addr)?;
    set_stream_options(&fd)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    let (level, option) = match addr {
        SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_TRANSPARENT),
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_v6only(&fd, true)?;
            (libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
        }
    };
    enable(&fd, level, option)?;
    rustix::net::bind(&fd, &addr)?;
    Ok(fd)
}

/// Returns a socket bound to an address that this host has or may get later.
fn bind_own(addr: SocketAddr) -> std::result::Result<OwnedFd, Errno> {
    let fd = socket(addr)?;
    set_stream_options(&fd)?;
    // An earlier process's connections in the state TIME_WAIT must not prevent this process from listening.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    match addr {
        SocketAddr::V4(_) => enable(&fd, libc::SOL_IP, libc::IP_FREEBIND)?,
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_v6only(&fd, true)?;
            enable(&fd, libc::SOL_IPV6, libc::IPV6_FREEBIND)?;
        }
    }
    rustix::net::bind(&fd, &addr)?;
    Ok(fd)
}

fn enable(fd: &OwnedFd, level: libc::c_int, option: libc::c_int) -> std::result::Result<(), Errno> {
    let enabled = sys::enable_socket_option(fd.as_fd(), level, option);
    enabled.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
}

/// Returns the DSCP of the SYN that opened an accepted connection; 0 if the kernel did not keep the SYN, for
/// example because it answered with a SYN cookie.
fn dscp_of_syn(fd: &OwnedFd) -> u8 {
    let mut syn = [0; MAX_SYN_LEN];
    let read = sys::socket_option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut syn);
    let header = read.ok().and_then(|()| ip::Packet::new(&syn[..]).ok());
    header.map_or(0, |header| header.traffic_class() >> 2)
}

fn local_addr(fd: &OwnedFd) -> std::result::Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(fd)?)
}

/// Removes flow label and scope of an IPv6 address, since neither has a meaning on another host.
pub(crate) fn without_scope(addr: SocketAddr) -> SocketAddr {
    let ip: IpAddr = addr.ip();
    SocketAddr::new(ip, addr.port())
}

/// Returns the failure of a connection attempt for which no packet was sent. The whole address family counts as
/// unreachable only if it has no route to the Internet: a missing route to one destination says nothing about
/// other destinations.
fn failure_before_sending(error: Errno, v6: bool) -> ConnectFailure {
    let lacks_route = matches!(
        error,
        Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            // From routes of the types `prohibit` and `blackhole`, in this order.
            | Errno::ACCESS
            | Errno::INVAL
    );
    match lacks_route && internet::source_towards(v6).is_none() {
        true => ConnectFailure::FamilyUnreachable,
        false => failure(error),
    }
}

/// Returns the failure that an error of a connection attempt means.
fn failure(error: Errno) -> ConnectFailure {
    match error {
        Errno::CONNREFUSED | Errno::CONNRESET => ConnectFailure::Refused,
        Errno::NETUNREACH | Errno::ACCESS | Errno::PERM => ConnectFailure::NetworkUnreachable,
        Errno::TIMEDOUT => ConnectFailure::TimedOut,
        Errno::MFILE
        | Errno::NFILE
        | Errno::NOBUFS
        | Errno::NOMEM
        | Errno::ADDRNOTAVAIL
        | Errno::NOSPC
        | Errno::AGAIN => ConnectFailure::NoResources,
        _ => ConnectFailure::HostUnreachable,
    }
}

#[cfg(test)]
mod tests;
