//! Both directions of a connection's stream.

use core::ops::Range;

use super::opening::Offer;
use super::scoreboard::Scoreboard;
use super::shared::Shared;
use super::subflow::Subflow;
use super::window::WindowSize;
use crate::buffer::{BLOCK_SIZE, Data, InsertError, Pool, RecvBuffer, SendBuffer};
use crate::strategy::Writer;
use crate::{Config, Urgency};

/// The window in bytes offered initially, and the least a connection gets under memory pressure.
const MIN_WINDOW: usize = 64 << 10;
/// Unsent bytes buffered beyond the congestion windows, so that the sender does not run dry while the
/// application catches up.
pub(super) const SEND_HEADROOM: u64 = 256 << 10;
/// The most bytes of congestion windows that count for buffering: acknowledgements seldom free more at a
/// time, and data that waits longer has left the processor's caches when it is sent.
const MAX_BUFFERED_CWND: u64 = 1 << 20;
/// The memory of a send buffer that may be partly empty: two partly filled blocks for each urgency. Memory
/// beyond that, left because urgent bytes were taken from among others, counts as filled.
const MAX_UNFILLED_BYTES: usize = 2 * Urgency::COUNT * BLOCK_SIZE;

/// The sending direction, in stream offsets (the first byte is 0).
#[derive(Debug)]
pub(crate) struct SendSide {
    pub buf: SendBuffer,
    /// The next offset never sent. Written data gets its offset when it is first sent.
    pub nxt: u64,
    /// The first offset past the peer's window.
    pub wnd_end: u64,
    /// Set once every copy of the last byte carries DATA_FIN. Marking one copy alone is not enough: if that
    /// copy arrives last, the peer discards it, and Linux then waits for ever for the DATA_FIN.
    pub fin_rides: bool,
    /// The subflows that carry the unacknowledged data; empty in regular TCP.
    pub scoreboard: Scoreboard,
    /// The number of bytes dropped because their deadline passed before they were sent.
    pub dropped: u64,
    /// The urgency of a write that found no room; the most urgent one, if several did.
    pub blocked: Option<Urgency>,
}

impl SendSide {
    pub fn new() -> Self {
        SendSide {
            buf: SendBuffer::new(0),
            nxt: 0,
            wnd_end: 0,
            fin_rides: false,
            scoreboard: Scoreboard::default(),
            dropped: 0,
            blocked: None,
        }
    }

    /// Returns the first offset not acknowledged at the data level.
    pub fn una(&self) -> u64 {
        self.buf.start()
    }

    pub fn unsent(&self) -> u64 {
        self.buf.end() - self.nxt
    }

    pub fn unsent_by_urgency(&self) -> [u64; Urgency::COUNT] {
        self.buf.unmapped()
    }

    /// Returns the number of unsent bytes that precede new bytes of `urgency`.
    fn unsent_before(&self, urgency: Urgency) -> u64 {
        self.buf.unmapped()[..=urgency.index()].iter().sum()
    }

    /// Assigns the next offsets of the stream to up to `max` of the most urgent unsent bytes, which are to
    /// be sent now. All are of one urgency, so there may be fewer than `max`.
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let range = self.buf.map_next(max);
        self.nxt = range.end;
        range
    }

    /// Returns the number of bytes of `urgency` that may be written if the congestion windows hold `cwnd`
    /// bytes.
    pub fn space(&self, config: &Config, cwnd: u64, urgency: Urgency) -> usize {
        // Unsent data is bounded by the windows; data in flight by memory only, so that a hole on one path
        // does not stop the others. Less urgent data does not keep out new bytes that overtake it.
        let ahead = cwnd.min(MAX_BUFFERED_CWND) + SEND_HEADROOM;
        let ahead = ahead.saturating_sub(self.unsent_before(urgency));
        let held = self.buf.memory().saturating_sub(MAX_UNFILLED_BYTES);
        let room = config.send_buffer.saturating_sub(self.buf.len().max(held));
        room.min(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// Adopts the window that the peer announced in the handshake of the initial subflow; it is not scaled
    /// on a SYN.
    pub fn open_window(&mut self, initial: &Subflow, window: u16) {
        let shift = match initial.active {
            true => 0,
            false => initial.agreed.peer_shift,
        };
        let wnd_end = self.una() + (u64::from(window) << shift);
        self.wnd_end = self.wnd_end.max(wnd_end);
    }

    /// Takes back the payload of a SYN from byte `from` on, which has not arrived.
    pub fn take_back(&mut self, from: u64, offer: Offer) {
        if from < offer.len {
            self.buf.unmap_from(from, offer.urgency);
            self.nxt = self.buf.nxt();
        }
    }

    /// Returns the state of the writer; `is_done` is set if it writes no more, at least of the flow.
    pub fn writer(&self, is_done: bool) -> Writer {
        match self.blocked {
            _ if is_done => Writer::Done,
            None => Writer::Open,
            Some(_) => Writer::Waiting,
        }
    }

    /// Returns whether unsent data waits for the peer's window alone.
    pub fn is_window_closed(&self) -> bool {
        self.unsent() > 0 && self.peer_window() == 0
    }

    pub fn outstanding(&self) -> u64 {
        self.nxt - self.una()
    }

    pub fn peer_window(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// Asserts the invariants: acknowledged, sent and written offsets stand in this order.
    pub fn invariants(&self) {
        let (una, nxt, end) = (self.una(), self.nxt, self.buf.end());
        debug_assert!(una <= nxt && nxt <= end, "{una}, {nxt}, {end}");
        debug_assert_eq!(nxt, self.buf.nxt());
        self.scoreboard.invariants(una..nxt);
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct RecvSide {
    pub buf: RecvBuffer,
    /// The offset of the peer's DATA_FIN, once known.
    pub fin: Option<u64>,
    /// The receive window that the reader has earned.
    pub window: WindowSize,
    /// The right edge of the largest window announced.
    pub edge: u64,
    /// Set if `Readable` was reported and nothing was read since.
    pub signalled: bool,
    /// The number of bytes that arrived although they were here.
    pub duplicate: u64,
}

/// The result of [`RecvSide::insert`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    /// The number of trailing bytes that lie beyond the window.
    pub refused: usize,
    /// The number of bytes that were here already.
    pub duplicate: u64,
}

impl RecvSide {
    pub fn new() -> Self {
        RecvSide {
            buf: RecvBuffer::new(0, MIN_WINDOW as u64),
            window: WindowSize::default(),
            fin: None,
            edge: 0,
            signalled: false,
            duplicate: 0,
        }
    }

    /// Stores `data`, whose first byte is at offset `at` of the stream.
    // Conforms: 8684-3.3.1-11
    pub fn insert(
        &mut self,
        at: u64,
        data: Data<'_>,
        pool: &mut Pool,
    ) -> Result<Inserted, InsertError> {
        let len = data.len();
        let done = self.buf.insert(at, data, pool)?;
        let duplicate = (len - done.refused) as u64 - done.new_bytes;
        self.duplicate += duplicate;
        Ok(Inserted {
            refused: done.refused,
            duplicate,
        })
    }

    /// Sets the receive limit: what the reader takes, but at most a fair share while others need memory
    /// too, so that many stalled readers share the memory and none holds it all.
    // Conforms: 8684-3.3.4-1, 9293-3.8.6-1
    pub fn size_window(&mut self, shared: &Shared) {
        let config = &shared.config;
        let fair = shared.pool.fair_share() * BLOCK_SIZE;
        let most = fair.min(config.recv_buffer) as u64;
        let least = MIN_WINDOW.min(config.recv_buffer) as u64;
        let limit = self.window.get().min(most).max(least);
        // The right edge of a window never moves back (RFC 9293 section 3.8.6).
        let promised = self.edge.saturating_sub(self.buf.next());
        self.buf.set_limit(limit.max(promised));
    }

    /// Returns the DATA_ACK as an offset: DATA_FIN counts as one byte.
    // Conforms: 8684-3.3.3-3
    pub fn data_ack(&self) -> u64 {
        self.buf.rcv_nxt() + u64::from(self.complete())
    }

    /// Returns whether everything that the peer will ever send is here.
    pub fn complete(&self) -> bool {
        self.fin == Some(self.buf.rcv_nxt())
    }

    /// Returns whether everything is here and read.
    pub fn is_read(&self) -> bool {
        self.complete() && self.buf.readable() == 0
    }

    /// Returns the offset past the last byte that is here, behind holes or not.
    pub fn highest_received(&self) -> u64 {
        let behind = self.buf.out_of_order().max_end();
        behind.unwrap_or(0).max(self.buf.rcv_nxt())
    }

    /// Asserts the invariants: nothing lies behind the end of the stream, and the announced window is kept.
    pub fn invariants(&self) {
        debug_assert!(self.fin.is_none_or(|fin| self.highest_received() <= fin));
        debug_assert!(self.edge <= self.buf.max_offset());
        debug_assert!(self.buf.next() <= self.buf.rcv_nxt());
    }
}
