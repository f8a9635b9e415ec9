//! Explicit congestion notification, classic (RFC 3168): what was agreed on, and what the peer is told of
//! marks. What a mark of the peer's does to the window is part of [`Sender`](super::send::Sender).

use braid_wire::tcp::Flags;

use crate::Ecn;

/// ECN of one subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    agreed: bool,
    /// Payload may be marked.
    bears: bool,
    /// A mark came, and the peer has not said since that it sends less.
    echoes: bool,
}

impl Marks {
    /// Flags of a SYN that is sent for the `tries`-th time. Only the first one asks: where it is not
    /// answered, something on the way may drop those that do (RFC 3168 section 6.1.1.1).
    // Conforms: 3168-6.1.1-1, 3168-6.1.1.1-1
    pub fn of_syn(setting: Ecn, tries: u32) -> Flags {
        match setting {
            Ecn::Ask if tries <= 1 => Flags::ECE | Flags::CWR,
            _ => Flags::EMPTY,
        }
    }

    /// Flags of a SYN/ACK.
    // Conforms: 3168-6.1.1-2
    pub fn of_syn_ack(self) -> Flags {
        match self.agreed {
            true => Flags::ECE,
            false => Flags::EMPTY,
        }
    }

    /// The peer's SYN had these flags.
    // Conforms: 3168-6.1.1-2
    pub fn on_syn(&mut self, setting: Ecn, flags: Flags) {
        self.agreed = setting != Ecn::Off && asks(flags);
        self.bears = self.agreed;
    }

    /// It came again, with these: where it does not ask any more, marks are told but not asked for.
    // Conforms: 3168-6.1.1-4
    pub fn on_syn_again(&mut self, flags: Flags) {
        self.bears &= asks(flags);
    }

    /// The answer to our SYN, which left `tries` times, had these. Some peers send back what they got:
    /// that is no answer.
    // Conforms: 3168-6.1.1-1, 3168-6.1.1-3
    pub fn on_syn_ack(&mut self, setting: Ecn, flags: Flags, tries: u32) {
        let answers = flags.contains(Flags::ECE) && !flags.contains(Flags::CWR);
        self.agreed = setting == Ecn::Ask && answers;
        // The peer may have seen one of those that did not ask.
        self.bears = self.agreed && tries <= 1;
    }

    /// Whether payload may be marked. Where not, marks that come are told all the same.
    pub fn bears(self) -> bool {
        self.bears
    }

    /// A segment with payload came, marked or not.
    // Conforms: 3168-6.1.3-1, 3168-6.1.3-2
    pub fn on_data(&mut self, flags: Flags, marked: bool) {
        self.echoes &= !flags.contains(Flags::CWR);
        self.echoes |= marked && self.agreed;
    }

    /// Flags of an acknowledgement.
    // Conforms: 3168-6.1.3-1
    pub fn of_ack(self) -> Flags {
        match self.echoes {
            true => Flags::ECE,
            false => Flags::EMPTY,
        }
    }
}

fn asks(syn: Flags) -> bool {
    syn.contains(Flags::ECE | Flags::CWR)
}
