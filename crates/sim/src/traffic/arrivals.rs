//! Flows that arrive at random times.

use core::time::Duration;

use braid_engine::ConnectOptions;
use braid_wire::{Instant, Rng};

use super::sizes::{Sizes, exponential};
use super::stream::Stream;

/// A function that returns options and stream for a flow of the given number of bytes.
pub type MakeFlow = Box<dyn FnMut(u64) -> (ConnectOptions, Stream) + Send>;

/// A Poisson process that opens flows, for [`Host::add_arrivals`](crate::Host::add_arrivals). The times between
/// flows are exponentially distributed, and the sizes of flows are drawn from `sizes`.
pub struct Arrivals {
    sizes: Sizes,
    mean_gap: Duration,
    until: Instant,
    rng: Rng,
    make: MakeFlow,
    next_at: Instant,
    /// The number of flows that could not be opened, for example because the host has too many connections.
    pub(crate) refused: u64,
}

impl Arrivals {
    /// Makes a process that opens flows between `from` and `until`. `per_second` is the mean number of flows per
    /// second; it must exceed 0.
    pub fn new(
        per_second: f64,
        sizes: Sizes,
        (from, until): (Instant, Instant),
        rng: Rng,
        make: MakeFlow,
    ) -> Self {
        let mut arrivals = Arrivals {
            sizes,
            mean_gap: Duration::from_secs(1).div_f64(per_second.max(1e-9)),
            until,
            rng,
            make,
            next_at: from,
            refused: 0,
        };
        arrivals.draw_next();
        arrivals
    }

    /// Returns the number of flows per second for a mean load of `rate` bit/s of payload.
    pub fn per_second(rate: f64, sizes: &Sizes) -> f64 {
        rate / (8.0 * sizes.mean())
    }

    fn draw_next(&mut self) {
        // Without the minimum, a very short gap would be rounded to zero, and time would stand still.
        let gap = self.mean_gap.mul_f64(exponential(&mut self.rng));
        self.next_at += gap.max(Duration::from_nanos(1));
    }

    /// Returns the time of the next flow, if there is one.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        (self.next_at < self.until).then_some(self.next_at)
    }

    /// Returns the next flow, if it has arrived by `now`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(ConnectOptions, Stream)> {
        self.next_timeout().filter(|at| *at <= now)?;
        self.draw_next();
        let size = self.sizes.sample(&mut self.rng);
        Some((self.make)(size))
    }
}
