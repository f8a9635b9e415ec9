//! Users at work while an attacker elsewhere joins their connections and acknowledges data that never
//! reached them. The attacker has seen the connections' keys on a link.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use braid_links::Settings;
use braid_proxy::config::{DEFAULT_PORT, Protection};
use braid_sim::aggregation::{Aggregation, AggregationConfig, Load, content_addr, server_addr};
use braid_sim::hijacker::{Hijacker, Keys, keys_in};
use braid_sim::tap::{PacketEvent, Tap};
use braid_sim::{LinkId, Node, NodeId, Packet, Turn};
use braid_wire::{Instant, Rng};

use crate::attacks::segment;
use crate::support::{secs, start, two_links};

/// Bytes of the download.
const SIZE: u64 = 10_000_000;
/// The share of its rate that the download keeps.
const ENOUGH: f64 = 0.8;
/// The interval at which the hijacker looks at new packets.
const GAP: Duration = Duration::from_millis(1);
/// The hijacker joins once more at every `EVERY`th look.
const EVERY: u64 = 50;
/// The content host whose address the hijacker has.
const THIEF: usize = 1;

/// Packets seen on the links of the box, or on the link to the hijacker.
#[derive(Debug, Default)]
struct Seen {
    keys: Vec<Keys>,
    answers: VecDeque<Vec<u8>>,
}

impl Tap for Seen {
    fn on_packet(&mut self, _: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        let Some((tcp, _)) = segment(&packet.bytes).filter(|_| matches!(what, PacketEvent::Sent))
        else {
            return;
        };
        if tcp.src_port == DEFAULT_PORT {
            self.answers.push_back(packet.bytes.clone());
        } else if let Some(keys) = keys_in(&tcp).filter(|keys| !self.keys.contains(keys)) {
            self.keys.push(keys);
        }
    }
}

/// The hijacker on a link of its own to the server.
#[derive(Debug)]
struct Elsewhere {
    hijacker: Hijacker,
    /// Packets on the links of the box, and on the link to the hijacker.
    seen: [Arc<Mutex<Seen>>; 2],
    next: Instant,
    polls: u64,
    rng: Rng,
}

impl Node for Elsewhere {
    fn receive(&mut self, turn: &mut Turn<'_>, _: u32, packet: Packet) {
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if self.next > turn.now {
            return;
        }
        self.next = turn.now + GAP;
        self.polls += 1;
        let [keys, answers] = &self.seen;
        for received in core::mem::take(&mut answers.lock().unwrap().answers) {
            if let Some(answer) = self.hijacker.answer(&received) {
                turn.send(0, Packet::new(answer));
            }
        }
        let keys = &keys.lock().unwrap().keys;
        if self.polls.is_multiple_of(EVERY) {
            for keys in keys {
                let port = 1_024 + self.rng.below(60_000) as u16;
                let local = SocketAddr::from((content_addr(THIEF), port));
                let server = SocketAddr::from((server_addr(0), DEFAULT_PORT));
                let syn = self
                    .hijacker
                    .join(*keys, (local, server), (9, self.rng.u32()));
                turn.send(0, Packet::new(syn));
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        Some(self.next)
    }
}

/// Returns a network whose box opens a connection for each user, so that the hijacker sees its keys.
fn config() -> AggregationConfig {
    let mut config = two_links();
    config.contents = 2;
    config.boxed.warm.max = 0;
    config
}

/// Adds the hijacker.
fn invade(net: &mut Aggregation) -> NodeId {
    let seen: [Arc<Mutex<Seen>>; 2] = Default::default();
    for (up, _) in net.access.clone() {
        net.world.tap(up, Box::new(Arc::clone(&seen[0])));
    }
    // The host whose address the hijacker has gets none of the server's answers, so it resets nothing.
    let interfaces = net.world.interfaces(net.servers[0]);
    let (answered, _) = interfaces[net.access.len() + THIEF];
    let dark = Settings {
        up: false,
        ..Settings::default()
    };
    net.world.set_link(answered, dark);
    net.world.tap(answered, Box::new(Arc::clone(&seen[1])));
    let next = net.world.now();
    let hijacker = net.world.add(|rng| Elsewhere {
        hijacker: Hijacker::default(),
        seen,
        next,
        polls: 0,
        rng,
    });
    let perfect = Settings::default();
    let server = net.servers[0];
    net.world
        .connect(hijacker, server, perfect.clone(), perfect);
    hijacker
}

/// Returns how long a download takes; `None` if it does not end, or not with all bytes.
fn download(net: &mut Aggregation) -> Option<Duration> {
    let id = net.open(0, 0, Load::Down(SIZE)).unwrap();
    net.run_for(secs(60));
    let received = net.at_user(id).received;
    net.duration(id).filter(|_| received == SIZE)
}

#[test]
fn stolen_keys_take_nothing() {
    let alone = download(&mut start(&config())).unwrap();
    let mut net = start(&config());
    let hijacker = invade(&mut net);
    let attacked = download(&mut net).expect("the download completes");
    let share = alone.as_secs_f64() / attacked.as_secs_f64();
    assert!(share > ENOUGH, "{share:.2} of the rate");
    let (tried, taken) = net.world.with_node(hijacker, |node: &mut Elsewhere, _| {
        (node.hijacker.joins_tried, node.hijacker.bytes_received)
    });
    let stats = net.server_node(0).stack().unwrap().stats();
    println!("{share:.3} of the rate, {tried} joins");
    assert!(tried > 20, "{tried} joins were answered");
    // The last join may arrive after its connection has ended.
    let uncounted = tried - stats.joins_forged;
    assert!(uncounted < 2, "{uncounted} of {tried} were not counted");
    assert_eq!(taken, 0);
}

/// The attack is real: without protection the hijacker takes the download.
#[test]
fn without_protection_stolen_keys_take_a_download() {
    let mut config = config();
    config.boxed.servers[0].protection = Protection::None;
    config.servers[0].config.unprotected = true;
    let mut net = start(&config);
    // The box has not received the data that the hijacker acknowledges, which oracles would report.
    net.world.keep_violations();
    let hijacker = invade(&mut net);
    assert_eq!(download(&mut net), None);
    let taken = net.world.with_node(hijacker, |node: &mut Elsewhere, _| {
        node.hijacker.bytes_received
    });
    assert!(taken > 0);
}
