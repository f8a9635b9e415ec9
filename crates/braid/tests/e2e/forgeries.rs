//! Datagrams of an attacker to the UDP ports of box and server while users have the tunnel: forged, cut, repeated,
//! reflected. None is delivered, answered or moves a session.

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
use super::fixture::Fixture;
use super::floods::keep_pace;
use super::load::{Attack, EndsWith, GROWTH, LINES, memory};

/// The server's port.
const PORT: u16 = 1080;
/// IPv4's protocol number for packet sockets (linux/if_ether.h).
const ETH_P_IP: u16 = 0x0800;
/// Packets a second of a flood beside which users must only be served.
const TRICKLE_RATE: f64 = 5_000.0;
/// Least packets of a flood.
const FLOOD_PACKETS: u64 = 1_500;
/// Packets of the call that have to come back between attacks, and during each.
const STEP: u64 = 50;
const FEW: u64 = 10;
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
    Empty,
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
    const ALL: [Kind; 8] = [
        Kind::Empty,
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

    fn put(&self, packet: &[u8], to: Ipv4Addr) {
        let to = SockAddr::from(SocketAddr::from((to, 0)));
        // A packet that the device has no room for is lost: only arrivals count.
        let _ = self.0.send_to(packet, &to);
    }
}

/// An attacker that knows datagrams from their way.
struct Forger<'a> {
    /// Datagrams to the victim, and those that it has sent.
    seen: &'a [Vec<Datagram>; 2],
    rng: Rng,
}

impl Forger<'_> {
    /// Makes a datagram to the victim: in the name of the other end or from elsewhere.
    fn make(&mut self, kind: Kind) -> Datagram {
        let [to_victim, of_victim] = self.seen;
        let any = |rng: &mut Rng, of: &[Datagram]| of[rng.below(of.len() as u64) as usize].clone();
        let mut datagram = any(&mut self.rng, to_victim);
        let payload = &mut datagram.payload;
        let len = payload.len() as u64;
        match kind {
            Kind::Empty => payload.clear(),
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
            Kind::Cut => payload.truncate(1 + self.rng.below(len - 1) as usize),
            Kind::Replayed => {}
            Kind::Reflected => *payload = any(&mut self.rng, of_victim).payload,
        }
        if self.rng.below(2) == 0 {
            datagram.from = ATTACKER;
        }
        datagram
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

/// Returns the number of datagrams that an end has dropped.
fn dropped(bed: &Fixture, role: &str) -> u64 {
    let drops = tunnel(bed, role).drops;
    let of = |reason: &str| drops.get(reason).copied().unwrap_or(0);
    of("unknown_session") + of("invalid_datagram")
}

/// The datagrams of an attack.
struct Flood<'a> {
    victim: Victim,
    seen: &'a [Vec<Datagram>; 2],
    kinds: &'a [Kind],
    /// Datagrams a second.
    rate: f64,
}

impl Flood<'_> {
    /// Does `work` during the attack. Fails unless the victim counts most of the datagrams, and returns the number
    /// that it has counted in a second.
    fn during(&self, world: &mut World, work: impl FnOnce(&mut World)) -> f64 {
        let (role, router) = (self.victim.role(), world.router.clone());
        let before = dropped(&world.bed, role);
        let (attack, begun) = (Attack::default(), Instant::now());
        let sent = thread::scope(|scope| {
            let attacker = scope.spawn(|| inside(&router, || self.send(&attack)));
            let ends = EndsWith(&attack);
            work(world);
            drop(ends);
            attacker.join().expect("an attacker")
        });
        let took = begun.elapsed().as_secs_f64();
        // After the last datagram, the victim still has to count.
        let kinds = self.kinds;
        world
            .bed
            .wait_for(&format!("{kinds:?} to be counted"), |bed| {
                // More than those that are refused for their address alone.
                dropped(bed, role) - before > sent / 4 * 3
            });
        let counted = dropped(&world.bed, role) - before;
        println!("{role}, {kinds:?}: {sent} datagrams in {took:.1} s, {counted} counted");
        counted as f64 / took
    }

    /// Sends the datagrams until the attack ends; returns their number. They are made beforehand, because making them
    /// takes longer than sending them, and then repeated.
    fn send(&self, attack: &Attack) -> u64 {
        let (sender, rng, mut sent) = (Sender::new(), Rng::for_component(1, 0), 0);
        let seen = self.seen;
        let mut forger = Forger { seen, rng };
        let kinds = self.kinds.iter().cycle().take(FLOOD_PACKETS as usize);
        let made = kinds.map(|kind| {
            let datagram = forger.make(*kind);
            (datagram.packet(), *datagram.to.ip())
        });
        let made: Vec<_> = made.collect();
        keep_pace(attack, self.rate, |forged| {
            let (packet, to) = &made[forged as usize % made.len()];
            sender.put(packet, *to);
            sent = forged;
            forged > FLOOD_PACKETS
        });
        sent
    }
}

/// Checks around the attacks of `work`: nothing is answered or delivered, the sessions stay, and so do the bounds of
/// log and memory.
fn attacked(victim: Victim, work: impl FnOnce(&mut World, &[Vec<Datagram>; 2])) {
    let (mut world, role) = (World::up(), victim.role());
    let seen = world.watch(victim);
    let sessions = world.sessions();
    let lines = world.bed.log(role).lines().count();
    let size = memory(&mut world.bed, role);
    work(&mut world, &seen);
    assert_eq!(world.answered(), 0, "answers to the attacker");
    let grown = memory(&mut world.bed, role).saturating_sub(size);
    assert!(grown < GROWTH, "the {role} grew by {grown} bytes");
    let log = world.bed.log(role);
    assert!(log.lines().count() - lines < LINES, "{log}");
    world.go_on(STEP);
    world.expect_unmoved(sessions);
}

fn each_kind(victim: Victim) {
    attacked(victim, |world, seen| {
        for kind in Kind::ALL {
            let flood = Flood {
                victim,
                seen,
                kinds: &[kind],
                rate: TRICKLE_RATE,
            };
            flood.during(world, |world| world.go_on(FEW));
        }
    });
}

#[test]
#[ignore = "network"]
fn datagrams_of_an_attacker_change_nothing_at_a_server() {
    each_kind(Victim::Server);
}

#[test]
#[ignore = "network"]
fn datagrams_of_an_attacker_change_nothing_at_a_box() {
    each_kind(Victim::Box);
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
        let packet = datagram.packet();
        sender.put(&packet, *datagram.to.ip());
        sent += packet.len() as u64;
    }
    sent
}

/// An attacker on one link holds back all datagrams of the box, and sends them from elsewhere: they are new to the
/// server, and good. The attacker's address is sent challenges only, and nothing once the box is heard again.
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
    // Only challenges go there. The rest would be as much as came.
    assert!(answered < sent / 4, "{answered} of {sent} bytes");
    world.go_on(STEP);
    assert_eq!(
        world.answered(),
        answered,
        "the attacker is still sent something"
    );
    world.expect_unmoved(sessions);
}

mod soak {
    use braid_testbed::{LinkChange, emulator};

    use super::*;
    use crate::http3::{Direction, Transfer};
    use crate::load::{best_share, rate};

    /// Packets a second of a flood that must cost users little, if the machine can send that many.
    const FLOOD_RATE: f64 = 50_000.0;
    /// If fewer reach the victim, the machine has too few processors for users and flood together, and the result means
    /// nothing.
    const LEAST: f64 = 0.8 * FLOOD_RATE;
    /// The share of their rate that users keep.
    const ENOUGH: f64 = 0.8;
    /// Bytes of a transfer that does not end by itself.
    const ENDLESS: usize = 4 << 30;
    /// Bytes of a transfer until its rate is measured.
    const SETTLED: u64 = 8_000_000;

    /// Returns the transfer whose rate is judged, over links whose other direction has room for the flood.
    fn transfer(world: &mut World, victim: Victim) -> Transfer {
        let (direction, room) = match victim {
            Victim::Box => (Direction::Up, emulator::Direction::Reverse),
            Victim::Server => (Direction::Down, emulator::Direction::Forward),
        };
        let World { bed, .. } = world;
        bed.set_link("link1", "rate=20mbit");
        bed.set_link("link2", "rate=10mbit");
        for link in ["link1", "link2"] {
            let change = LinkChange::parse(["rate=1gbit"]).expect("a good change");
            let set = bed.testbed.set(link, Some(room), &change);
            set.expect("a link");
        }
        let to = SocketAddr::new(bed.v4("content"), 443);
        let transfer = Transfer::start(bed, direction, to, ENDLESS);
        bed.wait_for("the transfer to get going", |_| transfer.bytes() > SETTLED);
        transfer
    }

    fn all_kinds(victim: Victim) {
        attacked(victim, |world, seen| {
            let transfer = transfer(world, victim);
            let alone = rate(|| transfer.bytes());
            let flood = Flood {
                victim,
                seen,
                kinds: &Kind::ALL,
                rate: FLOOD_RATE,
            };
            let mut share = 0.0;
            let arrived = flood.during(world, |_| {
                share = best_share(alone, ENOUGH, || transfer.bytes());
            });
            transfer.abandon();
            let role = victim.role();
            println!("{role}: users have {share:.2} of their rate, {arrived:.0} datagrams/s");
            if arrived < LEAST {
                let brings = format!("this machine brings {arrived:.0} datagrams/s");
                eprintln!("== {role} FLOOD SKIPPED ({brings})");
            } else {
                assert!(share > ENOUGH, "{role}: {share:.2} of the rate");
            }
        });
    }

    #[test]
    #[ignore = "soak"]
    fn datagrams_of_an_attacker_cost_users_of_a_server_little() {
        all_kinds(Victim::Server);
    }

    #[test]
    #[ignore = "soak"]
    fn datagrams_of_an_attacker_cost_users_of_a_box_little() {
        all_kinds(Victim::Box);
    }
}
