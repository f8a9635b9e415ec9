//! Runs of other programs, and waits for them.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a wait checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds, for at most `limit`. Returns whether it holds.
pub(crate) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Runs `command` with `script` as its standard input, and waits for its end.
pub(crate) fn run_script(command: &mut Command, script: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program may stop reading at its first error. Its own message says more than the broken pipe here.
        let _ = stdin.write_all(script.as_bytes());
    }
    child.wait_with_output()
}
