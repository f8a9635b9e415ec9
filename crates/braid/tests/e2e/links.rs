//! Links that break during a transfer.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use braid_testbed::Role;
use braid_wire::tcp::{self, Flags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::attacks::{inside, namespace};
use super::control::{ask, status};
use super::fixture::{Download, Fixture, bulk, render_changed};

/// Bare acknowledgements that each of two processors sends at the same time. Far more than one of the two needs to
/// meet the other between two packet filter rules: on two idle processors, that took some thousand.
const PARALLEL_ACKS: usize = 100_000;
/// Rules that count and drop forwarded segments of 40 bytes. Only the test sends these, since the kernel's
/// acknowledgements have timestamps. They come after the box's own rules (`mangle`).
const COUNT_BARE_SEGMENTS: &str = "table inet observed {
    counter stayed {}
    counter moved {}
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip length 40 oifname link1 counter name stayed drop
        ip length 40 oifname link2 counter name moved drop
    }
}";

/// Starts a large download over slow links, and waits for 1 MB of it. It does not end before [`Fixture::release`].
pub fn under_way(bed: &mut Fixture) -> (Download, Vec<u8>) {
    bed.fetch(1_000);
    bed.slow_down();
    let expected = bed.offer("large", bulk());
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 1_000_000
    });
    (download, expected)
}

/// Waits until the download has 1 MB more: it has survived the last step.
pub fn expect_progress(bed: &mut Fixture, download: &Download) {
    let before = download.bytes();
    bed.wait_for("the download to go on", |_| {
        download.bytes() > before + 1_000_000
    });
}

#[test]
#[ignore = "network"]
fn a_dark_link_does_not_end_a_download() {
    for link in ["link1", "link2"] {
        let mut bed = Fixture::up();
        let (download, expected) = under_way(&mut bed);
        bed.set_link(link, "down");
        expect_progress(&mut bed, &download);
        bed.release();
        download.expect_bytes(&expected);
        bed.set_link(link, "up");
        bed.expect_both_links();
    }
}

#[test]
#[ignore = "network"]
fn a_link_that_comes_back_is_used_by_the_same_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.set_link("link2", "down");
    expect_progress(&mut bed, &download);
    bed.set_link("link2", "up");
    let before = bed.carried()[1];
    bed.wait_for("the link to be used again", |bed| {
        bed.carried()[1] > before + 500_000
    });
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_interface_that_goes_down_does_not_end_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["link", "set", "link1", "down"]);
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_address_that_goes_away_does_not_end_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["address", "flush", "dev", "link2"]);
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
}

/// Packets other than TCP leave over one link, and over the other when that one is dark. A missing answer is
/// noticed without waiting for the next probe.
#[test]
#[ignore = "network"]
fn datagrams_find_the_link_that_works() {
    for link in ["link1", "link2"] {
        let seldom = |text| {
            format!("datagrams = \"forward\"\n{text}\n[expert]\nidle_probe_interval = \"1h\"\n")
        };
        let mut bed = Fixture::up_with(render_changed(Role::Box, seldom));
        bed.wait_for("a ping through", pinged);
        bed.set_link(link, "down");
        bed.wait_for("a ping round the dark link", pinged);
        bed.set_link(link, "up");
    }
}

pub fn pinged(bed: &mut Fixture) -> bool {
    let content = bed.v4("content").to_string();
    let mut ping = bed.exec("user", "ping");
    let ping = ping.args(["-n", "-c", "1", "-W", "1", &content]);
    ping.output().expect("ping runs").status.success()
}

/// The tunnel carries pings round a dark link. Box and server show it.
#[test]
#[ignore = "network"]
fn the_tunnel_carries_what_is_not_tcp() {
    let mut bed = Fixture::up();
    bed.wait_for("a ping through the tunnel", |bed| {
        let tunnel = status(bed, "box").tunnel.expect("it has one");
        let packets = tunnel.sessions.first().map_or(0, |s| s.packets_in);
        pinged(bed) && packets > 0
    });
    for link in ["link1", "link2"] {
        bed.set_link(link, "down");
        bed.wait_for("a ping round the dark link", pinged);
        bed.set_link(link, "up");
    }
    let server = status(&bed, "server").tunnel.expect("it offers one");
    assert_eq!((server.state.as_str(), server.sessions_total), ("on", 1));
    assert!(server.sessions[0].packets_out > 0, "{server:?}");
    for (role, line) in [
        ("box", "\ntunnel up to server "),
        ("server", "\ntunnel of 1 box\n"),
    ] {
        let page = ask(&bed, role, &["status"]).stdout;
        let page = String::from_utf8_lossy(&page);
        assert!(page.contains(line), "{page}");
    }
}

/// Starts a download that is forwarded over link1, and makes new connections take link2. Returns the download, its
/// content, and the bytes that link2 has carried.
fn forwarded_over_the_worse_link(bed: &mut Fixture) -> (Download, Vec<u8>, u64) {
    let (download, expected) = under_way(bed);
    assert!(bed.carried()[0] > 1_000_000, "the better link is link1");
    bed.set_link("link1", "delay=60ms");
    let small = bed.offer("small", 500_000);
    let mut moved = 0;
    bed.wait_for("new connections to take the other link", |bed| {
        let [_, before] = bed.carried();
        bed.curl("small").expect_bytes(&small);
        moved = bed.carried()[1];
        moved > before + 500_000
    });
    (download, expected, moved)
}

/// Brings up a testbed whose box forwards everything.
fn forwarding() -> Fixture {
    let forward_all = |text| {
        format!("bypass = [\"0.0.0.0/0\"]\n{text}\n[expert]\nidle_probe_interval = \"1s\"\n")
    };
    Fixture::up_with(render_changed(Role::Box, forward_all))
}

/// A connection that is only forwarded stays on its link when new ones take another.
#[test]
#[ignore = "network"]
fn forwarded_connections_stay_on_their_link() {
    let mut bed = forwarding();
    let (download, expected, moved) = forwarded_over_the_worse_link(&mut bed);
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
    assert!(bed.carried()[1] < moved + 1_000_000, "the old one moved");
}

/// Two processors may forward segments of one connection at the same time. Each segment leaves over the connection's
/// link, whatever the packet filter is doing with the other one: a single segment with another source address would
/// reset the connection.
#[test]
#[ignore = "network"]
fn segments_forwarded_at_the_same_time_stay_on_their_link() {
    let mut bed = forwarding();
    let (download, expected, _) = forwarded_over_the_worse_link(&mut bed);
    bed.run("box", "nft", &[COUNT_BARE_SEGMENTS]);
    let (user, content) = (namespace(&bed, "user"), bed.v4("content"));
    let from = connection_to(&bed, content);
    thread::scope(|scope| {
        let send = || inside(&user, || send_bare_acks(from, SocketAddr::new(content, 80)));
        for sender in [scope.spawn(send), scope.spawn(send)] {
            sender.join().expect("no panic");
        }
    });
    let [stayed, moved] = ["stayed", "moved"].map(|counter| {
        let list = ["list", "counter", "inet", "observed", counter];
        let printed = bed.print("box", "nft", &list);
        let mut words = printed.split_whitespace();
        words.find(|word| *word == "packets");
        let packets = words
            .next()
            .and_then(|packets| packets.parse::<usize>().ok());
        packets.unwrap_or_else(|| panic!("{printed}"))
    });
    assert_eq!(moved, 0, "{stayed} segments took the connection's link");
    // The box's queue drops what comes while it is full.
    assert!(stayed > PARALLEL_ACKS / 10, "{stayed} segments arrived");
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
}

/// Returns the user's end of the only connection to `host`.
fn connection_to(bed: &Fixture, host: IpAddr) -> SocketAddr {
    let established = ["-Htn", "state", "established", "dst", &host.to_string()];
    let printed = bed.print("user", "ss", &established);
    let mut words = printed.split_whitespace();
    let local = words.nth(2).and_then(|local| local.parse().ok());
    local.unwrap_or_else(|| panic!("the connections: {printed}"))
}

/// Sends acknowledgements of nothing from one end of a connection to the other.
fn send_bare_acks(from: SocketAddr, to: SocketAddr) {
    let ack = tcp::Repr::new(from.port(), to.port(), Flags::ACK);
    let mut segment = vec![0; ack.header_len()];
    ack.emit(&mut segment);
    tcp::fill_checksum(from.ip(), to.ip(), &mut segment, &[]);
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).expect("a raw socket");
    let to = SockAddr::from(SocketAddr::new(to.ip(), 0));
    for _ in 0..PARALLEL_ACKS {
        // The queue of the socket may be full for a moment.
        let _ = raw.send_to(&segment, &to);
    }
}

/// A backup or metered link carries nothing of a download until no other works, and then all of it.
#[test]
#[ignore = "network"]
fn backup_and_metered_links_wait_until_they_are_needed() {
    for setting in ["backup = true", "metered = true"] {
        let hold_back = move |text: String| {
            let link2 = "interface = \"link2\"\n";
            text.replace(link2, &format!("{link2}{setting}\n"))
        };
        let mut bed = Fixture::up_with(render_changed(Role::Box, hold_back));
        bed.expect_spared(1, 4_000_000);
        let (download, expected) = under_way(&mut bed);
        bed.set_link("link1", "down");
        expect_progress(&mut bed, &download);
        bed.release();
        download.expect_bytes(&expected);
        let [_, needed] = bed.carried();
        assert!(
            needed > bulk() as u64 / 4,
            "{setting}: link2 carried {needed} bytes"
        );
    }
}
