//! What holds for every link, whatever its settings and whatever is done to it.

use std::time::Duration;

use braid_links::{Link, Loss, QueueLimit, Rate, Settings, Verdict};
use braid_wire::{Instant, Rng};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Send { after_us: u32, len: u32 },
    Poll { after_us: u32 },
    Set { after_us: u32, settings: Settings },
}

fn settings() -> impl Strategy<Value = Settings> {
    (
        prop_oneof![
            Just(Rate::Unlimited),
            (1u64..100_000_000).prop_map(Rate::bits_per_second)
        ],
        0u64..50_000,
        0u64..5_000,
        prop_oneof![
            (0u32..20).prop_map(QueueLimit::Packets),
            (0u64..30_000).prop_map(QueueLimit::Bytes)
        ],
        prop_oneof![Just(Loss::None), (0.0..1.0).prop_map(Loss::Uniform)],
        prop::bool::weighted(0.9),
    )
        .prop_map(|(rate, delay, jitter, queue, loss, up)| Settings {
            rate,
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros(jitter),
            queue,
            loss,
            up,
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..3000, 1u32..3000).prop_map(|(after_us, len)| Step::Send { after_us, len }),
        4 => (0u32..9000).prop_map(|after_us| Step::Poll { after_us }),
        1 => (0u32..3000, settings())
            .prop_map(|(after_us, settings)| Step::Set { after_us, settings }),
    ]
}

proptest! {
    #[test]
    fn nothing_is_invented_repeated_overtaken_or_early(
        first in settings(),
        steps in prop::collection::vec(step(), 1..200),
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
                Step::Set { settings, .. } => link.set(now, *settings),
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
        // Strictly rising numbers: in order and none twice.
        prop_assert!(arrived.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
        let c = link.counters();
        let held = c.offered.packets
            - c.delivered.packets
            - c.dropped_queue.packets
            - c.dropped_loss.packets
            - c.dropped_down.packets;
        prop_assert_eq!(c.delivered.packets as usize, arrived.len());
        prop_assert_eq!(held == 0, link.next_event().is_none());
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
