//! Violations, and the rules that they break.

use core::fmt;

use braid_engine::ConnId;
use braid_wire::Instant;

/// The rule that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Bytes delivered are the bytes sent, once and in order.
    Bytes,
    /// Nothing is delivered or acknowledged behind a gap, of the stream or of a subflow.
    Gap,
    /// A direction ends at one place, DATA_FIN or FIN, and nothing lies beyond it.
    Fin,
    /// New data stays within the window that the peer has announced.
    PeerWindow,
    /// The data in flight stays within the congestion window.
    CongestionWindow,
    /// The engine's count of data in flight covers the packets seen.
    Flight,
    /// An announced window is not taken back (RFC 9293 section 3.8.6).
    WindowShrunk,
    /// A mapping covers its payload, and a join names the peer's token.
    Mapping,
    /// The engine describes a packet as it is.
    Info,
    /// A timer lies in the future, and has an effect.
    Timer,
    /// A connection ends, or makes progress, within a bound.
    Liveness,
    /// An event comes where it is possible.
    Event,
    /// Memory, connections and subflows stay within their bounds.
    Bound,
}

/// The violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The time of the violation.
    pub at: Instant,
    /// The rule that was broken.
    pub rule: Rule,
    /// The connection of the host, if the rule is about one.
    pub conn: Option<ConnId>,
    /// A description of the observation.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} s, {:?}: {}", self.at, self.rule, self.seen)?;
        match self.conn {
            Some(conn) => write!(f, " ({conn:?})"),
            None => Ok(()),
        }
    }
}

/// Most violations that an oracle keeps until they are taken; later ones mostly follow from the first.
const MAX_KEPT: usize = 16;

/// Violations not taken yet.
#[derive(Debug, Default)]
pub(super) struct ViolationLog {
    kept: Vec<Violation>,
}

impl ViolationLog {
    /// Notes a violation unless `holds`; only then calls `seen`.
    pub fn check(
        &mut self,
        holds: bool,
        rule: Rule,
        (at, conn): (Instant, Option<ConnId>),
        seen: impl FnOnce() -> String,
    ) {
        if !holds && self.kept.len() < MAX_KEPT {
            self.kept.push(Violation {
                at,
                rule,
                conn,
                seen: seen(),
            });
        }
    }

    /// Takes the violations noted so far.
    pub fn take(&mut self) -> Vec<Violation> {
        core::mem::take(&mut self.kept)
    }
}

/// A log with the connection and the time of its next entries.
pub(super) struct Checker<'a> {
    pub log: &'a mut ViolationLog,
    pub at: Instant,
    pub conn: ConnId,
}

impl Checker<'_> {
    /// Notes a violation like [`ViolationLog::check`].
    pub fn check(&mut self, holds: bool, rule: Rule, seen: impl FnOnce() -> String) {
        self.log
            .check(holds, rule, (self.at, Some(self.conn)), seen);
    }
}
