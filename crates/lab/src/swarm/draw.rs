//! Drawing the scenario of a seed. A choice that is listed more than once is more likely. Probabilities
//! and ranges without another source are guesses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use braid_engine::cc;
use braid_engine::{Config, DelayedAck, Ecn, PathConfig, Protocol};
use braid_links::middlebox::{Edit, Keep, Scope};
use braid_links::{CoDel, Loss, QueueLimit, Rate, Reorder, Settings};
use braid_sim::transfer::Direction;
use braid_wire::Rng;
use braid_wire::tcp::kind;

/// Number of the stream of the scenario's random numbers. The streams of the world's components have other
/// numbers.
const DRAW_STREAM: u64 = 1 << 41;
/// Logarithm to base 2 of the maximum size of a flow: 4 MiB.
const MAX_SIZE_BITS: u64 = 22;
/// Time from the start within which outages and other changes begin, ms; long enough to hit most
/// transfers. A link monitor may send notices later.
pub(super) const CHANGES_WITHIN_MS: u64 = 12_000;
/// Maximum length of an outage of a link or path, ms. It is far below the engine's timeouts for a dead
/// connection (60 s and 90 s), because outages must not end connections.
pub(super) const MAX_OUTAGE_MS: u64 = 6_000;

/// Everything that is drawn from one seed.
#[derive(Debug, Clone)]
pub struct HostScenario {
    /// The paths between the client and the server.
    pub paths: Vec<Path>,
    /// The client's engine.
    pub client: Config,
    /// The server's engine.
    pub server: Config,
    /// The connections.
    pub flows: Vec<Flow>,
    /// Notices of the client's link monitor.
    pub notices: Vec<Notice>,
}

/// A path between the client and the server.
#[derive(Debug, Clone)]
pub struct Path {
    /// The client's end.
    pub config: PathConfig,
    /// Settings towards the server.
    pub up: Settings,
    /// Settings towards the client.
    pub down: Settings,
    /// Later settings, up and down, with their time from the start.
    pub changes: Vec<(Duration, Settings, Settings)>,
    /// True if the client reaches the path through a router, behind which another host uses the path too.
    pub shared: bool,
    /// The middleboxes on the path, from the inside out.
    pub middleboxes: Vec<MiddleboxSpec>,
}

/// A middlebox of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MiddleboxSpec {
    /// A NAT.
    Nat,
    /// Shifts sequence numbers. If true, the middlebox leaves the numbers in SACK blocks unshifted.
    Shift(bool),
    /// Splits segments into parts of at most this many bytes.
    Split(u16),
    /// Merges segments: maximum bytes, time to wait for the next segment, and the segment whose header stays.
    Merge(usize, Duration, Keep),
    /// Edits MPTCP options: the segments, the edit, its time from the start, and its direction (`None`: both,
    /// true: outbound, false: inbound).
    Options(Scope, Edit, Duration, Option<bool>),
    /// Removes the TCP option of this kind from SYN and SYN/ACK, as if the peer did not support it.
    Lack(u8),
}

impl MiddleboxSpec {
    /// Returns whether the middlebox may break an MPTCP connection. A middlebox may do so if it removes
    /// options after the handshake, because TCP then delivers bytes that have no mapping.
    pub fn breaks_mptcp(self) -> bool {
        match self {
            MiddleboxSpec::Nat
            | MiddleboxSpec::Shift(_)
            | MiddleboxSpec::Split(_)
            | MiddleboxSpec::Lack(_) => false,
            // A merged segment keeps the options of one of its parts, so the mappings of the other parts
            // are lost.
            MiddleboxSpec::Merge(..) => true,
            MiddleboxSpec::Options(scope, _, since, _) => scope != Scope::Syn || !since.is_zero(),
        }
    }
}

/// The host that opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The client.
    Client,
    /// The host that shares this path.
    Neighbour(usize),
}

/// A connection.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The host that opens the connection.
    pub opener: Opener,
    /// The time of opening, from the start.
    pub at: Duration,
    /// Protocol.
    pub protocol: Protocol,
    /// Path of the first subflow; `None` leaves the choice to the engine.
    pub path: Option<u8>,
    /// The direction of the payload.
    pub direction: Direction,
    /// Payload, bytes.
    pub size: u64,
    /// True if the application declares the size to the engine.
    pub declared: bool,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// The end that aborts the connection, and the time after its opening.
    pub abort: Option<(End, Duration)>,
    /// The end that stops reading for a while, the time after the opening, and the length of the pause.
    pub pause: Option<(End, Duration, Duration)>,
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end that opened the connection.
    Opener,
    /// The server.
    Server,
}

/// A notice to the client that a path is up or down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// The time of the notice.
    pub at: Duration,
    /// The path.
    pub path: u8,
    /// True if the path is up.
    pub up: bool,
}

/// Draws a scenario.
pub fn scenario(d: &mut Draw) -> HostScenario {
    let count = 1 + d.0.below(4) as usize;
    let paths: Vec<Path> = (0..count).map(|n| d.path(n)).collect();
    let notices = d.notices(count);
    let (mut client, mut server) = (d.engine(), d.engine());
    let mut flows: Vec<Flow> = (0..=d.0.below(3)).map(|_| d.flow(&paths)).collect();
    for n in (0..count).filter(|n| paths[*n].shared) {
        flows.push(d.neighbour(n));
    }
    client.fast_open = d.0.chance(0.6);
    server.fast_open = d.0.chance(0.8);
    HostScenario {
        paths,
        client,
        server,
        flows,
        notices,
    }
}

/// A random generator with methods for common choices.
pub struct Draw(Rng);

impl Draw {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Draw(Rng::for_component(seed, DRAW_STREAM))
    }

    /// Returns an integer below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.0.chance(p)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.below(all.len() as u64) as usize]
    }

    /// Returns a time below `ms` milliseconds.
    pub fn up_to_ms(&mut self, ms: u64) -> Duration {
        Duration::from_micros(self.0.below(ms * 1000))
    }

    /// Returns a size from 1 to 2 to the power `bits`. All orders of magnitude are about equally likely, so
    /// that small sizes are as frequent as large ones.
    pub fn size(&mut self, bits: u64) -> u64 {
        let max = 1 << self.0.below(bits + 1);
        1 + self.0.below(max)
    }

    fn path(&mut self, n: usize) -> Path {
        let (v4, v6) = self.one_of(&[(true, false), (true, false), (true, true), (false, true)]);
        let mtu = self.one_of(&[1500, 1500, 1500, 1400, 1280]);
        let config = PathConfig {
            v4: v4.then(|| Ipv4Addr::new(10, 0, n as u8, 2)),
            v6: v6.then(|| Ipv6Addr::new(0xfd00, n as u16, 0, 0, 0, 0, 0, 2)),
            mtu,
            backup: self.0.chance(0.1),
            ..PathConfig::default()
        };
        let delay = Duration::from_micros(100) + self.up_to_ms(120);
        let (up, down) = (self.link(delay), self.link(delay));
        let mut path = Path {
            config,
            changes: self.changes(&up, &down),
            up,
            down,
            shared: self.0.chance(0.2),
            middleboxes: Vec::new(),
        };
        if self.0.chance(0.35) {
            for _ in 0..=self.0.below(2) {
                path.middleboxes.push(self.middlebox(v6));
            }
        }
        path
    }

    /// Draws one direction of a link.
    pub fn link(&mut self, delay: Duration) -> Settings {
        // 0.4, 3.2, 10.8, 25.6 or 50 Mbit/s: cubes spread the rates over two orders of magnitude.
        let rate = (1 + self.0.below(5)).pow(3) * 400_000;
        // Bytes in flight over a round trip: the delay is one-way.
        let bdp = rate / 8 * delay.as_micros() as u64 * 2 / 1_000_000;
        let queue = match self.0.below(3) {
            0 => QueueLimit::Packets(5 + self.0.below(200) as u32),
            1 => QueueLimit::Packets(50),
            _ => QueueLimit::Bytes(bdp.max(10_000)),
        };
        Settings {
            rate: Rate::bits_per_second(rate),
            burst: 0,
            delay,
            queue,
            jitter: if self.0.chance(0.2) {
                self.up_to_ms(10)
            } else {
                Duration::ZERO
            },
            codel: self.codel(),
            loss: self.loss(),
            reorder: Reorder {
                share: self.one_of(&[0.0, 0.0, 0.0, 0.01, 0.1]),
                detour: self.up_to_ms(40),
            },
            duplicate: self.one_of(&[0.0, 0.0, 0.0, 0.02]),
            corrupt: self.one_of(&[0.0, 0.0, 0.0, 0.0, 0.005]),
            up: true,
        }
    }

    fn codel(&mut self) -> Option<CoDel> {
        let marks = self.0.chance(0.5);
        // The defaults of RFC 8289, section 4, and a fifth of them.
        let (target, interval) = self.one_of(&[(5, 100), (1, 20)]);
        self.0.chance(0.35).then(|| CoDel {
            target: Duration::from_millis(target),
            interval: Duration::from_millis(interval),
            marks,
        })
    }

    fn loss(&mut self) -> Loss {
        match self.0.below(6) {
            0..=2 => Loss::None,
            3 => Loss::Uniform(self.0.unit() * 0.02),
            4 => Loss::Uniform(self.0.unit() * 0.08),
            _ => Loss::bursts(self.0.unit() * 0.03, 1.0 + self.0.unit() * 3.0),
        }
    }

    /// Draws temporary outages and other settings. After the last change the link has its original settings
    /// again.
    fn changes(&mut self, up: &Settings, down: &Settings) -> Vec<(Duration, Settings, Settings)> {
        let mut changes = Vec::new();
        if self.0.chance(0.6) {
            return changes;
        }
        let mut at = Duration::ZERO;
        for _ in 0..=self.0.below(3) {
            at += self.up_to_ms(CHANGES_WITHIN_MS / 4);
            let (mut new_up, mut new_down) = (up.clone(), down.clone());
            match self.0.below(3) {
                0 => {
                    let delay = self.up_to_ms(200);
                    (new_up, new_down) = (self.link(delay), self.link(delay));
                }
                1 => (new_up.up, new_down.up) = (false, false),
                // Only one direction fails: data or acknowledgements are lost.
                _ if self.0.chance(0.5) => new_up.up = false,
                _ => new_down.up = false,
            }
            changes.push((at, new_up, new_down));
            at += self.up_to_ms(MAX_OUTAGE_MS);
            changes.push((at, up.clone(), down.clone()));
        }
        changes
    }

    fn middlebox(&mut self, v6: bool) -> MiddleboxSpec {
        match self.0.below(7) {
            // The NAT translates IPv4 only, so a path with IPv6 gets a `Shift` in its place.
            0 | 1 if !v6 => MiddleboxSpec::Nat,
            0..=2 => MiddleboxSpec::Shift(self.0.chance(0.3)),
            3 => MiddleboxSpec::Split(200 + self.0.below(1200) as u16),
            4 => MiddleboxSpec::Merge(
                1500 + self.0.below(20_000) as usize,
                self.up_to_ms(3),
                self.one_of(&[Keep::First, Keep::Last]),
            ),
            5 => MiddleboxSpec::Lack(self.one_of(&[
                kind::TIMESTAMPS,
                kind::TIMESTAMPS,
                kind::SACK_PERMITTED,
            ])),
            _ => MiddleboxSpec::Options(
                self.one_of(&[Scope::Syn, Scope::Syn, Scope::Later, Scope::All]),
                self.one_of(&[Edit::Remove, Edit::Blank, Edit::Zero]),
                if self.0.chance(0.7) {
                    Duration::ZERO
                } else {
                    self.up_to_ms(3_000)
                },
                self.one_of(&[None, None, Some(false), Some(true)]),
            ),
        }
    }

    /// Draws notices of a link monitor. They do not depend on the state of the links. The last notice for a
    /// path says that the path is up.
    fn notices(&mut self, paths: usize) -> Vec<Notice> {
        let mut notices = Vec::new();
        for path in 0..paths as u8 {
            if !self.0.chance(0.2) {
                continue;
            }
            // Notices within the first 500 ms come during handshakes.
            let within = self.one_of(&[CHANGES_WITHIN_MS / 2, 500]);
            let mut at = Duration::ZERO;
            for _ in 0..=self.0.below(3) {
                for (up, ms) in [(false, within), (true, MAX_OUTAGE_MS)] {
                    at += self.up_to_ms(ms);
                    notices.push(Notice { at, path, up });
                }
            }
        }
        notices
    }

    fn engine(&mut self) -> Config {
        Config {
            congestion: self.one_of(cc::TABLE),
            ecn: self.one_of(&[Ecn::Ask, Ecn::Ask, Ecn::Answer, Ecn::Off]),
            initial_window: self.one_of(&[10, 10, 3, 2]),
            max_cwnd: self.one_of(&[None, None, None, Some(20)]),
            // Super-segments (offload) or single packets.
            max_transmit: self.one_of(&[65_521, 1500]),
            // Powers of two from 8 KiB to 8 MiB.
            send_buffer: 8 << (10 + self.0.below(11)),
            recv_buffer: 8 << (10 + self.0.below(11)),
            delayed_ack: DelayedAck {
                timeout: Duration::from_millis(self.one_of(&[40, 40, 1, 100, 200])),
                every: self.one_of(&[2, 2, 1]),
                quick: self.one_of(&[16, 16, 0]),
            },
            min_rto: Duration::from_millis(self.one_of(&[200, 200, 1000])),
            // Timeouts are much longer than the outages ([`MAX_OUTAGE_MS`]), which must not end connections.
            user_timeout: Duration::from_secs(90),
            connect_timeout: Duration::from_secs(60),
            ..Config::default()
        }
    }

    fn flow(&mut self, paths: &[Path]) -> Flow {
        let protocol = self.one_of(&[
            Protocol::Mptcp,
            Protocol::Mptcp,
            Protocol::Mptcp,
            Protocol::Tcp,
        ]);
        let path = self
            .0
            .chance(0.5)
            .then(|| self.0.below(paths.len() as u64) as u8);
        let strategies: Vec<_> = braid_strategy::names().collect();
        Flow {
            opener: Opener::Client,
            at: if self.0.chance(0.5) {
                Duration::ZERO
            } else {
                self.up_to_ms(3_000)
            },
            protocol,
            path,
            direction: self.one_of(&[Direction::Down, Direction::Down, Direction::Up]),
            size: self.size(MAX_SIZE_BITS),
            declared: self.0.chance(0.5),
            strategy: self.one_of(&strategies),
            abort: self.abort(),
            pause: self.pause(),
        }
    }

    fn abort(&mut self) -> Option<(End, Duration)> {
        // The values are drawn in any case, so that the later choices do not depend on this one.
        let drawn = (
            self.one_of(&[End::Opener, End::Server]),
            self.up_to_ms(4_000),
        );
        self.0.chance(0.1).then_some(drawn)
    }

    fn pause(&mut self) -> Option<(End, Duration, Duration)> {
        // The values are drawn in any case, as in `abort`.
        let end = self.one_of(&[End::Opener, End::Server]);
        let drawn = (end, self.up_to_ms(2_000), self.up_to_ms(15_000));
        self.0.chance(0.15).then_some(drawn)
    }

    /// Draws background traffic on a shared path.
    fn neighbour(&mut self, path: usize) -> Flow {
        Flow {
            opener: Opener::Neighbour(path),
            at: self.up_to_ms(1_000),
            protocol: Protocol::Tcp,
            path: None,
            direction: self.one_of(&[Direction::Down, Direction::Up]),
            size: self.size(MAX_SIZE_BITS - 1),
            declared: false,
            strategy: braid_strategy::DEFAULT,
            abort: None,
            pause: None,
        }
    }
}
