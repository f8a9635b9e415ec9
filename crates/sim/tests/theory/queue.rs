//! A link with Poisson arrivals of packets of one length is an M/D/1 queue (Kleinrock, "Queueing
//! Systems", volume 1, 1975, section 5.6).

use core::time::Duration;

use braid_links::{Link, QueueLimit, Rate, Settings};
use braid_wire::{Instant, Rng};

use crate::statistics::mean;

/// The bytes of a packet, which takes 1 ms.
const LENGTH: u32 = 1000;
const SERVICE: Duration = Duration::from_millis(1);
const DELAY: Duration = Duration::from_millis(7);

/// Returns the mean time in seconds that packets wait for the line at `utilisation`, from one run.
fn waiting(seed: u64, utilisation: f64) -> f64 {
    const SETTLING: u32 = 5_000;
    const COUNTED: u32 = 30_000;
    let mut rng = Rng::for_component(seed, 1);
    let mut link = Link::new(Settings {
        rate: Rate::bits_per_second(8_000_000),
        delay: DELAY,
        queue: QueueLimit::Packets(u32::MAX),
        ..Settings::default()
    });
    let mut now = Instant::ZERO;
    let mut waited = Duration::ZERO;
    let mut take = |link: &mut Link<(u32, Instant)>, until: Instant| {
        while let Some(delivery) = link.poll_deliver(until) {
            let (n, sent_at) = delivery.packet;
            if n >= SETTLING {
                waited += delivery.at.saturating_since(sent_at) - SERVICE - DELAY;
            }
        }
    };
    for n in 0..SETTLING + COUNTED {
        let gap = -(1.0 - rng.unit()).ln() / utilisation;
        now += SERVICE.mul_f64(gap);
        take(&mut link, now);
        link.enqueue(now, (n, now), LENGTH, &mut rng);
    }
    take(&mut link, now + Duration::from_secs(3600));
    assert_eq!(link.counters().delivered, link.counters().offered);
    waited.as_secs_f64() / f64::from(COUNTED)
}

#[test]
fn waiting_is_that_of_m_d_1() {
    for (utilisation, seeds) in [(0.5, 10), (0.7, 20), (0.9, 100)] {
        let runs: Vec<f64> = (0..seeds).map(|seed| waiting(seed, utilisation)).collect();
        let measured = mean(&runs);
        // rho / (2 mu (1 - rho))
        let expected = utilisation / (2.0 * (1.0 - utilisation)) * SERVICE.as_secs_f64();
        let what = format!("{utilisation}: {measured:?} instead of {expected}");
        assert!(measured.error < 0.01 * expected, "too few runs: {what}");
        assert!(
            (measured.value - expected).abs() < 3.0 * measured.error,
            "{what}"
        );
    }
}
