//! The addresses at which a peer can be reached.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_wire::Instant;

/// The maximum number of addresses that a peer may announce; further announcements are echoed and ignored. The
/// value is a guess: a host rarely has more addresses on all its links together.
const MAX_ANNOUNCED: usize = 8;
/// The interval between joins to announced addresses after the first [`MAX_ANNOUNCED`] joins. The value is a
/// guess. Without it, a peer that keeps announcing and withdrawing addresses could make this end flood third
/// parties with SYNs.
const ANNOUNCED_JOIN_INTERVAL: Duration = Duration::from_secs(10);
/// The time by which joins may run ahead of [`ANNOUNCED_JOIN_INTERVAL`]. This time allows [`MAX_ANNOUNCED`] joins
/// at once.
const ANNOUNCED_JOIN_BURST: Duration =
    ANNOUNCED_JOIN_INTERVAL.saturating_mul(MAX_ANNOUNCED as u32 - 1);

/// An address that the peer announced (RFC 8684 section 3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Announced {
    id: u8,
    addr: SocketAddr,
    /// The time before which the address is not joined.
    not_before: Instant,
}

/// Returns whether an announced address can be the address of a single remote host. The peer chooses the hosts to
/// which this end sends SYNs, so addresses of this machine, of the local link, or of many hosts are refused. Only
/// a peer with a loopback address may announce further loopback addresses.
fn can_be_joined(addr: SocketAddr, initial: SocketAddr) -> bool {
    let is_host = match addr.ip() {
        ip if ip.is_loopback() => initial.ip().is_loopback(),
        // "This network", multicast, reserved and broadcast.
        IpAddr::V4(ip) => !ip.is_link_local() && !matches!(ip.octets()[0], 0 | 224..),
        // `to_ipv4` covers the unspecified address, and IPv4-mapped and IPv4-compatible addresses.
        IpAddr::V6(ip) => {
            !ip.is_unicast_link_local() && !ip.is_multicast() && ip.to_ipv4().is_none()
        }
    };
    is_host && addr.port() != 0
}

/// The peer's addresses: those that the connection was opened with, and those that the peer announced.
#[derive(Debug)]
pub(crate) struct Remotes {
    initial: SocketAddr,
    /// The peer's address of the other family.
    alt: Option<SocketAddr>,
    /// True if the peer set the C flag: further subflows go only to announced addresses (RFC 8684 section 3.1).
    /// This applies to the addresses of both families, because the connection may have been opened to either.
    initial_denied: bool,
    /// True if the peer has withdrawn the initial address.
    initial_withdrawn: bool,
    announced: Vec<Announced>,
    /// The time of the next join to an announced address if all these joins kept to [`ANNOUNCED_JOIN_INTERVAL`].
    next_paced_join: Instant,
}

impl Remotes {
    pub fn new(initial: SocketAddr, alt: Option<SocketAddr>) -> Self {
        Remotes {
            initial,
            alt,
            initial_denied: false,
            initial_withdrawn: false,
            announced: Vec::new(),
            next_paced_join: Instant::ZERO,
        }
    }

    /// Returns the address that the connection was opened with.
    pub fn initial(&self) -> SocketAddr {
        self.initial
    }

    /// Returns the addresses to which the connection may be opened.
    pub fn known(&self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.initial), self.alt].into_iter().flatten()
    }

    /// Restricts further subflows to announced addresses.
    pub fn deny_initial(&mut self) {
        self.initial_denied = true;
    }

    /// Returns the addresses for further subflows. The addresses that the connection was opened with come first,
    /// since they are the most reliable.
    // Conforms: 8684-3.1-6, 8684-3.9.1-1
    pub fn joinable(&self) -> impl Iterator<Item = SocketAddr> {
        let withdrawn = self.initial_withdrawn.then_some(self.initial);
        let known = self.known().filter(move |addr| Some(*addr) != withdrawn);
        let known = (!self.initial_denied).then_some(known);
        known.into_iter().flatten().chain(self.announced())
    }

    /// Returns the addresses that the peer announced in addition to the [known](Self::known) ones.
    pub fn announced(&self) -> impl Iterator<Item = SocketAddr> {
        self.announced.iter().map(|announced| announced.addr)
    }

    /// Returns whether `addr` is still one of the peer's addresses.
    pub fn has(&self, addr: SocketAddr) -> bool {
        self.known().chain(self.announced()).any(|has| has == addr)
    }

    /// Returns the time before which `addr` may not be joined.
    pub fn not_before(&self, addr: SocketAddr) -> Instant {
        let announced = self.announced.iter().find(|a| a.addr == addr);
        announced.map_or(Instant::ZERO, |a| a.not_before)
    }

    /// Handles the announcement of `addr` with the given id. If the id belongs to another IP address, the
    /// announcement is ignored until that address is withdrawn. Only the port of an address may change. A
    /// withdrawn initial address may be joined again once it is announced. Addresses that cannot be joined are
    /// ignored. Returns the address that is replaced, if any.
    // Conforms: 8684-3.2-4, 8684-3.4.1-2, 8684-3.4.1-9, 8684-3.4.1-13
    pub fn learn(&mut self, now: Instant, id: u8, addr: SocketAddr) -> Option<SocketAddr> {
        if addr == self.initial && !self.initial_denied {
            self.initial_withdrawn = false;
            return None;
        }
        let mut joinable = self.joinable();
        if joinable.any(|has| has == addr) || !can_be_joined(addr, self.initial) {
            return None;
        }
        drop(joinable);
        let is_same_host = |a: &Announced| a.id == id && a.addr.ip() == addr.ip();
        let replaced = self.announced.iter().position(is_same_host);
        let replaced = replaced.map(|at| self.announced.remove(at).addr);
        let is_id_taken = self.announced.iter().any(|a| a.id == id);
        if is_id_taken || self.announced.len() >= MAX_ANNOUNCED {
            return replaced;
        }
        let paced_join = self.next_paced_join.max(now);
        let not_before = (paced_join - ANNOUNCED_JOIN_BURST).max(now);
        self.announced.push(Announced {
            id,
            addr,
            not_before,
        });
        // The limit keeps the wait bounded (70 s), however many addresses the peer has announced and withdrawn.
        self.next_paced_join =
            (paced_join + ANNOUNCED_JOIN_INTERVAL).min(now + ANNOUNCED_JOIN_BURST * 2);
        replaced
    }

    /// Handles the withdrawal of the peer's address with the given id. Returns the address if it is known.
    // Conforms: 8684-3.2-5, 8684-3.4.2-3, 8684-3.4.2-7
    pub fn forget(&mut self, id: u8) -> Option<SocketAddr> {
        // Id 0 is the initial address (RFC 8684 section 3.2).
        if id == 0 {
            self.initial_withdrawn = true;
            self.announced.retain(|a| a.addr != self.initial);
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
        for (id, n) in [(2, 2), (2, 3), (3, 2), (4, 1)] {
            remotes.learn(Instant::ZERO, id, addr(n));
        }
        assert!(remotes.announced().eq([addr(2)]));
        assert_eq!(remotes.forget(2), Some(addr(2)));
        assert_eq!(remotes.forget(2), None);
        remotes.learn(Instant::ZERO, 2, addr(3));
        let joinable: Vec<SocketAddr> = remotes.joinable().collect();
        assert_eq!(joinable, [addr(1), addr(3)]);
        remotes.deny_initial();
        assert!(remotes.joinable().eq([addr(3)]));
        remotes.learn(Instant::ZERO, 0, addr(1));
        assert!(remotes.joinable().eq([addr(3), addr(1)]));
        // Id 0 is the initial address (RFC 8684 section 3.2).
        assert_eq!(remotes.forget(0), Some(addr(1)));
        assert!(remotes.joinable().eq([addr(3)]));
    }

    /// With addresses of two families, the connection may have been opened to either.
    // Conforms: 8684-3.1-6
    #[test]
    fn what_is_denied_is_denied_in_both_families() {
        let alt = "[2001:db8::1]:80".parse().unwrap();
        let mut remotes = Remotes::new(addr(1), Some(alt));
        remotes.deny_initial();
        assert_eq!(remotes.joinable().count(), 0);
        remotes.learn(Instant::ZERO, 2, alt);
        assert!(remotes.joinable().eq([alt]));
        assert_eq!(remotes.forget(2), Some(alt));
        assert_eq!(remotes.joinable().count(), 0);
    }

    /// The address of the other family remains when the initial address is withdrawn.
    #[test]
    fn a_withdrawn_initial_address_comes_back_when_it_is_announced() {
        let mut remotes = Remotes::new(addr(1), Some(addr(2)));
        remotes.forget(0);
        assert!(remotes.joinable().eq([addr(2)]));
        remotes.learn(Instant::ZERO, 0, addr(1));
        assert!(remotes.joinable().eq([addr(1), addr(2)]));
    }

    // Conforms: 8684-3.4.1-13
    #[test]
    fn the_port_of_an_address_may_change() {
        let mut remotes = Remotes::new(addr(1), None);
        let moved = SocketAddr::from(([192, 0, 2, 2], 81));
        for addr in [addr(2), moved] {
            remotes.learn(Instant::ZERO, 2, addr);
            assert!(remotes.announced().eq([addr]));
        }
    }

    // Conforms: 8684-3.4.1-9
    #[test]
    fn a_peer_cannot_announce_without_end() {
        let mut remotes = Remotes::new(addr(0), None);
        for n in 1..=255 {
            remotes.learn(Instant::ZERO, n, addr(n));
        }
        assert_eq!(remotes.announced().count(), MAX_ANNOUNCED);
    }

    /// Eight joins may happen at once. Further joins are ten seconds apart, however fast addresses come and go.
    #[test]
    fn announced_addresses_are_joined_at_a_bounded_rate() {
        let mut remotes = Remotes::new(addr(0), None);
        let start = Instant::from_millis(5_000);
        let joins = |remotes: &mut Remotes, now| {
            remotes.learn(now, 1, addr(1));
            let from = remotes.not_before(addr(1));
            remotes.forget(1);
            from.saturating_since(now).as_secs()
        };
        let waits: Vec<u64> = (0..11).map(|_| joins(&mut remotes, start)).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 10, 20, 30]);
        for _ in 0..1_000 {
            assert!(joins(&mut remotes, start) <= 70);
        }
        assert_eq!(joins(&mut remotes, start + ANNOUNCED_JOIN_BURST * 2), 0);
    }

    #[test]
    fn only_addresses_of_hosts_can_be_joined() {
        let initial = addr(1);
        let can = |text: &str| can_be_joined(text.parse().unwrap(), initial);
        assert!(can("10.0.0.1:80") && can("198.51.100.1:1") && can("[2001:db8::1]:80"));
        for bad in [
            "10.0.0.1:0",
            "0.0.0.0:80",
            "0.1.2.3:80",
            "127.0.0.1:80",
            "169.254.1.1:80",
            "224.0.0.1:80",
            "240.0.0.1:80",
            "255.255.255.255:80",
            "[::]:80",
            "[::1]:80",
            "[::ffff:10.0.0.1]:80",
            "[::10.0.0.1]:80",
            "[fe80::1]:80",
            "[ff02::1]:80",
        ] {
            assert!(!can(bad), "{bad}");
        }
        let inside = ([127, 0, 0, 1], 80).into();
        assert!(can_be_joined("127.0.0.2:80".parse().unwrap(), inside));
        assert!(can_be_joined("[::1]:80".parse().unwrap(), inside));
    }
}
