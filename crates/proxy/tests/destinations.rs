//! Destinations that the server connects to or refuses.

use core::net::IpAddr;

use braid_proxy::policy::{DestinationPolicy, DestinationRules};
use braid_units::value::prefix;
use ipnet::IpNet;

fn list(prefixes: &[&str]) -> Vec<IpNet> {
    prefixes.iter().map(|c| prefix(c).unwrap()).collect()
}

fn permits(policy: &DestinationPolicy, addr: &str) -> bool {
    policy.permits((addr.parse::<IpAddr>().unwrap(), 443).into())
}

fn rules(allow: &[&str], deny: &[&str]) -> DestinationRules {
    DestinationRules {
        allow: list(allow),
        deny: list(deny),
        refuse_ports: vec![25],
    }
}

#[test]
fn local_ranges_are_refused_by_default() {
    let policy = DestinationPolicy::new(rules(&[], &[]));
    for addr in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "168.63.129.16",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.1.2.3",
        "::ffff:169.254.169.254",
        "::ffff:168.63.129.16",
        "::ffff:198.18.0.1",
        "::ffff:0:10.0.0.1",
        "::ffff:0:808:808",
        // ISATAP, with either form of its identifier, behind any prefix.
        "2600::5efe:10.0.0.1",
        "2600::200:5efe:127.0.0.1",
        "2600::200:5efe:a9fe:a9fe",
        "fe80::5efe:8.8.8.8",
        "64:ff9b::808:808",
        "64:ff9b::a00:1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::808:808",
        "2002:808:808::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:1ff:ffff::1",
        "2001:db8::1",
        "3ffe::1",
        "3fff:fff::1",
        "100::1",
        "100:0:0:1::1",
        "fd00:ec2::254",
        "5f00::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
    ] {
        assert!(!permits(&policy, addr), "{addr}");
    }
}

#[test]
fn addresses_beside_a_refused_range_are_permitted() {
    let policy = DestinationPolicy::new(rules(&[], &[]));
    for addr in [
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.0.0.1",
        "128.0.0.1",
        "169.253.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.167.0.1",
        "223.255.255.255",
        "168.63.129.15",
        "168.63.129.17",
        "192.0.1.1",
        "192.88.98.1",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.101.1",
        "203.0.114.1",
        "2001:200::1",
        "2606:4700::1111",
        "2600::5efe:8.8.8.8",
        "2600::1:5efe:10.0.0.1",
        "2003::1",
        "3fff:1000::1",
        "64:ff9b:0:1::808:808",
        "::ffff:8.8.8.8",
    ] {
        assert!(permits(&policy, addr), "{addr}");
    }
}

#[test]
fn deny_precedes_allow_and_allow_precedes_the_defaults() {
    let mut policy = DestinationPolicy::new(rules(
        &["10.1.0.0/16", "198.51.0.9"],
        &["10.1.2.0/24", "198.51.8.0/24", "2a00:db8::/32"],
    ));
    policy.set_own(list(&["198.51.0.0/29", "198.51.0.9"]));
    for (addr, expected) in [
        ("10.1.0.1", true),
        ("::ffff:10.1.0.1", true),
        ("10.1.2.1", false),
        ("::ffff:10.1.2.1", false),
        ("64:ff9b::a01:201", false),
        ("10.2.0.1", false),
        ("198.51.8.1", false),
        ("2a00:db8::5", false),
        ("198.51.0.7", false),
        ("198.51.0.8", true),
        ("198.51.0.9", true),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
}

/// `allow` opens the range of a tunnel, but the IPv4 address to which the tunnel leads must be permitted too.
#[test]
fn an_opened_tunnel_leads_to_no_refused_address() {
    let policy = DestinationPolicy::new(rules(&["2001::/32", "2002::/16"], &["9.9.9.0/24"]));
    for (addr, expected) in [
        ("2002:808:808::1", true),
        ("2002:a00:1::1", false),
        ("2002:909:909::1", false),
        ("2002:808:808::5efe:10.0.0.1", false),
        // Teredo: server 8.8.8.8, clients 8.8.8.8 and 10.0.0.1; server 10.0.0.1.
        ("2001:0:808:808:0:0:f7f7:f7f7", true),
        ("2001:0:808:808:0:0:f5ff:fffe", false),
        ("2001:0:a00:1:0:0:f7f7:f7f7", false),
        ("2001:0:808:808:0:0:f6f6:f6f6", false),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
}

/// An IPv4-mapped address counts as the IPv4 address, so rules for IPv6 do not apply to it.
#[test]
fn a_mapped_address_is_judged_as_its_ipv4_address() {
    let policy = DestinationPolicy::new(rules(&["10.1.0.0/16"], &["::/0", "9.9.9.9"]));
    for (addr, expected) in [
        ("::ffff:8.8.8.8", true),
        ("::ffff:10.1.2.3", true),
        ("::ffff:10.2.2.3", false),
        ("::ffff:9.9.9.9", false),
        ("2606:4700::1111", false),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
}

#[test]
fn refused_ports_are_refused_at_every_address() {
    let policy = DestinationPolicy::new(rules(&["10.0.0.0/8"], &[]));
    for addr in ["8.8.8.8", "10.0.0.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
        let addr: IpAddr = addr.parse().unwrap();
        assert!(!policy.permits((addr, 25).into()), "{addr}");
        assert!(policy.permits((addr, 26).into()), "{addr}");
        assert!(policy.permits((addr, 587).into()), "{addr}");
    }
}

/// A wide prefix opens no refused range within it.
#[test]
fn a_prefix_opens_no_range_that_lies_within_it() {
    let allowed = [
        "0.0.0.0/0",
        "::/0",
        "192.168.0.0/15",
        "128.0.0.0/1",
        "fc00::/6",
        "64:ff00::/24",
        "2000::/3",
    ];
    let mut policy = DestinationPolicy::new(rules(&allowed, &[]));
    policy.set_own(list(&["198.51.0.7", "2a00:db8::7", "2a00:db8:1::/64"]));
    for addr in [
        "0.0.0.1",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.168.1.1",
        "198.51.0.7",
        "198.51.100.7",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "2001::1",
        "2001:db8::7",
        "2a00:db8::7",
        "2a00:db8:1::1",
        "2002:808:808::1",
        "fd00::1",
        "fe80::1",
        "ff02::1",
    ] {
        assert!(!permits(&policy, addr), "{addr}");
    }
    for addr in ["8.8.8.8", "198.51.0.8", "2a00:db8::8"] {
        assert!(permits(&policy, addr), "{addr}");
    }
}

/// A prefix in `allow` opens a whole refused range or a part of it, even if another refused range lies within.
#[test]
fn a_prefix_opens_its_own_range_or_a_part_of_one() {
    let allowed = ["10.0.0.0/8", "127.0.0.53", "64:ff9b::/96", "fd00:1::/32"];
    let mut policy = DestinationPolicy::new(rules(&allowed, &[]));
    policy.set_own(list(&["10.0.0.5", "fd00:1::5"]));
    for (addr, expected) in [
        ("10.0.0.1", true),
        ("::ffff:10.0.0.1", true),
        ("127.0.0.53", true),
        ("127.0.0.1", false),
        ("fd00:1::1", true),
        ("fd00:2::1", false),
        // Opening the network does not open the server's own address.
        ("10.0.0.5", false),
        ("fd00:1::5", false),
        // The range of the translator is open, and the IPv4 address to which it leads decides.
        ("64:ff9b::808:808", true),
        ("64:ff9b::a00:1", true),
        ("64:ff9b::a00:5", false),
        ("64:ff9b::7f00:1", false),
        ("2002:a00:1::1", false),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
    policy.set_rules(rules(&["10.0.0.5"], &[]));
    assert!(!permits(&policy, "10.0.0.1"));
    assert!(permits(&policy, "10.0.0.5"), "it is named");
}

#[test]
fn a_permitted_destination_is_judged_anew_after_a_change() {
    let mut policy = DestinationPolicy::new(rules(&[], &[]));
    assert!(permits(&policy, "8.8.8.8"));
    policy.set_rules(rules(&[], &["8.8.8.8"]));
    assert!(!permits(&policy, "8.8.8.8"), "it is denied now");
    policy.set_rules(rules(&[], &[]));
    assert!(permits(&policy, "8.8.8.8"));
    assert!(!policy.permits(([8, 8, 8, 8], 25).into()), "another port");
    policy.set_own(list(&["8.8.8.8"]));
    assert!(!permits(&policy, "8.8.8.8"), "it is the server's own now");
}
