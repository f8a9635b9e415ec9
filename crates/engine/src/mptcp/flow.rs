//! Flows that follow each other over one connection, if its application marks them.

use super::sides::{RecvSide, SendSide};
use crate::strategy::FlowSize;

/// The current flow. If the application marks no flows, the whole connection is one flow.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub size: FlowSize,
    begin: FlowStart,
    end: End,
}

/// The offsets at which a flow begins.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FlowStart {
    /// The offset in the sent stream.
    pub sent: u64,
    /// The count of bytes ever sent as copies.
    pub copied: u64,
    /// The offset in the received stream.
    pub received: u64,
}

/// The end of a flow in the sent stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// The end is at this offset, and the application waits for its delivery.
    At(u64),
    /// The delivery was reported.
    Reported,
}

impl Flow {
    /// Begins a flow of unknown size.
    pub fn begin(begin: FlowStart) -> Self {
        Flow {
            begin,
            ..Flow::default()
        }
    }

    /// Ends the flow at offset `end` of the sent stream.
    pub fn end(&mut self, end: u64) {
        self.end = End::At(end);
    }

    /// Returns whether the flow is completely written.
    pub fn is_written(&self) -> bool {
        self.end != End::Open
    }

    /// Returns, once, whether the ended flow was delivered: everything below `acked` was acknowledged.
    /// `written` is the end of the written stream.
    pub fn take_delivered(&mut self, acked: u64, written: u64) -> bool {
        // Data dropped for its deadline never enters the stream, so the stream may end before the marked
        // end.
        let arrived = matches!(self.end, End::At(end) if acked >= end.min(written));
        if arrived {
            self.end = End::Reported;
        }
        arrived
    }

    /// Returns the number of the flow's bytes below `offset` of the sent stream.
    pub fn sent(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.begin.sent)
    }

    /// Returns the number of the flow's bytes known here, in the direction that has more.
    pub fn seen(&self, snd: &SendSide, rcv: &RecvSide) -> u64 {
        let written = self.sent(snd.buf.end());
        written.max(self.received(rcv.buf.rcv_nxt()))
    }

    /// Returns the number of the flow's bytes that were acknowledged, and that arrived in order.
    pub fn moved(&self, snd: &SendSide, rcv: &RecvSide) -> (u64, u64) {
        let received = self.received(rcv.buf.rcv_nxt());
        (self.sent(snd.una()), received)
    }

    /// Returns the number of copied bytes since the flow began, if `ever` bytes were copied in all.
    pub fn copied(&self, ever: u64) -> u64 {
        ever - self.begin.copied
    }

    /// Returns the number of the flow's bytes below `offset` of the received stream.
    pub fn received(&self, offset: u64) -> u64 {
        offset - self.begin.received
    }
}
