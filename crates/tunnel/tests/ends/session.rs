//! Two ends over links: delivery, order, keys, silence of paths, addresses.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::net::{Link, Net, answer, box_addr, end, identify, packet, secrets, server_addr};
use braid_tunnel::{
    Config, DatagramError, FlowPolicy, Header, Mode, PathId, PathState, Role, SendError, Urgency,
};
use braid_wire::{Instant, Rng};

const MS: Duration = Duration::from_millis(1);

/// Sends `count` packets of one flow from the server, one every `gap`.
fn stream(net: &mut Net, count: u32, len: usize, gap: Duration) -> u32 {
    let mut accepted = 0;
    for number in 0..count {
        accepted += u32::from(net.send(1, 3, &packet(0, number, len)).is_ok());
        net.pass(gap);
    }
    net.pass(MS * 1000);
    accepted
}

/// Checks that nothing came twice or altered. Returns the numbers of flow 0 in the order of delivery.
fn numbers(net: &Net, end: usize) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let mut numbers = Vec::new();
    for bytes in &net.delivered[end] {
        let (flow, number) = identify(bytes);
        assert!(seen.insert((flow, number)), "packet {number} came twice");
        if flow == 0 {
            numbers.push(number);
        }
    }
    numbers
}

#[test]
fn packets_cross_in_both_directions_in_order() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN; 2], 1);
    net.pass(MS * 200);
    for number in 0..100 {
        net.send(0, 3, &packet(0, number, 100)).unwrap();
        net.send(1, 3, &packet(0, number, 1500)).unwrap();
        net.pass(MS);
    }
    net.pass(MS * 500);
    for end in 0..2 {
        assert_eq!(numbers(&net, end), (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn a_large_flow_uses_both_paths_and_a_small_one_does_not() {
    let slower = Link {
        delay: MS * 40,
        ..Link::PLAIN
    };
    for (gap, spreads) in [(Duration::from_micros(140), true), (MS * 5, false)] {
        let mut net = Net::new(&Config::default(), &[Link::PLAIN, slower], 2);
        net.pass(MS * 200);
        stream(&mut net, 6000, 1400, gap);
        let sent: Vec<_> = net.ends[1].path_stats().map(|p| p.bytes_sent).collect();
        assert_eq!(sent[1] > 1_000_000, spreads, "{sent:?}");
        let order = numbers(&net, 0);
        assert!(order.is_sorted(), "out of order without loss");
    }
}

#[test]
fn cut_packets_are_joined_and_cost_few_datagrams() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 3);
    net.pass(MS * 200);
    let before = net.datagrams[1];
    let accepted = stream(&mut net, 2000, 1500, Duration::from_micros(300));
    assert_eq!(numbers(&net, 0).len() as u32, accepted);
    let datagrams = net.datagrams[1] - before;
    assert!(
        datagrams < u64::from(accepted) * 107 / 100,
        "{datagrams} datagrams for {accepted} packets"
    );
}

#[test]
fn loss_and_reordering_repeat_and_alter_nothing() {
    for seed in 0..12 {
        let mut rng = Rng::for_component(seed, 99);
        let mut link = || Link {
            rate: 1_000_000 + rng.below(9_000_000),
            delay: MS * (1 + rng.below(60) as u32),
            jitter: MS * (rng.below(2) * rng.below(30)) as u32,
            loss: rng.unit() * 0.05,
            repeat: rng.unit() * 0.05,
            queue: 50_000 + rng.below(500_000),
            mtu: crate::net::MTU,
        };
        let links = [link(), link(), link()];
        let mut net = Net::new(&Config::default(), &links, seed);
        net.pass(MS * 200);
        let mut accepted = 0;
        for number in 0..4000 {
            let len = 100 + rng.below(1401) as usize;
            let sent = net.send(
                1,
                rng.below(8) as u8,
                &packet(rng.below(3) as u16, number, len),
            );
            accepted += usize::from(sent.is_ok());
            net.pass(Duration::from_micros(rng.below(400)));
        }
        net.pass(MS * 2000);
        numbers(&net, 0);
        let delivered = net.delivered[0].len();
        // The start of a path may overflow a short queue, and what is sent again is lost there too.
        assert!(
            delivered * 100 >= accepted * 85,
            "seed {seed}: {delivered} of {accepted}"
        );
        let stats = net.ends[0].stats();
        assert_eq!(stats.datagrams_forged, 0);
        assert!(
            stats.packets_reordered * 20 < stats.packets_delivered,
            "{stats:?}"
        );
    }
}

#[test]
fn what_a_dying_path_held_goes_again_elsewhere() {
    let slower = Link {
        delay: MS * 30,
        ..Link::PLAIN
    };
    let config = Config {
        mode: Mode::Fastest,
        ..Config::default()
    };
    let mut net = Net::new(&config, &[Link::PLAIN, slower], 4);
    net.pass(MS * 200);
    for number in 0..200 {
        if number == 100 {
            net.dark[0] = true;
        }
        net.send(1, 1, &packet(0, number, 200)).unwrap();
        net.pass(MS * 20);
    }
    net.pass(MS * 500);
    assert_eq!(numbers(&net, 0), (0..200).collect::<Vec<_>>());
    let usable: Vec<_> = net.ends[1].path_stats().map(|p| p.usable).collect();
    assert_eq!(usable, [false, true]);
    net.dark[0] = false;
    net.send(1, 1, &packet(0, 200, 200)).unwrap();
    net.pass(MS * 1500);
    assert!(net.ends[1].path_stats().all(|p| p.usable));
}

#[test]
fn redundant_copies_leave_no_gap() {
    let config = Config {
        mode: Mode::Redundant,
        ..Config::default()
    };
    let mut net = Net::new(&config, &[Link::PLAIN; 2], 5);
    net.pass(MS * 200);
    let mut count = 0;
    for number in 0..100 {
        net.dark[0] = number >= 50;
        net.send(1, 1, &packet(0, number, 200)).unwrap();
        net.pass(MS * 20);
        // Each packet takes 20 ms, so all but the last are there.
        let delivered = net.delivered[0].len();
        assert!(delivered + 2 > number as usize, "{delivered} of {number}");
        count += 1;
    }
    net.pass(MS * 100);
    assert_eq!(numbers(&net, 0), (0..count).collect::<Vec<_>>());
}

/// Returns what each end does with the packets that it sends of a flow.
fn treatments(net: &Net) -> [Option<(u8, Mode)>; 2] {
    [0, 1].map(|end: usize| {
        let flows = net.ends[end].flow_stats();
        let treatment = flows.first()?.treatment?;
        Some((treatment.urgency, treatment.mode))
    })
}

/// The policy of the box holds for answers, from its next packet on. A server's own policy holds for flows of which the
/// box has sent nothing.
#[test]
fn answers_are_sent_as_the_box_sends_their_flow() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN; 2], 15);
    net.pass(MS * 200);
    let policy = |level, mode| FlowPolicy {
        urgency: Urgency::new(level),
        mode: Some(mode),
    };
    let mut number = 0;
    let mut exchange = |net: &mut Net, of_box: Option<FlowPolicy>, of_server| {
        number += 1;
        let packet = packet(0, number, 200);
        if let Some(policy) = of_box {
            net.send_as(0, policy, &packet).unwrap();
            net.pass(MS * 50);
        }
        net.send_as(1, of_server, &answer(&packet)).unwrap();
        net.pass(MS * 50);
        treatments(net)
    };
    let own = policy(5, Mode::Single);
    let server_first = exchange(&mut net, None, own);
    assert_eq!(server_first, [None, Some((5, Mode::Single))]);
    for mode in Mode::ALL {
        let both = exchange(&mut net, Some(policy(1, mode)), own);
        assert_eq!(both, [Some((1, mode)); 2]);
    }
    // The mode that the box leaves open is its default. The urgency that it leaves open is the server's.
    let open = exchange(&mut net, Some(FlowPolicy::default()), own);
    let [boxed, server] = [3, 5].map(|urgency| Some((urgency, Mode::Aggregate)));
    assert_eq!(open, [boxed, server]);
    // Another flow has the policy of no other one.
    net.send_as(0, policy(1, Mode::Redundant), &packet(0, 100, 200))
        .unwrap();
    net.pass(MS * 50);
    net.send_as(1, own, &answer(&packet(1, 0, 200))).unwrap();
    let flows = net.ends[1].flow_stats();
    let other = flows.iter().find(|flow| flow.bytes_received == 0).unwrap();
    let treatment = other.treatment.unwrap();
    assert_eq!((treatment.urgency, treatment.mode), (5, Mode::Single));
}

/// A server states nothing, so a box follows its own rules.
#[test]
fn a_box_does_not_follow_the_server() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN; 2], 16);
    net.pass(MS * 200);
    let redundant = FlowPolicy {
        urgency: Urgency::new(1),
        mode: Some(Mode::Redundant),
    };
    net.send_as(1, redundant, &packet(0, 0, 200)).unwrap();
    net.pass(MS * 100);
    net.send_as(0, FlowPolicy::default(), &answer(&packet(0, 0, 200)))
        .unwrap();
    let [boxed, server] = treatments(&net);
    assert_eq!(boxed, Some((3, Mode::Aggregate)));
    assert_eq!(server, Some((1, Mode::Redundant)));
}

/// Flows of one tunnel in all modes, which change, and paths that go and come back: nothing comes twice.
#[test]
fn modes_that_change_repeat_nothing() {
    for seed in 0..8 {
        let mut rng = Rng::for_component(seed, 98);
        let mut link = || Link {
            delay: MS * (5 + rng.below(60) as u32),
            jitter: MS * rng.below(10) as u32,
            loss: rng.unit() * 0.02,
            ..Link::PLAIN
        };
        let links = [link(), link(), link()];
        let mut net = Net::new(&Config::default(), &links, seed);
        net.pass(MS * 300);
        let mut accepted = 0;
        for number in 0..3000 {
            if rng.chance(0.01) {
                net.dark[rng.below(2) as usize] = rng.chance(0.3);
            }
            let policy = FlowPolicy {
                urgency: Urgency::new(rng.below(4) as u8),
                mode: rng.chance(0.9).then(|| Mode::ALL[rng.below(4) as usize]),
            };
            let len = 100 + rng.below(1401) as usize;
            let packet = packet(rng.below(4) as u16, number, len);
            accepted += usize::from(net.send_as(0, policy, &packet).is_ok());
            net.pass(Duration::from_micros(rng.below(2_000)));
        }
        net.dark.fill(false);
        net.pass(MS * 3000);
        numbers(&net, 1);
        let delivered = net.delivered[1].len();
        assert!(
            delivered * 100 >= accepted * 90,
            "seed {seed}: {delivered} of {accepted}"
        );
    }
}

/// The links of the box have other numbers at a server, which learns them in the order of their first datagrams.
#[test]
fn a_single_path_is_the_same_at_both_ends() {
    let slow = Link {
        delay: MS * 60,
        ..Link::PLAIN
    };
    let mut net = Net::new(&Config::default(), &[slow, Link::PLAIN], 17);
    net.pass(MS * 500);
    let order: Vec<_> = net.ends[1].path_stats().map(|p| p.path).collect();
    assert_eq!(order, [PathId(1), PathId(0)], "the slow one comes later");
    let single = FlowPolicy {
        urgency: None,
        mode: Some(Mode::Single),
    };
    for number in 0..200 {
        let packet = packet(0, number, 1000);
        net.send_as(0, single, &packet).unwrap();
        net.pass(MS * 5);
        // The first ones leave before the server knows the mode.
        if number >= 50 {
            net.send_as(1, FlowPolicy::default(), &answer(&packet))
                .unwrap();
        }
        net.pass(MS * 5);
    }
    net.pass(MS * 200);
    for end in 0..2 {
        let flows = net.ends[end].flow_stats();
        let paths: Vec<_> = flows[0].paths.iter().map(|p| p.path).collect();
        assert_eq!(paths, [PathId(0)], "end {end}");
    }
}

#[test]
fn a_single_path_carries_everything_until_it_goes() {
    let config = Config {
        mode: Mode::Single,
        ..Config::default()
    };
    let mut net = Net::new(&config, &[Link::PLAIN; 2], 6);
    net.pass(MS * 200);
    let sent = |net: &Net| -> Vec<u64> { net.ends[1].path_stats().map(|p| p.bytes_sent).collect() };
    let before = sent(&net);
    stream(&mut net, 500, 1000, MS);
    let after = sent(&net);
    assert!(after[0] - before[0] > 500_000 && after[1] - before[1] < 20_000);
    net.ends[1].set_path_state(net.now, PathId(0), PathState::Down);
    for number in 500..600 {
        net.send(1, 3, &packet(0, number, 1000)).unwrap();
        net.pass(MS);
    }
    net.pass(MS * 500);
    assert_eq!(numbers(&net, 0).len(), 600);
}

#[test]
fn keys_change_while_packets_are_under_way() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 7);
    net.pass(MS * 200);
    for number in 0..400 {
        if number % 100 == 50 {
            let epoch = u64::from(number / 100 + 1);
            for end in [1, 0] {
                assert!(net.ends[end].install_keys(net.now, epoch, &secrets(epoch)));
                assert!(!net.ends[end].install_keys(net.now, epoch, &secrets(epoch)));
            }
        }
        net.send(1, 3, &packet(0, number, 500)).unwrap();
        net.send(0, 3, &packet(0, number, 500)).unwrap();
        net.pass(MS * 2);
    }
    net.pass(MS * 500);
    for end in 0..2 {
        assert_eq!(numbers(&net, end), (0..400).collect::<Vec<_>>());
        assert_eq!(net.ends[end].stats().datagrams_forged, 0);
    }
}

#[test]
fn epochs_whose_answers_are_lost_leave_the_one_in_use() {
    for lost in 1..=9 {
        let mut net = Net::new(&Config::default(), &[Link::PLAIN], 7);
        net.pass(MS * 200);
        let mut epoch = 0;
        for number in 0..lost {
            epoch = net.ends[1].next_epoch();
            assert!(net.ends[1].install_keys(net.now, epoch, &secrets(epoch)));
            net.send(0, 3, &packet(0, number, 500)).unwrap();
            net.send(1, 3, &packet(0, number, 500)).unwrap();
            net.pass(MS * 100);
        }
        // The last answer arrives.
        assert!(net.ends[0].install_keys(net.now, epoch, &secrets(epoch)));
        for number in lost..lost + 10 {
            net.send(0, 3, &packet(0, number, 500)).unwrap();
            net.send(1, 3, &packet(0, number, 500)).unwrap();
            net.pass(MS * 100);
        }
        for end in 0..2 {
            let expected: Vec<_> = (0..lost + 10).collect();
            assert_eq!(numbers(&net, end), expected, "{lost} lost");
            assert_eq!(net.ends[end].stats().datagrams_forged, 0);
        }
    }
}

#[test]
fn a_server_takes_no_epoch_that_looks_like_the_one_in_use() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 7);
    net.pass(MS * 200);
    assert_eq!(net.ends[1].next_epoch(), 1);
    assert!(!net.ends[1].install_keys(net.now, 4, &secrets(4)));
    for epoch in [1, 2, 3, 5] {
        assert_eq!(net.ends[1].next_epoch(), epoch);
        assert!(net.ends[1].install_keys(net.now, epoch, &secrets(epoch)));
    }
}

#[test]
fn keys_end_ten_minutes_after_their_first_packet() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 7);
    // An epoch that carries nothing stays.
    net.pass(MS * 700_000);
    let used_at = net.now;
    let mut number = 0;
    while net.now < used_at + MS * 600_000 {
        for end in 0..2 {
            net.send(end, 3, &packet(0, number, 500)).unwrap();
        }
        number += 1;
        net.pass(MS * 10_000);
    }
    for end in 0..2 {
        assert_eq!(numbers(&net, end).len(), 60);
        let refused = net.send(end, 3, &packet(0, number, 500));
        assert_eq!(refused, Err(SendError::NoKey), "end {end}");
        assert!(net.ends[end].wants_keys());
    }
    let sent = net.datagrams;
    net.pass(MS * 60_000);
    assert_eq!(net.datagrams, sent, "nothing is sent without a key");
    for end in [1, 0] {
        assert!(net.ends[end].install_keys(net.now, 1, &secrets(1)));
    }
    net.pass(MS * 30_000);
    for end in 0..2 {
        net.send(end, 3, &packet(0, number, 500)).unwrap();
    }
    net.pass(MS * 1000);
    for end in 0..2 {
        assert_eq!(numbers(&net, end).last(), Some(&number));
    }
}

/// Home routers forget a mapping of UDP after 30 s. So the box sends in time on each link, and little else is sent.
#[test]
fn an_idle_session_keeps_mappings_by_six_packets_a_minute() {
    let slow = Link {
        delay: MS * 400,
        ..Link::PLAIN
    };
    let mut net = Net::new(&Config::default(), &[Link::PLAIN, slow], 8);
    net.send(0, 3, &packet(0, 0, 100)).unwrap();
    net.pass(MS * 10_000);
    let before = net.datagrams;
    let start = net.now;
    net.box_sent_at.iter_mut().for_each(Vec::clear);
    net.pass(MS * 500_000);
    let sent = net.datagrams[0] + net.datagrams[1] - before[0] - before[1];
    assert!(sent <= 50 * 2, "{sent} datagrams in 500 s on 2 links");
    for times in &net.box_sent_at {
        let all = [start].into_iter().chain(times.iter().copied());
        let ends = times.iter().copied().chain([net.now]);
        let gaps = all.zip(ends).map(|(from, to)| to.saturating_since(from));
        assert!(gaps.max().unwrap() <= MS * 25_000, "{times:?}");
    }
    // What comes from outside arrives at once.
    net.send(1, 3, &packet(0, 1, 100)).unwrap();
    net.pass(MS * 50);
    assert_eq!(numbers(&net, 0), [1]);
}

/// Probes without answer keep the mapping too: the way to the box may be all that works.
#[test]
fn an_idle_box_keeps_probing_a_silent_path_in_time() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN; 2], 8);
    net.pass(MS * 10_000);
    net.dark[0] = true;
    net.pass(MS * 300_000);
    net.box_sent_at[0].clear();
    let before = net.now;
    net.pass(MS * 600_000);
    let times = &net.box_sent_at[0];
    assert!((24..=60).contains(&times.len()), "{times:?}");
    let gaps = times
        .windows(2)
        .map(|pair| pair[1].saturating_since(pair[0]));
    assert!(gaps.max().unwrap() <= MS * 25_000 && times[0] <= before + MS * 25_000);
}

/// Returns a datagram of the box for a fresh server, with an inner packet.
fn first_datagrams(count: usize) -> (braid_tunnel::Tunnel, Vec<Vec<u8>>) {
    let mut sender = end(&Config::default(), Role::Box, 9);
    let config = braid_tunnel::PathConfig {
        remote: server_addr(),
        mtu: crate::net::MTU,
    };
    assert!(sender.add_path(Instant::ZERO, PathId(0), config));
    let policy = FlowPolicy::default();
    for number in 0..count {
        sender
            .send(Instant::ZERO, policy, &packet(0, number as u32, 200))
            .unwrap();
    }
    let mut datagrams = Vec::new();
    let mut buffer = Vec::new();
    while sender.poll_transmit(Instant::ZERO, &mut buffer).is_some() {
        datagrams.push(std::mem::take(&mut buffer));
    }
    (sender, datagrams)
}

#[test]
fn forged_and_cut_datagrams_change_nothing() {
    let (_, datagrams) = first_datagrams(3);
    let mut server = end(&Config::default(), Role::Server, 9);
    let before = format!("{:?}", server.path_stats().collect::<Vec<_>>());
    let now = Instant::from_millis(20);
    for datagram in &datagrams {
        for at in 0..datagram.len() {
            let mut forged = datagram.clone();
            forged[at] ^= 1;
            assert!(server.receive(now, box_addr(0), &mut forged).is_err());
            let mut cut = datagram[..at].to_vec();
            assert!(server.receive(now, box_addr(0), &mut cut).is_err());
        }
    }
    assert_eq!(
        format!("{:?}", server.path_stats().collect::<Vec<_>>()),
        before
    );
    assert!(server.poll_delivery().is_none());
    assert!(server.poll_transmit(now, &mut Vec::new()).is_none());
    assert!(server.next_timeout().is_none());
    // The genuine ones still count.
    for datagram in &datagrams {
        assert_eq!(
            server.receive(now, box_addr(0), &mut datagram.clone()),
            Ok(())
        );
    }
    for number in 0..3 {
        assert_eq!(server.poll_delivery(), Some(&packet(0, number, 200)[..]));
    }
}

#[test]
fn replayed_and_reflected_datagrams_change_nothing() {
    let (mut sender, datagrams) = first_datagrams(3);
    let mut server = end(&Config::default(), Role::Server, 9);
    let now = Instant::from_millis(20);
    for datagram in &datagrams {
        assert_eq!(
            server.receive(now, box_addr(0), &mut datagram.clone()),
            Ok(())
        );
        let replayed = server.receive(now, box_addr(5), &mut datagram.clone());
        assert_eq!(replayed, Err(DatagramError::Replayed));
        let reflected = sender.receive(now, server_addr(), &mut datagram.clone());
        assert_eq!(reflected, Err(DatagramError::Forged));
    }
    let mut buffer = Vec::new();
    while let Some(transmit) = server.poll_transmit(now, &mut buffer) {
        assert_eq!(transmit.remote, box_addr(0));
        buffer.clear();
    }
}

#[test]
fn an_address_gets_no_more_than_it_sent_until_it_is_proved() {
    let (_, datagrams) = first_datagrams(1);
    let mut server = end(&Config::default(), Role::Server, 9);
    let policy = FlowPolicy::default();
    let now = Instant::from_millis(20);
    let mut received = 0;
    for datagram in &datagrams {
        received += datagram.len();
        server
            .receive(now, box_addr(0), &mut datagram.clone())
            .unwrap();
    }
    for number in 0..100 {
        server.send(now, policy, &packet(0, number, 1000)).unwrap();
    }
    let mut sent = Vec::new();
    for _ in 0..100 {
        let Some(at) = server
            .next_timeout()
            .filter(|at| *at < Instant::from_millis(20_000))
        else {
            break;
        };
        while server.poll_transmit(at, &mut sent).is_some() {}
        server.handle_timeout(at);
        while server.poll_transmit(at, &mut sent).is_some() {}
    }
    assert!(
        sent.len() <= received,
        "{} bytes for {received}",
        sent.len()
    );
}

#[test]
fn the_server_follows_a_box_that_proves_its_address() {
    let mut net = Net::new(&Config::default(), &[Link::PLAIN], 10);
    net.pass(MS * 500);
    let (moved, now) = (box_addr(9), net.now);
    let mut datagram = Vec::new();
    net.ends[0]
        .send(now, FlowPolicy::default(), &packet(0, 0, 500))
        .unwrap();
    net.ends[0].poll_transmit(now, &mut datagram).unwrap();
    net.ends[1].receive(now, moved, &mut datagram).unwrap();
    // The challenge goes to the new address, and everything else to the old one until the box answers.
    let mut challenge = Vec::new();
    let transmit = net.ends[1].poll_transmit(now, &mut challenge).unwrap();
    assert_eq!(transmit.remote, moved);
    net.ends[1]
        .send(now, FlowPolicy::default(), &packet(0, 0, 500))
        .unwrap();
    let mut data = Vec::new();
    let transmit = net.ends[1].poll_transmit(now, &mut data).unwrap();
    assert_eq!(transmit.remote, box_addr(0));
    net.ends[0]
        .receive(now, server_addr(), &mut challenge)
        .unwrap();
    let mut response = Vec::new();
    net.ends[0].poll_transmit(now, &mut response).unwrap();
    net.ends[1].receive(now, moved, &mut response).unwrap();
    net.ends[1]
        .send(now, FlowPolicy::default(), &packet(0, 1, 500))
        .unwrap();
    data.clear();
    let mut last = None;
    while let Some(transmit) = net.ends[1].poll_transmit(now, &mut data) {
        last = Some(transmit.remote);
    }
    assert_eq!(last, Some(moved));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut sender = end(&Config::default(), Role::Box, 11);
    let policy = FlowPolicy::default();
    let mut send = |bytes: &[u8]| sender.send(Instant::ZERO, policy, bytes);
    assert_eq!(send(&[]), Err(SendError::Malformed));
    assert_eq!(send(&packet(0, 0, 100)[..99]), Err(SendError::Malformed));
    assert_eq!(send(&packet(0, 0, 1501)), Err(SendError::TooLarge));
    let mut results = (0..10_000).map(|number| send(&packet(0, number, 1500)));
    assert!(results.any(|result| result == Err(SendError::QueueFull)));
    let rng = Rng::for_component(0, 0);
    let mut keyless =
        braid_tunnel::Tunnel::new(Config::default(), Role::Box, crate::net::SESSION, rng);
    let refused = keyless.send(Instant::ZERO, policy, &packet(0, 0, 100));
    assert_eq!(refused, Err(SendError::NoKey));
    assert!(keyless.wants_keys());
}

#[test]
fn datagrams_of_other_sessions_are_malformed() {
    let (_, datagrams) = first_datagrams(1);
    let mut other = datagrams[0].clone();
    other[1] ^= 0x40;
    let mut server = end(&Config::default(), Role::Server, 9);
    assert!(Header::parse(&other).is_ok());
    let result = server.receive(Instant::ZERO, box_addr(0), &mut other);
    assert_eq!(result, Err(DatagramError::Malformed));
}

/// A flow that gets the number of another one starts to count anew, at both ends.
#[test]
fn each_flow_counts_its_own_packets() {
    let config = Config {
        max_flows: 2,
        ..Config::default()
    };
    let mut net = Net::new(&config, &[Link::PLAIN; 2], 5);
    net.pass(MS * 200);
    for flow in 0..3 {
        for number in 0..10 {
            net.send(0, 3, &packet(flow, number, 100)).unwrap();
            net.pass(MS);
        }
        net.pass(MS * 50);
    }
    for end in 0..2 {
        let flows = net.ends[end].flow_stats();
        assert_eq!(flows.len(), 2);
        for flow in &flows {
            let moved = [flow.bytes_sent, flow.bytes_received];
            assert_eq!(moved, if end == 0 { [1_000, 0] } else { [0, 1_000] });
            assert_eq!(flow.treatment.is_some(), end == 0);
            let of_paths = flow.paths.iter();
            let of_paths = of_paths.map(|path| path.bytes_sent + path.bytes_received);
            assert_eq!(of_paths.sum::<u64>(), 1_000);
        }
        let ports = flows.iter().map(|flow| flow.ports);
        assert_eq!(ports.collect::<BTreeSet<_>>().len(), 2);
    }
}
