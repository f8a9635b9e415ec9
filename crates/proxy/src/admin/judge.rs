//! The computation of the verdict on a status.

use braid_secure::Families;

use super::status::{ProxyStatus, Role, RulesStatus, Status};
use super::tunnel_status::TunnelStatus;
use super::verdict::{Condition, Health, Reason, Verdict};

/// Computes the verdict on a status. `machine` has the reasons that the driver has found on the machine.
pub(crate) fn verdict(status: &Status, machine: &[Reason]) -> Verdict {
    let mut reasons = machine.to_vec();
    reasons.extend(of_rules(&status.rules));
    if status.role == Role::Box {
        reasons.extend(of_proxy(status));
        reasons.extend(of_families(status));
        let servers = status.servers.iter();
        reasons.extend(servers.filter_map(|s| s.condition.server_problem(&s.name)));
        let links = status.paths.iter();
        reasons.extend(links.filter_map(|l| l.condition?.link_problem(&l.name)));
        reasons.extend(of_link_server_pairs(status));
        reasons.extend(status.tunnel.as_ref().and_then(of_tunnel));
    }
    Verdict::new(reasons)
}

/// Returns a reason for each link over which a current server does not work, although the link works with another
/// server, and the server works over another link. A network may block a single address or port.
fn of_link_server_pairs(status: &Status) -> impl Iterator<Item = Reason> {
    let used = status.servers.iter().filter(|s| s.current);
    let used = used.filter(|s| s.condition.serves());
    let pairs = used.flat_map(|server| {
        let links = status.paths.iter().zip(&server.over_links);
        links.map(move |(link, over)| (link, server, *over))
    });
    let pairs = pairs.filter(|(link, ..)| link.condition == Some(Condition::Working));
    pairs.filter_map(|(link, server, over)| over.link_to_server_problem(&link.name, &server.name))
}

/// Returns the reason for old keys of the tunnel, once several attempts to replace them have failed.
fn of_tunnel(tunnel: &TunnelStatus) -> Option<Reason> {
    if tunnel.state != "up" || tunnel.attempts_failed < 3 {
        return None;
    }
    let age = tunnel.key_age_secs.unwrap_or_default();
    Some(Reason {
        code: "tunnel-keys".to_owned(),
        subject: tunnel.server.clone(),
        health: Health::Degraded,
        message: format!(
            "the tunnel gets no fresh keys; those in use are {age} s old, and the tunnel ends soon without others"
        ),
        remedy: "check why no connection reaches the server while its datagrams do".to_owned(),
    })
}

/// Returns the reason for missing kernel rules, routes or settings, if any are missing.
fn of_rules(rules: &RulesStatus) -> Option<Reason> {
    let RulesStatus::Missing { why } = rules else {
        return None;
    };
    Some(Reason {
        code: "rules-missing".to_owned(),
        subject: None,
        health: Health::Down,
        message: format!("{why}; users have no service"),
        remedy: "configure the program that removes them so that it leaves these rules and routes alone; the \
                 log names the program if the kernel reports it"
            .to_owned(),
    })
}

/// Returns a reason for each address family that no answering server reaches.
fn of_families(status: &Status) -> Vec<Reason> {
    let answering = status.servers.iter().filter(|s| s.reached);
    let reached = answering.map(|s| s.families).reduce(Families::or);
    let Some(reached) = reached.filter(|_| status.proxy.is_some_and(|p| p.intercepting)) else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    if !reached.v6 {
        reasons.push(Reason {
            code: "no-ipv6".to_owned(),
            subject: None,
            // Nearly every destination on the Internet has IPv4 too.
            health: Health::Working,
            message: "no server reaches IPv6 destinations: new connections there are refused, so that programs \
                      use IPv4"
                .to_owned(),
            remedy: "give a server IPv6 (an address and a default route) if users need it"
                .to_owned(),
        });
    }
    if !reached.v4 {
        reasons.push(Reason {
            code: "no-ipv4".to_owned(),
            subject: None,
            health: Health::Degraded,
            message: "no server reaches IPv4 destinations: new connections there are refused, so that programs \
                      use IPv6; users cannot reach destinations that have IPv4 only"
                .to_owned(),
            remedy: "give a server IPv4 (an address and a default route)".to_owned(),
        });
    }
    reasons
}

/// Returns the reason why new connections are not aggregated, or `None` if they are. The order of the arms
/// matters: an earlier arm has a more exact reason than a later arm.
fn of_proxy(status: &Status) -> Option<Reason> {
    let (code, health, message, remedy) = match status.proxy? {
        ProxyStatus {
            intercepting: true, ..
        } => return None,
        ProxyStatus { on: false, .. } => (
            "switched-off",
            Health::Degraded,
            "aggregation is switched off: new connections are forwarded over one link, unprotected",
            "switch it on: braid box proxy on",
        ),
        _ if status
            .paths
            .iter()
            .all(|l| l.condition == Some(Condition::Down)) =>
        {
            (
                "no-link",
                Health::Down,
                "no link is up: users have no Internet",
                "check the links that are listed below",
            )
        }
        _ if status
            .servers
            .iter()
            .all(|s| s.condition == Condition::Untried) =>
        {
            (
                "starting",
                Health::Degraded,
                "no server has answered yet: new connections are forwarded over one link, unprotected",
                "wait a few seconds",
            )
        }
        _ => (
            "no-server",
            Health::Down,
            "no server can be used: new connections are forwarded over one link, unprotected",
            "check the servers and links that are listed below",
        ),
    };
    Some(Reason {
        code: code.to_owned(),
        subject: None,
        health,
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    })
}
