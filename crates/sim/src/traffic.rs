//! What the connections of a host carry.

use braid_engine::stats::ConnStats;
use braid_engine::{ApiError, CloseReason, ConnId, Stack};
use braid_wire::Instant;

use crate::oracle::Oracle;

/// What one end of a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

/// One end of a connection, checking every byte it receives.
#[derive(Debug, Clone)]
pub struct Stream {
    /// What it does.
    pub role: Role,
    /// By which its owner knows it; both ends may bear the same.
    pub label: u32,
    /// It does not read for now.
    pub paused: bool,
    /// Bytes written.
    pub sent: u64,
    /// Bytes read.
    pub received: u64,
    /// When the connection was opened or accepted.
    pub opened_at: Instant,
    /// When the first byte was read.
    pub first_byte_at: Option<Instant>,
    /// When the last byte so far was read.
    pub last_byte_at: Option<Instant>,
    /// When the last byte was read and the end of the peer's stream seen.
    pub complete_at: Option<Instant>,
    /// How and when the connection ended.
    pub closed: Option<(Instant, CloseReason)>,
    /// What the connection had moved when it ended.
    pub report: Option<ConnStats>,
    /// Bytes the accepting end of the connection declares the flow to have.
    pub flow_size: Option<u64>,
    /// Writes only the first byte, which establishes the connection: more when this is unset.
    pub held: bool,
    shut: bool,
}

/// The byte at `offset` of every stream: depends on its place, so that no shift goes unnoticed.
pub fn pattern(offset: u64) -> u8 {
    PATTERN[(offset % PERIOD) as usize]
}

/// A prime, so that no block boundary falls on the same place twice.
const PERIOD: u64 = 8_191;

static PATTERN: [u8; PERIOD as usize] = {
    let mut bytes = [0; PERIOD as usize];
    let mut state: u32 = 0x9e37_79b9;
    let mut i = 0;
    while i < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[i] = (state >> 24) as u8;
        i += 1;
    }
    bytes
};

impl Stream {
    /// A stream that has done nothing yet.
    pub fn new(role: Role) -> Self {
        Stream {
            role,
            label: 0,
            paused: false,
            sent: 0,
            received: 0,
            opened_at: Instant::ZERO,
            first_byte_at: None,
            last_byte_at: None,
            complete_at: None,
            closed: None,
            report: None,
            flow_size: None,
            held: false,
            shut: false,
        }
    }

    /// Bytes that may be written by now.
    fn due(&self) -> u64 {
        let due = match self.role {
            Role::Fetch { request } => request,
            Role::Answer { request, size } if self.received >= request => size,
            Role::Reply { size } if self.complete_at.is_some() => size,
            Role::Answer { .. } | Role::Sink | Role::Reply { .. } => 0,
            Role::Upload { size } => size,
        };
        if self.held { due.min(1) } else { due }
    }

    /// Whether the sending side ends once what is due has been written.
    fn may_shut(&self) -> bool {
        if self.held {
            return false;
        }
        match self.role {
            Role::Fetch { .. } | Role::Sink | Role::Reply { .. } => self.complete_at.is_some(),
            Role::Answer { request, .. } => self.received >= request,
            Role::Upload { .. } => true,
        }
    }

    /// When the stream acts by itself, if ever.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Writes and reads what can be.
    pub fn pump(&mut self, now: Instant, conn: ConnId, stack: &mut Stack, oracle: &mut Oracle) {
        if !self.paused {
            self.read(now, conn, stack, oracle);
        }
        self.write(now, conn, stack);
        if !self.shut && self.sent == self.due() && self.may_shut() {
            self.shut = stack.shutdown(now, conn).is_ok();
        }
    }

    fn read(&mut self, now: Instant, conn: ConnId, stack: &mut Stack, oracle: &mut Oracle) {
        while stack.readable(conn) > 0 {
            let start = self.received;
            let read = stack.read_with(now, conn, |slices| {
                let mut at = start;
                for slice in slices {
                    oracle.on_bytes(at, slice, pattern);
                    at += slice.len() as u64;
                }
                Ok::<_, ApiError>((at - start) as usize)
            });
            self.received += read.unwrap_or(0) as u64;
            self.first_byte_at.get_or_insert(now);
            self.last_byte_at = Some(now);
        }
        if self.complete_at.is_none() && stack.read_finished(conn) {
            self.complete_at = Some(now);
        }
    }

    fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        while self.sent < self.due() {
            let start = self.sent;
            let max = usize::try_from(self.due() - start).unwrap_or(usize::MAX);
            let written = stack.write_with(now, conn, max, |slices| {
                let mut at = start;
                for slice in slices.iter_mut() {
                    fill(slice, at);
                    at += slice.len() as u64;
                }
                Ok::<_, ApiError>((at - start) as usize)
            });
            match written {
                Ok(n) if n > 0 => self.sent += n as u64,
                _ => return,
            }
        }
    }
}

fn fill(mut out: &mut [u8], mut at: u64) {
    while !out.is_empty() {
        let from = (at % PERIOD) as usize;
        let take = out.len().min(PATTERN.len() - from);
        let (head, tail) = out.split_at_mut(take);
        head.copy_from_slice(&PATTERN[from..from + take]);
        out = tail;
        at += take as u64;
    }
}
