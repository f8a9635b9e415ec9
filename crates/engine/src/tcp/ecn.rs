//! Classic explicit congestion notification (RFC 3168): the negotiation, and the echo of marks to the peer.
//! [`Sender`](super::send::Sender) handles the effect of the peer's echoes on the window.

use braid_wire::tcp::Flags;

use crate::Ecn;

/// The ECN state of one subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EcnState {
    agreed: bool,
    /// Set if our payload may be marked.
    sends_ect: bool,
    /// Set from the arrival of a mark until the peer reports that it sends less (CWR).
    echoes_ce: bool,
}

impl EcnState {
    /// Returns the flags of a SYN that is sent for the `tries`-th time. Only the first one asks: if it is
    /// not answered, a middlebox may drop SYNs that do (RFC 3168 section 6.1.1.1).
    // Conforms: 3168-6.1.1-1, 3168-6.1.1.1-1
    pub fn of_syn(setting: Ecn, tries: u32) -> Flags {
        match setting {
            Ecn::Ask if tries <= 1 => Flags::ECE | Flags::CWR,
            _ => Flags::EMPTY,
        }
    }

    /// Returns the flags of a SYN/ACK.
    // Conforms: 3168-6.1.1-2
    pub fn of_syn_ack(self) -> Flags {
        match self.agreed {
            true => Flags::ECE,
            false => Flags::EMPTY,
        }
    }

    /// Processes the flags of the peer's SYN.
    // Conforms: 3168-6.1.1-2
    pub fn on_syn(&mut self, setting: Ecn, flags: Flags) {
        self.agreed = setting != Ecn::Off && asks(flags);
        self.sends_ect = self.agreed;
    }

    /// Processes the flags of the peer's repeated SYN: if it does not ask any more, we echo marks but send
    /// Not-ECT.
    // Conforms: 3168-6.1.1-4
    pub fn on_syn_again(&mut self, flags: Flags) {
        self.sends_ect &= asks(flags);
    }

    /// Processes the flags of the answer to our SYN, which left `tries` times. Some peers reflect the flags
    /// that they received, which is no agreement.
    // Conforms: 3168-6.1.1-1, 3168-6.1.1-3
    pub fn on_syn_ack(&mut self, setting: Ecn, flags: Flags, tries: u32) {
        let answers = flags.contains(Flags::ECE) && !flags.contains(Flags::CWR);
        self.agreed = setting == Ecn::Ask && answers;
        // The peer may have seen only a SYN that did not ask.
        self.sends_ect = self.agreed && tries <= 1;
    }

    /// Returns whether our payload may be marked. Incoming marks are echoed in any case.
    pub fn sends_ect(self) -> bool {
        self.sends_ect
    }

    /// Processes a segment with payload, marked or not.
    // Conforms: 3168-6.1.3-1, 3168-6.1.3-2
    pub fn on_data(&mut self, flags: Flags, marked: bool) {
        self.echoes_ce &= !flags.contains(Flags::CWR);
        self.echoes_ce |= marked && self.agreed;
    }

    /// Returns the flags of an acknowledgement.
    // Conforms: 3168-6.1.3-1
    pub fn of_ack(self) -> Flags {
        match self.echoes_ce {
            true => Flags::ECE,
            false => Flags::EMPTY,
        }
    }
}

fn asks(syn: Flags) -> bool {
    syn.contains(Flags::ECE | Flags::CWR)
}
