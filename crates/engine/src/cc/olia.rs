//! OLIA, opportunistic linked increases: coupled like LIA, but windows follow the quality of paths.
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

/// NewReno with another growth in congestion avoidance.
#[derive(Debug, Default)]
struct Olia;

/// Returns the segments by which the window of the first of `siblings` changes for each byte delivered:
/// `(cwnd / rtt^2) / sum(cwnd_i / rtt_i)^2 + alpha / cwnd`.
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
    let linked = rate(own) / own.srtt.as_secs_f64() / (sum * sum);
    linked + alpha(own, measured) / own.cwnd as f64
}

/// Returns `alpha`, which moves windows to better paths. The best paths have the highest `l / rtt^2`, where
/// `l` is the data delivered between losses: TCP would be fastest on them. The best paths whose window is
/// not among the largest share `1 / n`, for `n` subflows, at the expense of the paths with the largest
/// window.
fn alpha<'a, I: Iterator<Item = &'a Sibling>>(own: &Sibling, all: impl Fn() -> I) -> f64 {
    let quality = |s: &Sibling| {
        let rtt = s.srtt.as_secs_f64();
        s.loss_interval as f64 / (rtt * rtt)
    };
    let best = all().map(quality).fold(0.0, f64::max);
    let largest = all().map(|s| s.cwnd).max().unwrap_or_default();
    let is_collected = |s: &Sibling| quality(s) >= best && s.cwnd < largest;
    let collected = all().filter(|s| is_collected(s)).count();
    let share = |of: usize| 1.0 / (all().count() * of) as f64;
    if collected == 0 {
        0.0
    } else if is_collected(own) {
        share(collected)
    } else if own.cwnd == largest {
        -share(all().filter(|s| s.cwnd == largest).count())
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

    /// Segments in a window's worth of acknowledgements.
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
        // 20 kB / 50 ms and 10 kB / 100 ms: 400 and 100 kB/s. 8e6 / 25e10 a byte, 0.64 a window;
        // 1e6 / 25e10, 0.04. The first is best by far and has the largest window: nothing moves.
        let (near, far) = (subflow(20_000, 50, 90_000), subflow(10_000, 100, 90_000));
        assert_growth(&[near, far], 0.64);
        assert_growth(&[far, near], 0.04);
    }

    /// A better path with the smaller window grows by half a segment more, the other by as much less.
    #[test]
    fn windows_move_to_better_paths() {
        let (good, large) = (subflow(10_000, 100, 90_000), subflow(30_000, 100, 30_000));
        assert_growth(&[good, large], 1.0 / 16.0 + 0.5);
        assert_growth(&[large, good], 9.0 / 16.0 - 0.5);
        // With three paths, two of them large: a third for the good one, and a sixth from each large one.
        let three = [large, large, good];
        assert_growth(&three, 9.0 / 49.0 - 1.0 / 6.0);
        assert_growth(&[good, large, large], 1.0 / 49.0 + 1.0 / 3.0);
    }
}
