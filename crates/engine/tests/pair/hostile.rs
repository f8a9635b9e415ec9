//! Packets that are altered on the way with right checksums, cut, replayed and made up: nothing
//! panics, memory stays within its bounds, and every connection ends.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use braid_engine::{Config, Protocol, RxMeta, Stack};
use braid_wire::checksum::{self, Sum};
use braid_wire::{Instant, Rng, ip, tcp};
use proptest::prelude::*;

use crate::basic::link;
use crate::net::{Net, PORT, SERVER, client_addr, config};

/// Packets remembered for replay.
const REMEMBERED: usize = 64;

/// Writes right checksums into what still looks like TCP over IPv4.
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

/// One alteration of a packet.
fn alter(packet: &mut Vec<u8>, rng: &mut Rng) {
    let len = packet.len() as u64;
    match rng.below(6) {
        // Anything anywhere.
        0 => packet[rng.below(len) as usize] ^= 1 << rng.below(8),
        // In the TCP header and its options.
        1 => packet[20 + rng.below(len.min(100) - 20) as usize] = rng.u32() as u8,
        // Flags.
        2 => packet[33] = rng.u32() as u8,
        // A little off, or far off: sequence, acknowledgement, window.
        3 => {
            let at = 24 + 4 * rng.below(2) as usize;
            let old = u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
            let by = (rng.u32() >> rng.below(32)) as i32;
            let new = old.wrapping_add_signed(if rng.chance(0.5) { by } else { -by });
            packet[at..at + 4].copy_from_slice(&new.to_be_bytes());
        }
        // Shorter, with a length that agrees.
        4 => {
            packet.truncate(20 + rng.below(len - 20) as usize);
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
        }
        // Shorter without.
        _ => packet.truncate(rng.below(len) as usize),
    }
}

/// Alters a share of the packets until `until`.
fn attacker(seed: u64, share: f64, until: Instant) -> crate::net::Middlebox {
    let mut rng = Rng::for_component(seed, 77);
    let mut old: Vec<Vec<u8>> = Vec::new();
    Box::new(move |now, mut packet| {
        if old.len() < REMEMBERED {
            old.push(packet.clone());
        } else if rng.chance(0.1) {
            old[rng.below(REMEMBERED as u64) as usize] = packet.clone();
        }
        if now > until || !rng.chance(share) {
            return Some(packet);
        }
        if rng.chance(0.2) {
            return Some(old[rng.below(old.len() as u64) as usize].clone());
        }
        alter(&mut packet, &mut rng);
        if rng.chance(0.9) {
            fix(&mut packet);
        }
        Some(packet)
    })
}

fn packets(net: &Net) -> u64 {
    net.client.stack.stats().packets_out + net.server.stack.stats().packets_out
}

fn survive(seed: u64) {
    let protocol = match seed % 3 {
        0 => Protocol::Tcp,
        _ => Protocol::Mptcp,
    };
    let config = Config {
        recv_buffer: 1 << 20,
        memory: 8 << 20,
        ..config()
    };
    let memory = config.memory;
    let mut net = Net::new(&[link(20, 5), link(10, 12)], config, seed);
    net.oracles.iter_mut().for_each(|o| o.off = true);
    let share = [0.01, 0.1, 0.5][seed as usize / 3 % 3];
    net.middlebox = Some(attacker(seed, share, Instant::from_millis(5000)));
    net.transfer(200_000, 400_000, protocol);
    for host in [&mut net.client, &mut net.server] {
        let apps = host.apps.iter_mut().chain(&mut host.accept);
        apps.for_each(|a| a.checked = false);
    }
    let gone = move |net: &Net| {
        assert!(net.client.stack.buffered() <= memory);
        assert!(net.server.stack.buffered() <= memory);
        net.client.stack.connections() + net.server.stack.connections() == 0
    };
    if !net.run(Duration::from_secs(200), gone) {
        // A forged acknowledgement can make both sides wait for ever. They do so quietly, and end
        // when they are told to.
        let before = packets(&net);
        net.run(Duration::from_secs(100), |_| false);
        let idle = packets(&net) - before;
        assert!(idle < 400, "seed {seed}: {idle} packets in vain");
        for host in [&mut net.client, &mut net.server] {
            let conns = host.apps.iter().filter_map(|a| a.conn);
            conns.for_each(|c| host.stack.abort(net.now, c));
        }
        let ended = net.run(Duration::from_secs(60), gone);
        assert!(ended, "seed {seed} hangs: {net:?}");
    }
    let left = net.client.stack.buffered() + net.server.stack.buffered();
    assert_eq!(left, 0, "seed {seed} leaves payload in buffers");
}

#[test]
fn altered_packets_1() {
    (0..60).for_each(survive);
}

#[test]
fn altered_packets_2() {
    (60..120).for_each(survive);
}

/// A server in the middle of a transfer, now, and the client's port.
fn live(seed: u64) -> (Stack, Instant, u16) {
    let mut net = Net::new(&[link(20, 5), link(10, 12)], config(), seed);
    net.transfer(1 << 20, 1 << 20, Protocol::Mptcp);
    net.run(Duration::from_millis(200), |_| false);
    let conn = net.server.apps[0].conn.unwrap();
    let port = net.server.stack.subflows(conn)[0].remote.port();
    (net.server.stack, net.now, port)
}

fn poke(stack: &mut Stack, now: Instant, packet: &[u8]) {
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

    /// Bytes that are no packets at all.
    #[test]
    fn random_bytes(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let (mut stack, now, _) = live(1);
        for mut packet in packets {
            poke(&mut stack, now, &packet);
            packet.resize(packet.len().max(40), 0);
            packet[0] = 0x45;
            packet[9] = ip::PROTO_TCP;
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            packet[12..16].copy_from_slice(&client_addr(0).octets());
            packet[16..20].copy_from_slice(&SERVER.octets());
            fix(&mut packet);
            poke(&mut stack, now, &packet);
        }
    }

    /// Segments of a live subflow whose every field and option is random.
    #[test]
    fn random_segments(seed in any::<u64>(), count in 1..200usize) {
        let (mut stack, now, port) = live(2);
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
            packet[22..24].copy_from_slice(&PORT.to_be_bytes());
            packet[32] = (5 + options as u8 / 4) << 4;
            fix(&mut packet);
            poke(&mut stack, now, &packet);
        }
    }
}
