//! The two directions of a connection: the stream sent, and the stream received.

use core::ops::Range;

use super::opening::Offer;
use super::scoreboard::Scoreboard;
use super::shared::Shared;
use super::subflow::Subflow;
use super::window::WindowSize;
use crate::buffer::{BLOCK_SIZE, Data, InsertError, Pool, RecvBuffer, SendBuffer};
use crate::strategy::Writer;
use crate::{Config, Urgency};

/// The receive window in bytes that is offered first. A connection has at least this window, even if memory is
/// short. It is about the maximum that a SYN can announce, because windows of SYNs are not scaled.
const MIN_WINDOW: usize = 64 << 10;
/// The number of unsent bytes buffered beyond the congestion windows, so that the sender does not run dry before
/// the application has written more. The value is a guess; at 1 Gbit/s it lasts 2 ms.
pub(super) const SEND_HEADROOM: u64 = 256 << 10;
/// The maximum number of bytes of the congestion windows that count for buffering. Acknowledgements seldom free
/// more than this at once. If more data waited, it would wait longer and leave the processor's caches.
const MAX_BUFFERED_CWND: u64 = 1 << 20;
/// The memory of a send buffer that may be unused in partly filled blocks: two blocks for each urgency. Urgent
/// bytes that are taken from among others also leave blocks partly empty. Unused memory beyond this maximum
/// counts as filled, so that it is bounded too.
const MAX_UNFILLED_BYTES: usize = 2 * Urgency::COUNT * BLOCK_SIZE;

/// The sending direction. Its numbers are offsets of the stream, whose first byte is 0.
#[derive(Debug)]
pub(crate) struct SendSide {
    pub buf: SendBuffer,
    /// The first offset never sent. Written data gets its offset when it is first sent, because urgent data
    /// may overtake it until then.
    pub nxt: u64,
    /// The first offset past the peer's window.
    pub wnd_end: u64,
    /// Set once each segment with the last byte carries DATA_FIN, copies on other subflows included. If only
    /// one of these segments had DATA_FIN and arrived after another one, Linux would discard it together with
    /// its DATA_FIN, and would wait for a DATA_FIN for ever.
    pub fin_rides: bool,
    /// The subflows that carry each range of unacknowledged data; empty in regular TCP.
    pub scoreboard: Scoreboard,
    /// The number of bytes dropped because their deadline passed before they were sent.
    pub dropped: u64,
    /// The urgency of the write that found no room, or of the most urgent one of several such writes.
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

    /// Returns the number of unsent bytes that would be sent before new bytes of `urgency`.
    fn unsent_before(&self, urgency: Urgency) -> u64 {
        self.buf.unmapped()[..=urgency.index()].iter().sum()
    }

    /// Assigns the next offsets of the stream to up to `max` of the most urgent unsent bytes, which are about
    /// to be sent. There may be fewer than `max` (see [`SendBuffer::map_next`]).
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let range = self.buf.map_next(max);
        self.nxt = range.end;
        range
    }

    /// Returns the number of bytes of `urgency` that may be written if the congestion windows hold `cwnd`
    /// bytes.
    pub fn space(&self, config: &Config, cwnd: u64, urgency: Urgency) -> usize {
        // The congestion windows bound unsent data, apart from less urgent data that the new bytes overtake.
        // Only the send buffer bounds data in flight, so that a hole on one path does not stop the others.
        let max_unsent = cwnd.min(MAX_BUFFERED_CWND) + SEND_HEADROOM;
        let unsent_room = max_unsent.saturating_sub(self.unsent_before(urgency));
        let filled = self.buf.memory().saturating_sub(MAX_UNFILLED_BYTES);
        let room = config
            .send_buffer
            .saturating_sub(self.buf.len().max(filled));
        room.min(usize::try_from(unsent_room).unwrap_or(usize::MAX))
    }

    /// Adopts the window that the peer announced in the handshake of the initial subflow. An opener gets it in
    /// the SYN/ACK, where windows are not scaled; a listener in the third ACK.
    pub fn open_window(&mut self, initial: &Subflow, window: u16) {
        let shift = match initial.active {
            true => 0,
            false => initial.agreed.peer_shift,
        };
        let wnd_end = self.una() + (u64::from(window) << shift);
        self.wnd_end = self.wnd_end.max(wnd_end);
    }

    /// Makes the payload of a SYN unsent again, from byte `from` on, because the peer did not accept it.
    pub fn take_back(&mut self, from: u64, offer: Offer) {
        if from < offer.len {
            self.buf.unmap_from(from, offer.urgency);
            self.nxt = self.buf.nxt();
        }
    }

    /// Returns the state of the application as a writer; `is_done` is set if it writes no more of the current
    /// flow.
    pub fn writer(&self, is_done: bool) -> Writer {
        match self.blocked {
            _ if is_done => Writer::Done,
            None => Writer::Open,
            Some(_) => Writer::Waiting,
        }
    }

    /// Returns whether there is unsent data and the peer's window has no room at all.
    pub fn is_window_closed(&self) -> bool {
        self.unsent() > 0 && self.peer_window() == 0
    }

    pub fn outstanding(&self) -> u64 {
        self.nxt - self.una()
    }

    pub fn peer_window(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// Asserts the invariants: acknowledged data is sent data, and sent data is written data.
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
    /// The end of the peer's stream, where its DATA_FIN is; `None` as long as it is not known.
    pub fin: Option<u64>,
    /// The size of the receive window, which depends on the reader's speed.
    pub window: WindowSize,
    /// The highest right edge of all windows announced.
    pub edge: u64,
    /// Set if `Readable` was reported and the application has not read since.
    pub signalled: bool,
    /// The number of bytes that arrived again after they had arrived before.
    pub duplicate: u64,
}

/// The result of [`RecvSide::insert`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    /// The number of trailing bytes that lie beyond the window.
    pub refused: usize,
    /// The number of bytes that had arrived before.
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

    /// Sets the limit of received data: the size of the window, but at most the connection's fair share of the
    /// memory, so that many stalled readers share the memory and none holds it all.
    // Conforms: 8684-3.3.4-1, 9293-3.8.6-1
    pub fn size_window(&mut self, shared: &Shared) {
        let config = &shared.config;
        let fair_share = shared.pool.fair_share() * BLOCK_SIZE;
        let max_limit = fair_share.min(config.recv_buffer) as u64;
        let min_limit = MIN_WINDOW.min(config.recv_buffer) as u64;
        let limit = self.window.get().min(max_limit).max(min_limit);
        // The right edge of a window never moves back (RFC 9293 section 3.8.6).
        let promised = self.edge.saturating_sub(self.buf.next());
        self.buf.set_limit(limit.max(promised));
    }

    /// Returns the DATA_ACK as an offset of the peer's stream; DATA_FIN counts as one byte.
    // Conforms: 8684-3.3.3-3
    pub fn data_ack(&self) -> u64 {
        self.buf.rcv_nxt() + u64::from(self.complete())
    }

    /// Returns whether the whole stream of the peer has arrived.
    pub fn complete(&self) -> bool {
        self.fin == Some(self.buf.rcv_nxt())
    }

    /// Returns whether the whole stream of the peer has arrived and was read.
    pub fn is_read(&self) -> bool {
        self.complete() && self.buf.readable() == 0
    }

    /// Returns the offset past the highest byte that has arrived, even if bytes before it are missing.
    pub fn highest_received(&self) -> u64 {
        let out_of_order_end = self.buf.out_of_order().max_end();
        out_of_order_end.unwrap_or(0).max(self.buf.rcv_nxt())
    }

    /// Asserts the invariants: no data lies behind the end of the stream, and the buffer accepts data up to
    /// the announced edge.
    pub fn invariants(&self) {
        debug_assert!(self.fin.is_none_or(|fin| self.highest_received() <= fin));
        debug_assert!(self.edge <= self.buf.max_offset());
        debug_assert!(self.buf.next() <= self.buf.rcv_nxt());
    }
}
