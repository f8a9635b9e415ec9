//! The application at one end of a connection.

use braid_engine::stats::ConnStats;
use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, CloseReason, ConnId, FallbackCause, Stack, Urgency};
use braid_wire::Instant;

use super::message::{Inbox, Kind, Message, Outbox, Received};
use super::pace::Bucket;
use super::pattern::{fill, pattern_from};
use super::preface::Preface;
use super::role::{Exchange, Role};
use super::session::Progress;
use crate::oracle::Oracle;

/// The application at one end of a connection. It writes by its role, and checks every byte that it reads.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// The role of this end.
    pub role: Role,
    /// The label by which the owner finds the stream. Both ends of a connection may have the same label.
    pub label: u32,
    /// The cause of the fallback to TCP, if there was one.
    pub fell_back: Option<FallbackCause>,
    /// True while the stream does not read.
    pub paused: bool,
    /// Bytes written, without the preface.
    pub sent: u64,
    /// Bytes read, without the answer to the preface.
    pub received: u64,
    /// The time at which the connection was opened or accepted.
    pub opened_at: Instant,
    /// The time at which the first byte was read.
    pub first_byte_at: Option<Instant>,
    /// The time of the most recent read of content.
    pub last_byte_at: Option<Instant>,
    /// The time at which the stream read the end of the peer's stream.
    pub complete_at: Option<Instant>,
    /// The time and the reason of the connection's close.
    pub closed: Option<(Instant, CloseReason)>,
    /// The statistics of the connection at its close.
    pub report: Option<ConnStats>,
    /// The size of the flow. This end declares it when it accepts the connection, or when the stream is released.
    pub flow_size: FlowSize,
    /// The urgency that this end declares for the connection.
    pub urgency: Urgency,
    /// The handshake before the content.
    pub preface: Preface,
    /// True while the stream writes only its first byte. The first byte establishes the connection.
    pub awaiting_release: bool,
    /// True once the sending direction is shut down.
    shut: bool,
    /// The rate limit of [`Role::Capped`].
    bucket: Bucket,
    /// The messages of roles that carry messages.
    messages: Messages,
}

/// The messages of one end, in both directions.
#[derive(Debug, Clone, Default)]
struct Messages {
    out: Outbox,
    inbox: Inbox,
    /// The number of requests made.
    requests_made: usize,
    /// The time at which the answer to the last request was complete; `None` until then.
    answered_at: Option<Instant>,
    session: Progress,
}

impl Stream {
    /// Makes a stream without a connection.
    pub fn new(role: Role) -> Self {
        Stream {
            role,
            ..Stream::default()
        }
    }

    /// Starts the stream: its connection was opened or accepted at `now`.
    pub fn open(&mut self, now: Instant) {
        self.opened_at = now;
        self.bucket = Bucket::starting_at(now);
    }

    /// Returns the first 2^20 complete messages, in the order of completion, except requests that this end has
    /// answered.
    pub fn messages(&self) -> &[Received] {
        &self.messages.inbox.records
    }

    /// Returns the number of messages that were dropped because too many waited to be written.
    pub fn messages_dropped(&self) -> u64 {
        self.messages.out.dropped
    }

    /// Returns whether the connection carries messages.
    fn carries_messages(&self) -> bool {
        matches!(
            self.role,
            Role::Ask(_) | Role::Serve | Role::Send(_) | Role::Collect
        )
    }

    /// Returns the number of bytes that the role wants to have written between the start and `now`.
    fn due(&mut self, now: Instant) -> u64 {
        let due = match self.role {
            Role::Fetch { request } => request,
            Role::Answer { request, size } if self.received >= request => size,
            Role::Reply { size } if self.complete_at.is_some() => size,
            Role::Upload { size } => size,
            Role::Greedy { span } if now < self.opened_at + span => u64::MAX,
            Role::Capped { rate, span } if now < self.opened_at + span => {
                self.sent + self.bucket.fill(now, rate)
            }
            Role::Greedy { .. } | Role::Capped { .. } => self.sent,
            _ => 0,
        };
        if self.awaiting_release {
            due.min(1)
        } else {
            due
        }
    }

    /// Returns whether the stream shuts down its sending direction once all due bytes are written.
    fn may_shut(&self, now: Instant) -> bool {
        if self.awaiting_release {
            return false;
        }
        let peer_closed = self.complete_at.is_some();
        let all_written = self.messages.out.is_empty();
        match &self.role {
            Role::Fetch { .. } | Role::Sink | Role::Reply { .. } => peer_closed,
            Role::Answer { request, .. } => self.received >= *request,
            Role::Upload { .. } => true,
            Role::Greedy { span } | Role::Capped { span, .. } => now >= self.opened_at + *span,
            Role::Ask(exchanges) => {
                all_written && self.messages.inbox.count == exchanges.len() as u64
            }
            Role::Send(session) => {
                let elapsed = now.saturating_since(self.opened_at);
                all_written && session.is_over(&self.messages.session, elapsed)
            }
            Role::Serve | Role::Collect => all_written && peer_closed,
        }
    }

    /// Returns the time at which the stream acts without an event of its connection, if any.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.shut {
            return None;
        }
        match &self.role {
            Role::Greedy { span } => Some(self.opened_at + *span),
            Role::Capped { rate, span } => {
                let chunk = self.bucket.next(*rate);
                chunk.into_iter().chain([self.opened_at + *span]).min()
            }
            Role::Ask(exchanges) => self.next_request_at(exchanges),
            Role::Send(session) => {
                let next = session.next(&self.messages.session);
                next.map(|at| self.opened_at + at)
            }
            _ => None,
        }
    }

    /// Returns the time of the next request, unless an answer is pending.
    fn next_request_at(&self, exchanges: &[Exchange]) -> Option<Instant> {
        let made = self.messages.requests_made;
        let think_from = match made {
            0 => self.opened_at,
            _ => self.messages.answered_at?,
        };
        Some(think_from + exchanges.get(made)?.think)
    }

    /// Writes and reads as much as possible.
    pub fn pump(&mut self, now: Instant, conn: ConnId, stack: &mut Stack, oracle: &mut Oracle) {
        if !self.paused {
            self.read(now, conn, stack, oracle);
        }
        if self.shut || !self.preface.write(now, conn, stack) {
            return;
        }
        // For messages, `may_shut` itself checks whether any are left to write.
        let mut all_due_written = true;
        if self.carries_messages() {
            self.write_messages(now, conn, stack);
        } else {
            all_due_written = self.write(now, conn, stack);
        }
        if all_due_written && self.may_shut(now) {
            self.shut = stack.shutdown(now, conn).is_ok();
        }
    }

    fn read(&mut self, now: Instant, conn: ConnId, stack: &mut Stack, oracle: &mut Oracle) {
        while stack.readable(conn) > 0 {
            let start = self.received;
            let mut content = 0;
            let mut inbox = self.carries_messages().then_some(&mut self.messages.inbox);
            let preface = &mut self.preface;
            let read = stack.read_with(now, conn, |slices| {
                let mut offset = start;
                let mut consumed = 0;
                for slice in slices {
                    // The oracle counts all bytes of the connection, including the answer to the preface.
                    let from = preface.answer_read + offset;
                    oracle.on_read(now, conn, from..from + slice.len() as u64);
                    consumed += slice.len();
                    let slice = preface.strip_answer(slice);
                    let time_and_conn = (now, Some(conn));
                    match &mut inbox {
                        Some(inbox) => inbox.take(time_and_conn, slice, oracle),
                        None => oracle.on_content(time_and_conn, offset, slice, pattern_from),
                    }
                    offset += slice.len() as u64;
                }
                content = offset - start;
                Ok::<_, ApiError>(consumed)
            });
            if read.is_ok() && content > 0 {
                self.received += content;
                self.first_byte_at.get_or_insert(now);
                self.last_byte_at = Some(now);
            }
        }
        if self.complete_at.is_none() && stack.read_finished(conn) {
            self.complete_at = Some(now);
            oracle.on_end(now, conn);
        }
    }

    /// Writes the due bytes. Returns whether all of them are written.
    fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> bool {
        let due = self.due(now);
        while self.sent < due {
            let start = self.sent;
            let max = usize::try_from(due - start).unwrap_or(usize::MAX);
            let written = stack.write_with(now, conn, max, |slices| {
                let mut offset = start;
                for slice in slices.iter_mut() {
                    fill(slice, offset);
                    offset += slice.len() as u64;
                }
                Ok::<_, ApiError>((offset - start) as usize)
            });
            match written {
                Ok(n) if n > 0 => {
                    self.sent += n as u64;
                    self.bucket.take(n as u64);
                }
                _ => return false,
            }
        }
        true
    }

    /// Makes the messages that are due, and writes as much as the send buffer takes.
    fn write_messages(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        loop {
            self.make_messages(now);
            let written = self.messages.out.write(now, conn, stack);
            self.sent += written;
            // A bulk stream without a rate makes its next message when the previous one is written. The loop
            // therefore continues until the send buffer is full.
            if written == 0 || !self.messages.out.is_empty() {
                return;
            }
        }
    }

    fn make_messages(&mut self, now: Instant) {
        let messages = &mut self.messages;
        match &self.role {
            Role::Ask(exchanges) => {
                // The counts are equal if no answer is pending, because each request has one answer.
                let made = messages.requests_made;
                if messages.inbox.count == made as u64 && made > 0 {
                    messages.answered_at.get_or_insert(now);
                }
                let due = self.next_request_at(exchanges);
                if let Some(exchange) = exchanges.get(made)
                    && due.is_some_and(|at| at <= now)
                {
                    self.messages.requests_made += 1;
                    self.messages.answered_at = None;
                    self.messages.out.push(Message {
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
                for ask in messages.inbox.records.drain(..) {
                    let Kind::Ask(len) = ask.message.kind else {
                        panic!("not a request: {:?}", ask.message);
                    };
                    messages.out.push(Message {
                        kind: Kind::Answer,
                        len,
                        ..ask.message
                    });
                }
            }
            Role::Send(session) => {
                let elapsed = now.saturating_since(self.opened_at);
                let Messages {
                    session: made, out, ..
                } = messages;
                session.make_due(made, self.opened_at, elapsed, out);
            }
            _ => {}
        }
    }
}
