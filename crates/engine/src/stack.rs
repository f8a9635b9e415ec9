//! All connections of one host.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

use arrayvec::ArrayVec;
use braid_wire::{Instant, Rng};

use crate::sched::Policy;
use crate::{ApiError, Config, ConnId, ConnectOptions, Event, ListenerId, PathConfig, PathId};

/// What the driver knows of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// The checksum was verified, or the packet never left this machine; otherwise the engine
    /// verifies it.
    pub checksum_ok: bool,
    /// Payload bytes per original packet where several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
}

/// What is left to do for the checksum of a [`Transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxChecksum {
    /// It is complete.
    Done,
    /// The field holds the pseudo-header sum; the device sums from `start` and writes at
    /// `start + offset` (`virtio_net_hdr`).
    Partial {
        /// Where summing starts, bytes into the packet.
        start: u16,
        /// Where the sum goes, bytes after `start`.
        offset: u16,
    },
}

/// A packet to send: write `header` and then `payload`, without copying (`writev`).
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The path whose local address is the source.
    pub path: PathId,
    /// IP and TCP header.
    pub header: &'a [u8],
    /// Payload in order.
    pub payload: ArrayVec<&'a [u8], 8>,
    /// Payload bytes per packet where this is a super-segment the device must cut; else 0.
    pub gso_size: u16,
    /// Checksum state.
    pub checksum: TxChecksum,
    /// IPv6.
    pub v6: bool,
}

/// All connections of one host: demultiplexing by 4-tuple and token, listeners, timers.
///
/// # How to drive it
///
/// 1. Commands ([`connect`](Self::connect), [`write_with`](Self::write_with), …) and
///    [`receive`](Self::receive) change state and never block.
/// 2. After any of them: [`poll_transmit`](Self::poll_transmit) until `None`, handing each packet
///    to the device, and [`poll_event`](Self::poll_event) until `None`.
/// 3. Sleep until [`next_timeout`](Self::next_timeout), then
///    [`handle_timeout`](Self::handle_timeout) and step 2 again.
///
/// `now` must not go backwards.
#[derive(Debug)]
pub struct Stack {}

impl Stack {
    /// A stack without paths. `policy` gives accepted connections their scheduler and reinjector.
    pub fn new(config: Config, rng: Rng, policy: Box<dyn FnMut() -> Policy + Send>) -> Self {
        let _ = (config, rng, policy);
        todo!()
    }

    /// Adds a local path. At most 255.
    pub fn add_path(&mut self, path: PathConfig) -> PathId {
        let _ = path;
        todo!()
    }

    /// Says whether `path` can be used. Down: its subflows are marked stale at once, their data is
    /// reinjected, and no subflow is opened there. Up: stale subflows are probed and missing ones
    /// opened at once.
    pub fn set_path_up(&mut self, now: Instant, path: PathId, up: bool) {
        let _ = (now, path, up);
        todo!()
    }

    /// Accepts connections to `addr` (a local address of some path).
    pub fn listen(&mut self, addr: SocketAddr) -> Result<ListenerId, ApiError> {
        let _ = addr;
        todo!()
    }

    /// Opens a connection. Data may be written at once; it leaves with the end of the handshake.
    pub fn connect(&mut self, now: Instant, options: ConnectOptions) -> Result<ConnId, ApiError> {
        let _ = (now, options);
        todo!()
    }

    /// Lets `fill` write up to `max` bytes straight into the send buffer and queues as many bytes
    /// as it says. `fill` is not called, and 0 returned, where there is no room: then
    /// [`Event::Writable`] follows once there is.
    pub fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let _ = (now, conn, max, fill);
        todo!()
    }

    /// Queues as much of `data` as there is room for and returns how much.
    pub fn write(&mut self, now: Instant, conn: ConnId, data: &[u8]) -> Result<usize, ApiError> {
        let _ = (now, conn, data);
        todo!()
    }

    /// Lets `drain` take in-order data and releases as many bytes as it says. `drain` is not
    /// called, and 0 returned, where there is none.
    pub fn read_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let _ = (now, conn, drain);
        todo!()
    }

    /// Bytes that [`write_with`](Self::write_with) would take now; 0 for unknown connections.
    pub fn send_space(&self, conn: ConnId) -> usize {
        let _ = conn;
        todo!()
    }

    /// Bytes that [`read_with`](Self::read_with) would show now; 0 for unknown connections.
    pub fn readable(&self, conn: ConnId) -> usize {
        let _ = conn;
        todo!()
    }

    /// Whether the peer closed its stream and all of it was read.
    pub fn read_finished(&self, conn: ConnId) -> bool {
        let _ = conn;
        todo!()
    }

    /// Closes the sending direction after the data queued so far (DATA_FIN). The connection ends
    /// with [`Event::Closed`] once both directions are closed and acknowledged.
    pub fn shutdown(&mut self, now: Instant, conn: ConnId) -> Result<(), ApiError> {
        let _ = (now, conn);
        todo!()
    }

    /// Ends the connection at once (MP_FASTCLOSE or RST). [`Event::Closed`] follows.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        let _ = (now, conn);
        todo!()
    }

    /// Takes in an IP packet. Bad packets are counted and dropped.
    pub fn receive(&mut self, now: Instant, packet: &[u8], meta: RxMeta) {
        let _ = (now, packet, meta);
        todo!()
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        let _ = now;
        todo!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, if ever.
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Serves every timer that has expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }
}
