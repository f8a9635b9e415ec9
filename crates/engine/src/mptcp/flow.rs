//! Flows: parts of a connection's streams that the application marks. A strategy treats each flow as a transfer of
//! its own.

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
    /// The number of bytes that the connection had sent as copies.
    pub copied: u64,
    /// The offset in the received stream.
    pub received: u64,
}

/// The end of a flow in the sent stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The application has not marked the end.
    #[default]
    Open,
    /// The flow ends at this offset, and its delivery was not reported yet.
    At(u64),
    /// The flow has ended, and its delivery was reported.
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

    /// Returns whether the ended flow has been delivered, and marks its delivery as reported. `acked` is the
    /// offset below which all bytes are acknowledged, and `written` the end of the written stream.
    pub fn take_delivered(&mut self, acked: u64, written: u64) -> bool {
        // Data whose deadline passes before it is sent is dropped, so the stream may become shorter than the
        // marked end.
        let is_delivered = matches!(self.end, End::At(end) if acked >= end.min(written));
        if is_delivered {
            self.end = End::Reported;
        }
        is_delivered
    }

    /// Returns the number of the flow's bytes below `offset` of the sent stream. `offset` may lie before the
    /// flow, because the flow starts behind all data written earlier, even if that data is unsent.
    pub fn sent(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.begin.sent)
    }

    /// Returns the number of the flow's bytes written here or received in order, whichever is more.
    pub fn seen(&self, snd: &SendSide, rcv: &RecvSide) -> u64 {
        let written = self.sent(snd.buf.end());
        written.max(self.received(rcv.buf.rcv_nxt()))
    }

    /// Returns the number of the flow's bytes that the peer acknowledged, and the number of those received in
    /// order.
    pub fn moved(&self, snd: &SendSide, rcv: &RecvSide) -> (u64, u64) {
        let received = self.received(rcv.buf.rcv_nxt());
        (self.sent(snd.una()), received)
    }

    /// Returns the number of bytes copied since the flow began; `total` is the number since the connection
    /// began.
    pub fn copied(&self, total: u64) -> u64 {
        total - self.begin.copied
    }

    /// Returns the number of the flow's bytes below `offset` of the received stream.
    pub fn received(&self, offset: u64) -> u64 {
        // The flow begins behind the bytes received in order, so no later offset lies before it.
        offset - self.begin.received
    }
}
