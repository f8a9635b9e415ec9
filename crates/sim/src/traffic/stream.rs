//! One end of a connection.

use braid_engine::stats::ConnStats;
use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, CloseReason, ConnId, FallbackCause, Stack, Urgency};
use braid_wire::Instant;

use super::message::Received;
use super::message_state::MessageState;
use super::pace::Bucket;
use super::pattern::{fill, pattern_from};
use super::preface::Preface;
use super::role::Role;
use crate::oracle::Oracle;

/// One end of a connection, which checks every byte that it receives.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The role of this end.
    pub role: Role,
    /// The label by which the owner knows the stream; both ends may have the same.
    pub label: u32,
    /// The cause of the fallback to TCP, if there was one.
    pub fell_back: Option<FallbackCause>,
    /// The stream does not read for now.
    pub paused: bool,
    /// Bytes written.
    pub sent: u64,
    /// Bytes read.
    pub received: u64,
    /// The time at which the connection was opened or accepted.
    pub opened_at: Instant,
    /// The time at which the first byte was read.
    pub first_byte_at: Option<Instant>,
    /// The time at which the last byte so far was read.
    pub last_byte_at: Option<Instant>,
    /// The time at which the last byte was read and the end of the peer's stream seen.
    pub complete_at: Option<Instant>,
    /// The time and reason of the connection's end.
    pub closed: Option<(Instant, CloseReason)>,
    /// The statistics of the connection at its end.
    pub report: Option<ConnStats>,
    /// The size of the flow as this end declares it: when it accepts the connection, or when a held
    /// stream is released.
    pub flow_size: FlowSize,
    /// The urgency of the connection as this end declares it.
    pub urgency: Urgency,
    /// The bytes before all that is counted here.
    pub preface: Preface,
    /// The stream writes only the first byte, which establishes the connection, until this is unset.
    pub awaiting_release: bool,
    shut: bool,
    /// The rate limit of [`Role::Capped`].
    bucket: Bucket,
    /// The messages of roles with messages.
    messages: MessageState,
}

impl Stream {
    /// Makes a stream that has done nothing yet.
    pub fn new(role: Role) -> Self {
        Stream {
            role,
            label: 0,
            fell_back: None,
            paused: false,
            sent: 0,
            received: 0,
            opened_at: Instant::ZERO,
            first_byte_at: None,
            last_byte_at: None,
            complete_at: None,
            closed: None,
            report: None,
            flow_size: FlowSize::Unknown,
            urgency: Urgency::default(),
            preface: Preface::default(),
            awaiting_release: false,
            shut: false,
            bucket: Bucket::default(),
            messages: MessageState::default(),
        }
    }

    /// Notes that the connection was opened or accepted.
    pub fn open(&mut self, now: Instant) {
        self.opened_at = now;
        self.bucket = Bucket::starting_at(now);
    }

    /// Returns the messages that arrived, in order, the first million at most. Requests are not among
    /// them: they are dropped when they are answered.
    pub fn messages(&self) -> &[Received] {
        &self.messages.inbox.records
    }

    /// Returns how many messages were never written because too many waited.
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

    /// Returns the number of bytes that may have been written by `now`.
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

    /// Returns whether the sending side ends once all due bytes have been written.
    fn may_shut(&self, now: Instant) -> bool {
        if self.awaiting_release {
            return false;
        }
        let ended = self.complete_at.is_some();
        match &self.role {
            Role::Fetch { .. } | Role::Sink | Role::Reply { .. } => ended,
            Role::Answer { request, .. } => self.received >= *request,
            Role::Upload { .. } => true,
            Role::Greedy { span } | Role::Capped { span, .. } => now >= self.opened_at + *span,
            role => self.messages.is_over(now, role, self.opened_at, ended),
        }
    }

    /// Returns when the stream acts by itself, if ever.
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
            role => self.messages.next_timeout(role, self.opened_at),
        }
    }

    /// Writes and reads as much as possible.
    pub fn pump(&mut self, now: Instant, conn: ConnId, stack: &mut Stack, oracle: &mut Oracle) {
        if !self.paused {
            self.read(now, conn, stack, oracle);
        }
        if self.shut || !self.preface.write(now, conn, stack) {
            return;
        }
        let written = match self.carries_messages() {
            true => {
                let ends = (conn, &mut *stack);
                self.sent += self.messages.pump(now, &self.role, self.opened_at, ends);
                true
            }
            false => self.write(now, conn, stack),
        };
        if written && self.may_shut(now) {
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
                let mut at = start;
                let mut all = 0;
                for slice in slices {
                    let from = preface.answer_read() + at;
                    oracle.on_read(now, conn, from..from + slice.len() as u64);
                    all += slice.len();
                    let slice = preface.strip_answer(slice);
                    let about = (now, Some(conn));
                    match &mut inbox {
                        Some(inbox) => inbox.take(about, slice, oracle),
                        None => oracle.on_content(about, at, slice, pattern_from),
                    }
                    at += slice.len() as u64;
                }
                content = at - start;
                Ok::<_, ApiError>(all)
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

    /// Writes the due bytes; returns whether the connection took them all.
    fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> bool {
        let due = self.due(now);
        while self.sent < due {
            let start = self.sent;
            let max = usize::try_from(due - start).unwrap_or(usize::MAX);
            let written = stack.write_with(now, conn, max, |slices| {
                let mut at = start;
                for slice in slices.iter_mut() {
                    fill(slice, at);
                    at += slice.len() as u64;
                }
                Ok::<_, ApiError>((at - start) as usize)
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
}
