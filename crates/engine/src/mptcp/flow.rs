//! Flows that follow each other over one connection, where its application has them do so.

use super::sides::{RecvSide, SendSide};
use crate::strategy::FlowSize;

/// The flow that is under way. Where nobody says that another one begins, it is all there ever is.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub size: FlowSize,
    begin: Marks,
    end: End,
}

/// Where a flow begins.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Marks {
    /// In the stream that is sent.
    pub sent: u64,
    /// Of what was ever sent as copies.
    pub copied: u64,
    /// In the stream that is received.
    pub received: u64,
}

/// The end of what is sent of a flow.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// It stands there, and the application waits for it to arrive.
    At(u64),
    /// It was said to have arrived.
    Told,
}

impl Flow {
    /// One of which nothing is known.
    pub fn begin(begin: Marks) -> Self {
        Flow {
            begin,
            ..Flow::default()
        }
    }

    /// It ends at `end` in the stream.
    pub fn end(&mut self, end: u64) {
        self.end = End::At(end);
    }

    /// Whether all of it was written.
    pub fn is_written(&self) -> bool {
        self.end != End::Open
    }

    /// Whether it has ended and arrived, where everything below `acked` has and no more than up to `written`
    /// was written; true once.
    pub fn arrives(&mut self, acked: u64, written: u64) -> bool {
        // What came too late to be sent is not part of the stream.
        let arrived = matches!(self.end, End::At(end) if acked >= end.min(written));
        if arrived {
            self.end = End::Told;
        }
        arrived
    }

    /// Of bytes up to `offset` in the stream that is sent, those of the flow.
    pub fn sent(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.begin.sent)
    }

    /// Bytes of it that are known here, in the direction that has more.
    pub fn seen(&self, snd: &SendSide, rcv: &RecvSide) -> u64 {
        let written = self.sent(snd.buf.end());
        written.max(self.received(rcv.buf.rcv_nxt()))
    }

    /// Bytes of it that were acknowledged, and that arrived in order.
    pub fn moved(&self, snd: &SendSide, rcv: &RecvSide) -> (u64, u64) {
        let received = self.received(rcv.buf.rcv_nxt());
        (self.sent(snd.una()), received)
    }

    /// Of so many bytes that were ever sent as copies, those since it began.
    pub fn copied(&self, ever: u64) -> u64 {
        ever - self.begin.copied
    }

    /// Of bytes up to `offset` in the stream that is received, those of the flow.
    pub fn received(&self, offset: u64) -> u64 {
        offset - self.begin.received
    }
}
