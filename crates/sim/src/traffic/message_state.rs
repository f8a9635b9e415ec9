//! One end of a connection that carries messages.

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

use super::message::{Inbox, Kind, Message, Outbox};
use super::role::{Exchange, Role};
use super::session::{Progress, Session};

/// The messages of one end, in both directions.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageState {
    pub out: Outbox,
    pub inbox: Inbox,
    /// The number of requests made.
    requests_made: usize,
    /// The time at which the answer to the last request was complete; `None` until then.
    answered_at: Option<Instant>,
    session: Progress,
}

impl MessageState {
    /// Makes the messages that are due, and writes as much as the send buffer takes. Returns the number of bytes
    /// written.
    pub fn pump(
        &mut self,
        now: Instant,
        role: &Role,
        opened_at: Instant,
        (conn, stack): (ConnId, &mut Stack),
    ) -> u64 {
        let mut total = 0;
        loop {
            self.make_due(now, role, opened_at);
            let written = self.out.write(now, conn, stack);
            total += written;
            // A bulk stream without a rate makes its next message when the previous one is written. The loop
            // therefore continues until the send buffer is full.
            if written == 0 || !self.out.is_empty() {
                return total;
            }
        }
    }

    fn make_due(&mut self, now: Instant, role: &Role, opened_at: Instant) {
        match role {
            Role::Ask(exchanges) => {
                // The counts are equal if no answer is pending, because each request has one answer.
                if self.inbox.count == self.requests_made as u64
                    && self.requests_made > 0
                    && self.answered_at.is_none()
                {
                    self.answered_at = Some(now);
                }
                let due = self.next_request_at(exchanges, opened_at);
                if let Some(exchange) = exchanges.get(self.requests_made)
                    && due.is_some_and(|at| at <= now)
                {
                    self.requests_made += 1;
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
                session.make_due(&mut self.session, opened_at, elapsed, &mut self.out);
            }
            _ => {}
        }
    }

    /// Returns the time of the next request, unless an answer is pending.
    fn next_request_at(&self, exchanges: &[Exchange], opened_at: Instant) -> Option<Instant> {
        let think_from = match self.requests_made {
            0 => opened_at,
            _ => self.answered_at?,
        };
        Some(think_from + exchanges.get(self.requests_made)?.think)
    }

    /// Returns the time of the next message. Returns `None` if events of the connection, not the time, decide when
    /// the next message is made.
    pub fn next_timeout(&self, role: &Role, opened_at: Instant) -> Option<Instant> {
        match role {
            Role::Ask(exchanges) => self.next_request_at(exchanges, opened_at),
            Role::Send(session) => session.next(&self.session).map(|at| opened_at + at),
            _ => None,
        }
    }

    /// Returns whether this end may close: it has written all its messages and waits for none of the peer.
    /// `peer_closed` is true if the peer's stream was read to its end.
    pub fn is_over(
        &self,
        now: Instant,
        role: &Role,
        opened_at: Instant,
        peer_closed: bool,
    ) -> bool {
        let complete = match role {
            Role::Ask(exchanges) => self.inbox.count == exchanges.len() as u64,
            Role::Send(session) => self.session_is_over(session, now, opened_at),
            _ => peer_closed,
        };
        complete && self.out.is_empty()
    }

    fn session_is_over(&self, session: &Session, now: Instant, opened_at: Instant) -> bool {
        session.is_over(&self.session, now.saturating_since(opened_at))
    }
}
