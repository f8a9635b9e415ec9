//! The encoding of hints, which a box sends to its server with a request.
//!
//! Hints are a list of fields. Each field has a kind (1 byte), a length (1 byte) and a value:
//!
//! | kind | value |
//! | --- | --- |
//! | 1 | 1 byte: 1 predicted, 2 read, 3 declared; 8 bytes, big endian: size of the larger direction, bytes |
//! | 2 | urgency, 1 byte, 0 to 7 |
//! | 3 | deadline, 4 bytes, milliseconds, big endian |
//! | 4 | name of a strategy, 1 to 64 bytes of ASCII |
//!
//! Unknown kinds are skipped, so that a box of a later version may send more kinds. If a kind occurs several
//! times, the last field applies.

use core::time::Duration;

use braid_engine::strategy::{FlowSize, Strategy};
use braid_engine::{ConnId, Stack, Urgency};
use braid_wire::Instant;

use super::FlowHints;

// Kinds of fields.
const SIZE: u8 = 1;
const URGENCY: u8 = 2;
const DEADLINE: u8 = 3;
const STRATEGY: u8 = 4;

// Sources of a size.
const PREDICTED: u8 = 1;
const READ: u8 = 2;
const DECLARED: u8 = 3;

/// Maximum length of a strategy's name with its settings, bytes. A guess.
const MAX_NAME_LEN: usize = 64;

impl FlowHints {
    /// Encodes the hints for the server. The server needs them to schedule the bytes to the user. The result has
    /// at most 86 bytes: fields with values of 9, 1, 4 and 64 bytes, each with 2 bytes before it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut field = |kind, value: &[u8]| {
            out.extend([kind, u8::try_from(value.len()).unwrap_or(u8::MAX)]);
            out.extend_from_slice(value);
        };
        let source = match self.size {
            FlowSize::Unknown => None,
            FlowSize::Predicted(bytes) => Some((PREDICTED, bytes)),
            FlowSize::Read(bytes) => Some((READ, bytes)),
            FlowSize::Declared(bytes) => Some((DECLARED, bytes)),
        };
        if let Some((source, bytes)) = source {
            let [a, b, c, d, e, f, g, h] = bytes.to_be_bytes();
            field(SIZE, &[source, a, b, c, d, e, f, g, h]);
        }
        if let Some(urgency) = self.urgency {
            field(URGENCY, &[urgency.level()]);
        }
        if let Some(deadline) = self.deadline {
            let ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
            field(DEADLINE, &ms.to_be_bytes());
        }
        if let Some(name) = self.strategy.as_deref().filter(|name| is_name(name)) {
            field(STRATEGY, name.as_bytes());
        }
        out
    }

    /// Decodes hints. Leaves out fields that are malformed or out of range, and returns their number too.
    pub fn decode(mut bytes: &[u8]) -> (Self, u64) {
        let (mut hints, mut bad) = (FlowHints::default(), 0);
        while let [kind, len, rest @ ..] = bytes {
            let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else {
                break;
            };
            bytes = rest;
            bad += u64::from(hints.set(*kind, value).is_none());
        }
        (hints, bad + u64::from(!bytes.is_empty()))
    }

    /// Creates the strategy that the hints name. `None` if they name none, or one that this version does not have.
    pub(crate) fn strategy(&self) -> Option<Box<dyn Strategy>> {
        let name = self.strategy.as_deref()?;
        braid_strategy::by_name(name).ok()
    }

    /// Sets the hints of a connection's next user. The hints of an earlier user no longer apply.
    pub(crate) fn begin(&self, now: Instant, conn: ConnId, stack: &mut Stack) {
        // A connection that is already gone reports itself by its `Closed` event.
        let _ = stack.set_urgency(now, conn, self.urgency.unwrap_or_default());
        self.apply(now, conn, stack);
    }

    /// Passes the hints on to the engine. The size is always set. Other properties without a hint stay as they
    /// are.
    pub(crate) fn apply(&self, now: Instant, conn: ConnId, stack: &mut Stack) {
        // A connection that is already gone reports itself by its `Closed` event.
        let _ = stack.set_flow_size(now, conn, self.size);
        if let Some(urgency) = self.urgency {
            let _ = stack.set_urgency(now, conn, urgency);
        }
        if let Some(strategy) = self.strategy() {
            let _ = stack.set_strategy(now, conn, strategy);
        }
    }

    /// Sets the hint of one field. Returns `None` if the field is malformed.
    fn set(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        match kind {
            SIZE => {
                let (source, bytes) = value.split_first()?;
                let bytes = u64::from_be_bytes(bytes.try_into().ok()?);
                self.size = match *source {
                    PREDICTED => FlowSize::Predicted(bytes),
                    READ => FlowSize::Read(bytes),
                    DECLARED => FlowSize::Declared(bytes),
                    _ => return None,
                };
            }
            URGENCY => {
                let [level] = value else { return None };
                self.urgency = Some(Urgency::new(*level)?);
            }
            DEADLINE => {
                let ms = u32::from_be_bytes(value.try_into().ok()?);
                self.deadline = Some(Duration::from_millis(ms.into()));
            }
            STRATEGY => {
                let name = core::str::from_utf8(value).ok().filter(|n| is_name(n))?;
                self.strategy = Some(name.to_owned());
            }
            _ => {}
        }
        Some(())
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}
