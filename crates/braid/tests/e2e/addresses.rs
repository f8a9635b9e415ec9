//! The engine and the kernel's Multipath TCP tell each other of addresses and priorities (RFC 8684
//! sections 3.1, 3.3.8 and 3.4), during the transfers of `interop`.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use super::interop::{Client, Interop};

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

fn slow(interop: &mut Interop) {
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "rate=40mbit");
    }
}

fn wait_for(interop: &mut Interop, counter: &str, least: u64) {
    for _ in 0..200 {
        if interop.count(counter) >= least {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{counter} stays below {least}");
}

/// Bytes of the engine that link 2 carried in a second.
fn second_of_link2(interop: &Interop) -> u64 {
    let sent = || {
        let stats = interop
            .bed
            .testbed
            .link_status("link2")
            .expect("statistics");
        stats.forward.bytes_delivered
    };
    let before = sent();
    thread::sleep(Duration::from_secs(1));
    sent() - before
}

/// The engine verifies, echoes and joins it.
fn joined_by_the_engine(addr: impl Fn(&Interop) -> IpAddr, port: Option<&str>) -> Interop {
    let interop = Interop::new(Client::Engine, 1);
    announce(&interop, addr(&interop), port);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("AddAddrTx"), 1);
    assert_eq!(interop.count("EchoAdd"), 1);
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
    let mut interop = Interop::new(Client::Kernel, 1);
    interop.announces = true;
    allow(&interop);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("AddAddr"), 1);
    assert_eq!(interop.count("EchoAddTx"), 1);
    assert_eq!(interop.count("MPJoinSynAckRx"), 1);
}

/// What the kernel withdraws is closed at both ends, and the rest arrives by what is left.
#[test]
#[ignore = "network"]
fn kernel_withdraws_an_address() {
    let mut interop = Interop::new(Client::Engine, 1);
    slow(&mut interop);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    wait_for(&mut interop, "MPJoinAckRx", 1);
    mptcp(&interop, &["endpoint", "del", "id", "7"]);
    wait_for(&mut interop, "RmAddrTx", 1);
    interop.expect_subflows(peers, 2);
    // It was not joined again.
    assert_eq!(interop.count("MPJoinSynRx"), 1);
}

/// The engine withdraws the address of a link that goes down, and joins again when it is back.
#[test]
#[ignore = "network"]
fn engine_withdraws_an_address() {
    let mut interop = Interop::new(Client::Engine, 2);
    slow(&mut interop);
    allow(&interop);
    let peers = interop.start();
    wait_for(&mut interop, "MPJoinAckRx", 1);
    interop
        .bed
        .run("engine", "ip", &["link", "set", "link2", "down"]);
    wait_for(&mut interop, "RmAddr", 1);
    interop
        .bed
        .run("engine", "ip", &["link", "set", "link2", "up"]);
    wait_for(&mut interop, "MPJoinAckRx", 2);
    interop.expect_subflows(peers, 2);
}

/// The engine sends nothing on what the kernel made a backup, until it is one no more.
#[test]
#[ignore = "network"]
fn kernel_demotes_a_subflow() {
    let mut interop = Interop::new(Client::Kernel, 2);
    slow(&mut interop);
    let peers = interop.start();
    wait_for(&mut interop, "MPJoinSynAckRx", 1);
    thread::sleep(Duration::from_millis(500));
    let used = second_of_link2(&interop);
    let second = interop.bed.v4_of("kernel", 1).to_string();
    mptcp(&interop, &["endpoint", "change", &second, "backup"]);
    wait_for(&mut interop, "MPPrioTx", 1);
    thread::sleep(Duration::from_millis(500));
    let idle = second_of_link2(&interop);
    mptcp(&interop, &["endpoint", "change", &second, "nobackup"]);
    wait_for(&mut interop, "MPPrioTx", 2);
    let again = second_of_link2(&interop);
    assert!(used > 1_000_000 && again > 1_000_000, "{used}, {again}");
    assert!(idle < 200_000, "{idle} bytes on a backup");
    interop.expect_subflows(peers, 2);
}

/// C flag: the engine joins the announced address and never the one it came to.
#[test]
#[ignore = "network"]
fn kernel_denies_joins_to_its_initial_address() {
    let interop = Interop::new(Client::Engine, 2);
    interop.set_kernel("mptcp/allow_join_initial_addr_port", 0);
    announce(&interop, interop.bed.v4_of("kernel", 1), None);
    let peers = interop.start();
    interop.expect_subflows(peers, 2);
    assert_eq!(interop.count("MPJoinSynRx"), 1);
    assert_eq!(interop.count("MPJoinAckRx"), 1);
}

#[test]
#[ignore = "network"]
fn over_ipv6() {
    for client in [Client::Engine, Client::Kernel] {
        let mut interop = Interop::new(client, 2);
        interop.v6 = true;
        let peers = interop.start();
        interop.expect_subflows(peers, 2);
    }
}
