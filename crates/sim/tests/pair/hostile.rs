//! Packets that are altered on the way with right checksums, cut, replayed and forged: nothing panics,
//! memory stays within its bounds, and every connection ends.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock, Mutex};

use braid_engine::{Protocol, RxMeta, Stack};
use braid_links::middlebox::{Chain, Direction, Middlebox, Output, Packet};
use braid_sim::transfer::{PathSettings, REMOTE, SERVER, client_addr};
use braid_sim::{Host, Transfer, World};
use braid_wire::checksum::{self, Sum};
use braid_wire::{Instant, Rng, ip, tcp};
use proptest::prelude::*;

use crate::support::{Exchange, deep, ms, secs};

static LINKS: LazyLock<[PathSettings; 2]> = LazyLock::new(|| [deep(20, 5, 0.0), deep(10, 12, 0.0)]);

/// Packets remembered for replay.
const REMEMBERED: usize = 64;

/// Writes right checksums into a packet that still looks like TCP over IPv4.
fn fix(packet: &mut [u8]) {
    if packet.len() < 40 || packet[0] != 0x45 {
        return;
    }
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(Sum::default(), &packet[..20]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let addr = |at: usize| {
        let octets: [u8; 4] = packet[at..at + 4].try_into().unwrap();
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    let (src, dst) = (addr(12), addr(16));
    tcp::fill_checksum(src, dst, &mut packet[20..], &[]);
}

/// Alters a packet in one random way.
fn alter(packet: &mut Vec<u8>, rng: &mut Rng) {
    let len = packet.len() as u64;
    match rng.below(6) {
        // A random bit of the packet.
        0 => packet[rng.below(len) as usize] ^= 1 << rng.below(8),
        // A random byte of the TCP header and its options.
        1 => packet[20 + rng.below(len.min(100) - 20) as usize] = rng.u32() as u8,
        // The flags.
        2 => packet[33] = rng.u32() as u8,
        // A small or a large error in the sequence number or the acknowledgement.
        3 => {
            let at = 24 + 4 * rng.below(2) as usize;
            let old = u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
            let by = (rng.u32() >> rng.below(32)) as i32;
            let new = old.wrapping_add_signed(if rng.chance(0.5) { by } else { -by });
            packet[at..at + 4].copy_from_slice(&new.to_be_bytes());
        }
        // A shorter packet, with a length that agrees.
        4 => {
            packet.truncate(20 + rng.below(len - 20) as usize);
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
        }
        // A shorter packet, with the old length.
        _ => packet.truncate(rng.below(len) as usize),
    }
}

/// An attacker that alters a share of the packets of both paths until a time.
#[derive(Debug)]
struct Attacker {
    rng: Rng,
    share: f64,
    until: Instant,
    old: Vec<Vec<u8>>,
}

impl Attacker {
    fn process(&mut self, now: Instant, packet: &mut Vec<u8>) {
        let rng = &mut self.rng;
        if self.old.len() < REMEMBERED {
            self.old.push(packet.clone());
        } else if rng.chance(0.1) {
            self.old[rng.below(REMEMBERED as u64) as usize].clone_from(packet);
        }
        if now > self.until || !rng.chance(self.share) {
            return;
        }
        if rng.chance(0.2) {
            packet.clone_from(&self.old[rng.below(self.old.len() as u64) as usize]);
            return;
        }
        alter(packet, rng);
        if rng.chance(0.9) {
            fix(packet);
        }
    }
}

/// The attacker on one of the paths.
#[derive(Debug)]
struct OnPath(Arc<Mutex<Attacker>>);

impl Middlebox for OnPath {
    fn process(
        &mut self,
        now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        self.0.lock().unwrap().process(now, &mut packet.bytes);
        out.push_back((direction, packet));
    }
}

fn packets(transfer: &Transfer) -> u64 {
    let sent = |end| transfer.world.host(end).stack().stats().packets_out;
    transfer.ends().into_iter().map(sent).sum()
}

fn survive(seed: u64) {
    let mut exchange = Exchange::new(200_000, 400_000);
    if seed.is_multiple_of(3) {
        exchange.protocol = Protocol::Tcp;
    }
    exchange.engine.recv_buffer = 1 << 20;
    exchange.engine.memory = 8 << 20;
    let memory = exchange.engine.memory;
    let attacker = Arc::new(Mutex::new(Attacker {
        rng: Rng::for_component(seed, 77),
        share: [0.01, 0.1, 0.5][seed as usize / 3 % 3],
        until: Instant::from_millis(5000),
        old: Vec::new(),
    }));
    let chains = [0, 1].map(|_| Chain::new().and(OnPath(attacker.clone())));
    let config = exchange.config(&*LINKS);
    let mut transfer = Transfer::through(seed, &config, chains);
    // The oracles cannot judge forged packets.
    transfer.world.keep_violations();
    exchange.open(&mut transfer);
    let ends = transfer.ends();
    let gone = move |world: &World| {
        let stacks = ends.map(|end| world.host(end).stack());
        assert!(stacks.iter().all(|stack| stack.buffered() <= memory));
        stacks.iter().all(|stack| stack.connections() == 0)
    };
    if !transfer.world.run(secs(200), gone) && !gone(&transfer.world) {
        // A forged acknowledgement can make both sides wait for ever. They do so quietly, and end when
        // they are aborted.
        let before = packets(&transfer);
        transfer.world.advance(secs(100));
        let idle = packets(&transfer) - before;
        assert!(idle < 400, "seed {seed}: {idle} packets in vain");
        for end in ends {
            let abort = |host: &mut Host, now| host.abort_labelled(now, 0);
            transfer.world.with_node(end, abort);
        }
        transfer.world.advance(secs(60));
        assert!(gone(&transfer.world), "seed {seed} hangs: {transfer:?}");
    }
    for end in ends {
        let left = transfer.world.host(end).stack().buffered();
        assert_eq!(left, 0, "seed {seed} leaves payload in buffers");
    }
}

#[test]
fn altered_packets_1() {
    (0..60).for_each(survive);
}

#[test]
fn altered_packets_2() {
    (60..120).for_each(survive);
}

/// Returns two hosts in the middle of a transfer, and the client's port.
fn live(seed: u64) -> (Transfer, u16) {
    let mut transfer = Exchange::new(1 << 20, 1 << 20).start(seed, &*LINKS);
    transfer.world.keep_violations();
    transfer.world.advance(ms(200));
    let server = transfer.world.host(transfer.server);
    let (conn, _) = server.open_streams().next().unwrap();
    let port = server.stack().subflows(conn)[0].remote.port();
    (transfer, port)
}

/// Hands a packet to the server.
fn poke(transfer: &mut Transfer, packet: &[u8]) {
    let server = transfer.server;
    transfer.world.with_node(server, |host: &mut Host, now| {
        poke_stack(host.stack_mut(), now, packet);
    });
}

fn poke_stack(stack: &mut Stack, now: Instant, packet: &[u8]) {
    stack.receive(now, packet, RxMeta::default());
    stack.receive(
        now,
        packet,
        RxMeta {
            checksum_ok: true,
            gso_size: 1,
        },
    );
    while stack.poll_event().is_some() {}
    let mut sent = 0;
    while stack.poll_transmit(now).is_some() {
        sent += 1;
        assert!(sent < 1000, "no end of packets");
    }
    stack.handle_timeout(now);
    assert!(stack.next_timeout().is_none_or(|at| at > now));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Random bytes that are no packets.
    #[test]
    fn random_bytes(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let (mut transfer, _) = live(1);
        for mut packet in packets {
            poke(&mut transfer, &packet);
            packet.resize(packet.len().max(40), 0);
            packet[0] = 0x45;
            packet[9] = ip::PROTO_TCP;
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            packet[12..16].copy_from_slice(&client_addr(0).octets());
            packet[16..20].copy_from_slice(&SERVER.octets());
            fix(&mut packet);
            poke(&mut transfer, &packet);
        }
    }

    /// Segments of an open subflow with random fields and options.
    #[test]
    fn random_segments(seed in any::<u64>(), count in 1..200usize) {
        let (mut transfer, port) = live(2);
        let mut rng = Rng::for_component(seed, 5);
        for _ in 0..count {
            let options = rng.below(11) as usize * 4;
            let mut packet = vec![0; 40 + options + rng.below(100) as usize];
            rng.fill(&mut packet[20..]);
            packet[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            packet[12..16].copy_from_slice(&client_addr(0).octets());
            packet[16..20].copy_from_slice(&SERVER.octets());
            packet[20..22].copy_from_slice(&port.to_be_bytes());
            packet[22..24].copy_from_slice(&REMOTE.port().to_be_bytes());
            packet[32] = (5 + options as u8 / 4) << 4;
            fix(&mut packet);
            poke(&mut transfer, &packet);
        }
    }
}
