//! What the ends of connections do.

use core::time::Duration;
use std::sync::Arc;

use braid_wire::Rng;

use super::session::Session;
use super::sizes::{Sizes, exponential};

/// What one end of a connection does.
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
        /// Bytes.
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
        /// For how long, from the opening on.
        span: Duration,
    },
    /// Sends at no more than `rate` for `span`, and then ends: a long-lived transfer that the
    /// application limits. What the network does not take is not made up for, but for 4 kB and
    /// what the connection's send buffer holds.
    Capped {
        /// bit/s of payload.
        rate: u64,
        /// For how long, from the opening on.
        span: Duration,
    },
    /// Sends the requests one after the other, each when the answer before is complete and the time
    /// to think over; then ends.
    Ask(Arc<[Exchange]>),
    /// Answers requests until the asking end has no more.
    Serve,
    /// Sends what a session has to send, the most urgent first and each stream in the order in
    /// which it is made, and then ends.
    Send(Session),
    /// Reads messages to the end.
    Collect,
}

/// One request of a series, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Time from the answer before (or the opening of the connection) to the request.
    pub think: Duration,
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the answer.
    pub answer: u64,
}

impl Exchange {
    /// A series of `count` requests of `request` bytes: answers drawn from `answers`, time to think
    /// exponential with mean `think`.
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
