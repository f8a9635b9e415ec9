//! Traces, CoDel, loss in bursts, reordering, duplication and corruption, in virtual time.

use std::time::Duration;

use braid_links::{
    Change, CoDel, DropCause, GilbertElliott, Link, Loss, QueueLimit, Rate, Reorder, Schedule,
    Settings, Trace, Verdict, flip_bit,
};
use braid_wire::{Instant, Rng};

const MS: fn(u64) -> Instant = Instant::from_millis;

fn rng() -> Rng {
    Rng::for_component(7, 0)
}

fn traced(text: &str) -> Settings {
    Settings {
        rate: Rate::Trace(Trace::parse(text).unwrap()),
        ..Settings::default()
    }
}

/// Returns settings with a rate of 8 Mbit/s, at which 1000 bytes take 1 ms, and a queue that only CoDel bounds.
fn codel() -> Settings {
    Settings {
        rate: Rate::bits_per_second(8_000_000),
        queue: QueueLimit::Packets(100_000),
        codel: Some(CoDel::default()),
        ..Settings::default()
    }
}

fn send<P: Clone>(link: &mut Link<P>, at: Instant, packet: P, len: u32) {
    let verdict = link.enqueue(at, packet, len, &mut rng());
    assert_eq!(verdict, Verdict::Queued);
}

/// Polls the link at each of its events, and returns the packets with their arrival times in milliseconds.
fn drain<P>(link: &mut Link<P>) -> Vec<(u64, P)> {
    let mut out = Vec::new();
    while let Some(at) = link.next_event() {
        while let Some(delivery) = link.poll_deliver(at) {
            assert_eq!(delivery.at.as_nanos() % 1_000_000, 0);
            out.push((delivery.at.as_millis(), delivery.packet));
        }
    }
    out
}

fn times<P>(link: &mut Link<P>) -> Vec<u64> {
    drain(link).into_iter().map(|(at, _)| at).collect()
}

#[test]
fn a_trace_delivers_a_full_packet_at_each_opportunity_and_repeats() {
    let mut link = Link::new(traced("2\n2\n5\n10\n"));
    (0..10).for_each(|n| send(&mut link, MS(0), n, 1500));
    assert_eq!(times(&mut link), [2, 2, 5, 10, 12, 12, 15, 20, 22, 22]);
}

#[test]
fn an_opportunity_carries_bytes_not_packets() {
    let mut link = Link::new(traced("1\n2\n3\n4\n"));
    for (n, len) in [500, 1000, 1, 3000, 1499].into_iter().enumerate() {
        send(&mut link, MS(0), n, len);
    }
    // At 1 ms: 500 + 1000 bytes. At 2 ms: 1, and 1499 of the 3000. At 3 ms: 1500 of them. At 4 ms: the last one,
    // and 1499.
    assert_eq!(times(&mut link), [1, 1, 2, 4, 4]);
}

#[test]
fn an_unused_opportunity_is_lost() {
    let mut link = Link::new(traced("1\n2\n3\n10\n"));
    send(&mut link, Instant::from_micros(1_001), 0, 100);
    send(&mut link, Instant::from_micros(2_500), 1, 1500);
    // The rest of the opportunity at 2 ms is lost before the second packet, sent at 2.5 ms.
    send(&mut link, MS(3), 2, 1500);
    assert_eq!(times(&mut link), [2, 3, 10]);
    // A packet sent at the time of an opportunity can use it, even at the end of a round (20 ms).
    send(&mut link, MS(20), 3, 1500);
    send(&mut link, MS(20), 4, 1500);
    assert_eq!(times(&mut link), [20, 21]);
}

/// Eight steps of 64 are enough to see both halves of the range, and a repetition is as long as all steps.
#[test]
fn a_swinging_rate_stays_near_its_mean_and_depends_on_its_seed() {
    let swing = |seed| Trace::swinging(12_000_000, 0.5, Duration::from_millis(100), seed).unwrap();
    let trace = swing(7);
    assert_eq!(trace, swing(7));
    assert_ne!(trace, swing(8));
    // 12 Mbit/s are one opportunity each millisecond. The mean of 64 draws with a deviation of 29 % is off by 4 %.
    assert!((trace.mean_rate() / 12e6 - 1.0).abs() < 0.15, "{trace:?}");
    assert!(trace.duration().abs_diff(Duration::from_millis(6_400)) <= Duration::from_millis(2));
    let constant = Trace::swinging(12_000_000, 0.0, Duration::from_millis(100), 7).unwrap();
    assert_eq!(
        (constant.opportunities(), constant.mean_rate()),
        (6_400, 12e6)
    );
}

#[test]
fn a_trace_starts_when_the_link_begins_to_use_it() {
    let trace = traced("3\n10\n");
    let mut link = Link::starting_at(MS(1000), trace.clone());
    send(&mut link, MS(1001), 0, 1500);
    send(&mut link, MS(1001), 1, 1500);
    assert_eq!(times(&mut link), [1003, 1010]);
    // Settings with the same trace do not restart it: its opportunity is at 1013 ms, and the delay 100 ms.
    let farther = Settings {
        delay: Duration::from_millis(100),
        ..trace.clone()
    };
    link.set(MS(1012), farther);
    send(&mut link, MS(1012), 2, 1500);
    assert_eq!(times(&mut link), [1113]);
    // The trace goes on while the link is down: the opportunity at 1203 ms is lost.
    link.set(
        MS(1200),
        Settings {
            up: false,
            ..trace.clone()
        },
    );
    link.set(MS(1205), trace);
    send(&mut link, MS(1205), 3, 1500);
    assert_eq!(times(&mut link), [1210]);
}

#[test]
fn the_rest_of_a_packet_changes_between_trace_and_constant_rate() {
    let fixed = Settings {
        rate: Rate::bits_per_second(12_000_000),
        ..Settings::default()
    };
    // Half of the packet has left by 2 ms. At 12 Mbit/s, which is 1500 bytes in a millisecond, the rest takes 1
    // ms.
    let mut link = Link::new(traced("1\n9\n10\n"));
    send(&mut link, MS(0), 0, 3000);
    send(&mut link, MS(0), 1, 1500);
    link.set(MS(2), fixed.clone());
    assert_eq!(times(&mut link), [3, 4]);
    // From the constant rate to a trace: at 101 ms, 1500 of 3000 bytes remain. The trace starts then, with
    // opportunities after 8 and 9 ms.
    send(&mut link, MS(100), 2, 3000);
    send(&mut link, MS(100), 3, 1500);
    link.set(MS(101), traced("8\n9\n10\n"));
    assert_eq!(times(&mut link), [109, 110]);
}

#[test]
fn the_error_names_the_line_and_the_expected_text() {
    let refused = |text: &str| Trace::parse(text).unwrap_err().to_string();
    let time = "where a trace has a time in whole milliseconds from 0 to 4294967295";
    assert_eq!(refused("1\n2\nx3\n4"), format!("line 3: `x3` {time}"));
    assert_eq!(refused("1\n\n4"), format!("line 2: `` {time}"));
    assert_eq!(refused("-1"), format!("line 1: `-1` {time}"));
    assert_eq!(
        refused("4294967296"),
        format!("line 1: `4294967296` {time}")
    );
    assert_eq!(
        refused("1\n7\n6\n"),
        "line 3: `6` where a trace has a time not before 7, that of the previous line"
    );
    assert_eq!(
        refused(" \n"),
        "line 1: `` where a trace has a time in milliseconds on each line"
    );
    assert_eq!(
        refused("0\n0\n"),
        "line 2: `0` where a trace has a last time after 0, the length of the trace"
    );
    let cut = "y".repeat(40);
    assert_eq!(refused(&"y".repeat(99)), format!("line 1: `{cut}` {time}"));
    let long = "1\n".repeat(Trace::MAX_OPPORTUNITIES + 1);
    let too_many = format!("line {}: ", Trace::MAX_OPPORTUNITIES + 1);
    assert!(refused(&long).starts_with(&too_many));
    assert!(Trace::parse(&long[2..]).is_ok());
}

#[test]
fn a_trace_reports_its_length_and_accepts_all_line_ends() {
    let trace = Trace::parse("0\r\n5\r\n 10 \r\n\r\n").unwrap();
    assert_eq!(trace.opportunities(), 3);
    assert_eq!(trace.duration(), Duration::from_millis(10));
    assert_eq!(trace.mean_rate(), 3.0 * 12_000.0 / 0.01);
}

#[test]
fn codel_keeps_the_delay_of_a_greedy_sender_near_its_target() {
    // The sender offers 1.05 times the rate of the line, a packet each 0.952 ms, and does not react to losses.
    // (With a larger excess CoDel takes longer: at 1.25 times the rate the delay keeps swinging by 0.3 s.)
    let mean_delay = |settings: Settings| {
        let mut link = Link::new(settings);
        let mut rng = rng();
        let (mut sum, mut n) = (0, 0);
        for sent in 0..42_000 {
            let now = Instant::from_nanos(952_381 * sent);
            while let Some(delivery) = link.poll_deliver(now) {
                if delivery.packet > MS(20_000) {
                    sum += delivery.at.saturating_since(delivery.packet).as_micros();
                    n += 1;
                }
            }
            link.enqueue(now, now, 1000, &mut rng);
        }
        // The second half, 20 s, has time for 20,000 packets.
        assert!(n > 18_900, "the line idles: {n} packets in 20 s");
        (sum / n, link.counters())
    };
    let (with, counters) = mean_delay(codel());
    assert!((5_000..12_000).contains(&with), "{with} µs");
    assert_eq!(counters.dropped_queue.packets, 0);
    let (without, counters) = mean_delay(Settings {
        codel: None,
        ..codel()
    });
    assert!(without > 1_000_000, "{without} µs");
    assert_eq!(counters.dropped_codel.packets, 0);
}

#[test]
fn codel_drops_nothing_of_a_burst_shorter_than_its_interval() {
    // A burst of 90 packets takes 90 ms, less than the interval of 100 ms.
    let mut link = Link::new(codel());
    for burst in 0..20 {
        (0..90).for_each(|n| send(&mut link, MS(burst * 200), n, 1000));
        assert_eq!(drain(&mut link).len(), 90);
    }
}

#[test]
fn codel_drops_after_an_interval_and_then_faster() {
    let mut link = Link::new(codel());
    let mut rng = rng();
    (0..600).for_each(|n| send(&mut link, MS(0), n, 1000));
    let mut drops = Vec::new();
    for ms in 1..=600 {
        link.poll_deliver(MS(ms));
        // One packet enters for each that leaves, so the delay stays the same.
        link.enqueue(MS(ms), 0, 1000, &mut rng);
        if link.counters().dropped_codel.packets > drops.len() as u64 {
            drops.push(ms);
        }
    }
    // The delay is above the target (5 ms) from 5 ms on, so the first drop is an interval (100 ms) later. The
    // drops are then 100 / sqrt(n) ms apart: 100, 70.7, 57.7, 50, rounded up to the next end of a packet.
    assert_eq!(drops[..5], [105, 205, 276, 334, 384]);
}

/// Returns the share of lost packets and the lengths of all bursts of losses.
fn bursts(loss: Loss, packets: u64) -> (f64, Vec<f64>) {
    let mut link = Link::new(Settings {
        loss,
        ..Settings::default()
    });
    let mut rng = rng();
    let (mut lost, mut run, mut runs) = (0, 0.0, Vec::new());
    for n in 0..packets {
        if link.enqueue(MS(n), (), 1000, &mut rng) == Verdict::Dropped(DropCause::Loss) {
            lost += 1;
            run += 1.0;
        } else if run > 0.0 {
            runs.push(run);
            run = 0.0;
        }
        while link.poll_deliver(MS(n)).is_some() {}
    }
    (lost as f64 / packets as f64, runs)
}

#[test]
fn bursts_of_loss_have_their_mean_share_and_length_within_three_sigma() {
    let (mean, burst, packets) = (0.02, 5.0, 400_000);
    let (share, runs) = bursts(Loss::bursts(mean, burst), packets);
    // In a Markov chain with two states, neighbours have the correlation c = 1 - to_bad - to_good. The variance of
    // the share is (1 + c) / (1 - c) times that of independent draws.
    let to_good = 1.0 / burst;
    let c = 1.0 - to_good - to_good * mean / (1.0 - mean);
    let variance = mean * (1.0 - mean) * (1.0 + c) / (1.0 - c) / packets as f64;
    let off = (share - mean) / variance.sqrt();
    assert!(off.abs() < 3.0, "{share} lost, {off} sigma");
    // The lengths are distributed geometrically, with the variance (1 - to_good) / to_good^2.
    let length = runs.iter().sum::<f64>() / runs.len() as f64;
    let sigma = ((1.0 - to_good) / to_good.powi(2) / runs.len() as f64).sqrt();
    let off = (length - burst) / sigma;
    assert!(off.abs() < 3.0, "bursts of {length}, {off} sigma");
}

#[test]
fn elliotts_model_loses_in_both_states() {
    let loss = Loss::GilbertElliott(GilbertElliott {
        to_bad: 0.01,
        to_good: 0.04,
        loss_good: 0.01,
        loss_bad: 0.5,
    });
    // The link is bad for 0.01 / (0.01 + 0.04), a fifth of the packets: 0.8 x 0.01 + 0.2 x 0.5 = 0.108.
    let (share, runs) = bursts(loss, 400_000);
    assert!((share - 0.108).abs() < 0.006, "{share}");
    assert!(runs.iter().any(|run| *run > 4.0));
    assert_eq!(bursts(Loss::bursts(0.0, 5.0), 10_000).0, 0.0);
}

#[test]
fn later_packets_overtake_a_packet_on_a_detour() {
    let settings = Settings {
        rate: Rate::bits_per_second(8_000_000),
        delay: Duration::from_millis(10),
        ..Settings::default()
    };
    let detour = Settings {
        reorder: Reorder {
            share: 1.0,
            detour: Duration::from_millis(3),
        },
        ..settings.clone()
    };
    let mut link = Link::new(detour);
    send(&mut link, MS(0), 0, 1000);
    link.set(MS(0), settings);
    (1..6).for_each(|n| send(&mut link, MS(0), n, 1000));
    // A packet after the one on a detour may arrive first, which is known only once the line is free, at 1 ms.
    assert_eq!(link.next_event(), Some(MS(1)));
    // Packet 0 arrives after 1 + 10 + 3 ms, at the same time as packet 3.
    let expected = [(12, 1), (13, 2), (14, 3), (14, 0), (15, 4), (16, 5)];
    assert_eq!(drain(&mut link), expected);
    assert_eq!(link.counters().detoured.packets, 1);
}

#[test]
fn the_shares_of_reordering_duplication_and_corruption_are_within_three_sigma() {
    let mut link = Link::new(Settings {
        rate: Rate::bits_per_second(8_000_000),
        reorder: Reorder {
            share: 0.05,
            detour: Duration::from_millis(4),
        },
        duplicate: 0.02,
        corrupt: 0.01,
        ..Settings::default()
    });
    let mut rng = rng();
    let packets = 50_000u64;
    let (mut overtaken, mut highest, mut copies, mut flips) = (0, 0, 0, 0);
    for n in 1..=packets {
        let now = Instant::from_micros(1100 * n);
        link.enqueue(now, n, 1000, &mut rng);
        while let Some(delivery) = link.poll_deliver(now) {
            overtaken += u64::from(delivery.packet < highest);
            copies += u64::from(delivery.packet == highest);
            highest = highest.max(delivery.packet);
            flips += u64::from(delivery.flip.is_some());
            assert!(delivery.flip.is_none_or(|bit| bit < 8000));
        }
    }
    let near = |count: u64, share: f64| {
        let n = packets as f64;
        let sigma = (n * share * (1.0 - share)).sqrt();
        let off = (count as f64 - n * share) / sigma;
        assert!(off.abs() < 3.0, "{count} of {packets}, {off} sigma");
    };
    let counters = link.counters();
    near(counters.detoured.packets, 0.05 * 1.02);
    near(counters.duplicated.packets, 0.02);
    near(counters.corrupted.packets, 0.01 * 1.02);
    assert_eq!(counters.corrupted.packets, flips);
    // The count of copies misses those where the copy or its original took the detour. It misses no detour,
    // because packets are 1.1 ms apart and the detour is 4 ms. Copies take detours too, hence 1.02.
    assert!(copies.abs_diff(1000) < 200, "{copies}");
    near(overtaken, 0.05 * 1.02);
}

#[test]
fn a_copy_follows_its_original_over_the_line() {
    let mut link = Link::new(Settings {
        rate: Rate::bits_per_second(8_000_000),
        queue: QueueLimit::Packets(2),
        duplicate: 1.0,
        ..Settings::default()
    });
    let mut rng = rng();
    let verdicts = [0, 1, 2].map(|n| link.enqueue(MS(0), n, 1000, &mut rng));
    // Packet 0 is on the line; its copy and packet 1 fill the queue. The copy of packet 1, packet 2 and its copy
    // are dropped.
    let (queued, dropped) = (Verdict::Queued, Verdict::Dropped(DropCause::Queue));
    assert_eq!(verdicts, [queued, queued, dropped]);
    assert_eq!(drain(&mut link), [(1, 0), (2, 0), (3, 1)]);
    let counters = link.counters();
    assert_eq!(counters.duplicated.packets, 3);
    assert_eq!(counters.dropped_queue.packets, 3);
}

#[test]
fn only_existing_bits_are_flipped() {
    let mut packet = [0, 0xff];
    flip_bit(&mut packet, 0);
    flip_bit(&mut packet, 15);
    assert_eq!(packet, [0x80, 0xfe]);
    flip_bit(&mut packet, 16);
    assert_eq!(packet, [0x80, 0xfe]);
}

#[test]
fn disabled_features_draw_no_random_numbers() {
    let mut link = Link::new(traced("1\n"));
    let mut used = rng();
    for n in 0..100 {
        link.enqueue(MS(n), (), 1000, &mut used);
    }
    assert_eq!(used.u64(), rng().u64());
}

#[test]
fn a_schedule_gives_its_changes_in_order_of_time() {
    let change = |ms, delay| Change {
        at: Duration::from_millis(ms),
        settings: Settings {
            delay: Duration::from_millis(delay),
            ..Settings::default()
        },
    };
    let mut schedule = Schedule::new([change(30, 5), change(10, 2), change(10, 3)]);
    let mut link = Link::new(Settings::default());
    let mut arrived = Vec::new();
    for ms in [0, 9, 10, 29, 40] {
        while let Some(change) = schedule.poll(Duration::from_millis(ms)) {
            link.set(Instant::ZERO + change.at, change.settings);
        }
        send(&mut link, MS(ms), (), 100);
        arrived.extend(times(&mut link));
    }
    assert_eq!(arrived, [0, 9, 13, 32, 45]);
    assert_eq!(schedule.next_change(), None);
}
