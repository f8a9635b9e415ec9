//! The engine and the kernel's Multipath TCP announce addresses and priorities to each other (RFC 8684 sections
//! 3.1, 3.3.8 and 3.4), during the transfers of `interop`. The links are slow until all of that has happened.

use std::net::IpAddr;

use super::interop::{Interop, PORT, RECEIVED, SENT, Side};

/// Lets the kernel take further subflows and join announced addresses.
fn allow(interop: &Interop) {
    let limits = ["limits", "set", "subflows", "4", "add_addr_accepted", "4"];
    mptcp(interop, &limits);
}

/// Runs `ip mptcp` at the kernel's side.
fn mptcp(interop: &Interop, arguments: &[&str]) {
    let arguments = [&["mptcp"], arguments].concat();
    interop.bed.run("kernel", "ip", &arguments);
}

/// Makes the kernel announce `addr` with the id 7.
fn announce(interop: &Interop, addr: IpAddr, port: Option<&str>) {
    allow(interop);
    let addr = addr.to_string();
    let mut arguments = vec!["endpoint", "add", &addr, "id", "7"];
    arguments.extend(port.iter().flat_map(|port| ["port", port]));
    arguments.push("signal");
    mptcp(interop, &arguments);
}

/// Returns the bytes sent by a side that each link carried.
fn carried(interop: &Interop, sender: Side) -> [u64; 2] {
    interop.carried().map(|[forward, reverse]| match sender {
        Side::Engine => forward,
        Side::Kernel => reverse,
    })
}

/// Waits until link 2 has carried 1 MB since `before`.
fn expect_link2_in_use(interop: &Interop, sender: Side, before: [u64; 2]) {
    interop.wait_until("link 2 to carry 1 MB", || {
        carried(interop, sender)[1] >= before[1] + 1_000_000
    });
}

/// Waits until link 1 has carried `bytes` more, and returns the bytes that both links carried meanwhile. Link
/// 1 carries more than `bytes` if this thread stands still.
fn carried_meanwhile(interop: &Interop, sender: Side, bytes: u64) -> [u64; 2] {
    let before = carried(interop, sender);
    interop.wait_until("link 1 to carry on", || {
        carried(interop, sender)[0] >= before[0] + bytes
    });
    // Link 1 was counted first before and is counted last now. So the time of link 2 is never the longer one,
    // wherever this thread stood still.
    let [_, link2] = carried(interop, sender);
    let [link1, _] = carried(interop, sender);
    [link1 - before[0], link2 - before[1]]
}

/// Returns whether link 2 carries no data of a side beside link 1. The side's acknowledgements still go that
/// way: 80 bytes for one or two segments, which is 5 % at most. With data on both links the share of link 2
/// is about a half.
fn is_left_alone([link1, link2]: [u64; 2]) -> bool {
    link2 * 100 < link1 * 8
}

/// Expects no data of a side on link 2, once the data under way there has arrived.
fn expect_link2_left_alone(interop: &Interop, sender: Side) {
    interop.wait_until("link 2 to be left", || {
        is_left_alone(carried_meanwhile(interop, sender, 100_000))
    });
    let carried = carried_meanwhile(interop, sender, 500_000);
    assert!(
        is_left_alone(carried),
        "{carried:?} bytes, of which the second are on a backup\n{}",
        interop.seen()
    );
}

/// Returns the number of subflows at the kernel.
fn subflows(interop: &Interop) -> usize {
    let filter = format!("( sport = :{PORT} or dport = :{PORT} )");
    let shown = ["-Htn", "state", "established", &filter];
    interop.bed.print("kernel", "ss", &shown).lines().count()
}

/// Bytes that both links carry, both ways together, while a test looks for an event that must not happen.
/// Held links take a second for them, or two seconds if one link carries all.
const MEANWHILE: u64 = 2_000_000;

/// A rule that drops the first packet with ADD_ADDR, or the first echo.
const FIRST_ADD_ADDR_DROPPED: &str =
    "tcp option mptcp subtype 3 limit rate 1/hour burst 1 packets drop";

/// Makes the kernel announce an address, which the engine verifies, echoes and joins.
fn joined_by_the_engine(addr: impl Fn(&Interop) -> IpAddr, port: Option<&str>) -> Interop {
    let mut interop = Interop::lossless(Side::Engine, 1);
    announce(&interop, addr(&interop), port);
    let peers = interop.start();
    interop.wait_for_join();
    interop.wait_for_count("EchoAdd", 1);
    interop.expect_subflows(peers, 2);
    // Recent kernels repeat ADD_ADDR as soon as a round trip should be over; two at once have one echo.
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
    expect_echo_heard(&interop);
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

/// Expects that the engine stops announcing its address once the echo has come. Without an echo the engine
/// announces it five times: the first pause is a retransmission time-out, and each further one is twice as
/// long. The engine may have repeated the announcement if the echo was slow.
fn expect_echo_heard(interop: &Interop) {
    interop.wait_for_join();
    interop.wait_for_count("EchoAddTx", 1);
    // The echo is under way.
    interop.wait_for_progress(MEANWHILE / 4);
    let said = interop.count("AddAddr");
    interop.wait_for_progress(2 * MEANWHILE);
    assert_eq!(interop.count("AddAddr"), said, "said again after the echo");
    assert!((1..5).contains(&said), "said {said} times");
    assert!((1..=said).contains(&interop.count("EchoAddTx")));
}

/// Both ends close the subflow of a withdrawn address, and the rest arrives over the other one.
#[test]
#[ignore = "network"]
fn kernel_withdraws_an_address() {
    let mut interop = Interop::lossless(Side::Engine, 1);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.wait_for_count("MPJoinAckRx", 1);
    mptcp(&interop, &["endpoint", "del", "id", "7"]);
    interop.wait_for_count("RmAddrTx", 1);
    interop.wait_until("the end of its subflow", || subflows(&interop) == 1);
    interop.wait_for_progress(MEANWHILE);
    interop.expect_short_lived(peers, 2);
    // The address was not joined again.
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// The engine withdraws the address of a link that goes down, and joins again when it is back.
fn engine_withdraws(link: &str) {
    let mut interop = Interop::lossless(Side::Engine, 2);
    allow(&interop);
    let peers = interop.start();
    interop.wait_for_count("MPJoinAckRx", 1);
    let set = |state| {
        let arguments = ["link", "set", link, state];
        interop.bed.run("engine", "ip", &arguments);
    };
    set("down");
    interop.wait_until("the end of its subflow", || {
        interop.count("RmAddr") >= 1 && subflows(&interop) == 1
    });
    set("up");
    interop.wait_until("the join", || {
        interop.count("MPJoinAckRx") >= 2 && subflows(&interop) == 2
    });
    interop.wait_for_progress(MEANWHILE);
    // The engine may have three for a moment. When the link is back it learns that the kernel has left the
    // old one, which still carries its data while the new one opens.
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

/// The connection was opened from this address.
#[test]
#[ignore = "network"]
fn engine_withdraws_its_initial_address() {
    engine_withdraws("link1");
}

/// A server withdraws the address that the connection was opened to.
// Conforms: 8684-3.4.2-3
#[test]
#[ignore = "network"]
fn kernel_withdraws_the_address_that_the_engine_came_to() {
    let mut interop = Interop::lossless(Side::Engine, 1);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.wait_for_count("MPJoinAckRx", 1);
    let initial = interop.bed.v4("kernel").to_string();
    mptcp(&interop, &["endpoint", "del", "id", "0", &initial]);
    interop.wait_for_count("RmAddrTx", 1);
    interop.wait_until("the end of its subflow", || subflows(&interop) == 1);
    interop.wait_for_progress(MEANWHILE);
    interop.expect_short_lived(peers, 2);
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// A client withdraws the address that it opened the connection from.
#[test]
#[ignore = "network"]
fn kernel_withdraws_the_address_that_it_came_from() {
    let mut interop = Interop::lossless(Side::Kernel, 2);
    let peers = interop.start();
    interop.wait_for_count("MPJoinSynAckRx", 1);
    let initial = interop.bed.v4("kernel").to_string();
    mptcp(&interop, &["endpoint", "del", "id", "0", &initial]);
    interop.wait_for_count("RmAddrTx", 1);
    interop.wait_until("the end of its subflow", || subflows(&interop) == 1);
    interop.expect_short_lived(peers, 2);
}

/// The engine sends no data on a subflow that the kernel made a backup, until the kernel takes that back.
#[test]
#[ignore = "network"]
fn kernel_demotes_a_subflow() {
    let mut interop = Interop::lossless(Side::Kernel, 2);
    let peers = interop.start();
    let before = carried(&interop, Side::Engine);
    interop.wait_for_join();
    expect_link2_in_use(&interop, Side::Engine, before);
    let second = interop.bed.v4_of("kernel", 1).to_string();
    mptcp(&interop, &["endpoint", "change", &second, "backup"]);
    interop.wait_for_count("MPPrioTx", 1);
    expect_link2_left_alone(&interop, Side::Engine);
    let before = carried(&interop, Side::Engine);
    mptcp(&interop, &["endpoint", "change", &second, "nobackup"]);
    interop.wait_for_count("MPPrioTx", 2);
    expect_link2_in_use(&interop, Side::Engine, before);
    interop.expect_subflows(peers, 2);
}

/// The kernel sends no data on a subflow that the engine made a backup, until the engine takes that back.
fn engine_demotes(client: Side, paths: usize) {
    let mut interop = Interop::lossless(client, paths);
    allow(&interop);
    interop.announces = client == Side::Kernel;
    // A held link 1 takes 8 s between the two, of which the steps need 2 s.
    let demote = interop.bytes / 10;
    let [demote, promote] = [demote, demote + 4_000_000].map(|bytes| bytes.to_string());
    let peers = interop.start_with(&["--demote", &demote, "--promote", &promote]);
    interop.wait_for_count("MPPrioRx", 1);
    expect_link2_left_alone(&interop, Side::Kernel);
    let before = carried(&interop, Side::Kernel);
    // The engine sends each change twice. Half of the bytes are left when it promotes the subflow, and held
    // links take seconds for them.
    interop.wait_for_count("MPPrioRx", 3);
    expect_link2_in_use(&interop, Side::Kernel, before);
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

/// C flag: the engine joins the announced address and never the initial one.
// Conforms: 8684-3.1-6
#[test]
#[ignore = "network"]
fn kernel_denies_joins_to_its_initial_address() {
    let mut interop = Interop::lossless(Side::Engine, 2);
    interop.set_kernel("mptcp/allow_join_initial_addr_port", 0);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.wait_for_join();
    interop.wait_for_progress(MEANWHILE);
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynRx"), 1);
    assert_eq!(interop.count("MPJoinAckRx"), 1);
}

/// C flag: the kernel joins the announced address and never the initial one.
#[test]
#[ignore = "network"]
fn engine_denies_joins_to_its_initial_address() {
    let mut interop = Interop::lossless(Side::Kernel, 2);
    interop.announces = true;
    interop.denies_joins = true;
    allow(&interop);
    let peers = interop.start();
    interop.wait_for_join();
    interop.wait_for_progress(MEANWHILE);
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynTx"), 1);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

/// The engine's first echo is lost, so the kernel repeats the announcement, and gets the next echo.
// Conforms: 8684-3.4.1-3
#[test]
#[ignore = "network"]
fn kernel_announces_again_what_was_not_echoed() {
    let mut interop = Interop::lossless(Side::Engine, 1);
    interop.set_kernel("mptcp/add_addr_timeout", 1);
    interop.edit_segments(RECEIVED, FIRST_ADD_ADDR_DROPPED);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.wait_for_join();
    interop.wait_for_count("EchoAdd", 1);
    interop.expect_subflows(peers, 2);
    let said = interop.count("AddAddrTx");
    assert!((1..said).contains(&interop.count("EchoAdd")));
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// The kernel's first echo is lost, so the engine repeats the announcement, and gets the next echo.
// Conforms: 8684-3.4.1-4
#[test]
#[ignore = "network"]
fn engine_announces_again_what_was_not_echoed() {
    let mut interop = Interop::lossless(Side::Kernel, 1);
    interop.announces = true;
    allow(&interop);
    interop.edit_segments(SENT, FIRST_ADD_ADDR_DROPPED);
    let peers = interop.start();
    interop.wait_for_join();
    for name in ["AddAddr", "EchoAddTx"] {
        interop.wait_for_count(name, 2);
    }
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynTx"), 1);
}

/// An IPv4 endpoint that is written as an IPv4-mapped IPv6 address.
#[test]
#[ignore = "network"]
fn engine_joins_a_mapped_address_that_the_kernel_announces() {
    let mapped = |interop: &Interop| match interop.bed.v4_of("kernel", 1) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 @ IpAddr::V6(_) => v6,
    };
    joined_by_the_engine(mapped, None);
}

/// An IPv6 socket whose packets are IPv4.
#[test]
#[ignore = "network"]
fn kernel_connects_and_joins_by_mapped_addresses() {
    let mut interop = Interop::lossless(Side::Kernel, 1);
    interop.mapped = true;
    interop.announces = true;
    allow(&interop);
    let peers = interop.start();
    expect_echo_heard(&interop);
    interop.expect_subflows(peers, 2);
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
