//! The server's end: the sessions of all boxes, and the judgement of what they carry.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};

use arrayvec::ArrayVec;
use braid_secure::keys::PublicKey;
use braid_tunnel::{
    Config, Header, MAX_PATHS, PathId, Role, Secrets, SessionId, Suite, Transmit, Tunnel,
};
use braid_wire::{Instant, Rng};

use super::inner::Inner;
use super::pool::{Owner, Places};
use crate::admin::tunnel_status::{TunnelPathStatus, TunnelSessionStatus, TunnelStatus};
use crate::config::TunnelPools;
use crate::config::policy::DestinationPolicy;
use crate::protocol::tunnel::{Grant, Refusal, Request};
use crate::relay::table::{Due, SessionId as Id, Table};

/// The largest inner packet: that of Ethernet.
const INNER_MTU: u16 = 1500;
/// Maximum number of sessions of a user, which is the number of boxes that may share a key. A guess.
const MAX_OF_USER: usize = 8;
/// Maximum number of sessions. A guess: it bounds the table, far above the users of one server.
const MAX_SESSIONS: usize = 4_096;
/// The time without a datagram after which a session ends. An idle box sends one every 25 s on each path, so a longer
/// outage of all its links is bridged. A box that comes back later gets a new session with its old addresses.
const MAX_SILENCE: Duration = Duration::from_secs(600);
/// Maximum number of datagrams that a session sends before others have their turn. A guess: they fill one super-segment
/// of 64 kB.
const TURN_BATCH: usize = 44;
/// Maximum number of timers that one call handles. A guess, as for connections.
const TIMER_BATCH: usize = 32;

/// The sockets on which a box's datagrams came: by path and address of the box, the latest first. A datagram goes back on
/// the socket that its remote end has sent to, because a NAT lets no other one through.
#[derive(Debug, Default)]
struct Sockets {
    /// Path of the box, its address, and the socket. Two addresses for each path: one that is being proved, one that is.
    seen: ArrayVec<(PathId, SocketAddr, PathId), { MAX_PATHS * 2 }>,
}

impl Sockets {
    fn note(&mut self, path: PathId, remote: SocketAddr, socket: PathId) {
        if self.seen.first() == Some(&(path, remote, socket)) {
            return;
        }
        self.seen
            .retain(|(of, from, _)| (*of, *from) != (path, remote));
        if self.seen.is_full() {
            self.seen.pop();
        }
        self.seen.insert(0, (path, remote, socket));
    }

    fn to(&self, path: PathId, remote: SocketAddr) -> Option<PathId> {
        let known = |(of, from, socket): &(PathId, SocketAddr, PathId)| {
            ((*of, *from) == (path, remote)).then_some(*socket)
        };
        self.seen.iter().find_map(known)
    }
}

/// The session of one box.
#[derive(Debug)]
struct Session {
    tunnel: Tunnel,
    /// Index of the user in the configuration.
    user: usize,
    owner: Owner,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    /// True if the box has the IPv6 address too.
    has_v6: bool,
    suite: Suite,
    epoch: u64,
    sockets: Sockets,
    heard_at: Instant,
    /// True while the session is in the queue of those that may have datagrams to send.
    sends: bool,
    /// True while the session is in the queue of those that may have packets to deliver.
    delivers: bool,
}

impl Session {
    fn has_address(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(addr) => addr == self.v4,
            IpAddr::V6(addr) => Some(addr) == self.v6(),
        }
    }

    fn v6(&self) -> Option<Ipv6Addr> {
        self.has_v6.then_some(self.v6)
    }

    fn next_timeout(&self) -> Instant {
        let silent_at = self.heard_at + MAX_SILENCE;
        self.tunnel
            .next_timeout()
            .map_or(silent_at, |at| at.min(silent_at))
    }
}

/// Packets and datagrams that were dropped, by their reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Drops {
    unknown_session: u64,
    invalid: u64,
    malformed: u64,
    foreign_source: u64,
    isolated: u64,
    refused: u64,
    no_box: u64,
    queue: u64,
}

/// The sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    pools: TunnelPools,
    port: u16,
    /// Most bytes that each buffer of a session holds.
    buffer: usize,
    places: Places,
    table: Table<Session>,
    by_id: HashMap<SessionId, Id>,
    by_v4: HashMap<Ipv4Addr, Id>,
    by_v6: HashMap<Ipv6Addr, Id>,
    by_owner: BTreeMap<Owner, Id>,
    to_send: VecDeque<Id>,
    to_deliver: VecDeque<Id>,
    /// Datagrams that the session at the head of the queue has sent in its turn.
    sent_in_turn: usize,
    /// The packet that [`Self::poll_packet`] returned last.
    packet: Vec<u8>,
    drops: Drops,
    opened: u64,
    rekeyed: u64,
}

/// The box that requests a session, and its place in the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    /// Index of the user in the configuration.
    pub(crate) user: usize,
    /// The user's key.
    pub(crate) key: PublicKey,
}

impl Sessions {
    /// Creates a table without sessions. Datagrams come to UDP port `port`; each buffer of a session holds up to
    /// `buffer` bytes.
    pub(crate) fn new(pools: TunnelPools, port: u16, buffer: usize) -> Self {
        Sessions {
            places: Places::new(&pools),
            pools,
            port,
            buffer,
            table: Table::default(),
            by_id: HashMap::new(),
            by_v4: HashMap::new(),
            by_v6: HashMap::new(),
            by_owner: BTreeMap::new(),
            to_send: VecDeque::new(),
            to_deliver: VecDeque::new(),
            sent_in_turn: 0,
            packet: Vec::new(),
            drops: Drops::default(),
            opened: 0,
            rekeyed: 0,
        }
    }

    /// Opens a session for a request, or starts another epoch of the requester's session. `export` returns the secrets
    /// of a session and epoch. `drawn` has a seed, which draws the session's id and challenges, and true if the server
    /// reaches IPv6 destinations.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        by: Requester,
        request: &Request,
        drawn: ([u8; 32], bool),
        export: impl Fn(SessionId, u64) -> Option<Secrets>,
    ) -> Result<Grant, Refusal> {
        let owner = Owner {
            key: by.key,
            boxed: request.boxed,
        };
        let suite = request.suites.iter().flatten().next().copied();
        let suite = suite.ok_or(Refusal::NoSuite)?;
        let known = request
            .session
            .and_then(|session| self.by_id.get(&session).copied())
            // Nobody gets hold of a session without the key of its owner.
            .filter(|id| self.by_owner.get(&owner) == Some(id));
        let id = match known {
            Some(id) => id,
            None => self.open_new(now, by.user, owner, (suite, request.path_mtu), drawn)?,
        };
        let session = self.table.get_mut(id).ok_or(Refusal::NotOffered)?;
        let epoch = session.epoch + 1;
        let of = session.tunnel.session();
        let Some(secrets) = export(of, epoch) else {
            if known.is_none() {
                self.remove(id);
            }
            return Err(Refusal::NotOffered);
        };
        session.tunnel.install_keys(now, epoch, &secrets);
        session.epoch = epoch;
        session.heard_at = now;
        let grant = Grant {
            session: of,
            epoch,
            v4: Some(session.v4),
            v6: session.v6(),
            port: self.port,
            mtu: INNER_MTU,
            suite: session.suite,
        };
        self.rekeyed += u64::from(known.is_some());
        self.touch(id);
        Ok(grant)
    }

    /// Opens a session without keys, in place of the owner's earlier one.
    fn open_new(
        &mut self,
        now: Instant,
        user: usize,
        owner: Owner,
        (suite, path_mtu): (Suite, u16),
        (seed, has_v6): ([u8; 32], bool),
    ) -> Result<Id, Refusal> {
        if let Some(old) = self.by_owner.get(&owner).copied() {
            self.remove(old);
        }
        let of_user = self.by_owner.keys().filter(|o| o.key == owner.key).count();
        if of_user >= MAX_OF_USER || self.table.len() >= MAX_SESSIONS {
            return Err(Refusal::TooMany);
        }
        let place = self.places.take(owner).ok_or(Refusal::NoAddress)?;
        let (v4, v6) = self.pools.place(place);
        let mut rng = Rng::from_seed(seed);
        let mut id = SessionId([0; 8]);
        while self.by_id.contains_key(&id) || id == SessionId([0; 8]) {
            rng.fill(&mut id.0);
        }
        let config = Config {
            suite,
            inner_mtu: usize::from(INNER_MTU),
            // The least and the most that a path may have.
            learned_mtu: usize::from(path_mtu.clamp(576, 1500)),
            send_queue: self.buffer,
            sent_buffer: self.buffer,
            reorder_buffer: self.buffer,
            ..Config::default()
        };
        let at = self.table.insert(Session {
            tunnel: Tunnel::new(config, Role::Server, id, rng),
            user,
            owner,
            v4,
            v6,
            has_v6,
            suite,
            epoch: 0,
            sockets: Sockets::default(),
            heard_at: now,
            sends: false,
            delivers: false,
        });
        self.by_id.insert(id, at);
        self.by_v4.insert(v4, at);
        self.by_v6.insert(v6, at);
        self.by_owner.insert(owner, at);
        self.opened += 1;
        Ok(at)
    }

    fn remove(&mut self, id: Id) {
        let Some(session) = self.table.remove(id) else {
            return;
        };
        self.by_id.remove(&session.tunnel.session());
        self.by_v4.remove(&session.v4);
        self.by_v6.remove(&session.v6);
        self.by_owner.remove(&session.owner);
        self.places.release(session.owner);
    }

    /// Queues a session after a call into its tunnel, and sets its timer.
    fn touch(&mut self, id: Id) {
        let Some(session) = self.table.get_mut(id) else {
            return;
        };
        if !core::mem::replace(&mut session.sends, true) {
            self.to_send.push_back(id);
        }
        if !core::mem::replace(&mut session.delivers, true) {
            self.to_deliver.push_back(id);
        }
    }

    /// Handles a datagram that came on the socket `socket`. Datagrams of unknown sessions have no answer.
    pub(crate) fn on_datagram(
        &mut self,
        now: Instant,
        socket: PathId,
        remote: SocketAddr,
        datagram: &mut [u8],
    ) {
        let Ok(header) = Header::parse(datagram) else {
            self.drops.invalid += 1;
            return;
        };
        let Some(id) = self.by_id.get(&header.session).copied() else {
            self.drops.unknown_session += 1;
            return;
        };
        let Some(session) = self.table.get_mut(id) else {
            return;
        };
        match session.tunnel.receive(now, remote, datagram) {
            Ok(()) => {
                session.sockets.note(header.path, remote, socket);
                session.heard_at = now;
            }
            Err(_) => self.drops.invalid += 1,
        }
        self.touch(id);
    }

    /// Handles a packet that the server's packet device took in: it goes to the box that has its destination.
    pub(crate) fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        let Some(inner) = Inner::parse(packet) else {
            self.drops.malformed += 1;
            return;
        };
        let own = [
            IpAddr::V4(self.pools.device_v4()),
            IpAddr::V6(self.pools.device_v6()),
        ];
        // ICMP errors of this machine have its own address on the device as their source.
        if self.is_of_pool(inner.src) && !own.contains(&inner.src) {
            self.drops.isolated += 1;
            return;
        }
        let id = match inner.dst {
            IpAddr::V4(addr) => self.by_v4.get(&addr),
            IpAddr::V6(addr) => self.by_v6.get(&addr),
        };
        let Some((id, session)) = id.and_then(|id| Some((*id, self.table.get_mut(*id)?))) else {
            self.drops.no_box += 1;
            return;
        };
        let urgency = inner.urgency().unwrap_or_default();
        self.drops.queue += u64::from(session.tunnel.send(now, urgency, packet).is_err());
        self.touch(id);
    }

    fn is_of_pool(&self, addr: IpAddr) -> bool {
        self.pools.ranges().iter().any(|pool| pool.contains(&addr))
    }

    /// Appends the next datagram to `buf`; returns the socket and the address it goes to.
    pub(crate) fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        while let Some(id) = self.to_send.front().copied() {
            let Some(session) = self.table.get_mut(id) else {
                self.next_sender();
                continue;
            };
            let start = buf.len();
            let Some(transmit) = session.tunnel.poll_transmit(now, buf) else {
                session.sends = false;
                let due = session.next_timeout();
                self.table.arm(id, due);
                self.next_sender();
                continue;
            };
            let Some(path) = session.sockets.to(transmit.path, transmit.remote) else {
                // The tunnel sends only to addresses that datagrams came from; the table has forgotten this one.
                buf.truncate(start);
                continue;
            };
            self.sent_in_turn += 1;
            if self.sent_in_turn >= TURN_BATCH {
                self.next_sender();
                self.to_send.push_back(id);
            }
            return Some(Transmit { path, ..transmit });
        }
        None
    }

    fn next_sender(&mut self) {
        self.to_send.pop_front();
        self.sent_in_turn = 0;
    }

    /// Returns the next packet of a box that may go on to its destination.
    pub(crate) fn poll_packet(&mut self, destinations: &DestinationPolicy) -> Option<&[u8]> {
        while let Some(id) = self.to_deliver.front().copied() {
            let next = self.table.get_mut(id).and_then(|session| {
                let packet = session.tunnel.poll_delivery();
                session.delivers = packet.is_some();
                self.packet.clear();
                self.packet.extend_from_slice(packet?);
                Some(&*session)
            });
            let Some(session) = next else {
                self.to_deliver.pop_front();
                continue;
            };
            let Some(inner) = Inner::parse(&self.packet) else {
                self.drops.malformed += 1;
                continue;
            };
            if !session.has_address(inner.src) {
                self.drops.foreign_source += 1;
            } else if self.is_of_pool(inner.dst) {
                self.drops.isolated += 1;
            } else if inner
                .judged_destination()
                .is_none_or(|to| !destinations.permits(to))
            {
                self.drops.refused += 1;
            } else {
                return Some(&self.packet);
            }
        }
        None
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.table.next_timeout()
    }

    /// Handles expired timers, and ends silent sessions.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..TIMER_BATCH {
            let Some((id, Due::Timer)) = self.table.pop_due(now) else {
                return;
            };
            let Some(session) = self.table.get_mut(id) else {
                continue;
            };
            if now >= session.heard_at + MAX_SILENCE {
                self.remove(id);
                continue;
            }
            session.tunnel.handle_timeout(now);
            self.touch(id);
        }
    }

    /// Moves users to their new indices, and ends the sessions of removed users: `None` in `new_indices`.
    pub(crate) fn move_users(&mut self, new_indices: &[Option<usize>]) {
        for id in self.table.ids() {
            let Some(session) = self.table.get_mut(id) else {
                continue;
            };
            match new_indices.get(session.user).copied().flatten() {
                Some(user) => session.user = user,
                None => self.remove(id),
            }
        }
    }

    /// Returns the state, with the first sessions. `user` returns the name of a user.
    pub(crate) fn status(&self, user: impl Fn(usize) -> Option<String>) -> TunnelStatus {
        let sessions = self.table.ids().into_iter();
        let sessions = sessions.filter_map(|id| self.table.get(id));
        let sessions = sessions.take(TunnelStatus::MAX_SHOWN_SESSIONS).map(|s| {
            let stats = s.tunnel.stats();
            let paths = s.tunnel.path_stats();
            TunnelSessionStatus {
                user: user(s.user),
                v4: Some(s.v4),
                v6: s.v6(),
                epoch: s.epoch,
                packets_in: stats.packets_delivered,
                packets_out: stats.packets_sent,
                paths: paths
                    .map(|p| TunnelPathStatus::new(p.path.0.to_string(), &p))
                    .collect(),
            }
        });
        let drops = self.drops;
        let drops = [
            ("unknown_session", drops.unknown_session),
            ("invalid_datagram", drops.invalid),
            ("malformed_packet", drops.malformed),
            ("foreign_source", drops.foreign_source),
            ("between_boxes", drops.isolated),
            ("refused_destination", drops.refused),
            ("no_box", drops.no_box),
            ("queue", drops.queue),
        ];
        TunnelStatus {
            state: "on".to_owned(),
            sessions_total: self.table.len(),
            sessions: sessions.collect(),
            opened: self.opened,
            rekeyed: self.rekeyed,
            drops: drops.map(|(name, n)| (name.to_owned(), n)).into(),
            ..TunnelStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_secure::keys::PrivateKey;

    use super::*;
    use crate::config::policy::DestinationRules;
    use crate::protocol::tunnel::BoxId;

    const NOW: Instant = Instant::from_millis(1_000);
    const MS: Duration = Duration::from_millis(1);
    const SOCKET: PathId = PathId(0);

    fn sessions() -> Sessions {
        let pools = TunnelPools {
            v4: "10.215.128.0/24".parse().unwrap(),
            v6: "fdb7:a1d0:80::/64".parse().unwrap(),
        };
        Sessions::new(pools, 1080, 1 << 20)
    }

    fn requester(n: u8) -> Requester {
        Requester {
            user: usize::from(n),
            key: PrivateKey::from_seed([n; 32]).public(),
        }
    }

    fn request(boxed: u8) -> Request {
        Request {
            boxed: BoxId([boxed; 8]),
            session: None,
            path_mtu: 1500,
            suites: [Some(Suite::Aes256Gcm), None],
        }
    }

    fn secrets() -> Secrets {
        Secrets {
            of_box: [1; 32],
            of_server: [2; 32],
        }
    }

    fn open(sessions: &mut Sessions, user: u8, request: &Request) -> Result<Grant, Refusal> {
        let seed = [user ^ request.boxed.0[0].wrapping_mul(16); 32];
        let export = |_, _| Some(secrets());
        sessions.open(NOW, requester(user), request, (seed, true), export)
    }

    /// A box's end of a session with one path.
    struct Boxed {
        tunnel: Tunnel,
        grant: Grant,
        from: SocketAddr,
    }

    impl Boxed {
        fn new(sessions: &mut Sessions, user: u8) -> Self {
            let grant = open(sessions, user, &request(1)).unwrap();
            let config = Config {
                suite: grant.suite,
                ..Config::default()
            };
            let rng = Rng::from_seed([user; 32]);
            let mut tunnel = Tunnel::new(config, Role::Box, grant.session, rng);
            tunnel.install_keys(NOW, grant.epoch, &secrets());
            let remote = SocketAddr::from(([203, 0, 113, 1], 1080));
            let path = braid_tunnel::PathConfig { remote, mtu: 1500 };
            tunnel.add_path(NOW, PathId(0), path);
            let from = SocketAddr::from(([192, 0, 2, user], 4_000));
            let mut boxed = Boxed {
                tunnel,
                grant,
                from,
            };
            // Both ends prove their addresses.
            for n in 0..8 {
                boxed.exchange(sessions, NOW + MS * n);
            }
            boxed
        }

        /// Exchanges datagrams; returns the sockets on which those of the server went out.
        fn exchange(&mut self, sessions: &mut Sessions, now: Instant) -> Vec<PathId> {
            let mut buf = Vec::new();
            while self.tunnel.poll_transmit(now, &mut buf).is_some() {
                sessions.on_datagram(now, SOCKET, self.from, &mut buf);
                buf.clear();
            }
            let mut sockets = Vec::new();
            while let Some(transmit) = sessions.poll_datagram(now, &mut buf) {
                if transmit.remote == self.from {
                    let _ = self.tunnel.receive(now, transmit.remote, &mut buf);
                    sockets.push(transmit.path);
                }
                buf.clear();
            }
            sockets
        }

        /// Sends a packet through the tunnel; returns whether it comes out.
        fn passes(&mut self, sessions: &mut Sessions, at: u32, packet: &[u8]) -> bool {
            let now = NOW + MS * (100 + at * 10);
            self.tunnel.send(now, Default::default(), packet).unwrap();
            self.exchange(sessions, now);
            let mut destinations = DestinationPolicy::new(DestinationRules {
                refuse_ports: vec![25],
                ..DestinationRules::default()
            });
            destinations.set_own(sessions.pools.ranges().to_vec());
            let out = sessions.poll_packet(&destinations).map(<[u8]>::to_vec);
            assert!(out.as_deref().is_none_or(|out| out == packet));
            out.is_some()
        }
    }

    /// Makes an IPv4 packet with ports 5,000 and `port`.
    fn v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
        [
            &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0][..],
            &src.octets(),
            &dst.octets(),
            &5_000u16.to_be_bytes(),
            &port.to_be_bytes(),
            &[0, 8, 0, 0],
        ]
        .concat()
    }

    const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);

    #[test]
    fn only_packets_that_are_allowed_come_out() {
        let mut sessions = sessions();
        let mut first = Boxed::new(&mut sessions, 1);
        let second = Boxed::new(&mut sessions, 2);
        let own = first.grant.v4.unwrap();
        let other = second.grant.v4.unwrap();
        assert_ne!(own, other);
        let local = Ipv4Addr::new(192, 168, 1, 7);
        let device = sessions.pools.device_v4();
        let cases = [
            (v4(own, PUBLIC, 17, 443), true),
            (v4(own, PUBLIC, 1, 0), true),
            (v4(own, PUBLIC, 17, 25), true),
            (v4(own, PUBLIC, 6, 25), false),
            (v4(own, PUBLIC, 6, 80), true),
            (v4(own, local, 17, 443), false),
            (v4(own, other, 17, 443), false),
            (v4(own, device, 17, 443), false),
            (v4(other, PUBLIC, 17, 443), false),
            (v4(local, PUBLIC, 17, 443), false),
        ];
        for (n, (packet, expected)) in (0..).zip(&cases) {
            assert_eq!(first.passes(&mut sessions, n, packet), *expected, "{n}");
        }
        let drops = sessions.drops;
        let counted = (drops.foreign_source, drops.isolated, drops.refused);
        assert_eq!(counted, (2, 2, 2));
    }

    #[test]
    fn packets_go_to_the_box_with_their_destination_alone() {
        let mut sessions = sessions();
        let mut first = Boxed::new(&mut sessions, 1);
        let mut second = Boxed::new(&mut sessions, 2);
        let to = first.grant.v4.unwrap();
        let now = NOW + MS * 100;
        sessions.on_packet(now, &v4(PUBLIC, to, 17, 5_000));
        let device = sessions.pools.device_v4();
        sessions.on_packet(now, &v4(device, to, 1, 0));
        // From another box, to nobody, and malformed.
        let other = second.grant.v4.unwrap();
        sessions.on_packet(now, &v4(other, to, 17, 5_000));
        sessions.on_packet(now, &v4(PUBLIC, Ipv4Addr::new(10, 215, 128, 1), 17, 5_000));
        sessions.on_packet(now, &[0x45; 3]);
        first.exchange(&mut sessions, now);
        second.exchange(&mut sessions, now);
        let count = |boxed: &mut Boxed| {
            let mut n = 0;
            while boxed.tunnel.poll_delivery().is_some() {
                n += 1;
            }
            n
        };
        let drops = sessions.drops;
        assert_eq!((drops.isolated, drops.no_box, drops.malformed), (1, 1, 1));
        // What is sent to the first box does not reach the second one; the exchange above took only its own.
        assert_eq!(count(&mut second), 0);
        let at_first = sessions.table.get(sessions.by_v4[&to]).unwrap();
        assert_eq!(at_first.tunnel.stats().packets_sent, 2);
    }

    #[test]
    fn only_its_owner_gets_another_epoch_of_a_session() {
        let mut sessions = sessions();
        let first = open(&mut sessions, 1, &request(1)).unwrap();
        assert_eq!(first.epoch, 1);
        let resume = |boxed: u8| Request {
            session: Some(first.session),
            ..request(boxed)
        };
        let again = open(&mut sessions, 1, &resume(1)).unwrap();
        assert_eq!((again.session, again.epoch), (first.session, 2));
        assert_eq!((again.v4, again.v6), (first.v4, first.v6));
        // Another user, and another box of the same user, get sessions of their own.
        for (user, boxed) in [(2, 1), (1, 2)] {
            let other = open(&mut sessions, user, &resume(boxed)).unwrap();
            assert_ne!(other.session, first.session);
            assert_ne!(other.v4, first.v4);
            assert_eq!(other.epoch, 1);
        }
        assert_eq!(sessions.table.len(), 3);
        // The box has restarted: its old session is gone.
        let anew = open(
            &mut sessions,
            1,
            &Request {
                path_mtu: 1400,
                ..request(1)
            },
        );
        // The seed is that of the first session, whose id is free again.
        assert_eq!(anew.unwrap().v4, first.v4);
        assert_eq!(sessions.table.len(), 3);
    }

    #[test]
    fn sessions_are_limited_and_refused_requests_leave_nothing() {
        let mut sessions = sessions();
        for n in 0..MAX_OF_USER as u8 {
            open(&mut sessions, 1, &request(n)).unwrap();
        }
        let refused = open(&mut sessions, 1, &request(99));
        assert_eq!(refused, Err(Refusal::TooMany));
        open(&mut sessions, 2, &request(99)).unwrap();
        let no_suite = Request {
            suites: [None; 2],
            ..request(1)
        };
        assert_eq!(open(&mut sessions, 3, &no_suite), Err(Refusal::NoSuite));
        let before = sessions.table.len();
        let export = |_, _| None;
        let refused = sessions.open(NOW, requester(3), &request(1), ([9; 32], true), export);
        assert_eq!(refused, Err(Refusal::NotOffered));
        assert_eq!(sessions.table.len(), before, "no session without keys");
    }

    #[test]
    fn silent_sessions_end_and_users_move() {
        let mut sessions = sessions();
        let first = Boxed::new(&mut sessions, 1);
        let _second = Boxed::new(&mut sessions, 2);
        // User 0 is gone, user 1 has index 0, user 2 is removed.
        sessions.move_users(&[None, Some(0), None]);
        assert_eq!(sessions.table.len(), 1);
        let name = |user: usize| Some(format!("user{user}"));
        let shown = sessions.status(name).sessions;
        assert_eq!(shown[0].user.as_deref(), Some("user0"));
        assert_eq!(shown[0].v4, first.grant.v4);
        let end = NOW + MAX_SILENCE + MS * 100;
        let mut buf = Vec::new();
        while let Some(at) = sessions.next_timeout().filter(|at| *at <= end) {
            sessions.handle_timeout(at);
            while sessions.poll_datagram(at, &mut buf).is_some() {
                buf.clear();
            }
        }
        assert_eq!(sessions.table.len(), 0);
        assert!(sessions.by_id.is_empty() && sessions.by_v4.is_empty());
        assert!(sessions.by_v6.is_empty() && sessions.by_owner.is_empty());
    }

    #[test]
    fn datagrams_leave_on_the_socket_that_the_box_sent_to() {
        let mut sockets = Sockets::default();
        let addr = |n: u8| SocketAddr::from(([192, 0, 2, n], 4_000));
        for n in 0..40 {
            sockets.note(PathId(n % 8), addr(n), PathId(n % 3));
        }
        assert_eq!(sockets.to(PathId(39 % 8), addr(39)), Some(PathId(0)));
        sockets.note(PathId(39 % 8), addr(39), PathId(2));
        assert_eq!(sockets.to(PathId(39 % 8), addr(39)), Some(PathId(2)));
        assert_eq!(
            sockets.to(PathId(0), addr(0)),
            None,
            "the oldest is forgotten"
        );
        assert_eq!(sockets.to(PathId(1), addr(39)), None);
    }
}
