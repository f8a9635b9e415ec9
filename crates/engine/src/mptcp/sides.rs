//! Both directions of a connection's stream.

use core::ops::Range;

use super::flight::Flight;
use super::opening::Offer;
use super::shared::Shared;
use super::subflow::Subflow;
use super::window::WindowSize;
use crate::buffer::{BLOCK_SIZE, Data, InsertError, Pool, RecvBuffer, SendBuffer};
use crate::strategy::Writer;
use crate::{Config, Urgency};

/// Window offered before anything is known; also the least a connection gets under pressure.
const MIN_WINDOW: usize = 64 << 10;
/// Unsent bytes buffered beyond the congestion windows, so that the sender never runs dry while
/// the application catches up.
pub(super) const SEND_HEADROOM: u64 = 256 << 10;
/// Congestion windows count up to this: acknowledgements seldom free more at a time, and what waits
/// for longer has left the processor's caches when it is sent.
const MOST_AHEAD: u64 = 1 << 20;
/// Memory of a send buffer that may be empty: two blocks filled in part for each urgency. What goes
/// beyond, because urgent bytes were taken from among others, counts as if it were filled.
const PARTIAL_BLOCKS: usize = 2 * Urgency::COUNT * BLOCK_SIZE;

/// The sending direction, in stream offsets (the first byte is 0).
#[derive(Debug)]
pub(crate) struct SendSide {
    pub buf: SendBuffer,
    /// Next offset never sent: what is written gets its offset when it is first sent.
    pub nxt: u64,
    /// First offset past the peer's window.
    pub wnd_end: u64,
    /// Every copy of the last byte carries DATA_FIN. One of the copies alone must not: where it
    /// comes last the peer throws it away, and Linux then waits for ever for what it says it knows.
    pub fin_rides: bool,
    /// Who carries what was sent and not acknowledged; empty in regular TCP.
    pub flight: Flight,
    /// Bytes that were late before they were sent.
    pub dropped: u64,
    /// A write of this urgency found no room; the most urgent one, if several did.
    pub blocked: Option<Urgency>,
}

impl SendSide {
    pub fn new() -> Self {
        SendSide {
            buf: SendBuffer::new(0),
            nxt: 0,
            wnd_end: 0,
            fin_rides: false,
            flight: Flight::default(),
            dropped: 0,
            blocked: None,
        }
    }

    /// First offset not acknowledged at the data level.
    pub fn una(&self) -> u64 {
        self.buf.start()
    }

    pub fn unsent(&self) -> u64 {
        self.buf.end() - self.nxt
    }

    pub fn unsent_by_urgency(&self) -> [u64; Urgency::COUNT] {
        self.buf.unmapped()
    }

    /// Bytes that go before what is written with `urgency`.
    fn unsent_before(&self, urgency: Urgency) -> u64 {
        self.buf.unmapped()[..=urgency.index()].iter().sum()
    }

    /// Gives up to `max` unsent bytes, the most urgent ones, their place in the stream: they are to
    /// be sent now. They are of one urgency, so they can be less than `max`.
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let range = self.buf.map_next(max);
        self.nxt = range.end;
        range
    }

    /// Bytes of `urgency` that may be written where the congestion windows have `cwnd` bytes.
    pub fn space(&self, config: &Config, cwnd: u64, urgency: Urgency) -> usize {
        // What waits to be sent is bounded by what the windows take; what is in flight by memory
        // only, so that one path's hole does not stop the others. What lets the new bytes pass does
        // not keep them out.
        let ahead = cwnd.min(MOST_AHEAD) + SEND_HEADROOM;
        let ahead = ahead.saturating_sub(self.unsent_before(urgency));
        let held = self.buf.memory().saturating_sub(PARTIAL_BLOCKS);
        let room = config.send_buffer.saturating_sub(self.buf.len().max(held));
        room.min(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// Takes the window in that the peer announced in the handshake of the initial subflow; not scaled on a SYN.
    pub fn open_window(&mut self, initial: &Subflow, window: u16) {
        let shift = match initial.active {
            true => 0,
            false => initial.agreed.peer_shift,
        };
        let wnd_end = self.una() + (u64::from(window) << shift);
        self.wnd_end = self.wnd_end.max(wnd_end);
    }

    /// Takes back what a SYN carried from byte `from` on: it has not arrived.
    pub fn take_back(&mut self, from: u64, offer: Offer) {
        if from < offer.len {
            self.buf.unmap_from(from, offer.urgency);
            self.nxt = self.buf.nxt();
        }
    }

    /// Returns what is known of the writer; `is_done` says that it writes no more, at least of the flow.
    pub fn writer(&self, is_done: bool) -> Writer {
        match self.blocked {
            _ if is_done => Writer::Done,
            None => Writer::Open,
            Some(_) => Writer::Waiting,
        }
    }

    /// Returns whether the peer's window is all that data waits for.
    pub fn is_shut_out(&self) -> bool {
        self.unsent() > 0 && self.peer_window() == 0
    }

    pub fn outstanding(&self) -> u64 {
        self.nxt - self.una()
    }

    pub fn peer_window(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// What holds after every call: acknowledged, sent and written stand in this order.
    pub fn invariants(&self) {
        let (una, nxt, end) = (self.una(), self.nxt, self.buf.end());
        debug_assert!(una <= nxt && nxt <= end, "{una}, {nxt}, {end}");
        debug_assert_eq!(nxt, self.buf.nxt());
        self.flight.invariants(una..nxt);
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct RecvSide {
    pub buf: RecvBuffer,
    /// Offset of the peer's DATA_FIN, once known.
    pub fin: Option<u64>,
    /// How much the reader is trusted with.
    pub window: WindowSize,
    /// Right edge of the largest window announced.
    pub edge: u64,
    /// `Readable` was reported and nothing read since.
    pub signalled: bool,
    /// Bytes that came although they were here.
    pub duplicate: u64,
}

/// What [`RecvSide::insert`] did with bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    /// How many at their end lie beyond the window.
    pub refused: usize,
    /// How many were here.
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

    /// Stores `data`, whose first byte is byte `at` of the stream.
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

    /// Sets how much may be received: what the reader takes, at most what is fair while others need
    /// memory too, so that many stalled readers share what there is and none holds it all.
    // Conforms: 8684-3.3.4-1, 9293-3.8.6-1
    pub fn size_window(&mut self, shared: &Shared) {
        let config = &shared.config;
        let fair = shared.pool.fair() * BLOCK_SIZE;
        let most = fair.min(config.recv_buffer) as u64;
        let least = MIN_WINDOW.min(config.recv_buffer) as u64;
        let limit = self.window.get().min(most).max(least);
        // The right edge of a window never moves back (RFC 9293 section 3.8.6).
        let promised = self.edge.saturating_sub(self.buf.next());
        self.buf.set_limit(limit.max(promised));
    }

    /// The DATA_ACK value as an offset: DATA_FIN counts as one.
    // Conforms: 8684-3.3.3-3
    pub fn data_ack(&self) -> u64 {
        self.buf.rcv_nxt() + u64::from(self.complete())
    }

    /// Returns whether everything the peer will ever send is here.
    pub fn complete(&self) -> bool {
        self.fin == Some(self.buf.rcv_nxt())
    }

    /// Returns whether everything was read as well.
    pub fn is_read(&self) -> bool {
        self.complete() && self.buf.readable() == 0
    }

    /// One past the last byte that is here, behind holes or not.
    pub fn here(&self) -> u64 {
        let behind = self.buf.out_of_order().max_end();
        behind.unwrap_or(0).max(self.buf.rcv_nxt())
    }

    /// What holds after every call: nothing lies behind the end of the stream, and what was promised
    /// is there.
    pub fn invariants(&self) {
        debug_assert!(self.fin.is_none_or(|fin| self.here() <= fin));
        debug_assert!(self.edge <= self.buf.max_offset());
        debug_assert!(self.buf.next() <= self.buf.rcv_nxt());
    }
}
