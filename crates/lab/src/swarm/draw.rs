//! Drawing the scenario of a seed. A choice that is listed more than once is more likely. Probabilities
//! and ranges without another source are guesses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use braid_engine::cc;
use braid_engine::{Config, DelayedAck, Ecn, PathConfig, Protocol};
use braid_links::middlebox::{
    Chain, Direction, Edit, Keep, Merge, Nat, NatConfig, OptionEdit, Scope, SequenceShift, Split,
    Target,
};
use braid_links::{CoDel, Loss, QueueLimit, Rate, Reorder, Settings};
use braid_sim::aggregation::Load;
use braid_sim::transfer::PathSettings;
use braid_sim::world::START;
use braid_wire::Rng;
use braid_wire::tcp::kind;

use super::scenario::{End, Flow, Notice, Opener};

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
#[derive(Debug)]
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
#[derive(Debug)]
pub struct Path {
    /// The client's end.
    pub config: PathConfig,
    /// Settings of the link.
    pub settings: PathSettings,
    /// Later settings, with their time from the start.
    pub changes: Vec<(Duration, PathSettings)>,
    /// True if the client reaches the path through a router, behind which another host uses the path too.
    pub shared: bool,
    /// The middleboxes on the path, if there are any.
    pub middleboxes: Option<Chain>,
    /// True if a middlebox may break an MPTCP connection.
    pub breaks_mptcp: bool,
}

/// Returns the external address of the NAT of path `n`, which all hosts behind it share.
pub fn external_addr(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, n as u8, 2)
}

/// Draws a scenario.
pub fn scenario(d: &mut Draw) -> HostScenario {
    let count = 1 + d.below(4) as usize;
    let paths: Vec<Path> = (0..count).map(|n| d.path(n)).collect();
    let notices = d.notices(count);
    let (mut client, mut server) = (d.engine(), d.engine());
    let mut flows: Vec<Flow> = (0..=d.below(3)).map(|_| d.flow(count)).collect();
    let shared = (0..count).filter(|n| paths[*n].shared);
    flows.extend(shared.map(|n| d.neighbour(n)));
    client.fast_open = d.chance(0.6);
    server.fast_open = d.chance(0.8);
    HostScenario {
        paths,
        client,
        server,
        flows,
        notices,
    }
}

/// A random generator with methods for common choices.
pub struct Draw {
    seed: u64,
    rng: Rng,
}

impl Draw {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let rng = Rng::for_component(seed, DRAW_STREAM);
        Draw { seed, rng }
    }

    /// Returns an integer below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.rng.chance(p)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Returns a time below `ms` milliseconds.
    pub fn up_to_ms(&mut self, ms: u64) -> Duration {
        Duration::from_micros(self.below(ms * 1000))
    }

    /// Returns zero with probability `p`, or else a time below `ms` milliseconds.
    fn zero_or_up_to_ms(&mut self, p: f64, ms: u64) -> Duration {
        match self.chance(p) {
            true => Duration::ZERO,
            false => self.up_to_ms(ms),
        }
    }

    /// Returns a size from 1 to 2 to the power `bits`. All orders of magnitude are about equally likely, so
    /// that small sizes are as frequent as large ones.
    pub fn size(&mut self, bits: u64) -> u64 {
        let max = 1 << self.below(bits + 1);
        1 + self.below(max)
    }

    fn path(&mut self, n: usize) -> Path {
        let (v4, v6) = self.one_of(&[(true, false), (true, false), (true, true), (false, true)]);
        let mtu = self.one_of(&[1500, 1500, 1500, 1400, 1280]);
        let config = PathConfig {
            v4: v4.then(|| Ipv4Addr::new(10, 0, n as u8, 2)),
            v6: v6.then(|| Ipv6Addr::new(0xfd00, n as u16, 0, 0, 0, 0, 0, 2)),
            mtu,
            backup: self.chance(0.1),
            ..PathConfig::default()
        };
        let delay = Duration::from_micros(100) + self.up_to_ms(120);
        let settings = self.link(delay);
        let mut path = Path {
            config,
            changes: self.changes(&settings),
            settings,
            shared: self.chance(0.2),
            middleboxes: None,
            breaks_mptcp: false,
        };
        if self.chance(0.35) {
            for _ in 0..=self.below(2) {
                let chain = path.middleboxes.take().unwrap_or_default();
                let (chain, breaks_mptcp) = self.middlebox(chain, n, v6);
                path.middleboxes = Some(chain);
                path.breaks_mptcp |= breaks_mptcp;
            }
        }
        path
    }

    /// Draws a link.
    pub fn link(&mut self, delay: Duration) -> PathSettings {
        PathSettings {
            up: self.direction(delay),
            down: self.direction(delay),
        }
    }

    /// Draws one direction of a link.
    fn direction(&mut self, delay: Duration) -> Settings {
        // 0.4, 3.2, 10.8, 25.6 or 50 Mbit/s: cubes spread the rates over two orders of magnitude.
        let rate = (1 + self.below(5)).pow(3) * 400_000;
        // Bytes in flight over a round trip: the delay is one-way.
        let bdp = rate / 8 * delay.as_micros() as u64 * 2 / 1_000_000;
        let queue = match self.below(3) {
            0 => QueueLimit::Packets(5 + self.below(200) as u32),
            1 => QueueLimit::Packets(50),
            _ => QueueLimit::Bytes(bdp.max(10_000)),
        };
        Settings {
            rate: Rate::bits_per_second(rate),
            burst: 0,
            delay,
            queue,
            jitter: match self.chance(0.2) {
                true => self.up_to_ms(10),
                false => Duration::ZERO,
            },
            jitter_reorders: false,
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
        let marks = self.chance(0.5);
        // The defaults of RFC 8289, section 4, and a fifth of them.
        let (target, interval) = self.one_of(&[(5, 100), (1, 20)]);
        self.chance(0.35).then(|| CoDel {
            target: Duration::from_millis(target),
            interval: Duration::from_millis(interval),
            marks,
        })
    }

    fn loss(&mut self) -> Loss {
        match self.below(6) {
            0..=2 => Loss::None,
            3 => Loss::Uniform(self.rng.unit() * 0.02),
            4 => Loss::Uniform(self.rng.unit() * 0.08),
            _ => Loss::bursts(self.rng.unit() * 0.03, 1.0 + self.rng.unit() * 3.0),
        }
    }

    /// Draws temporary outages and other settings. After the last change the link has its original settings
    /// again.
    pub fn changes(&mut self, original: &PathSettings) -> Vec<(Duration, PathSettings)> {
        let mut changes = Vec::new();
        if self.chance(0.6) {
            return changes;
        }
        let mut at = Duration::ZERO;
        for _ in 0..=self.below(3) {
            at += self.up_to_ms(CHANGES_WITHIN_MS / 4);
            let mut changed = original.clone();
            match self.below(3) {
                0 => {
                    let delay = self.up_to_ms(200);
                    changed = self.link(delay);
                }
                1 => (changed.up.up, changed.down.up) = (false, false),
                // Only one direction fails: data or acknowledgements are lost.
                _ if self.chance(0.5) => changed.up.up = false,
                _ => changed.down.up = false,
            }
            changes.push((at, changed));
            at += self.up_to_ms(MAX_OUTAGE_MS);
            changes.push((at, original.clone()));
        }
        changes
    }

    /// Adds a middlebox to the chain of path `n`. Returns the chain, and true if the middlebox may break an MPTCP
    /// connection.
    fn middlebox(&mut self, chain: Chain, n: usize, v6: bool) -> (Chain, bool) {
        match self.below(7) {
            // The NAT translates IPv4 only, so a path with IPv6 gets a `SequenceShift` in its place.
            0 | 1 if !v6 => (chain.and(Nat::new(NatConfig::new(external_addr(n)))), false),
            0..=2 => {
                let shift = SequenceShift::new(self.seed);
                match self.chance(0.3) {
                    true => (chain.and(shift.forgetting_sack()), false),
                    false => (chain.and(shift), false),
                }
            }
            3 => (chain.and(Split::new(200 + self.below(1200) as u16)), false),
            // A merged segment keeps the options of one of its parts, so the mappings of the other parts
            // are lost.
            4 => {
                let max_payload = 1500 + self.below(20_000) as usize;
                let (hold, keep) = (self.up_to_ms(3), self.one_of(&[Keep::First, Keep::Last]));
                (chain.and(Merge::new(max_payload, hold, keep)), true)
            }
            // Removes an option from SYN and SYN/ACK, as if the peer did not support it.
            5 => {
                let kinds = [kind::TIMESTAMPS, kind::TIMESTAMPS, kind::SACK_PERMITTED];
                let target = Target::Kind(self.one_of(&kinds));
                (
                    chain.and(OptionEdit::new(target, Scope::Syn, Edit::Remove)),
                    false,
                )
            }
            _ => {
                let scope = self.one_of(&[Scope::Syn, Scope::Syn, Scope::Later, Scope::All]);
                let edit = self.one_of(&[Edit::Remove, Edit::Blank, Edit::Zero]);
                let since = self.zero_or_up_to_ms(0.7, 3_000);
                let edit = OptionEdit::new(Target::MPTCP, scope, edit).since(START + since);
                let only = [
                    None,
                    None,
                    Some(Direction::Inbound),
                    Some(Direction::Outbound),
                ];
                let edit = self.one_of(&only).into_iter().fold(edit, OptionEdit::only);
                // If options disappear after the handshake, TCP delivers bytes that have no mapping.
                (chain.and(edit), scope != Scope::Syn || !since.is_zero())
            }
        }
    }

    /// Draws notices of a link monitor. They do not depend on the state of the links. The last notice for a
    /// path says that the path is up.
    fn notices(&mut self, paths: usize) -> Vec<Notice> {
        let mut notices = Vec::new();
        for path in 0..paths as u8 {
            if !self.chance(0.2) {
                continue;
            }
            // Notices within the first 500 ms come during handshakes.
            let within = self.one_of(&[CHANGES_WITHIN_MS / 2, 500]);
            let mut at = Duration::ZERO;
            for _ in 0..=self.below(3) {
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
            send_buffer: 8 << (10 + self.below(11)),
            recv_buffer: 8 << (10 + self.below(11)),
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

    fn flow(&mut self, paths: usize) -> Flow {
        use Protocol::{Mptcp, Tcp};
        let protocol = self.one_of(&[Mptcp, Mptcp, Mptcp, Tcp]);
        let path = self.chance(0.5).then(|| self.below(paths as u64) as u8);
        let at = self.zero_or_up_to_ms(0.5, 3_000);
        let load: fn(u64) -> Load = self.one_of(&[Load::Down, Load::Down, Load::Up]);
        let strategies: Vec<_> = braid_strategy::names().collect();
        Flow {
            opener: Opener::Client,
            at,
            protocol,
            path,
            load: load(self.size(MAX_SIZE_BITS)),
            declared: self.chance(0.5),
            strategy: self.one_of(&strategies),
            abort: self.abort(),
            pause: self.pause(),
        }
    }

    // The two functions below draw their values even if there is no abort or pause. All later draws therefore stay
    // the same in both cases.

    fn abort(&mut self) -> Option<(End, Duration)> {
        let drawn = (self.end(), self.up_to_ms(4_000));
        self.chance(0.1).then_some(drawn)
    }

    fn pause(&mut self) -> Option<(End, Duration, Duration)> {
        let drawn = (self.end(), self.up_to_ms(2_000), self.up_to_ms(15_000));
        self.chance(0.15).then_some(drawn)
    }

    fn end(&mut self) -> End {
        self.one_of(&[End::Opener, End::Server])
    }

    /// Draws background traffic on a shared path.
    fn neighbour(&mut self, path: usize) -> Flow {
        let at = self.up_to_ms(1_000);
        let load: fn(u64) -> Load = self.one_of(&[Load::Down, Load::Up]);
        Flow::tcp(
            Opener::Neighbour(path),
            at,
            load(self.size(MAX_SIZE_BITS - 1)),
        )
    }
}
