//! Two ends of a session over simple links, in virtual time.

pub mod seal;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_tunnel::{
    Config, FlowPolicy, PathConfig, PathId, Role, Secrets, SendError, SessionId, Transmit, Tunnel,
    Urgency,
};
use braid_wire::{Instant, Rng, ip, udp};

/// The session of all tests.
pub const SESSION: SessionId = SessionId([0x2a, 1, 2, 3, 4, 5, 6, 7]);
/// The size of the largest IP packet on every link.
pub const MTU: usize = 1500;

/// A link, the same in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// Bytes per second.
    pub rate: u64,
    /// The one-way delay.
    pub delay: Duration,
    /// Each datagram is delayed by up to so much more, so that datagrams overtake each other.
    pub jitter: Duration,
    /// The probability of a loss.
    pub loss: f64,
    /// The probability with which a datagram arrives twice.
    pub repeat: f64,
    /// Bytes that wait for the link.
    pub queue: u64,
    /// The size of the largest IP packet that passes, in bytes. Larger ones vanish.
    pub mtu: usize,
}

impl Link {
    /// A link of 50 Mbit/s with 20 ms, without loss.
    pub const PLAIN: Link = Link {
        rate: 6_250_000,
        delay: Duration::from_millis(20),
        jitter: Duration::ZERO,
        loss: 0.0,
        repeat: 0.0,
        queue: 625_000,
        mtu: MTU,
    };
}

/// One direction of a link in use.
#[derive(Debug)]
struct Direction {
    link: Link,
    free_at: Instant,
}

/// A datagram on its way.
#[derive(Debug)]
struct Flight {
    to_server: bool,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// Both ends and the links between them.
pub struct Net {
    pub now: Instant,
    /// The box's end, then the server's.
    pub ends: [Tunnel; 2],
    /// Each link's directions: to the server, to the box.
    directions: Vec<[Direction; 2]>,
    /// Links that lose everything.
    pub dark: Vec<bool>,
    flights: BTreeMap<(Instant, u64), Flight>,
    next_flight: u64,
    rng: Rng,
    /// The packets that came out of the box's and the server's end.
    pub delivered: [Vec<Vec<u8>>; 2],
    /// Datagrams that the ends sent.
    pub datagrams: [u64; 2],
    /// The times of the datagrams of each path of the box.
    pub box_sent_at: Vec<Vec<Instant>>,
    /// The MTU of the links that the ends know.
    known_mtu: usize,
    /// The box's address on each path.
    pub box_addrs: Vec<SocketAddr>,
    /// The datagram that an end sends.
    buffer: Vec<u8>,
}

/// Returns the secrets of an epoch.
pub fn secrets(epoch: u64) -> Secrets {
    Secrets {
        of_box: [epoch as u8 + 1; 32],
        of_server: [epoch as u8 + 101; 32],
    }
}

/// Returns one end with keys of epoch 0.
pub fn end(config: &Config, role: Role, seed: u64) -> Tunnel {
    let rng = Rng::for_component(seed, role as u64);
    let mut end = Tunnel::new(config.clone(), role, SESSION, rng);
    assert!(end.install_keys(Instant::ZERO, 0, &secrets(0)));
    end
}

/// Returns the server's address.
pub fn server_addr() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(203, 0, 113, 1).into(), 443)
}

/// Returns the settings of a path over a link of this MTU.
pub fn path_config(mtu: usize) -> PathConfig {
    PathConfig {
        remote: server_addr(),
        mtu,
    }
}

/// Returns the box's address on a path.
pub fn box_addr(path: usize) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1 + path as u8).into(), 40_000)
}

impl Net {
    pub fn new(config: &Config, links: &[Link], seed: u64) -> Net {
        let mut ends = [Role::Box, Role::Server].map(|role| end(config, role, seed));
        let known_mtu = config.learned_mtu;
        for path in 0..links.len() {
            let path_config = path_config(known_mtu);
            assert!(ends[0].add_path(Instant::ZERO, PathId(path as u8), path_config));
        }
        let direction = |link: &Link| Direction {
            link: *link,
            free_at: Instant::ZERO,
        };
        Net {
            now: Instant::ZERO,
            ends,
            directions: links.iter().map(|l| [direction(l), direction(l)]).collect(),
            dark: vec![false; links.len()],
            flights: BTreeMap::new(),
            next_flight: 0,
            rng: Rng::for_component(seed, 7),
            delivered: Default::default(),
            datagrams: [0; 2],
            box_sent_at: vec![Vec::new(); links.len()],
            known_mtu,
            box_addrs: (0..links.len()).map(box_addr).collect(),
            buffer: Vec::new(),
        }
    }

    /// Replaces a link in both directions.
    pub fn set_link(&mut self, path: usize, link: Link) {
        for direction in &mut self.directions[path] {
            direction.link = link;
        }
    }

    /// Sends an inner packet at one end.
    pub fn send(&mut self, end: usize, urgency: u8, packet: &[u8]) -> Result<(), SendError> {
        let urgency = Some(Urgency::new(urgency).expect("a level"));
        let policy = FlowPolicy {
            urgency,
            mode: None,
        };
        self.send_as(end, policy, packet)
    }

    /// Sends an inner packet of a flow with this policy at one end.
    pub fn send_as(
        &mut self,
        end: usize,
        policy: FlowPolicy,
        packet: &[u8],
    ) -> Result<(), SendError> {
        let sent = self.ends[end].send(self.now, policy, packet);
        self.drain();
        sent
    }

    /// Takes all outputs of both ends.
    fn drain(&mut self) {
        for end in 0..2 {
            while let Some(packet) = self.ends[end].poll_delivery() {
                self.delivered[end].push(packet.to_vec());
            }
            self.buffer.clear();
            while let Some(transmit) = self.ends[end].poll_transmit(self.now, &mut self.buffer) {
                let bytes = std::mem::take(&mut self.buffer);
                assert_eq!(bytes.len(), transmit.len);
                assert!(
                    bytes.len() + 28 <= self.known_mtu,
                    "{} bytes exceed the MTU",
                    bytes.len()
                );
                self.datagrams[end] += 1;
                self.carry(end, transmit, bytes);
            }
            self.ends[end].invariants();
        }
    }

    /// Puts a datagram on its link.
    fn carry(&mut self, end: usize, transmit: Transmit, bytes: Vec<u8>) {
        let path = usize::from(transmit.path.0);
        if end == 0 {
            self.box_sent_at[path].push(self.now);
        }
        let direction = &mut self.directions[path][end];
        let link = direction.link;
        let wait = direction.free_at.saturating_since(self.now);
        let queued = wait.as_micros() as u64 * link.rate / 1_000_000;
        if queued > link.queue {
            return;
        }
        let time = Duration::from_nanos((bytes.len() as u64 + 28) * 1_000_000_000 / link.rate);
        direction.free_at = direction.free_at.max(self.now) + time;
        let is_too_large = bytes.len() + 28 > link.mtu;
        if self.dark[path] || is_too_large || self.rng.chance(link.loss) {
            return;
        }
        let from = if end == 0 {
            self.box_addrs[path]
        } else {
            server_addr()
        };
        let copies = 1 + u64::from(self.rng.chance(link.repeat));
        let left_at = self.directions[path][end].free_at;
        for _ in 0..copies {
            let jitter = self.rng.below(link.jitter.as_nanos() as u64 + 1);
            let at = left_at + link.delay + Duration::from_nanos(jitter);
            let flight = Flight {
                to_server: end == 0,
                from,
                bytes: bytes.clone(),
            };
            self.flights.insert((at, self.next_flight), flight);
            self.next_flight += 1;
        }
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Instant> {
        let flight = self.flights.keys().next().map(|(at, _)| *at);
        let timers = self.ends.iter().map(Tunnel::next_timeout);
        Instant::earliest(timers.chain([flight]))
    }

    /// Runs until `until`.
    pub fn run(&mut self, until: Instant) {
        self.drain();
        let mut turns = 0;
        while let Some(at) = self.next().filter(|at| *at <= until) {
            // A timer that has expired already is handled now, and stands in the future then.
            turns = if at > self.now { 0 } else { turns + 1 };
            assert!(turns < 10_000, "the time stands still at {at}");
            self.now = self.now.max(at);
            let at = self.now;
            while let Some(entry) = self.flights.first_entry()
                && entry.key().0 <= at
            {
                let mut flight = entry.remove();
                let end = usize::from(flight.to_server);
                // A repeated datagram is refused, and everything else is authentic.
                let _ = self.ends[end].receive(at, flight.from, &mut flight.bytes);
            }
            for end in &mut self.ends {
                if end.next_timeout().is_some_and(|timeout| timeout <= at) {
                    end.handle_timeout(at);
                }
            }
            self.drain();
        }
        self.now = until;
    }

    /// Runs for some time.
    pub fn pass(&mut self, time: Duration) {
        self.run(self.now + time);
    }
}

/// Returns a UDP packet of `len` bytes of flow `flow`, which names its number and can be checked.
pub fn packet(flow: u16, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let header = ip::Repr {
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        protocol: 17,
        payload_len: len - 20,
        hop_limit: 64,
        traffic_class: 0,
    };
    header.emit(&mut bytes);
    let datagram = udp::Repr {
        src_port: 1000 + flow,
        dst_port: 2000,
        payload_len: len - 28,
    };
    datagram.emit(&mut bytes[20..]);
    bytes[28..32].copy_from_slice(&number.to_be_bytes());
    let mut rng = Rng::for_component(u64::from(number), u64::from(flow));
    rng.fill(&mut bytes[32..]);
    bytes
}

/// Returns the packet of the other direction of the flow of a packet of [`packet`].
pub fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    // The sums of addresses and ports stay as they are, and so do the checksums.
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    answer
}

/// Returns flow and number of a packet of [`packet`], which must be unaltered.
pub fn identify(bytes: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes([bytes[20], bytes[21]]) - 1000;
    let number = u32::from_be_bytes(bytes[28..32].try_into().expect("four bytes"));
    assert!(
        bytes == packet(flow, number, bytes.len()),
        "packet {number} of flow {flow} was altered"
    );
    (flow, number)
}
