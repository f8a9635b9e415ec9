//! Checks of `box.toml`.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_tunnel::Mode;
use ipnet::IpNet;

use super::super::box_config::{BoxConfig, Gateway, LinkConfig, ServerEntry};
use super::super::moved;
use super::super::rule::Rule;
use super::super::tunnel::Datagrams;
use super::shadow::{self, no_destination};
use super::{Finding, numbers, weigh};

/// Minimum timeouts without a warning. With a shorter timeout, the box gives up before a distant server can
/// answer. Both are guesses.
const MIN_CONNECT: Duration = Duration::from_secs(1);
const MIN_ATTEMPT: Duration = Duration::from_millis(50);
/// Minimum idle timeout without a warning. A shorter timeout ends connections of users who only pause. A guess.
const MIN_IDLE: Duration = Duration::from_secs(1);

impl BoxConfig {
    /// Returns the mistakes in this configuration, which was read from `text`. Finds only mistakes that the file
    /// alone shows.
    pub fn findings(&self, text: &str) -> Vec<Finding> {
        let mut found = numbers::of_limits(self.limits.buffer(), self.limits.memory);
        found.extend(self.short_times());
        found.extend(self.own_key());
        found.extend(self.server_findings());
        found.extend(self.link_findings());
        found.extend(self.bypass_findings());
        found.extend(self.rule_findings());
        found.extend(self.socks_findings());
        numbers::add_bare(&mut found, numbers::without_unit(text, moved::OF_BOX));
        found.extend(self.deprecated.iter().map(Finding::of_deprecated));
        found
    }

    fn short_times(&self) -> impl Iterator<Item = Finding> {
        let times = &self.timeouts;
        let all = [
            numbers::too_short(
                "timeouts.connect",
                times.connect,
                MIN_CONNECT,
                "users' connections are given up before a distant destination answers",
            ),
            numbers::too_short(
                "timeouts.attempt",
                times.attempt,
                MIN_ATTEMPT,
                "a server with a longer round trip counts as unreachable",
            ),
            numbers::too_short(
                "expert.idle_timeout",
                times.relay.idle,
                MIN_IDLE,
                "users who pause lose their connections",
            ),
            numbers::too_short(
                "probing.timeout",
                self.probing.timeout,
                MIN_ATTEMPT,
                "links with a longer round trip count as unusable",
            ),
        ];
        all.into_iter().flatten()
    }

    /// Returns a finding if the key file has a public key in place of the private key.
    fn own_key(&self) -> Option<Finding> {
        let at = ("key.private", "key_file");
        let remedy = "name the file that `braid key new FILE` wrote; what that command prints is the \
                      public key, for `[[user]]` of the server";
        let server_with_key = self
            .servers
            .iter()
            .find(|s| s.key.is_valid() && self.key.has_text_of(&s.key));
        if let Some(server) = server_with_key {
            let message = format!(
                "the file holds the public key of {}, the box's private key is expected: the server \
                 refuses the box",
                server.name
            );
            return Some(Finding::failure(at, message, remedy));
        }
        looks_public(at, &self.key, remedy)
    }

    fn server_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut broken = 0;
        for (at, server) in self.servers.iter().enumerate() {
            let unusable = self.unusable(server);
            broken += usize::from(unusable.is_some());
            found.extend(unusable);
            found.extend(same_place(&self.servers[..at], server));
        }
        weigh(self.servers.len(), broken, &mut found, "no server is left");
        found
    }

    /// Returns the reason why a server can never be used, if there is one.
    fn unusable(&self, server: &ServerEntry) -> Option<Finding> {
        let subject = || format!("server {}", server.name);
        let at = || ("server.key", subject());
        let remedy = "write the line that `braid key show server.key` prints on the server";
        if server.key == self.key.public() {
            let message = "`key` is the box's own public key, that of the server is expected: the box \
                           takes the server for another host and does not use it";
            return Some(Finding::warning(at(), message, remedy));
        }
        if self.key.has_text_of(&server.key) && !server.key.is_valid() {
            let message = "`key` is the box's own private key, the public key of the server is expected: \
                           the box takes the server for another host and does not use it";
            let remedy =
                format!("{remedy}; make a new key for the box where others read this file");
            return Some(Finding::warning(at(), message, remedy));
        }
        if !server.key.is_valid() {
            let message = "`key` is no public key but most likely a private one: no server has it, so \
                           the box takes the server for another host and does not use it";
            return Some(Finding::warning(at(), message, remedy));
        }
        let addresses = [server.v4.map(IpAddr::V4), server.v6.map(IpAddr::V6)];
        let mut problems = Vec::new();
        for address in addresses.into_iter().flatten() {
            let reason = no_destination(address).map(str::to_owned).or_else(|| {
                let ranges = self.tun.ranges();
                let range = ranges.iter().find(|range| range.contains(&address))?;
                Some(format!("inside {range} of [tun], which is the box's own"))
            });
            problems.extend(reason.map(|reason| format!("{address} is {reason}")));
        }
        if problems.is_empty() {
            return None;
        }
        let message = format!(
            "{}, a public address is expected: the server is not reached there",
            problems.join(", ")
        );
        let remedy = "write the address at which the server is reached from the Internet; where it is \
                      right, give [tun] another range";
        Some(Finding::warning(
            ("server.address", subject()),
            message,
            remedy,
        ))
    }

    fn link_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut broken = 0;
        for (at, link) in self.links.iter().enumerate() {
            let bad_gateway = self.bad_gateway(link);
            broken += usize::from(bad_gateway.is_some());
            found.extend(bad_gateway);
            found.extend(same_path(&self.links[..at], link));
        }
        weigh(self.links.len(), broken, &mut found, "no link is left");
        found
    }

    /// Returns the reason why a configured gateway of a link cannot be a router, if there is one.
    fn bad_gateway(&self, link: &LinkConfig) -> Option<Finding> {
        let ranges = self.tun.ranges();
        let reason = |gateway: &IpAddr| {
            // IPv6 routers usually have link-local addresses.
            let is_link_local_v6 = matches!(gateway, IpAddr::V6(a) if a.is_unicast_link_local());
            let reason = no_destination(*gateway).filter(|_| !is_link_local_v6);
            let range = ranges.iter().find(|range| range.contains(gateway));
            let reason = reason.map(str::to_owned);
            let reason =
                reason.or_else(|| range.map(|r| format!("inside {r} of [tun], the box's own")));
            let server = self.servers.iter().find(|s| {
                [s.endpoint_v4(), s.endpoint_v6()]
                    .into_iter()
                    .flatten()
                    .any(|endpoint| endpoint.ip() == *gateway)
            });
            let reason = reason.or_else(|| server.map(|s| format!("the server {}", s.name)));
            reason.map(|reason| format!("`gateway` {gateway} is {reason}"))
        };
        let problem = gateways(link).iter().find_map(reason)?;
        let message = format!(
            "{problem}, the address of a router on the link is expected: nothing leaves over this link"
        );
        let remedy =
            "write the gateway that `ip route show default` shows for the interface, or \"auto\"";
        let at = ("link.gateway", format!("link {}", link.name));
        Some(Finding::warning(at, message, remedy))
    }

    fn bypass_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut warn = |net: IpNet, message: String, remedy: &str| {
            let at = ("never.bypass", format!("bypass {net}"));
            found.push(Finding::warning(at, message, remedy));
        };
        let remove = "remove it";
        for (net, outer) in shadow::nested(&self.bypass) {
            warn(
                net,
                format!("{outer} has it already, so it never matches"),
                remove,
            );
        }
        for net in &self.bypass {
            if net.prefix_len() == 0 {
                let family = if net.addr().is_ipv4() { "IPv4" } else { "IPv6" };
                warn(
                    *net,
                    format!("it has all of {family}, so no {family} connection is aggregated"),
                    "name the networks that are to be forwarded",
                );
            } else if let Some(outer) = self.never_intercepted(net) {
                warn(
                    *net,
                    format!("{outer} is never aggregated in any case, so the entry has no effect"),
                    remove,
                );
            }
        }
        found
    }

    /// Returns a range that contains all of `net` and would not be intercepted even with an empty `bypass`.
    fn never_intercepted(&self, net: &IpNet) -> Option<IpNet> {
        let always = BoxConfig {
            bypass: Vec::new(),
            ..self.clone()
        };
        shadow::within(net, &always.bypassed()).copied()
    }

    fn rule_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let subject = ("never.rule", format!("rule {}", at + 1));
            let before = shadow::shadowing(&self.rules, at);
            if !before.is_empty() {
                let numbers: Vec<String> = before.iter().map(usize::to_string).collect();
                let message = format!(
                    "rule {} before it is for the same connections, so it never matches",
                    numbers.join(" and ")
                );
                let remedy = "put it before the other, or remove it";
                found.push(Finding::warning(subject, message, remedy));
                continue;
            }
            // `bypass` does not apply to SOCKS clients, so with SOCKS clients the rule can match.
            if self.socks.is_empty()
                && let Some(message) = self.never_reached(&rule.addresses)
            {
                let remedy = "remove it, or take these destinations out of `bypass`";
                found.push(Finding::warning(subject, message, remedy));
            } else if let Some((message, remedy)) = self.idle_mode(rule) {
                found.push(Finding::warning(subject, message, remedy));
            }
        }
        found
    }

    /// Returns the reason why the mode of a rule has no effect, and the remedy, if that is so.
    fn idle_mode(&self, rule: &Rule) -> Option<(String, &'static str)> {
        let mode = rule.mode?;
        let name = mode.name();
        if self.datagrams == Datagrams::Forward {
            let message = format!(
                "mode = {name:?} is for the tunnel, which `datagrams = \"forward\"` switches off: it has no \
                 effect"
            );
            return Some((message, "remove it, or write datagrams = \"tunnel\""));
        }
        if !rule.domains.is_empty() {
            let message = format!(
                "mode = {name:?} is for packets of the tunnel, which show no name: with `domain` it has no effect"
            );
            return Some((message, "name the destinations by `address` or `port`"));
        }
        let urgency = rule.urgency?;
        if mode == Mode::Redundant && urgency > Mode::LEAST_URGENT_COPIED {
            let message = format!(
                "mode = {name:?} copies packets of urgency 0 to {}, and the rule sets {}: it copies none",
                Mode::LEAST_URGENT_COPIED.level(),
                urgency.level()
            );
            return Some((message, "write urgency = 2, or less"));
        }
        None
    }

    /// Returns the reason why no aggregated connection goes to any of `addresses`.
    fn never_reached(&self, addresses: &[IpNet]) -> Option<String> {
        let forwarded = self.bypassed();
        let all = addresses
            .iter()
            .all(|net| shadow::within(net, &forwarded).is_some());
        let first = addresses.first().filter(|_| all)?;
        let outer = shadow::within(first, &forwarded)?;
        Some(format!(
            "connections to {first} are only forwarded ({outer} is in `bypass` or is never aggregated), \
             so the rule never matches"
        ))
    }

    fn socks_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for addr in &self.socks {
            let at = ("socks", format!("socks {addr}"));
            let range = self
                .tun
                .ranges()
                .into_iter()
                .find(|r| r.contains(&addr.ip()));
            if let Some(range) = range {
                let message = format!(
                    "{} is inside {range} of [tun], an address of the box in its LAN is expected: no \
                     program finds the proxy",
                    addr.ip()
                );
                let remedy = "write the address that `ip address` shows at the LAN's interface";
                found.push(Finding::warning(at, message, remedy));
            }
        }
        found
    }
}

/// Returns a warning if the bytes of a private key may be a public key.
pub(super) fn looks_public(
    at: (&'static str, &'static str),
    key: &braid_secure::keys::PrivateKey,
    remedy: &str,
) -> Option<Finding> {
    if !key.looks_public() {
        return None;
    }
    let message = "the file may hold a public key, a private key is expected: then no other end has the \
                   public key that belongs to it, and every connection is refused. (One in 16 private keys of \
                   earlier versions looks like a public key.)";
    Some(Finding::warning(at, message, remedy))
}

fn gateways(link: &LinkConfig) -> Vec<IpAddr> {
    match link.gateway {
        Gateway::Auto => Vec::new(),
        Gateway::Fixed { v4, v6 } => {
            let v4 = v4.map(IpAddr::V4);
            v4.into_iter().chain(v6.map(IpAddr::V6)).collect()
        }
    }
}

/// Returns a warning if an earlier server has the same address and port.
fn same_place(before: &[ServerEntry], server: &ServerEntry) -> Option<Finding> {
    let endpoints = |s: &ServerEntry| [s.endpoint_v4(), s.endpoint_v6()].into_iter().flatten();
    let shared = |other: &ServerEntry| -> Option<SocketAddr> {
        endpoints(server).find(|endpoint| endpoints(other).any(|o| o == *endpoint))
    };
    let (other, endpoint) = before.iter().find_map(|o| Some((o, shared(o)?)))?;
    let subject = format!("server {}", server.name);
    if other.key != server.key {
        let message = format!(
            "{endpoint} is the address of server {} too, with another key: only one of the two keys can be \
             right, and the other server is never used",
            other.name
        );
        let remedy = "write the right address and the right key of each (on the server: braid key show \
                      server.key), or remove one";
        return Some(Finding::warning(("server.twice", subject), message, remedy));
    }
    let differs = match other.protection == server.protection {
        true => "",
        false => ", protected there and not here or the other way round",
    };
    let message = format!(
        "{endpoint} is server {} already{differs}: both are the same machine, so this entry is of no help if \
         that machine fails",
        other.name
    );
    let remedy = "remove one of the two, or write another server's address";
    Some(Finding::warning(("never.server", subject), message, remedy))
}

/// Returns a warning if an earlier link uses the same interface and next hop.
fn same_path(before: &[LinkConfig], link: &LinkConfig) -> Option<Finding> {
    let on_it = before.iter().filter(|o| o.interface == link.interface);
    let shared = |other: &&LinkConfig| {
        let other_gateways = gateways(other);
        gateways(link)
            .into_iter()
            .find(|g| other_gateways.contains(g))
    };
    let (other, gateway) = on_it.filter_map(|o| Some((o, shared(&o)?))).next()?;
    let message = format!(
        "interface {} and gateway {gateway} are those of link {} too: both are one way out, with the \
         bandwidth of one",
        link.interface, other.name
    );
    let remedy = "give each link a gateway of its own, or remove one of the two";
    let at = ("link.same", format!("link {}", link.name));
    Some(Finding::warning(at, message, remedy))
}
