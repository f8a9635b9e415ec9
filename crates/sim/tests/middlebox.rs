//! Transfers through middleboxes: whatever the box does, each byte arrives once and in its place,
//! with MPTCP where the box lets it through and without where it does not (RFC 8684 section 3.7).

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::Range;
use core::time::Duration;

use braid_engine::{CloseReason, Config, ConnectOptions, PathConfig};
use braid_links::middlebox::{
    Chain, Direction, Edit, Keep, Merge, Nat, NatConfig, OptionEdit, Scope, SequenceShift, Split,
    Target,
};
use braid_links::{Loss, QueueLimit, Rate, Reorder, Settings};
use braid_sim::traffic::{Role, Stream};
use braid_sim::world::START;
use braid_sim::{Host, HostConfig, MiddleboxNode, NodeId, World};
use braid_strategy::by_name;
use braid_wire::Rng;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SIZE: u64 = 400_000;
/// In the middle of a transfer.
const MIDWAY: Duration = Duration::from_millis(250);
const HOLD: Duration = Duration::from_millis(2);

fn client(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path as u8, 2)
}

fn external(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, path as u8 + 1)
}

fn local(addr: Ipv4Addr) -> PathConfig {
    PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    }
}

/// A client and a server with a chain of middleboxes on each of two paths.
struct Bed {
    world: World,
    client: NodeId,
    server: NodeId,
    boxes: Vec<NodeId>,
}

/// How a transfer went.
#[derive(Debug)]
struct Outcome {
    /// Whether the client's connection was one of MPTCP when it was last seen.
    mptcp: bool,
    /// Most subflows the client had at a time.
    subflows: usize,
    reasons: [CloseReason; 2],
    received: u64,
}

impl Bed {
    fn new(seed: u64, paths: Vec<Chain>, loss: f64) -> Bed {
        let far = Settings {
            rate: Rate::bits_per_second(5_000_000),
            delay: Duration::from_millis(10),
            queue: QueueLimit::Packets(50),
            loss: Loss::Uniform(loss),
            ..Settings::default()
        };
        Bed::over(seed, paths, &far)
    }

    /// A bed with links `far` between boxes and server.
    fn over(seed: u64, paths: Vec<Chain>, far: &Settings) -> Bed {
        let mut world = World::new(seed);
        let count = paths.len();
        let mut host = |paths, routes| {
            let config = HostConfig {
                engine: Config::default(),
                paths,
                routes,
                strategy: Box::new(|| by_name("minrtt").unwrap()),
            };
            world.add(|rng| Host::new(config, rng))
        };
        let routes = (0..count)
            .flat_map(|n| [client(n), external(n)].map(|addr| (IpAddr::V4(addr), n as u32)));
        let client = host((0..count).map(|n| local(client(n))).collect(), Vec::new());
        let server = host(vec![local(SERVER)], routes.collect());
        let near = Settings {
            delay: Duration::from_millis(1),
            ..Settings::default()
        };
        let mut join = |chain| {
            let node = world.add(|_| MiddleboxNode::new(chain));
            world.connect(client, node, near.clone(), near.clone());
            world.connect(node, server, far.clone(), far.clone());
            node
        };
        let boxes = paths.into_iter().map(&mut join).collect();
        Bed {
            world,
            client,
            server,
            boxes,
        }
    }

    /// Starts a transfer of `size` bytes.
    fn start(&mut self, way: Way, size: u64) {
        let (asks, answers) = match way {
            Way::Down => (
                Role::Fetch { request: 100 },
                Role::Answer { request: 100, size },
            ),
            Way::Up => (Role::Upload { size }, Role::Sink),
        };
        let addr = SocketAddr::new(SERVER.into(), 80);
        let served = self.world.with_node(self.server, |host: &mut Host, _| {
            host.serve(addr, Stream::new(answers))
        });
        served.unwrap();
        let options = ConnectOptions::new(addr, by_name("minrtt").unwrap());
        let opened = self.world.with_node(self.client, |host: &mut Host, now| {
            host.open(now, options, Stream::new(asks))
        });
        opened.unwrap();
    }

    /// Runs the transfer to its end.
    fn finish(&mut self, way: Way) -> Outcome {
        let (client, ends) = (self.client, [self.client, self.server]);
        let (mut mptcp, mut subflows) = (false, 0);
        let done = self.world.run(Duration::from_secs(300), |world| {
            let host = world.node::<Host>(client);
            if let Some((conn, _)) = host.open_streams().next() {
                mptcp = host.stack().is_mptcp(conn).unwrap_or(mptcp);
                subflows = subflows.max(host.stack().subflows(conn).len());
            }
            ends.iter()
                .all(|end| !world.node::<Host>(*end).finished().is_empty())
        });
        assert!(done, "seed {}: no end", self.world.seed());
        let [asked, answered] = ends.map(|end| &self.world.node::<Host>(end).finished()[0]);
        let receiver = match way {
            Way::Down => asked,
            Way::Up => answered,
        };
        Outcome {
            mptcp,
            subflows,
            reasons: [asked, answered].map(|stream| stream.closed.unwrap().1),
            received: receiver.received,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// Transfers either way, without and with loss, through `chain` on each of two paths. All must
/// arrive; how the long ones did, `check` asserts.
fn through(chain: impl Fn(usize) -> Chain, check: impl Fn(&Outcome)) {
    for (way, loss) in [
        (Way::Down, 0.0),
        (Way::Up, 0.0),
        (Way::Down, 0.01),
        (Way::Up, 0.01),
    ] {
        for (seed, size) in [(1, SIZE), (2, SIZE), (3, SIZE), (4, 1_000), (5, 20_000)] {
            let mut bed = Bed::new(seed, vec![chain(0), chain(1)], loss);
            bed.start(way, size);
            let outcome = bed.finish(way);
            let context = format!("{way:?}, loss {loss}, seed {seed}: {outcome:?}");
            assert_eq!(outcome.received, size, "{context}");
            assert_eq!(outcome.reasons, [CloseReason::Finished; 2], "{context}");
            if size == SIZE {
                check(&outcome);
            }
        }
    }
}

fn is_mptcp(outcome: &Outcome) {
    assert!(outcome.mptcp && outcome.subflows == 2, "{outcome:?}");
}

fn fell_back(outcome: &Outcome) {
    assert!(!outcome.mptcp && outcome.subflows == 1, "{outcome:?}");
}

fn strip(scope: Scope) -> OptionEdit {
    OptionEdit::new(Target::MPTCP, scope, Edit::Remove)
}

#[test]
fn nat() {
    let nat = |path| Chain::new().and(Nat::new(NatConfig::new(external(path))));
    through(nat, is_mptcp);
}

#[test]
fn firewalls_that_shift_sequence_numbers() {
    through(|_| Chain::new().and(SequenceShift::new(1)), is_mptcp);
    let forgetful = |_| Chain::new().and(SequenceShift::new(1).forgetting_sack());
    through(forgetful, is_mptcp);
}

#[test]
fn boxes_that_cut_segments() {
    for mss in [100, 700, 1400] {
        through(|_| Chain::new().and(Split::new(mss)), is_mptcp);
    }
}

#[test]
fn boxes_that_join_segments() {
    for keep in [Keep::First, Keep::Last] {
        for most in [3_000, 65_000] {
            let chain = |_| Chain::new().and(Merge::new(most, HOLD, keep));
            through(chain, is_mptcp);
        }
    }
}

#[test]
fn all_that_passes_options_in_a_row() {
    let chain = |path| {
        Chain::new()
            .and(Split::new(700))
            .and(Nat::new(NatConfig::new(external(path))))
            .and(SequenceShift::new(2))
            .and(Merge::new(10_000, HOLD, Keep::Last))
            .and(Split::new(1_300))
    };
    through(chain, is_mptcp);
}

#[test]
fn no_options_on_syns() {
    through(|_| Chain::new().and(strip(Scope::Syn)), fell_back);
    for direction in [Direction::Outbound, Direction::Inbound] {
        let chain = |_| Chain::new().and(strip(Scope::Syn).only(direction));
        through(chain, fell_back);
    }
}

#[test]
fn no_options_at_all() {
    for edit in [Edit::Remove, Edit::Blank, Edit::Zero] {
        let all = |_| Chain::new().and(OptionEdit::new(Target::Unknown, Scope::All, edit));
        through(all, fell_back);
    }
}

#[test]
fn no_options_after_the_syns() {
    for edit in [Edit::Remove, Edit::Blank, Edit::Zero] {
        let later = |_| Chain::new().and(OptionEdit::new(Target::MPTCP, Scope::Later, edit));
        through(later, fell_back);
    }
}

#[test]
fn no_options_after_the_syns_one_way() {
    for direction in [Direction::Outbound, Direction::Inbound] {
        let chain = |_| Chain::new().and(strip(Scope::Later).only(direction));
        through(chain, fell_back);
    }
}

#[test]
fn a_second_path_without_options_is_left_alone() {
    for scope in [Scope::Syn, Scope::Later, Scope::All] {
        let chain = |path| match path {
            0 => Chain::new(),
            _ => Chain::new().and(strip(scope)),
        };
        through(chain, |outcome| assert!(outcome.mptcp));
    }
}

#[test]
fn options_that_vanish_midway_on_one_path() {
    let chain = |path| match path {
        0 => Chain::new().and(strip(Scope::All).since(START + MIDWAY)),
        _ => Chain::new(),
    };
    through(chain, is_mptcp);
}

/// Nothing can be delivered any more, and no fallback be signalled: the connection ends with an
/// error, not with a wrong byte, and not never.
#[test]
fn options_that_vanish_midway_on_the_only_path() {
    for scope in [Scope::Later, Scope::All] {
        for way in [Way::Down, Way::Up] {
            let chain = Chain::new().and(strip(scope).since(START + MIDWAY));
            let mut bed = Bed::new(1, vec![chain], 0.0);
            bed.start(way, SIZE);
            let outcome = bed.finish(way);
            assert!((1..SIZE).contains(&outcome.received), "{outcome:?}");
            assert!(
                !outcome.reasons.contains(&CloseReason::Finished),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn a_nat_that_forgets_midway() {
    for (adopts, rebinds) in [(true, false), (false, false), (true, true)] {
        for way in [Way::Down, Way::Up] {
            let nat = |path| {
                Chain::new().and(Nat::new(NatConfig {
                    adopts,
                    preserves_ports: false,
                    ..NatConfig::new(external(path))
                }))
            };
            let mut bed = Bed::new(1, vec![nat(0), nat(1)], 0.0);
            bed.start(way, SIZE);
            bed.world.run(MIDWAY, |_| false);
            bed.world
                .with_node(bed.boxes[0], |node: &mut MiddleboxNode, _| {
                    let nat: &mut Nat = node.get_mut();
                    match rebinds {
                        true => nat.rebind(client(0)),
                        false => nat.forget(),
                    }
                });
            let outcome = bed.finish(way);
            assert_eq!(outcome.received, SIZE, "{outcome:?}");
            assert_eq!(outcome.reasons, [CloseReason::Finished; 2], "{outcome:?}");
        }
    }
}

/// A box drawn at random, and whether MPTCP options get through it as they are.
fn draw(rng: &mut Rng, path: usize) -> (Chain, bool) {
    let mut whole = true;
    let mut chain = Chain::new();
    for _ in 0..rng.below(4) {
        let keep = [Keep::First, Keep::Last][rng.below(2) as usize];
        let direction = [Direction::Inbound, Direction::Outbound][rng.below(2) as usize];
        let most = 1_500 + rng.below(20_000) as usize;
        let mss = 50 + rng.below(1_500) as u16;
        chain = match rng.below(6) {
            0 => chain.and(Nat::new(NatConfig::new(external(path)))),
            1 => chain.and(SequenceShift::new(rng.u64())),
            2 => chain.and(Split::new(mss)),
            3 => chain.and(Merge::new(most, HOLD, keep)),
            4 => {
                whole = false;
                let scope = [Scope::Syn, Scope::Later, Scope::All][rng.below(3) as usize];
                let edit = [Edit::Remove, Edit::Blank, Edit::Zero][rng.below(3) as usize];
                let strip = OptionEdit::new(Target::MPTCP, scope, edit).only(direction);
                // Where options vanish midway, the other path has to do it.
                let midway = path > 0 && rng.chance(0.5);
                let since = Duration::from_millis(rng.below(600));
                chain.and(if midway {
                    strip.since(START + since)
                } else {
                    strip
                })
            }
            _ => chain.and(SequenceShift::new(rng.u64()).forgetting_sack()),
        };
    }
    (chain, whole)
}

/// `SEEDS` sets how many draws are tried, and `SEED` tries one again.
#[test]
fn boxes_drawn_at_random() {
    let number = |name| std::env::var(name).ok().map(|n| n.parse().unwrap());
    let seeds: Range<u64> = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(60),
    };
    for seed in seeds {
        let mut rng = Rng::for_component(seed, 99);
        let (first, first_whole) = draw(&mut rng, 0);
        let (second, second_whole) = draw(&mut rng, 1);
        let loss = [0.0, 0.0, 0.01, 0.03][rng.below(4) as usize];
        let far = Settings {
            rate: Rate::bits_per_second(5_000_000),
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(rng.below(3)),
            queue: QueueLimit::Packets(50),
            loss: Loss::Uniform(loss),
            reorder: Reorder {
                share: [0.0, 0.02][rng.below(2) as usize],
                detour: Duration::from_millis(4),
            },
            duplicate: [0.0, 0.01][rng.below(2) as usize],
            corrupt: [0.0, 0.01][rng.below(2) as usize],
            ..Settings::default()
        };
        let way = [Way::Down, Way::Up][rng.below(2) as usize];
        let size = [1, 3_000, 60_000, SIZE][rng.below(4) as usize];
        let context = format!("seed {seed} {way:?} {size} {loss} {first:?} | {second:?}");
        let mut bed = Bed::over(seed, vec![first, second], &far);
        bed.start(way, size);
        let outcome = bed.finish(way);
        assert_eq!(outcome.received, size, "{context}: {outcome:?}");
        assert_eq!(
            outcome.reasons,
            [CloseReason::Finished; 2],
            "{context}: {outcome:?}"
        );
        // A SYN that was lost is repeated on the other path.
        let opens_whole = first_whole && (second_whole || (loss == 0.0 && far.corrupt == 0.0));
        assert!(outcome.mptcp || !opens_whole, "{context}: {outcome:?}");
    }
}
