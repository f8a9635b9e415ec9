//! Measurements of arriving payload, which describe the direction from the peer: the round trip including
//! the peer's queue, the rate, and the losses. The data that this end sends describes only the other
//! direction.

use core::time::Duration;

use braid_wire::Instant;

use super::send::Echo;

/// The span of the measurements, which cover the last one to two spans: longer than a round trip of most
/// links, and short enough to follow a link that changes.
const MEASURE_SPAN: Duration = Duration::from_millis(500);

/// Statistics of the payload that arrived on a subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ArrivalStats {
    /// The TSecr of the newest segment with payload.
    echoed: u32,
    /// The lowest round trips of this span and of the one before; zero if there is none.
    rtts: [Duration; 2],
    began: Instant,
    /// The bytes received in this span.
    bytes: u64,
    /// The rate of the span before, in bytes/s.
    rate: u64,
    /// The bytes received so far, each counted once.
    pub received: u64,
    /// The part of `received` that arrived after later bytes: these bytes were lost and sent again, or
    /// overtaken.
    pub late: u64,
}

impl ArrivalStats {
    /// Processes a segment with payload that echoes a timestamp of ours. The first echo of a timestamp left
    /// when the peer had received it, so its age is a round trip; later ones may have waited at the peer.
    pub fn on_echo(&mut self, now: Instant, echo: Echo) {
        self.roll(now);
        if echo.value == self.echoed {
            return;
        }
        self.echoed = echo.value;
        let lowest = &mut self.rtts[0];
        if lowest.is_zero() || echo.age < *lowest {
            *lowest = echo.age;
        }
    }

    /// Processes `len` new bytes of payload; `late` is set if later bytes are here already.
    pub fn on_payload(&mut self, now: Instant, len: u64, late: bool) {
        self.roll(now);
        self.bytes += len;
        self.received += len;
        if late {
            self.late += len;
        }
    }

    fn roll(&mut self, now: Instant) {
        let span = now.saturating_since(self.began);
        if span < MEASURE_SPAN {
            return;
        }
        self.rate = (self.bytes as f64 / span.as_secs_f64()) as u64;
        self.rtts = [Duration::ZERO, self.rtts[0]];
        (self.bytes, self.began) = (0, now);
    }

    /// Returns the lowest recent round trip; zero if none is known.
    pub fn rtt(&self) -> Duration {
        match self.rtts {
            [now, before] if now.is_zero() || before.is_zero() => now.max(before),
            [now, before] => now.min(before),
        }
    }

    /// Returns the recent rate in bytes/s.
    pub fn rate(&self) -> u64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn the_first_echo_of_a_timestamp_is_a_round_trip() {
        let mut arriving = ArrivalStats::default();
        let mut echo = |at, value, age| {
            let age = Duration::from_millis(age);
            arriving.on_echo(ms(at), Echo { value, age });
            arriving.rtt().as_millis()
        };
        assert_eq!(echo(1_000, 7, 65), 65);
        assert_eq!(echo(1_010, 7, 20), 65, "the same again");
        assert_eq!(echo(1_020, 8, 60), 60);
        assert_eq!(echo(1_600, 9, 80), 60, "of the span before");
        assert_eq!(echo(2_200, 10, 90), 80);
        assert_eq!(echo(2_800, 11, 95), 90);
    }

    #[test]
    fn what_fills_holes_was_lost() {
        let mut arriving = ArrivalStats::default();
        arriving.on_payload(ms(1_000), 9_000, false);
        arriving.on_payload(ms(1_100), 1_000, true);
        assert_eq!((arriving.received, arriving.late), (10_000, 1_000));
        arriving.on_payload(ms(1_500), 1_000, false);
        assert_eq!(arriving.rate(), 20_000);
    }
}
