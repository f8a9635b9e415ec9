//! Signals that end the demo.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid::failure::Failure;

/// A flag that SIGINT, SIGTERM and SIGHUP set. Code that waits polls it, so that the testbed is removed before
/// the process ends.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handler, once in a process, and returns its flag.
    pub fn install() -> Result<Self, Failure> {
        let interrupt = Interrupt::default();
        let flag = Arc::clone(&interrupt.0);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .map_err(|e| Failure::run("cannot handle signals", e))?;
        Ok(interrupt)
    }

    /// Returns whether a signal came.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
