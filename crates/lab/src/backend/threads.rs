//! Threads of a measurement in wall-clock time, and blocking sockets whose calls end with it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use braid_testbed::kernel_tcp::{self, Transport};

/// Interval at which a run in wall-clock time checks whether it has ended, timed out or been interrupted.
/// A guess: short for a user who presses Ctrl-C, and rare beside the packets of a run.
pub(super) const END_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// True after a signal. It is static because a signal handler sets it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes runs in wall-clock time end soon with an error, so that they remove their namespaces and links. A
/// signal handler calls it.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Returns whether [`interrupt`] was called.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns the result of a thread, or passes on the thread's panic.
pub(super) fn join_thread<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// Tells the threads of a measurement to end.
#[derive(Debug, Default)]
pub(super) struct EndSignal {
    over: AtomicBool,
    deadline: Option<Instant>,
}

/// A guard that tells the threads to end when it is dropped.
pub(super) struct EndGuard<'a>(pub &'a EndSignal);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

impl EndSignal {
    /// Returns a signal that also tells the threads to end at `deadline`.
    pub fn at(deadline: Instant) -> Self {
        EndSignal {
            deadline: Some(deadline),
            ..EndSignal::default()
        }
    }

    /// Returns an error if the thread must end: `TimedOut` after the deadline, `ConnectionAborted` if another
    /// thread has ended.
    pub fn check(&self) -> io::Result<()> {
        let (kind, why) = if interrupted() {
            (ErrorKind::Other, "interrupted")
        } else if self.deadline.is_some_and(|at| at <= Instant::now()) {
            // The other end may have seen the deadline first and ended. The cause is the deadline, so it is
            // checked before `over`.
            (ErrorKind::TimedOut, "the transfer did not complete in time")
        } else if self.over.load(Ordering::Acquire) {
            (ErrorKind::ConnectionAborted, "the other end has ended")
        } else {
            return Ok(());
        };
        Err(io::Error::new(kind, why))
    }

    /// Repeats a read or write until it makes progress or fails, or until the thread must end. The socket lets
    /// a call return after [`END_CHECK_INTERVAL`] without progress.
    pub fn repeat(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            self.check()?;
            match call() {
                // A signal, such as SIGCONT, interrupts a call.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                other => return other,
            }
        }
    }

    /// Waits for a connection and accepts it.
    pub fn accept(&self, listener: &TcpListener, cc: &str) -> io::Result<TcpStream> {
        loop {
            self.check()?;
            if let Some(stream) = kernel_tcp::accept_within(listener, cc, END_CHECK_INTERVAL)? {
                return prepared(stream);
            }
        }
    }
}

/// Opens a connection from the address `from` to the address `to`.
pub(super) fn connect(
    [from, to]: [SocketAddr; 2],
    transport: Transport,
    cc: &str,
) -> io::Result<TcpStream> {
    prepared(kernel_tcp::connect(to, Some(from), transport, cc)?)
}

/// Makes the calls of the socket return after [`END_CHECK_INTERVAL`]. A drop of the socket resets the connection:
/// segments of an orderly close could appear in the next run.
fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    kernel_tcp::set_stall(&stream, END_CHECK_INTERVAL)?;
    kernel_tcp::reset_on_drop(&stream)?;
    Ok(stream)
}
