//! Processor time, of processes and of the whole machine.

use std::fs;
use std::ops::Range;

use braid::failure::Failure;
use braid_lab::kernel_peer;

/// Processor time, in seconds: since the start, or between two readings.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Time of the watched processes, in user space and in the kernel on their behalf.
    pub processes: f64,
    /// Time in which the machine's processors were not idle. The kernel charges its work on arriving
    /// packets to the process that happens to run, often the sender; only this figure counts that work
    /// for certain.
    pub machine: f64,
}

impl Cost {
    /// Reads the time used so far by the machine and by the processes `pids`.
    pub fn now(pids: &[u32]) -> Result<Cost, Failure> {
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let mut processes = 0.0;
        for pid in pids {
            processes += kernel_peer::Cost::of(&pid.to_string())?.cpu_seconds;
        }
        let stat = fs::read_to_string("/proc/stat")?;
        let all = stat.lines().next().unwrap_or_default();
        let all = all.strip_prefix("cpu").unwrap_or_default();
        // The order of proc(5) is user, nice, system, idle, iowait, irq, softirq; idle and iowait do
        // not count.
        let machine = (sum(all, 0..3) + sum(all, 5..7)) / per_second;
        Ok(Cost { processes, machine })
    }

    /// Returns the time used since an earlier reading.
    pub fn since(self, before: &Cost) -> Cost {
        Cost {
            processes: self.processes - before.processes,
            machine: self.machine - before.machine,
        }
    }
}

fn sum(fields: &str, which: Range<usize>) -> f64 {
    let numbers = fields.split_whitespace().map(|field| field.parse::<f64>());
    let numbers = numbers.skip(which.start).take(which.len());
    numbers.map(|number| number.unwrap_or(0.0)).sum()
}
