//! Floods of forged packets at the server while users are at work (RFC 4987).

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::{Capture, Captured};
use braid_wire::mptcp::{Capable, CapableFlags, Join, MptcpOption};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Rng, Seq32, ip};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::control::status;
use super::fixture::{Fixture, Judge};
use super::load::{Attack, Load};

/// Packets a second of a flood that must cost users no rate, if the machine can send that many.
const FLOOD_RATE: f64 = 50_000.0;
/// If fewer reach the server's engine, the machine has too few processors for users and flood together, and
/// the result means nothing.
const LEAST: f64 = 0.8 * FLOOD_RATE;
/// Packets a second of a flood beside which users must only be served.
const TRICKLE_RATE: f64 = 5_000.0;
/// Least packets of each flood: beyond the bounds of what the server keeps for a packet.
const FLOOD_PACKETS: u64 = 5_000;
/// Handshakes a second of joins with a forged third ACK: the server answers each.
const GUESSES: f64 = 1_000.0;
/// Least number of guessed third ACKs.
const LEAST_GUESSES: u64 = 200;
/// Most packets that are sent at once when the attacker has fallen behind.
const BURST: u64 = 100;
/// Longest time that an attacker goes on after the users are done.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);
/// The server's port.
const PORT: u16 = 1080;
/// IPv4's protocol number for packet sockets (linux/if_ether.h).
const ETH_P_IP: u16 = 0x0800;
/// A network without hosts (RFC 5737), from which the forged packets come.
const NOWHERE: [u8; 3] = [203, 0, 113];

/// The kind of a forged packet.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Syn,
    CapableSyn,
    JoinSyn,
    /// With the token of an existing connection, as an observer on a link sees it.
    StolenJoinSyn,
    JoinAck,
    Ack,
    Rst,
    Malformed,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Syn,
        Kind::CapableSyn,
        Kind::JoinSyn,
        Kind::StolenJoinSyn,
        Kind::JoinAck,
        Kind::Ack,
        Kind::Rst,
        Kind::Malformed,
    ];

    fn flags(self) -> Flags {
        match self {
            Kind::JoinAck | Kind::Ack => Flags::ACK,
            Kind::Rst => Flags::RST,
            _ => Flags::SYN,
        }
    }

    /// Returns the server's counter of these packets, if it keeps no memory of them.
    fn counter(self) -> Option<&'static str> {
        match self {
            Kind::Syn | Kind::CapableSyn => Some("syn_cookies"),
            Kind::JoinSyn | Kind::StolenJoinSyn => Some("joins_refused"),
            Kind::JoinAck | Kind::Ack | Kind::Rst => Some("strays"),
            Kind::Malformed => None,
        }
    }
}

/// An attacker who writes packets in the name of hosts that do not exist.
struct Forger {
    socket: Socket,
    server: Ipv4Addr,
    /// Tokens of existing connections.
    tokens: Vec<u32>,
    rng: Rng,
}

impl Forger {
    /// Returns an attacker on the thread's host.
    fn new(server: Ipv4Addr, tokens: &[u32]) -> Self {
        let raw = Some(Protocol::from(255));
        Forger {
            socket: Socket::new(Domain::IPV4, Type::RAW, raw).expect("a raw socket"),
            server,
            tokens: tokens.to_vec(),
            rng: Rng::for_component(1, 0),
        }
    }

    fn join_syn(&mut self, token: u32) -> MptcpOption {
        MptcpOption::Join(Join::Syn {
            backup: false,
            address_id: 1,
            token,
            nonce: self.rng.u32(),
        })
    }

    fn stolen_token(&mut self) -> u32 {
        let at = self.rng.below(self.tokens.len() as u64);
        self.tokens[at as usize]
    }

    fn option(&mut self, kind: Kind) -> Option<MptcpOption> {
        let option = match kind {
            Kind::CapableSyn => MptcpOption::Capable(Capable::Syn {
                version: 1,
                flags: CapableFlags::DEFAULT_OFFER,
            }),
            Kind::JoinSyn => {
                let token = self.rng.u32();
                self.join_syn(token)
            }
            Kind::StolenJoinSyn => {
                let token = self.stolen_token();
                self.join_syn(token)
            }
            Kind::JoinAck => {
                let mut hmac = [0; 20];
                self.rng.fill(&mut hmac);
                MptcpOption::Join(Join::Ack { hmac })
            }
            Kind::Syn | Kind::Ack | Kind::Rst | Kind::Malformed => return None,
        };
        Some(option)
    }

    /// Returns a header with random numbers.
    fn header(&mut self, kind: Kind) -> tcp::Repr {
        let port = 1 + self.rng.below(65_535) as u16;
        let mut repr = tcp::Repr::new(port, PORT, kind.flags());
        (repr.seq, repr.ack) = (Seq32(self.rng.u32()), Seq32(self.rng.u32()));
        repr.options.mss = kind.flags().contains(Flags::SYN).then_some(1460);
        if let Some(option) = self.option(kind) {
            repr.options.mptcp.push(option);
        }
        repr
    }

    /// Sends a packet to the server from a random address.
    fn send(&mut self, kind: Kind) {
        let [a, b, c] = NOWHERE;
        let src = Ipv4Addr::new(a, b, c, self.rng.below(256) as u8);
        let repr = self.header(kind);
        let mut packet = self.packet(src, &repr);
        if let Kind::Malformed = kind {
            let options = packet.len() - repr.header_len() + tcp::HEADER_LEN;
            self.rng.fill(&mut packet[options..]);
            tcp::complete_checksum(&mut packet).expect("a TCP segment");
        }
        self.put(&packet);
    }

    fn packet(&self, src: Ipv4Addr, repr: &tcp::Repr) -> Vec<u8> {
        let header = ip::Repr {
            src: src.into(),
            dst: self.server.into(),
            protocol: ip::PROTO_TCP,
            payload_len: repr.header_len(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let mut packet = vec![0; header.header_len() + repr.header_len()];
        header.emit(&mut packet);
        repr.emit(&mut packet[header.header_len()..]);
        tcp::complete_checksum(&mut packet).expect("a TCP segment");
        packet
    }

    fn put(&self, packet: &[u8]) {
        let to = SockAddr::from(SocketAddr::new(self.server.into(), 0));
        // A packet that the device has no room for is lost: only arrivals count.
        let _ = self.socket.send_to(packet, &to);
    }

    /// Answers the server's answer to a forged join with a third ACK whose code is random.
    fn guess(&mut self, heard: &[u8]) -> bool {
        let Some((from, to, segment)) = parse(heard) else {
            return false;
        };
        let IpAddr::V4(src) = to else {
            return false;
        };
        let joins = matches!(segment.options.join(), Some(Join::SynAck { .. }));
        if from != self.server || src.octets()[..3] != NOWHERE || !joins {
            return false;
        }
        let mut repr = self.header(Kind::JoinAck);
        (repr.src_port, repr.seq) = (segment.dst_port, segment.ack);
        repr.ack = segment.seq.add(1);
        let packet = self.packet(src, &repr);
        self.put(&packet);
        true
    }
}

/// Returns addresses and header of a TCP segment.
fn parse(packet: &[u8]) -> Option<(IpAddr, IpAddr, tcp::Repr)> {
    let (header, segment) = ip::Repr::parse(packet).ok()?;
    let (segment, _) = tcp::Repr::parse(segment).ok()?;
    Some((header.src, header.dst, segment))
}

/// Returns the tokens of the connections that were joined meanwhile.
fn tokens(packets: &[Captured]) -> Vec<u32> {
    let tokens = packets.iter().filter_map(|packet| {
        let (_, _, segment) = parse(&packet.bytes)?;
        match segment.options.join() {
            Some(Join::Syn { token, .. }) => Some(*token),
            _ => None,
        }
    });
    tokens.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Calls `forge` at `rate` a second until the attack has to end and `forge` has returned `true`.
pub fn keep_pace(attack: &Attack, rate: f64, mut forge: impl FnMut(u64) -> bool) {
    attack.begins();
    let (begun, mut forged, mut enough) = (Instant::now(), 0, false);
    while attack.goes_on() || (!enough && begun.elapsed() < ATTACK_TIMEOUT) {
        let due = (begun.elapsed().as_secs_f64() * rate) as u64;
        // A backlog is worked off slowly: a burst would be lost in the queue of a device.
        let next = due.min(forged + BURST);
        while forged < next {
            forged += 1;
            enough = forge(forged);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Joins existing connections with a wrong HMAC in the third ACK; returns the number that got so far. The
/// server's answers to the forged addresses pass the attacker.
fn guess(attack: &Attack, mut forger: Forger) -> u64 {
    let ip = Some(Protocol::from(i32::from(ETH_P_IP.to_be())));
    let mut heard = Socket::new(Domain::PACKET, Type::DGRAM, ip).expect("a packet socket");
    heard.set_nonblocking(true).expect("a socket");
    let (mut buffer, mut guesses) = (vec![0; 1 << 16], 0);
    keep_pace(attack, GUESSES, |_| {
        forger.send(Kind::StolenJoinSyn);
        loop {
            match heard.read(&mut buffer) {
                Ok(len) => guesses += u64::from(forger.guess(&buffer[..len])),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        guesses > LEAST_GUESSES
    });
    guesses
}

struct World {
    bed: Fixture,
    load: Load,
    server: Ipv4Addr,
    tokens: Vec<u32>,
}

impl World {
    fn up(judge: Judge) -> Self {
        let mut bed = Fixture::up();
        let IpAddr::V4(server) = bed.v4("server") else {
            unreachable!("the address of IPv4");
        };
        let [a, b, c] = NOWHERE;
        let nowhere = format!("{a}.{b}.{c}.0/24");
        bed.run("internet", "ip", &["route", "add", "blackhole", &nowhere]);
        let capture = Capture::start(&bed.testbed, "internet").expect("a capture");
        let load = Load::start(&mut bed, judge);
        let tokens = tokens(&capture.finish().expect("packets"));
        assert!(!tokens.is_empty(), "nothing was joined");
        World {
            bed,
            load,
            server,
            tokens,
        }
    }

    fn counted(&self, name: &str) -> u64 {
        status(&self.bed, "server").counters[name]
    }
}

fn floods(judge: Judge) {
    let rate = match judge {
        Judge::Service => TRICKLE_RATE,
        Judge::Clock => FLOOD_RATE,
    };
    let mut w = World::up(judge);
    for kind in Kind::ALL {
        let counted = |w: &World| kind.counter().map_or(0, |name| w.counted(name));
        let before = counted(&w);
        let (server, tokens) = (w.server, w.tokens.clone());
        let kept = w.load.during(&mut w.bed, |attack| {
            let mut forger = Forger::new(server, &tokens);
            keep_pace(attack, rate, |forged| {
                forger.send(kind);
                forged > FLOOD_PACKETS
            });
        });
        let packets = kept.packets;
        // After the last packet of the flood, the server still has to count.
        w.bed.wait_for(&format!("{kind:?} to be counted"), |bed| {
            kind.counter().is_none_or(|name| {
                status(bed, "server").counters[name] - before > FLOOD_PACKETS / 2
            })
        });
        let grown = counted(&w) - before;
        println!("{kind:?}: {packets:.0} packets/s reached the engine, {grown} counted");
        if judge == Judge::Clock && packets < LEAST {
            eprintln!("== {kind:?} FLOOD SKIPPED (this machine brings {packets:.0} packets/s)");
            continue;
        }
        kept.expect_enough(&format!("{kind:?}"));
        assert!(
            judge == Judge::Service || kind.counter().is_none() || grown as f64 > FLOOD_RATE,
            "{kind:?}: {grown} counted"
        );
    }
    w.load.expect_memory_back(&mut w.bed);
}

/// Forges joins as an attacker on a link can: it sees token and numbers of a join, but not the keys.
fn joins_with_a_wrong_hmac(judge: Judge) {
    let mut w = World::up(judge);
    let before = w.counted("joins_forged");
    let (server, tokens) = (w.server, w.tokens.clone());
    let mut guesses = 0;
    let kept = w.load.during(&mut w.bed, |attack| {
        guesses = guess(attack, Forger::new(server, &tokens));
    });
    let counted = w.counted("joins_forged") - before;
    println!("{guesses} codes guessed, {counted} counted");
    kept.expect_enough("joins");
    assert!(guesses > LEAST_GUESSES, "{guesses} were answered");
    assert!(counted > 100, "{counted} of {guesses} counted");
    w.load.expect_memory_back(&mut w.bed);
}

#[test]
#[ignore = "network"]
fn floods_keep_nobody_from_being_served() {
    floods(Judge::Service);
}

#[test]
#[ignore = "network"]
fn joins_with_a_wrong_hmac_keep_nobody_from_being_served() {
    joins_with_a_wrong_hmac(Judge::Service);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn floods_cost_users_no_rate() {
        floods(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn joins_with_a_wrong_hmac_cost_users_no_rate() {
        joins_with_a_wrong_hmac(Judge::Clock);
    }
}
