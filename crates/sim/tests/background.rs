//! Background traffic on the links of a transfer.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::background::Background;
use braid_sim::tap::PacketEvent;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_sim::{LinkId, Packet, Tap, Transfer};
use braid_wire::{Instant, ip};

const SPAN: Duration = Duration::from_secs(40);

fn path(mbit: u64) -> PathSettings {
    PathSettings::both(Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(10),
        queue: QueueLimit::Packets(50),
        loss: Loss::None,
        ..Settings::default()
    })
}

/// Bytes of IP packets that a link delivered, of TCP and of UDP.
#[derive(Debug, Default)]
struct Delivered([u64; 2]);

impl Tap for Delivered {
    fn on_packet(&mut self, _: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        if matches!(what, PacketEvent::Delivered { .. }) {
            let view = ip::Packet::new(&packet.bytes[..]).unwrap();
            let udp = view.transport().unwrap().0 == ip::PROTO_UDP;
            self.0[usize::from(udp)] += packet.bytes.len() as u64;
        }
    }
}

/// Returns the Mbit/s on each path's link in that direction, and those of the transfer, if there is one.
fn rates(direction: Direction, others: Background, transfer: bool) -> (Vec<[f64; 2]>, f64) {
    let paths = [path(11), path(10)];
    let config = TransferConfig::new(&paths, 1 << 30, direction);
    let mut fixture = Transfer::shared(1, &config, &others).unwrap();
    let mut taps = Vec::new();
    for (up, down) in &fixture.links {
        let tap = Arc::new(Mutex::new(Delivered::default()));
        let link = if direction == Direction::Up { up } else { down };
        fixture.world.tap(*link, Box::new(tap.clone()));
        taps.push(tap);
    }
    if transfer {
        fixture.open(&config).unwrap();
    }
    fixture.world.advance(SPAN);
    let mbit = |bytes: u64| bytes as f64 * 8e-6 / SPAN.as_secs_f64();
    let receiver = fixture.world.host(fixture.receiver(direction));
    let read = receiver.open_streams().map(|(_, s)| s.received).sum();
    let rates = taps.iter().map(|tap| tap.lock().unwrap().0.map(mbit));
    (rates.collect(), mbit(read))
}

/// A TCP generator sends 448 kbit/s of payload, with headers 3 to 4 % more; the UDP generator sends 448
/// kbit/s of whole packets.
#[test]
fn published_traffic_flows_the_way_of_the_transfer() {
    for direction in [Direction::Down, Direction::Up] {
        let (rates, _) = rates(direction, Background::published(SPAN), false);
        assert_eq!(rates.len(), 2);
        for [tcp, udp] in rates {
            assert!((4.0 * 0.448..1.06 * 4.0 * 0.448).contains(&tcp), "{tcp}");
            assert!((udp - 0.448).abs() < 0.005, "{udp}");
        }
    }
}

/// The transfer gets the rest of two links of 21 Mbit/s together, and shares them with greedy traffic.
#[test]
fn a_transfer_shares_its_links() {
    let (links, rest) = rates(Direction::Down, Background::published(SPAN), true);
    assert!((14.0..16.6).contains(&rest), "{rest}");
    let used: f64 = links.iter().flatten().sum();
    assert!(used > 19.0, "{used} of 21 Mbit/s");
    let (_, shared) = rates(Direction::Down, Background::greedy(SPAN), true);
    assert!((0.5..0.7 * rest).contains(&shared), "{shared} of {rest}");
}
