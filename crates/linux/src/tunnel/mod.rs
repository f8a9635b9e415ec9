//! The packet path of the tunnel: UDP sockets, two for each link of a box (IPv4 and IPv6) or one for each listening
//! address of a server, and the packet device, which exchanges IP packets with the kernel.
//!
//! An error on a socket is a state of its link and ends nothing: the datagrams are lost, as they may be on any link,
//! and the core notices that its peer does not answer.

mod batch;
mod socket;

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use braid_proxy::app::{Core, PathId};
use braid_wire::Instant;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::net::{Result, SystemError};
use crate::rate_limit::RateLimit;
use crate::sockets::{FOREIGN_TOKEN, watch_input};
use crate::tun::PacketTun;
use batch::Batch;
use socket::{DatagramSocket, Local};

/// Bits that are set in every token of this module in the driver's epoll instance. The tokens of a `Host` share only
/// [`FOREIGN_TOKEN`]: their own bit is bit 32.
pub(crate) const TUNNEL_TOKENS: u64 = FOREIGN_TOKEN | 1 << 33;
/// The token of the packet device: bit 16 is above the tokens of sockets. The token of a socket has twice the number of
/// its path, plus 1 for IPv6.
const DEVICE_TOKEN: u64 = TUNNEL_TOKENS | 1 << 16;
// The batches bound the work of a turn of the loop, as those of the driver do. The sizes are guesses.
/// Number of packets after which no more are read from the device, or written to it, in a turn. What was read last may
/// be a super-segment, which is taken whole.
const PACKET_BATCH: usize = 256;
/// Maximum number of runs of datagrams that are read from one socket in a turn.
const RUN_BATCH: usize = 32;
/// Maximum number of batches of datagrams that are sent in a turn.
const TRANSMIT_BATCHES: usize = 8;
/// Number of datagrams for which the time is read once, since sealing them takes a while.
const DATAGRAMS_PER_CLOCK: usize = 16;
/// Number of bytes of datagrams after which no more are read from a socket in a turn, so that the other sockets wait
/// for milliseconds at most.
const RECEIVE_BATCH_BYTES: usize = 256 << 10;
/// If this many reads of the device or of a socket find something before there is no more, the loop lets further
/// packets gather, as for the engine's device, since each system call costs more than a packet. What comes in
/// super-segments has gathered already. At 700 Mbit/s as many packets of 1,400 bytes arrive while it waits; at lower
/// rates fewer do, so it does not wait twice in a row. The value is a choice.
const GATHER_AFTER_READS: usize = 12;
/// Pause before the loop watches a removed packet device again, as for the engine's device.
const REMOVED_DEVICE_PAUSE: Duration = Duration::from_millis(50);

/// Counters of the tunnel's packet path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received.
    pub rx_datagrams: u64,
    /// System calls that received datagrams.
    pub rx_runs: u64,
    /// Datagrams sent.
    pub tx_datagrams: u64,
    /// System calls that sent datagrams.
    pub tx_runs: u64,
    /// Datagrams that the system refused to send.
    pub tx_refused: u64,
    /// Packets that the device took in.
    pub rx_packets: u64,
    /// System calls that read packets from the device.
    pub rx_reads: u64,
    /// Packets that were written to the device.
    pub tx_packets: u64,
    /// System calls that wrote packets to the device.
    pub tx_writes: u64,
    /// Packets for the device that were lost, because the device refused them or there is none.
    pub tx_packets_refused: u64,
}

/// The UDP sockets and the packet device of the tunnel. It does nothing until it has a path or the
/// device.
#[derive(Debug)]
pub struct TunnelIo {
    epoll: OwnedFd,
    /// The sockets by path.
    paths: Vec<Option<PathSockets>>,
    device: Option<PacketTun>,
    /// Set after another program removed the device: the time at which the loop watches it again.
    unwatched_until: Option<Instant>,
    batch: Batch,
    /// True if the last reads found packets at least [`GATHER_AFTER_READS`] times, and then no more.
    should_gather: bool,
    received: Box<[u8]>,
    counters: Counters,
    log: RateLimit,
}

/// The sockets of a path, for IPv4 and for IPv6. They are opened when the first datagram of their family is sent, as
/// a link may never have addresses of one family.
#[derive(Debug)]
struct PathSockets {
    locals: [Option<Local>; 2],
    sockets: [Option<DatagramSocket>; 2],
}

impl TunnelIo {
    /// Returns a packet path without sockets and device. `epoll`, a duplicate of the driver's descriptor, watches
    /// them.
    pub(crate) fn new(epoll: OwnedFd) -> TunnelIo {
        TunnelIo {
            epoll,
            paths: Vec::new(),
            device: None,
            unwatched_until: None,
            batch: Batch::new(),
            should_gather: false,
            // The kernel joins datagrams to a run of at most an IP packet (`UDP_GRO`).
            received: vec![0; 1 << 16].into(),
            counters: Counters::default(),
            log: RateLimit::default(),
        }
    }

    /// Uses `device` for IP packets.
    ///
    /// # Errors
    /// Fails if the device cannot be watched.
    pub fn set_device(&mut self, device: PacketTun) -> Result<()> {
        let watched = watch_input(&self.epoll, device.fd(), DEVICE_TOKEN);
        watched.map_err(SystemError::cannot("watch the packet device of the tunnel"))?;
        self.device = Some(device);
        Ok(())
    }

    /// Adds a path that sends from the addresses of a link of a box, with the packet mark by which packets are routed
    /// over the link. Replaces the sockets that the path had.
    pub fn add_link(&mut self, path: PathId, mark: u32) {
        let any = [
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        ];
        let locals = any.map(|addr| Some(Local { addr, mark }));
        self.set_path(path, locals);
    }

    /// Adds a path that receives and sends at an address of a server. Replaces the socket that the path had.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket, for example because another program has the port.
    pub fn listen(&mut self, path: PathId, addr: SocketAddr, mark: u32) -> Result<()> {
        let local = Some(Local { addr, mark });
        let locals = match addr {
            SocketAddr::V4(_) => [local, None],
            SocketAddr::V6(_) => [None, local],
        };
        self.set_path(path, locals);
        let opened = self.open(path, addr.is_ipv6());
        opened.map_err(SystemError::cannot(format!("receive datagrams at {addr}")))
    }

    /// Removes a path and closes its sockets.
    pub fn remove(&mut self, path: PathId) {
        if let Some(entry) = self.paths.get_mut(usize::from(path.0)) {
            *entry = None;
        }
    }

    fn set_path(&mut self, path: PathId, locals: [Option<Local>; 2]) {
        let index = usize::from(path.0);
        if index >= self.paths.len() {
            self.paths.resize_with(index + 1, || None);
        }
        // Closing a socket removes it from the epoll instance.
        self.paths[index] = Some(PathSockets {
            locals,
            sockets: [None, None],
        });
    }

    /// Returns the socket of a path and family, if it is open.
    fn socket(&mut self, path: PathId, v6: bool) -> Option<&mut DatagramSocket> {
        let entry = self.paths.get_mut(usize::from(path.0))?.as_mut()?;
        entry.sockets[usize::from(v6)].as_mut()
    }

    /// Opens the socket of a path and family, unless it is open.
    fn open(&mut self, path: PathId, v6: bool) -> io::Result<()> {
        let no_path = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let entry = self.paths.get_mut(usize::from(path.0));
        let entry = entry.and_then(Option::as_mut).ok_or_else(no_path)?;
        let socket = &mut entry.sockets[usize::from(v6)];
        if socket.is_none() {
            let local = entry.locals[usize::from(v6)].ok_or_else(no_path)?;
            let opened = DatagramSocket::open(local)?;
            let token = TUNNEL_TOKENS | u64::from(path.0) << 1 | u64::from(v6);
            watch_input(&self.epoll, opened.fd(), token)?;
            *socket = Some(opened);
        }
        Ok(())
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns whether the loop should wait before the next reads, so that more gathers. Returns true once.
    pub(crate) fn take_should_gather(&mut self) -> bool {
        mem::take(&mut self.should_gather)
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.unwatched_until
    }

    /// Watches a removed device again, if another program or the guard has created it anew.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let Some(device) = &self.device else {
            return;
        };
        if self.unwatched_until.take_if(|at| *at <= now).is_some() {
            let watched = watch_input(&self.epoll, device.fd(), DEVICE_TOKEN);
            self.unwatched_until = watched.is_err().then(|| now + REMOVED_DEVICE_PAUSE);
        }
    }

    /// Handles input at the descriptor of a token of this module. `clock` returns the time. It is read for each run of
    /// datagrams, since decrypting them takes a while, and the core measures round trips.
    pub(crate) fn on_ready<C: Core + ?Sized>(
        &mut self,
        token: u64,
        clock: impl Fn() -> Instant,
        core: &mut C,
    ) {
        if token == DEVICE_TOKEN {
            self.take_packets(clock(), core);
        } else {
            // Path numbers have 8 bits.
            let path = PathId((token >> 1 & 0xff) as u8);
            self.take_datagrams((path, token & 1 != 0), clock, core);
        }
    }

    /// Passes a batch of packets of the device to the core.
    fn take_packets<C: Core + ?Sized>(&mut self, now: Instant, core: &mut C) {
        let Some(device) = &mut self.device else {
            return;
        };
        let end = self.counters.rx_packets + PACKET_BATCH as u64;
        let mut reads = 0;
        while self.counters.rx_packets < end {
            match device.recv() {
                Ok(Some(mut packets)) => {
                    reads += 1;
                    self.counters.rx_reads += 1;
                    while let Some(packet) = packets.next() {
                        self.counters.rx_packets += 1;
                        core.on_packet(now, packet);
                    }
                }
                Ok(None) => {
                    self.should_gather |= reads >= GATHER_AFTER_READS;
                    break;
                }
                // A removed device is always ready, and each read fails until the device is created again.
                Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => {
                    let _ = epoll::delete(&self.epoll, device.fd());
                    self.unwatched_until = Some(now + REMOVED_DEVICE_PAUSE);
                    break;
                }
                // The device is down (EIO), or was down until now, or this packet is malformed.
                Err(_) => break,
            }
        }
    }

    /// Passes a batch of datagrams of a socket to the core, and the packets in them to the device.
    fn take_datagrams<C: Core + ?Sized>(
        &mut self,
        (path, v6): (PathId, bool),
        clock: impl Fn() -> Instant,
        core: &mut C,
    ) {
        let mut received = mem::take(&mut self.received);
        let (mut bytes, mut reads) = (0, 0);
        for _ in 0..RUN_BATCH {
            if bytes >= RECEIVE_BATCH_BYTES {
                break;
            }
            let now = clock();
            // A path may have been removed since its event was queued.
            let Some(socket) = self.socket(path, v6) else {
                break;
            };
            match socket.receive(&mut received) {
                Ok(Some(run)) => {
                    self.counters.rx_runs += 1;
                    reads += 1;
                    bytes += run.len;
                    if run.len == 0 {
                        // An empty datagram comes alone, and the core counts it as invalid.
                        self.counters.rx_datagrams += 1;
                        core.on_datagram(now, path, run.from, &mut []);
                    }
                    for datagram in received[..run.len].chunks_mut(run.datagram_len) {
                        self.counters.rx_datagrams += 1;
                        core.on_datagram(now, path, run.from, datagram);
                    }
                    self.pass_packets(core);
                }
                Ok(None) => {
                    self.should_gather |= reads >= GATHER_AFTER_READS;
                    break;
                }
                // An error that the kernel kept for the socket. It is gone now, and the next read may succeed.
                Err(error) => self.log_refusal(now, path, &error),
            }
        }
        self.received = received;
        self.flush_packets();
    }

    /// Sends and delivers a batch of what the core has to send and to deliver. Returns whether nothing is left.
    /// `clock` returns the time.
    pub(crate) fn exchange<C: Core + ?Sized>(
        &mut self,
        clock: impl Fn() -> Instant,
        core: &mut C,
    ) -> bool {
        let delivered = self.deliver(core);
        self.transmit(clock, core) && delivered
    }

    /// Writes a batch of packets to the device. Returns whether none is left.
    fn deliver<C: Core + ?Sized>(&mut self, core: &mut C) -> bool {
        let is_done = self.pass_packets(core);
        self.flush_packets();
        is_done
    }

    /// Passes a batch of packets to the device, which joins those of a flow until [`Self::flush_packets`]. Returns
    /// whether none is left.
    fn pass_packets<C: Core + ?Sized>(&mut self, core: &mut C) -> bool {
        for _ in 0..PACKET_BATCH {
            let Some(packet) = core.poll_packet() else {
                return true;
            };
            match &mut self.device {
                Some(device) => device.send(packet),
                None => self.counters.tx_packets_refused += 1,
            }
        }
        false
    }

    /// Writes the packets that the device has.
    fn flush_packets(&mut self) {
        // The device refuses packets while it is down, and malformed ones.
        let written = self.device.as_mut().map(PacketTun::flush);
        let written = written.unwrap_or_default();
        self.counters.tx_packets += written.packets;
        self.counters.tx_writes += written.writes;
        self.counters.tx_packets_refused += written.refused;
    }

    /// Sends what the core has to send, in batches. Returns whether nothing is left.
    fn transmit<C: Core + ?Sized>(&mut self, clock: impl Fn() -> Instant, core: &mut C) -> bool {
        for _ in 0..TRANSMIT_BATCHES {
            let mut now = clock();
            let is_last = loop {
                if self.batch.is_full() {
                    break false;
                }
                let Some(next) = core.poll_datagram(now, self.batch.buffer()) else {
                    break true;
                };
                self.batch.add(next);
                if self.batch.len().is_multiple_of(DATAGRAMS_PER_CLOCK) {
                    now = clock();
                }
            };
            self.send_batch(now);
            if is_last {
                return true;
            }
        }
        false
    }

    /// Sends the batch, the runs of each path in order.
    fn send_batch(&mut self, now: Instant) {
        let mut batch = mem::take(&mut self.batch);
        while let Some(run) = batch.next_run() {
            let v6 = run.head.remote.is_ipv6();
            let opened = self.open(run.head.path, v6);
            let error = match (opened, self.socket(run.head.path, v6)) {
                (Ok(()), Some(socket)) => {
                    let outcome = socket.send(&run);
                    self.counters.tx_runs += u64::from(outcome.sent > 0);
                    self.counters.tx_datagrams += outcome.sent;
                    self.counters.tx_refused += outcome.refused;
                    outcome.error
                }
                (opened, _) => {
                    self.counters.tx_refused += run.datagrams as u64;
                    opened.err()
                }
            };
            if let Some(error) = error {
                self.log_refusal(now, run.head.path, &error);
            }
        }
        batch.clear();
        self.batch = batch;
    }

    fn log_refusal(&mut self, now: Instant, path: PathId, error: &io::Error) {
        if let Some(suppressed) = self.log.admit(now) {
            let path = path.0;
            tracing::debug!(path, %error, suppressed, "the system did not send datagrams of the tunnel, or reports \
                                                       that earlier ones did not arrive");
        }
    }
}
