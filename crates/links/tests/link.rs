//! Queue, rate, delay, jitter and loss of links in virtual time, compared with literal values and formulas.

use std::time::Duration;

use braid_links::{Counters, DropCause, Link, Loss, QueueLimit, Rate, Settings, Tally, Verdict};
use braid_wire::{Instant, Rng};

const MS: fn(u64) -> Instant = Instant::from_millis;

fn rng() -> Rng {
    Rng::for_component(7, 0)
}

/// Returns settings with a rate of 8 Mbit/s, at which 1000 bytes take 1 ms.
fn one_ms_a_packet() -> Settings {
    Settings {
        rate: Rate::bits_per_second(8_000_000),
        ..Settings::default()
    }
}

/// Polls the link at each of its events until `until`, and returns the packets with their arrival times.
fn drain<P>(link: &mut Link<P>, until: Instant) -> Vec<(Instant, P)> {
    let mut out = Vec::new();
    while let Some(at) = link.next_event().filter(|at| *at <= until) {
        while let Some(delivery) = link.poll_deliver(at) {
            assert_eq!(delivery.at, at);
            out.push((at, delivery.packet));
        }
    }
    out
}

#[test]
fn packets_follow_each_other_at_the_rate_and_arrive_after_the_delay() {
    let settings = Settings {
        delay: Duration::from_millis(10),
        ..one_ms_a_packet()
    };
    let mut link = Link::new(settings);
    for n in 0..3 {
        assert_eq!(
            link.enqueue(Instant::ZERO, n, 1000, &mut rng()),
            Verdict::Queued
        );
    }
    assert_eq!(link.poll_deliver(Instant::from_micros(10_999)), None);
    assert_eq!(
        drain(&mut link, MS(1000)),
        [(MS(11), 0), (MS(12), 1), (MS(13), 2)]
    );
    // After a pause the line starts when the packet arrives, not when the line became free.
    link.enqueue(MS(100), 3, 500, &mut rng());
    assert_eq!(
        drain(&mut link, MS(1000)),
        [(Instant::from_micros(110_500), 3)]
    );
    assert_eq!(link.next_event(), None);
}

#[test]
fn a_rate_that_does_not_divide_the_nanosecond_does_not_drift() {
    // 1 byte at 3 Gbit/s takes 8/3 ns, so 3 million bytes take exactly 8 ms.
    let mut link = Link::new(Settings {
        rate: Rate::bits_per_second(3_000_000_000),
        queue: QueueLimit::Packets(100),
        ..Settings::default()
    });
    let mut last = Instant::ZERO;
    let mut rng = rng();
    for _ in 0..30 {
        link.enqueue(Instant::ZERO, (), 1, &mut rng);
    }
    for n in 1..=3_000_000u64 {
        last = link.next_event().unwrap();
        assert!(link.poll_deliver(last).is_some());
        assert_eq!(last.as_nanos(), n * 8 / 3);
        if n <= 3_000_000 - 30 {
            assert_eq!(link.enqueue(last, (), 1, &mut rng), Verdict::Queued);
        }
    }
    assert_eq!(last, MS(8));
}

#[test]
fn the_queue_is_bounded_in_packets_without_the_one_on_the_line() {
    let mut link = Link::new(Settings {
        queue: QueueLimit::Packets(2),
        ..one_ms_a_packet()
    });
    let verdicts: Vec<_> = (0..5)
        .map(|n| link.enqueue(Instant::ZERO, n, 1000, &mut rng()))
        .collect();
    let (queued, dropped) = (Verdict::Queued, Verdict::Dropped(DropCause::Queue));
    assert_eq!(verdicts, [queued, queued, queued, dropped, dropped]);
    // At 1 ms exactly the line takes the next packet, so there is room again.
    assert_eq!(link.enqueue(MS(1), 5, 1000, &mut rng()), Verdict::Queued);
    assert_eq!(
        link.enqueue(MS(1), 6, 1000, &mut rng()),
        Verdict::Dropped(DropCause::Queue)
    );
    let order: Vec<_> = drain(&mut link, MS(100))
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_eq!(order, [0, 1, 2, 5]);
    assert_eq!(
        link.counters().queue_max,
        Tally {
            packets: 2,
            bytes: 2000
        }
    );
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let mut link = Link::new(Settings {
        queue: QueueLimit::Bytes(1500),
        ..one_ms_a_packet()
    });
    let verdicts: Vec<_> = [1000, 1000, 600, 500, 1]
        .map(|len| link.enqueue(Instant::ZERO, (), len, &mut rng()))
        .to_vec();
    let (queued, dropped) = (Verdict::Queued, Verdict::Dropped(DropCause::Queue));
    assert_eq!(verdicts, [queued, queued, dropped, queued, dropped]);
    assert_eq!(
        link.counters().queue,
        Tally {
            packets: 2,
            bytes: 1500
        }
    );
    assert_eq!(
        link.counters().dropped_queue,
        Tally {
            packets: 2,
            bytes: 601
        }
    );
}

#[test]
fn a_link_that_goes_down_drops_all_packets() {
    let up = Settings {
        delay: Duration::from_millis(10),
        ..one_ms_a_packet()
    };
    let mut link = Link::new(up.clone());
    for n in 0..5 {
        link.enqueue(Instant::ZERO, n, 1000, &mut rng());
    }
    // At 2.5 ms two packets are in flight, one is on the line, and two are in the queue.
    link.set(
        Instant::from_micros(2500),
        Settings {
            up: false,
            ..up.clone()
        },
    );
    assert_eq!(link.next_event(), None);
    assert_eq!(
        link.enqueue(MS(3), 5, 1000, &mut rng()),
        Verdict::Dropped(DropCause::Down)
    );
    assert_eq!(
        link.counters().dropped_down,
        Tally {
            packets: 6,
            bytes: 6000
        }
    );
    link.set(MS(4), up);
    assert_eq!(link.enqueue(MS(4), 6, 1000, &mut rng()), Verdict::Queued);
    assert_eq!(drain(&mut link, MS(100)), [(MS(15), 6)]);
}

#[test]
fn a_new_rate_applies_to_the_rest_of_the_packet_on_the_line() {
    let mut link = Link::new(one_ms_a_packet());
    for n in 0..2 {
        link.enqueue(Instant::ZERO, n, 1000, &mut rng());
    }
    let slower = Rate::bits_per_second(800_000);
    link.set(
        Instant::from_micros(500),
        Settings {
            rate: slower,
            ..one_ms_a_packet()
        },
    );
    // At a tenth of the rate, the remaining half of the packet takes 5 ms, and the next packet 10 ms.
    let expected = [
        (Instant::from_micros(5_500), 0),
        (Instant::from_micros(15_500), 1),
    ];
    assert_eq!(drain(&mut link, MS(100)), expected);

    link.enqueue(MS(100), 2, 1000, &mut rng());
    link.set(MS(101), Settings::default());
    assert_eq!(drain(&mut link, MS(101)), [(MS(101), 2)]);
}

#[test]
fn a_shorter_delay_does_not_let_packets_overtake() {
    let far = Settings {
        delay: Duration::from_millis(50),
        ..Settings::default()
    };
    let mut link = Link::new(far.clone());
    link.enqueue(MS(0), 0, 1000, &mut rng());
    link.set(
        MS(1),
        Settings {
            delay: Duration::from_millis(1),
            ..far
        },
    );
    link.enqueue(MS(2), 1, 1000, &mut rng());
    assert_eq!(drain(&mut link, MS(100)), [(MS(50), 0), (MS(50), 1)]);
}

#[test]
fn jitter_lengthens_the_delay_by_up_to_its_value() {
    let settings = Settings {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(4),
        ..Settings::default()
    };
    let mut link = Link::new(settings);
    let mut rng = rng();
    let mut sum = 0;
    for n in 0..10_000u64 {
        // The packets are so far apart that none delays the next.
        link.enqueue(MS(n * 100), (), 100, &mut rng);
        let at = link.next_event().unwrap();
        let delay = at.saturating_since(MS(n * 100));
        assert!((Duration::from_millis(10)..=Duration::from_millis(14)).contains(&delay));
        sum += delay.as_nanos() as u64;
        assert!(link.poll_deliver(at).is_some());
    }
    // The delay is uniform over 4 ms, with a standard deviation of 4 / sqrt(12) ms. For the mean of 10,000 packets
    // it is a hundredth of that, 11.5 µs.
    let mean = sum / 10_000;
    assert!(
        mean.abs_diff(12_000_000) < 3 * 11_547,
        "mean delay {mean} ns"
    );
}

/// The second of two packets with uniform delays, a nanosecond apart, overtakes the first half of the time.
#[test]
fn jitter_that_reorders_lets_packets_overtake() {
    let settings = Settings {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(4),
        jitter_reorders: true,
        ..Settings::default()
    };
    let mut link = Link::new(settings);
    let mut rng = rng();
    let pairs = 10_000u64;
    let mut overtaken = 0;
    for pair in 0..pairs {
        let start = MS(pair * 100);
        link.enqueue(start, 0, 100, &mut rng);
        link.enqueue(start + Duration::from_nanos(1), 1, 100, &mut rng);
        let arrivals = drain(&mut link, MS(pair * 100 + 50));
        overtaken += u64::from(arrivals[0].1 == 1);
        for (at, _) in arrivals {
            let delay = at.saturating_since(start);
            assert!((Duration::from_millis(10)..=Duration::from_micros(14_001)).contains(&delay));
        }
    }
    // The standard deviation of the count is sqrt(10,000 / 4) = 50.
    assert!(overtaken.abs_diff(pairs / 2) < 3 * 50, "{overtaken}");
}

#[test]
fn losses_are_within_three_sigma_and_counted() {
    let mut link = Link::new(Settings {
        loss: Loss::Uniform(0.01),
        ..Settings::default()
    });
    let mut rng = rng();
    let n = 100_000u64;
    let lost = (0..n)
        .filter(|i| link.enqueue(MS(*i), (), 1000, &mut rng) == Verdict::Dropped(DropCause::Loss))
        .count() as u64;
    // The standard deviation is sqrt(100,000 x 0.01 x 0.99) = 31.5; the bound is 3 of them.
    assert!(lost.abs_diff(1000) <= 94, "{lost} lost");
    while link.poll_deliver(MS(n)).is_some() {}
    let Counters {
        offered,
        delivered,
        dropped_loss,
        ..
    } = link.counters();
    assert_eq!((offered.packets, dropped_loss.packets), (n, lost));
    assert_eq!(delivered.packets, n - lost);
}

#[test]
fn poisson_arrivals_wait_as_in_an_m_d_1_queue() {
    let mut link = Link::new(Settings {
        queue: QueueLimit::Packets(100_000),
        ..one_ms_a_packet()
    });
    let mut rng = rng();
    let load = 0.7;
    let (mut at, mut waited, n) = (0.0, 0u64, 200_000u64);
    for _ in 0..n {
        // Exponential gaps with a mean of 1 / 0.7 ms, in nanoseconds.
        at += -(1.0 - rng.unit()).ln() * 1e6 / load;
        let now = Instant::from_nanos(at as u64);
        while let Some(delivery) = link.poll_deliver(now) {
            waited += delivery.at.saturating_since(delivery.packet).as_nanos() as u64 - 1_000_000;
        }
        link.enqueue(now, now, 1000, &mut rng);
    }
    // Pollaczek-Khinchine formula for the mean wait: rho / (2 (1 - rho)) service times of 1 ms.
    let (mean, expected) = (waited as f64 / n as f64 / 1e6, load / (2.0 * (1.0 - load)));
    assert!(
        (mean / expected - 1.0).abs() < 0.03,
        "waited {mean} ms, expected {expected} ms"
    );
}

#[test]
fn the_number_of_packets_in_an_unlimited_link_is_bounded() {
    let mut link = Link::new(Settings {
        delay: Duration::from_secs(1),
        ..Settings::default()
    });
    let mut rng = rng();
    let queued = (0..braid_links::MAX_LINK_PACKETS + 10)
        .filter(|_| link.enqueue(Instant::ZERO, (), 1, &mut rng) == Verdict::Queued)
        .count();
    assert!(
        queued <= braid_links::MAX_LINK_PACKETS && queued > braid_links::MAX_LINK_PACKETS - 10,
        "{queued}"
    );
}

/// The token bucket holds 3 packets. A burst of 3 passes at once; later packets wait for tokens, one packet in
/// each millisecond. Tokens accumulate while the link is idle, up to the depth of the bucket.
#[test]
fn a_burst_passes_at_once_after_a_pause() {
    let settings = Settings {
        burst: 3_000,
        ..one_ms_a_packet()
    };
    let mut link = Link::new(settings);
    let mut burst = |at: u64, packets: u64| -> Vec<u64> {
        for n in 0..packets {
            link.enqueue(MS(at), n, 1000, &mut rng());
        }
        let arrived = drain(&mut link, MS(at + 1_000));
        arrived
            .iter()
            .map(|(when, _)| when.as_millis() - at)
            .collect()
    };
    assert_eq!(burst(100, 6), [0, 0, 0, 1, 2, 3]);
    // The bucket was empty at 103 ms, so at 105 ms it has tokens for two packets.
    assert_eq!(burst(105, 4), [0, 0, 1, 2]);
    assert_eq!(burst(1_000, 5), [0, 0, 0, 1, 2]);
}
