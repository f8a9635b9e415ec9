//! The roles of the ends of connections.

use core::time::Duration;
use std::sync::Arc;

use super::session::Session;

/// The role of one end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Role {
    /// Sends a request of `request` bytes and reads the answer to its end.
    Fetch {
        /// Bytes of the request.
        request: u64,
    },
    /// Waits for a request of `request` bytes and answers with `size` bytes.
    Answer {
        /// Bytes of the request.
        request: u64,
        /// Bytes of the answer.
        size: u64,
    },
    /// Sends `size` bytes at once.
    Upload {
        /// Bytes to send.
        size: u64,
    },
    /// Reads to the end of the peer's stream and closes.
    #[default]
    Sink,
    /// Reads to the end of the peer's stream and answers with `size` bytes.
    Reply {
        /// Bytes of the answer.
        size: u64,
    },
    /// Sends as fast as the connection allows for `span`, and then closes.
    Greedy {
        /// The time for which this end sends, from the opening of the connection.
        span: Duration,
    },
    /// Sends at most at `rate` for `span`, and then closes: a long-lived transfer that the application limits.
    /// While the send buffer is full, the stream falls behind the rate. It catches up by 4 kB at most.
    Capped {
        /// The rate, bit/s of payload.
        rate: u64,
        /// The time for which this end sends, from the opening of the connection.
        span: Duration,
    },
    /// Sends requests one after the other, and then closes. Each request is sent when the previous answer is
    /// complete and the think time is over.
    Ask(Arc<[Exchange]>),
    /// Answers requests until the peer closes.
    Serve,
    /// Sends the messages of a session, and then closes. Messages of higher priority are sent before others, but
    /// those of one stream stay in order.
    Send(Session),
    /// Reads messages until the peer closes.
    Collect,
}

/// One request of a series, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The think time: from the end of the previous answer, or from the opening of the connection, to the
    /// request.
    pub think: Duration,
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the answer.
    pub answer: u64,
}
