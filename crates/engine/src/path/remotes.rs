//! Where a peer can be reached.

use core::net::SocketAddr;

/// Most addresses that a peer may announce; further ones are acknowledged and forgotten.
const MAX_ANNOUNCED: usize = 8;

/// An address that the peer announced (RFC 8684 section 3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Announced {
    id: u8,
    addr: SocketAddr,
}

/// The peer's addresses: those the connection was opened with, and those the peer announced.
#[derive(Debug)]
pub(crate) struct Remotes {
    initial: SocketAddr,
    /// The address of the other family that goes with it.
    alt: Option<SocketAddr>,
    /// C flag: no further subflows to the initial address and port (RFC 8684 section 3.1).
    denied: bool,
    announced: Vec<Announced>,
}

impl Remotes {
    pub fn new(initial: SocketAddr, alt: Option<SocketAddr>) -> Self {
        Remotes {
            initial,
            alt,
            denied: false,
            announced: Vec::new(),
        }
    }

    /// The address that the connection was opened with.
    pub fn initial(&self) -> SocketAddr {
        self.initial
    }

    /// Where the connection may be opened.
    pub fn known(&self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.initial), self.alt].into_iter().flatten()
    }

    /// No further subflows go to the initial address and port.
    pub fn deny_initial(&mut self) {
        self.denied = true;
    }

    /// Where further subflows may go, what is sure first.
    // Conforms: 8684-3.1-6, 8684-3.9.1-1
    pub fn joinable(&self) -> impl Iterator<Item = SocketAddr> {
        let denied = self.denied.then_some(self.initial);
        let known = self.known().filter(move |addr| Some(*addr) != denied);
        known.chain(self.announced())
    }

    /// What the peer announced beside what was known.
    pub fn announced(&self) -> impl Iterator<Item = SocketAddr> {
        self.announced.iter().map(|announced| announced.addr)
    }

    /// The peer announces `addr` as its address number `id`. An id that stands for another address
    /// keeps it until that is withdrawn; the initial address may be joined from now on. Returns
    /// whether the address is new.
    // Conforms: 8684-3.2-4, 8684-3.4.1-2, 8684-3.4.1-9
    pub fn learn(&mut self, id: u8, addr: SocketAddr) -> bool {
        if addr == self.initial {
            self.denied = false;
            return false;
        }
        let there = |a: &Announced| a.id == id || a.addr == addr;
        let known = self.known().any(|known| known == addr);
        if known || self.announced.iter().any(there) || self.announced.len() >= MAX_ANNOUNCED {
            return false;
        }
        self.announced.push(Announced { id, addr });
        true
    }

    /// The peer's address number `id` is gone; which it was, where that is known.
    // Conforms: 8684-3.2-5, 8684-3.4.2-3, 8684-3.4.2-7
    pub fn forget(&mut self, id: u8) -> Option<SocketAddr> {
        if id == 0 {
            self.denied = true;
            return Some(self.initial);
        }
        let at = self.announced.iter().position(|a| a.id == id)?;
        Some(self.announced.remove(at).addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> SocketAddr {
        ([192, 0, 2, n], 80).into()
    }

    // Conforms: 8684-3.4.1-2, 8684-3.4.2-7
    #[test]
    fn ids_keep_their_address_until_it_is_withdrawn() {
        let mut remotes = Remotes::new(addr(1), None);
        assert!(remotes.learn(2, addr(2)));
        assert!(!remotes.learn(2, addr(3)) && !remotes.learn(3, addr(2)));
        assert!(!remotes.learn(4, addr(1)));
        assert_eq!(remotes.forget(2), Some(addr(2)));
        assert_eq!(remotes.forget(2), None);
        assert!(remotes.learn(2, addr(3)));
        let joinable: Vec<SocketAddr> = remotes.joinable().collect();
        assert_eq!(joinable, [addr(1), addr(3)]);
        remotes.deny_initial();
        assert!(remotes.joinable().eq([addr(3)]));
        remotes.learn(0, addr(1));
        assert!(remotes.joinable().eq([addr(1), addr(3)]));
        // Id 0 is the initial address (RFC 8684 section 3.2).
        assert_eq!(remotes.forget(0), Some(addr(1)));
        assert!(remotes.joinable().eq([addr(3)]));
    }

    // Conforms: 8684-3.4.1-9
    #[test]
    fn a_peer_cannot_announce_without_end() {
        let mut remotes = Remotes::new(addr(0), None);
        let taken = (1..=255).filter(|n| remotes.learn(*n, addr(*n)));
        assert_eq!(taken.count(), MAX_ANNOUNCED);
    }
}
