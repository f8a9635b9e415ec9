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
    /// The descriptor that is readable when SIGHUP was received. A client of the control socket may also request
    /// a reload.
    pub signal: BorrowedFd<'a>,
}

/// A configuration that can be read from a file.
pub(super) trait Readable: Sized + Send + 'static {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError>;
}

impl Readable for BoxConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        BoxConfig::load(file).inspect(|config| warn_of_deprecated(&config.deprecated))
    }
}

impl Readable for ServerConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        ServerConfig::load(file).inspect(|config| warn_of_deprecated(&config.deprecated))
    }
}

/// Logs a warning for each setting that has its deprecated name or place.
fn warn_of_deprecated(deprecated: &[ConfigError]) {
    for warning in deprecated {
        let hint = warning.hint.as_deref().unwrap_or_default();
        tracing::warn!("{}; to do: {hint}", warning.headline());
    }
}

/// The channel to the client that waits for the outcome; `None` after a signal.
type Client = Option<SyncSender<Answer>>;

/// The result of a read, and the client that waits for the outcome.
type Read<C> = (std::result::Result<C, ConfigError>, Client);

/// The queue of requests to read the file again.
#[derive(Debug, Clone)]
pub(crate) struct ReloadRequests(SyncSender<Client>);

impl ReloadRequests {
    /// Queues a request to read the file. If the queue is full, a client gets an error, and a signal is ignored:
    /// the waiting requests read the same file.
    pub(crate) fn begin(&self, client: Client) {
        if let Err(TrySendError::Full(Some(client))) = self.0.try_send(client) {
            let _ = client.send(Answer::Error(
                "another reload of the configuration is under way".to_owned(),
            ));
        }
    }
}

/// The configuration in use, and the thread that reads it again. The thread ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Reloader<'a, C> {
    /// The configuration in use.
    pub config: C,
    pub file: &'a Path,
    signal: BorrowedFd<'a>,
    pub reload_requests: ReloadRequests,
    read: Receiver<Read<C>>,
    wake: Arc<OwnedFd>,
    /// The channels that the thread takes when it is started.
    thread_channels: Option<(Receiver<Client>, SyncSender<Read<C>>)>,
}

impl<'a, C: Readable> Reloader<'a, C> {
    /// Returns a reloader. Requests wait until its thread is [started](Self::start).
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn new(reload: Reload<'a>, config: C) -> Result<Self> {
        // The queue has room for a request of the control socket, which serves one client at a time, and for a
        // request by signal. A further signal would only make the thread read the same file again.
        let (reload_requests, to_read) = sync_channel(2);
        let (results, read) = sync_channel(2);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(SystemError::cannot("wait for configurations"))?;
        Ok(Reloader {
            config,
            file: reload.file,
            signal: reload.signal,
            reload_requests: ReloadRequests(reload_requests),
            read,
            wake: Arc::new(wake),
            thread_channels: Some((to_read, results)),
        })
    }

    /// Starts the thread, which reads the file at each request.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(&mut self) -> io::Result<()> {
        let Some((reload_requests, results)) = self.thread_channels.take() else {
            return Ok(());
        };
        let (file, wake) = (self.file.to_owned(), Arc::clone(&self.wake));
        let load = move || {
            for client in reload_requests {
                if results.send((C::read(&file), client)).is_err() {
                    return;
                }
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned());
        thread.spawn(load).map(drop)
    }

    /// Returns the descriptor that is readable when SIGHUP was received.
    pub fn signal(&self) -> BorrowedFd<'a> {
        self.signal
    }

    /// Returns the descriptor that is readable when a configuration was read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Handles SIGHUP: queues a request to read the file.
    pub fn on_signal(&self) {
        take_signal(self.signal);
        self.reload_requests.begin(None);
    }

    /// Returns the next result of the thread, if there is one.
    pub fn next(&self) -> Option<Read<C>> {
        // Resets the counter of the eventfd, so that it is no longer readable.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        self.read.try_recv().ok()
    }
}

/// Reports what a reloaded configuration changes, in the log and to the client that asked.
pub(super) fn report(outcome: std::result::Result<Changes, Answer>, client: Client) {
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
            if let Answer::Error(reason) = &refused {
                tracing::error!("the configuration stays as it was: {reason}");
            }
            refused
        }
    };
    if let Some(client) = client {
        // Sending fails if the client no longer waits, because its timeout is over.
        let _ = client.send(answer);
    }
}

/// Logs the mistake in a configuration file, and returns the answer for the client. The configuration in use
/// stays.
pub(super) fn refuse(error: &ConfigError) -> Answer {
    tracing::error!("the configuration stays as it was: {}", error.headline());
    Answer::Wrong(error.to_string())
}
