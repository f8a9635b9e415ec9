//! Engine against kernel over the same two links, in pairs that alternate, so that other load of the
//! machine falls on both alike.

use braid::failure::Failure;
use serde::Serialize;

use crate::Arguments;
use crate::peers::{Direction, Run, Stack, transfer};
use crate::veth::Network;

/// Bounds of engine to kernel: the least rate in either direction, and the most processor time per Gbit
/// when the engine sends and when it receives.
const RATE_BAR: f64 = 0.9;
const SEND_CPU_BAR: f64 = 1.0;
const RECEIVE_CPU_BAR: f64 = 1.2;

/// The comparison in both directions.
#[derive(Debug, Serialize)]
pub struct Speed {
    congestion: String,
    bytes: u64,
    processors: usize,
    send: Comparison,
    receive: Comparison,
}

/// The comparison in one direction.
#[derive(Debug, Serialize)]
struct Comparison {
    kernel: Summary,
    engine: Summary,
    rate: Ratio,
    /// Ratio of the process's time per Gbit, in user space and in the kernel together.
    cpu: Ratio,
    /// Ratio of the machine's time, both ends together. There is no bound, because the kernel is the
    /// other end in either case.
    machine: Spread,
}

/// A ratio taken pair by pair, and the bound on its median.
#[derive(Debug, Serialize)]
pub struct Ratio {
    ratio: Spread,
    bar: f64,
    holds: bool,
}

/// Figures of one stack in one direction.
#[derive(Debug, Serialize)]
struct Summary {
    gbit_s: Spread,
    user_cpu_s_per_gbit: f64,
    system_cpu_s_per_gbit: f64,
    /// Share of the bytes on the less used link.
    lesser_link: f64,
}

/// Median and extremes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

/// Runs all pairs.
pub fn measure(arguments: &Arguments) -> Result<Speed, Failure> {
    let network = Network::up(&arguments.congestion)?;
    let compare = |direction, cpu_bar| {
        let mut runs: [Vec<Run>; 2] = [Vec::new(), Vec::new()];
        // The first pair warms caches and grows tables, so it does not count.
        for pair in 0..=arguments.pairs {
            for (stack, runs) in [Stack::Kernel, Stack::Engine].into_iter().zip(&mut runs) {
                let bytes = if pair == 0 {
                    arguments.bytes / 4
                } else {
                    arguments.bytes
                };
                let run = transfer(&network, stack, direction, bytes, &arguments.congestion)?;
                if pair > 0 {
                    runs.push(run);
                }
            }
            if !arguments.json {
                progress(direction, pair, &runs);
            }
        }
        Ok::<_, Failure>(Comparison::of(&runs, cpu_bar))
    };
    Ok(Speed {
        send: compare(Direction::Send, SEND_CPU_BAR)?,
        receive: compare(Direction::Receive, RECEIVE_CPU_BAR)?,
        congestion: arguments.congestion.clone(),
        bytes: arguments.bytes,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

fn progress(direction: Direction, pair: u32, [kernel, engine]: &[Vec<Run>; 2]) {
    if let (Some(kernel), Some(engine)) = (kernel.last(), engine.last()) {
        eprintln!(
            "{direction:?} pair {pair}: kernel {:.2}, engine {:.2} Gbit/s",
            kernel.gbit_s, engine.gbit_s
        );
    }
}

impl Comparison {
    fn of([kernel, engine]: &[Vec<Run>; 2], cpu_bar: f64) -> Comparison {
        let ratio = |of: fn(&Run) -> f64| {
            let pairs = kernel.iter().zip(engine);
            Spread::of(pairs.map(|(k, e)| of(e) / of(k)))
        };
        let rate = ratio(|run| run.gbit_s);
        let cpu = ratio(|run| run.user_per_gbit + run.system_per_gbit);
        Comparison {
            machine: ratio(|run| run.machine_per_gbit),
            kernel: Summary::of(kernel),
            engine: Summary::of(engine),
            rate: Ratio::at_least(rate, RATE_BAR),
            cpu: Ratio::at_most(cpu, cpu_bar),
        }
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Summary {
        Summary {
            gbit_s: Spread::of(runs.iter().map(|run| run.gbit_s)),
            user_cpu_s_per_gbit: Spread::of(runs.iter().map(|run| run.user_per_gbit)).median,
            system_cpu_s_per_gbit: Spread::of(runs.iter().map(|run| run.system_per_gbit)).median,
            lesser_link: Spread::of(runs.iter().map(|run| run.lesser_share)).median,
        }
    }
}

impl Ratio {
    pub fn at_least(ratio: Spread, bar: f64) -> Ratio {
        let holds = ratio.median >= bar;
        Ratio { ratio, bar, holds }
    }

    pub fn at_most(ratio: Spread, bar: f64) -> Ratio {
        let holds = ratio.median <= bar;
        Ratio { ratio, bar, holds }
    }

    pub fn more_than(ratio: Spread, bar: f64) -> Ratio {
        let holds = ratio.median > bar;
        Ratio { ratio, bar, holds }
    }

    /// Returns the ratio as text, and whether it is within the bound; `wanted` is `>=`, `<=` or `>`.
    pub fn text(&self, wanted: &str) -> String {
        format!(
            "{}, wanted {wanted} {}: {}",
            self.ratio.text(),
            self.bar,
            if self.holds { "holds" } else { "MISSED" }
        )
    }
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(middle)
        } else {
            (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
        };
        Spread {
            median,
            least: at(0),
            most: at(values.len().wrapping_sub(1)),
        }
    }
}

impl Speed {
    /// Prints the results as text.
    pub fn print(&self) {
        println!(
            "Speed over two veth links, {} GB a run, {}, {} processors, nothing pinned; median \
             (least to most)",
            self.bytes as f64 / 1e9,
            self.congestion,
            self.processors
        );
        println!(
            "  {:<9}{:<8}{:>24}{:>18}{:>20}{:>13}",
            "", "", "Gbit/s", "user ms/Gbit", "system ms/Gbit", "lesser link"
        );
        for (name, direction) in [("sends", &self.send), ("receives", &self.receive)] {
            for (stack, summary) in [("kernel", &direction.kernel), ("engine", &direction.engine)] {
                println!(
                    "  {:<9}{:<8}{:>24}{:>18.2}{:>20.2}{:>11.0} %",
                    name,
                    stack,
                    summary.gbit_s.text(),
                    summary.user_cpu_s_per_gbit * 1e3,
                    summary.system_cpu_s_per_gbit * 1e3,
                    summary.lesser_link * 100.0
                );
            }
            let ratios = [
                ("rate", &direction.rate, ">="),
                ("the process's time", &direction.cpu, "<="),
            ];
            for (what, of, wanted) in ratios {
                println!("  {name:<9}engine / kernel, {what}: {}", of.text(wanted));
            }
            println!(
                "  {name:<9}engine / kernel, the whole machine's time, both ends: {}",
                direction.machine.text()
            );
        }
    }
}

impl Spread {
    pub fn median(&self) -> f64 {
        self.median
    }

    /// Returns the spread multiplied by `scale`, for another unit.
    pub fn times(self, scale: f64) -> Spread {
        Spread {
            median: self.median * scale,
            least: self.least * scale,
            most: self.most * scale,
        }
    }

    /// Returns the median and, in parentheses, the extremes.
    pub fn text(&self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}
