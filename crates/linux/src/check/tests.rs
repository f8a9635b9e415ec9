//! Tests of the findings about configurations on machines that are given as literals.

use std::net::IpAddr;

use braid_proxy::config::{BoxConfig, Finding, ServerConfig, Verdict};
use braid_secure::keys::PrivateKey;

use super::machine::Machine;
use super::{boxes, servers};
use crate::net::routes::{Address, DefaultRoute, Interface, Packets, Routes};

use Verdict::{Failure, Warning};

const LAN: u32 = 2;
const WLAN: u32 = 3;
const LTE: u32 = 4;

fn key(n: u8) -> PrivateKey {
    PrivateKey::generate([n; 32])
}

fn interface(index: u32, name: &str) -> Interface {
    Interface {
        index,
        name: name.to_owned(),
        running: true,
        loopback: name == "lo",
        mtu: 1_500,
        packets: Packets::default(),
    }
}

fn address(interface: u32, text: &str) -> Address {
    let (addr, prefix_len) = text.split_once('/').unwrap();
    Address {
        interface,
        addr: addr.parse().unwrap(),
        prefix_len: prefix_len.parse().unwrap(),
        deprecated: false,
        secondary: false,
    }
}

fn default(interface: u32, gateway: &str) -> DefaultRoute {
    let gateway: IpAddr = gateway.parse().unwrap();
    DefaultRoute {
        interface,
        gateway: Some(gateway),
        v6: gateway.is_ipv6(),
        metric: 100,
    }
}

/// Returns a machine whose local network and two links work.
fn machine() -> Machine {
    Machine {
        interfaces: vec![
            interface(1, "lo"),
            interface(LAN, "eth0"),
            interface(WLAN, "wlan0"),
            interface(LTE, "wwan0"),
        ],
        addresses: vec![
            address(LAN, "192.168.1.1/24"),
            address(LAN, "fd00:1::1/64"),
            address(WLAN, "192.0.2.10/24"),
            address(WLAN, "2001:db8:2::10/64"),
            address(LTE, "198.51.100.10/24"),
        ],
        defaults: vec![
            default(WLAN, "192.0.2.1"),
            default(LTE, "198.51.100.1"),
            default(WLAN, "fe80::1"),
        ],
        neighbour_networks: Vec::new(),
        all_routes: Routes::default(),
        v6: true,
    }
}

fn boxed(change: impl Fn(String) -> String) -> BoxConfig {
    let text = format!(
        "lan = \"eth0\"\n#top\n[[link]]\ninterface = \"wlan0\"\n[[link]]\ninterface = \"wwan0\"\n#link\n\
         [server]\naddress = [\"203.0.113.7\", \"2001:db8:7::7\"]\nkey = \"{}\"\n",
        key(2).public()
    );
    let text = change(text);
    BoxConfig::with_key("box.toml", &text, key(1)).unwrap_or_else(|e| panic!("{e}"))
}

fn usual() -> BoxConfig {
    boxed(|text| text)
}

fn of_box(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let found = boxes::findings(config, machine, false);
    found.into_iter().filter(Finding::is_bad).collect()
}

fn of_server(listen: &str, machine: &Machine) -> Vec<Finding> {
    let text = format!(
        "listen = {listen}\nport = 51\n[[user]]\nname = \"attic\"\nkey = \"{}\"\n",
        key(1).public()
    );
    let config = ServerConfig::with_key("server.toml", &text, key(2)).unwrap();
    let found = servers::findings(&config, machine);
    found.into_iter().filter(Finding::is_bad).collect()
}

/// Fails unless there is exactly one finding, with this verdict and subject, and all of `words` in its
/// message.
#[track_caller]
fn expect(found: &[Finding], verdict: Verdict, (id, subject): (&str, &str), words: &[&str]) {
    let [finding] = found else {
        panic!("{found:#?}")
    };
    let about = (finding.verdict, finding.id, finding.subject.as_str());
    assert_eq!(about, (verdict, id, subject), "{finding:#?}");
    for word in words {
        assert!(finding.message.contains(word), "{word:?} in {finding:#?}");
    }
    assert!(!finding.remedy.is_empty(), "{finding:#?}");
}

#[test]
fn a_good_machine_has_no_findings() {
    assert_eq!(of_box(&usual(), &machine()), []);
    assert_eq!(
        of_server("[\"192.0.2.10\", \"2001:db8:2::10\"]", &machine()),
        []
    );
    let with = |setting: &'static str| boxed(move |text| text.replace("#link", setting));
    for setting in ["gateway = \"198.51.100.9\"", "v6 = false", "mtu = 1400"] {
        assert_eq!(of_box(&with(setting), &machine()), [], "{setting}");
    }
    // A neighbour reached by a route of its own, and a point-to-point link.
    let mut routed = machine();
    routed
        .neighbour_networks
        .push((LTE, "203.0.113.99/32".parse().unwrap()));
    let config = with("gateway = \"203.0.113.99\"");
    assert_eq!(of_box(&config, &routed), []);
    let mut point_to_point = machine();
    point_to_point.defaults[1].gateway = None;
    assert_eq!(of_box(&usual(), &point_to_point), []);
}

/// A missing LAN interface does not refuse a start, since it may be plugged in later.
#[test]
fn a_lan_that_is_not_there_is_named() {
    let missing = boxed(|text| text.replace("lan = \"eth0\"", "lan = \"eth99\""));
    let found = of_box(&missing, &machine());
    let words = [
        "no such interface",
        "no usable interface towards the users is left",
    ];
    expect(&found, Failure, ("lan", "lan eth99"), &words);
    assert!(!found[0].refuses_start() && found[0].remedy.contains("eth0, wlan0, wwan0"));

    let one_of_two = boxed(|text| text.replace("\"eth0\"", "[\"eth0\", \"eth99\"]"));
    expect(
        &of_box(&one_of_two, &machine()),
        Warning,
        ("lan", "lan eth99"),
        &["no such"],
    );

    let loopback = boxed(|text| text.replace("\"eth0\"", "\"lo\""));
    let found = of_box(&loopback, &machine());
    expect(&found, Failure, ("lan", "lan lo"), &["this machine only"]);
    assert!(found[0].refuses_start());

    let mut down = machine();
    down.interfaces[1].running = false;
    expect(
        &of_box(&usual(), &down),
        Warning,
        ("lan", "lan eth0"),
        &["no carrier"],
    );
}

/// A link that is missing, down, without address or without route is named.
#[test]
fn a_link_that_is_not_there_is_named() {
    let mut missing = machine();
    missing.interfaces.retain(|i| i.index != LTE);
    let words = ["there is no interface wwan0"];
    expect(
        &of_box(&usual(), &missing),
        Warning,
        ("link", "link wwan0"),
        &words,
    );
    let mut down = machine();
    down.interfaces[3].running = false;
    expect(
        &of_box(&usual(), &down),
        Warning,
        ("link", "link wwan0"),
        &["is down"],
    );
    let mut without_address = machine();
    without_address.addresses.retain(|a| a.interface != LTE);
    expect(
        &of_box(&usual(), &without_address),
        Warning,
        ("link", "link wwan0"),
        &["has no address"],
    );
    let mut without_route = machine();
    without_route.defaults.retain(|d| d.interface != LTE);
    expect(
        &of_box(&usual(), &without_route),
        Warning,
        ("link", "link wwan0"),
        &["no default route"],
    );

    // All links at once are a failure.
    let mut none = machine();
    none.interfaces.retain(|i| i.index <= LAN);
    let found = of_box(&usual(), &none);
    assert_eq!(found.len(), 2);
    for finding in &found {
        assert_eq!(finding.verdict, Failure);
        assert!(finding.message.contains("no usable link is left") && !finding.refuses_start());
    }
}

/// A gateway outside the networks of its link is named.
#[test]
fn a_gateway_that_no_address_reaches_is_named() {
    let v4 = boxed(|text| text.replace("#link", "gateway = \"192.168.99.1\""));
    let words = ["192.168.99.1 is in no network of wwan0", "198.51.100.10/24"];
    expect(
        &of_box(&v4, &machine()),
        Warning,
        ("link", "link wwan0"),
        &words,
    );
    // One family of two is wrong.
    let v6 = boxed(|text| text.replace("#link", "gateway = [\"198.51.100.1\", \"2001:db8:9::1\"]"));
    let mut both = machine();
    both.addresses.push(address(LTE, "2001:db8:4::10/64"));
    let words = [
        "2001:db8:9::1 is in no network of wwan0",
        "2001:db8:4::10/64",
    ];
    expect(&of_box(&v6, &both), Warning, ("link", "link wwan0"), &words);
}

/// An overlap is a failure if the box needs the interface and the range contains its network or its address.
#[test]
fn an_overlap_with_the_range_of_the_device_is_named() {
    for (interface, net, verdict, words) in [
        (LAN, "10.215.77.1/24", Failure, "eth0, the users' network"),
        (LAN, "10.215.77.200/28", Failure, "eth0, the users' network"),
        (LAN, "10.0.0.1/8", Warning, "10.0.0.0/8 of eth0"),
        (LAN, "10.215.77.1/8", Failure, "eth0, the users' network"),
        (
            LAN,
            "fdb7:a1d0:77::1/64",
            Failure,
            "eth0, the users' network",
        ),
        (
            WLAN,
            "10.215.77.50/24",
            Failure,
            "wlan0, the network of a link",
        ),
        (
            WLAN,
            "fdb7:a1d0:77::50/64",
            Failure,
            "wlan0, the network of a link",
        ),
        (WLAN, "fdb7::1/16", Warning, "fdb7::/16 of wlan0"),
    ] {
        let mut overlapping = machine();
        overlapping.addresses.push(address(interface, net));
        let found = of_box(&usual(), &overlapping);
        let range = if net.contains(':') {
            "tun fdb7:a1d0:77::/64"
        } else {
            "tun 10.215.77.0/24"
        };
        expect(&found, verdict, ("tun.overlap", range), &[words]);
        assert_eq!(found[0].refuses_start(), verdict == Failure);
    }
    // An overlap with the network of another interface is only a warning. The TUN device itself is no overlap.
    let mut docker = machine();
    docker.interfaces.push(interface(9, "docker0"));
    docker.addresses.push(address(9, "10.215.77.1/24"));
    expect(
        &of_box(&usual(), &docker),
        Warning,
        ("tun.overlap", "tun 10.215.77.0/24"),
        &["docker0"],
    );
    docker.interfaces[4].name = "braid0".to_owned();
    assert_eq!(of_box(&usual(), &docker), []);

    let mut server = machine();
    server.addresses.push(address(WLAN, "10.215.78.7/24"));
    let found = of_server("\"192.0.2.10\"", &server);
    expect(
        &found,
        Failure,
        ("tun.overlap", "tun 10.215.78.0/24"),
        &["where boxes connect"],
    );
    let mut server = machine();
    server.addresses.push(address(WLAN, "10.215.200.7/24"));
    let found = of_server("\"192.0.2.10\"", &server);
    let pool = ("tun.overlap", "tunnel_pool 10.215.128.0/17");
    expect(&found, Failure, pool, &["where boxes connect"]);
}

/// A SOCKS address that this machine does not have, or that a link has, is named.
#[test]
fn a_proxy_at_an_unsuitable_address_is_named() {
    let at = |socks: &'static str| {
        boxed(move |text| text.replace("#top", &format!("socks = \"{socks}\"")))
    };
    for socks in ["192.168.7.1:10801", "[fd00:7::1]:10801"] {
        let found = of_box(&at(socks), &machine());
        let subject = format!("socks {socks}");
        expect(
            &found,
            Warning,
            ("socks", &subject),
            &["this machine has no address"],
        );
        assert!(!found[0].refuses_start());
    }
    let found = of_box(&at("192.0.2.10:10801"), &machine());
    expect(
        &found,
        Warning,
        ("socks", "socks 192.0.2.10:10801"),
        &["address of link wlan0"],
    );
    // Another program has the port.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let config = boxed(|text| text.replace("#top", &format!("socks = \"{addr}\"")));
    let subject = format!("socks {addr}");
    expect(
        &of_box(&config, &machine()),
        Failure,
        ("port", &subject),
        &["another program"],
    );
    let running = boxes::findings(&config, &machine(), true);
    assert!(!running.iter().any(Finding::is_bad), "it is the box itself");
    drop(taken);
    assert_eq!(of_box(&config, &machine()), []);
}

/// Two links with the same interface and the same gateway carry no more data than one link.
#[test]
fn links_with_one_gateway_are_named() {
    let second = "[[link]]\nname = \"lte2\"\ninterface = \"wwan0\"\ngateway = ";
    let with = |gateway: &str| {
        let link = format!("{second}\"{gateway}\"");
        boxed(move |text| text.replace("#link", &link))
    };
    let found = of_box(&with("198.51.100.1"), &machine());
    let words = ["it uses wwan0 and gateway 198.51.100.1, as link wwan0 does"];
    expect(&found, Warning, ("link.same", "link lte2"), &words);
    assert_eq!(of_box(&with("198.51.100.2"), &machine()), []);
}

/// A server whose only address is one of this machine is a failure, and one of two addresses is a warning.
#[test]
fn a_server_that_is_this_machine_is_named() {
    let own = boxed(|text| text.replace("[\"203.0.113.7\", \"2001:db8:7::7\"]", "\"192.0.2.10\""));
    let words = ["this machine's own wlan0", "no usable server is left"];
    expect(
        &of_box(&own, &machine()),
        Failure,
        ("server.address", "server server1"),
        &words,
    );
    let one_address_own = boxed(|text| text.replace("203.0.113.7", "192.168.1.1"));
    let found = of_box(&one_address_own, &machine());
    expect(
        &found,
        Warning,
        ("server.address", "server server1"),
        &["own eth0"],
    );
}

#[test]
fn an_mtu_above_the_interfaces_is_named() {
    let large = boxed(|text| text.replace("#link", "mtu = 9000"));
    let words = ["`mtu` is 9000", "at most 1500 bytes"];
    expect(
        &of_box(&large, &machine()),
        Warning,
        ("link.mtu", "link wwan0"),
        &words,
    );
}

#[test]
fn a_listening_address_of_others_is_named() {
    let found = of_server("\"203.0.113.7\"", &machine());
    let words = [
        "no interface of this machine has this address",
        "no usable address is left",
    ];
    expect(&found, Failure, ("listen", "listen 203.0.113.7"), &words);
    assert!(!found[0].refuses_start());
    let found = of_server("[\"192.0.2.10\", \"203.0.113.7\"]", &machine());
    expect(
        &found,
        Warning,
        ("listen", "listen 203.0.113.7"),
        &["no interface"],
    );
}
