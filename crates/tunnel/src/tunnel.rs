//! One end of a session.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::PathId;
use braid_wire::{Instant, Rng};

use crate::address::Address;
use crate::config::{Config, MAX_FLOWS, MAX_PATHS, PathConfig, PathState, Role};
use crate::frame::{Frame, Frames};
use crate::header::{self, Header, SessionId};
use crate::incoming::Incoming;
use crate::outgoing::{self, Outgoing, Ways};
use crate::path::{FIRST_TIMEOUT, Path};
use crate::pmtu::PathMtu;
use crate::policy::FlowPolicy;
use crate::pool::Pool;
use crate::reorder::PathsView;
use crate::seal::{Keys, Secrets};
use crate::stats::{FlowStats, PathStats, Stats};
use crate::steer::{self, PathView};
use crate::{DatagramError, SendError, usage};

/// The time after which a path that carries nothing is probed, while the session is in use. A guess: a shorter time
/// finds silent paths sooner, and costs more datagrams.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The time after which a path is probed while the session is idle. Home routers forget a mapping of UDP after 30 s,
/// although RFC 4787 demands 2 min.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(25);
/// The longest time between challenges of a server that is idle. A guess.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The time for which a session counts as in use after an inner packet. A guess: all paths are probed often for as
/// long.
const IN_USE: Duration = Duration::from_secs(2);
/// The time in which a path without round trip is expected to answer. A guess.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(100);
/// A path without an arrival for this time, plus its round trip and lateness, counts as dead: reordering no longer
/// waits for it. The time is longer than [`PROBE_INTERVAL`], so that probes keep a path in use alive. The rest is a
/// guess.
const SILENCE: Duration = Duration::from_millis(250);
/// Packets that a path sent this long before its first unreported datagram are sent again too when it falls silent: the
/// path may have lost them. When a path goes down, packets that it sent this long before are sent again. A guess: a
/// longer time sends more packets twice.
const DYING: Duration = Duration::from_millis(100);

/// A datagram to send, appended to the buffer of [`Tunnel::poll_transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The path, which on the box names the link.
    pub path: PathId,
    /// The destination.
    pub remote: SocketAddr,
    /// The length of the datagram, in bytes.
    pub len: usize,
}

/// One end of a session with one peer.
#[derive(Debug)]
pub struct Tunnel {
    pub(crate) config: Config,
    session: SessionId,
    role: Role,
    pub(crate) rng: Rng,
    pub(crate) keys: Keys,
    pub(crate) paths: Vec<Path>,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) pool: Pool,
    pub(crate) stats: Stats,
    /// The buffer of the last delivery.
    delivered: Vec<u8>,
    /// The time of the last inner packet, in either direction.
    used_at: Option<Instant>,
    /// The time of the last statements.
    pub(crate) stated_at: Instant,
    now: Instant,
    /// The time of the last call of `handle_timeout`. Other calls advance `now` without running timers.
    handled_at: Instant,
}

impl Tunnel {
    /// Creates one end of the session `session`. `rng` draws the data of path challenges.
    pub fn new(mut config: Config, role: Role, session: SessionId, mut rng: Rng) -> Self {
        config.max_paths = config.max_paths.clamp(1, MAX_PATHS);
        config.max_flows = config.max_flows.clamp(1, MAX_FLOWS);
        let lifetimes = (config.old_epoch_lifetime, config.max_epoch_use);
        Tunnel {
            keys: Keys::new(role, config.suite, lifetimes),
            outgoing: Outgoing::new(&config, &mut rng),
            incoming: Incoming::new(&config),
            config,
            session,
            role,
            rng,
            paths: Vec::new(),
            pool: Pool::default(),
            stats: Stats::default(),
            delivered: Vec::new(),
            used_at: None,
            stated_at: Instant::ZERO,
            now: Instant::ZERO,
            handled_at: Instant::ZERO,
        }
    }

    /// Returns the id of the session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Installs the keys of an epoch. Both ends install the same secrets under the same number; the server does so
    /// first. Returns false if the epoch is not higher than all before, or, at the server, if [`Tunnel::next_epoch`]
    /// passes it over.
    pub fn install_keys(&mut self, now: Instant, epoch: u64, secrets: &Secrets) -> bool {
        self.keys.expire(now);
        self.keys.install(epoch, secrets)
    }

    /// Returns the number of the epoch to install next: 1 at first, then higher than all before. Datagrams show only
    /// the lowest two bits, so a server passes over a number whose bits are those of the epoch that the box uses.
    pub fn next_epoch(&self) -> u64 {
        self.keys.next_number()
    }

    /// Returns true if keys of a new epoch should be installed soon, because the current key has sealed half of
    /// what it may seal, or there is none.
    pub fn wants_keys(&self) -> bool {
        self.keys.wants_epoch()
    }

    /// Adds a path, or changes the settings of one that was removed. A server needs no call: it learns paths from
    /// the box's datagrams. Returns false if the path is in use, or there are too many.
    pub fn add_path(&mut self, now: Instant, path: PathId, config: PathConfig) -> bool {
        match self.index(path) {
            Some(index) if self.paths[index].state == PathState::Down => {
                self.paths[index].configure(config);
                self.outgoing.forget_path(index);
                self.incoming.forget_path(index);
            }
            Some(_) => return false,
            None if self.paths.len() == self.config.max_paths => return false,
            None => {
                let address = Address::configured(config.remote);
                let mtu = PathMtu::new(self.config.least_mtu, config.mtu);
                self.paths.push(Path::new(path, address, mtu));
            }
        }
        let index = self.index(path).expect("the path was added");
        self.paths[index].address.challenge(now, &mut self.rng);
        true
    }

    /// Removes a path. What the path held is sent on other paths.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.set_path_state(now, path, PathState::Down);
    }

    /// Sets the administrative state of a path, and validates the path if it may be used.
    pub fn set_path_state(&mut self, now: Instant, path: PathId, state: PathState) {
        let Some(index) = self.index(path) else {
            return;
        };
        let old = core::mem::replace(&mut self.paths[index].state, state);
        if state == PathState::Down && old != PathState::Down {
            self.outgoing.on_silent_path(index, now - DYING);
        } else if state != PathState::Down {
            self.paths[index].address.challenge(now, &mut self.rng);
        }
    }

    fn index(&self, path: PathId) -> Option<usize> {
        self.paths.iter().position(|p| p.id == path)
    }

    /// Takes an inner packet. `policy` says how its flow is sent. At a server, what the box has stated for the other
    /// direction of the flow precedes. A new urgency is ignored while other packets of the flow wait: all waiting
    /// packets of a flow have one urgency.
    ///
    /// # Errors
    ///
    /// A packet that is refused is dropped, as by a full queue of a router.
    pub fn send(
        &mut self,
        now: Instant,
        policy: FlowPolicy,
        packet: &[u8],
    ) -> Result<(), SendError> {
        if packet.len() > self.config.inner_mtu {
            return Err(SendError::TooLarge);
        }
        if packet.len() > self.largest_packet() {
            self.stats.packets_too_large += 1;
            return Err(SendError::TooLarge);
        }
        self.keys.expire(now);
        if !self.keys.can_seal() {
            return Err(SendError::NoKey);
        }
        self.used_at = Some(now);
        self.keys.on_use(now);
        self.now = now;
        // Sent packets are kept long enough to be sent again if their path falls silent. The factor is a guess.
        let horizon = now - self.horizon() - DYING * 2;
        self.outgoing.expire(horizon, &mut self.pool);
        let sent = self.outgoing.push(now, policy, packet, &mut self.pool);
        match sent {
            Ok(()) => self.stats.packets_sent += 1,
            Err(_) => self.stats.packets_dropped += 1,
        }
        sent
    }

    /// Takes a datagram that came from `remote`, and opens it in place. Bytes that do not open change nothing.
    ///
    /// # Errors
    ///
    /// Names the reason for which the datagram was dropped.
    pub fn receive(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<(), DatagramError> {
        let header = Header::parse(datagram)?;
        if header.session != self.session {
            return Err(DatagramError::Malformed);
        }
        let known = self.index(header.path);
        let may_learn = self.role == Role::Server && self.paths.len() < self.config.max_paths;
        if known.is_none() && !may_learn {
            return Err(DatagramError::TooManyPaths);
        }
        if self.role == Role::Box && !self.is_servers(remote) {
            return Err(DatagramError::UnknownSource);
        }
        let expected = known.map_or(0, |index| self.paths[index].replay.next());
        let number = header::expand(header.number, expected);
        if known.is_some_and(|index| !self.paths[index].replay.is_fresh(number)) {
            self.stats.datagrams_replayed += 1;
            return Err(DatagramError::Replayed);
        }
        let len = datagram.len();
        let opened = self.keys.open(now, &header, number, datagram);
        self.stats.datagrams_forged += u64::from(opened.is_err());
        let frames = opened?;
        let index = known.unwrap_or_else(|| {
            let address = Address::learned(remote);
            let mtu = PathMtu::new(self.config.least_mtu, self.config.learned_mtu);
            self.paths.push(Path::new(header.path, address, mtu));
            self.paths.len() - 1
        });
        self.on_datagram(now, index, number, (remote, len));
        let result = self.on_frames(now, index, number, (remote, frames));
        let view = self.paths_view(now);
        self.incoming.advance(now, &view, &mut self.stats);
        result
    }

    /// Returns true if the server has the address on some path.
    fn is_servers(&self, remote: SocketAddr) -> bool {
        let parts = |addr: SocketAddr| (addr.ip().to_canonical(), addr.port());
        let remotes = self.paths.iter().map(|path| path.address.remote());
        remotes.map(parts).any(|server| server == parts(remote))
    }

    /// Notes an authentic datagram on a path.
    fn on_datagram(
        &mut self,
        now: Instant,
        index: usize,
        number: u64,
        (remote, len): (SocketAddr, usize),
    ) {
        self.now = now;
        let path = &mut self.paths[index];
        let newest = number >= path.replay.next();
        path.replay.insert(number);
        path.arrivals.on_datagram(now, number, len);
        if self.role == Role::Server {
            path.address
                .on_datagram(now, remote, len, newest, &mut self.rng);
        }
    }

    fn on_frames(
        &mut self,
        now: Instant,
        index: usize,
        number: u64,
        (remote, frames): (SocketAddr, &[u8]),
    ) -> Result<(), DatagramError> {
        let view = self.paths_view(now);
        for frame in Frames::new(frames) {
            let (joined, elicits) = match frame? {
                Frame::Packet(label, packet) => (Some((label, self.pool.copy(packet))), true),
                Frame::Head(label, head) => {
                    self.incoming.on_head(now, index, label, &view);
                    let reassembly = &mut self.paths[index].reassembly;
                    (
                        reassembly.on_head(number, label, head, &mut self.pool),
                        true,
                    )
                }
                Frame::Tail(tail) => {
                    let reassembly = &mut self.paths[index].reassembly;
                    (reassembly.on_tail(number, tail, &mut self.pool), true)
                }
                Frame::Latest { flow, sequence } => {
                    self.incoming.on_latest(now, index, flow, sequence, &view);
                    (None, true)
                }
                Frame::Challenge(data) => {
                    self.paths[index].address.on_challenge(data, remote);
                    (None, true)
                }
                other => {
                    self.on_control(now, index, remote, &other);
                    (None, false)
                }
            };
            if elicits {
                self.paths[index].arrivals.want_report(now);
            }
            if let Some((label, packet)) = joined {
                self.used_at = Some(now);
                self.keys.on_use(now);
                let tools = (&mut self.pool, &mut self.stats);
                let stated = self
                    .incoming
                    .on_packet(now, (index, label), packet, &view, tools);
                // The rules are the box's.
                if let Some(statement) = stated.filter(|_| self.role == Role::Server) {
                    self.outgoing.on_statement(&statement);
                }
            }
        }
        Ok(())
    }

    /// Takes a frame about what this end sent.
    fn on_control(&mut self, now: Instant, index: usize, remote: SocketAddr, frame: &Frame) {
        match frame {
            Frame::Report(report) => {
                if let Some(index) = self.index(report.path) {
                    self.paths[index].on_report(now, report);
                }
            }
            Frame::Rerequest {
                flow,
                sequence,
                count,
            } => {
                if let Some(first) = self.outgoing.expand(*flow, *sequence) {
                    self.outgoing.on_rerequest(*flow, first, *count);
                }
            }
            Frame::Response(data) => self.on_response(index, *data, remote),
            // The link is the box's: whether it is metered, or switched off, is not for the server to decide.
            Frame::Use { path, state } if self.role == Role::Server => {
                let differs = |index: usize| self.paths[index].state != *state;
                if self.index(*path).is_some_and(differs) {
                    self.set_path_state(now, *path, *state);
                }
            }
            _ => {}
        }
    }

    /// Takes the response to a challenge of the address or to a probe of the size of packets.
    fn on_response(&mut self, index: usize, data: [u8; 8], remote: SocketAddr) {
        let path = &mut self.paths[index];
        if path.mtu.on_response(data) {
            return;
        }
        match self.role {
            Role::Box => path.address.on_answer(data),
            Role::Server => {
                if path.address.on_response(data, remote) {
                    path.restart();
                    self.outgoing.forget_path(index);
                    self.incoming.forget_path(index);
                }
            }
        }
    }

    /// Returns the size of the largest inner packet that some path takes in two datagrams, in bytes. Unbounded while
    /// no path may be used, because packets then wait for one.
    fn largest_packet(&self) -> usize {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        let largest = usable.map(Path::largest_packet).max();
        largest.unwrap_or(usize::MAX)
    }

    /// Returns the next inner packet from the peer.
    pub fn poll_delivery(&mut self) -> Option<&[u8]> {
        let next = self.incoming.pop_delivery()?;
        let used = core::mem::replace(&mut self.delivered, next);
        self.pool.recycle(used);
        self.stats.packets_delivered += 1;
        Some(&self.delivered)
    }

    /// Returns the time after which a path that carries nothing is probed. While the session is idle, only the box
    /// keeps the mappings of NATs.
    pub(crate) fn probe_interval(&self, now: Instant) -> Option<Duration> {
        match self.role {
            _ if self.is_used(now) => Some(PROBE_INTERVAL),
            Role::Box => Some(KEEPALIVE_INTERVAL),
            Role::Server => None,
        }
    }

    /// Returns true if inner packets came or went lately.
    fn is_used(&self, now: Instant) -> bool {
        self.used_at.is_some_and(|at| now < at + IN_USE)
    }

    /// Returns the longest time between challenges without response. While the session is idle, they keep the
    /// mappings of NATs like other probes.
    pub(crate) fn longest_retry(&self, now: Instant) -> Duration {
        let probe = self.probe_interval(now);
        probe.map_or(MAX_RETRY, |probe| (probe * 4).min(KEEPALIVE_INTERVAL))
    }

    /// Returns the time at which to call [`Tunnel::handle_timeout`], and [`Tunnel::poll_transmit`] after it.
    pub fn next_timeout(&self) -> Option<Instant> {
        let probe = self.probe_interval(self.now);
        let view = self.paths_view(self.now);
        let times = [self.keys.next_timeout(), self.incoming.next_timeout(&view)];
        let paths = self.paths.iter().map(|p| p.next_timeout(probe));
        // Timers that were due at the last `handle_timeout` are left out: their work could not be done, and a time in
        // the past would make the caller spin.
        let not_done = |at: Option<Instant>| at.filter(|at| *at > self.handled_at);
        let next_transmit = self.next_transmit().filter(|at| *at > self.now);
        let times = times.into_iter().chain(paths).map(not_done);
        Instant::earliest(times.chain([next_transmit]))
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.handled_at = now;
        self.keys.expire(now);
        let probe = self.probe_interval(now);
        let is_used = self.is_used(now);
        // Sent packets are kept long enough to be sent again if their path falls silent, as in `send`.
        let horizon = now - self.horizon() - DYING * 2;
        for index in 0..self.paths.len() {
            if is_used {
                self.paths[index].mtu.raise(now);
            }
            if self.paths[index].handle_timeout(now, probe, &mut self.rng) {
                let since = self.paths[index].estimate.unreported_since();
                // Bounds the packets that are sent again if this call comes late. The factor is a guess.
                let longest = self.paths[index].report_timeout().max(DYING * 4);
                let since = since.map_or(now, |at| at.max(now - longest)) - DYING;
                self.outgoing.on_silent_path(index, since);
            }
        }
        let view = self.paths_view(now);
        self.incoming.advance(now, &view, &mut self.stats);
        self.outgoing.expire(horizon, &mut self.pool);
    }

    /// Returns the time after which a packet that was sent has arrived or is lost.
    fn horizon(&self) -> Duration {
        let usable = self.paths.iter().filter(|p| p.is_usable());
        let rtt = |p: &Path| p.estimate.rtt();
        let times = usable.map(|p| rtt(p).map_or(FIRST_TIMEOUT, |rtt| rtt.smoothed * 2));
        times.max().unwrap_or(UNKNOWN_ROUND_TRIP * 2)
    }

    /// Returns the paths as the receiver of packets sees them.
    fn paths_view(&self, now: Instant) -> PathsView {
        let mut view = PathsView {
            alive: [None; MAX_PATHS],
            round_trip: Duration::MAX,
            bound: Duration::ZERO,
        };
        for (path, alive) in self.paths.iter().zip(&mut view.alive) {
            let rtt = path.estimate.rtt();
            let round_trip = rtt.map_or(UNKNOWN_ROUND_TRIP, |rtt| rtt.smoothed + rtt.variation * 4);
            let lateness = path.arrivals.lateness();
            let silent_at = |at: Instant| at + SILENCE + round_trip + lateness;
            if path
                .arrivals
                .last_at()
                .is_none_or(|at| now >= silent_at(at))
            {
                continue;
            }
            *alive = Some(lateness);
            // Half a round trip more, because a resent packet waits in the peer's queue and may be cut in two.
            view.round_trip = view.round_trip.min(round_trip * 3 / 2 + lateness);
            view.bound = view.bound.max(round_trip + lateness);
        }
        if view.round_trip == Duration::MAX {
            view.round_trip = UNKNOWN_ROUND_TRIP;
        }
        view.bound += view.round_trip;
        view
    }

    /// Returns the paths as steering sees them, or `None` if no path may be used.
    pub(crate) fn ways(&self, now: Instant) -> Option<Ways> {
        let (mut paths, mut yields_to) = ([None; MAX_PATHS], [None; MAX_PATHS]);
        let active = |p: &Path| p.is_usable() && p.state == PathState::Active;
        let any_active = self.paths.iter().any(active);
        for (path, way) in self.paths.iter().zip(&mut paths) {
            if active(path) || !any_active && path.is_usable() {
                *way = Some(PathView {
                    id: path.id,
                    delay: path.delay(),
                    rate: path.control.rate(&path.estimate).unwrap_or(0),
                    largest: path.largest_packet(),
                });
            }
        }
        for (path, yields_to) in self.paths.iter().zip(&mut yields_to) {
            *yields_to = path.yields_to(now, 0);
        }
        let best = steer::best(&paths)?;
        let delays = || paths.iter().flatten().filter_map(|p| p.delay);
        let spread = delays().max().unwrap_or(0) - delays().min().unwrap_or(0);
        let spread = Duration::from_micros(spread.max(0) as u64);
        let round_trip = self.paths[best].estimate.rtt();
        let round_trip = round_trip.map_or(UNKNOWN_ROUND_TRIP, |rtt| rtt.smoothed);
        let limits = outgoing::limits(round_trip, spread);
        let rate = paths.iter().flatten().map(|p| p.rate).sum();
        let max_waiting = if self.paths[best].control.is_starting() {
            usize::MAX
        } else {
            outgoing::max_waiting(rate, limits)
        };
        Some(Ways {
            paths,
            yields_to,
            best,
            max_waiting,
            horizon: now - self.horizon(),
            round_trip,
            limits,
        })
    }

    /// Returns the header of the next datagram of a path, and its number.
    pub(crate) fn header(&self, index: usize) -> (Header, u64) {
        let path = &self.paths[index];
        let number = path.estimate.next_number();
        let header = Header {
            phase: 0,
            session: self.session,
            path: path.id,
            number: header::truncate(number),
        };
        (header, number)
    }

    pub(crate) fn is_box(&self) -> bool {
        self.role == Role::Box
    }

    /// Returns the time of the latest inner packet, authentic datagram, `poll_transmit` or `handle_timeout`.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the counters of the session.
    pub fn stats(&self) -> Stats {
        Stats {
            queued_bytes: self.outgoing.waiting_bytes(),
            ..self.stats
        }
    }

    /// Returns counters and estimates of each path, in the order in which they were added.
    pub fn path_stats(&self) -> impl Iterator<Item = PathStats> {
        self.paths.iter().map(|p| PathStats {
            path: p.id,
            usable: p.is_usable(),
            datagrams_sent: p.estimate.next_number(),
            bytes_sent: p.estimate.bytes_sent(),
            datagrams_lost: p.estimate.lost(),
            datagrams_received: p.arrivals.datagrams(),
            bytes_received: p.arrivals.bytes(),
            round_trip: p.estimate.rtt().map(|rtt| rtt.smoothed),
            queue_delay: p.estimate.queue_delay(),
            rate: p.control.rate(&p.estimate),
            mtu: p.mtu.size(),
            lateness: p.arrivals.lateness(),
        })
    }

    /// Returns the traffic of each flow that is remembered: at most twice [`Config::max_flows`].
    pub fn flow_stats(&self) -> Vec<FlowStats> {
        let paths: Vec<PathId> = self.paths.iter().map(|path| path.id).collect();
        usage::join(self.outgoing.usage(), self.incoming.usage(), &paths)
    }

    /// Asserts what always holds.
    pub fn invariants(&self) {
        assert!(self.paths.len() <= self.config.max_paths);
        for path in &self.paths {
            path.reassembly.invariants();
        }
        self.outgoing.invariants();
        self.incoming.invariants();
    }
}
