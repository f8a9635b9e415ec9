//! Threads that stop when nothing needs them any more.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A thread that ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread for `work`, which must return soon after its argument has become true.
    pub fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Worker<T> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Worker {
            stop,
            thread: Some(thread::spawn(move || work(&stopped))),
        }
    }
}

impl<T> Worker<T> {
    /// Ends the thread. Returns the result of its work, or `None` if the thread was ended before.
    pub fn stop(&mut self) -> Option<T> {
        self.stop.store(true, Ordering::Release);
        let result = self.thread.take()?.join();
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let result = self.thread.take().map(JoinHandle::join);
        // A second panic while this thread unwinds would abort the process, and what it has set up would stay.
        if let Some(Err(panic)) = result
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
