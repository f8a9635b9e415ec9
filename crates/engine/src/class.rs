//! What is sent first: streams of one connection, and how urgent their bytes are.

use braid_wire::Instant;

/// How urgent data is, as the priority of an HTTP response (RFC 9218 section 4.1): 0 is the most
/// urgent, 7 the least, 3 the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Urgency(u8);

impl Urgency {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// Goes before all others.
    pub const MOST: Urgency = Urgency(0);
    /// Lets all others pass.
    pub const LEAST: Urgency = Urgency(7);

    /// The urgency `level`; `None` above 7.
    pub const fn new(level: u8) -> Option<Urgency> {
        match level {
            0..=7 => Some(Urgency(level)),
            _ => None,
        }
    }

    /// 0 (most urgent) to 7.
    pub const fn level(self) -> u8 {
        self.0
    }

    /// The same as the place in an array of [`Urgency::COUNT`].
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Urgency(3)
    }
}

/// What the bytes of one write belong to. Streams are the application's: it tells the reader what
/// belongs to which. Data written without a class is of stream 0 and default urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Class {
    /// The stream. The bytes of one stream are sent in the order in which they were written,
    /// however their urgency changes.
    pub stream: u32,
    /// How urgent they are.
    pub urgency: Urgency,
    /// When they are of no use any more: a write of which nothing was sent by then is dropped,
    /// whole. The reader has to notice by itself.
    pub deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgencies_are_those_of_rfc_9218() {
        assert_eq!(Urgency::new(0), Some(Urgency::MOST));
        assert_eq!(Urgency::new(7), Some(Urgency::LEAST));
        assert_eq!(Urgency::new(8), None);
        assert_eq!(Urgency::default().level(), 3);
        assert!(Urgency::MOST < Urgency::default());
        assert_eq!(Class::default().stream, 0);
    }
}
