//! An attacker elsewhere has seen the keys of users' connections on their way (RFC 8684 section 3.1), joins
//! these connections with them, and acknowledges all that the server sends there.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_sim::hijacker::{Hijacker, Keys, keys_in};
use braid_testbed::Role;
use braid_wire::{Rng, ip, tcp};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::attacks::{inside, namespace};
use super::control::status;
use super::fixture::{Ends, Fixture, Judge, render_changed};

/// The server's port.
const PORT: u16 = 1080;
/// IPv4's protocol number for packet sockets (linux/if_ether.h).
const ETH_P_IP: u16 = 0x0800;
/// The thief's address, which no host has (RFC 5737).
const ELSEWHERE: [u8; 4] = [203, 0, 113, 66];
/// Time between two joins of one connection.
const GAP: Duration = Duration::from_millis(20);
/// Newest connections whose keys the thief remembers.
const MAX_KEYS: usize = 8;
/// The share of its rate that a download keeps.
const ENOUGH: f64 = 0.8;

/// Joins every connection that passes, until `over` is true.
fn steal(server: IpAddr, over: &AtomicBool) -> Hijacker {
    let raw = Some(Protocol::from(255));
    let socket = Socket::new(Domain::IPV4, Type::RAW, raw).expect("a raw socket");
    let to = SockAddr::from(SocketAddr::new(server, 0));
    // A packet that the device has no room for is lost, as on any path.
    let put = |packet: &[u8]| drop(socket.send_to(packet, &to));
    let ip = Some(Protocol::from(i32::from(ETH_P_IP.to_be())));
    let mut heard = Socket::new(Domain::PACKET, Type::DGRAM, ip).expect("a packet socket");
    heard.set_nonblocking(true).expect("a socket");
    let (mut thief, mut rng) = (Hijacker::default(), Rng::for_component(1, 0));
    let (mut buffer, mut seen) = (vec![0; 1 << 16], VecDeque::new());
    let mut next = Instant::now();
    while !over.load(Ordering::Acquire) {
        loop {
            let received = match heard.read(&mut buffer) {
                Ok(len) => &buffer[..len],
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            };
            thief.answer(received).iter().for_each(|answer| put(answer));
            if let Some(keys) = stolen(received).filter(|keys| !seen.contains(keys)) {
                seen.push_front(keys);
                seen.truncate(MAX_KEYS);
            }
        }
        if Instant::now() >= next {
            next += GAP;
            for keys in &seen {
                let local = SocketAddr::from((ELSEWHERE, 1_024 + rng.below(60_000) as u16));
                let ends = (local, SocketAddr::new(server, PORT));
                put(&thief.join(*keys, ends, (9, rng.u32())));
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    thief
}

fn stolen(packet: &[u8]) -> Option<Keys> {
    let (_, segment) = ip::Repr::parse(packet).ok()?;
    let (segment, _) = tcp::Repr::parse(segment).ok()?;
    keys_in(&segment)
}

/// Returns the number of lines in the server's log about a refused join.
fn told(bed: &mut Fixture) -> usize {
    let log = bed.log("server");
    log.lines()
        .filter(|l| l.contains("did not prove to be the peer"))
        .count()
}

/// Downloads `size` bytes without and with the thief.
fn stolen_keys_take_nothing_of(size: usize, judge: Judge) {
    // Without idle connections, so that the keys of users' connections pass the thief.
    let render = render_changed(Role::Box, |text| {
        format!("expert.idle_pool_size = 0\n{text}")
    });
    let mut bed = Fixture::up_with(render);
    let [a, b, c, d] = ELSEWHERE;
    let elsewhere = format!("{a}.{b}.{c}.{d}/32");
    bed.run("internet", "ip", &["route", "add", "blackhole", &elsewhere]);
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=10mbit");
    let expected = bed.offer("large", size);
    let timed = |bed: &Fixture| {
        let begun = Instant::now();
        bed.curl("large").expect_bytes(&expected);
        begun.elapsed().as_secs_f64()
    };
    let alone = timed(&bed);
    let (server, router) = (bed.v4("server"), namespace(&bed, "internet"));
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let (attacked, thief) = thread::scope(|scope| {
        let thief = scope.spawn(|| inside(&router, || steal(server, &over)));
        let ends = Ends(&over);
        let attacked = timed(&bed);
        drop(ends);
        (attacked, thief.join().expect("a thief"))
    });
    println!(
        "{} joins, {} bytes taken",
        thief.joins_tried, thief.bytes_received
    );
    assert!(thief.joins_tried > 0, "nothing was joined");
    assert_eq!(thief.bytes_received, 0);
    // The last joins may come after their connection has ended.
    bed.wait_for("the joins to be counted", |bed| {
        status(bed, "server").counters["joins_forged"] + 2 >= thief.joins_tried
    });
    let minutes = begun.elapsed().as_secs() / 60;
    let lines = told(&mut bed);
    // The box opens connections from its address on each of the two links; the thief joins them all.
    let max = 2 * (minutes as usize + 1);
    assert!((1..=max).contains(&lines), "{lines} lines");
    if judge == Judge::Clock {
        let share = alone / attacked;
        println!("{share:.2} of the rate");
        assert!(share > ENOUGH, "{share:.2} of the rate");
    }
}

#[test]
#[ignore = "network"]
fn stolen_keys_take_nothing() {
    stolen_keys_take_nothing_of(10_000_000, Judge::Service);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn stolen_keys_cost_no_rate() {
        stolen_keys_take_nothing_of(100_000_000, Judge::Clock);
    }
}
