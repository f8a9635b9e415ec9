//! The roles of the ends of connections.

use core::time::Duration;
use std::sync::Arc;

use braid_wire::Rng;

use super::session::Session;
use super::sizes::{Sizes, exponential};

/// The role of one end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Reads to the end and closes.
    Sink,
    /// Reads to the end and then answers with `size` bytes.
    Reply {
        /// Bytes of the answer.
        size: u64,
    },
    /// Sends as much as the connection takes for `span`, and then ends.
    Greedy {
        /// The time of sending, from the opening on.
        span: Duration,
    },
    /// Sends at no more than `rate` for `span`, and then ends: a long-lived transfer that the application
    /// limits. Time in which the network takes nothing is lost, but for 4 kB and the room in the
    /// connection's send buffer.
    Capped {
        /// The rate, bit/s of payload.
        rate: u64,
        /// The time of sending, from the opening on.
        span: Duration,
    },
    /// Sends the requests one after the other, each when the answer before is complete and the time to
    /// think is over; then ends.
    Ask(Arc<[Exchange]>),
    /// Answers requests until the asking end has no more.
    Serve,
    /// Sends the messages of a session, the most urgent first and each stream in order, and then ends.
    Send(Session),
    /// Reads messages to the end.
    Collect,
}

/// One request of a series, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The time from the answer before (or the opening of the connection) to the request.
    pub think: Duration,
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the answer.
    pub answer: u64,
}

impl Exchange {
    /// Makes a series of `count` requests of `request` bytes. Answers are drawn from `answers`; the time
    /// to think is exponential with mean `think`.
    pub fn series(
        count: usize,
        request: u64,
        answers: &Sizes,
        think: Duration,
        rng: &mut Rng,
    ) -> Vec<Exchange> {
        let draw = |_| Exchange {
            think: think.mul_f64(exponential(rng)),
            request,
            answer: answers.sample(rng),
        };
        (0..count).map(draw).collect()
    }
}
