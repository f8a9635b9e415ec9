//! Which of several servers a new connection goes to: proxy location selection (PLS) of T-MPTCP
//! (Han et al., "Transparent Multipath: Using Double MPTCP Proxies", IEEE Network, 2021). Numbers
//! in, a decision out.
//!
//! Of each server it takes what is free, and how long it takes, on each path to it, (B_1, D_1) to
//! (B_N, D_N), and from the server to destinations, (B_s, D_s). The paper gives no formula. Here
//! the most that a server can aggregate is min(B_1 + … + B_N, B_s), and the shortest round trip to
//! a destination min D_i + D_s.

use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::protocol::quality::Quality;

/// Least relative change of a measurement after which the next one is due sooner: about what two
/// measurements of the same differ by.
const CHANGE: f64 = 0.2;
const MINUTES_A_DAY: u64 = 24 * 60;

/// What is known of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Of each path to it: (B_i, D_i).
    pub paths: Vec<Quality>,
    /// From it to destinations: (B_s, D_s).
    #[serde(default)]
    pub beyond: Quality,
}

/// Which server a new connection goes to, of those that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// By the lowest delay where the connection is known to carry less than 1 MiB (a mosquito or a
    /// mouse), else by the largest bandwidth.
    #[default]
    Auto,
    /// The one over which most bandwidth is free.
    Bandwidth,
    /// The one with the shortest round trip to destinations.
    Delay,
    /// The first in the configuration's order. None is measured.
    Order,
}

impl Select {
    /// All, with their names.
    pub const NAMES: [(&str, Select); 4] = [
        ("auto", Select::Auto),
        ("bandwidth", Select::Bandwidth),
        ("delay", Select::Delay),
        ("order", Select::Order),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let row = Select::NAMES.iter().find(|(_, select)| *select == self);
        row.map_or("auto", |(name, _)| name)
    }
}

/// What a connection wants of its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Many bytes in little time.
    Throughput,
    /// An answer soon.
    Latency,
}

impl Need {
    /// All there are.
    pub const ALL: [Need; 2] = [Need::Throughput, Need::Latency];
}

impl Measured {
    /// The most that the paths together and the server let pass, bit/s. A server of whose far side
    /// nothing is known is taken not to be the bottleneck.
    pub fn bandwidth(&self) -> Option<f64> {
        let known = self.paths.iter().filter_map(|path| path.bandwidth);
        let sum = known.reduce(|sum, path| sum + path)?;
        Some(self.beyond.bandwidth.map_or(sum, |b| b.min(sum)))
    }

    /// The shortest round trip, ms: to the server, and where `beyond` to destinations.
    pub fn delay_ms(&self, beyond: bool) -> Option<f64> {
        let known = self.paths.iter().filter_map(|path| path.delay_ms);
        let least = known.reduce(f64::min)?;
        match beyond {
            true => Some(least + self.beyond.delay_ms?),
            false => Some(least),
        }
    }

    /// How good it is; the more, the better.
    fn score(&self, need: Need, beyond: bool) -> Option<f64> {
        match need {
            Need::Throughput => self.bandwidth(),
            Need::Latency => self.delay_ms(beyond).map(f64::recip),
        }
    }
}

/// A server that may be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// What is known of it.
    pub measured: &'a Measured,
    /// It answers.
    pub usable: bool,
}

/// The servers that may be chosen, the best for `need` first: one of which nothing is known behind
/// those of which something is, and of equals the first.
///
/// The way beyond the servers counts only where it is known of all of them: a server must not win
/// because less is known of it.
pub fn rank(need: Need, candidates: &[Candidate<'_>]) -> Vec<usize> {
    let usable = |c: &&Candidate<'_>| c.usable;
    let known = |c: &Candidate<'_>| c.measured.beyond.delay_ms.is_some();
    let beyond = candidates.iter().filter(usable).all(known);
    let score = |i: &usize| candidates[*i].measured.score(need, beyond);
    let mut all: Vec<usize> = (0..candidates.len())
        .filter(|i| candidates[*i].usable)
        .collect();
    // Stable: equals stay in order.
    all.sort_by(|a, b| {
        let (a, b) = (score(a).unwrap_or(-1.0), score(b).unwrap_or(-1.0));
        b.total_cmp(&a)
    });
    all
}

/// The server for `need`; `None` where none may be chosen. Another one than `current` only where
/// that one may not be chosen any more, or the other is better by a share of `gain` at least:
/// connections that ran side by side would run through different servers, and warm ones are lost.
pub fn choose(
    need: Need,
    candidates: &[Candidate<'_>],
    current: Option<usize>,
    gain: f64,
) -> Option<usize> {
    let best = rank(need, candidates).first().copied()?;
    let stays = current.filter(|c| candidates.get(*c).is_some_and(|c| c.usable));
    let Some(current) = stays else {
        return Some(best);
    };
    let both = [candidates[best], candidates[current]];
    let known = both.iter().all(|c| c.measured.beyond.delay_ms.is_some());
    let [ahead, behind] = both.map(|c| c.measured.score(need, known));
    let better = match (ahead, behind) {
        (Some(ahead), Some(behind)) => ahead > behind * (1.0 + gain),
        (Some(_), None) => true,
        (None, _) => false,
    };
    Some(if better { best } else { current })
}

/// How servers are measured: only while users send something, and never more than 1 % of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Measuring {
    /// From one measurement of a server to the next, while they change.
    pub least: Duration,
    /// The same, while they do not.
    pub most: Duration,
    /// By what share another server must be better to be taken in place of one that works.
    pub gain: f64,
    /// Times of the day, UTC, at which nothing is measured.
    pub quiet: Vec<Quiet>,
}

impl Default for Measuring {
    fn default() -> Self {
        Measuring {
            least: Duration::from_secs(5),
            most: Duration::from_secs(300),
            gain: 0.15,
            quiet: Vec::new(),
        }
    }
}

impl Measuring {
    /// The least and the longest time between measurements.
    pub(crate) fn bounds(&self) -> RangeInclusive<Duration> {
        self.least..=self.most
    }
}

/// When to measure again: between two bounds, sooner while measurements change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tempo {
    interval: Option<Duration>,
}

impl Tempo {
    /// How long until the next measurement, after one that changed by a share of `change`.
    pub(crate) fn next(&mut self, change: f64, bounds: &RangeInclusive<Duration>) -> Duration {
        let (least, most) = (*bounds.start(), *bounds.end());
        let next = match self.interval {
            None => least,
            Some(last) if change > CHANGE => last / 2,
            Some(last) => last * 2,
        };
        *self.interval.insert(next.clamp(least, most))
    }

    /// Something changed.
    pub(crate) fn hurry(&mut self) {
        self.interval = None;
    }
}

/// The last few values of something that is measured with errors now and then.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recent {
    values: [f64; 3],
    known: usize,
}

impl Recent {
    /// Takes a value in.
    pub(crate) fn push(&mut self, value: f64) {
        self.values.rotate_right(1);
        self.values[0] = value;
        self.known = (self.known + 1).min(self.values.len());
    }

    /// The one in the middle, so that a single outlier counts nothing; of two the later.
    pub(crate) fn middle(&self) -> Option<f64> {
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

    /// Forgets all but the newest, which is to be believed.
    pub(crate) fn forget_older(&mut self) {
        self.known = self.known.min(1);
    }
}

/// Times of the day, UTC, at which nothing is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet {
    /// Minute of the day at which it begins, 0 to 1439.
    pub from: u16,
    /// Minute of the day at which it ends; where that is not later than `from`, on the day after.
    pub to: u16,
}

impl Quiet {
    /// Whether `unix_ms`, milliseconds since 1970-01-01 UTC, is in it.
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

    fn quality((mbit, ms): (f64, f64)) -> Quality {
        Quality {
            bandwidth: Some(mbit * 1e6),
            delay_ms: Some(ms),
        }
    }

    fn server(paths: &[(f64, f64)], beyond: (f64, f64)) -> Measured {
        Measured {
            paths: paths.iter().copied().map(quality).collect(),
            beyond: quality(beyond),
        }
    }

    /// Table 1 of the paper: B_1, D_1, B_2, D_2, B_s, D_s.
    fn table() -> Vec<Measured> {
        [
            [(21.89, 53.37), (13.45, 91.745), (92.8, 42.64)],
            [(22.63, 44.60), (15.38, 64.34), (98.4, 36.05)],
            [(27.57, 53.97), (19.75, 67.66), (56.31, 27.50)],
            [(1.38, 43.67), (13.91, 57.45), (36.31, 38.19)],
            [(5.1, 113.15), (12.9, 179.58), (63.28, 36.9)],
        ]
        .map(|[one, two, beyond]| server(&[one, two], beyond))
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
    fn of_the_papers_servers_the_third_has_most_and_the_second_answers_first() {
        let table = table();
        assert_eq!(chosen(Need::Throughput, &table, None), Some(2));
        assert_eq!(chosen(Need::Latency, &table, None), Some(1));
        let sums: Vec<f64> = table.iter().filter_map(Measured::bandwidth).collect();
        let mbits: Vec<i64> = sums.iter().map(|b| (b / 1e4).round() as i64).collect();
        assert_eq!(mbits, [3534, 3801, 4732, 1529, 1800]);
    }

    #[test]
    fn a_server_is_no_better_than_its_own_link() {
        let mut servers = table();
        servers.push(server(&[(40.0, 30.0), (20.0, 30.0)], (10.0, 60.0)));
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(2));
        servers[5].beyond.bandwidth = None;
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(5));
    }

    #[test]
    fn cross_traffic_moves_the_choice() {
        let mut servers = table();
        servers[2] = server(&[(7.57, 53.97), (0.0, 67.66)], (56.31, 27.5));
        assert_eq!(chosen(Need::Throughput, &servers, Some(2)), Some(1));
    }

    #[test]
    fn a_small_gain_moves_nothing() {
        let mut servers = table();
        // Server 3 is 24 % above server 2.
        assert_eq!(chosen(Need::Throughput, &servers, Some(1)), Some(2));
        servers[1].paths[0].bandwidth = Some(26e6);
        // 14 %.
        assert_eq!(chosen(Need::Throughput, &servers, Some(1)), Some(1));
        assert_eq!(chosen(Need::Throughput, &servers, None), Some(2));
        // 1 % later.
        assert_eq!(chosen(Need::Latency, &servers, Some(2)), Some(2));
        servers[1].paths[0].delay_ms = Some(34.0);
        assert_eq!(chosen(Need::Latency, &servers, Some(2)), Some(1));
    }

    #[test]
    fn one_that_does_not_answer_is_not_chosen() {
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
        assert_eq!(choose(&[], 1), Some(2), "it is back");
        assert_eq!(choose(&[0, 1, 2, 3, 4], 2), None);
        assert_eq!(rank(Need::Throughput, &candidates(&[2])), [1, 0, 4, 3]);
    }

    #[test]
    fn what_is_not_known_wins_nothing() {
        let unknown = Measured::default();
        let [near, far] = [30.0, 50.0].map(|ms| server(&[(5.0, ms)], (9.0, 10.0)));
        let untold = Measured {
            beyond: Quality::default(),
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
        // 50 ms and 10 beyond are not more than 55 and who knows what.
        let later = server(&[(5.0, 55.0)], (9.0, 1.0));
        let later_untold = Measured {
            beyond: Quality::default(),
            ..later
        };
        assert_eq!(pick(Need::Latency, &[&later_untold, &far]), Some(1));
        assert_eq!(pick(Need::Latency, &[&far, &untold]), Some(1));
        // Nothing known of the current one is no reason to stay.
        assert_eq!(chosen(Need::Latency, &[unknown, near], Some(0)), Some(1));
    }

    #[test]
    fn the_tempo_follows_change_within_bounds() {
        let secs = Duration::from_secs;
        let bounds = secs(5)..=secs(60);
        let mut tempo = Tempo::default();
        let next: Vec<u64> = [0.9, 0.0, 0.1, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 0.0]
            .map(|change| tempo.next(change, &bounds).as_secs())
            .to_vec();
        assert_eq!(next, [5, 10, 20, 40, 60, 60, 30, 15, 7, 5, 10]);
        tempo.hurry();
        assert_eq!(tempo.next(0.0, &bounds), secs(5));
    }

    #[test]
    fn a_single_outlier_counts_nothing() {
        let mut recent = Recent::default();
        assert_eq!(recent.middle(), None);
        for (value, middle) in [(9.0, 9.0), (8.0, 8.0), (1.0, 8.0), (9.0, 8.0), (1.0, 1.0)] {
            recent.push(value);
            assert_eq!(recent.middle(), Some(middle));
        }
        recent.forget_older();
        assert_eq!(recent.middle(), Some(1.0));
        recent.push(5.0);
        assert_eq!(recent.middle(), Some(5.0));
    }

    #[test]
    fn quiet_hours_may_pass_midnight() {
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
