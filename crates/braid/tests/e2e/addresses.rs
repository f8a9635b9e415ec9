//! The engine and the kernel's Multipath TCP tell each other of addresses and priorities (RFC 8684
//! sections 3.1, 3.3.8 and 3.4), during the transfers of `interop`.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::interop::{Interop, PORT, RECEIVED, SENT, Side};

/// Lets the kernel take further subflows and join what is announced.
fn allow(interop: &Interop) {
    let limits = ["limits", "set", "subflows", "4", "add_addr_accepted", "4"];
    mptcp(interop, &limits);
}

/// `ip mptcp` at the kernel's side.
fn mptcp(interop: &Interop, arguments: &[&str]) {
    let arguments = [&["mptcp"], arguments].concat();
    interop.bed.run("kernel", "ip", &arguments);
}

/// The kernel announces `addr`, which gets the id 7.
fn announce(interop: &Interop, addr: IpAddr, port: Option<&str>) {
    allow(interop);
    let addr = addr.to_string();
    let mut arguments = vec!["endpoint", "add", &addr, "id", "7"];
    arguments.extend(port.iter().flat_map(|port| ["port", port]));
    arguments.push("signal");
    mptcp(interop, &arguments);
}

fn wait_for(interop: &Interop, counter: &str, least: u64) {
    wait_until(&format!("{counter} to reach {least}"), || {
        interop.count(counter) >= least
    });
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    wait_at_most(Duration::from_secs(15), what, condition);
}

fn wait_at_most(time: Duration, what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes that link 2 carried of what a side sends.
fn carried(interop: &Interop, sender: Side) -> u64 {
    let link2 = interop.bed.testbed.link_status("link2");
    let link2 = link2.expect("statistics");
    match sender {
        Side::Engine => link2.forward.bytes_delivered,
        Side::Kernel => link2.reverse.bytes_delivered,
    }
}

/// Long before the transfer is over.
fn expect_link2_in_use(interop: &Interop, sender: Side) {
    let before = carried(interop, sender);
    wait_at_most(Duration::from_secs(3), "link 2 to be in use", || {
        carried(interop, sender) >= before + 1_000_000
    });
}

/// Once what was under way there has arrived.
fn expect_link2_left_alone(interop: &Interop, sender: Side) {
    let carried_in = |time| {
        let before = carried(interop, sender);
        thread::sleep(time);
        carried(interop, sender) - before
    };
    wait_until("link 2 to be left", || {
        carried_in(Duration::from_millis(250)) < 20_000
    });
    let bytes = carried_in(Duration::from_secs(1));
    assert!(bytes < 200_000, "{bytes} bytes on a backup");
}

/// Subflows that the kernel has.
fn subflows(interop: &Interop) -> usize {
    let filter = format!("( sport = :{PORT} or dport = :{PORT} )");
    let shown = ["-Htn", "state", "established", &filter];
    interop.bed.print("kernel", "ss", &shown).lines().count()
}

/// Of ADD_ADDR, or of its echoes, the first that comes by is lost.
const FIRST_ADD_ADDR_DROPPED: &str =
    "tcp option mptcp subtype 3 limit rate 1/hour burst 1 packets drop";

/// The engine verifies, echoes and joins it.
fn joined_by_the_engine(addr: impl Fn(&Interop) -> IpAddr, port: Option<&str>) -> Interop {
    let interop = Interop::lossless(Side::Engine, 1);
    announce(&interop, addr(&interop), port);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    // Recent kernels repeat it as soon as a round trip should be over; two at once have one echo.
    let said = interop.count("AddAddrTx");
    assert!((1..=said).contains(&interop.count("EchoAdd")));
    assert_eq!(interop.count("MPJoinAckRx"), 1);
    interop
}

#[test]
#[ignore = "network"]
fn engine_joins_what_the_kernel_announces() {
    joined_by_the_engine(|interop| interop.bed.v4_of("kernel", 1), None);
}

#[test]
#[ignore = "network"]
fn engine_joins_a_port_that_the_kernel_announces() {
    let interop = joined_by_the_engine(|interop| interop.bed.v4_of("kernel", 1), Some("7006"));
    assert_eq!(interop.count("MPJoinPortAckRx"), 1);
}

#[test]
#[ignore = "network"]
fn engine_joins_an_address_of_the_other_family() {
    joined_by_the_engine(|interop| interop.bed.v6("kernel"), None);
}

#[test]
#[ignore = "network"]
fn kernel_joins_what_the_engine_announces() {
    let mut interop = Interop::lossless(Side::Kernel, 1);
    interop.announces = true;
    allow(&interop);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    expect_echo_heard(&interop);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

/// The engine stops saying it when the kernel has echoed it: what is not heard it says five times, long
/// before the transfer is over. It may have said it again where the echo took its time.
fn expect_echo_heard(interop: &Interop) {
    let said = interop.count("AddAddr");
    assert!((1..=3).contains(&said), "said {said} times");
    assert!((1..=said).contains(&interop.count("EchoAddTx")));
}

/// What the kernel withdraws is closed at both ends, and the rest arrives by what is left.
#[test]
#[ignore = "network"]
fn kernel_withdraws_an_address() {
    let interop = Interop::lossless(Side::Engine, 1);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    wait_for(&interop, "MPJoinAckRx", 1);
    mptcp(&interop, &["endpoint", "del", "id", "7"]);
    wait_for(&interop, "RmAddrTx", 1);
    interop.expect_short_lived(peers, 2);
    // It was not joined again.
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// The engine withdraws the address of a link that goes down, and joins again when it is back.
fn engine_withdraws(link: &str) {
    let interop = Interop::lossless(Side::Engine, 2);
    allow(&interop);
    let peers = interop.start();
    wait_for(&interop, "MPJoinAckRx", 1);
    let set = |state| {
        let arguments = ["link", "set", link, state];
        interop.bed.run("engine", "ip", &arguments);
    };
    set("down");
    wait_until("the end of its subflow", || {
        interop.count("RmAddr") >= 1 && subflows(&interop) == 1
    });
    set("up");
    wait_until("the join", || {
        interop.count("MPJoinAckRx") >= 2 && subflows(&interop) == 2
    });
    // The engine may have three for a moment: when the link is back it hears that the kernel has
    // left the old one, which still carries what it held while the new one opens.
    for report in interop.reports(peers) {
        assert_eq!(report["fallback"], false, "{report}");
    }
    assert_eq!(interop.count("MPJoinAckRx"), 2);
}

#[test]
#[ignore = "network"]
fn engine_withdraws_an_address() {
    engine_withdraws("link2");
}

/// The connection was opened from there.
#[test]
#[ignore = "network"]
fn engine_withdraws_its_initial_address() {
    engine_withdraws("link1");
}

/// A server gives up the address that the connection was opened to.
// Conforms: 8684-3.4.2-3
#[test]
#[ignore = "network"]
fn kernel_withdraws_the_address_that_the_engine_came_to() {
    let mut interop = Interop::lossless(Side::Engine, 1);
    interop.bytes = "20000000";
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    wait_for(&interop, "MPJoinAckRx", 1);
    let initial = interop.bed.v4("kernel").to_string();
    mptcp(&interop, &["endpoint", "del", "id", "0", &initial]);
    wait_for(&interop, "RmAddrTx", 1);
    wait_until("the end of its subflow", || subflows(&interop) == 1);
    interop.expect_short_lived(peers, 2);
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// A client gives up the address that it opened the connection from.
#[test]
#[ignore = "network"]
fn kernel_withdraws_the_address_that_it_came_from() {
    let mut interop = Interop::lossless(Side::Kernel, 2);
    interop.bytes = "20000000";
    let peers = interop.start();
    wait_for(&interop, "MPJoinSynAckRx", 1);
    let initial = interop.bed.v4("kernel").to_string();
    mptcp(&interop, &["endpoint", "del", "id", "0", &initial]);
    wait_for(&interop, "RmAddrTx", 1);
    wait_until("the end of its subflow", || subflows(&interop) == 1);
    interop.expect_short_lived(peers, 2);
}

/// The engine sends nothing on what the kernel made a backup, until it is one no more.
#[test]
#[ignore = "network"]
fn kernel_demotes_a_subflow() {
    let interop = Interop::lossless(Side::Kernel, 2);
    let peers = interop.start();
    wait_for(&interop, "MPJoinSynAckRx", 1);
    expect_link2_in_use(&interop, Side::Engine);
    let second = interop.bed.v4_of("kernel", 1).to_string();
    mptcp(&interop, &["endpoint", "change", &second, "backup"]);
    wait_for(&interop, "MPPrioTx", 1);
    expect_link2_left_alone(&interop, Side::Engine);
    mptcp(&interop, &["endpoint", "change", &second, "nobackup"]);
    wait_for(&interop, "MPPrioTx", 2);
    expect_link2_in_use(&interop, Side::Engine);
    interop.expect_subflows(peers, 2);
}

/// The kernel sends nothing on what the engine made a backup, until it is one no more.
fn engine_demotes(client: Side, paths: usize) {
    let mut interop = Interop::lossless(client, paths);
    allow(&interop);
    interop.announces = client == Side::Kernel;
    let peers = interop.start_with(&["--demote", "5000000", "--promote", "25000000"]);
    wait_for(&interop, "MPPrioRx", 1);
    expect_link2_left_alone(&interop, Side::Kernel);
    // Each change is said twice.
    wait_for(&interop, "MPPrioRx", 3);
    expect_link2_in_use(&interop, Side::Kernel);
    interop.expect_subflows(peers, 2);
}

// Conforms: 8684-3.3.8-3
#[test]
#[ignore = "network"]
fn engine_demotes_a_subflow_that_it_opened() {
    engine_demotes(Side::Engine, 2);
}

// Conforms: 8684-3.3.8-3
#[test]
#[ignore = "network"]
fn engine_demotes_a_subflow_that_the_kernel_opened() {
    engine_demotes(Side::Kernel, 1);
}

/// C flag: the engine joins the announced address and never the one it came to.
// Conforms: 8684-3.1-6
#[test]
#[ignore = "network"]
fn kernel_denies_joins_to_its_initial_address() {
    let interop = Interop::lossless(Side::Engine, 2);
    interop.set_kernel("mptcp/allow_join_initial_addr_port", 0);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynRx"), 1);
    assert_eq!(interop.count("MPJoinAckRx"), 1);
}

/// C flag: the kernel joins the announced address and never the one it came to.
#[test]
#[ignore = "network"]
fn engine_denies_joins_to_its_initial_address() {
    let mut interop = Interop::lossless(Side::Kernel, 2);
    interop.announces = true;
    interop.denies_joins = true;
    allow(&interop);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynTx"), 1);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

/// The engine's first echo is lost, so the kernel says it again, and hears it.
// Conforms: 8684-3.4.1-3
#[test]
#[ignore = "network"]
fn kernel_announces_again_what_was_not_echoed() {
    let mut interop = Interop::lossless(Side::Engine, 1);
    interop.bytes = "20000000";
    interop.set_kernel("mptcp/add_addr_timeout", 1);
    interop.meddle(RECEIVED, FIRST_ADD_ADDR_DROPPED);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    let said = interop.count("AddAddrTx");
    assert!((1..said).contains(&interop.count("EchoAdd")));
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// The kernel's first echo is lost, so the engine says it again, and hears it.
// Conforms: 8684-3.4.1-4
#[test]
#[ignore = "network"]
fn engine_announces_again_what_was_not_echoed() {
    let mut interop = Interop::lossless(Side::Kernel, 1);
    interop.bytes = "20000000";
    interop.announces = true;
    allow(&interop);
    interop.meddle(SENT, FIRST_ADD_ADDR_DROPPED);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    for name in ["AddAddr", "EchoAddTx"] {
        assert!(interop.count(name) >= 2, "{name}");
    }
    assert_eq!(interop.count("MPJoinSynTx"), 1);
}

/// An endpoint that is written as IPv6 and is one of IPv4.
#[test]
#[ignore = "network"]
fn engine_joins_a_mapped_address_that_the_kernel_announces() {
    let mapped = |interop: &Interop| match interop.bed.v4_of("kernel", 1) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 @ IpAddr::V6(_) => v6,
    };
    joined_by_the_engine(mapped, None);
}

/// A socket of IPv6, the packets of which are IPv4's.
#[test]
#[ignore = "network"]
fn kernel_connects_and_joins_by_mapped_addresses() {
    let mut interop = Interop::lossless(Side::Kernel, 1);
    interop.mapped = true;
    interop.announces = true;
    allow(&interop);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    expect_echo_heard(&interop);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

#[test]
#[ignore = "network"]
fn over_ipv6() {
    for client in [Side::Engine, Side::Kernel] {
        let mut interop = Interop::new(client, 2);
        interop.v6 = true;
        let peers = interop.start();
        interop.expect_subflows(peers, 2);
    }
}
