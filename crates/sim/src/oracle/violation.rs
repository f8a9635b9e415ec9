//! The rules that oracles check, and violations of them.

use core::fmt;

use braid_engine::ConnId;
use braid_wire::Instant;

/// A rule that oracles check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The bytes delivered are the bytes sent, once and in order.
    Bytes,
    /// No byte behind a gap is delivered or acknowledged, neither in the stream nor in a subflow.
    Gap,
    /// The position of DATA_FIN or FIN never changes, and no byte lies beyond it.
    Fin,
    /// New data stays within the window that the peer has announced.
    PeerWindow,
    /// The data in flight stays within the congestion window.
    CongestionWindow,
    /// The engine's count of bytes in flight is at least the number of unacknowledged bytes that the oracle saw.
    Flight,
    /// The right edge of an announced window does not move left (RFC 9293 section 3.8.6).
    WindowShrunk,
    /// A mapping covers its payload, and an MP_JOIN has the token of the peer.
    Mapping,
    /// The engine's `TransmitInfo` of a packet matches the packet.
    Info,
    /// A timer lies in the future, and an expired timer has an effect.
    Timer,
    /// A connection makes progress or ends within a bounded time.
    Liveness,
    /// An event fits the state of its connection.
    Event,
    /// Memory, connections and subflows stay within the configured bounds.
    Bound,
}

/// The violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The time of the violation.
    pub at: Instant,
    /// The rule that was broken.
    pub rule: Rule,
    /// The connection of the host, if the rule concerns one.
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

/// The maximum number of violations that an oracle keeps for [`ViolationLog::take`]. 16 is a guess: later
/// violations are usually consequences of the first.
const MAX_KEPT: usize = 16;

/// Violations not taken yet.
#[derive(Debug, Default)]
pub(super) struct ViolationLog {
    kept: Vec<Violation>,
}

impl ViolationLog {
    /// Returns a checker at the time `at`, of a connection or of the whole engine.
    pub fn checker(&mut self, at: Instant, conn: Option<ConnId>) -> Checker<'_> {
        let log = self;
        Checker { log, at, conn }
    }

    /// Returns and removes the violations recorded so far.
    pub fn take(&mut self) -> Vec<Violation> {
        core::mem::take(&mut self.kept)
    }
}

/// A violation log for checks at one time.
pub(super) struct Checker<'a> {
    log: &'a mut ViolationLog,
    pub at: Instant,
    conn: Option<ConnId>,
}

impl Checker<'_> {
    /// Records a violation unless `holds`. `seen` makes the description, and is called only if there is a
    /// violation.
    pub fn check(&mut self, holds: bool, rule: Rule, seen: impl FnOnce() -> String) {
        if !holds && self.log.kept.len() < MAX_KEPT {
            self.log.kept.push(Violation {
                at: self.at,
                rule,
                conn: self.conn,
                seen: seen(),
            });
        }
    }
}
