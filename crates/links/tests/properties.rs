//! Properties of links, under random settings and random calls.

use std::time::Duration;

use braid_links::{CoDel, Link, Loss, QueueLimit, Rate, Reorder, Settings, Trace, Verdict};
use braid_wire::{Instant, Rng};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Send { after_us: u32, len: u32 },
    Poll { after_us: u32 },
    Set { after_us: u32, settings: Settings },
}

/// Generates the times of a trace that lasts 50 ms.
fn trace() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..50, 1..20).prop_map(|mut times| {
        times.push(50);
        times.sort_unstable();
        times
    })
}

fn parsed(times: &[u32]) -> Trace {
    let lines: Vec<_> = times.iter().map(u32::to_string).collect();
    Trace::parse(&lines.join("\n")).unwrap()
}

/// Generates all settings that keep packets in order.
fn settings() -> impl Strategy<Value = Settings> {
    (
        prop_oneof![
            Just(Rate::Unlimited),
            (1u64..100_000_000).prop_map(Rate::bits_per_second),
            trace().prop_map(|times| Rate::Trace(parsed(&times))),
        ],
        0u64..50_000,
        0u64..5_000,
        prop_oneof![
            (0u32..20).prop_map(QueueLimit::Packets),
            (0u64..30_000).prop_map(QueueLimit::Bytes)
        ],
        prop_oneof![
            Just(Loss::None),
            (0.0..1.0).prop_map(Loss::Uniform),
            (0.0..0.5, 1.0..9.0).prop_map(|(mean, burst)| Loss::bursts(mean, burst)),
        ],
        prop::option::of((1u64..5, 1u64..20)),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(rate, delay, jitter, queue, loss, codel, up)| Settings {
            rate,
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros(jitter),
            queue,
            codel: codel.map(|(target, interval)| CoDel {
                target: Duration::from_millis(target),
                interval: Duration::from_millis(interval),
                marks: false,
            }),
            loss,
            up,
            ..Settings::default()
        })
}

/// Generates settings with reordering, duplication and corruption.
fn unordered_settings() -> impl Strategy<Value = Settings> {
    let shares = (0.0..0.5, 0.0..0.5, 0.0..0.5);
    let drawn = (settings(), shares, 0u64..20_000, any::<bool>());
    drawn.prop_map(|(settings, shares, detour, jitter_reorders)| Settings {
        jitter_reorders,
        reorder: Reorder {
            share: shares.0,
            detour: Duration::from_micros(detour),
        },
        duplicate: shares.1,
        corrupt: shares.2,
        ..settings
    })
}

fn step(settings: impl Strategy<Value = Settings>) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..3000, 1u32..3000).prop_map(|(after_us, len)| Step::Send { after_us, len }),
        4 => (0u32..9000).prop_map(|after_us| Step::Poll { after_us }),
        1 => (0u32..3000, settings)
            .prop_map(|(after_us, settings)| Step::Set { after_us, settings }),
    ]
}

proptest! {
    /// Without reordering and duplication, each packet arrives at most once, in order, and not before it was sent.
    #[test]
    fn packets_arrive_once_and_in_order(
        first in settings(),
        steps in prop::collection::vec(step(settings()), 1..200),
        seed: u64,
    ) {
        let mut rng = Rng::for_component(seed, 0);
        let mut link = Link::new(first);
        let mut now = Instant::ZERO;
        let mut queued = Vec::new();
        let mut arrived = Vec::new();
        for step in &steps {
            let (Step::Send { after_us, .. }
            | Step::Poll { after_us }
            | Step::Set { after_us, .. }) = step;
            now += Duration::from_micros((*after_us).into());
            match step {
                Step::Send { len, .. } => {
                    let packet = (queued.len(), now);
                    if link.enqueue(now, packet, *len, &mut rng) == Verdict::Queued {
                        queued.push(packet);
                    }
                }
                Step::Set { settings, .. } => link.set(now, settings.clone()),
                Step::Poll { .. } => {}
            }
            while let Some(delivery) = link.poll_deliver(now) {
                prop_assert!(delivery.at <= now && delivery.at >= delivery.packet.1);
                arrived.push((delivery.packet.0, delivery.at));
            }
            if let Some(next) = link.next_event() {
                prop_assert!(next > now);
            }
        }
        // The numbers of the packets rise strictly, so they are in order and none arrives twice.
        prop_assert!(arrived.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
        let c = link.counters();
        let held = c.offered.packets
            - c.delivered.packets
            - c.dropped_queue.packets
            - c.dropped_codel.packets
            - c.dropped_loss.packets
            - c.dropped_down.packets;
        prop_assert_eq!(c.delivered.packets as usize, arrived.len());
        prop_assert_eq!(held == 0, link.next_event().is_none());
    }

    /// The counters account for every packet and every copy.
    #[test]
    fn every_packet_is_delivered_or_dropped(
        first in unordered_settings(),
        steps in prop::collection::vec(step(unordered_settings()), 1..200),
        seed: u64,
    ) {
        let mut rng = Rng::for_component(seed, 0);
        let mut link = Link::new(first);
        let mut now = Instant::ZERO;
        let mut arrivals = 0u64;
        let mut last = Instant::ZERO;
        let mut receive = |link: &mut Link<()>, until: Instant| {
            while let Some(at) = link.next_event().filter(|at| *at <= until) {
                while let Some(delivery) = link.poll_deliver(at) {
                    // The driver polls at each event, so no delivery is late.
                    assert!(delivery.at == at && at >= last);
                    last = at;
                    arrivals += 1;
                }
            }
        };
        let mut bytes = 0;
        for step in &steps {
            let (Step::Send { after_us, .. }
            | Step::Poll { after_us }
            | Step::Set { after_us, .. }) = step;
            now += Duration::from_micros((*after_us).into());
            receive(&mut link, now);
            match step {
                Step::Send { len, .. } => {
                    link.enqueue(now, (), *len, &mut rng);
                    bytes += u64::from(*len);
                }
                Step::Set { settings, .. } => link.set(now, settings.clone()),
                Step::Poll { .. } => {}
            }
        }
        receive(&mut link, Instant::FAR_FUTURE);
        prop_assert_eq!(link.next_event(), None);
        let c = link.counters();
        prop_assert_eq!(c.offered.bytes, bytes);
        let drops = [c.dropped_queue, c.dropped_codel, c.dropped_loss, c.dropped_down];
        let dropped: u64 = drops.iter().map(|tally| tally.packets).sum();
        prop_assert_eq!(c.offered.packets + c.duplicated.packets, c.delivered.packets + dropped);
        let dropped: u64 = drops.iter().map(|tally| tally.bytes).sum();
        prop_assert_eq!(c.offered.bytes + c.duplicated.bytes, c.delivered.bytes + dropped);
        prop_assert_eq!(c.delivered.packets, arrivals);
    }

    #[test]
    fn a_busy_line_uses_every_byte_of_a_trace(
        times in trace(),
        lens in prop::collection::vec(1u32..4000, 1..100),
    ) {
        let mut link = Link::new(Settings {
            rate: Rate::Trace(parsed(&times)),
            ..Settings::default()
        });
        let mut rng = Rng::for_component(0, 0);
        for len in &lens {
            link.enqueue(Instant::ZERO, (), *len, &mut rng);
        }
        let mut bytes = 0;
        for len in &lens {
            bytes += *len as usize;
            // The opportunity with the last byte, in a trace that repeats each 50 ms.
            let nth = bytes.div_ceil(1500) - 1;
            let ms = nth / times.len() * 50 + times[nth % times.len()] as usize;
            let at = link.next_event().unwrap();
            prop_assert_eq!(at, Instant::from_millis(ms as u64));
            prop_assert!(link.poll_deliver(at).is_some());
        }
    }

    #[test]
    fn a_busy_line_is_exactly_at_its_rate(
        rate in 1_000u64..10_000_000_000,
        lens in prop::collection::vec(1u32..65_536, 1..100),
    ) {
        let mut link = Link::new(Settings {
            rate: Rate::bits_per_second(rate),
            ..Settings::default()
        });
        let mut rng = Rng::for_component(0, 0);
        for len in &lens {
            link.enqueue(Instant::ZERO, (), *len, &mut rng);
        }
        let mut bits = 0u128;
        for len in &lens {
            bits += u128::from(*len) * 8;
            let at = link.next_event().unwrap();
            prop_assert_eq!(u128::from(at.as_nanos()), bits * 1_000_000_000 / u128::from(rate));
            prop_assert!(link.poll_deliver(at).is_some());
        }
    }
}
