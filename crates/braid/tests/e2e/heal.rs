//! Repairs after other programs removed the kernel set-up of box and server, and changes of the network.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid_proxy::status::RulesStatus;
use braid_testbed::netns;

use super::control::status;
use super::fixture::Fixture;
use super::links::{expect_progress, pinged, under_way};

/// The file that Debian's `nftables.service` loads begins like this.
const FIREWALL: &str = "flush ruleset
table inet filter {
  chain input { type filter hook input priority filter; policy accept; }
  chain forward { type filter hook forward priority filter; policy accept; }
}";

/// Commands whose output shows whether a host has everything it needs. Lines are compared without their
/// order: the kernel lists re-added objects last.
const LOOKS: [&str; 12] = [
    "nft list table inet braid_braid0",
    "nft list table netdev braid-shortcut",
    "nft list table inet braid-shortcut",
    "ip rule",
    "ip -6 rule",
    // With the protocol number of Braid's routes.
    "ip route show table all proto 180",
    "ip -6 route show table all proto 180",
    "ip -4 -brief address show dev braid0",
    "ip -6 -brief address show dev braid0 scope global",
    "ip -4 -brief address show dev braid0t",
    "ip -6 -brief address show dev braid0t scope global",
    "grep . /proc/sys/net/ipv[46]/conf/*/forwarding /proc/sys/net/ipv4/conf/*/rp_filter",
];

/// Returns the output of a shell line on a host.
fn shell(bed: &Fixture, host: &str, line: &str) -> String {
    bed.print(host, "sh", &["-c", line])
}

/// Returns everything that Braid has set up on a host.
fn set_up(bed: &Fixture, host: &str) -> Vec<String> {
    let listings = LOOKS.map(|look| shell(bed, host, &format!("{look} 2>/dev/null")));
    let lines = listings.iter().flat_map(|listing| listing.lines());
    // Routes out of an interface that is not up yet have this flag.
    let mut lines: Vec<String> = lines.map(|l| l.replace(" linkdown", "")).collect();
    lines.sort_unstable();
    lines
}

/// Returns a testbed whose box has set up all that it needs, its tunnel too.
fn settled() -> Fixture {
    let mut bed = Fixture::up();
    bed.wait_for("the route into the tunnel", |bed| {
        // It is the last of all.
        let into_tunnel = ["route", "show", "table", "all", "dev", "braid0t"];
        bed.print("box", "ip", &into_tunnel).contains("default")
    });
    bed
}

/// Makes a line of shell remove something on a host, and waits until everything is as before.
fn expect_healed(bed: &mut Fixture, host: &str, before: &[String], damage: &str) {
    let repairs = |bed: &mut Fixture| bed.log(host).matches("restored").count();
    let repaired = repairs(bed);
    bed.run(host, "sh", &["-ec", damage]);
    let mut seen = Vec::new();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while repairs(bed) == repaired || seen != before {
        seen = set_up(bed, host);
        if std::time::Instant::now() > end {
            let gone: Vec<_> = before.iter().filter(|line| !seen.contains(line)).collect();
            let new: Vec<_> = seen.iter().filter(|line| !before.contains(line)).collect();
            let log = bed.log(host);
            panic!("{host}, {damage}: gone {gone:#?}, new {new:#?}\n{log}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a command that deletes the rule number `n` of a chain.
fn delete_rule(chain: &str, n: usize) -> String {
    format!(
        "handle=$(nft -a list chain inet braid_braid0 {chain} | grep -o 'handle [0-9]*$' | sed -n {}p)
         nft delete rule inet braid_braid0 {chain} $handle",
        // The chain's own handle comes first.
        n + 1
    )
}

/// Returns a command that deletes Braid's first routing rule of a family that contains `with`.
fn delete_routing_rule(family: &str, with: &str) -> String {
    format!(
        "rule=$(ip {family} rule | grep 'lookup 1[0-9]*' | grep '{with}' | head -n 1 | sed 's/^\\([0-9]*\\):/pref \\1/; s/\\[.*//')
         test -n \"$rule\"
         ip {family} rule delete $rule"
    )
}

/// Returns a command that deletes the first of Braid's routes of a family.
fn delete_route(family: &str) -> String {
    format!(
        "route=$(ip {family} route show table all proto 180 | grep -v unreachable | head -n 1)
         test -n \"$route\"
         ip {family} route delete $route"
    )
}

/// Removes each of these on a host in turn, while a user's download goes on.
fn removes(host: &str, all: &[String]) {
    let mut bed = settled();
    let (download, expected) = under_way(&mut bed);
    let before = set_up(&bed, host);
    for damage in all {
        expect_healed(&mut bed, host, &before, damage);
    }
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
    bed.expect_both_links();
}

/// Returns commands that remove the packet filter rules of box and server, whole and in part.
fn packet_filter_damage() -> Vec<String> {
    vec![
        format!("nft -f - <<'END'\n{FIREWALL}\nEND"),
        "nft delete table inet braid_braid0".to_owned(),
        "nft flush chain inet braid_braid0 prerouting".to_owned(),
        delete_rule("prerouting", 2),
        "nft insert rule inet braid_braid0 prerouting counter drop".to_owned(),
    ]
}

#[test]
#[ignore = "network"]
fn packet_filter_rules_of_a_box_come_back() {
    let more = [
        "nft delete table netdev braid-shortcut",
        "nft flush set inet braid_braid0 bypass4",
        "nft delete chain inet braid_braid0 postrouting",
    ];
    let more = more.map(str::to_owned).to_vec();
    removes("box", &[packet_filter_damage(), more].concat());
}

#[test]
#[ignore = "network"]
fn packet_filter_rules_of_a_server_come_back() {
    removes("server", &packet_filter_damage());
}

#[test]
#[ignore = "network"]
fn routing_of_a_box_comes_back() {
    let mut all = Vec::new();
    for family in ["-4", "-6"] {
        all.push(delete_routing_rule(family, "iif home"));
        all.push(delete_routing_rule(family, "from all fwmark"));
        all.push(delete_route(family));
    }
    removes("box", &all);
}

#[test]
#[ignore = "network"]
fn routing_of_a_server_comes_back() {
    let all = ["-4", "-6"].map(|family| [delete_routing_rule(family, ""), delete_route(family)]);
    removes("server", &all.concat());
}

#[test]
#[ignore = "network"]
fn device_and_settings_come_back() {
    let device = [
        "ip address flush dev braid0",
        "ip link set braid0 down",
        "ip link set braid0 mtu 1500",
        "ip link delete braid0",
    ];
    let settings = [
        (
            "box",
            "sysctl -w net.ipv4.conf.home.forwarding=0 net.ipv4.conf.link1.rp_filter=1",
        ),
        ("server", "sysctl -w net.ipv4.conf.backbone.forwarding=0"),
    ];
    for (host, setting) in settings {
        let all = [&device[..], &[setting]].concat();
        removes(
            host,
            &all.into_iter().map(str::to_owned).collect::<Vec<_>>(),
        );
    }
}

/// Returns the number of packets that came out of the tunnel of the box.
fn packets_in(bed: &Fixture) -> u64 {
    let tunnel = status(bed, "box").tunnel.expect("it has one");
    tunnel
        .sessions
        .first()
        .map_or(0, |session| session.packets_in)
}

/// After each repair, pings of the user go through the tunnel again.
#[test]
#[ignore = "network"]
fn the_tunnel_of_a_box_comes_back() {
    let mut bed = settled();
    let before = set_up(&bed, "box");
    let routes = ["-4", "-6"].map(|family| {
        format!(
            "route=$(ip {family} route show table all dev braid0t proto 180 | head -n 1)
             test -n \"$route\"
             ip {family} route delete $route dev braid0t"
        )
    });
    let all = [
        "ip address flush dev braid0t",
        "ip link set braid0t down",
        "ip link set braid0t mtu 1400",
        "ip link delete braid0t",
        "nft flush chain inet braid_braid0 tunnel",
        "nft delete chain inet braid_braid0 tunnel-postrouting",
    ];
    for damage in all.into_iter().chain(routes.iter().map(String::as_str)) {
        expect_healed(&mut bed, "box", &before, damage);
        let earlier = packets_in(&bed);
        bed.wait_for("a ping through the tunnel again", |bed| {
            pinged(bed) && packets_in(bed) > earlier
        });
    }
}

/// A device that another program renamed cannot be repaired: the status says how to, and all is as before after that.
#[test]
#[ignore = "network"]
fn a_renamed_device_is_reported() {
    let mut bed = settled();
    let before = set_up(&bed, "box");
    bed.run("box", "sh", &["-ec", &rename("braid0", "other")]);
    let expected = "renamed to `other`; rename it back";
    let told = |bed: &Fixture| match status(bed, "box").rules {
        RulesStatus::Missing { why } => why.contains(expected),
        _ => false,
    };
    bed.wait_for("the reason", |bed| told(bed));
    // Each change of the packet filter makes the box look again, before the time of its next attempt.
    for command in ["add", "delete"].repeat(10) {
        bed.run("box", "nft", &[command, "table", "inet", "foreign"]);
        assert!(told(&bed), "{:?}", status(&bed, "box").rules);
    }
    expect_healed(&mut bed, "box", &before, &rename("other", "braid0"));
    bed.fetch(100_000);
}

/// Returns a command that renames a device.
fn rename(from: &str, to: &str) -> String {
    format!("ip link set {from} down && ip link set {from} name {to}")
}

/// The status tells what was repaired, and which program made that necessary. A program that keeps removing
/// rules is named, and does not keep them away for good.
#[test]
#[ignore = "network"]
fn somebody_who_keeps_removing_rules_is_named() {
    let mut bed = settled();
    assert_eq!(status(&bed, "box").rules, RulesStatus::Sound);
    let before = set_up(&bed, "box");
    for n in 1..=10 {
        expect_healed(&mut bed, "box", &before, "nft flush ruleset");
        let RulesStatus::Restored {
            what,
            by,
            times,
            at,
        } = status(&bed, "box").rules
        else {
            panic!("nothing was restored");
        };
        assert_eq!(what, "the packet filter rules");
        assert!(by.is_some_and(|by| by.starts_with("nft (process ")));
        assert_eq!(times, n);
        assert!(at > 1_500_000_000);
    }
    let log = bed.log("box");
    assert!(
        log.contains("keeps removing the packet filter rules"),
        "{log}"
    );
    expect_healed(&mut bed, "box", &before, "nft flush ruleset");
    bed.fetch(100_000);
}

/// A user's connection that began while the box was dead is only forwarded, and stays so when the box is back.
#[test]
#[ignore = "network"]
fn what_began_while_the_box_was_dead_goes_on_when_it_is_back() {
    let mut bed = Fixture::up();
    bed.fetch(1_000);
    bed.testbed.kill("box").expect("it ran");
    let (download, expected) = under_way(&mut bed);
    for _ in 0..3 {
        bed.start("box");
        bed.wait_for_interception();
        expect_progress(&mut bed, &download);
        bed.testbed.kill("box").expect("it ran");
    }
    bed.start("box");
    bed.release();
    download.expect_bytes(&expected);
}

/// A server that tells clients the address that they come from. It runs until dropped.
struct Mirror(Arc<AtomicBool>);

impl Mirror {
    const PORT: u16 = 80;

    /// Serves at an address of a host.
    fn serve(bed: &Fixture, host: &str, address: IpAddr) -> Self {
        let host = bed.testbed.layout().host(host).expect("a known host");
        let at = SocketAddr::new(address, Self::PORT);
        let listener = netns::run_inside(&host.namespace, || TcpListener::bind(at));
        let listener = listener.expect("it listens");
        listener.set_nonblocking(true).expect("a socket");
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        thread::spawn(move || {
            while !told.load(Ordering::Acquire) {
                let Ok((mut stream, from)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                // A client that is gone has no use for an answer.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = stream.read(&mut [0; 1024]);
                let from = from.ip().to_canonical();
                let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{from}");
            }
        });
        Mirror(ending)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Returns the user's answer from an address; nothing if the connection is refused.
fn asked(bed: &Fixture, address: IpAddr) -> String {
    let url = match address {
        IpAddr::V4(address) => format!("http://{address}/"),
        IpAddr::V6(address) => format!("http://[{address}]/"),
    };
    let curl = ["-q", "-sS", "--noproxy", "*", "--max-time", "10", &url];
    bed.print("user", "curl", &curl)
}

/// The page of the modem behind a link, and a network beside the Internet, are forwarded. The rules follow
/// routes that come and go.
#[test]
#[ignore = "network"]
fn networks_that_the_box_reaches_itself_are_forwarded() {
    let mut bed = Fixture::up();
    let modem: IpAddr = "192.168.8.1".parse().expect("an address");
    bed.run(
        "internet",
        "ip",
        &["address", "add", "192.168.8.1/24", "dev", "link1"],
    );
    bed.run(
        "box",
        "ip",
        &["address", "add", "192.168.8.100/24", "dev", "link1"],
    );
    let _modem = Mirror::serve(&bed, "internet", modem);
    bed.wait_for("the modem's page", |bed| {
        asked(bed, modem) == "192.168.8.100"
    });

    for (family, network, address) in [
        ("-4", "192.168.99.0/24", "192.168.99.1"),
        ("-6", "fd00:99::/64", "fd00:99::1"),
    ] {
        let ip: IpAddr = address.parse().expect("an address");
        let [own, gateway] = ["box", "internet"].map(|host| {
            let host = bed.testbed.layout().host(host).expect("a known host");
            let mut interfaces = host.interfaces.iter();
            let link = interfaces.find(|i| &*i.name == "link2").expect("a link");
            match ip {
                IpAddr::V4(_) => link.address4.to_string(),
                IpAddr::V6(_) => link.address6.to_string(),
            }
        });
        let on_lo = [family, "address", "add", address, "dev", "lo"];
        // The kernel first checks an IPv6 address for duplicates, and may start that late.
        let at_once: &[&str] = if ip.is_ipv6() { &["nodad"] } else { &[] };
        bed.run("internet", "ip", &[&on_lo, at_once].concat());
        let _mirror = Mirror::serve(&bed, "internet", ip);
        assert_eq!(asked(&bed, ip), "", "a server refuses private networks");
        let route = [family, "route", "add", network, "via", &gateway];
        bed.run("box", "ip", &route);
        bed.wait_for("the network that a route leads to", |bed| {
            asked(bed, ip) == own
        });
        bed.run("box", "ip", &[family, "route", "delete", network]);
        bed.wait_for("the end of that", |bed| asked(bed, ip).is_empty());
    }
    bed.fetch(1_000_000);
}

/// A link that loses one family is used over the other, and over the first again once it is back.
#[test]
#[ignore = "network"]
fn a_link_that_loses_a_family_is_used_over_the_other() {
    for family in ["-4", "-6"] {
        let mut bed = Fixture::up();
        let (download, expected) = under_way(&mut bed);
        for link in ["link1", "link2"] {
            let scope = ["scope", "global"];
            let flush = [family, "address", "flush", "dev", link];
            bed.run("box", "ip", &[&flush[..], &scope].concat());
        }
        let before = bed.carried();
        bed.wait_for("both links to go on over the other family", |bed| {
            (0..2).all(|link| bed.carried()[link] > before[link] + 500_000)
        });
        bed.testbed.reconfigure("box").expect("it was set up so");
        // Then the first family alone carries everything.
        let other = if family == "-4" { "-6" } else { "-4" };
        for link in ["link1", "link2"] {
            let flush = [other, "address", "flush", "dev", link, "scope", "global"];
            bed.run("box", "ip", &flush);
        }
        let before = bed.carried();
        bed.wait_for("both links to go on over the first family", |bed| {
            (0..2).all(|link| bed.carried()[link] > before[link] + 500_000)
        });
        bed.release();
        download.expect_bytes(&expected);
    }
}

mod soak {
    use std::time::Instant;

    use super::*;

    /// Longest time that users may lack what another program removed.
    const HEALED: Duration = Duration::from_secs(2);

    #[test]
    #[ignore = "soak"]
    fn what_is_removed_comes_back_within_two_seconds() {
        for host in ["box", "server"] {
            let mut bed = settled();
            let before = set_up(&bed, host);
            let routing = ["-4", "-6"].map(|f| [delete_routing_rule(f, ""), delete_route(f)]);
            for damage in packet_filter_damage().into_iter().chain(routing.concat()) {
                let begin = Instant::now();
                expect_healed(&mut bed, host, &before, &damage);
                let took = begin.elapsed();
                assert!(took < HEALED, "{host}, {damage}: {took:?}");
            }
        }
    }
}
