//! Reads a configuration again, on a thread of its own: a disk may take its time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use braid_proxy::config::{BoxConfig, Changes, ConfigError, ServerConfig};
use braid_proxy::control::Answer;
use rustix::event::{EventfdFlags, eventfd};

use super::signals::take_signal;
use crate::net::{Result, SystemError};

/// Where a box or a server reads its configuration again, and when.
#[derive(Debug, Clone, Copy)]
pub struct Reload<'a> {
    /// The file.
    pub file: &'a Path,
    /// Readable when SIGHUP has come. Besides, the control socket may ask for it.
    pub signal: BorrowedFd<'a>,
}

/// A configuration that can be read from a file.
pub(super) trait Readable: Sized + Send + 'static {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError>;
}

impl Readable for BoxConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        BoxConfig::load(file)
    }
}

impl Readable for ServerConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        ServerConfig::load(file)
    }
}

/// Who is told what became of it, if anybody.
type Asker = Option<SyncSender<Answer>>;

/// What was read, and for whom.
type Read<C> = (std::result::Result<C, ConfigError>, Asker);

/// Where it is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wishes(SyncSender<Asker>);

impl Wishes {
    /// Has the file read. Where that is about to be done in any case, a signal asks for nothing more.
    pub(crate) fn begin(&self, asker: Asker) {
        if let Err(TrySendError::Full(Some(asker))) = self.0.try_send(asker) {
            let _ = asker.send(Answer::Error("it is being read already".to_owned()));
        }
    }
}

/// A configuration that may be read again. The thread that reads ends with this value.
#[derive(Debug)]
pub(super) struct Again<'a, C> {
    /// What runs now.
    pub config: C,
    pub file: &'a Path,
    signal: BorrowedFd<'a>,
    pub wishes: Wishes,
    read: Receiver<Read<C>>,
    wake: Arc<OwnedFd>,
    /// What the thread works with, until it is started.
    work: Option<(Receiver<Asker>, SyncSender<Read<C>>)>,
}

impl<'a, C: Readable> Again<'a, C> {
    /// Takes wishes, which wait until it is [started](Self::start).
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub fn new(reload: Reload<'a>, config: C) -> Result<Self> {
        // One from the control socket and one by signal; more of either would read the same again.
        let (wishes, to_read) = sync_channel(2);
        let (done, read) = sync_channel(2);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(SystemError::doing("wait for configurations"))?;
        Ok(Again {
            config,
            file: reload.file,
            signal: reload.signal,
            wishes: Wishes(wishes),
            read,
            wake: Arc::new(wake),
            work: Some((to_read, done)),
        })
    }

    /// Reads the file whenever somebody wishes it from now on.
    ///
    /// # Errors
    /// Where threads are wanting.
    pub fn start(&mut self) -> io::Result<()> {
        let Some((wishes, done)) = self.work.take() else {
            return Ok(());
        };
        let (file, wake) = (self.file.to_owned(), Arc::clone(&self.wake));
        let load = move || {
            for asker in wishes {
                if done.send((C::read(&file), asker)).is_err() {
                    return;
                }
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned());
        thread.spawn(load).map(drop)
    }

    /// Readable when SIGHUP has come.
    pub fn signal(&self) -> BorrowedFd<'a> {
        self.signal
    }

    /// Readable when something was read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// SIGHUP has come: the file is read.
    pub fn on_signal(&self) {
        take_signal(self.signal);
        self.wishes.begin(None);
    }

    /// What was read next.
    pub fn next(&self) -> Option<Read<C>> {
        // Only resets the counter; what it says is of no interest.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.read.try_recv().ok()
    }
}

/// Says what a configuration that was read again changes, in the log and to whoever asked.
pub(super) fn tell(outcome: std::result::Result<Changes, Answer>, asker: Asker) {
    let answer = match outcome {
        Ok(changes) => {
            if changes.restart.is_empty() {
                tracing::info!("configuration read again: {changes}");
            } else {
                tracing::warn!("configuration read again: {changes}");
            }
            Answer::Reloaded(changes)
        }
        Err(refused) => {
            if let Answer::Error(why) = &refused {
                tracing::error!("the configuration stays as it was: {why}");
            }
            refused
        }
    };
    if let Some(asker) = asker {
        // The client may have lost patience.
        let _ = asker.send(answer);
    }
}

/// A file with a mistake changes nothing.
pub(super) fn refuse(error: &ConfigError) -> Answer {
    tracing::error!("the configuration stays as it was: {}", error.headline());
    Answer::Wrong(error.to_string())
}
