//! Servers that accept payload in SYNs, and networks that drop such SYNs (TCP Fast Open, RFC 7413).

use core::net::IpAddr;
use std::collections::BTreeMap;

use braid_wire::Instant;
use braid_wire::tcp::FastOpenCookie;

use super::blackholes::Blackholes;
use crate::PathId;

/// The permission of a server to send payload in SYNs.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// The cookie, never empty.
    pub cookie: FastOpenCookie,
    /// The MSS that the server announced with the cookie. It bounds the payload of a SYN (RFC 7413 section 4.1.3).
    pub mss: u16,
}

/// The cookies of servers by the server's address and the local path (RFC 7413 section 4.1.3). A cookie belongs to
/// a client address, and the client has a different address on each path.
#[derive(Debug, Default)]
pub(crate) struct FastOpens {
    grants: BTreeMap<(IpAddr, PathId), (Instant, Grant)>,
    max_len: usize,
    /// The paths on which the network drops SYNs with the option.
    blackholes: Blackholes,
}

impl FastOpens {
    /// Creates a table of at most `max_len` cookies. If the table is full, a new cookie replaces the oldest.
    pub fn new(max_len: usize) -> Self {
        FastOpens {
            grants: BTreeMap::new(),
            max_len,
            blackholes: Blackholes::new(max_len),
        }
    }

    /// Returns whether SYNs with the option may be sent: no network is known to drop them.
    pub fn pass(&self, now: Instant, (peer, path): (IpAddr, PathId)) -> bool {
        !self.blackholes.contains(now, peer, path)
    }

    /// Returns the grant for SYNs to this peer on this path.
    pub fn grant(&self, link: (IpAddr, PathId)) -> Option<&Grant> {
        self.grants.get(&link).map(|(_, grant)| grant)
    }

    /// Stores a cookie that the server granted, and replaces an earlier one.
    // Conforms: 7413-4.1.3-2
    pub fn learn(&mut self, now: Instant, link: (IpAddr, PathId), grant: Grant) {
        if !self.grants.contains_key(&link) && self.grants.len() >= self.max_len {
            let oldest = self.grants.iter().min_by_key(|(_, (at, _))| *at);
            let Some(oldest) = oldest.map(|(link, _)| *link) else {
                return;
            };
            self.grants.remove(&oldest);
        }
        self.grants.insert(link, (now, grant));
    }

    /// Forgets a cookie that the server does not accept.
    pub fn forget(&mut self, link: (IpAddr, PathId)) {
        self.grants.remove(&link);
    }

    /// Notes that only a SYN without the option was answered.
    pub fn on_dropped(&mut self, now: Instant, (peer, path): (IpAddr, PathId)) {
        self.blackholes.note(now, peer, path);
    }

    /// Notes that a SYN with the option was answered.
    pub fn on_passed(&mut self, (peer, path): (IpAddr, PathId)) {
        self.blackholes.clear(peer, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    // Conforms: 7413-4.1.3-2
    #[test]
    fn the_table_is_bounded() {
        let mut known = FastOpens::new(2);
        let grant = || Grant {
            cookie: FastOpenCookie::try_from(&[1; 8][..]).unwrap(),
            mss: 1460,
        };
        for n in [0, 1, 0, 2] {
            let now = Instant::from_millis(known.grants.len() as u64);
            known.learn(now, (SERVER, PathId(n)), grant());
        }
        let kept: Vec<u8> = known.grants.keys().map(|(_, path)| path.0).collect();
        assert_eq!(kept, [0, 2]);
        let mut none = FastOpens::new(0);
        none.learn(Instant::ZERO, (SERVER, PathId(0)), grant());
        assert!(none.grants.is_empty());
    }
}
