//! Reads a configuration again, on a thread of its own, since a disk may be slow.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
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

    /// Returns the path of the control socket that the file names.
    fn control(&mut self) -> &mut Option<PathBuf>;

    /// Names the control socket by its `default` path if the file names none. A reload compares the names, and a
    /// file may name the default path too.
    fn with_control(mut self, default: &Path) -> Self {
        self.control().get_or_insert_with(|| default.to_owned());
        self
    }
}

impl Readable for BoxConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        BoxConfig::load(file).inspect(|config| warn_of_deprecated(&config.deprecated))
    }

    fn control(&mut self) -> &mut Option<PathBuf> {
        &mut self.control
    }
}

impl Readable for ServerConfig {
    fn read(file: &Path) -> std::result::Result<Self, ConfigError> {
        ServerConfig::load(file).inspect(|config| warn_of_deprecated(&config.deprecated))
    }

    fn control(&mut self) -> &mut Option<PathBuf> {
        &mut self.control
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
    default_control: PathBuf,
    signal: BorrowedFd<'a>,
    pub reload_requests: ReloadRequests,
    read: Receiver<Read<C>>,
    wake: Arc<OwnedFd>,
    /// The channels that the thread takes when it is started.
    thread_channels: Option<(Receiver<Client>, SyncSender<Read<C>>)>,
}

impl<'a, C: Readable> Reloader<'a, C> {
    /// Returns a reloader of an instance whose control socket is at `default_control` unless the file names
    /// another path. Requests wait until the reloader's thread is [started](Self::start).
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn new(reload: Reload<'a>, config: C, default_control: PathBuf) -> Result<Self> {
        // The queue has room for a request of the control socket, which serves one client at a time, and for a
        // request by signal. A further signal would only make the thread read the same file again.
        let (reload_requests, to_read) = sync_channel(2);
        let (results, read) = sync_channel(2);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(SystemError::cannot("wait for configurations"))?;
        Ok(Reloader {
            config: config.with_control(&default_control),
            file: reload.file,
            default_control,
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
        let (read, client) = self.read.try_recv().ok()?;
        let read = read.map(|config| config.with_control(&self.default_control));
        Some((read, client))
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

#[cfg(test)]
mod tests {
    use braid_secure::keys::PrivateKey;

    use super::*;

    #[test]
    fn the_default_control_socket_by_its_name_is_no_change() {
        let read = |line: &str| {
            let key = PrivateKey::from_seed([1; 32]);
            let of_server = PrivateKey::from_seed([2; 32]).public();
            let text = format!(
                "{line}\nlan = \"lan0\"\n[[link]]\ninterface = \"wan0\"\n\
                 [server]\naddress = \"203.0.113.7\"\nkey = \"{of_server}\"\n"
            );
            let config = BoxConfig::with_key("box.toml", &text, key);
            config
                .unwrap()
                .with_control(Path::new("/run/braid/box-braid0.sock"))
        };
        let mut running = read("");
        let named = running.reload(read("control = \"/run/braid/box-braid0.sock\""));
        assert_eq!(named, Changes::default());
        let other = running.reload(read("control = \"/run/braid/other.sock\""));
        assert_eq!(other.restart, ["control"]);
    }
}
