//! Packets of a local network through the tunnel between box and server.

use crate::support::{World, wait_for};
use crate::tunnel::{
    BOX_SEEN, BYPASSED, Flow, PRIVATE, SERVER_SEEN, WEB, check_packets, check_routers, ip, seen,
    world,
};
use crate::whole::run;

const BOX: &str = r#"
    lan = "lan"
    bypass = ["11.0.0.8", "2001:db8:b::8"]
    [[link]]
    interface = "wan1"
    [[link]]
    interface = "wan2"
    [server]
    address = "192.0.1.2"
    key = "SERVER"
"#;
const SERVER: &str = r#"
    listen = "192.0.1.2"
    allow = ["2001:db8:b::/64"]
    [[user]]
    name = "box"
    key = "BOX"
"#;

/// Bound of the datagrams, one in 20 ms, that may be lost when a link dies. The tunnel as a whole counts as dead after 5 s.
const MAX_LOST: u32 = 250;

/// Waits until new flows to both hosts go through the tunnel.
fn wait_until_up(world: &World) {
    for (host, by) in WEB.into_iter().zip(SERVER_SEEN) {
        let rules = || world.sh("box", "ip rule; ip route show table all; nft list ruleset");
        wait_for("the tunnel is up", rules, || {
            (seen(world, host) == ip(by)).then_some(())
        });
    }
}

#[test]
#[ignore = "network"]
fn all_but_tcp_goes_through_the_tunnel_of_box_and_server() {
    let world = world();
    run(&world, (BOX, SERVER), |_| {
        wait_until_up(&world);
        check_packets(&world);
        check_routers(&world, ["10.215.128.1", "fdb7:a1d0:80::1"]);
        for (host, by) in BYPASSED.into_iter().zip(BOX_SEEN) {
            assert_eq!(seen(&world, host), ip(by));
        }
        // Addresses of the server and its pool, and hosts that the server refuses.
        for address in ["10.215.128.1", "10.215.128.3", PRIVATE] {
            let output = world.try_sh("user", &format!("ping -c 1 -W 1 {address}"));
            assert!(!output.status.success(), "{address}");
        }
    });
    let left = world.sh("server", "nft list ruleset; ip rule; ip -6 rule; ip link");
    assert!(!left.contains("braid"), "{left}");
}

#[test]
#[ignore = "network"]
fn a_flow_keeps_its_address_when_a_link_dies() {
    let world = world();
    run(&world, (BOX, SERVER), |_| {
        wait_until_up(&world);
        let mut flow = Flow::to(&world, WEB[0]);
        for dead in ["wan1", "wan2"] {
            world.ip("box", &format!("link set {dead} down"));
            let asked = flow.asked;
            for _ in 0..20 {
                assert_eq!(flow.ask(500), ip(SERVER_SEEN[0]), "{dead} is down");
            }
            let lost = flow.asked - asked - 20;
            assert!(lost < MAX_LOST, "{dead}: {lost} of {} were lost", lost + 20);
            world.ip("box", &format!("link set {dead} up"));
            let carries = || world.carried("box", dead)[0];
            let before = carries();
            wait_for(
                "the link carries again",
                || carries().to_string(),
                || {
                    assert_eq!(flow.ask(500), ip(SERVER_SEEN[0]));
                    (carries() > before + 2_000).then_some(())
                },
            );
        }
    });
}

/// An interface of the server may get its address after the start, as by DHCP.
#[test]
#[ignore = "network"]
fn a_server_lets_interfaces_pass_answers_once_they_have_an_address() {
    let world = world();
    world.ip("server", "-4 addr flush dev out");
    world.ip("server", "-6 addr flush dev out scope global");
    run(&world, (BOX, SERVER), |_| {
        let look = || world.sh("server", "cat /proc/sys/net/ipv4/conf/out/forwarding");
        assert_eq!(look().trim(), "0");
        world.ip("server", "addr add 11.0.0.1/24 dev out");
        wait_for("the interface forwards", look, || {
            (look().trim() == "1").then_some(())
        });
        let mut flow = Flow::to(&world, WEB[0]);
        flow.ask_until(SERVER_SEEN[0]);
    });
    let left = world.sh("server", "cat /proc/sys/net/ipv4/conf/out/forwarding");
    assert_eq!(left.trim(), "0", "the setting is as before");
}

#[test]
#[ignore = "network"]
fn packets_are_forwarded_while_no_server_answers() {
    let world = world();
    world.sh("server", "echo 1 >/proc/sys/net/ipv4/conf/out/forwarding");
    run(&world, (BOX, SERVER), |stops| {
        wait_until_up(&world);
        let mut flow = Flow::to(&world, WEB[0]);
        assert_eq!(flow.ask(500), ip(SERVER_SEEN[0]));
        stops.stop_server();
        flow.ask_until(BOX_SEEN[0]);
        Flow::to(&world, WEB[1]).ask_until(BOX_SEEN[1]);
    });
}

#[test]
#[ignore = "network"]
fn a_box_without_tunnel_has_neither_its_device_nor_its_rules() {
    let world = world();
    let text = format!("datagrams = \"forward\"\n{BOX}");
    run(&world, (&text, SERVER), |_| {
        for (host, by) in WEB.into_iter().zip(BOX_SEEN) {
            assert_eq!(seen(&world, host), ip(by));
        }
        // The private host answers where no server refuses it.
        world.sh("user", &format!("ping -c 1 -W 10 {PRIVATE}"));
        let has = world.sh("box", "ip link; ip rule; nft list ruleset");
        assert!(has.contains("braid0") && !has.contains("braid0t"), "{has}");
        assert!(!has.contains("0xb1") && !has.contains("tunnel"), "{has}");
    });
}
