//! The box's end: one session with a server, which is kept over changes of links, restarts of the server and reloads.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::Stack;
use braid_tunnel::{
    Config, FlowPolicy, Header, PathConfig, PathId, PathState, PathUse, Role, Secrets, SendError,
    Suite, Transmit, Tunnel,
};
use braid_wire::{Instant, Rng};
use ipnet::IpNet;

use super::inner::Inner;
use super::sharing::Sharing;
use crate::admin::tunnel_status::{
    ShownFlows, TunnelFlowStatus, TunnelPathStatus, TunnelSessionStatus, TunnelStatus,
};
use crate::app::{TunnelChange, TunnelDown};
use crate::config::Rule;
use crate::protocol::socks::Destination;
use crate::protocol::tunnel::{BoxId, Grant, Request};

/// The age of an epoch at which a session in use gets the next one. The keys of an epoch then open no more than 5 min
/// of recorded traffic, with time for attempts that fail.
const EPOCH_AGE: Duration = Duration::from_secs(240);
/// A session ends if its keys are overdue for this long. The box retries until then, so no keys carry traffic for more
/// than 10 min.
const OVERDUE_LIMIT: Duration = Duration::from_secs(360);
/// The time for which all paths are silent before the box asks for another epoch: a server that has restarted does not
/// know the session, and answers nothing. A guess: longer than a tunnel takes to notice that one link has failed, which
/// is a few round trips.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// The time for which all paths are silent before packets are forwarded without the tunnel. Every flow then gets
/// another address, so a short outage is waited out. A guess.
const DOWN_AFTER: Duration = Duration::from_secs(5);
/// The pause after an attempt to get a session or an epoch that failed, doubled with each one up to the longest. Both
/// are guesses.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// The MTU of Ethernet.
const ETHERNET_MTU: u16 = 1500;
/// The least MTU of a path that the tunnel uses (RFC 791).
const LEAST_MTU: u16 = 576;

/// A link as the tunnel needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TunnelLink {
    /// The link's path.
    pub(crate) path: PathId,
    /// The server's address over the link, with the port of TCP.
    pub(crate) remote: SocketAddr,
    /// The size of the largest IP packet that the link carries, bytes.
    pub(crate) mtu: u16,
    /// The use of the link.
    pub(crate) state: PathState,
}

/// The result of an attempt to get a session or an epoch.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The server has granted it.
    Granted {
        /// Index of the server.
        server: usize,
        /// The grant.
        grant: Grant,
        /// The secrets of the grant's epoch.
        secrets: Secrets,
    },
    /// One server refuses. Others may grant it.
    Refused {
        /// Index of the server.
        server: usize,
        /// The reason, if no other server grants it.
        reason: TunnelDown,
    },
    /// No server grants it now.
    Failed(TunnelDown),
}

/// The server that has the session of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionServer {
    /// Index of the server.
    pub(crate) server: usize,
    /// True while the session carries packets, or its outage is too short for packets to be forwarded instead. No other
    /// server may replace it then.
    pub(crate) works: bool,
}

/// Packets of the LAN and datagrams that were dropped.
#[derive(Debug, Clone, Copy, Default)]
struct Drops {
    no_session: u64,
    no_key: u64,
    malformed: u64,
    too_large: u64,
    queue: u64,
    invalid: u64,
}

impl Drops {
    fn by_name(self) -> BTreeMap<String, u64> {
        let drops = [
            ("no_session", self.no_session),
            ("no_key", self.no_key),
            ("malformed_packet", self.malformed),
            ("too_large", self.too_large),
            ("queue", self.queue),
            ("invalid_datagram", self.invalid),
        ];
        drops.map(|(name, n)| (name.to_owned(), n)).into()
    }
}

/// A session with a server.
#[derive(Debug)]
struct Session {
    tunnel: Tunnel,
    server: usize,
    grant: Grant,
    /// The links in the order in which the tunnel has them.
    links: Vec<TunnelLink>,
    /// The time of the last epoch.
    keyed_at: Instant,
    /// True if an inner packet has passed since the last epoch.
    is_used: bool,
    /// True if a path has worked.
    is_heard: bool,
    /// The time since which no path is known to work, if that is so.
    silent_since: Option<Instant>,
    /// The time since which the keys are due for replacement, if they are.
    overdue_since: Option<Instant>,
    sharing: Sharing,
    /// True while there is something to exchange.
    exchanges: bool,
}

impl Session {
    fn has_link(&self) -> bool {
        let mut links = self.links.iter();
        links.any(|link| link.state != PathState::Down)
    }

    /// Returns the time of the next exchange with the engine.
    fn next_exchange(&self) -> Option<Instant> {
        self.exchanges.then(|| self.sharing.due())
    }

    fn has_usable_path(&self) -> bool {
        self.tunnel.path_stats().any(|path| path.usable)
    }
}

/// The box's end of the tunnel.
#[derive(Debug)]
pub(crate) struct BoxTunnel {
    boxed: BoxId,
    /// The ranges of this machine that no address in the tunnel may lie in.
    taken: Vec<IpNet>,
    rng: Rng,
    /// True once the driver has sockets and a packet device for the tunnel.
    is_enabled: bool,
    session: Option<Session>,
    /// The part of the last session in the engine's counts, until it is taken back.
    ended: Vec<Sharing>,
    /// True while an attempt is under way.
    is_asking: bool,
    /// True once the box asks for nothing any more, because it is being stopped.
    is_ending: bool,
    /// The time of the next attempt, if one is due.
    ask_at: Option<Instant>,
    pause: Duration,
    /// Number of attempts in a row that have failed.
    failed: u64,
    /// The reason for which there is no tunnel, once it is known.
    down: Option<TunnelDown>,
    /// The state that the driver knows.
    told: Option<TunnelChange>,
    /// A change that the driver has to learn.
    change: Option<TunnelChange>,
    opened: u64,
    rekeyed: u64,
    drops: Drops,
}

impl BoxTunnel {
    /// Creates the end of the box called `name`. No address in the tunnel may lie in `taken`. `rng` draws the data of
    /// path challenges.
    pub(crate) fn new(name: &str, taken: Vec<IpNet>, rng: Rng) -> Self {
        BoxTunnel {
            boxed: BoxId::of_name(name),
            taken,
            rng,
            is_enabled: false,
            session: None,
            ended: Vec::new(),
            is_asking: false,
            is_ending: false,
            ask_at: None,
            pause: MIN_PAUSE,
            failed: 0,
            down: None,
            told: None,
            change: None,
            opened: 0,
            rekeyed: 0,
            drops: Drops::default(),
        }
    }

    /// Starts to ask for a session.
    pub(crate) fn enable(&mut self) {
        self.is_enabled = true;
        self.ask_at = Some(Instant::ZERO);
    }

    /// Returns whether the driver can carry datagrams.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Asks for nothing any more. The session goes on.
    pub(crate) fn stop_asking(&mut self) {
        self.is_ending = true;
    }

    /// Returns whether an attempt may be planned: none is under way or planned already.
    fn may_plan(&self) -> bool {
        !self.is_asking && !self.is_ending && self.ask_at.is_none()
    }

    /// Returns the time of the planned attempt.
    fn next_attempt(&self) -> Option<Instant> {
        let may_ask = self.is_enabled && !self.is_asking && !self.is_ending;
        self.ask_at.filter(|_| may_ask)
    }

    /// Returns the request that is due at `now`, and the server with the session, if there is one. The caller reports
    /// the result by [`Self::on_attempt`].
    pub(crate) fn poll_request(
        &mut self,
        now: Instant,
    ) -> Option<(Request, Option<SessionServer>)> {
        self.next_attempt().filter(|at| *at <= now)?;
        self.is_asking = true;
        self.ask_at = None;
        let session = self.session.as_ref();
        let request = Request {
            boxed: self.boxed,
            session: session.map(|session| session.tunnel.session()),
            // The uplink lowers this to the smallest MTU of its links.
            path_mtu: ETHERNET_MTU,
            suites: suites(),
        };
        let of_session = session.map(|session| SessionServer {
            server: session.server,
            // The outage may end before packets are forwarded without the tunnel.
            works: (session.silent_since).is_none_or(|since| now < since + DOWN_AFTER),
        });
        Some((request, of_session))
    }

    /// Takes the result of a request.
    pub(crate) fn on_attempt(&mut self, now: Instant, attempt: Attempt) {
        self.is_asking = false;
        match attempt {
            Attempt::Granted {
                server,
                grant,
                secrets,
            } => self.on_granted(now, server, grant, &secrets),
            Attempt::Refused { server, reason } => {
                // A server that refuses knows no session of this box, or wants it no more.
                if self.server() == Some(server) {
                    self.end_session(reason);
                }
                // The next server is asked; none is asked twice until all were.
                self.ask_at = Some(now);
            }
            Attempt::Failed(reason) => self.on_failed(now, reason),
        }
    }

    fn on_failed(&mut self, now: Instant, reason: TunnelDown) {
        self.failed += 1;
        match &self.session {
            None => self.tell_down(reason),
            Some(session) if session.silent_since.is_none() && self.failed == 1 => {
                tracing::warn!(
                    %reason,
                    "the tunnel got no fresh keys: it goes on with the old ones for some minutes, and asks again"
                );
            }
            Some(_) => {}
        }
        self.ask_later(now);
    }

    fn end_session(&mut self, reason: TunnelDown) {
        self.drop_session();
        self.tell_down(reason);
    }

    fn drop_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.ended
                .extend(Some(session.sharing).filter(Sharing::is_counted));
        }
    }

    fn ask_later(&mut self, now: Instant) {
        self.ask_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    fn on_granted(&mut self, now: Instant, server: usize, grant: Grant, secrets: &Secrets) {
        let is_taken = |addr: IpAddr| self.taken.iter().any(|net| net.contains(&addr));
        if grant.addresses().any(is_taken) {
            return self.on_failed(now, TunnelDown::AddressInUse);
        }
        let epoch = grant.epoch;
        let is_known = |s: &&mut Session| s.grant.session == grant.session && s.server == server;
        if let Some(session) = self.session.as_mut().filter(is_known) {
            if !session.tunnel.install_keys(now, epoch, secrets) {
                return self.on_failed(now, TunnelDown::KeysExpired);
            }
            // The tunnel takes no larger packets than at the start.
            let mtu = grant.mtu.min(session.grant.mtu);
            session.grant = Grant { mtu, ..grant };
            session.keyed_at = now;
            session.is_used = false;
            session.overdue_since = None;
            self.rekeyed += 1;
            if self.is_up() {
                self.tell_up();
            }
        } else {
            let config = Config {
                suite: grant.suite,
                inner_mtu: usize::from(grant.mtu),
                ..Config::default()
            };
            let mut seed = [0; 32];
            self.rng.fill(&mut seed);
            let rng = Rng::from_seed(seed);
            let mut tunnel = Tunnel::new(config, Role::Box, grant.session, rng);
            tunnel.install_keys(now, epoch, secrets);
            self.opened += 1;
            self.drop_session();
            self.session = Some(Session {
                tunnel,
                server,
                grant,
                links: Vec::new(),
                keyed_at: now,
                is_used: false,
                is_heard: false,
                silent_since: Some(now),
                overdue_since: None,
                sharing: Sharing::default(),
                exchanges: true,
            });
        }
        self.failed = 0;
        // While no datagram comes back, the next attempt waits longer each time.
        if self
            .session
            .as_ref()
            .is_some_and(|s| s.silent_since.is_none())
        {
            self.pause = MIN_PAUSE;
        } else {
            self.ask_later(now);
        }
    }

    /// Asks at once if there is no working session, because links or servers have changed.
    pub(crate) fn retry(&mut self, now: Instant) {
        let works = |session: &Session| session.silent_since.is_none();
        if !self.session.as_ref().is_some_and(works) {
            self.ask_at = self.ask_at.map(|at| at.min(now));
            self.pause = MIN_PAUSE;
        }
    }

    /// Returns the server of the session.
    pub(crate) fn server(&self) -> Option<usize> {
        self.session.as_ref().map(|session| session.server)
    }

    /// Applies the state of the links to the server of the session.
    pub(crate) fn set_links(&mut self, now: Instant, links: &[TunnelLink]) {
        let Some(Session {
            tunnel,
            links: known,
            grant,
            ..
        }) = &mut self.session
        else {
            return;
        };
        if known.as_slice() == links {
            return;
        }
        for old in known.iter() {
            let goes_on = |new: &&TunnelLink| {
                (new.path, new.remote, new.mtu) == (old.path, old.remote, old.mtu)
            };
            if !links.iter().any(|new| goes_on(&new)) {
                tunnel.remove_path(now, old.path);
            }
        }
        for link in links {
            let config = PathConfig {
                remote: SocketAddr::new(link.remote.ip(), grant.port),
                mtu: usize::from(link.mtu.max(LEAST_MTU)),
            };
            let before = known.iter().find(|old| old.path == link.path);
            // A path that is in use stays as it is.
            let is_new = tunnel.add_path(now, link.path, config);
            if !is_new && before.is_none() {
                // The session has as many paths as it may have.
                continue;
            }
            if is_new || before.is_none_or(|before| before.state != link.state) {
                tunnel.set_path_state(now, link.path, link.state);
            }
        }
        let has_path = |link: &&TunnelLink| tunnel.path_stats().any(|p| p.path == link.path);
        *known = links.iter().filter(has_path).copied().collect();
    }

    /// Handles the end of a standstill of this machine: NATs may have forgotten their mappings, so every path is
    /// validated at once.
    pub(crate) fn validate_all(&mut self, now: Instant) {
        if let Some(session) = &mut self.session {
            for link in &session.links {
                session.tunnel.set_path_state(now, link.path, link.state);
            }
        }
    }

    /// Handles a change of the network of a link: a NAT forgets its mappings, so the path is validated at once.
    pub(crate) fn validate(&mut self, now: Instant, path: PathId) {
        if let Some(session) = &mut self.session
            && let Some(link) = session.links.iter().find(|link| link.path == path)
        {
            session.tunnel.set_path_state(now, path, link.state);
        }
    }

    /// Applies new indices of servers: `moved` maps old indices to new ones. The session ends if its server was removed
    /// or, whatever its server, if the box has another key: `moved` is empty then.
    pub(crate) fn move_server(&mut self, now: Instant, moved: &[Option<usize>]) {
        let Some(session) = &mut self.session else {
            return;
        };
        match moved.get(session.server).copied().flatten() {
            Some(server) => session.server = server,
            None => {
                self.end_session(TunnelDown::NoServer);
                self.ask_at = Some(now);
                self.pause = MIN_PAUSE;
            }
        }
    }

    /// Handles a datagram that came over the link of `path`.
    pub(crate) fn on_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        remote: SocketAddr,
        datagram: &mut [u8],
    ) {
        let is_up = self.is_up();
        let Some(session) = &mut self.session else {
            self.drops.no_session += 1;
            return;
        };
        let is_of_path = Header::parse(datagram).is_ok_and(|header| header.path == path);
        if !is_of_path || session.tunnel.receive(now, remote, datagram).is_err() {
            self.drops.invalid += 1;
            return;
        }
        session.exchanges = true;
        let works = session.silent_since.is_none() && is_up;
        // A datagram that comes proves nothing for those that go.
        if works || !session.has_usable_path() {
            return;
        }
        session.is_heard = true;
        if session.silent_since.take().is_some() {
            self.pause = MIN_PAUSE;
            self.ask_at = None;
        }
        self.tell_up();
    }

    /// Handles a packet of the LAN.
    pub(crate) fn on_packet(&mut self, now: Instant, rules: &[Rule], packet: &[u8]) {
        let Some(session) = &mut self.session else {
            self.drops.no_session += 1;
            return;
        };
        let policy = policy(rules, packet);
        session.is_used = true;
        session.exchanges = true;
        let drops = &mut self.drops;
        let dropped = match session.tunnel.send(now, policy, packet) {
            Ok(()) => return,
            Err(SendError::NoKey) => &mut drops.no_key,
            Err(SendError::TooLarge) => &mut drops.too_large,
            Err(SendError::QueueFull) => &mut drops.queue,
            Err(_) => &mut drops.malformed,
        };
        *dropped += 1;
    }

    /// Appends the next datagram to `buf`; returns the link's path and the address it goes to.
    pub(crate) fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.session.as_mut()?.tunnel.poll_transmit(now, buf)
    }

    /// Returns the next packet for the LAN.
    pub(crate) fn poll_packet(&mut self) -> Option<&[u8]> {
        let session = self.session.as_mut()?;
        let packet = session.tunnel.poll_delivery()?;
        session.is_used = true;
        Some(packet)
    }

    /// Returns the next change that the driver has to learn.
    pub(crate) fn poll_change(&mut self) -> Option<TunnelChange> {
        let change = self.change.take()?;
        self.told = Some(change);
        Some(change)
    }

    /// Returns whether the driver knows that the tunnel carries packets, or is about to learn it.
    fn is_up(&self) -> bool {
        matches!(self.change.or(self.told), Some(TunnelChange::Up { .. }))
    }

    fn tell_up(&mut self) {
        let Some(session) = &self.session else {
            return;
        };
        let grant = &session.grant;
        self.tell(TunnelChange::Up {
            v4: grant.v4,
            v6: grant.v6,
            mtu: grant.mtu,
        });
        self.down = None;
    }

    fn tell_down(&mut self, reason: TunnelDown) {
        self.down = Some(reason);
        self.tell(TunnelChange::Down { reason });
    }

    fn tell(&mut self, change: TunnelChange) {
        self.change = Some(change).filter(|change| self.told != Some(*change));
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.is_enabled {
            return None;
        }
        let ask_at = self.next_attempt();
        if !self.ended.is_empty() {
            return Some(Instant::ZERO);
        }
        let Some(session) = &self.session else {
            return ask_at;
        };
        let rekey_at = self.rekey_at();
        let tunnel = session.tunnel.next_timeout();
        let times = [
            ask_at,
            rekey_at,
            self.keys_end(),
            tunnel,
            self.judge_silence_at(),
            session.next_exchange(),
        ];
        Instant::earliest(times)
    }

    /// Exchanges with the engine what each link carries, if that is due.
    pub(crate) fn exchange(&mut self, now: Instant, stack: &mut Stack) {
        for mut ended in self.ended.drain(..) {
            ended.end(stack);
        }
        let Some(session) = &mut self.session else {
            return;
        };
        if session.next_exchange().is_some_and(|at| at <= now) {
            // A box has one path of the engine for each link, with the same number.
            let link = |used: &PathUse| Some((used.remote.ip().to_canonical(), used.path));
            let sharing = &mut session.sharing;
            session.exchanges = sharing.exchange(now, &mut session.tunnel, stack, link);
        }
    }

    /// Returns the time at which the session in use gets another epoch.
    fn rekey_at(&self) -> Option<Instant> {
        let session = self.session.as_ref().filter(|s| s.is_used)?;
        self.may_plan().then_some(session.keyed_at + EPOCH_AGE)
    }

    /// Returns the time at which the session ends for want of fresh keys. A request under way may still bring them.
    fn keys_end(&self) -> Option<Instant> {
        let session = self.session.as_ref().filter(|_| !self.is_asking)?;
        Some(session.overdue_since? + OVERDUE_LIMIT)
    }

    /// Returns the next time at which a silence that goes on makes the box ask for keys or report the tunnel down.
    fn judge_silence_at(&self) -> Option<Instant> {
        let since = self.session.as_ref()?.silent_since?;
        let ask_at = self.may_plan().then_some(since + ASK_AFTER);
        let has_said = matches!(self.change.or(self.told), Some(TunnelChange::Down { .. }));
        let down_at = (!has_said).then_some(since + DOWN_AFTER);
        Instant::earliest([ask_at, down_at])
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.tunnel.next_timeout().is_some_and(|at| at <= now) {
            session.tunnel.handle_timeout(now);
        }
        // A box without any link is not silent: it has no path on which an answer could come.
        if session.is_heard {
            // A path that is down is not usable.
            let is_silent = session.has_link() && !session.has_usable_path();
            session.silent_since = is_silent.then(|| session.silent_since.unwrap_or(now));
        }
        let wants_keys = session.tunnel.wants_keys();
        let is_due = wants_keys || self.rekey_at().is_some_and(|at| at <= now);
        if is_due && self.may_plan() {
            self.ask_at = Some(now);
            if let Some(session) = &mut self.session {
                session.overdue_since.get_or_insert(now);
            }
        }
        if self.keys_end().is_some_and(|at| at <= now) {
            // The next request names no session, so the server opens another one with keys of its own.
            self.end_session(TunnelDown::KeysExpired);
            self.ask_at = Some(now);
            self.pause = MIN_PAUSE;
            return;
        }
        self.judge_silence(now);
    }

    fn judge_silence(&mut self, now: Instant) {
        let Some(since) = self.session.as_ref().and_then(|s| s.silent_since) else {
            return;
        };
        if now >= since + ASK_AFTER && self.may_plan() {
            self.ask_at = Some(now);
        }
        if now >= since + DOWN_AFTER {
            self.tell_down(TunnelDown::Unanswered);
        }
    }

    /// Returns the state at `now`. `link` returns the name of a path's link, `server` the name of a server.
    pub(crate) fn status(
        &self,
        now: Instant,
        link: impl Fn(PathId) -> String,
        server: impl Fn(usize) -> Option<String>,
    ) -> TunnelStatus {
        let has_link = self.session.as_ref().is_none_or(Session::has_link);
        let is_up = self.is_up() && has_link;
        let down = self.down.filter(|_| has_link);
        let down = down.or((!has_link).then_some(TunnelDown::NoLink));
        let state = match (self.is_enabled, is_up, down.is_none()) {
            (false, ..) => "off",
            (true, true, _) => "up",
            (true, false, true) => "asking",
            (true, false, false) => "down",
        };
        let mut flows = ShownFlows::new(now);
        let session = self.session.as_ref().map(|session| {
            let stats = session.tunnel.stats();
            let paths = session.tunnel.path_stats();
            TunnelSessionStatus {
                user: None,
                v4: session.grant.v4,
                v6: session.grant.v6,
                epoch: session.grant.epoch,
                packets_in: stats.packets_delivered,
                packets_out: stats.packets_sent,
                flows: flows.add((), session.tunnel.flow_stats()),
                paths: paths
                    .map(|p| TunnelPathStatus::new(link(p.path), &p))
                    .collect(),
            }
        });
        let show = |(), flow: &_| TunnelFlowStatus::new(now, flow, true, &link);
        let (flows_total, flows) = flows.finish(show);
        TunnelStatus {
            state: state.to_owned(),
            reason: down
                .filter(|_| self.is_enabled && !is_up)
                .map(|down| down.to_string()),
            server: self.server().and_then(server),
            mtu: self.session.as_ref().map(|session| session.grant.mtu),
            sessions_total: usize::from(session.is_some()),
            contended: 0,
            sessions: session.into_iter().collect(),
            flows_total,
            flows,
            opened: self.opened,
            rekeyed: self.rekeyed,
            attempts_failed: self.failed,
            key_age_secs: self.session.as_ref().map(|session| {
                let age = now.saturating_since(session.keyed_at);
                age.as_secs()
            }),
            drops: self.drops.by_name(),
        }
    }
}

/// Returns the treatment of a packet by the first rule for its destination, and its urgency by port and code point if
/// the rule has none. Rules on names match no packet.
fn policy(rules: &[Rule], packet: &[u8]) -> FlowPolicy {
    let Some(inner) = Inner::parse(packet) else {
        return FlowPolicy::default();
    };
    let by_rule = || {
        // Most boxes have no rules, and then nothing is compared.
        let destination = (!rules.is_empty()).then(|| Destination::from(inner.destination()))?;
        let rule = rules.iter().find(|rule| rule.is_for(&destination, None))?;
        Some(FlowPolicy {
            urgency: rule.urgency,
            mode: rule.mode,
        })
    };
    by_rule().unwrap_or_default().or(inner.policy())
}

/// Returns the ciphers, the one that this processor does faster first.
fn suites() -> [Option<Suite>; 2] {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    let (aes, other) = (Some(Suite::Aes256Gcm), Some(Suite::ChaCha20Poly1305));
    if has_aes { [aes, other] } else { [other, aes] }
}

#[cfg(test)]
mod tests;
