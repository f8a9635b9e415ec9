//! Measurements of arriving payload. These measurements describe the direction from the peer: the rate, the
//! losses, and the round trip including the queue of that direction. Acknowledgements of sent data describe only
//! the other direction.

use core::time::Duration;

use braid_wire::Instant;

use super::rate::{Peak, Train};
use super::send::Echo;

/// The length of a measurement span. Results come from the last one or two spans. The value is a guess: the span is
/// longer than most round trips, and short enough to follow the changes of a link.
const MEASURE_SPAN: Duration = Duration::from_millis(500);

/// The minimum payload in bytes of a packet that counts as full. The value is a guess: packets of bulk data have
/// 1,200 bytes or more on nearly all paths.
const FULL_PACKET: u64 = 1_000;

/// Statistics of the payload that arrived on a subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ArrivalStats {
    /// The TSecr of the newest segment with payload.
    echoed: u32,
    /// The lowest round trips of the current span and the previous one; zero if there is none.
    rtts: [Duration; 2],
    span_start: Instant,
    /// The bytes received in the current span.
    bytes: u64,
    /// The rate of the previous span in bytes/s.
    rate: u64,
    train: Train,
    peak: Peak,
    /// The bytes received so far, each counted once.
    pub received: u64,
    /// The part of `received` that arrived after bytes with higher offsets: these bytes were retransmitted after a
    /// loss, or reordered by the network.
    pub late: u64,
}

impl ArrivalStats {
    /// Processes a segment with payload that echoes a timestamp of ours. The peer sent the first echo of a
    /// timestamp soon after it received the timestamp, so the age of the echo is a round trip. Further echoes of
    /// the same timestamp may be much later and do not count.
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

    /// Processes `len` new bytes of payload; `late` is set if bytes with higher offsets have arrived already.
    pub fn on_payload(&mut self, now: Instant, len: u64, late: bool) {
        self.roll(now);
        self.bytes += len;
        self.received += len;
        if late {
            self.late += len;
        }
        let rtt = self.rtt();
        let train = self.train.on_packet(now, self.received, rtt);
        // On a slow path no train forms, but the rate of the previous span measures the bottleneck as well. Small
        // packets do not count, because they arrive at the rate of the sending application.
        let rate = train.max(Some(self.rate));
        self.peak
            .note(now, rtt, rate.filter(|_| len >= FULL_PACKET));
    }

    /// Starts a new span if the current one is over.
    fn roll(&mut self, now: Instant) {
        if now < self.span_start + MEASURE_SPAN {
            return;
        }
        let span = now.saturating_since(self.span_start);
        self.rate = (self.bytes as f64 / span.as_secs_f64()) as u64;
        self.rtts = [Duration::ZERO, self.rtts[0]];
        (self.bytes, self.span_start) = (0, now);
    }

    /// Returns the lowest round trip of the last two spans; zero if there is none.
    pub fn rtt(&self) -> Duration {
        match self.rtts {
            [current, previous] if current.is_zero() || previous.is_zero() => current.max(previous),
            [current, previous] => current.min(previous),
        }
    }

    /// Returns the recent peak rate of arrival in bytes/s: the rate of the bottleneck, or of the peer if the peer is
    /// slower; 0 if too little has arrived.
    pub fn peak_rate(&self) -> u64 {
        self.peak.get()
    }

    /// Returns the rate of the last complete span in bytes/s.
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
        assert_eq!(echo(1_010, 7, 20), 65, "a repeated echo");
        assert_eq!(echo(1_020, 8, 60), 60);
        assert_eq!(echo(1_600, 9, 80), 60, "of the previous span");
        assert_eq!(echo(2_200, 10, 90), 80);
        assert_eq!(echo(2_800, 11, 95), 90);
    }

    /// Packets of 1,000 bytes each ms come at 1 MB/s, although a pause precedes them.
    #[test]
    fn a_train_shows_the_rate_of_arrival() {
        let mut arriving = ArrivalStats::default();
        let age = Duration::from_millis(40);
        arriving.on_echo(ms(1_000), Echo { value: 7, age });
        arriving.on_payload(ms(1_000), 1_000, false);
        assert_eq!(arriving.peak_rate(), 0);
        for at in 1_100..1_120 {
            arriving.on_payload(ms(at), 1_000, false);
        }
        assert_eq!(arriving.peak_rate(), 1_000_000);
    }

    #[test]
    fn what_fills_holes_was_lost() {
        let mut arriving = ArrivalStats::default();
        arriving.on_payload(ms(1_000), 9_000, false);
        arriving.on_payload(ms(1_100), 1_000, true);
        assert_eq!((arriving.received, arriving.late), (10_000, 1_000));
        arriving.on_payload(ms(1_500), 1_000, false);
        // The first span began at 1,000 ms, with the first payload: 10,000 bytes in 500 ms.
        assert_eq!(arriving.rate(), 20_000);
    }
}
