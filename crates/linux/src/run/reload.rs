//! Reads a configuration again, on a thread of its own, since a disk may be slow.

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

/// The configuration file of a box or a server, and the signal to read it again.
#[derive(Debug, Clone, Copy)]
pub struct Reload<'a> {
    /// The file.
    pub file: &'a Path,
    /// Readable when SIGHUP has come. The control socket may ask for the same.
    pub signal: BorrowedFd<'a>,
}

/// A configuration that can be read from a file.
pub(super) trait Readable: Sized + Send + 'static {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError>;
}

impl Readable for BoxConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        BoxConfig::load(file).inspect(|config| warn_of_old(&config.deprecated))
    }
}

impl Readable for ServerConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        ServerConfig::load(file).inspect(|config| warn_of_old(&config.deprecated))
    }
}

/// Logs the warnings about settings at places of the last version.
fn warn_of_old(deprecated: &[ConfigError]) {
    for warning in deprecated {
        let hint = warning.hint.as_deref().unwrap_or_default();
        tracing::warn!("{}; to do: {hint}", warning.headline());
    }
}

/// The client that waits for the outcome, if there is one.
type Asker = Option<SyncSender<Answer>>;

/// The result of reading, and the client that waits for it.
type Read<C> = (std::result::Result<C, ConfigError>, Asker);

/// The queue of requests to read the file again.
#[derive(Debug, Clone)]
pub(crate) struct ReloadRequests(SyncSender<Asker>);

impl ReloadRequests {
    /// Queues a request to read the file. A signal adds nothing if requests wait already.
    pub(crate) fn begin(&self, asker: Asker) {
        if let Err(TrySendError::Full(Some(asker))) = self.0.try_send(asker) {
            let _ = asker.send(Answer::Error(
                "another reload of the configuration is under way".to_owned(),
            ));
        }
    }
}

/// A configuration that may be read again. The thread that reads ends with this value.
#[derive(Debug)]
pub(super) struct Reloader<'a, C> {
    /// The configuration in force.
    pub config: C,
    pub file: &'a Path,
    signal: BorrowedFd<'a>,
    pub reload_requests: ReloadRequests,
    read: Receiver<Read<C>>,
    wake: Arc<OwnedFd>,
    /// The thread's ends of the channels, until it is started.
    work: Option<(Receiver<Asker>, SyncSender<Read<C>>)>,
}

impl<'a, C: Readable> Reloader<'a, C> {
    /// Accepts requests, which wait until the thread is [started](Self::start).
    ///
    /// # Errors
    /// Fails if descriptors run out.
    pub fn new(reload: Reload<'a>, config: C) -> Result<Self> {
        // One from the control socket and one by signal; more of either would read the same again.
        let (reload_requests, to_read) = sync_channel(2);
        let (done, read) = sync_channel(2);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(SystemError::cannot("wait for configurations"))?;
        Ok(Reloader {
            config,
            file: reload.file,
            signal: reload.signal,
            reload_requests: ReloadRequests(reload_requests),
            read,
            wake: Arc::new(wake),
            work: Some((to_read, done)),
        })
    }

    /// Starts the thread, which reads the file at each request.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(&mut self) -> io::Result<()> {
        let Some((reload_requests, done)) = self.work.take() else {
            return Ok(());
        };
        let (file, wake) = (self.file.to_owned(), Arc::clone(&self.wake));
        let load = move || {
            for asker in reload_requests {
                if done.send((C::read(&file), asker)).is_err() {
                    return;
                }
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned());
        thread.spawn(load).map(drop)
    }

    /// Returns the descriptor that is readable when SIGHUP has come.
    pub fn signal(&self) -> BorrowedFd<'a> {
        self.signal
    }

    /// Returns the descriptor that is readable when a configuration was read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Handles SIGHUP: the file is read again.
    pub fn on_signal(&self) {
        take_signal(self.signal);
        self.reload_requests.begin(None);
    }

    /// Returns the next configuration that was read.
    pub fn next(&self) -> Option<Read<C>> {
        // Resets the counter; its value does not matter.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.read.try_recv().ok()
    }
}

/// Reports what a reloaded configuration changes, in the log and to the client that asked.
pub(super) fn tell(outcome: std::result::Result<Changes, Answer>, asker: Asker) {
    let answer = match outcome {
        Ok(changes) => {
            if changes.restart.is_empty() {
                tracing::info!("reloaded the configuration: {changes}");
            } else {
                tracing::warn!("reloaded the configuration: {changes}");
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
        // The client may have timed out.
        let _ = asker.send(answer);
    }
}

/// Logs the mistake in a file, which changes nothing, and returns the answer.
pub(super) fn refuse(error: &ConfigError) -> Answer {
    tracing::error!("the configuration stays as it was: {}", error.headline());
    Answer::Wrong(error.to_string())
}
