//! What an oracle has to say.

use core::fmt;

use braid_engine::ConnId;
use braid_wire::Instant;

/// Which rule was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Bytes delivered are the bytes sent, once and in order.
    Bytes,
    /// Nothing is delivered or acknowledged behind a gap, of the stream or of a subflow.
    Gap,
    /// A direction ends at one place, DATA_FIN or FIN, and nothing lies beyond it.
    Fin,
    /// New data stays within the window the peer has announced.
    PeerWindow,
    /// What is in flight stays within the congestion window.
    CongestionWindow,
    /// The engine's count of what is in flight covers what the packets show.
    Flight,
    /// A window announced is not taken back (RFC 9293 section 3.8.6).
    WindowShrunk,
    /// A mapping covers the payload it comes with, and a join names the peer's token.
    Mapping,
    /// What the engine says of a packet is what the packet shows.
    Info,
    /// A timer lies in the future, and leads to something.
    Timer,
    /// A connection ends, or moves on, within a bound.
    Liveness,
    /// An event makes sense where it comes.
    Event,
    /// Memory, connections and subflows stay within their bounds.
    Bound,
}

/// A rule was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Instant,
    /// Which rule.
    pub rule: Rule,
    /// Which connection of the host, where it is about one.
    pub conn: Option<ConnId>,
    /// What was seen.
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

/// Most violations kept by an oracle until they are taken: what follows the first is most often
/// its consequence.
const MAX_KEPT: usize = 16;

/// Violations that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: Vec<Violation>,
}

impl Log {
    /// Notes a violation unless `holds`; `seen` is asked only then.
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

    /// Hands over what was noted.
    pub fn take(&mut self) -> Vec<Violation> {
        core::mem::take(&mut self.kept)
    }
}

/// Notes what is seen of one connection at one time.
pub(super) struct Scribe<'a> {
    pub log: &'a mut Log,
    pub at: Instant,
    pub conn: ConnId,
}

impl Scribe<'_> {
    /// As [`Log::check`].
    pub fn check(&mut self, holds: bool, rule: Rule, seen: impl FnOnce() -> String) {
        self.log
            .check(holds, rule, (self.at, Some(self.conn)), seen);
    }
}
