//! Congestion controllers in virtual time, against the numbers of their RFCs.

use std::time::Duration;

use braid_engine::cc::{
    AckSample, Algorithm, BALIA, BBR, CUBIC, CongestionControl, LEDBAT, LIA, Loss, NEWRENO, OLIA,
};
use braid_wire::Instant;

const MSS: u64 = 1000;

/// A flow that fills its window: every round trip delivers the window of its start.
struct Flow {
    cc: Box<dyn CongestionControl>,
    now: Instant,
    rtt: Duration,
    /// The bytes per acknowledgement.
    stride: u64,
    cwnd_limited: bool,
    /// The bytes in flight if the window does not limit them.
    in_use: Option<u64>,
    in_recovery: bool,
}

impl Flow {
    fn new(algorithm: Algorithm, initial_window: u32, rtt_ms: u64) -> Self {
        Flow {
            cc: algorithm.build(MSS as u32, initial_window),
            now: Instant::ZERO,
            rtt: Duration::from_millis(rtt_ms),
            stride: 2 * MSS,
            cwnd_limited: true,
            in_use: None,
            in_recovery: false,
        }
    }

    /// Returns a flow in congestion avoidance after one loss at `window` segments, recovery done.
    fn after_loss(algorithm: Algorithm, window: u32, rtt_ms: u64) -> Self {
        let mut flow = Flow::new(algorithm, window, rtt_ms);
        flow.cc.on_lost(&first_loss(flow.now, flow.cc.cwnd()));
        flow
    }

    /// Processes one acknowledgement; a full window was in flight unless `in_use` limits the flow.
    fn ack(&mut self, delivered: u64, round_start: bool) {
        let cwnd = self.cc.cwnd();
        let limited = self.cwnd_limited && self.in_use.is_none_or(|used| cwnd <= used);
        let ack = AckSample {
            now: self.now,
            delivered,
            rtt: Some(self.rtt),
            min_rtt: self.rtt,
            srtt: self.rtt,
            prior_in_flight: self.in_flight(),
            cwnd_limited: limited,
            round_start,
            in_recovery: self.in_recovery,
            ..AckSample::default()
        };
        self.cc.on_ack(&ack);
    }

    fn in_flight(&self) -> u64 {
        let cwnd = self.cc.cwnd();
        match self.cwnd_limited {
            true => self.in_use.map_or(cwnd, |used| used.min(cwnd)),
            false => cwnd / 4,
        }
    }

    fn round(&mut self) {
        let window = self.in_flight();
        let start = self.now;
        let mut delivered = 0;
        while delivered < window {
            let n = self.stride.min(window - delivered);
            self.now = start + self.rtt.mul_f64((delivered + n) as f64 / window as f64);
            self.ack(n, delivered == 0);
            delivered += n;
        }
        self.now = start + self.rtt;
    }

    fn run_until(&mut self, seconds: f64) {
        while self.now + self.rtt <= Instant::ZERO + Duration::from_secs_f64(seconds) {
            self.round();
        }
    }

    fn segments(&self) -> f64 {
        self.cc.cwnd() as f64 / MSS as f64
    }
}

/// Returns the loss that begins an episode.
fn first_loss(now: Instant, in_flight: u64) -> Loss {
    Loss {
        now,
        bytes: MSS,
        in_flight,
        first: true,
        ..Loss::default()
    }
}

#[track_caller]
fn assert_near(value: f64, expected: f64, share: f64) {
    assert!(
        (value / expected - 1.0).abs() <= share,
        "{value} is not near {expected}"
    );
}

#[test]
fn controllers_are_found_by_name() {
    for (name, algorithm) in [
        ("cubic", CUBIC),
        ("reno", NEWRENO),
        ("bbr", BBR),
        ("lia", LIA),
        ("olia", OLIA),
        ("balia", BALIA),
        ("ledbat", LEDBAT),
    ] {
        assert_eq!(algorithm.name(), name);
        assert_eq!(name.parse::<Algorithm>().unwrap().name(), name);
    }
    assert_eq!(Algorithm::default().name(), "cubic");
    assert_eq!(
        "vegas".parse::<Algorithm>().unwrap_err(),
        "unknown congestion control \"vegas\"; expected one of cubic, reno, bbr, lia, olia, balia, ledbat"
    );
}

#[test]
fn the_initial_window_is_in_segments() {
    for algorithm in [NEWRENO, CUBIC] {
        let cc = algorithm.build(1448, 10);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (14_480, u64::MAX));
    }
}

/// RFC 5681 section 3.1 with RFC 3465; also where one acknowledgement covers 64 segments.
#[test]
fn slow_start_doubles_every_round_trip() {
    for algorithm in [NEWRENO, CUBIC] {
        for stride in [1, 2, 64] {
            let mut flow = Flow::new(algorithm, 10, 50);
            flow.stride = stride * MSS;
            for expected in [20.0, 40.0, 80.0, 160.0, 320.0] {
                flow.round();
                assert_eq!(flow.segments(), expected, "{algorithm:?}, stride {stride}");
            }
        }
    }
}

/// RFC 7661 section 4.2: the window of a steady flow that does not fill it grows to twice the bytes in use,
/// so that a loss leaves enough.
#[test]
fn a_window_grows_to_twice_what_is_in_use() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut flow = Flow::after_loss(algorithm, 40, 50);
        flow.in_use = Some(20 * MSS);
        flow.run_until(60.0);
        let segments = flow.segments();
        assert!(
            (40.0..=42.0).contains(&segments),
            "{algorithm:?} {segments}"
        );
        flow.cc.on_lost(&first_loss(flow.now, 20 * MSS));
        assert!(flow.cc.cwnd() >= 20 * MSS, "{algorithm:?}");
    }
}

/// RFC 7661: a window that is not used does not grow.
#[test]
fn an_unused_window_does_not_grow() {
    for algorithm in [NEWRENO, CUBIC] {
        for mut flow in [
            Flow::new(algorithm, 10, 50),
            Flow::after_loss(algorithm, 100, 50),
        ] {
            let before = flow.cc.cwnd();
            flow.cwnd_limited = false;
            (0..20).for_each(|_| flow.round());
            assert_eq!(flow.cc.cwnd(), before, "{algorithm:?}");
            flow.cwnd_limited = true;
            (0..20).for_each(|_| flow.round());
            assert!(flow.cc.cwnd() > before, "{algorithm:?}");
        }
    }
}

#[test]
fn a_loss_reduces_once_and_recovery_does_not_grow() {
    for (algorithm, expected) in [(NEWRENO, 50_000), (CUBIC, 70_000)] {
        let mut flow = Flow::after_loss(algorithm, 100, 50);
        flow.in_recovery = true;
        flow.round();
        assert_eq!(
            (flow.cc.cwnd(), flow.cc.ssthresh()),
            (expected, expected),
            "{algorithm:?}"
        );
    }
}

/// RFC 5681 section 3.1: at least two segments; RFC 7661 section 4.4.1: from the bytes in use.
#[test]
fn a_reduction_starts_from_what_was_in_use() {
    let mut cc = NEWRENO.build(MSS as u32, 3);
    cc.on_lost(&first_loss(Instant::ZERO, 3 * MSS));
    assert_eq!(cc.cwnd(), 2 * MSS);

    let mut flow = Flow::new(NEWRENO, 100, 50);
    flow.cwnd_limited = false;
    flow.round();
    flow.cc.on_lost(&first_loss(flow.now, 5 * MSS));
    assert_eq!(flow.cc.cwnd(), 25 * MSS / 2);

    // A merged acknowledgement has emptied the flight, but the window was full.
    let mut flow = Flow::new(NEWRENO, 100, 50);
    flow.ack(0, true);
    flow.cc.on_lost(&first_loss(flow.now, 5 * MSS));
    assert_eq!(flow.cc.cwnd(), 50 * MSS);
}

#[test]
fn newreno_grows_one_segment_per_round_trip() {
    for stride in [1, 2, 64] {
        let mut flow = Flow::after_loss(NEWRENO, 200, 50);
        flow.stride = stride * MSS;
        (0..40).for_each(|_| flow.round());
        assert!(
            (139.0..=140.0).contains(&flow.segments()),
            "{}",
            flow.segments()
        );
    }
}

/// RFC 5681 section 3.1: one segment, then slow start to half, then avoidance.
#[test]
fn a_timeout_starts_from_one_segment() {
    for (algorithm, ssthresh) in [(NEWRENO, 50.0), (CUBIC, 70.0)] {
        let mut flow = Flow::new(algorithm, 100, 50);
        flow.ack(0, true);
        flow.cc.on_rto(flow.now, 100 * MSS);
        flow.in_recovery = true;
        assert_eq!(flow.segments(), 1.0);
        for expected in [2.0, 4.0, 8.0, 16.0, 32.0, f64::min(ssthresh, 64.0)] {
            flow.round();
            assert!(flow.segments() - expected < 1.0 && flow.segments() >= expected);
        }
        flow.in_recovery = false;
        flow.round();
        flow.round();
        assert!(
            (ssthresh..ssthresh + 4.0).contains(&flow.segments()),
            "{}",
            flow.segments()
        );
    }
}

#[test]
fn a_spurious_reduction_is_undone() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut flow = Flow::after_loss(algorithm, 100, 50);
        flow.run_until(5.0);
        let before = (flow.cc.cwnd(), flow.cc.ssthresh());
        flow.cc.on_lost(&first_loss(flow.now, before.0));
        assert!(flow.cc.cwnd() < before.0);
        flow.cc.on_spurious(flow.now);
        assert_eq!((flow.cc.cwnd(), flow.cc.ssthresh()), before);
        flow.cc.on_rto(flow.now, before.0);
        assert_eq!(flow.cc.cwnd(), MSS);
        flow.cc.on_spurious(flow.now);
        assert_eq!((flow.cc.cwnd(), flow.cc.ssthresh()), before);
        // There is nothing left to undo.
        flow.cc.penalise();
        let penalised = flow.cc.cwnd();
        flow.cc.on_spurious(flow.now);
        assert_eq!(flow.cc.cwnd(), penalised);
    }
}

/// An undone loss leaves the curve where it was, as if the loss had not happened.
#[test]
fn cubic_goes_on_along_its_curve_after_an_undo() {
    let mut undone = Flow::after_loss(CUBIC, 1000, 100);
    let mut plain = Flow::after_loss(CUBIC, 1000, 100);
    undone.run_until(6.0);
    plain.run_until(6.0);
    undone.cc.on_lost(&first_loss(undone.now, undone.cc.cwnd()));
    undone.cc.on_spurious(undone.now);
    undone.run_until(12.0);
    plain.run_until(12.0);
    assert_eq!(undone.cc.cwnd(), plain.cc.cwnd());
}

/// RFC 5681 section 4.1: the restart window after an idle period.
#[test]
fn an_idle_flow_restarts_from_its_initial_window() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut flow = Flow::after_loss(algorithm, 200, 50);
        let before = flow.cc.cwnd();
        flow.cc.on_idle(10 * MSS);
        assert_eq!(flow.cc.cwnd(), 10 * MSS);
        assert!(flow.cc.ssthresh() >= before / 4 * 3);
        flow.round();
        assert_eq!(flow.cc.cwnd(), 20 * MSS);
        // After a loss a smaller window is not raised.
        flow.cc.on_idle(50 * MSS);
        assert_eq!(flow.cc.cwnd(), 20 * MSS);
    }
}

/// Careful Resume, if nothing was lost: the window starts from the known capacity of the path.
#[test]
fn a_flow_without_loss_starts_from_what_is_known() {
    for algorithm in [NEWRENO, CUBIC, LIA] {
        let mut flow = Flow::new(algorithm, 10, 100);
        flow.cc.on_idle(50 * MSS);
        assert_eq!((flow.cc.cwnd(), flow.cc.ssthresh()), (50 * MSS, u64::MAX));
        flow.round();
        assert_eq!(flow.cc.cwnd(), 100 * MSS);
    }
    let mut background = Flow::new(LEDBAT, 10, 100);
    background.cc.on_idle(50 * MSS);
    assert_eq!(background.cc.cwnd(), 10 * MSS);
}

#[test]
fn a_penalty_halves_the_window_but_keeps_slow_start() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut cc = algorithm.build(MSS as u32, 40);
        cc.penalise();
        assert_eq!((cc.cwnd(), cc.ssthresh()), (20 * MSS, u64::MAX));
        let mut cc = Flow::after_loss(algorithm, 40, 50).cc;
        let before = (cc.cwnd(), cc.ssthresh());
        cc.penalise();
        assert_eq!((cc.cwnd(), cc.ssthresh()), (before.0 / 2, before.1 / 2));
        (0..10).for_each(|_| cc.penalise());
        assert_eq!(cc.cwnd(), MSS);
    }
}

/// The handshake settles the segment size after the controller was made.
#[test]
fn the_window_follows_the_segment_size_only_at_the_start() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut flow = Flow::new(algorithm, 10, 50);
        flow.cc.set_mss(1400);
        assert_eq!(flow.cc.cwnd(), 14_000);
        flow.round();
        assert_eq!(flow.cc.cwnd(), 28_000);
        flow.cc.set_mss(1000);
        assert_eq!(flow.cc.cwnd(), 28_000);
        flow.cc.on_rto(flow.now, 28_000);
        flow.cc.set_mss(1200);
        assert_eq!(flow.cc.cwnd(), 1200);
    }
}

/// RFC 9438 figures 1 and 2: W_max 1000 segments, so K = cbrt(300 / 0.4) = 9.086 s.
#[test]
fn cubic_follows_its_curve() {
    for stride in [2, 44] {
        let mut flow = Flow::after_loss(CUBIC, 1000, 100);
        flow.stride = stride * MSS;
        let k = 750f64.cbrt();
        for t in [1.0, 2.0, 4.5, 7.0, 9.1, 11.0, 14.0, 18.0] {
            flow.run_until(t);
            assert_near(flow.segments(), 0.4 * (t - k).powi(3) + 1000.0, 0.01);
        }
    }
}

/// RFC 9438 section 4.7: a second loss below W_max lowers the plateau to 0.85 of the window.
#[test]
fn cubic_converges_fast() {
    let mut flow = Flow::after_loss(CUBIC, 1000, 100);
    flow.cc.on_lost(&first_loss(flow.now, flow.cc.cwnd()));
    assert_near(flow.segments(), 490.0, 0.001);
    let plateau = 0.85 * 700.0;
    let k = f64::cbrt((plateau - 490.0) / 0.4);
    for t in [k / 2.0, k, k + 3.0] {
        flow.run_until(t);
        assert_near(flow.segments(), 0.4 * (t - k).powi(3) + plateau, 0.01);
    }
    // A loss above the plateau keeps the window as the plateau.
    flow.run_until(k + 10.0);
    let window = flow.segments();
    assert!(window > 700.0);
    flow.now = Instant::ZERO;
    flow.cc.on_lost(&first_loss(flow.now, flow.cc.cwnd()));
    let k = f64::cbrt(0.3 * window / 0.4);
    flow.run_until(k);
    assert_near(flow.segments(), window, 0.01);
}

/// RFC 9438 section 4.3: where the curve is slower than Reno, the window grows as Reno's with
/// alpha = 3 (1 - beta) / (1 + beta) = 0.529 segments per round trip, and 1 beyond W_max.
#[test]
fn cubic_is_reno_friendly_on_short_paths() {
    let mut flow = Flow::after_loss(CUBIC, 40, 5);
    (0..20).for_each(|_| flow.round());
    assert_near(flow.segments(), 28.0 + 20.0 * 0.529, 0.02);
    (0..3).for_each(|_| flow.round());
    let at_w_max = flow.segments();
    assert_near(at_w_max, 40.0, 0.02);
    (0..20).for_each(|_| flow.round());
    assert_near(flow.segments(), at_w_max + 20.0, 0.02);
}

/// RFC 9438 section 4.8: after a timeout K is 0 and the plateau is where avoidance begins.
#[test]
fn cubic_forgets_its_plateau_in_a_timeout() {
    let mut flow = Flow::new(CUBIC, 1000, 100);
    flow.cc.on_rto(flow.now, 1000 * MSS);
    while flow.segments() < 700.0 {
        flow.round();
    }
    let start = flow.now;
    let window = flow.segments();
    flow.run_until(8.0);
    let t = flow.now.saturating_since(start).as_secs_f64();
    assert_near(flow.segments(), window + 0.4 * t.powi(3), 0.02);
}

/// RFC 9438 section 5.8: time without use of the window does not count.
#[test]
fn cubic_stops_its_clock_while_the_window_is_not_used() {
    let mut flow = Flow::after_loss(CUBIC, 1000, 100);
    flow.run_until(3.0);
    flow.cwnd_limited = false;
    // The bytes in use count for up to two seconds more.
    flow.run_until(5.2);
    let before = flow.segments();
    flow.run_until(33.0);
    assert_eq!(flow.segments(), before);
    flow.cwnd_limited = true;
    flow.run_until(34.0);
    let k = 750f64.cbrt();
    assert_near(flow.segments(), 0.4 * (6.0 - k).powi(3) + 1000.0, 0.01);
}

/// RFC 9406: round trips that grow with the queue end slow start without a loss; then CUBIC's
/// plateau is the window of that moment (RFC 9438 section 4.10).
#[test]
fn a_filling_queue_ends_slow_start_before_the_first_loss() {
    for algorithm in [NEWRENO, CUBIC] {
        let mut flow = Flow::new(algorithm, 10, 40);
        let mut rounds = 0;
        while flow.cc.ssthresh() == u64::MAX {
            // 10 Mb/s with 40 ms: 50 segments fill the path, the rest waits.
            let queued = (flow.segments() - 50.0).max(0.0);
            flow.rtt = Duration::from_secs_f64(0.040 + queued * 8.0 * MSS as f64 / 10e6);
            flow.round();
            rounds += 1;
            assert!(rounds < 20, "{algorithm:?} never leaves slow start");
        }
        // 10, 20, 40, 80 (queue seen here), then five rounds that grow by a quarter.
        assert!(flow.cc.cwnd() - flow.cc.ssthresh() <= MSS);
        assert!(
            (100.0..=350.0).contains(&flow.segments()),
            "{}",
            flow.segments()
        );
        let before = flow.segments();
        flow.round();
        assert!(flow.segments() - before <= 2.0);
    }
}

/// A queue of 40 packets at 10 Mb/s and 40 ms would stand for 32 ms: LEDBAT fills the path and keeps its
/// own part of the queue below 25 ms; when others fill the queue it withdraws.
#[test]
fn ledbat_makes_way() {
    let mut flow = Flow::new(LEDBAT, 10, 40);
    let rounds = |flow: &mut Flow, n: usize, others: f64| {
        for _ in 0..n {
            // 50 segments fill the path.
            let queued = (flow.segments() - 50.0).max(0.0) + others;
            flow.rtt = Duration::from_secs_f64(0.040 + queued * 8.0 * MSS as f64 / 10e6);
            flow.round();
        }
    };
    rounds(&mut flow, 400, 0.0);
    let alone = flow.segments();
    assert!((50.0..=84.0).contains(&alone), "{alone} segments");
    rounds(&mut flow, 20, 60.0);
    assert!(flow.segments() <= 4.0, "{} segments", flow.segments());
    rounds(&mut flow, 400, 0.0);
    assert!(flow.segments() >= 50.0, "{} segments", flow.segments());
}
