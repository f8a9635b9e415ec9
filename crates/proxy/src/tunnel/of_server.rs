//! The server's end: the sessions of all boxes, and the judgement of what they carry.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};

use arrayvec::ArrayVec;
use braid_engine::Stack;
use braid_secure::keys::PublicKey;
use braid_tunnel::{
    Config, Header, MAX_PATHS, PathId, PathUse, Role, Secrets, SendError, SessionId, Suite,
    Transmit, Tunnel,
};
use braid_wire::{Instant, Rng};

use super::inner::Inner;
use super::pool::{Owner, Places};
use super::sharing::Sharing;
use crate::admin::tunnel_status::{
    ShownFlows, TunnelFlowStatus, TunnelPathStatus, TunnelSessionStatus, TunnelStatus,
};
use crate::app::TUNNEL_MTU;
use crate::config::TunnelPools;
use crate::config::policy::DestinationPolicy;
use crate::protocol::tunnel::{Grant, Refusal, Request};
use crate::relay::table::{Due, SessionId as Id, Table};

/// Maximum number of sessions of a user, which is the number of boxes that may share a key. A guess.
const MAX_OF_USER: usize = 8;
/// Maximum number of sessions. A guess: it bounds the table, far above the users of one server.
const MAX_SESSIONS: usize = 4_096;
/// The part of the server's memory for the buffers of all sessions: a quarter. A guess.
const MEMORY_SHARE: usize = 4;
/// The part of the server's memory for the buffers of a user's sessions: a 16th, each with an equal part of it. A
/// guess: 8 MiB for a session where the server has 1 GiB.
const USER_SHARE: usize = 16;
/// Divisor of the memory that is left: a new session gets at most this part, so that many sessions get less rather than
/// none. With this value the first session gets the full part of a user's session.
const LEFT_SHARE: usize = MAX_OF_USER * USER_SHARE / MEMORY_SHARE;
/// Least bytes of the buffers of a session. A guess: enough for a super-segment of 64 kB in each direction.
const MIN_BUDGET: usize = 160 << 10;
/// The time after a datagram for which a session counts as in use: a box in use sends far more often.
const HEARD_LATELY: Duration = Duration::from_secs(10);
/// The age below which a replaced session counts as short-lived: a box restarts less often.
const SHORT_LIFE: Duration = Duration::from_secs(60);
/// The time without a datagram after which a session ends. An idle box sends one every 25 s on each path, so a longer
/// outage of all its links is bridged. A box that comes back later gets a new session with its old addresses.
const MAX_SILENCE: Duration = Duration::from_secs(600);
/// Maximum number of datagrams that a session sends before others have their turn. A guess: they fill one super-segment
/// of 64 kB.
const TURN_BATCH: usize = 44;
/// Maximum number of timers that one call handles. A guess, as for connections.
const TIMER_BATCH: usize = 32;

/// The sockets on which a box's datagrams came: by path and address of the box, the latest first. A datagram goes back
/// on the socket that its remote end has sent to, because a NAT lets no other one through.
#[derive(Debug, Default)]
struct Sockets {
    /// Path of the box, its address, and the socket. Two addresses for each path: one that is being proved, one that
    /// is.
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
    /// The highest epoch that was granted.
    epoch: u64,
    /// Most bytes that the buffers hold.
    budget: usize,
    sockets: Sockets,
    opened_at: Instant,
    heard_at: Instant,
    /// True while the session is in the queue of those that may have datagrams to send.
    sends: bool,
    /// True while the session is in the queue of those that may have packets to deliver.
    delivers: bool,
    /// True while the session is in the queue of those that have something to exchange with the engine.
    exchanges: bool,
    sharing: Sharing,
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
    no_key: u64,
    queue: u64,
}

/// The sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    pools: TunnelPools,
    port: u16,
    /// The memory of the server, bytes.
    memory: usize,
    /// Bytes that the buffers of all sessions may hold.
    allotted: usize,
    places: Places,
    table: Table<Session>,
    by_id: HashMap<SessionId, Id>,
    by_v4: HashMap<Ipv4Addr, Id>,
    by_v6: HashMap<Ipv6Addr, Id>,
    by_owner: BTreeMap<Owner, Id>,
    to_send: VecDeque<Id>,
    to_deliver: VecDeque<Id>,
    to_exchange: VecDeque<Id>,
    /// The parts of ended sessions in the engine's counts, until they are taken back.
    ended: Vec<Sharing>,
    /// Datagrams that the session at the head of the queue has sent in its turn.
    sent_in_turn: usize,
    /// The packet that [`Self::poll_packet`] returned last.
    packet: Vec<u8>,
    drops: Drops,
    opened: u64,
    rekeyed: u64,
    contended: u64,
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
    /// Creates a table without sessions. Datagrams come to UDP port `port`; the buffers of all sessions hold up to a
    /// quarter of `memory` bytes, those of a user up to a 16th.
    pub(crate) fn new(pools: TunnelPools, port: u16, memory: usize) -> Self {
        Sessions {
            places: Places::new(&pools),
            pools,
            port,
            memory,
            allotted: 0,
            table: Table::default(),
            by_id: HashMap::new(),
            by_v4: HashMap::new(),
            by_v6: HashMap::new(),
            by_owner: BTreeMap::new(),
            to_send: VecDeque::new(),
            to_deliver: VecDeque::new(),
            to_exchange: VecDeque::new(),
            ended: Vec::new(),
            sent_in_turn: 0,
            packet: Vec::new(),
            drops: Drops::default(),
            opened: 0,
            rekeyed: 0,
            contended: 0,
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
        let (seed, has_v6) = drawn;
        let id = match known {
            Some(id) => {
                self.rekey(now, id, export)?;
                id
            }
            None => {
                let of = (suite, request.path_mtu);
                self.open_new(now, (by.user, owner), of, seed, export)?
            }
        };
        let session = self.table.get_mut(id).ok_or(Refusal::NotOffered)?;
        session.has_v6 = has_v6;
        session.heard_at = now;
        let grant = Grant {
            session: session.tunnel.session(),
            epoch: session.epoch,
            v4: Some(session.v4),
            v6: session.v6(),
            port: self.port,
            mtu: TUNNEL_MTU,
            suite: session.suite,
        };
        self.touch(id);
        Ok(grant)
    }

    /// Starts another epoch of a session.
    fn rekey(
        &mut self,
        now: Instant,
        id: Id,
        export: impl Fn(SessionId, u64) -> Option<Secrets>,
    ) -> Result<(), Refusal> {
        let session = self.table.get_mut(id).ok_or(Refusal::NotOffered)?;
        session.epoch = install_next(now, &mut session.tunnel, export)?;
        self.rekeyed += 1;
        Ok(())
    }

    /// Opens a session in place of the owner's earlier one. A refusal leaves that one as it is.
    fn open_new(
        &mut self,
        now: Instant,
        (user, owner): (usize, Owner),
        (suite, path_mtu): (Suite, u16),
        seed: [u8; 32],
        export: impl Fn(SessionId, u64) -> Option<Secrets>,
    ) -> Result<Id, Refusal> {
        let old = self.by_owner.get(&owner).copied();
        let budget = self.allot(owner, old)?;
        let mut rng = Rng::from_seed(seed);
        let mut id = SessionId([0; 8]);
        // The id starts as 0, so that the loop draws at least once.
        while self.by_id.contains_key(&id) || id == SessionId([0; 8]) {
            rng.fill(&mut id.0);
        }
        let config = Config {
            suite,
            inner_mtu: usize::from(TUNNEL_MTU),
            // The least and the most that a path may have.
            learned_mtu: usize::from(path_mtu.clamp(576, 1500)),
            send_queue: budget / 5,
            sent_buffer: budget / 5 * 2,
            reorder_buffer: budget / 5 * 2,
            ..Config::default()
        };
        let mut tunnel = Tunnel::new(config, Role::Server, id, rng);
        let epoch = install_next(now, &mut tunnel, export)?;
        // An owner with a session gets the place that it has.
        let place = self.places.take(owner).ok_or(Refusal::NoAddress)?;
        let is_contended = old.is_some_and(|old| self.replace(now, old));
        let (v4, v6) = self.pools.place(place);
        let at = self.table.insert(Session {
            tunnel,
            user,
            owner,
            v4,
            v6,
            has_v6: false,
            suite,
            epoch,
            budget,
            sockets: Sockets::default(),
            opened_at: now,
            heard_at: now,
            sends: false,
            delivers: false,
            exchanges: false,
            sharing: Sharing::default(),
        });
        self.by_id.insert(id, at);
        self.by_v4.insert(v4, at);
        self.by_v6.insert(v6, at);
        self.by_owner.insert(owner, at);
        self.allotted += budget;
        self.opened += 1;
        self.contended += u64::from(is_contended);
        Ok(at)
    }

    /// Returns the bytes that the buffers of a new session may hold. `old` is the session that it replaces.
    fn allot(&self, owner: Owner, old: Option<Id>) -> Result<usize, Refusal> {
        let others = |o: &&Owner| o.key == owner.key && **o != owner;
        let of_user = self.by_owner.keys().filter(others).count();
        let all = self.table.len() - usize::from(old.is_some());
        if of_user >= MAX_OF_USER || all >= MAX_SESSIONS {
            return Err(Refusal::TooMany);
        }
        let freed = old.and_then(|old| self.table.get(old));
        let allotted = self.allotted - freed.map_or(0, |old| old.budget);
        let left = (self.memory / MEMORY_SHARE).saturating_sub(allotted);
        let budget = (left / LEFT_SHARE).min(self.memory / USER_SHARE / MAX_OF_USER);
        if budget < MIN_BUDGET {
            return Err(Refusal::TooMany);
        }
        Ok(budget)
    }

    /// Ends a session whose owner opens another one. Returns true if somebody still used it: the box restarts again and
    /// again, or another box has the same key and name.
    fn replace(&mut self, now: Instant, id: Id) -> bool {
        let session = self.unlink(id);
        session.is_some_and(|s| now < s.heard_at + HEARD_LATELY && now < s.opened_at + SHORT_LIFE)
    }

    /// Ends a session, and keeps the place of its owner while there is room.
    fn remove(&mut self, id: Id) {
        if let Some(session) = self.unlink(id) {
            self.places.release(session.owner);
        }
    }

    fn unlink(&mut self, id: Id) -> Option<Session> {
        let mut session = self.table.remove(id)?;
        self.by_id.remove(&session.tunnel.session());
        self.by_v4.remove(&session.v4);
        self.by_v6.remove(&session.v6);
        self.by_owner.remove(&session.owner);
        self.allotted -= session.budget;
        let sharing = core::mem::take(&mut session.sharing);
        self.ended.extend(Some(sharing).filter(Sharing::is_counted));
        Some(session)
    }

    /// Returns how often a session was replaced while it was young and in use.
    pub(crate) fn contended(&self) -> u64 {
        self.contended
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
        if !core::mem::replace(&mut session.exchanges, true) {
            // What it knows of the links is old, so it does not wait for the others.
            self.to_exchange.push_front(id);
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
                self.touch(id);
            }
            // Anybody can send such a datagram, so it costs no turn and sets no timer.
            Err(_) => self.drops.invalid += 1,
        }
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
        // What the box has stated for the flow precedes.
        match session.tunnel.send(now, inner.policy(), packet) {
            Ok(()) => {}
            Err(SendError::NoKey) => self.drops.no_key += 1,
            Err(_) => self.drops.queue += 1,
        }
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
        Instant::earliest([self.table.next_timeout(), self.next_exchange()])
    }

    fn next_exchange(&self) -> Option<Instant> {
        if !self.ended.is_empty() {
            return Some(Instant::ZERO);
        }
        let first = self.to_exchange.front()?;
        let session = self.table.get(*first);
        Some(session.map_or(Instant::ZERO, |session| session.sharing.due()))
    }

    /// Exchanges with the engine what each path carries, for a batch of the sessions in use whose time has come.
    fn exchange(&mut self, now: Instant, stack: &mut Stack) {
        for mut ended in self.ended.drain(..) {
            ended.end(stack);
        }
        for _ in 0..TIMER_BATCH.min(self.to_exchange.len()) {
            if self.next_exchange().is_none_or(|at| now < at) {
                return;
            }
            let Some(id) = self.to_exchange.pop_front() else {
                return;
            };
            let Some(session) = self.table.get_mut(id) else {
                continue;
            };
            // The engine has a path for each listening address, as the tunnel has a socket.
            let sockets = &session.sockets;
            let link = |used: &PathUse| {
                let socket = sockets.to(used.path, used.remote)?;
                Some((used.remote.ip().to_canonical(), socket))
            };
            let sharing = &mut session.sharing;
            session.exchanges = sharing.exchange(now, &mut session.tunnel, stack, link);
            if session.exchanges {
                self.to_exchange.push_back(id);
            }
        }
    }

    /// Handles expired timers, ends silent sessions, and exchanges with the engine what the links carry.
    pub(crate) fn handle_timeout(&mut self, now: Instant, stack: &mut Stack) {
        self.exchange(now, stack);
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

    /// Returns the state at `now`, with the first sessions. `user` returns the name of a user.
    pub(crate) fn status(
        &self,
        now: Instant,
        user: impl Fn(usize) -> Option<String>,
    ) -> TunnelStatus {
        let path = |path: PathId| path.0.to_string();
        let mut flows = ShownFlows::new(now);
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
                flows: flows.add(s.user, s.tunnel.flow_stats()),
                paths: paths
                    .map(|p| TunnelPathStatus::new(path(p.path), &p))
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
            ("no_key", drops.no_key),
            ("queue", drops.queue),
        ];
        let sessions = sessions.collect();
        let (flows_total, flows) = flows.finish(|of, flow| TunnelFlowStatus {
            user: user(of),
            ..TunnelFlowStatus::new(now, flow, false, path)
        });
        TunnelStatus {
            state: "on".to_owned(),
            sessions_total: self.table.len(),
            sessions,
            flows_total,
            flows,
            opened: self.opened,
            contended: self.contended,
            rekeyed: self.rekeyed,
            drops: drops.map(|(name, n)| (name.to_owned(), n)).into(),
            ..TunnelStatus::default()
        }
    }
}

/// Installs the next epoch of a session, and returns its number.
fn install_next(
    now: Instant,
    tunnel: &mut Tunnel,
    export: impl Fn(SessionId, u64) -> Option<Secrets>,
) -> Result<u64, Refusal> {
    let epoch = tunnel.next_epoch();
    let secrets = export(tunnel.session(), epoch).ok_or(Refusal::NotOffered)?;
    let is_installed = tunnel.install_keys(now, epoch, &secrets);
    is_installed.then_some(epoch).ok_or(Refusal::NotOffered)
}

#[cfg(test)]
mod tests;
