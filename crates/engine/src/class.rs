//! The class of written bytes, which decides the order of sending: their stream, urgency and deadline.

use braid_wire::Instant;

/// The urgency of data, with the levels of HTTP's `urgency` (RFC 9218 section 4.1): 0 is the most urgent, 7 the
/// least urgent, and 3 the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Urgency(u8);

impl Urgency {
    /// The number of levels.
    pub const COUNT: usize = 8;
    /// The urgency of data that is sent before all other data.
    pub const MOST_URGENT: Urgency = Urgency(0);
    /// The urgency of data that is sent after all other data.
    pub const LEAST_URGENT: Urgency = Urgency(7);

    /// Returns the urgency of this level; `None` if the level is above 7.
    pub const fn new(level: u8) -> Option<Urgency> {
        match level {
            0..=7 => Some(Urgency(level)),
            _ => None,
        }
    }

    /// Returns the level, from 0 (most urgent) to 7.
    pub const fn level(self) -> u8 {
        self.0
    }

    /// Returns the index in an array of [`Urgency::COUNT`] elements.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Urgency(3)
    }
}

/// The class of the bytes of one write. Only the sender knows streams: the application has to frame its data so
/// that the reader can tell the streams apart. Data written without a class has stream 0 and the connection's
/// urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Class {
    /// The stream. The bytes of one stream are sent in the order in which they were written, however their
    /// urgency changes.
    pub stream: u32,
    /// The urgency of the bytes.
    pub urgency: Urgency,
    /// The time after which the bytes are of no use. If no byte of a write was sent by then, the write is dropped
    /// as a whole, and the reader is not told.
    pub deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgencies_are_those_of_rfc_9218() {
        assert_eq!(Urgency::new(0), Some(Urgency::MOST_URGENT));
        assert_eq!(Urgency::new(7), Some(Urgency::LEAST_URGENT));
        assert_eq!(Urgency::new(8), None);
        assert_eq!(Urgency::default().level(), 3);
        assert!(Urgency::MOST_URGENT < Urgency::default());
        assert_eq!(Class::default().stream, 0);
    }
}
