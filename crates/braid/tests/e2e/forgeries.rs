//! Datagrams of an attacker to the UDP ports of box and server while users have the tunnel: forged, cut, repeated,
//! reflected. None is delivered, answered or moves a session.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use braid_proxy::tunnel_status::TunnelStatus;
use braid_testbed::{Capture, Captured};
use braid_wire::{Rng, ip, udp};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::attacks::{inside, namespace};
use super::call::Call;
use super::control::status;
use super::fixture::{Fixture, Judge};
use super::floods::keep_pace;
use super::http3::{Direction, Transfer};
use super::load::{Attack, EndsWith, GROWTH, LINES, best_share, memory, rate};

/// The server's port.
const PORT: u16 = 1080;
/// IPv4's protocol number for packet sockets (linux/if_ether.h).
const ETH_P_IP: u16 = 0x0800;
/// Packets a second of a flood that must cost users little, if the machine can send that many.
const FLOOD_RATE: f64 = 50_000.0;
/// If fewer reach the victim, the machine has too few processors for users and flood together, and the result means
/// nothing.
const LEAST: f64 = 0.8 * FLOOD_RATE;
/// Packets a second of a flood beside which users must only be served.
const TRICKLE_RATE: f64 = 5_000.0;
/// Least packets of a flood.
const FLOOD_PACKETS: u64 = 8_000;
/// Packets of the call that have to come back meanwhile.
const STEP: u64 = 50;
/// The share of their rate that users keep.
const ENOUGH: f64 = 0.8;
/// Bytes of a transfer that does not end by itself.
const ENDLESS: usize = 4 << 30;
/// Bytes of a transfer until its rate is measured.
const SETTLED: u64 = 8_000_000;
/// The attacker's addresses: a network without hosts (RFC 5737).
const ELSEWHERE: &str = "203.0.113.0/24";
const ATTACKER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 66), 7_777);
/// The first byte of a datagram: version 1, and two bits of the epoch. The session follows.
const VERSION: u8 = 1 << 4;
/// Bytes of a datagram's header: version, session, path, number.
const HEADER_LEN: usize = 13;
/// Largest payload of a datagram on a link. The kernel shows several datagrams as one (GRO).
const MAX_LEN: usize = 1_472;

/// The end that is attacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Box,
    Server,
}

impl Victim {
    fn role(self) -> &'static str {
        match self {
            Victim::Box => "box",
            Victim::Server => "server",
        }
    }
}

/// A datagram of the tunnel.
#[derive(Debug, Clone)]
struct Datagram {
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: Vec<u8>,
}

impl Datagram {
    /// Reads a packet; returns `None` if it is none of the tunnel.
    fn read(packet: &[u8]) -> Option<Self> {
        let (header, datagram) = ip::Repr::parse(packet).ok()?;
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (header.src, header.dst) else {
            return None;
        };
        let (udp, payload) = (header.protocol == ip::PROTO_UDP)
            .then(|| udp::Repr::parse(datagram).ok())
            .flatten()?;
        let is_one = (HEADER_LEN..=MAX_LEN).contains(&payload.len());
        let is_of_tunnel = [udp.src_port, udp.dst_port].contains(&PORT);
        (is_one && is_of_tunnel).then(|| Datagram {
            from: SocketAddrV4::new(src, udp.src_port),
            to: SocketAddrV4::new(dst, udp.dst_port),
            payload: payload.to_vec(),
        })
    }

    /// Returns the packet that carries it.
    fn packet(&self) -> Vec<u8> {
        let udp = udp::Repr {
            src_port: self.from.port(),
            dst_port: self.to.port(),
            payload_len: self.payload.len(),
        };
        let header = ip::Repr {
            src: (*self.from.ip()).into(),
            dst: (*self.to.ip()).into(),
            protocol: ip::PROTO_UDP,
            payload_len: udp::HEADER_LEN + self.payload.len(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let start = header.header_len();
        let mut packet = vec![0; start + header.payload_len];
        header.emit(&mut packet);
        udp.emit(&mut packet[start..]);
        packet[start + udp::HEADER_LEN..].copy_from_slice(&self.payload);
        udp::fill_checksum(header.src, header.dst, &mut packet[start..]);
        packet
    }
}

/// The kind of an attacker's datagram.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Random bytes.
    Noise,
    /// A session that nobody has.
    UnknownSession,
    /// The header of a datagram that passed, with random bytes behind it.
    Forged,
    /// A datagram that passed, but for one bit.
    Flipped,
    /// The first bytes of a datagram that passed.
    Cut,
    /// A datagram that passed.
    Replayed,
    /// A datagram that the victim has sent.
    Reflected,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Noise,
        Kind::UnknownSession,
        Kind::Forged,
        Kind::Flipped,
        Kind::Cut,
        Kind::Replayed,
        Kind::Reflected,
    ];
}

/// Writes packets in the name of any host.
struct Sender(Socket);

impl Sender {
    /// Returns a sender on the thread's host.
    fn new() -> Self {
        let raw = Some(Protocol::from(255));
        Sender(Socket::new(Domain::IPV4, Type::RAW, raw).expect("a raw socket"))
    }

    fn put(&self, datagram: &Datagram) {
        let to = SockAddr::from(SocketAddr::from((*datagram.to.ip(), 0)));
        // A packet that the device has no room for is lost: only arrivals count.
        let _ = self.0.send_to(&datagram.packet(), &to);
    }
}

/// An attacker who has seen datagrams on their way.
struct Forger {
    sender: Sender,
    /// Datagrams to the victim, and those that it has sent.
    seen: [Vec<Datagram>; 2],
    rng: Rng,
}

impl Forger {
    /// Sends a datagram to the victim: in the name of the other end or from elsewhere.
    fn send(&mut self, kind: Kind) {
        let [to_victim, of_victim] = &self.seen;
        let any = |rng: &mut Rng, of: &[Datagram]| of[rng.below(of.len() as u64) as usize].clone();
        let mut datagram = any(&mut self.rng, to_victim);
        let payload = &mut datagram.payload;
        let len = payload.len() as u64;
        match kind {
            Kind::Noise => self.rng.fill(payload),
            Kind::UnknownSession => {
                self.rng.fill(payload);
                payload[0] = VERSION;
            }
            Kind::Forged => self.rng.fill(&mut payload[HEADER_LEN..]),
            Kind::Flipped => {
                let at = self.rng.below(len) as usize;
                payload[at] ^= 1 << self.rng.below(8);
            }
            Kind::Cut => payload.truncate(self.rng.below(len) as usize),
            Kind::Replayed => {}
            Kind::Reflected => *payload = any(&mut self.rng, of_victim).payload,
        }
        if self.rng.below(2) == 0 {
            datagram.from = ATTACKER;
        }
        self.sender.put(&datagram);
    }
}

/// A tunnel with a call in it, and an attacker's host on the way.
struct World {
    bed: Fixture,
    call: Call,
    router: String,
}

impl World {
    fn up() -> Self {
        let mut bed = Fixture::up();
        bed.wait_for_tunnel();
        let to = ["route", "add", "blackhole", ELSEWHERE];
        bed.run("internet", "ip", &to);
        let observe = format!(
            "table inet observed {{
                counter answered {{}}
                chain early {{
                    type filter hook prerouting priority raw;
                    ip daddr {ELSEWHERE} counter name answered
                }}
                chain held {{ type filter hook forward priority filter; }}
            }}"
        );
        bed.run("internet", "nft", &[&observe]);
        let router = namespace(&bed, "internet");
        let call = Call::start(&bed, bed.v4("content"));
        World { bed, call, router }
    }

    /// Waits until so many packets of the call have come back.
    fn go_on(&mut self, packets: u64) {
        let before = self.call.returned();
        let Self { bed, call, .. } = self;
        bed.wait_for("the call to go on", |_| call.returned() >= before + packets);
    }

    /// Returns bytes that the attacker's addresses were sent.
    fn answered(&self) -> u64 {
        let list = ["list", "counter", "inet", "observed", "answered"];
        let printed = self.bed.print("internet", "nft", &list);
        let mut words = printed.split_whitespace();
        words.find(|word| *word == "bytes");
        let bytes = words.next().and_then(|bytes| bytes.parse().ok());
        bytes.unwrap_or_else(|| panic!("{printed}"))
    }

    /// Returns the datagrams that pass: those to the victim, and those that it sends.
    fn watch(&mut self, victim: Victim) -> [Vec<Datagram>; 2] {
        let capture = Capture::start(&self.bed.testbed, "internet").expect("a capture");
        self.go_on(STEP);
        let packets = capture.finish().expect("packets");
        let datagrams = packets
            .iter()
            .filter_map(|Captured { bytes, .. }| Datagram::read(bytes));
        let (to, of): (Vec<_>, Vec<_>) = datagrams
            .partition(|datagram| (datagram.to.port() == PORT) == (victim == Victim::Server));
        assert!(
            !to.is_empty() && !of.is_empty(),
            "{} datagrams",
            packets.len()
        );
        [to, of]
    }

    /// Ends the call, whose packets must be sound, and fails if a session is another one than before.
    fn expect_unmoved(self, before: [Session; 2]) {
        assert_eq!(self.sessions(), before);
        let (_, seen) = self.call.expect_sound();
        assert_eq!(seen.ip(), self.bed.v4("server"), "it came by the tunnel");
    }

    fn sessions(&self) -> [Session; 2] {
        ["box", "server"].map(|role| {
            let tunnel = tunnel(&self.bed, role);
            (tunnel.opened, tunnel.sessions.first().and_then(|s| s.v4))
        })
    }
}

/// Sessions opened so far, and the address of the box in the current one.
type Session = (u64, Option<Ipv4Addr>);

fn tunnel(bed: &Fixture, role: &str) -> TunnelStatus {
    status(bed, role).tunnel.expect("it has one")
}

/// Returns the datagrams that an end has dropped.
fn dropped(bed: &Fixture, role: &str) -> BTreeMap<String, u64> {
    let mut drops = tunnel(bed, role).drops;
    drops.retain(|reason, _| ["unknown_session", "invalid_datagram"].contains(&reason.as_str()));
    drops
}

/// Returns the transfer whose rate is judged, over links whose other direction has room for the flood.
fn transfer(world: &mut World, victim: Victim) -> Transfer {
    let (direction, room) = match victim {
        Victim::Box => (Direction::Up, braid_testbed::emulator::Direction::Reverse),
        Victim::Server => (Direction::Down, braid_testbed::emulator::Direction::Forward),
    };
    let World { bed, .. } = world;
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=10mbit");
    for link in ["link1", "link2"] {
        let change = braid_testbed::LinkChange::parse(["rate=1gbit"]).expect("a good change");
        let set = bed.testbed.set(link, Some(room), &change);
        set.expect("a link");
    }
    let to = SocketAddr::new(bed.v4("content"), 443);
    let transfer = Transfer::start(bed, direction, to, ENDLESS);
    bed.wait_for("the transfer to get going", |_| transfer.bytes() > SETTLED);
    transfer
}

fn forgeries(victim: Victim, judge: Judge) {
    let mut world = World::up();
    let seen = world.watch(victim);
    let (role, router) = (victim.role(), world.router.clone());
    let transfer = (judge == Judge::Clock).then(|| transfer(&mut world, victim));
    let alone = transfer.as_ref().map(|transfer| rate(|| transfer.bytes()));
    let (before, sessions) = (dropped(&world.bed, role), world.sessions());
    let (lines, size) = (
        world.bed.log(role).lines().count(),
        memory(&mut world.bed, role),
    );
    let pace = match judge {
        Judge::Service => TRICKLE_RATE,
        Judge::Clock => FLOOD_RATE,
    };
    let (attack, begun) = (Attack::default(), Instant::now());
    let mut sent = 0;
    let share = thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            inside(&router, || {
                let (sender, rng) = (Sender::new(), Rng::for_component(1, 0));
                let mut forger = Forger { sender, seen, rng };
                keep_pace(&attack, pace, |forged| {
                    forger.send(Kind::ALL[forged as usize % Kind::ALL.len()]);
                    sent = forged;
                    forged > FLOOD_PACKETS
                });
            });
        });
        let ends = EndsWith(&attack);
        world.go_on(STEP);
        let share = transfer.as_ref().zip(alone);
        let share = share.map(|(transfer, alone)| best_share(alone, ENOUGH, || transfer.bytes()));
        drop(ends);
        attacker.join().expect("an attacker");
        share
    });
    let took = begun.elapsed();
    // After the last datagram, the victim still has to count.
    let all = |drops: &BTreeMap<String, u64>| drops.values().sum::<u64>();
    let enough = all(&before) + sent / 2;
    world.bed.wait_for("the datagrams to be counted", |bed| {
        judge == Judge::Clock || all(&dropped(bed, role)) > enough
    });
    let after = dropped(&world.bed, role);
    let grown = all(&after) - all(&before);
    println!("{role}: {sent} datagrams in {took:?}, dropped {before:?}, then {after:?}");
    assert_eq!(world.answered(), 0, "answers to the attacker");
    let grew = memory(&mut world.bed, role).saturating_sub(size);
    assert!(grew < GROWTH, "the {role} grew by {grew} bytes");
    let log = world.bed.log(role);
    assert!(log.lines().count() - lines < LINES, "{log}");
    world.go_on(STEP);
    if let Some(transfer) = transfer {
        transfer.abandon();
    }
    world.expect_unmoved(sessions);
    let Some(share) = share else { return };
    let arrived = grown as f64 / took.as_secs_f64();
    println!("{role}: users have {share:.2} of their rate, {arrived:.0} datagrams/s");
    if arrived < LEAST {
        eprintln!("== {role} FLOOD SKIPPED (this machine brings {arrived:.0} datagrams/s)");
    } else {
        assert!(share > ENOUGH, "{role}: {share:.2} of the rate");
    }
}

#[test]
#[ignore = "network"]
fn datagrams_of_an_attacker_change_nothing_at_a_server() {
    forgeries(Victim::Server, Judge::Service);
}

#[test]
#[ignore = "network"]
fn datagrams_of_an_attacker_change_nothing_at_a_box() {
    forgeries(Victim::Box, Judge::Service);
}

/// Sends all that comes from a link on from elsewhere, until the attack ends. Returns the number of bytes.
fn send_on(link: Ipv4Addr, attack: &Attack) -> u64 {
    let ip = Some(Protocol::from(i32::from(ETH_P_IP.to_be())));
    let mut heard = Socket::new(Domain::PACKET, Type::DGRAM, ip).expect("a packet socket");
    let wait = Some(Duration::from_millis(20));
    heard.set_read_timeout(wait).expect("a socket");
    let (sender, mut buffer, mut sent) = (Sender::new(), vec![0; 1 << 16], 0);
    attack.begins();
    while attack.goes_on() {
        let len = match heard.read(&mut buffer) {
            Ok(len) => len,
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            Err(e) => panic!("{e}"),
        };
        let datagram = Datagram::read(&buffer[..len]);
        let Some(datagram) = datagram.filter(|d| *d.from.ip() == link && d.to.port() == PORT)
        else {
            continue;
        };
        let datagram = Datagram {
            from: ATTACKER,
            ..datagram
        };
        sender.put(&datagram);
        sent += datagram.packet().len() as u64;
    }
    sent
}

/// An attacker on one link holds back all datagrams of the box, and sends them from elsewhere: they are new to the
/// server, and good. The attacker's address is sent no more than came from there, and nothing once the box is heard.
#[test]
#[ignore = "network"]
fn datagrams_sent_on_from_elsewhere_do_not_move_a_session() {
    let mut world = World::up();
    world.go_on(STEP);
    let sessions = world.sessions();
    let layout = world.bed.testbed.layout().host("box").expect("a host");
    let link = layout.links().next().expect("a link").address4;
    let held = format!("add rule inet observed held ip saddr {link} udp dport {PORT} drop");
    let (attack, router) = (Attack::default(), world.router.clone());
    let sent = thread::scope(|scope| {
        let attacker = scope.spawn(|| inside(&router, || send_on(link, &attack)));
        let ends = EndsWith(&attack);
        world.bed.run("internet", "nft", &[&held]);
        // Long enough for several challenges.
        world.go_on(4 * STEP);
        let flush = ["flush", "chain", "inet", "observed", "held"];
        world.bed.run("internet", "nft", &flush);
        drop(ends);
        attacker.join().expect("an attacker")
    });
    let World { bed, .. } = &mut world;
    bed.wait_for("the link to work again", |bed| {
        let tunnel = tunnel(bed, "server");
        let mut paths = tunnel.sessions.iter().flat_map(|session| &session.paths);
        paths.all(|path| path.usable)
    });
    let answered = world.answered();
    println!("{sent} bytes from elsewhere, {answered} there");
    assert!(sent > 0 && answered <= sent, "{answered} of {sent} bytes");
    world.go_on(STEP);
    assert_eq!(
        world.answered(),
        answered,
        "the attacker is still sent something"
    );
    world.expect_unmoved(sessions);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn datagrams_of_an_attacker_cost_users_of_a_server_little() {
        forgeries(Victim::Server, Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn datagrams_of_an_attacker_cost_users_of_a_box_little() {
        forgeries(Victim::Box, Judge::Clock);
    }
}
