//! Placement of servers as in T-MPTCP (see [`selection`](super::selection)), based on measurements by the boxes
//! that would use the servers.

use serde::{Deserialize, Serialize};

use super::selection::{Measured, Need};

/// The round-trip time assumed for a box that reaches none of the sites, ms. The value is a guess. It is longer
/// than usual round-trip times, so that reaching a further box counts more than shorter times for other boxes.
const UNREACHED_MS: f64 = 1_000.0;

/// A server, or a place where a server could be rented, with the measurements of one box.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// The site's name, which is the same for all boxes.
    pub name: String,
    /// The box's measurements.
    pub measured: Measured,
}

/// One step of a plan: the next site at which to rent a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The site's name.
    pub name: String,
    /// The mean over all boxes of the bandwidth through this site alone, bit/s; 0 for a box that does not reach
    /// it.
    pub bandwidth: f64,
    /// The mean over all boxes of the shortest round-trip time through this site alone, ms; 1,000 for a box that
    /// does not reach it.
    pub delay_ms: f64,
    /// The mean over all boxes, bit/s or ms, if each box uses the best for it among this site and the sites of
    /// earlier steps.
    pub together: f64,
}

/// Orders the sites of all `boxes`. Each step adds the site that improves the mean most, given the sites of
/// earlier steps. This greedy order is not always optimal for a given number of sites, but it tells where to
/// begin.
pub fn plan(need: Need, boxes: &[Vec<Site>]) -> Vec<Step> {
    let mut remaining: Vec<&str> = Vec::new();
    for site in boxes.iter().flatten() {
        if !remaining.contains(&site.name.as_str()) {
            remaining.push(&site.name);
        }
    }
    let mut chosen: Vec<&str> = Vec::new();
    let mut steps = Vec::new();
    while !remaining.is_empty() {
        let with = |name: &&str| {
            let mut sites = chosen.clone();
            sites.push(name);
            benefit(need, boxes, &sites)
        };
        // `max_by` returns the last of equal elements, so the reversed order yields the first site.
        let worth: Vec<f64> = remaining.iter().map(with).collect();
        let best = (0..remaining.len())
            .rev()
            .max_by(|a, b| worth[*a].total_cmp(&worth[*b]));
        let name = remaining.remove(best.unwrap_or(0));
        chosen.push(name);
        steps.push(Step {
            name: name.to_owned(),
            bandwidth: benefit(Need::Throughput, boxes, &[name]),
            delay_ms: -benefit(Need::Latency, boxes, &[name]),
            together: benefit(need, boxes, &chosen).abs(),
        });
    }
    steps
}

/// Returns the mean over all boxes of the value of each box's best site among `sites`. Higher is better, so delays
/// are negative.
fn benefit(need: Need, boxes: &[Vec<Site>], sites: &[&str]) -> f64 {
    let of_box = |measured: &Vec<Site>| {
        let usable = measured.iter().filter(|s| sites.contains(&s.name.as_str()));
        let values = usable.filter_map(|site| match need {
            Need::Throughput => site.measured.bandwidth(),
            Need::Latency => {
                // A place without a server has no egress metrics; the time to the site stands for the whole.
                let egress = site.measured.egress.delay_ms.is_some();
                site.measured.delay_ms(egress).map(|ms| -ms)
            }
        });
        let unreached = match need {
            Need::Throughput => 0.0,
            Need::Latency => -UNREACHED_MS,
        };
        values.reduce(f64::max).unwrap_or(unreached)
    };
    boxes.iter().map(of_box).sum::<f64>() / boxes.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::selection::Quality;

    /// Creates a site with one path to it, and without egress metrics.
    fn site(name: &str, mbit: f64, ms: f64) -> Site {
        let path = Quality {
            bandwidth: Some(mbit * 1e6),
            delay_ms: Some(ms),
        };
        let measured = Measured {
            paths: vec![path],
            egress: Quality::default(),
        };
        Site {
            name: name.to_owned(),
            measured,
        }
    }

    /// Returns name and joint benefit of each step of the plan.
    fn order(need: Need, boxes: &[Vec<Site>]) -> Vec<(String, f64)> {
        let steps = plan(need, boxes).into_iter();
        steps.map(|s| (s.name, s.together)).collect()
    }

    #[test]
    fn the_second_site_helps_the_boxes_that_the_first_serves_badly() {
        // Two boxes in the north, one in the south.
        let north = || {
            vec![
                site("oslo", 40.0, 10.0),
                site("bern", 38.0, 20.0),
                site("rome", 5.0, 50.0),
            ]
        };
        let south = vec![
            site("oslo", 5.0, 60.0),
            site("bern", 20.0, 30.0),
            site("rome", 40.0, 10.0),
        ];
        let boxes = [north(), north(), south];
        let named = |all: &[(&str, f64)]| {
            let all = all.iter().map(|(name, value)| ((*name).to_owned(), *value));
            all.collect::<Vec<_>>()
        };
        // Mbit/s: bern (38 + 38 + 20) / 3 = 32; with rome (38 + 38 + 40) / 3; with oslo (40 + 40 + 40) / 3.
        let expected = named(&[("bern", 32e6), ("rome", 116e6 / 3.0), ("oslo", 40e6)]);
        assert_eq!(order(Need::Throughput, &boxes), expected);
        // ms: bern (20 + 20 + 30) / 3; with oslo (10 + 10 + 30) / 3; with rome (10 + 10 + 10) / 3.
        let expected = named(&[("bern", 70.0 / 3.0), ("oslo", 50.0 / 3.0), ("rome", 10.0)]);
        assert_eq!(order(Need::Latency, &boxes), expected);
    }

    #[test]
    fn a_site_is_of_no_use_to_a_box_that_does_not_reach_it() {
        let boxes = [
            vec![site("oslo", 40.0, 10.0)],
            vec![site("rome", 30.0, 10.0)],
            Vec::new(),
        ];
        // Three boxes, of which one reaches oslo, one rome, and one nothing: 40 / 3 Mbit/s, and (10 + 1,000 +
        // 1,000) / 3 ms.
        let steps = plan(Need::Throughput, &boxes);
        assert_eq!(
            (steps[0].name.as_str(), steps[0].together),
            ("oslo", 40e6 / 3.0)
        );
        assert_eq!(steps[0].delay_ms, 2_010.0 / 3.0);
        assert!(plan(Need::Latency, &[]).is_empty());
    }
}
