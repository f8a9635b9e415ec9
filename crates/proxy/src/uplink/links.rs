//! The links of a box, and the state of servers over them.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use braid_engine::strategy::Strategy;
use braid_engine::{ApiError, ConnId, ConnectOptions, PathConfig, PathId, Stack};
use braid_wire::Instant;

use super::health::{Reach, ServerHealth};
use super::log::LoggedState;
use crate::config::{LinkConfig, ServerEntry};

/// The addresses that one link has on the TUN device, where the engine sends and receives its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The IPv4 address, if the link has IPv4.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address, if the link has IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Size of the largest IP packet that the link carries, bytes.
    pub mtu: u16,
}

/// A link, and the state of each server over it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) path: PathId,
    /// Name in the configuration; the link's number if it has none.
    pub(super) name: String,
    /// True while the operator has switched the link off. The link is then treated as missing.
    pub(super) off: bool,
    pub(super) backup: bool,
    pub(super) metered: bool,
    pub(super) v4: bool,
    pub(super) v6: bool,
    /// Size of the largest IP packet that the link carries, bytes.
    pub(super) mtu: u16,
    /// True while the link has a carrier, an address and a gateway.
    pub(super) up: bool,
    /// True while the stack may use the link: it is [usable](Self::is_usable), and not held back as metered.
    pub(super) open: bool,
    /// The value of the last [`Notice::Reached`](super::Notice::Reached) to the driver.
    pub(super) notified_reached: bool,
    /// The time before which no measurement starts over the link, so that measurements use no more than their
    /// share of the link's rate.
    pub(super) rests_until: Instant,
    /// The part of the rest that the last measurement added.
    pub(super) last_rest: Duration,
    /// The state of each server over the link, by the server's index.
    pub(super) health: Vec<ServerHealth>,
    /// The total cost of the users' regular TCP connections that were opened over the link, in seconds of the
    /// link's rate. The link with the lowest cost gets the next such connection, so that links share them by their
    /// rates.
    pub(super) plain_load_secs: f64,
    pub(super) logged: LoggedState,
}

impl Link {
    /// Returns whether the link has an address family of the server.
    pub(super) fn fits(&self, server: &ServerEntry) -> bool {
        self.v4 && server.v4.is_some() || self.v6 && server.v6.is_some()
    }

    /// Returns whether the link is up and switched on.
    pub(super) fn is_usable(&self) -> bool {
        self.up && !self.off
    }

    /// Returns the time from which a server may be measured over the link. After an alarm, the rest that the last
    /// measurement added is skipped, so that users leave a bad path soon. The skipped rest is only postponed: it
    /// still counts after the next measurement.
    pub(super) fn measurable_at(&self, health: &ServerHealth) -> Instant {
        match health.gauge.is_alarmed() {
            true => self.rests_until - self.last_rest,
            false => self.rests_until,
        }
    }

    /// Returns the number of bytes received over the link since the start.
    pub(super) fn bytes_received(&self, stack: &Stack) -> u64 {
        let totals = stack.path_totals();
        let totals = totals.get(usize::from(self.path.0));
        totals.map_or(0, |t| t.moved.bytes_received)
    }

    /// Returns the best reachability of any server over the link.
    pub(super) fn reach(&self) -> Reach {
        let reached = self.health.iter().map(|health| health.reach);
        reached.min().unwrap_or(Reach::Unknown)
    }

    /// Returns whether the link carries traffic, as far as known. A server that answers and refuses this box
    /// proves that the link works. The link can carry forwarded traffic, although the server serves no user.
    pub(super) fn traffic_reach(&self) -> Reach {
        match self.health.iter().any(ServerHealth::is_refused_by_server) {
            true => Reach::Up,
            false => self.reach(),
        }
    }
}

/// The links, in the order of the configuration.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) configs: Vec<LinkConfig>,
    pub(super) all: Vec<Link>,
    /// The link for all traffic other than TCP.
    pub(super) best: Option<PathId>,
    /// A number that changes whenever the tunnel has to look at the links anew.
    pub(super) version: u64,
}

impl Links {
    pub(super) fn new(configs: Vec<LinkConfig>) -> Self {
        Links {
            configs,
            all: Vec::new(),
            best: None,
            version: 0,
        }
    }

    /// Adds link number `link` of the configuration. The link is down at first. Reuses the path `reused_path` of a
    /// removed link, if it is given and the stack still has it.
    pub(super) fn add(
        &mut self,
        now: Instant,
        (link, addresses, reused_path): (usize, LinkAddresses, Option<PathId>),
        servers: &[ServerEntry],
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        let config = self.configs.get(link);
        let (backup, metered, mtu) = match config {
            Some(l) => (l.backup, l.metered, l.mtu.unwrap_or(addresses.mtu)),
            None => (false, false, addresses.mtu),
        };
        let path_config = PathConfig {
            v4: addresses.v4,
            v6: addresses.v6,
            mtu: mtu.min(addresses.mtu),
            backup,
            ..PathConfig::default()
        };
        let reused = reused_path.filter(|path| stack.reuse_path(*path, path_config));
        let path = match reused {
            Some(path) => path,
            None => stack.add_path(path_config)?,
        };
        stack.set_path_up(now, path, false);
        let mut link = Link {
            path,
            name: config.map_or_else(|| link.to_string(), |l| l.name.clone()),
            off: false,
            backup,
            metered,
            v4: addresses.v4.is_some(),
            v6: addresses.v6.is_some(),
            mtu: mtu.min(addresses.mtu),
            up: false,
            open: false,
            // The driver assumes this at the start.
            notified_reached: true,
            rests_until: now,
            last_rest: Duration::ZERO,
            health: Vec::new(),
            plain_load_secs: 0.0,
            logged: LoggedState::default(),
        };
        let health = servers.iter().map(|server| ServerHealth {
            fits: link.fits(server),
            ..ServerHealth::default()
        });
        link.health = health.collect();
        self.all.push(link);
        self.put_in_order();
        self.version += 1;
        Ok(path)
    }

    /// Sets the addresses of a link. If its address families change, forgets the state of servers over it and
    /// returns true.
    pub(super) fn set_addresses(
        &mut self,
        now: Instant,
        (path, addresses): (PathId, LinkAddresses),
        servers: &[ServerEntry],
        stack: &mut Stack,
    ) -> bool {
        let LinkAddresses { v4, v6, .. } = addresses;
        self.version += 1;
        stack.set_path_addresses(now, path, (v4, v6));
        let Some(link) = self.find_mut(path) else {
            return false;
        };
        let families_before = (link.v4, link.v6);
        (link.v4, link.v6) = (v4.is_some(), v6.is_some());
        if families_before == (link.v4, link.v6) {
            return false;
        }
        for (server, entry) in servers.iter().enumerate() {
            link.health[server].fits = link.fits(entry);
        }
        forget_servers(now, link, stack);
        true
    }

    pub(super) fn set_up(&mut self, path: PathId, up: bool) {
        if let Some(link) = self.find_mut(path) {
            link.up = up;
        }
    }

    /// Returns whether metered links are needed. Metered links come into use once every other link has failed.
    /// They go out of use once another link works. An untried link changes nothing, so that the use does not flap:
    /// using a metered link costs money, and leaving it breaks connections.
    pub(super) fn need_metered(&self) -> bool {
        let is_metered_used = self.open().any(|l| l.metered);
        let worst_reach = if is_metered_used {
            Reach::Up
        } else {
            Reach::Unknown
        };
        let suffices = |l: &Link| !l.metered && l.is_usable() && l.reach() <= worst_reach;
        !self.all.iter().any(suffices)
    }

    /// Lets the stack use a link, or takes the link out of use.
    pub(super) fn set_open(&mut self, now: Instant, index: usize, open: bool, stack: &mut Stack) {
        self.version += 1;
        let link = &mut self.all[index];
        link.open = open;
        // The link may lead through another network when it comes back.
        stack.forget_middleboxes(link.path);
        if link.up && !open {
            // The link still works, so the peer would otherwise go on sending over it.
            stack.leave_path(now, link.path);
        } else {
            stack.set_path_up(now, link.path, open);
        }
        forget_servers(now, link, stack);
    }

    /// Returns the links that the stack may use.
    pub(super) fn open(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().filter(|l| l.open)
    }

    /// Returns the link of a path; `None` if it was removed from the configuration.
    pub(super) fn find(&self, path: PathId) -> Option<&Link> {
        self.all.iter().find(|l| l.path == path)
    }

    pub(super) fn find_mut(&mut self, path: PathId) -> Option<&mut Link> {
        self.all.iter_mut().find(|l| l.path == path)
    }

    /// Returns the states of a server over the open links that fit it.
    pub(super) fn open_health(&self, server: usize) -> impl Iterator<Item = &ServerHealth> {
        self.open()
            .map(move |l| &l.health[server])
            .filter(|health| health.fits)
    }

    /// Returns whether the server is unreachable over every open link that fits it. False without such a link,
    /// because then nothing is known.
    pub(super) fn is_server_down(&self, server: usize) -> bool {
        let mut health = self.open_health(server).peekable();
        health.peek().is_some() && health.all(|health| health.reach == Reach::Down)
    }

    /// Returns whether the server can be used over some open link: no handshake has failed or is late there.
    pub(super) fn is_server_usable(&self, server: usize) -> bool {
        let mut health = self.open_health(server);
        health.any(|health| !health.has_unresolved_failure())
    }

    /// Returns the options to open a connection to a server over a link, by IPv4 if both link and server have it.
    pub(super) fn options(
        &self,
        (server, path): (&ServerEntry, PathId),
        strategy: Box<dyn Strategy>,
    ) -> Result<ConnectOptions, ApiError> {
        let link = self.find(path);
        let v4 = server.endpoint_v4().filter(|_| link.is_some_and(|l| l.v4));
        let v6 = server.endpoint_v6().filter(|_| link.is_some_and(|l| l.v6));
        let remote = v4.or(v6).ok_or(ApiError::NoUsablePath)?;
        // Subflows over links that lack the first family use the other family.
        let remote_alt = match remote.is_ipv4() {
            true => server.endpoint_v6(),
            false => server.endpoint_v4(),
        };
        Ok(ConnectOptions {
            remote_alt,
            path: Some(path),
            ..ConnectOptions::new(remote, strategy)
        })
    }

    /// Sorts the links in the configuration's order, because that is the order of preference.
    pub(super) fn put_in_order(&mut self) {
        let configs = &self.configs;
        let place = |link: &Link| configs.iter().position(|health| health.name == link.name);
        self.all
            .sort_by_key(|link| place(link).unwrap_or(usize::MAX));
    }

    /// Returns the state of a server over an open link.
    pub(super) fn health(&mut self, server: usize, path: PathId) -> Option<&mut ServerHealth> {
        let link = self.find_mut(path).filter(|l| l.open)?;
        link.health.get_mut(server)
    }

    /// Returns the indices of link and server of the probe on connection `conn`; `None` if the connection is no
    /// probe's.
    pub(super) fn probe(&self, conn: ConnId) -> Option<(usize, usize)> {
        self.all.iter().enumerate().find_map(|(l, link)| {
            let probes = |health: &ServerHealth| health.probes().any(|probe| probe == conn);
            link.health.iter().position(probes).map(|s| (l, s))
        })
    }

    /// Returns the link with the name `name`.
    ///
    /// # Errors
    /// No link has this name.
    pub(super) fn by_name(&mut self, name: &str) -> Result<&mut Link, String> {
        let Some(index) = self.all.iter().position(|l| l.name == name) else {
            let names: Vec<&str> = self.all.iter().map(|l| l.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("there is no link {name:?}; the links are {names}"));
        };
        Ok(&mut self.all[index])
    }

    /// Returns whether the link is switched off, or was removed from the configuration.
    pub(super) fn is_off(&self, path: PathId) -> bool {
        self.find(path).is_none_or(|l| l.off)
    }

    /// Returns the best reachability of any server over the open links; `Down` without an open link.
    pub(super) fn reach(&self) -> Reach {
        let reached = self.open().map(Link::reach);
        reached.min().unwrap_or(Reach::Down)
    }

    /// Returns whether there are open links and every server was found unreachable over all of them.
    pub(super) fn are_cut_off(&self) -> bool {
        self.open().next().is_some() && self.reach() == Reach::Down
    }

    /// Chooses the link for all traffic other than TCP. Such traffic cannot be aggregated.
    pub(super) fn choose_best(&self) -> Option<PathId> {
        // Lower is better. A link without answers ranks last, even after metered links. Among the others, price
        // counts first, then the setting `backup`, and then a past answer: an untried link ranks after links that
        // have answered.
        let rank = |l: &Link| {
            let reach = l.traffic_reach();
            (reach == Reach::Down, l.metered, l.backup, reach)
        };
        let rtt = |l: &Link| l.health.iter().map(ServerHealth::rank_rtt).min();
        let challenger = self
            .all
            .iter()
            .filter(|l| l.is_usable())
            .min_by_key(|l| (rank(l), rtt(l)))?;
        let current = self
            .all
            .iter()
            .find(|l| Some(l.path) == self.best && l.is_usable());
        // A change gives every UDP flow another source address and so breaks it. A small gain is no reason for
        // such a change.
        let kept_link = current.filter(|current| {
            let rtts = rtt(challenger).zip(rtt(current));
            // The gain is large if the current round-trip time exceeds 5/4 of the challenger's by more than 5 ms.
            // Both numbers are guesses: 5/4 exceeds the jitter of long paths, and 5 ms exceeds the jitter of short
            // paths.
            let is_gain_small = rtts.is_none_or(|(challenger, current)| {
                challenger.saturating_mul(5) / 4 + 5_000_000 >= current
            });
            // While neither link has answers, a change would break flows for nothing. This does not hold
            // for a metered current link, whose traffic costs money.
            rank(current) == rank(challenger) && is_gain_small
                || rank(current).0 && rank(challenger).0 && !current.metered
        });
        Some(kept_link.unwrap_or(challenger).path)
    }

    /// Returns the time at which a probe over some open link is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let health = self.open().flat_map(|l| &l.health);
        health.filter_map(ServerHealth::due).min()
    }
}

/// Forgets the state of servers over a link, except the last measurement, and plans new probes if the link is
/// open.
fn forget_servers(now: Instant, link: &mut Link, stack: &mut Stack) {
    for health in &mut link.health {
        health.probes().for_each(|probe| stack.abort(now, probe));
        *health = ServerHealth {
            gauge: health.gauge.reopened(),
            ..ServerHealth::unknown(now, link.open, health.fits)
        };
    }
}
