//! The processor time of a peer.

use std::fs;
use std::io;

use serde::Serialize;

/// The processor time that a process has used since its start. A peer prints its own as the last line of its
/// output.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// Time in user space and in the kernel together, seconds.
    pub cpu_seconds: f64,
    /// Time in user space, seconds.
    pub user_seconds: f64,
    /// Time in the kernel for the process, seconds.
    pub system_seconds: f64,
}

impl Cost {
    /// Returns the time of this process. It includes threads that have ended.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn so_far() -> io::Result<Cost> {
        Cost::of("self")
    }

    /// Returns the time of the process with this id.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(process: &str) -> io::Result<Cost> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The second field is the name in parentheses. It may contain spaces and parentheses, so the fields
        // are counted from the last `)`: user and system time are fields 14 and 15 (proc_pid_stat(5)).
        let mut times = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(11)
            .map(|field| field.parse::<u64>().unwrap_or(0));
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let mut next = || times.next().unwrap_or(0) as f64 / per_second;
        let (user_seconds, system_seconds) = (next(), next());
        Ok(Cost {
            cpu_seconds: user_seconds + system_seconds,
            user_seconds,
            system_seconds,
        })
    }
}
