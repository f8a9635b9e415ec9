//! Which destinations the server goes to.

use braid_links::value::prefix;
use braid_proxy::policy::DestinationPolicy;
use ipnet::IpNet;

fn list(prefixes: &[&str]) -> Vec<IpNet> {
    prefixes.iter().map(|c| prefix(c).unwrap()).collect()
}

fn permits(policy: &DestinationPolicy, addr: &str) -> bool {
    policy.permits(addr.parse().unwrap())
}

#[test]
fn what_is_local_to_the_server_is_refused_by_itself() {
    let policy = DestinationPolicy::new(Vec::new(), Vec::new());
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
        "192.168.1.1",
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
        "64:ff9b::808:808",
        "64:ff9b::a00:1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::808:808",
        "2002:808:808::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001::1",
        "100::1",
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
        "2606:4700::1111",
        "2001:db8::1",
        "2003::1",
        "64:ff9b:0:1::808:808",
        "::ffff:8.8.8.8",
    ] {
        assert!(permits(&policy, addr), "{addr}");
    }
}

#[test]
fn deny_is_stronger_than_allow_and_allow_than_the_rest() {
    let mut policy = DestinationPolicy::new(
        list(&["10.1.0.0/16", "203.0.113.9"]),
        list(&["10.1.2.0/24", "198.51.100.0/24", "2001:db8::/32"]),
    );
    policy.set_own(list(&["203.0.113.0/29", "203.0.113.9"]));
    for (addr, expected) in [
        ("10.1.0.1", true),
        ("::ffff:10.1.0.1", true),
        ("10.1.2.1", false),
        ("::ffff:10.1.2.1", false),
        ("64:ff9b::a01:201", false),
        ("10.2.0.1", false),
        ("198.51.100.1", false),
        ("2001:db8::5", false),
        ("203.0.113.7", false),
        ("203.0.113.8", true),
        ("203.0.113.9", true),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
}

/// What is allowed with much else was not meant.
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
    let mut policy = DestinationPolicy::new(list(&allowed), Vec::new());
    policy.set_own(list(&["198.51.100.7", "2001:db8::7", "2001:db8:1::/64"]));
    for addr in [
        "0.0.0.1",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.168.1.1",
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
        "2001:db8:1::1",
        "2002:808:808::1",
        "fd00::1",
        "fe80::1",
        "ff02::1",
    ] {
        assert!(!permits(&policy, addr), "{addr}");
    }
    for addr in ["8.8.8.8", "198.51.100.8", "2001:db8::8"] {
        assert!(permits(&policy, addr), "{addr}");
    }
}

/// All of a range, or a part: also where another one has it within.
#[test]
fn a_prefix_opens_what_it_names() {
    let allowed = ["10.0.0.0/8", "127.0.0.53", "64:ff9b::/96", "fd00:1::/32"];
    let mut policy = DestinationPolicy::new(list(&allowed), Vec::new());
    policy.set_own(list(&["10.0.0.5", "fd00:1::5"]));
    for (addr, expected) in [
        ("10.0.0.1", true),
        ("::ffff:10.0.0.1", true),
        ("127.0.0.53", true),
        ("127.0.0.1", false),
        ("fd00:1::1", true),
        ("fd00:2::1", false),
        // The server itself is another thing than its network.
        ("10.0.0.5", false),
        ("fd00:1::5", false),
        // A translator is open, and what it leads to is looked at.
        ("64:ff9b::808:808", true),
        ("64:ff9b::a00:1", true),
        ("64:ff9b::a00:5", false),
        ("64:ff9b::7f00:1", false),
        ("2002:a00:1::1", false),
    ] {
        assert_eq!(permits(&policy, addr), expected, "{addr}");
    }
    policy.set_rules(list(&["10.0.0.5"]), Vec::new());
    assert!(!permits(&policy, "10.0.0.1"));
    assert!(permits(&policy, "10.0.0.5"), "it is named");
}
