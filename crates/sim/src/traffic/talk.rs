//! Connections that carry messages, at one end.

use core::time::Duration;

use braid_engine::{ConnId, Stack};
use braid_wire::{Instant, Rng};

use super::message::{Inbox, Kind, Message, Outbox};
use super::session::{Progress, Session};
use super::{Role, Sizes};

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

/// An exponential variate of mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

/// Messages both ways over one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Talk {
    pub out: Outbox,
    pub inbox: Inbox,
    /// Requests made.
    asked: usize,
    /// When the last answer was complete.
    answered_at: Option<Instant>,
    session: Progress,
}

impl Talk {
    /// Makes what is due and writes what the connection takes; returns the bytes written.
    pub fn act(
        &mut self,
        now: Instant,
        role: &Role,
        opened_at: Instant,
        (conn, stack): (ConnId, &mut Stack),
    ) -> u64 {
        let mut total = 0;
        loop {
            self.make(now, role, opened_at);
            let written = self.out.write(now, conn, stack);
            total += written;
            // A greedy stream goes on until the connection is full.
            if written == 0 || !self.out.is_empty() {
                return total;
            }
        }
    }

    fn make(&mut self, now: Instant, role: &Role, opened_at: Instant) {
        match role {
            Role::Ask(exchanges) => {
                if self.inbox.count == self.asked as u64
                    && self.asked > 0
                    && self.answered_at.is_none()
                {
                    self.answered_at = Some(now);
                }
                let due = self.next_ask(exchanges, opened_at);
                if let Some(exchange) = exchanges.get(self.asked)
                    && due.is_some_and(|at| at <= now)
                {
                    self.asked += 1;
                    self.answered_at = None;
                    self.out.push(Message {
                        stream: 0,
                        priority: 0,
                        kind: Kind::Ask(exchange.answer),
                        len: exchange.request,
                        made_at: now,
                        deadline: None,
                    });
                }
            }
            Role::Serve => {
                for ask in self.inbox.records.drain(..) {
                    let Kind::Ask(len) = ask.message.kind else {
                        panic!("not a request: {:?}", ask.message);
                    };
                    self.out.push(Message {
                        kind: Kind::Answer,
                        len,
                        ..ask.message
                    });
                }
            }
            Role::Send(session) => {
                let elapsed = now.saturating_since(opened_at);
                session.make(&mut self.session, opened_at, elapsed, &mut self.out);
            }
            _ => {}
        }
    }

    /// When the next request is made, if no answer is waited for.
    fn next_ask(&self, exchanges: &[Exchange], opened_at: Instant) -> Option<Instant> {
        let since = match self.asked {
            0 => opened_at,
            _ => self.answered_at?,
        };
        Some(since + exchanges.get(self.asked)?.think)
    }

    /// When something is to be made, where time decides.
    pub fn next_timeout(&self, role: &Role, opened_at: Instant) -> Option<Instant> {
        match role {
            Role::Ask(exchanges) => self.next_ask(exchanges, opened_at),
            Role::Send(session) => session.next(&self.session).map(|at| opened_at + at),
            _ => None,
        }
    }

    /// Whether all is said.
    pub fn is_over(&self, now: Instant, role: &Role, opened_at: Instant, ended: bool) -> bool {
        let nothing_more = match role {
            Role::Ask(exchanges) => self.inbox.count == exchanges.len() as u64,
            Role::Send(session) => self.session_is_over(session, now, opened_at),
            _ => ended,
        };
        nothing_more && self.out.is_empty()
    }

    fn session_is_over(&self, session: &Session, now: Instant, opened_at: Instant) -> bool {
        session.is_over(&self.session, now.saturating_since(opened_at))
    }
}
