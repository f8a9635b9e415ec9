//! Classic explicit congestion notification (RFC 3168): the negotiation, and the echo of marks to the peer.
//! [`Sender`](super::send::Sender) handles the effect of the peer's echoes on the window.

use braid_wire::tcp::Flags;

use crate::Ecn;

/// The ECN state of one subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EcnState {
    /// True if both ends have agreed on ECN in the handshake.
    agreed: bool,
    /// True if our payload may be sent as ECT, so that routers can mark it.
    sends_ect: bool,
    /// True from the arrival of a mark until the peer reports by CWR that it has reduced its window.
    echoes_ce: bool,
}

impl EcnState {
    /// Returns the ECN flags of the SYN with the number `tries`, counted from 1. Only the first SYN offers ECN. If
    /// it is not answered, a middlebox may be dropping SYNs that offer ECN (RFC 3168 section 6.1.1.1).
    // Conforms: 3168-6.1.1-1, 3168-6.1.1.1-1
    pub fn of_syn(setting: Ecn, tries: u32) -> Flags {
        match setting {
            Ecn::Ask if tries <= 1 => Flags::ECE | Flags::CWR,
            _ => Flags::EMPTY,
        }
    }

    /// Returns the ECN flags of a SYN/ACK.
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
        self.agreed = setting != Ecn::Off && offers_ecn(flags);
        self.sends_ect = self.agreed;
    }

    /// Processes the flags of the peer's repeated SYN. If this SYN no longer offers ECN, we echo marks but send
    /// Not-ECT.
    // Conforms: 3168-6.1.1-4
    pub fn on_syn_again(&mut self, flags: Flags) {
        self.sends_ect &= offers_ecn(flags);
    }

    /// Processes the flags of the SYN/ACK; our SYN was sent `tries` times. Some peers reflect the flags of the SYN
    /// (ECE and CWR), which is no agreement.
    // Conforms: 3168-6.1.1-1, 3168-6.1.1-3
    pub fn on_syn_ack(&mut self, setting: Ecn, flags: Flags, tries: u32) {
        let accepts = flags.contains(Flags::ECE) && !flags.contains(Flags::CWR);
        self.agreed = setting == Ecn::Ask && accepts;
        // If the SYN was repeated, the peer may have received only a SYN that did not offer ECN.
        self.sends_ect = self.agreed && tries <= 1;
    }

    /// Returns whether our payload may be sent as ECT. Incoming marks are echoed in any case if ECN was agreed on.
    pub fn sends_ect(self) -> bool {
        self.sends_ect
    }

    /// Processes a segment with payload; `marked` is set if a router marked it (CE).
    // Conforms: 3168-6.1.3-1, 3168-6.1.3-2
    pub fn on_data(&mut self, flags: Flags, marked: bool) {
        self.echoes_ce &= !flags.contains(Flags::CWR);
        self.echoes_ce |= marked && self.agreed;
    }

    /// Returns the ECN flags of an acknowledgement.
    // Conforms: 3168-6.1.3-1
    pub fn of_ack(self) -> Flags {
        match self.echoes_ce {
            true => Flags::ECE,
            false => Flags::EMPTY,
        }
    }
}

/// Returns whether a SYN with these flags offers ECN.
fn offers_ecn(syn: Flags) -> bool {
    syn.contains(Flags::ECE | Flags::CWR)
}
