//! The processor time of a peer process.

use std::fs;
use std::io;

use serde::Serialize;

/// Processor time of a process since its start. A peer prints its own as the last line of its output.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// In user space and in the kernel together, seconds.
    pub cpu_seconds: f64,
    /// In user space, seconds.
    pub user_seconds: f64,
    /// In the kernel on behalf of the process, seconds.
    pub system_seconds: f64,
}

impl Cost {
    /// Returns the time of all threads of this process, ended ones included.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn so_far() -> io::Result<Cost> {
        Cost::of("self")
    }

    /// Returns the time of `process`: a process ID, or `self`.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(process: &str) -> io::Result<Cost> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The second field, the name, is in parentheses and may contain anything. Fields are therefore
        // counted from the last parenthesis, after which field 3 begins. The times are fields 14 and 15
        // (proc_pid_stat(5)).
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let mut times = after_name.split_whitespace().skip(11);
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let mut next = || {
            let ticks = times.next().and_then(|field| field.parse().ok());
            ticks.unwrap_or(0.0) / per_second
        };
        let (user_seconds, system_seconds) = (next(), next());
        Ok(Cost {
            cpu_seconds: user_seconds + system_seconds,
            user_seconds,
            system_seconds,
        })
    }
}
