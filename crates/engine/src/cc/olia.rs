//! OLIA, opportunistic linked increases, couples subflows like LIA, but also moves windows to the better paths.
//!
//! R. Khalili, N. Gast, M. Popovic, J.-Y. Le Boudec, "MPTCP Is Not Pareto-Optimal: Performance Issues
//! and a Possible Solution", IEEE/ACM Transactions on Networking 21(5), 2013;
//! draft-khalili-mptcp-congestion-control-05.

use core::time::Duration;

use super::newreno::NewReno;
use super::variant::{Growth, Variant};
use super::{AckSample, Algorithm, Sibling};

/// OLIA (draft-khalili-mptcp-congestion-control-05).
pub const OLIA: Algorithm = Algorithm {
    name: "olia",
    make: |mss, initial_window| Box::new(Variant::<Olia>::new(mss, initial_window)),
};

/// NewReno with the growth of OLIA in congestion avoidance.
#[derive(Debug, Default)]
struct Olia;

/// Returns the number of segments by which the controller's own window changes for each byte delivered:
/// `(cwnd / rtt^2) / sum(cwnd_i / rtt_i)^2 + alpha / cwnd`, the increase of section 2 of the draft. The
/// controller's own subflow is the first sibling. If it has no round trip yet, its window stays as it is.
fn segments_per_byte(siblings: &[Sibling]) -> f64 {
    let measured = || siblings.iter().filter(|s| s.srtt > Duration::ZERO);
    let (Some(own), true) = (siblings.first(), measured().next().is_some()) else {
        return 0.0;
    };
    if own.srtt.is_zero() {
        return 0.0;
    }
    let rate = |s: &Sibling| s.cwnd as f64 / s.srtt.as_secs_f64();
    let sum: f64 = measured().map(rate).sum();
    let linked_increase = rate(own) / own.srtt.as_secs_f64() / (sum * sum);
    linked_increase + alpha(own, measured) / own.cwnd as f64
}

/// Returns `alpha`, the number of segments that move to or from a window while one window is delivered. It moves
/// windows to the best paths, which have the highest `l / rtt^2`, where `l` is the
/// [loss interval](Sibling::loss_interval). A single TCP would be fastest on these paths, because its rate grows with
/// `sqrt(l) / rtt`. The draft calls a best path whose window is not the largest a collected path. With `n` subflows,
/// the collected paths share an increase of `1 / n`, and the paths with the largest window share an equally large
/// decrease.
fn alpha<'a, I: Iterator<Item = &'a Sibling>>(own: &Sibling, all: impl Fn() -> I) -> f64 {
    let quality = |s: &Sibling| {
        let rtt = s.srtt.as_secs_f64();
        s.loss_interval as f64 / (rtt * rtt)
    };
    let best = all().map(quality).fold(0.0, f64::max);
    let largest = all().map(|s| s.cwnd).max().unwrap_or_default();
    let is_collected = |s: &Sibling| quality(s) >= best && s.cwnd < largest;
    let collected = all().filter(|s| is_collected(s)).count();
    let share_among = |paths: usize| 1.0 / (all().count() * paths) as f64;
    if collected == 0 {
        0.0
    } else if is_collected(own) {
        share_among(collected)
    } else if own.cwnd == largest {
        -share_among(all().filter(|s| s.cwnd == largest).count())
    } else {
        0.0
    }
}

impl Growth for Olia {
    const COUPLED: bool = true;

    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>) {
        reno.grow_by(ack, segments_per_byte(ack.siblings));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subflow(cwnd: u64, rtt_ms: u64, loss_interval: u64) -> Sibling {
        Sibling {
            cwnd,
            srtt: Duration::from_millis(rtt_ms),
            loss_interval,
        }
    }

    /// Checks the number of segments by which the window grows while one window is acknowledged.
    #[track_caller]
    fn assert_growth(siblings: &[Sibling], expected: f64) {
        let growth = segments_per_byte(siblings) * siblings[0].cwnd as f64;
        assert!((growth - expected).abs() < 1e-9, "{growth}");
    }

    #[test]
    fn one_subflow_is_a_tcp_and_like_ones_share_its_growth() {
        assert_growth(&[subflow(10_000, 100, 50_000)], 1.0);
        assert_growth(&[subflow(10_000, 100, 50_000); 2], 0.25);
        assert_growth(&[subflow(10_000, 100, 50_000); 4], 1.0 / 16.0);
        // Nothing is known about the second subflow yet.
        assert_growth(&[subflow(10_000, 100, 9), subflow(9_000, 0, 0)], 1.0);
        assert_eq!(segments_per_byte(&[]), 0.0);
        assert_eq!(segments_per_byte(&[subflow(10_000, 0, 0)]), 0.0);
    }

    #[test]
    fn the_linked_part_weighs_by_rate_and_round_trip() {
        // 20 kB / 50 ms = 400 kB/s and 10 kB / 100 ms = 100 kB/s, (4e5 + 1e5)^2 = 25e10. The near path grows by
        // (4e5 / 0.05 s) / 25e10 segments for each byte, times 20,000 = 0.64 for each window; the far path by
        // (1e5 / 0.1 s) / 25e10, times 10,000 = 0.04. The near path is the best and has the largest window
        // already, so no window moves to another path.
        let (near, far) = (subflow(20_000, 50, 90_000), subflow(10_000, 100, 90_000));
        assert_growth(&[near, far], 0.64);
        assert_growth(&[far, near], 0.04);
    }

    /// The better of two paths has the smaller window. This window grows by half a segment more for each window,
    /// and the window of the other path by half a segment less.
    #[test]
    fn windows_move_to_better_paths() {
        let (good, large) = (subflow(10_000, 100, 90_000), subflow(30_000, 100, 30_000));
        assert_growth(&[good, large], 1.0 / 16.0 + 0.5);
        assert_growth(&[large, good], 9.0 / 16.0 - 0.5);
        // Of three paths, the good one gains a third of a segment, and the two with a large window lose a sixth of
        // a segment each.
        let three = [large, large, good];
        assert_growth(&three, 9.0 / 49.0 - 1.0 / 6.0);
        assert_growth(&[good, large, large], 1.0 / 49.0 + 1.0 / 3.0);
    }
}
