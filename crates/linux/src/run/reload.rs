//! Reads the server's configuration again, on a thread of its own: a disk may take its time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use braid_proxy::config::{ConfigError, ServerConfig};
use braid_proxy::control::Answer;
use rustix::event::{EventfdFlags, eventfd};

/// Who is told what became of it, if anybody.
type Asker = Option<SyncSender<Answer>>;

/// What was read, and for whom.
type Read = (Result<ServerConfig, ConfigError>, Asker);

/// The thread that reads. It ends with this value.
#[derive(Debug)]
pub(crate) struct Reloader {
    wishes: SyncSender<Asker>,
    read: Receiver<Read>,
    wake: Arc<OwnedFd>,
    /// What the thread works with, until it is started.
    work: Option<(Receiver<Asker>, SyncSender<Read>)>,
}

impl Reloader {
    /// Takes wishes, which wait until it is [started](Self::start).
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub(super) fn new() -> io::Result<Self> {
        // One from the control socket and one by signal; more of either would read the same again.
        let (wishes, to_read) = sync_channel(2);
        let (done, read) = sync_channel(2);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Reloader {
            wishes,
            read,
            wake: Arc::new(wake),
            work: Some((to_read, done)),
        })
    }

    /// Reads `file` whenever somebody wishes it from now on.
    ///
    /// # Errors
    /// Where threads are wanting.
    pub(super) fn start(&mut self, file: &Path) -> io::Result<()> {
        let Some((wishes, done)) = self.work.take() else {
            return Ok(());
        };
        let (file, wake) = (file.to_owned(), Arc::clone(&self.wake));
        let load = move || {
            for asker in wishes {
                if done.send((ServerConfig::load(&file), asker)).is_err() {
                    return;
                }
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned());
        thread.spawn(load).map(drop)
    }

    /// Has the file read. Where that is about to be done in any case, a signal asks for nothing more.
    pub(crate) fn begin(&self, asker: Asker) {
        if let Err(TrySendError::Full(Some(asker))) = self.wishes.try_send(asker) {
            let _ = asker.send(Answer::Error("it is being read already".to_owned()));
        }
    }

    /// Readable when something was read.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What was read next.
    pub(super) fn next(&self) -> Option<Read> {
        // Only resets the counter; what it says is of no interest.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.read.try_recv().ok()
    }
}

/// Takes a signal off its descriptor.
pub(super) fn take_signal(signal: BorrowedFd<'_>) {
    // Of `signalfd_siginfo` only that it came is of interest.
    let _ = rustix::io::read(signal, &mut [0u8; 128]);
}
