//! Several ways to make the same transfers, side by side, size by size.

use super::outcome::Table;
use super::session::Session;
use crate::arm::{Arm, Error};
use crate::cell::{Cell, Records, RunResult, Size};
use crate::paths::PathError;
use crate::plot::{Axis, Body, Figure, Mark, Point, Scale, Series};
use crate::stats;

/// Every size, bytes.
pub const ALL: (u64, u64) = (0, u64::MAX);

/// Standard MPTCP as Linux does it, which keeps no records of its own for us.
pub const LINUX: Way = Way {
    name: "Linux MPTCP",
    arm: Some(Arm::Kernel),
    apply: |cell, _| cell.records = Records::Cold,
};

/// What is run.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Begins the names of its records.
    pub name: String,
    /// Sizes of the flows.
    pub sizes: &'static [&'static str],
    /// What all ways share; its size is not used.
    pub cell: Cell,
    /// The ways.
    pub ways: Vec<Way>,
}

/// One way to make the transfers.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// What tables and figures call it.
    pub name: &'static str,
    /// What it runs on, if that is not the experiment's own arm.
    pub arm: Option<Arm>,
    /// What sets it apart.
    pub apply: fn(&mut Cell, &str),
}

impl Way {
    /// With the strategy called `name`.
    pub const fn strategy(name: &'static str) -> Way {
        Way {
            name,
            arm: None,
            apply: |cell, name| cell.strategy = name.to_owned(),
        }
    }
}

/// A cell over `paths`, as they are written on the command line.
pub fn cell(paths: &str) -> Result<Cell, Error> {
    let paths = paths.parse();
    let paths = paths.map_err(|e: PathError| Error::Usage(e.to_string()))?;
    Ok(Cell::new(paths, size("1")?))
}

fn size(text: &str) -> Result<Size, Error> {
    let size = text.parse();
    size.map_err(|e: crate::cell::SizeError| Error::Usage(e.to_string()))
}

impl Sweep {
    /// The cells that run on `arm`, with their names.
    pub fn cells(&self, seed: u64, arm: Arm) -> Result<Vec<(String, Cell)>, Error> {
        let mut cells = Vec::new();
        for way in self
            .ways
            .iter()
            .filter(|way| way.arm.is_none_or(|own| own == arm))
        {
            for text in self.sizes {
                cells.push(self.cell(way, &size(text)?, seed));
            }
        }
        Ok(cells)
    }

    fn cell(&self, way: &Way, size: &Size, seed: u64) -> (String, Cell) {
        let mut cell = Cell {
            size: size.clone(),
            seed,
            ..self.cell.clone()
        };
        (way.apply)(&mut cell, way.name);
        let name = format!("{}-{size}-{}", self.name, way.name.replace(' ', "-"));
        (name, cell)
    }

    /// Measures them all.
    pub fn run(&self, session: &mut Session<'_>) -> Result<Swept, Error> {
        let mut swept = Swept {
            sizes: Vec::new(),
            ways: Vec::new(),
        };
        for text in self.sizes {
            swept.sizes.push(size(text)?);
        }
        session.parameter("paths", &self.cell.paths);
        session.parameter("congestion control", &self.cell.cc);
        session.parameter("initial window", self.cell.initial_window);
        session.parameter("queue", format!("{} packets each way", self.cell.queue));
        session.parameter("opens on path", self.cell.default_path);
        session.parameter("records of paths", self.cell.records.name());
        for way in &self.ways {
            let mut runs = Vec::new();
            for size in &swept.sizes {
                let (name, cell) = self.cell(way, size, session.seed());
                let arm = way.arm.unwrap_or(session.arm());
                runs.push(Runs(session.fct_on(arm, name, &cell)?));
            }
            swept.ways.push((way.name, runs));
        }
        Ok(swept)
    }
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Swept {
    /// The sizes.
    pub sizes: Vec<Size>,
    /// By way, the runs of each size.
    pub ways: Vec<(&'static str, Vec<Runs>)>,
}

impl Swept {
    /// The runs of a way, by size; none where there is no such way.
    pub fn of(&self, way: &str) -> &[Runs] {
        let found = self.ways.iter().find(|(name, _)| *name == way);
        found.map_or(&[], |(_, runs)| runs)
    }

    /// `value` of a way, by size, from `least` to `most` bytes.
    pub fn values(
        &self,
        way: &str,
        (least, most): (u64, u64),
        value: fn(&Runs) -> f64,
    ) -> Vec<(String, f64)> {
        let sizes = self.sizes.iter().zip(self.of(way));
        let within = sizes.filter(|(size, _)| (least..=most).contains(&size.bytes()));
        within
            .map(|(size, runs)| (size.to_string(), value(runs)))
            .collect()
    }

    /// `value` of a way as a share of the least of that of `others`, by size.
    pub fn shares(
        &self,
        way: &str,
        others: &[&str],
        sizes: (u64, u64),
        value: fn(&Runs) -> f64,
    ) -> Vec<(String, f64)> {
        let mut shares = self.values(way, sizes, value);
        let others: Vec<_> = others
            .iter()
            .map(|o| self.values(o, sizes, value))
            .collect();
        for (n, (_, share)) in shares.iter_mut().enumerate() {
            let best = others
                .iter()
                .filter_map(|o| o.get(n))
                .map(|(_, value)| *value);
            *share /= best.fold(f64::NAN, f64::min);
        }
        shares
    }

    /// Only the runs that opened on `path`, where they open on each of `paths` in turn.
    pub fn opened_on(&self, path: usize, paths: usize) -> Swept {
        let part = |runs: &Runs| Runs(runs.0.iter().skip(path).step_by(paths).cloned().collect());
        let ways = self.ways.iter();
        Swept {
            sizes: self.sizes.clone(),
            ways: ways
                .map(|(name, runs)| (*name, runs.iter().map(part).collect()))
                .collect(),
        }
    }

    /// Completion times: a row for each size, a column for each way.
    pub fn table(&self, title: &str) -> Table {
        let head = std::iter::once("size").chain(self.ways.iter().map(|(name, _)| *name));
        let row = |(n, size): (usize, &Size)| {
            let times = self.ways.iter().map(|(_, runs)| runs[n].text());
            std::iter::once(size.to_string()).chain(times).collect()
        };
        Table {
            title: format!("{title}; mean ± 95 % interval (standard deviation), ms"),
            columns: head.map(str::to_owned).collect(),
            rows: self.sizes.iter().enumerate().map(row).collect(),
        }
    }

    /// Mean completion time against size, with its 95 % interval.
    pub fn figure(&self, title: &str, note: &str) -> Figure {
        let series = self.ways.iter().map(|(name, runs)| Series {
            name: (*name).to_owned(),
            points: self
                .sizes
                .iter()
                .zip(runs)
                .map(|(size, runs)| {
                    Point::with_error(size.bytes() as f64, runs.mean(), runs.half_width())
                })
                .collect(),
            mark: Mark::Line,
        });
        Figure {
            title: title.to_owned(),
            note: format!("{note}; bars are 95 % intervals of the mean"),
            x: Axis::sizes("flow size (bytes)"),
            y: Axis {
                scale: Scale::Log,
                ..Axis::linear("flow completion time (ms)")
            },
            body: Body::Plane(series.collect()),
        }
    }

    /// One value of each way and size, as bars.
    pub fn bars(
        &self,
        title: &str,
        note: &str,
        (label, value): (&str, fn(&Runs) -> f64),
    ) -> Figure {
        let series = self.ways.iter().map(|(name, runs)| Series {
            name: (*name).to_owned(),
            points: runs
                .iter()
                .map(|runs| Point::new(0.0, value(runs)))
                .collect(),
            mark: Mark::Line,
        });
        Figure {
            title: title.to_owned(),
            note: note.to_owned(),
            x: Axis::sizes("flow size (bytes)"),
            y: Axis::linear(label),
            body: Body::Bars {
                groups: self.sizes.iter().map(ToString::to_string).collect(),
                series: series.collect(),
            },
        }
    }
}

/// The runs of a cell, in their order.
#[derive(Debug, Clone)]
pub struct Runs(pub Vec<RunResult>);

impl Runs {
    /// Completion times, ms; no number for a flow that did not arrive.
    pub fn fct(&self) -> Vec<f64> {
        self.times(|run| run.fct)
    }

    /// The same from the first byte of the response.
    pub fn fct_data(&self) -> Vec<f64> {
        self.times(|run| run.fct_data)
    }

    fn times(&self, of: fn(&RunResult) -> std::time::Duration) -> Vec<f64> {
        let time = |run: &RunResult| match run.completed {
            true => of(run).as_nanos() as f64 / 1e6,
            false => f64::NAN,
        };
        self.0.iter().map(time).collect()
    }

    /// Mean completion time, ms.
    pub fn mean(&self) -> f64 {
        stats::mean(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Standard deviation of the completion time, ms.
    pub fn sd(&self) -> f64 {
        stats::standard_deviation(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Standard deviation of the time from the first byte of the response, ms.
    pub fn data_sd(&self) -> f64 {
        stats::standard_deviation(&self.fct_data()).unwrap_or(f64::NAN)
    }

    /// Bytes sent on a path, in all runs.
    pub fn bytes(&self, path: usize) -> f64 {
        let on_path = self.0.iter().filter_map(|run| run.bytes_by_path.get(path));
        on_path.sum::<u64>() as f64
    }

    /// Copies as a share of the packets sent on a path while unsent data remained, all runs
    /// together.
    pub fn copies(&self, path: usize) -> f64 {
        let sum = |of: fn(&RunResult) -> &Vec<u64>| {
            self.0
                .iter()
                .filter_map(|run| of(run).get(path))
                .sum::<u64>() as f64
        };
        sum(|run| &run.copies_by_path) / sum(|run| &run.packets_by_path)
    }

    /// Retransmission timeouts per flow.
    pub fn rtos(&self) -> f64 {
        self.sum(|run| run.rtos) / self.0.len() as f64
    }

    /// Share of flows that had a retransmission timeout.
    pub fn timed_out(&self) -> f64 {
        let hit = self.0.iter().filter(|run| run.rtos > 0).count();
        hit as f64 / self.0.len() as f64
    }

    /// Half the 95 % interval of the mean, ms; 0 where one run alone says nothing of it.
    pub fn half_width(&self) -> f64 {
        stats::half_width(&self.fct(), 0.95).unwrap_or(0.0)
    }

    /// Sum over all runs.
    pub fn sum(&self, of: fn(&RunResult) -> u64) -> f64 {
        self.0.iter().map(of).sum::<u64>() as f64
    }

    fn text(&self) -> String {
        let (mean, half, sd) = (self.mean(), self.half_width(), self.sd());
        match self.0.len() {
            0 | 1 => format!("{mean:.1}"),
            _ => format!("{mean:.1} ± {half:.1} ({sd:.1})"),
        }
    }
}
