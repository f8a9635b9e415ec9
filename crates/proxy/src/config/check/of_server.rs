//! Checks of `server.toml`.

use core::net::IpAddr;
use core::time::Duration;

use ipnet::IpNet;

use super::super::moved;
use super::super::policy::DestinationPolicy;
use super::super::server_config::{ServerConfig, UserConfig};
use super::of_box::looks_public;
use super::shadow::{self, no_destination};
use super::{Finding, numbers, weigh};

/// Minimum timeout without a warning. With a shorter timeout, the server gives up before a distant box or
/// destination can answer. A guess.
const MIN_HANDSHAKE: Duration = Duration::from_millis(500);
/// Minimum idle timeout without a warning. A shorter timeout ends connections of users who only pause. A guess.
const MIN_IDLE: Duration = Duration::from_secs(1);

impl ServerConfig {
    /// Returns the mistakes in this configuration, which was read from `text`. Finds only mistakes that the file
    /// alone shows.
    pub fn findings(&self, text: &str) -> Vec<Finding> {
        let mut found = numbers::of_limits(self.limits.buffer(), self.limits.memory);
        found.extend(self.short_times());
        found.extend(self.own_key());
        found.extend(self.user_findings());
        found.extend(self.address_findings());
        found.extend(self.list_findings());
        found.extend(self.target_findings());
        numbers::add_bare(&mut found, numbers::without_unit(text, moved::OF_SERVER));
        found.extend(self.deprecated.iter().map(Finding::of_deprecated));
        found
    }

    fn short_times(&self) -> impl Iterator<Item = Finding> {
        let times = &self.timeouts;
        let all = [
            numbers::too_short(
                "timeouts.handshake",
                times.handshake,
                MIN_HANDSHAKE,
                "distant boxes are cut off before their request is complete",
            ),
            numbers::too_short(
                "timeouts.waiting",
                times.waiting,
                MIN_HANDSHAKE,
                "boxes keep no connections ready, so users wait a round trip or two more",
            ),
            numbers::too_short(
                "timeouts.connect",
                times.connect,
                MIN_HANDSHAKE,
                "distant destinations are not reached",
            ),
            numbers::too_short(
                "expert.idle_timeout",
                times.relay.idle,
                MIN_IDLE,
                "users who pause lose their connections",
            ),
        ];
        all.into_iter().flatten()
    }

    /// Returns a finding if the key file has a public key in place of the private key.
    fn own_key(&self) -> Option<Finding> {
        let at = ("key.private", "key_file");
        let remedy = "name the file that `braid key new FILE` wrote; what that command prints is the \
                      public key, for `[[server]]` of the boxes";
        let user_with_key = self
            .users
            .iter()
            .find(|u| u.key.is_valid() && self.key.has_text_of(&u.key));
        if let Some(user) = user_with_key {
            let message = format!(
                "the file holds the public key of user {}, the server's private key is expected: boxes \
                 take the server for another host",
                user.name
            );
            return Some(Finding::failure(at, message, remedy));
        }
        looks_public(at, &self.key, remedy)
    }

    fn user_findings(&self) -> Vec<Finding> {
        let found = self.users.iter().filter_map(|user| self.wrong_user(user));
        let mut found: Vec<Finding> = found.collect();
        let broken = found.len();
        weigh(
            self.users.len(),
            broken,
            &mut found,
            "no user is left who can use the server",
        );
        found
    }

    /// Returns a finding if the key of a user cannot be the public key of a box.
    fn wrong_user(&self, user: &UserConfig) -> Option<Finding> {
        let problem = if user.key == self.key.public() {
            "is the server's own public key"
        } else if user.key.is_valid() {
            return None;
        } else if self.key.has_text_of(&user.key) {
            "is the server's own private key"
        } else {
            "is no public key but most likely a private one"
        };
        let message =
            format!("`key` {problem}, the public key of the user is expected: the user is refused");
        let remedy = "write the line that `braid key show box.key` prints on the user's box; a private \
                      key that others could read here is to be replaced by a new one";
        let at = ("user.key", format!("user {}", user.name));
        Some(Finding::warning(at, message, remedy))
    }

    fn address_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut broken = 0;
        for addr in &self.listen {
            let range = self.tun.ranges().into_iter().find(|r| r.contains(addr));
            let reason = match (no_destination(*addr), range) {
                (Some(reason), _) => reason.to_owned(),
                (None, Some(range)) => format!("inside {range} of [tun], the server's own"),
                (None, None) => continue,
            };
            let message = format!(
                "it is {reason}, an address of an interface that boxes reach is expected: no box can \
                 connect there"
            );
            let remedy = "write the address that `ip address` shows; where it is right, give [tun] another \
                          range";
            let at = ("listen", format!("listen {addr}"));
            found.push(Finding::warning(at, message, remedy));
            broken += 1;
        }
        weigh(
            self.listen.len(),
            broken,
            &mut found,
            "no address is left at which boxes can connect",
        );
        found
    }

    fn list_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut warn = |list: &str, net: IpNet, message: String, remedy: &str| {
            let at = ("never.list", format!("{list} {net}"));
            found.push(Finding::warning(at, message, remedy));
        };
        for net in &self.allow {
            if let Some(outer) = shadow::within(net, &self.deny) {
                let message = format!(
                    "`deny` has {outer}, which takes precedence, so it never opens anything"
                );
                warn("allow", *net, message, "remove it, or narrow `deny`");
            } else if !self.opens(net) {
                let message = "it opens nothing: only a range that is refused by default, or a part of \
                               one, can be opened, and other destinations are permitted anyway";
                warn(
                    "allow",
                    *net,
                    message.to_owned(),
                    "name the local networks that users may reach",
                );
            }
        }
        for (name, list) in [("allow", &self.allow), ("deny", &self.deny)] {
            for (net, outer) in shadow::nested(list) {
                let message = format!("{outer} has it already, so it never matches");
                warn(name, net, message, "remove it");
            }
        }
        for net in self.deny.iter().filter(|net| net.prefix_len() == 0) {
            let family = if net.addr().is_ipv4() { "IPv4" } else { "IPv6" };
            let message = format!("it has all of {family}, so no {family} destination is reached");
            warn(
                "deny",
                *net,
                message,
                "name the networks that users must not reach",
            );
        }
        found
    }

    /// Returns whether `net` in `allow` may open a range that is refused by default. A single address always may:
    /// it can be one of the machine's own addresses, which the file does not name.
    fn opens(&self, net: &IpNet) -> bool {
        net.prefix_len() == net.max_prefix_len()
            || self.tun.ranges().iter().any(|range| range.contains(net))
            || DestinationPolicy::refuses_within(net)
    }

    fn target_findings(&self) -> Vec<Finding> {
        let is_own = |ip: IpAddr| self.listen.contains(&ip);
        let findings = self.targets.iter().filter_map(|target| {
            let reason = match no_destination(target.ip()) {
                Some(reason) => reason,
                None if is_own(target.ip()) => "an address of this server",
                None => return None,
            };
            let message = format!(
                "it is {reason}, an address on the Internet is expected: the server cannot measure \
                 its path to destinations there, and boxes choose their server without that measurement"
            );
            let remedy = "write an address that answers on this port, such as that of a large web site";
            let at = ("targets", format!("target {target}"));
            Some(Finding::warning(at, message, remedy))
        });
        findings.collect()
    }
}
