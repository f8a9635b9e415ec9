//! Transfers through middleboxes: each byte arrives once and in its place, with MPTCP if the box lets it
//! through and without it otherwise (RFC 8684 section 3.7).

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use braid_engine::{CloseReason, Config, FallbackCause};
use braid_links::middlebox::{
    Chain, Direction, Edit, Keep, Merge, Middlebox, Nat, NatConfig, OptionEdit, Output, Packet,
    Scope, SequenceShift, Split, Target,
};
use braid_links::{Reorder, Settings};
use braid_sim::transfer::{
    Direction as TransferDirection, PathSettings, TransferConfig, client_addr, external_addr,
};
use braid_sim::world::START;
use braid_sim::{Host, MiddleboxNode, Transfer};
use braid_wire::mptcp::{MptcpOption, WireDsn};
use braid_wire::{Instant, Rng, ip, tcp};

use crate::support::{Exchange, at, closed, deep, link, ms, path, secs, two_deep};

const SIZE: u64 = 400_000;
/// A time in the middle of a transfer.
const MIDWAY: Duration = Duration::from_millis(250);
const HOLD: Duration = Duration::from_millis(2);

/// A transfer through a chain of middleboxes on each path.
struct Fixture {
    transfer: Transfer,
    direction: TransferDirection,
}

/// The outcome of a transfer.
#[derive(Debug)]
struct Outcome {
    /// The client's connection was MPTCP when it was last seen.
    mptcp: bool,
    /// Most subflows that the client had at a time.
    subflows: usize,
    reasons: [CloseReason; 2],
    received: u64,
}

impl Fixture {
    /// Starts a transfer of `size` bytes over links like `far`.
    fn new(
        seed: u64,
        direction: TransferDirection,
        size: u64,
        chains: Vec<Chain>,
        far: &PathSettings,
    ) -> Fixture {
        let paths = vec![far.clone(); chains.len()];
        let config = TransferConfig::new(&paths, size, direction);
        let mut transfer = Transfer::through(seed, &config, chains);
        transfer.open(&config).unwrap();
        Fixture {
            transfer,
            direction,
        }
    }

    /// Runs the transfer to its end.
    fn finish(&mut self) -> Outcome {
        let transfer = &mut self.transfer;
        let (client, ends) = (transfer.client, transfer.ends());
        let (mut mptcp, mut subflows) = (false, 0);
        // The limit exceeds the time for which a peer may be silent before the connection is given up.
        let limit = Config::default().user_timeout + secs(300);
        let done = transfer.world.run(limit, |world| {
            let host = world.host(client);
            if let Some((conn, _)) = host.open_streams().next() {
                mptcp = host.stack().is_mptcp(conn).unwrap_or(mptcp);
                let all = host.stack().subflows(conn);
                subflows = subflows.max(all.iter().filter(|s| s.established).count());
            }
            ends.iter()
                .all(|end| !world.host(*end).finished().is_empty())
        });
        assert!(done, "seed {}: no end", transfer.world.seed());
        Outcome {
            mptcp,
            subflows,
            reasons: ends.map(|end| closed(transfer, end).unwrap()),
            received: at(transfer, transfer.receiver(self.direction)).received,
        }
    }
}

/// Runs transfers in both directions, without and with loss, through `chain` on each of two paths. All
/// must arrive; `check` asserts the outcome of the long ones.
fn through(chain: impl Fn(usize) -> Chain, check: impl Fn(&Outcome)) {
    for (direction, loss) in [
        (TransferDirection::Down, 0.0),
        (TransferDirection::Up, 0.0),
        (TransferDirection::Down, 0.01),
        (TransferDirection::Up, 0.01),
    ] {
        for (seed, size) in [(1, SIZE), (2, SIZE), (3, SIZE), (4, 1_000), (5, 20_000)] {
            let chains = vec![chain(0), chain(1)];
            let outcome = Fixture::new(seed, direction, size, chains, &path(5, 10, loss)).finish();
            let context = format!("{direction:?}, loss {loss}, seed {seed}: {outcome:?}");
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
    let nat = |path| Chain::new().and(Nat::new(NatConfig::new(external_addr(path))));
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
            .and(Nat::new(NatConfig::new(external_addr(path))))
            .and(SequenceShift::new(2))
            .and(Merge::new(10_000, HOLD, Keep::Last))
            .and(Split::new(1_300))
    };
    through(chain, is_mptcp);
}

// Conforms: 8684-3.1-12
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
        for edit in [Edit::Remove, Edit::Zero] {
            let later = || OptionEdit::new(Target::MPTCP, Scope::Later, edit).only(direction);
            through(|_| Chain::new().and(later()), fell_back);
        }
    }
}

/// The side that receives no option falls back at once. The other one must follow, or its retransmissions
/// would be taken for new bytes.
#[test]
fn each_end_knows_why_it_fell_back() {
    use FallbackCause::{DataPlain, PeerFellBack, PeerSynAckPlain, PeerSynPlain, ThirdAckPlain};
    let (out, back) = (Direction::Outbound, Direction::Inbound);
    for (strip, causes) in [
        (strip(Scope::Syn).only(out), [PeerSynAckPlain, PeerSynPlain]),
        (
            strip(Scope::Syn).only(back),
            [PeerSynAckPlain, ThirdAckPlain],
        ),
        (strip(Scope::Later), [DataPlain, ThirdAckPlain]),
        (strip(Scope::Later).only(out), [DataPlain, ThirdAckPlain]),
        (strip(Scope::Later).only(back), [DataPlain, PeerFellBack]),
    ] {
        let exchange = Exchange::new(30_000, 300_000);
        let chains = [0, 1].map(|_| Chain::new().and(strip.clone()));
        let mut transfer = Transfer::through(1, &exchange.config(&two_deep(0.0)), chains);
        exchange.open(&mut transfer);
        exchange.finish(&mut transfer, secs(20));
        let seen = transfer.ends().map(|end| at(&transfer, end).fell_back);
        assert_eq!(seen, causes.map(Some), "{strip:?}");
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

// Conforms: 8684-3.7-6
#[test]
fn options_that_vanish_midway_on_one_path() {
    let chain = |path| match path {
        0 => Chain::new().and(strip(Scope::All).since(START + MIDWAY)),
        _ => Chain::new(),
    };
    through(chain, is_mptcp);
}

/// Nothing can be delivered any more, and no fallback signalled. The connection ends with an error,
/// without a wrong byte and in bounded time.
#[test]
fn options_that_vanish_midway_on_the_only_path() {
    for scope in [Scope::Later, Scope::All] {
        for direction in [TransferDirection::Down, TransferDirection::Up] {
            let chain = Chain::new().and(strip(scope).since(START + MIDWAY));
            let outcome = Fixture::new(1, direction, SIZE, vec![chain], &path(5, 10, 0.0)).finish();
            assert!((1..SIZE).contains(&outcome.received), "{outcome:?}");
            assert!(
                !outcome.reasons.contains(&CloseReason::Finished),
                "{outcome:?}"
            );
        }
    }
}

/// Starts a download through a box that applies `edit`.
fn hidden(size: u64, edit: OptionEdit) -> Transfer {
    let exchange = Exchange::new(100, size);
    let chain = Chain::new().and(edit);
    let paths = [deep(20, 15, 0.0)];
    let mut transfer = Transfer::through(1, &exchange.config(&paths), [chain]);
    exchange.open(&mut transfer);
    transfer
}

/// Acknowledgements keep coming, but no DATA_ACK. RFC 5482 section 3.1 bounds how long that may go on.
#[test]
fn a_path_that_hides_data_acks_is_given_up() {
    let edit = strip(Scope::Later).only(Direction::Outbound);
    let mut transfer = hidden(30_000_000, edit.since(START + ms(300)));
    transfer.world.advance(secs(120));
    let reason = closed(&transfer, transfer.server);
    assert_eq!(reason, Some(CloseReason::TimedOut), "{transfer:?}");
}

/// The wait for a window that only a DATA_ACK could open is bounded, too.
#[test]
fn a_path_that_hides_the_window_is_given_up() {
    let mut transfer = hidden(30_000_000, strip(Scope::Later).since(START + secs(100)));
    let (client, server) = (transfer.client, transfer.server);
    transfer.world.advance(ms(300));
    transfer
        .world
        .with_node(client, |host: &mut Host, now| host.pause(now, 0, true));
    // A reader that pauses is no reason to give up.
    transfer.world.advance(secs(100) - ms(300));
    assert_eq!(closed(&transfer, server), None);
    transfer.world.advance(secs(60));
    let reason = closed(&transfer, server);
    assert_eq!(reason, Some(CloseReason::TimedOut), "{transfer:?}");
}

/// A box that changes one mapping. The receiver takes the bytes for old ones, so that its subflow
/// acknowledges them and the connection never gets them.
#[derive(Debug, Default)]
struct Astray {
    seen: Vec<u32>,
    hits: Arc<AtomicU32>,
}

impl Astray {
    /// The number of the changed mapping, from the first.
    const VICTIM: usize = 20;
    /// The number of bytes by which the mapping moves back, to bytes that the receiver has already.
    const BACK: u32 = 20_000;
}

impl Middlebox for Astray {
    fn process(&mut self, _: Instant, direction: Direction, mut packet: Packet, out: &mut Output) {
        let (ip, segment) = ip::Repr::parse(&packet.bytes).unwrap();
        let (mut tcp, payload) = tcp::Repr::parse(segment).unwrap();
        let mappings = tcp
            .options
            .mptcp
            .iter_mut()
            .filter_map(|option| match option {
                MptcpOption::Dss(dss) if direction == Direction::Inbound => dss.mapping.as_mut(),
                _ => None,
            });
        for mapping in mappings {
            let this = mapping.subflow_seq;
            if !self.seen.contains(&this) {
                self.seen.push(this);
            }
            if self.seen.get(Self::VICTIM) == Some(&this) {
                self.hits.fetch_add(1, Ordering::Relaxed);
                mapping.dsn = match mapping.dsn {
                    WireDsn::Four(low) => WireDsn::Four(low.wrapping_sub(Self::BACK)),
                    WireDsn::Eight(full) => WireDsn::Eight(full - u64::from(Self::BACK)),
                };
            }
        }
        let mut bytes = vec![0; packet.bytes.len() - payload.len()];
        ip.emit(&mut bytes);
        tcp.emit(&mut bytes[20..]);
        tcp::fill_checksum(ip.src, ip.dst, &mut bytes[20..], &[payload]);
        bytes.extend_from_slice(payload);
        packet.bytes = bytes;
        out.push_back((direction, packet));
    }
}

/// RFC 8684 section 3.3.6: data is kept until DATA_ACK covers it.
// Conforms: 8684-3.3.6-2
#[test]
fn bytes_acknowledged_by_a_subflow_only_are_sent_again() {
    let exchange = Exchange::new(1_000, 1_000_000);
    let hits = Arc::new(AtomicU32::new(0));
    let astray = Astray {
        hits: hits.clone(),
        ..Astray::default()
    };
    let chains = [Chain::new().and(astray), Chain::new()];
    let mut transfer = Transfer::through(1, &exchange.config(&two_deep(0.0)), chains);
    exchange.open(&mut transfer);
    exchange.finish(&mut transfer, secs(20));
    assert!(
        hits.load(Ordering::Relaxed) > 0,
        "no mapping was led astray"
    );
}

#[test]
fn a_nat_that_forgets_midway() {
    for (adopts, rebinds) in [(true, false), (false, false), (true, true)] {
        for direction in [TransferDirection::Down, TransferDirection::Up] {
            let nat = |path| {
                Chain::new().and(Nat::new(NatConfig {
                    adopts,
                    preserves_ports: false,
                    ..NatConfig::new(external_addr(path))
                }))
            };
            let mut fixture =
                Fixture::new(1, direction, SIZE, vec![nat(0), nat(1)], &path(5, 10, 0.0));
            let (world, first) = (&mut fixture.transfer.world, fixture.transfer.boxes[0]);
            world.advance(MIDWAY);
            world.with_node(first, |node: &mut MiddleboxNode, _| {
                let nat: &mut Nat = node.get_mut();
                match rebinds {
                    true => nat.rebind(client_addr(0)),
                    false => nat.forget(),
                }
            });
            let outcome = fixture.finish();
            assert_eq!(outcome.received, SIZE, "{outcome:?}");
            assert_eq!(outcome.reasons, [CloseReason::Finished; 2], "{outcome:?}");
        }
    }
}

/// Returns a random box, and whether MPTCP options pass it unchanged.
fn draw(rng: &mut Rng, path: usize) -> (Chain, bool) {
    let mut whole = true;
    let mut chain = Chain::new();
    for _ in 0..rng.below(4) {
        let keep = [Keep::First, Keep::Last][rng.below(2) as usize];
        let direction = [Direction::Inbound, Direction::Outbound][rng.below(2) as usize];
        let most = 1_500 + rng.below(20_000) as usize;
        let mss = 50 + rng.below(1_500) as u16;
        chain = match rng.below(6) {
            0 => chain.and(Nat::new(NatConfig::new(external_addr(path)))),
            1 => chain.and(SequenceShift::new(rng.u64())),
            2 => chain.and(Split::new(mss)),
            3 => chain.and(Merge::new(most, HOLD, keep)),
            4 => {
                whole = false;
                let scope = [Scope::Syn, Scope::Later, Scope::All][rng.below(3) as usize];
                let edit = [Edit::Remove, Edit::Blank, Edit::Zero][rng.below(3) as usize];
                let strip = OptionEdit::new(Target::MPTCP, scope, edit).only(direction);
                // If options vanish midway, the other path has to carry the transfer.
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

/// Tests random boxes. `SEEDS` sets their number, and `SEED` repeats one.
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
            jitter: Duration::from_millis(rng.below(3)),
            reorder: Reorder {
                share: [0.0, 0.02][rng.below(2) as usize],
                detour: Duration::from_millis(4),
            },
            duplicate: [0.0, 0.01][rng.below(2) as usize],
            corrupt: [0.0, 0.01][rng.below(2) as usize],
            ..link(5, 10, loss)
        };
        let direction = [TransferDirection::Down, TransferDirection::Up][rng.below(2) as usize];
        let size = [1, 3_000, 60_000, SIZE][rng.below(4) as usize];
        let context = format!("seed {seed} {direction:?} {size} {loss} {first:?} | {second:?}");
        let chains = vec![first, second];
        let corrupt = far.corrupt;
        let outcome =
            Fixture::new(seed, direction, size, chains, &PathSettings::both(far)).finish();
        assert_eq!(outcome.received, size, "{context}: {outcome:?}");
        assert_eq!(
            outcome.reasons,
            [CloseReason::Finished; 2],
            "{context}: {outcome:?}"
        );
        // A lost SYN is repeated on the other path.
        let opens_whole = first_whole && (second_whole || (loss == 0.0 && corrupt == 0.0));
        assert!(outcome.mptcp || !opens_whole, "{context}: {outcome:?}");
    }
}
