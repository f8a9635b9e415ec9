//! Paths that never answer, come back on another network, or take only small packets.

use std::time::Duration;

use crate::net::{Link, Net, box_addr, identify, packet, path_config};
use braid_tunnel::{Config, Mode, PathId, PathLoad, PathState, PathStats, SendError};
use braid_wire::Instant;

const MS: Duration = Duration::from_millis(1);

fn stats(net: &Net, end: usize, path: u8) -> PathStats {
    let mut all = net.ends[end].path_stats();
    all.find(|p| p.path == PathId(path)).expect("a known path")
}

fn numbers(net: &Net, end: usize) -> Vec<u32> {
    let delivered = net.delivered[end].iter();
    delivered.map(|bytes| identify(bytes).1).collect()
}

#[test]
fn a_path_that_never_answers_is_not_used() {
    for mode in [
        Mode::Single,
        Mode::Fastest,
        Mode::Aggregate,
        Mode::Redundant,
    ] {
        let config = Config {
            mode,
            ..Config::default()
        };
        let mut net = Net::new(&config, &[Link::PLAIN; 2], 1);
        net.dark[0] = true;
        // Packets that come before anything is known may go on either path. They are sent again on the other one.
        net.send(0, 3, &packet(0, 0, 200)).unwrap();
        net.pass(MS * 900);
        assert!(stats(&net, 0, 1).usable);
        net.pass(MS * 200);
        assert!(!stats(&net, 0, 0).usable, "{mode:?}");
        for number in 1..20 {
            net.send(0, 3, &packet(0, number, 200)).unwrap();
            net.pass(MS * 20);
        }
        net.pass(MS * 200);
        let mut delivered = numbers(&net, 1);
        delivered.sort_unstable();
        assert_eq!(delivered, (0..20).collect::<Vec<_>>(), "{mode:?}");
        net.dark[0] = false;
        net.pass(MS * 3000);
        assert!(stats(&net, 0, 0).usable, "{mode:?}");
    }
}

/// A box that leaves one network for another keeps nothing that it knows of the old one, and neither does the server
/// once the new address is proved.
#[test]
fn a_path_over_another_network_starts_anew() {
    let slow = Link {
        rate: 250_000,
        delay: MS * 300,
        jitter: MS * 30,
        ..Link::PLAIN
    };
    let mut net = Net::new(&Config::default(), &[slow], 2);
    net.pass(MS * 2000);
    for number in 0..1000 {
        for end in 0..2 {
            let _ = net.send(end, 3, &packet(0, number, 1000));
        }
        net.pass(MS * 3);
    }
    for end in 0..2 {
        let path = stats(&net, end, 0);
        assert!(path.round_trip.unwrap() > MS * 500 && path.lateness > MS * 10);
    }
    let before = [stats(&net, 0, 0), stats(&net, 1, 0)];
    net.ends[0].remove_path(net.now, PathId(0));
    net.pass(MS * 5000);
    net.set_link(0, Link::PLAIN);
    net.box_addrs[0] = box_addr(9);
    assert!(net.ends[0].add_path(net.now, PathId(0), path_config(1500)));
    net.pass(MS * 500);
    for (end, before) in before.iter().enumerate() {
        let path = stats(&net, end, 0);
        assert!(path.round_trip.is_none_or(|rtt| rtt < MS * 60), "{path:?}");
        assert_eq!(path.lateness, Duration::ZERO, "{path:?}");
        assert!(path.datagrams_sent >= before.datagrams_sent);
        net.send(end, 3, &packet(1, 0, 1000)).unwrap();
    }
    net.pass(MS * 50);
    for end in 0..2 {
        let came = net.delivered[end]
            .iter()
            .any(|bytes| identify(bytes) == (1, 0));
        assert!(
            came,
            "end {end}: {:?} {:?}",
            net.ends[1 - end].stats(),
            stats(&net, 1 - end, 0)
        );
    }
}

/// A challenge or a statement needs room that a tail may take. The tail goes first.
#[test]
fn no_tail_is_dropped_for_other_frames() {
    let config = Config {
        inner_mtu: 3000,
        ..Config::default()
    };
    // The head fills a datagram, and the tail leaves less room than any frame takes.
    let largest = 2 * (1500 - 28 - 13 - 16) - 6 - 3;
    let mut net = Net::new(&config, &[Link::PLAIN], 3);
    net.pass(MS * 500);
    for number in 0..20 {
        net.send(1, 3, &packet(0, number, largest)).unwrap();
        let active = braid_tunnel::PathState::Active;
        net.ends[1].set_path_state(net.now, PathId(0), active);
        net.pass(MS * 100);
        assert_eq!(numbers(&net, 0).len() as u32, number + 1);
    }
    // Two flows on two paths, with statements between the packets.
    let mut net = Net::new(&config, &[Link::PLAIN; 2], 4);
    net.pass(MS * 500);
    let mut accepted = 0;
    for number in 0..2000 {
        for flow in 0..2 {
            let sent = net.send(1, 3, &packet(flow, number, largest));
            accepted += usize::from(sent.is_ok());
        }
        net.pass(MS);
    }
    net.pass(MS * 500);
    assert_eq!(net.delivered[0].len(), accepted);
}

#[test]
fn a_packet_too_large_for_every_path_is_refused() {
    let config = Config {
        inner_mtu: 9000,
        ..Config::default()
    };
    let mut net = Net::new(&config, &[Link::PLAIN], 5);
    net.pass(MS * 500);
    let refused = net.send(1, 3, &packet(0, 0, 9000));
    assert_eq!(refused, Err(SendError::TooLarge));
    net.send(1, 3, &packet(0, 1, 2800)).unwrap();
    net.pass(MS * 100);
    assert_eq!(numbers(&net, 0), [1]);
    assert_eq!(net.ends[1].stats().packets_too_large, 1);
}

#[test]
fn a_large_packet_goes_on_the_path_that_takes_it_and_blocks_no_other() {
    let config = Config {
        inner_mtu: 9000,
        learned_mtu: 9000,
        ..Config::default()
    };
    let wide = Link {
        mtu: 9000,
        delay: MS * 30,
        ..Link::PLAIN
    };
    let mut net = Net::new(&config, &[Link::PLAIN, wide], 6);
    net.pass(MS * 30_000);
    assert_eq!(stats(&net, 1, 1).mtu, 9000);
    for number in 0..40 {
        let len = if number % 4 == 0 { 9000 } else { 1000 };
        net.send(1, 3, &packet(0, number, len)).unwrap();
        net.pass(MS * 2);
    }
    net.pass(MS * 500);
    assert_eq!(numbers(&net, 0), (0..40).collect::<Vec<_>>());
    // Packets that wait for the wide path when it goes are dropped, and the others are not.
    for number in 40..80 {
        let len = if number % 4 == 0 { 9000 } else { 1000 };
        net.send(1, 3, &packet(0, number, len)).unwrap();
    }
    net.ends[1].remove_path(net.now, PathId(1));
    net.dark[1] = true;
    net.pass(MS * 1000);
    let small = (40..80).filter(|number| number % 4 != 0);
    let delivered = numbers(&net, 0);
    assert!(
        small.clone().all(|number| delivered.contains(&number)),
        "{delivered:?}"
    );
    assert_eq!(net.ends[1].stats().queued_bytes, 0);
}

/// The MTU of the path is found, and found again when it shrinks: large packets vanish, and nothing else tells.
#[test]
fn the_mtu_of_the_path_is_probed() {
    for size in [1280, 1350, 1492, 1500] {
        let narrow = Link {
            mtu: size,
            ..Link::PLAIN
        };
        let mut net = Net::new(&Config::default(), &[narrow], 7);
        net.pass(MS * 60_000);
        for end in 0..2 {
            let mtu = stats(&net, end, 0).mtu;
            assert!(mtu <= size && size - mtu < 16, "{mtu} of {size}");
        }
        for number in 0..200 {
            net.send(1, 3, &packet(0, number, 1500)).unwrap();
            net.pass(MS);
        }
        net.pass(MS * 500);
        assert_eq!(numbers(&net, 0), (0..200).collect::<Vec<_>>());
        assert!(stats(&net, 1, 0).usable);
    }
}

#[test]
fn a_black_hole_for_large_packets_is_left() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 8);
    net.pass(MS * 2000);
    assert_eq!(stats(&net, 1, 0).mtu, 1500);
    let narrow = Link {
        mtu: 1400,
        ..Link::PLAIN
    };
    net.set_link(0, narrow);
    let mut accepted = 0;
    for number in 0..3000 {
        accepted += usize::from(net.send(1, 3, &packet(0, number, 1500)).is_ok());
        net.pass(MS);
    }
    net.pass(MS * 10_000);
    // A second is lost at most: the silence shows in a few round trips.
    assert!(
        net.delivered[0].len() + 1000 > accepted,
        "{} of {accepted}",
        net.delivered[0].len()
    );
    for number in 3000..3100 {
        net.send(1, 3, &packet(0, number, 1500)).unwrap();
        net.pass(MS * 10);
    }
    net.pass(MS * 30_000);
    let mtu = stats(&net, 1, 0).mtu;
    assert!((1385..=1400).contains(&mtu), "{mtu}");
    let last = (3000..3100).collect::<Vec<_>>();
    assert!(numbers(&net, 0).ends_with(&last));
}

/// A loss of small and large packets alike is no black hole.
#[test]
fn losses_do_not_shrink_the_mtu() {
    let lossy = Link {
        loss: 0.1,
        ..Link::PLAIN
    };
    let mut net = Net::new(&Config::default(), &[lossy], 9);
    net.pass(MS * 10_000);
    for number in 0..5000 {
        let _ = net.send(1, 3, &packet(0, number, 1500));
        net.pass(MS);
        assert!(net.now < Instant::from_millis(10_100) || stats(&net, 1, 0).mtu == 1500);
    }
}

/// The links are the box's, so the server uses a path as the box says: not beside an active one if it is a backup, not
/// at all if it is switched off, and like any other again afterwards.
#[test]
fn the_server_uses_a_path_as_the_box_says() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN; 2], 1);
    net.pass(MS * 200);
    let mut next = 0;
    let mut sent = |net: &mut Net, state| {
        let now = net.now;
        net.ends[0].set_path_state(now, PathId(1), state);
        // The first datagrams may pass before the box hears of them.
        let mut bytes = [0; 2];
        for _ in 0..2 {
            bytes = bytes_sent(net);
            for _ in 0..400 {
                net.send(1, 3, &packet(0, next, 1400)).unwrap();
                next += 1;
                net.pass(Duration::from_micros(140));
            }
            net.pass(MS * 500);
        }
        let after = bytes_sent(net);
        [after[0] - bytes[0], after[1] - bytes[1]]
    };
    let [_, on_active] = sent(&mut net, PathState::Active);
    assert!(on_active > 20_000, "{on_active}");
    for state in [PathState::Backup, PathState::Down] {
        let [on_first, on_second] = sent(&mut net, state);
        assert!(on_first > 400 * 1400 && on_second < 1000, "{on_second}");
    }
    let [_, again] = sent(&mut net, PathState::Active);
    assert!(again > 20_000, "{again}");
}

/// Returns the bytes that the server has sent on each path.
fn bytes_sent(net: &Net) -> [u64; 2] {
    let mut stats = net.ends[1].path_stats().map(|path| path.bytes_sent);
    [(); 2].map(|()| stats.next().unwrap())
}

/// A rate that was measured before lets a path start fast. A wrong one does no more harm than to fill a queue once.
#[test]
fn a_path_starts_with_a_rate_that_was_known_and_finds_a_wrong_one() {
    // Bytes that arrive in the first 300 ms, and losses.
    let run = |seed: Option<u64>| {
        let link = Link {
            queue: 250_000,
            ..Link::PLAIN
        };
        let mut net = Net::new(&Config::default(), &[link], 6);
        net.pass(MS * 300);
        if let Some(seed) = seed {
            net.ends[1].seed_path(PathId(0), seed);
        }
        let mut early = 0;
        for number in 0..8_000 {
            // 1,400 bytes in 200 µs are 7 MB/s.
            let _ = net.send(1, 3, &packet(0, number, 1_400));
            net.pass(MS / 5);
            if number == 1_500 {
                early = net.delivered[0].len() * 1_400;
            }
        }
        (early, stats(&net, 1, 0))
    };
    let rate = Link::PLAIN.rate;
    let (unknown, _) = run(None);
    for seed in [rate / 8, rate, rate * 8] {
        let (early, path) = run(Some(seed));
        let known = path.rate.unwrap();
        assert!((rate * 8 / 10..rate * 11 / 10).contains(&known), "{path:?}");
        assert!(path.datagrams_lost < 600, "{path:?}");
        if seed == rate {
            assert!(
                early >= unknown && path.datagrams_lost == 0,
                "{early} {path:?}"
            );
        }
    }
}

/// The bytes of other senders on a path are expected to arrive first.
#[test]
fn packets_avoid_a_path_that_others_fill() {
    let slower = Link {
        delay: MS * 25,
        ..Link::PLAIN
    };
    let mut net = Net::new(&Config::default(), &[Link::PLAIN, slower], 7);
    net.pass(MS * 300);
    let load = |in_flight| PathLoad {
        in_flight,
        delivery_rate: Link::PLAIN.rate,
    };
    // A round trip of 40 ms takes 250 kB; 62.5 kB more are 10 ms.
    for (in_flight, path) in [(0, 0), (250_000, 0), (312_500, 1), (0, 0)] {
        for end in 0..2 {
            net.ends[end].set_path_load(net.now, PathId(0), load(in_flight), None);
        }
        let sent = |net: &Net| {
            let flow = &net.ends[0].flow_stats()[0];
            let mut paths = flow.paths.iter();
            paths
                .find(|p| p.path == PathId(path))
                .map_or(0, |p| p.bytes_sent)
        };
        net.send(0, 3, &packet(0, 0, 200)).unwrap();
        let before = sent(&net);
        for number in 1..=20 {
            net.send(0, 3, &packet(0, number, 200)).unwrap();
            net.pass(MS * 20);
        }
        net.pass(MS * 100);
        assert_eq!(sent(&net) - before, 20 * 200, "{in_flight}");
    }
}
