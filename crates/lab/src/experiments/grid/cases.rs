//! The cases of a grid, and a lower bound on their completion times.

use serde::Deserialize;

use super::Start;
use crate::backend::Error;
use crate::case::{Case, DefaultPath, Records};
use crate::experiments::sweep;

/// A grid, which has a case for each combination of size, paths, loss, congestion control and start.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Sizes of flows.
    pub sizes: Vec<String>,
    /// Sets of paths, in the syntax of the command line. `L` stands for the loss of the poor path, and `H`
    /// for half of that loss.
    pub paths: Vec<String>,
    /// Loss on the poor path, percent.
    pub losses: Vec<f64>,
    /// Congestion controls.
    pub cc: Vec<String>,
    /// The records and subflows that exist before a run.
    pub starts: Vec<Start>,
}

impl Grid {
    /// Returns the number of cases.
    pub fn len(&self) -> usize {
        self.sizes.len() * self.paths.len() * self.losses.len() * self.cc.len() * self.starts.len()
    }

    /// Returns all cases, with the start of each.
    pub fn cases(&self, seed: u64) -> Result<Vec<(Start, Case)>, Error> {
        let mut cases = Vec::with_capacity(self.len());
        for start in &self.starts {
            for cc in &self.cc {
                for paths in &self.paths {
                    for loss in &self.losses {
                        for size in &self.sizes {
                            let case = Case {
                                cc: cc.clone(),
                                seed,
                                ..case(size, paths, *loss)?
                            };
                            cases.push((*start, start.of(case)));
                        }
                    }
                }
            }
        }
        Ok(cases)
    }
}

/// Returns the case of a size and a set of paths, with `loss` percent in place of `L`.
fn case(size: &str, paths: &str, loss: f64) -> Result<Case, Error> {
    let text = |loss: f64| format!("{loss}%");
    let paths = paths
        .replace('L', &text(loss))
        .replace('H', &text(loss / 2.0));
    Ok(Case {
        size: sweep::size(size)?,
        default_path: DefaultPath::Mix,
        ..sweep::case(&paths)?
    })
}

impl Start {
    /// Returns `case` with this start.
    fn of(self, case: Case) -> Case {
        Case {
            records: match self {
                Start::Cold => Records::Cold,
                Start::Warm | Start::Joined => Records::Warm,
            },
            warm_subflows: self == Start::Joined,
            ..case
        }
    }
}

/// Header bytes of a data segment: IPv4, TCP, timestamps, DSS.
const HEADERS: f64 = 20.0 + 20.0 + 12.0 + 20.0;
/// Payload bytes of a data segment in a packet of 1500 bytes.
const SEGMENT: f64 = 1500.0 - HEADERS;

/// Returns a lower bound on the mean completion time of `case`, ms.
///
/// The bound makes the best assumption about everything that a strategy cannot know. No packet is lost.
/// Windows never close. Every path delivers at its full rate from the time at which a first byte can have
/// crossed it. The connection opens on the path with the lowest round-trip time. Every further subflow
/// exists when the request arrives.
pub fn oracle_ms(case: &Case) -> f64 {
    // For each path: one-way delay in seconds, payload in bytes per second.
    let path = |spec: &crate::paths::PathSpec| {
        let rate = spec.rate.mean().unwrap_or(f64::INFINITY) / 8.0;
        (
            spec.rtt.as_secs_f64() / 2.0,
            rate * SEGMENT / (SEGMENT + HEADERS),
        )
    };
    let mut paths: Vec<(f64, f64)> = case.paths.specs().iter().map(path).collect();
    paths.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Established subflows need one trip for the request. A new connection needs three: SYN, SYN/ACK, and
    // the request with the third ACK.
    let lead = match case.warm_subflows {
        true => paths[0].0,
        false => 3.0 * paths[0].0,
    };
    // Until the time `end`, a path delivers rate × (end − arrives) bytes, where `arrives` is the arrival of
    // its first byte. The flow is complete at the `end` for which the sum over all paths is the size.
    let size = case.size.bytes() as f64;
    let (mut rate, mut ahead) = (0.0, 0.0);
    let mut end = f64::INFINITY;
    for (one_way, payload) in paths {
        let arrives = lead + one_way;
        if arrives >= end {
            break;
        }
        rate += payload;
        ahead += payload * arrives;
        end = (size + ahead) / rate;
    }
    end * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two paths of 5 Mb/s carry 595 kB/s of payload each. The first delivers from 80 ms on, the second
    /// from 110 ms on. At 110 ms 17.85 kB have arrived, and both paths share the rest.
    #[test]
    fn the_oracle_fills_every_path() {
        let case = case("64k", "5mbit,40ms,H;5mbit,100ms,L", 2.0).unwrap();
        assert_eq!(case.paths.to_string(), "5mbit,40ms,1%;5mbit,100ms,2%");
        let rate = 625_000.0 * 1428.0 / 1500.0;
        let expected = 110.0 + (65_536.0 - 0.03 * rate) / (2.0 * rate) * 1e3;
        assert!((oracle_ms(&case) - expected).abs() < 1e-6);
        let joined = Start::Joined.of(case);
        assert!((oracle_ms(&joined) - (expected - 40.0)).abs() < 1e-6);
    }

    /// Three packets arrive over the first path before a byte can arrive over the second.
    #[test]
    fn the_oracle_leaves_a_path_that_comes_too_late() {
        let case = case("4k", "5mbit,40ms,H;5mbit,100ms,L", 0.0).unwrap();
        let expected = 80.0 + 4096.0 / (625.0 * 1428.0 / 1500.0);
        assert!((oracle_ms(&case) - expected).abs() < 1e-6);
    }
}
