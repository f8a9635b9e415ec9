//! A server that loses its route to IPv6 destinations, and gets it back.

use std::net::{IpAddr, Ipv6Addr};

use braid_proxy::verdict::Health;
use braid_secure::Families;
use braid_testbed::render::render_config;

use super::control::{expect_text, status};
use super::fixture::{Fixture, MAX_TIME_S};

/// Fetches a file from the host at `addresses` under one name, as a program does that knows them all. Returns
/// the address that served it, or nothing if that failed.
fn fetch(bed: &Fixture, addresses: &[String]) -> Option<String> {
    let known = format!("two.test:80:{}", addresses.join(","));
    let output = bed
        .exec("user", "curl")
        .args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time"])
        .args([MAX_TIME_S, "--resolve", &known, "-o", "/dev/null"])
        .args(["-w", "%{remote_ip}", "http://two.test/one"])
        .output()
        .expect("curl runs");
    let served_by = String::from_utf8(output.stdout).expect("an address");
    output.status.success().then_some(served_by)
}

/// Adds or removes routes at the server that lead nowhere and are preferred to its own, to the content host
/// and to all others.
fn set_dead_ends(bed: &Fixture, there: bool) {
    let verb = if there { "add" } else { "del" };
    let IpAddr::V6(content) = bed.v6("content") else {
        panic!("no IPv6 address");
    };
    let network = Ipv6Addr::from_bits(content.to_bits() >> 64 << 64);
    for network in [&*format!("{network}/64"), "default"] {
        let route = ["-6", "route", verb, "unreachable", network, "metric", "1"];
        bed.run("server", "ip", &route);
    }
}

/// Every program that knows an IPv6 and an IPv4 address is served, except the one that discovers the loss.
#[test]
#[ignore = "network"]
fn programs_use_ipv4_where_the_server_has_no_ipv6() {
    let mut bed = Fixture::up();
    bed.offer("one", 10_000);
    let (v4, v6) = (bed.v4("content").to_string(), bed.v6("content").to_string());
    let both = [format!("[{v6}]"), v4.clone()];
    for _ in 0..2 {
        assert_eq!(fetch(&bed, &both), Some(v6.clone()), "{}", bed.seen());
    }
    let only_v4 = std::slice::from_ref(&v4);

    set_dead_ends(&bed, true);
    let served: Vec<_> = (0..5).map(|_| fetch(&bed, &both)).collect();
    let failed = served.iter().filter(|by| by.is_none()).count();
    assert!(failed <= 1, "{served:?}\n{}", bed.seen());
    assert_eq!(served[4], Some(v4.clone()), "{served:?}");
    assert_eq!(fetch(&bed, only_v4), Some(v4.clone()));
    let now = status(&bed, "box");
    let v4_only = Families {
        v4: true,
        v6: false,
    };
    assert_eq!(now.servers[0].families, v4_only);
    assert_eq!(now.verdict.health, Health::Working);
    assert_eq!(now.verdict.reasons[0].code, "no-ipv6");
    let page = expect_text(&bed, "box", &["status"]);
    assert!(page.contains(", reaches IPv4 only"), "{page}");
    assert!(bed.log("box").contains("no server reaches IPv6"));
    // A program that has only IPv6 fails without waiting.
    assert_eq!(fetch(&bed, &both[..1]), None);
    // A box that intercepts nothing refuses nothing.
    expect_text(&bed, "box", &["proxy", "off"]);
    assert_eq!(fetch(&bed, &both), Some(v6.clone()), "it is forwarded");
    expect_text(&bed, "box", &["proxy", "on"]);
    assert_eq!(fetch(&bed, &both), Some(v4.clone()));
    // The guard restores the present rules, not older ones.
    let table = bed.print("box", "nft", &["list", "tables"]);
    let table = table.lines().find(|line| line.contains("table inet braid"));
    let table = table.expect("the box has a table").split_whitespace();
    let delete: Vec<_> = ["delete"].into_iter().chain(table).collect();
    bed.run("box", "nft", &delete);
    bed.wait_for("the rules to be back", |bed| {
        bed.print("box", "nft", &["list", "ruleset"])
            .contains("reject with tcp reset")
    });
    assert_eq!(fetch(&bed, &both), Some(v4));

    set_dead_ends(&bed, false);
    bed.wait_for("IPv6 to be used again", |bed| {
        fetch(bed, &both).as_ref() == Some(&v6)
    });
    let now = status(&bed, "box");
    assert_eq!(now.servers[0].families, Families::BOTH);
    assert!(now.verdict.reasons.is_empty(), "{:?}", now.verdict);
    assert!(
        bed.log("box")
            .contains("IPv6 destinations are reached again")
    );
}

/// A server that never had IPv6 reports that before any user has failed.
#[test]
#[ignore = "network"]
fn a_server_without_ipv6_says_so_at_once() {
    let mut bed = Fixture::up_idle(render_config(None).expect("randomness"));
    bed.offer("one", 10_000);
    let (v4, v6) = (bed.v4("content").to_string(), bed.v6("content").to_string());
    let flush = ["-6", "addr", "flush", "scope", "global"];
    bed.run("server", "ip", &flush);
    bed.start("server");
    bed.start("box");
    bed.wait_for_interception();
    bed.wait_for("the box to be told", |bed| {
        !status(bed, "box").servers[0].families.v6
    });
    let both = [format!("[{v6}]"), v4.clone()];
    assert_eq!(fetch(&bed, &both), Some(v4), "{}", bed.seen());
    let failed = status(&bed, "box").counters["destination_unreachable"];
    assert_eq!(failed, 0);
}
