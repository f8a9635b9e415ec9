//! Proxy location selection (PLS) of T-MPTCP (Han et al., "Transparent Multipath: Using Double MPTCP Proxies",
//! IEEE Network, 2021): chooses the server for a new connection. The module only computes. Other modules measure
//! the servers, and open the connections.
//!
//! The input for each server is its free bandwidth and round-trip time over each path, (B_1, D_1) to (B_N, D_N),
//! and its egress metrics, (B_s, D_s): bandwidth and round-trip time from the server to destinations. The paper
//! gives no formula. This code takes min(B_1 + … + B_N, B_s) as the bandwidth through a server, and min D_i + D_s
//! as the round-trip time to a destination.

use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::protocol::quality::Quality;

/// The minimum relative change that shortens the interval between measurements. The value is a guess: two
/// measurements of an unchanged path differ by about this much.
const MIN_CHANGE: f64 = 0.2;
const MINUTES_A_DAY: u64 = 24 * 60;

/// The measurements of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Free bandwidth and round-trip time of each path to the server, (B_i, D_i).
    pub paths: Vec<Quality>,
    /// Egress metrics: bandwidth and round-trip time from the server to destinations, (B_s, D_s). Files and JSON
    /// keep the earlier name `beyond`, so that existing ones stay valid.
    #[serde(default, rename = "beyond")]
    pub egress: Quality,
}

/// The rule that selects one of the servers that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// The shortest round-trip time for connections whose hints give a size of less than 1 MiB, and the highest
    /// free bandwidth for the others. From 1 MiB on, a connection is an elephant (see
    /// [`Limits`](braid_strategy::parts::flow::Limits)).
    #[default]
    Auto,
    /// The highest free bandwidth.
    Bandwidth,
    /// The shortest round-trip time to destinations.
    Delay,
    /// The first server in the configuration's order that answers; no server is measured.
    Order,
}

impl Select {
    /// All rules with their names in the configuration.
    pub const NAMES: [(&str, Select); 4] = [
        ("auto", Select::Auto),
        ("bandwidth", Select::Bandwidth),
        ("delay", Select::Delay),
        ("order", Select::Order),
    ];

    /// Returns the rule's name.
    pub fn name(self) -> &'static str {
        // `NAMES` has all rules, so the search does not fail.
        let row = Select::NAMES.iter().find(|(_, select)| *select == self);
        row.map_or("auto", |(name, _)| name)
    }
}

/// The property of a server that a connection needs most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// High bandwidth.
    Throughput,
    /// Low round-trip time.
    Latency,
}

impl Need {
    /// All needs.
    pub const ALL: [Need; 2] = [Need::Throughput, Need::Latency];
}

impl Measured {
    /// Returns the bandwidth through the server over all paths, bit/s; `None` if no path was measured. Paths
    /// without a measurement do not count, so that the result is a lower bound. A server without egress metrics is
    /// assumed not to be the bottleneck.
    pub fn bandwidth(&self) -> Option<f64> {
        let known = self.paths.iter().filter_map(|path| path.bandwidth);
        let sum = known.reduce(|sum, path| sum + path)?;
        Some(self.egress.bandwidth.map_or(sum, |b| b.min(sum)))
    }

    /// Returns the round-trip time over the path on which it is shortest, ms; `None` if it is unknown. If `egress`
    /// is true, this is the time to destinations, otherwise the time to the server.
    pub fn delay_ms(&self, egress: bool) -> Option<f64> {
        let known = self.paths.iter().filter_map(|path| path.delay_ms);
        let shortest = known.reduce(f64::min)?;
        match egress {
            true => Some(shortest + self.egress.delay_ms?),
            false => Some(shortest),
        }
    }

    /// Returns a score of the server for `need`; higher is better. `egress` is as for
    /// [`delay_ms`](Self::delay_ms).
    fn score(&self, need: Need, egress: bool) -> Option<f64> {
        match need {
            Need::Throughput => self.bandwidth(),
            // The reciprocal, so that a shorter time scores higher and ratios mean the same as with bandwidths.
            Need::Latency => self.delay_ms(egress).map(f64::recip),
        }
    }
}

/// A server with its state, as input of the choice.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The server's measurements.
    pub measured: &'a Measured,
    /// True if the server answers.
    pub usable: bool,
}

/// Returns the indices of the usable servers, the best for `need` first. Unmeasured servers rank last; ties keep
/// the configuration's order.
///
/// Egress delays count only if all usable servers have them. A single server without one makes the round-trip
/// times to the servers decide: its own time to destinations is unknown, so that only these times can be compared
/// for all servers. If egress delays were added where they are known, this server would seem closer to
/// destinations than the others.
pub fn rank(need: Need, candidates: &[Candidate<'_>]) -> Vec<usize> {
    let usable = |c: &&Candidate<'_>| c.usable;
    let has_egress_delay = |c: &Candidate<'_>| c.measured.egress.delay_ms.is_some();
    let egress = candidates.iter().filter(usable).all(has_egress_delay);
    let score = |i: &usize| candidates[*i].measured.score(need, egress);
    let mut ranked: Vec<usize> = (0..candidates.len())
        .filter(|i| candidates[*i].usable)
        .collect();
    // The sort is stable, so ties keep their order.
    ranked.sort_by(|a, b| {
        // Scores are not negative, so -1 ranks unmeasured servers last.
        let (a, b) = (score(a).unwrap_or(-1.0), score(b).unwrap_or(-1.0));
        b.total_cmp(&a)
    });
    ranked
}

/// Chooses the server for `need`; `None` if no server is usable. A usable `current` server is kept unless the best
/// server is better by more than the share `gain`, because a change has costs: older connections stay with the
/// earlier server, so a user's parallel connections reach destinations from two addresses, and idle connections to
/// the earlier server are closed.
pub fn choose(
    need: Need,
    candidates: &[Candidate<'_>],
    current: Option<usize>,
    gain: f64,
) -> Option<usize> {
    let best = rank(need, candidates).first().copied()?;
    let usable_current = current.filter(|c| candidates.get(*c).is_some_and(|c| c.usable));
    let Some(current) = usable_current else {
        return Some(best);
    };
    // The ranking may have ignored egress delays because a third server lacks them. If both servers of this pair
    // have them, their times to destinations are compared: the change must be a gain for users.
    let pair = [candidates[best], candidates[current]];
    let egress = pair.iter().all(|c| c.measured.egress.delay_ms.is_some());
    let [best_score, current_score] = pair.map(|c| c.measured.score(need, egress));
    let is_better = match (best_score, current_score) {
        (Some(best), Some(current)) => best > current * (1.0 + gain),
        (Some(_), None) => true,
        (None, _) => false,
    };
    Some(if is_better { best } else { current })
}

/// Settings of measurements. Measurements use at most 1 % of a link's capacity. They run only while users send, or
/// if an operator requests them.
#[derive(Debug, Clone, PartialEq)]
pub struct Measuring {
    /// The minimum interval between measurements of a path (from the box over one link to one server), used while
    /// results change.
    pub least: Duration,
    /// The maximum interval, used while results do not change. It must not be less than `least`.
    pub most: Duration,
    /// The advantage that another server needs to replace the chosen server while that one answers: with 0.15 the
    /// other server must be more than 15 % better.
    pub gain: f64,
    /// Times of the day, UTC, at which nothing is measured unless requested.
    pub quiet: Vec<Quiet>,
}

impl Default for Measuring {
    fn default() -> Self {
        Measuring {
            // Guesses. With the minimum, a server that has become slow is still chosen for some seconds. With the
            // maximum, an unchanged path is measured 12 times an hour.
            least: Duration::from_secs(5),
            most: Duration::from_secs(300),
            // A guess: smaller differences are within the error of measurements.
            gain: 0.15,
            quiet: Vec::new(),
        }
    }
}

impl Measuring {
    /// Returns the minimum and the maximum interval. The check of the configuration refuses a minimum above the
    /// maximum.
    pub(crate) fn bounds(&self) -> RangeInclusive<Duration> {
        self.least..=self.most
    }
}

/// The interval between measurements. The interval is shorter while results change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MeasuringInterval {
    /// The last interval; `None` before the first result.
    interval: Option<Duration>,
}

impl MeasuringInterval {
    /// Returns the time until the next measurement, after a result with the relative change `change`. The interval
    /// is halved after a change and doubled without a change.
    ///
    /// # Panics
    /// Panics if the start of `bounds` is after their end. The bounds of a checked [`Measuring`] are in
    /// order.
    pub(crate) fn next(&mut self, change: f64, bounds: &RangeInclusive<Duration>) -> Duration {
        let (min, max) = (*bounds.start(), *bounds.end());
        let next = match self.interval {
            None => min,
            Some(last) if change > MIN_CHANGE => last / 2,
            Some(last) => last * 2,
        };
        *self.interval.insert(next.clamp(min, max))
    }

    /// Restarts with the minimum interval.
    pub(crate) fn reset(&mut self) {
        self.interval = None;
    }
}

/// The last three values of a quantity with occasional outliers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recent {
    /// The values, newest first.
    values: [f64; 3],
    /// The number of valid values.
    known: usize,
}

impl Recent {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.values.rotate_right(1);
        self.values[0] = value;
        self.known = (self.known + 1).min(self.values.len());
    }

    /// Returns the median of three values, which ignores a single outlier. With two values nothing shows which of
    /// them is the outlier, so the newest value is returned. `None` if there is no value.
    pub(crate) fn median(&self) -> Option<f64> {
        match self.known {
            0 => None,
            1 | 2 => Some(self.values[0]),
            _ => {
                let mut sorted = self.values;
                sorted.sort_by(f64::total_cmp);
                Some(sorted[1])
            }
        }
    }

    /// Forgets all but the newest value, because the quantity has changed.
    pub(crate) fn forget_older(&mut self) {
        // The older values stay in the array, but do not count.
        self.known = self.known.min(1);
    }
}

/// A daily time span, UTC, without measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet {
    /// Minute of the day at which the span begins, 0 to 1439.
    pub from: u16,
    /// Minute of the day at which the span ends. If this minute is not later than `from`, the span ends on the
    /// next day.
    pub to: u16,
}

impl Quiet {
    /// Returns whether the time `unix_ms`, milliseconds since 1970-01-01 UTC, is within the span.
    pub fn contains(self, unix_ms: u64) -> bool {
        let minute = unix_ms / 60_000 % MINUTES_A_DAY;
        let (from, to) = (u64::from(self.from), u64::from(self.to));
        match from < to {
            true => (from..to).contains(&minute),
            false => minute >= from || minute < to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAIN: f64 = 0.15;

    /// Creates a quality from Mbit/s and ms.
    fn quality((mbit, ms): (f64, f64)) -> Quality {
        Quality {
            bandwidth: Some(mbit * 1e6),
            delay_ms: Some(ms),
        }
    }

    fn server(paths: &[(f64, f64)], egress: (f64, f64)) -> Measured {
        Measured {
            paths: paths.iter().copied().map(quality).collect(),
            egress: quality(egress),
        }
    }

    /// Returns the servers of table 1 of the paper: (B_1, D_1), (B_2, D_2), (B_s, D_s), in Mbit/s and ms.
    fn table() -> Vec<Measured> {
        [
            [(21.89, 53.37), (13.45, 91.745), (92.8, 42.64)],
            [(22.63, 44.60), (15.38, 64.34), (98.4, 36.05)],
            [(27.57, 53.97), (19.75, 67.66), (56.31, 27.50)],
            [(1.38, 43.67), (13.91, 57.45), (36.31, 38.19)],
            [(5.1, 113.15), (12.9, 179.58), (63.28, 36.9)],
        ]
        .map(|[one, two, egress]| server(&[one, two], egress))
        .to_vec()
    }

    fn chosen(need: Need, servers: &[Measured], current: Option<usize>) -> Option<usize> {
        let usable = |measured| Candidate {
            measured,
            usable: true,
        };
        let candidates: Vec<_> = servers.iter().map(usable).collect();
        choose(need, &candidates, current, GAIN)
    }

    #[test]
    fn of_the_papers_servers_the_third_has_the_highest_bandwidth_and_the_second_the_lowest_delay() {
        let table = table();
        assert_eq!(chosen(Need::Throughput, &table, None), Some(2));
        assert_eq!(chosen(Need::Latency, &table, None), Some(1));
        // Each server's B_1 + B_2 in units of 10 kbit/s: no B_s is lower than this sum.
        let sums: Vec<f64> = table.iter().filter_map(Measured::bandwidth).collect();
        let mbits: Vec<i64> = sums.iter().map(|b| (b / 1e4).round() as i64).collect();
        assert_eq!(mbits, [3534, 3801, 4732, 1529, 1800]);
    }

    #[test]
    fn a_server_is_no_better_than_its_own_link() {
        let mut servers = table();
        // 60 Mbit/s over the links, and 10 Mbit/s of egress.
        servers.push(server(&[(40.0, 30.0), (20.0, 30.0)], (10.0, 60.0)));
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(2));
        servers[5].egress.bandwidth = None;
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(5));
    }

    #[test]
    fn cross_traffic_moves_the_choice() {
        let mut servers = table();
        // Server 3 has 7.57 Mbit/s left, server 2 has 38.01 Mbit/s.
        servers[2] = server(&[(7.57, 53.97), (0.0, 67.66)], (56.31, 27.5));
        assert_eq!(chosen(Need::Throughput, &servers, Some(2)), Some(1));
    }

    #[test]
    fn a_small_gain_moves_nothing() {
        let mut servers = table();
        // Server 3 has 47.32 Mbit/s, 24 % more than server 2 with 38.01 Mbit/s.
        assert_eq!(chosen(Need::Throughput, &servers, Some(1)), Some(2));
        servers[1].paths[0].bandwidth = Some(26e6);
        // Server 2 has 26 + 15.38 = 41.38 Mbit/s now, so server 3 has 14 % more, which is below `GAIN`.
        assert_eq!(chosen(Need::Throughput, &servers, Some(1)), Some(1));
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(2));
        // Server 3 needs 53.97 + 27.5 = 81.47 ms, 1 % more than server 2 with 44.6 + 36.05 = 80.65 ms.
        assert_eq!(chosen(Need::Latency, &servers, Some(2)), Some(2));
        // Server 2 needs 34 + 36.05 = 70.05 ms now, and 81.47 ms are 16 % more.
        servers[1].paths[0].delay_ms = Some(34.0);
        assert_eq!(chosen(Need::Latency, &servers, Some(2)), Some(1));
    }

    /// The metrics of a destination take the place of those over all destinations.
    #[test]
    fn a_destination_may_have_another_server() {
        let near = [(20.0, 20.0), (10.0, 40.0)];
        let far = [(20.0, 40.0), (10.0, 60.0)];
        let mut servers = vec![server(&near, (100.0, 10.0)), server(&far, (100.0, 10.0))];
        let both = |servers: &[Measured]| Need::ALL.map(|need| chosen(need, servers, Some(0)));
        // 30 Mbit/s each; 20 + 10 ms against 40 + 10 ms.
        assert_eq!(both(&servers), [Some(0), Some(0)]);
        // The first server measured the destination: min(30, 5) Mbit/s, and 20 + 150 ms.
        servers[0].egress = quality((5.0, 150.0));
        assert_eq!(both(&servers), [Some(1), Some(1)]);
        // The second server measured it too: min(30, 5.5) Mbit/s, 10 % more, and 40 + 120 ms, 6 % less.
        servers[1].egress = quality((5.5, 120.0));
        assert_eq!(both(&servers), [Some(0), Some(0)]);
        servers[1].egress = quality((9.0, 8.0));
        assert_eq!(both(&servers), [Some(1), Some(1)]);
    }

    #[test]
    fn a_server_without_answers_is_not_chosen() {
        let table = table();
        let candidates = |dead: &[usize]| {
            let all = table.iter().enumerate().map(|(i, measured)| Candidate {
                measured,
                usable: !dead.contains(&i),
            });
            all.collect::<Vec<_>>()
        };
        let choose = |dead: &[usize], current| {
            choose(Need::Throughput, &candidates(dead), Some(current), GAIN)
        };
        assert_eq!(choose(&[2], 2), Some(1));
        assert_eq!(choose(&[], 1), Some(2), "server 3 answers again");
        assert_eq!(choose(&[0, 1, 2, 3, 4], 2), None);
        assert_eq!(rank(Need::Throughput, &candidates(&[2])), [1, 0, 4, 3]);
    }

    #[test]
    fn unknown_measurements_are_no_advantage() {
        let unknown = Measured::default();
        let [near, far] = [30.0, 50.0].map(|ms| server(&[(5.0, ms)], (9.0, 10.0)));
        let without_egress = Measured {
            egress: Quality::default(),
            ..near.clone()
        };
        let pick = |need, servers: &[&Measured]| {
            let servers: Vec<Measured> = servers.iter().copied().cloned().collect();
            chosen(need, &servers, None)
        };
        for need in Need::ALL {
            assert_eq!(pick(need, &[&unknown, &far]), Some(1));
            assert_eq!(pick(need, &[&unknown, &unknown]), Some(0));
            assert_eq!(pick(need, &[&near, &near]), Some(0));
        }
        // 50 ms and 10 of egress beat 55 ms and an unknown egress.
        let slower = server(&[(5.0, 55.0)], (9.0, 1.0));
        let slower_without_egress = Measured {
            egress: Quality::default(),
            ..slower
        };
        assert_eq!(
            pick(Need::Latency, &[&slower_without_egress, &far]),
            Some(1)
        );
        assert_eq!(pick(Need::Latency, &[&far, &without_egress]), Some(1));
        // A current server without measurements has no advantage.
        assert_eq!(chosen(Need::Latency, &[unknown, near], Some(0)), Some(1));
    }

    #[test]
    fn the_interval_follows_changes_within_bounds() {
        let secs = Duration::from_secs;
        let bounds = secs(5)..=secs(60);
        let mut interval = MeasuringInterval::default();
        let next: Vec<u64> = [0.9, 0.0, 0.1, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 0.0]
            .map(|change| interval.next(change, &bounds).as_secs())
            .to_vec();
        assert_eq!(next, [5, 10, 20, 40, 60, 60, 30, 15, 7, 5, 10]);
        interval.reset();
        assert_eq!(interval.next(0.0, &bounds), secs(5));
    }

    #[test]
    fn a_single_outlier_does_not_change_the_median() {
        let mut recent = Recent::default();
        assert_eq!(recent.median(), None);
        for (value, median) in [(9.0, 9.0), (8.0, 8.0), (1.0, 8.0), (9.0, 8.0), (1.0, 1.0)] {
            recent.push(value);
            assert_eq!(recent.median(), Some(median));
        }
        recent.forget_older();
        assert_eq!(recent.median(), Some(1.0));
        recent.push(5.0);
        assert_eq!(recent.median(), Some(5.0));
    }

    #[test]
    fn quiet_hours_may_pass_midnight() {
        // A day has 86,400,000 ms. The days before, 1,800,000 in number, must not matter.
        let at = |hour: u64, minute: u64| (hour * 60 + minute) * 60_000 + 1_800_000 * 86_400_000;
        let night = Quiet {
            from: 22 * 60,
            to: 6 * 60,
        };
        let noon = Quiet {
            from: 12 * 60,
            to: 13 * 60,
        };
        for (hour, minute, in_night, at_noon) in [
            (0, 0, true, false),
            (5, 59, true, false),
            (6, 0, false, false),
            (12, 0, false, true),
            (12, 59, false, true),
            (13, 0, false, false),
            (21, 59, false, false),
            (22, 0, true, false),
        ] {
            let unix_ms = at(hour, minute);
            let quiet = (night.contains(unix_ms), noon.contains(unix_ms));
            assert_eq!(quiet, (in_night, at_noon), "{hour}:{minute}");
        }
        assert!(Quiet { from: 0, to: 0 }.contains(at(7, 7)), "the whole day");
    }
}
