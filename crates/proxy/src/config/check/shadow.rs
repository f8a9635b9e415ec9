//! Detection of list entries that can never match, because other entries match first.

use core::net::IpAddr;
use core::ops::RangeInclusive;

use ipnet::IpNet;

use super::super::rule::Rule;

/// Maximum number of combinations of a rule's values that are examined individually. A guess: each combination is
/// compared with up to 256 rules at a start.
const MAX_CASES: usize = 10_000;

/// Returns the first of `others` that contains all of `net`.
pub(super) fn within<'a>(
    net: &IpNet,
    others: impl IntoIterator<Item = &'a IpNet>,
) -> Option<&'a IpNet> {
    others.into_iter().find(|other| other.contains(net))
}

/// Returns each prefix of `list` that another prefix contains, together with that other prefix. Of two equal
/// prefixes, only the second counts as contained.
pub(super) fn nested(list: &[IpNet]) -> impl Iterator<Item = (IpNet, IpNet)> + '_ {
    list.iter().enumerate().filter_map(|(at, net)| {
        let others = list.iter().enumerate();
        let others = others.filter(move |(i, other)| *i != at && (*i < at || *other != net));
        let outer = within(net, others.map(|(_, other)| other))?;
        Some((*net, *outer))
    })
}

/// Returns the kind of `addr` in words, if it cannot be the destination of packets over a link. `None` otherwise.
pub(super) fn no_destination(addr: IpAddr) -> Option<&'static str> {
    let (loopback, link_local) = match addr {
        IpAddr::V4(a) => (a.is_loopback(), a.is_link_local()),
        IpAddr::V6(a) => (a.is_loopback(), a.is_unicast_link_local()),
    };
    let is_broadcast = matches!(addr, IpAddr::V4(a) if a.is_broadcast());
    match addr {
        _ if addr.is_unspecified() => Some("no address in particular"),
        _ if loopback => Some("this machine itself"),
        _ if link_local => Some("an address of one link only"),
        _ if addr.is_multicast() || is_broadcast => Some("an address of many hosts"),
        _ => None,
    }
}

/// Returns the numbers, from 1, of earlier rules that together match every connection that the rule at `at`
/// matches. The result is empty if the rule can still apply to some connection.
pub(super) fn shadowing(rules: &[Rule], at: usize) -> Vec<usize> {
    let rule = &rules[at];
    let cases = Cases::of(rule);
    let count = cases.ports.len() * cases.addresses.len() * cases.domains.len();
    let mut shadowing = Vec::new();
    let mut add = |number: usize| {
        if !shadowing.contains(&number) {
            shadowing.push(number);
        }
    };
    if count > MAX_CASES {
        // There are too many cases to examine individually, so look for a single rule that matches all of them.
        let all = |other: &Rule| covers_all(other, &cases);
        let covering = rules[..at].iter().position(all);
        return covering.map(|n| n + 1).into_iter().collect();
    }
    for ports in &cases.ports {
        for address in &cases.addresses {
            for domain in &cases.domains {
                let covers = |other: &Rule| {
                    covers_ports(other, ports)
                        && covers_address(other, *address)
                        && covers_domain(other, *domain)
                };
                match rules[..at].iter().position(covers) {
                    Some(number) => add(number + 1),
                    None => return Vec::new(),
                }
            }
        }
    }
    shadowing
}

/// The values of each condition of a rule. A missing condition counts as one value that matches everything.
struct Cases<'a> {
    ports: Vec<RangeInclusive<u16>>,
    addresses: Vec<Option<&'a IpNet>>,
    domains: Vec<Option<&'a str>>,
}

impl<'a> Cases<'a> {
    fn of(rule: &'a Rule) -> Self {
        let ports = match rule.ports.is_empty() {
            true => vec![1..=u16::MAX],
            false => rule.ports.clone(),
        };
        let addresses = match rule.addresses.is_empty() {
            true => vec![None],
            false => rule.addresses.iter().map(Some).collect(),
        };
        let domains = match rule.domains.is_empty() {
            true => vec![None],
            false => rule.domains.iter().map(|d| Some(d.as_str())).collect(),
        };
        Cases {
            ports,
            addresses,
            domains,
        }
    }
}

fn covers_all(rule: &Rule, cases: &Cases<'_>) -> bool {
    cases.ports.iter().all(|ports| covers_ports(rule, ports))
        && cases.addresses.iter().all(|a| covers_address(rule, *a))
        && cases.domains.iter().all(|d| covers_domain(rule, *d))
}

/// Returns whether the ranges of the rule together contain all of `ports`.
fn covers_ports(rule: &Rule, ports: &RangeInclusive<u16>) -> bool {
    if rule.ports.is_empty() {
        return true;
    }
    let mut ranges: Vec<_> = rule.ports.iter().collect();
    ranges.sort_by_key(|range| *range.start());
    // The lowest port that no range so far contains.
    let mut uncovered = u32::from(*ports.start());
    for range in ranges {
        if u32::from(*range.start()) <= uncovered {
            uncovered = uncovered.max(u32::from(*range.end()) + 1);
        }
    }
    uncovered > u32::from(*ports.end())
}

fn covers_address(rule: &Rule, address: Option<&IpNet>) -> bool {
    let has = |net: &IpNet| within(net, &rule.addresses).is_some();
    rule.addresses.is_empty() || address.is_some_and(has)
}

fn covers_domain(rule: &Rule, domain: Option<&str>) -> bool {
    rule.domains.is_empty() || domain.is_some_and(|domain| rule.is_for_name(domain))
}
