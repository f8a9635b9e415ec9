//! The control socket of a running box or server, and its client.
//!
//! A thread serves clients one after another, and bounds the time and the size of each request. So the event
//! loop never waits for a client and keeps no state for clients: it gets only complete requests. For each
//! request it returns plain data, which the thread serialises.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use braid_engine::Stack;
use braid_proxy::control::{Answer, Controlled, Request};
use braid_wire::Instant;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    shutdown, socket_with,
};

use crate::lines;
use crate::run::ReloadRequests;

/// Maximum time for a client to send its request, and to receive each part of the answer. The value is a guess:
/// far more than a local program needs, and short enough for the clients that wait.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for the event loop to answer. The value is a guess: the loop answers within milliseconds unless
/// it is overloaded.
const LOOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a request in bytes. Requests have a few dozen bytes.
const MAX_REQUEST_LEN: usize = 4 << 10;
/// Maximum length of an answer in bytes. The longest answer lists 256 connections with 16 paths each, and is
/// shorter.
const MAX_ANSWER_LEN: usize = 4 << 20;
/// Pause before the next attempt if a client cannot be accepted, usually because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of clients that wait while another is served. The number is a guess.
const BACKLOG: i32 = 128;

/// A request that waits for the event loop.
struct Pending {
    request: Request,
    /// The channel for the one answer to the request.
    answer: SyncSender<Answer>,
}

/// The control socket of this process. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    wake: Arc<OwnedFd>,
    /// The sender of requests. The thread that serves clients takes it when the thread is started.
    requests: Option<SyncSender<Pending>>,
    /// The requests that wait for the event loop.
    pending: Receiver<Pending>,
    opened: std::time::Instant,
}

impl ControlSocket {
    /// Listens at `path`. Only the user of this process may connect. Creates the directory of the socket if the
    /// parent of the directory exists, and replaces a socket that no process serves. Clients wait until
    /// [`Self::start`].
    ///
    /// # Errors
    /// Fails if the socket cannot be created: with `AddrInUse` if another process serves `path`.
    pub(crate) fn open(path: &Path) -> io::Result<ControlSocket> {
        if let Some(directory) = path.parent() {
            match DirBuilder::new().mode(0o755).create(directory) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        match connect_within(path, CLIENT_TIMEOUT) {
            Ok(_) => return Err(ErrorKind::AddrInUse.into()),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {}
                // A process that accepts no clients still holds its socket.
                ErrorKind::TimedOut => return Err(ErrorKind::AddrInUse.into()),
                _ => return Err(error),
            },
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = Arc::new(listen_privately(path)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // One client is served at a time, so at most one request waits.
        let (requests, pending) = sync_channel(1);
        Ok(ControlSocket {
            path: path.to_owned(),
            listener,
            wake: Arc::new(wake),
            requests: Some(requests),
            pending,
            opened: std::time::Instant::now(),
        })
    }

    /// Starts the thread that serves clients.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let Some(requests) = self.requests.take() else {
            return Ok(());
        };
        let (listener, wake) = (Arc::clone(&self.listener), Arc::clone(&self.wake));
        let serve = move || serve_clients(&listener, &requests, &wake);
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(serve)
            .map(drop)
    }

    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor that is readable when a request waits for [`Self::serve`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Passes the waiting requests to `core`, and the core's answers to the clients. Requests to reload the
    /// configuration go to `reload_requests`, and are answered when the configuration has been read.
    pub(crate) fn serve(
        &self,
        now: Instant,
        core: &mut impl Controlled,
        stack: &mut Stack,
        reload_requests: Option<&ReloadRequests>,
    ) {
        // Resets the counter of the eventfd, so that it is no longer readable.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        while let Ok(Pending { request, answer }) = self.pending.try_recv() {
            if let (Request::Reload, Some(reload_requests)) = (&request, reload_requests) {
                reload_requests.begin(Some(answer));
                continue;
            }
            let mut reply = core.control(now, stack, request);
            if let Answer::Status(status) = &mut reply {
                status.pid = std::process::id();
                status.uptime_s = self.opened.elapsed().as_secs_f64();
            }
            // Sending fails if the thread no longer waits, because its timeout is over.
            let _ = answer.send(reply);
        }
    }
}

/// Returns a UNIX stream socket without an address.
fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Listens at `path`. Other users have no access at any moment.
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let socket = stream_socket()?;
    // `bind` creates the file with the mode of the socket. A change of the mode after `bind` would leave a
    // moment in which other users could connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for ControlSocket {
    /// Removes the socket, and shuts the listener down to end the thread.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

/// Serves clients until the listener is shut down.
fn serve_clients(listener: &UnixListener, requests: &SyncSender<Pending>, wake: &OwnedFd) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // `accept` fails with EINVAL because `ControlSocket` was dropped, which shuts the listener down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            // Usually EMFILE. Without a pause the loop would use the processor until a descriptor is free.
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let answer = match lines::read(&client, MAX_REQUEST_LEN, CLIENT_TIMEOUT) {
            Ok(request) => ask_loop(request, requests, wake),
            Err(e) => Answer::Error(format!("the request cannot be parsed: {e}")),
        };
        // Writing fails if the client no longer waits for the answer.
        let _ = lines::write(&client, &answer, CLIENT_TIMEOUT);
    }
}

/// Passes a request to the event loop. Returns the loop's answer, or an error after a timeout.
fn ask_loop(request: Request, requests: &SyncSender<Pending>, wake: &OwnedFd) -> Answer {
    let (answer, answered) = sync_channel(1);
    let queued = requests.try_send(Pending { request, answer });
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    match queued {
        Ok(()) => answered.recv_timeout(LOOP_TIMEOUT).ok(),
        Err(_) => None,
    }
    .unwrap_or_else(|| {
        Answer::Error("no answer within the timeout: the process is busy or stopping".to_owned())
    })
}

/// The reasons for a missing answer.
#[derive(Debug)]
pub enum AskError {
    /// Nothing serves this socket.
    NotRunning(PathBuf, io::Error),
    /// The socket cannot be used, or the answer cannot be parsed.
    System(PathBuf, io::Error),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (AskError::NotRunning(path, error) | AskError::System(path, error)) = self;
        write!(f, "{}: ", path.display())?;
        match error.kind() {
            ErrorKind::NotFound => f.write_str("no such file"),
            ErrorKind::ConnectionRefused => f.write_str("no process listens there"),
            ErrorKind::PermissionDenied => f.write_str("permission denied"),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => f.write_str(
                "no answer in time: the process is busy or hangs; restart it if it stays so",
            ),
            _ => error.fmt(f),
        }
    }
}

/// Sends a request to the instance that serves the socket at `path`, and returns its answer.
///
/// # Errors
/// Fails if nothing serves the socket, or if no answer comes in time.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    ask_within(path, request, LOOP_TIMEOUT + CLIENT_TIMEOUT)
}

/// Works like [`ask`], but waits at most `timeout` for the answer.
///
/// # Errors
/// Fails if nothing serves the socket, or if no answer comes in time.
pub(crate) fn ask_within(
    path: &Path,
    request: &Request,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let system = |e| AskError::System(path.to_owned(), e);
    let deadline = std::time::Instant::now() + timeout;
    let stream = connect_within(path, timeout.min(CLIENT_TIMEOUT)).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            AskError::NotRunning(path.to_owned(), e)
        }
        _ => system(e),
    })?;
    lines::write(&stream, request, CLIENT_TIMEOUT).map_err(system)?;
    let time_left = deadline.saturating_duration_since(std::time::Instant::now());
    lines::read(&stream, MAX_ANSWER_LEN, time_left).map_err(system)
}

/// Connects to the socket at `path`. `UnixStream::connect` would wait without limit once [`BACKLOG`] clients wait for
/// a process that hangs.
///
/// # Errors
/// Fails with `TimedOut` if the queue of the process has no room for another client within `timeout`.
fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = stream_socket()?;
    // The timeout also applies to `connect` (socket(7)). Zero would mean no timeout.
    let timeout = timeout.max(Duration::from_millis(1));
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    let address = SocketAddrUnix::new(path)?;
    match rustix::io::retry_on_intr(|| connect(&socket, &address)) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use braid_engine::Config;
    use braid_wire::Rng;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// A core that answers with the request.
    struct Echo;

    impl Controlled for Echo {
        fn control(&mut self, _: Instant, _: &mut Stack, request: Request) -> Answer {
            Answer::Error(format!("{request:?}"))
        }
    }

    fn path(test: &str) -> PathBuf {
        let name = format!("braid-control-{}-{test}/socket", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn started(path: &Path) -> ControlSocket {
        let mut socket = ControlSocket::open(path).unwrap();
        socket.start().unwrap();
        socket
    }

    /// Runs `client` on another thread, serves the socket `turns` times, and returns the client's result.
    fn serving<T: Send>(
        socket: &ControlSocket,
        turns: usize,
        client: impl FnOnce() -> T + Send,
    ) -> T {
        let strategy = || braid_strategy::by_name("minrtt").unwrap();
        let rng = Rng::for_component(1, 1);
        let mut stack = Stack::new(Config::default(), rng, Box::new(strategy));
        thread::scope(|scope| {
            let client = scope.spawn(client);
            for _ in 0..turns {
                let fd = socket.fd();
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
                socket.serve(Instant::ZERO, &mut Echo, &mut stack, None);
            }
            client.join().unwrap()
        })
    }

    fn raw(path: &Path, request: &[u8]) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        client.write_all(request).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn a_request_is_answered_and_the_socket_is_private_and_goes() {
        let path = path("whole");
        let socket = started(&path);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for on in [false, true] {
            let reply = serving(&socket, 1, || ask(&path, &Request::Proxy { on })).unwrap();
            assert_eq!(reply, Answer::Error(format!("Proxy {{ on: {on} }}")));
        }
        let taken = ControlSocket::open(&path).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(socket);
        let not_running = ask(&path, &Request::Status).unwrap_err().to_string();
        assert_eq!(not_running, format!("{}: no such file", path.display()));
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// Nothing serves the requests, as if the event loop hung. The client gives up after its own timeout, which
    /// is shorter than the loop's.
    #[test]
    fn a_client_waits_only_for_its_own_timeout() {
        let path = path("still");
        let socket = started(&path);
        let unanswered =
            ask_within(&path, &Request::Status, Duration::from_millis(10)).unwrap_err();
        let AskError::System(_, error) = unanswered else {
            panic!("{unanswered:?}");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(socket);
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// The queue of a process that accepts no clients is full. A client must not wait for it without limit.
    #[test]
    fn a_client_waits_a_bounded_time_for_room_in_the_queue() {
        let path = path("full");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let listener = listen_privately(&path).unwrap();
        listen(&listener, 0).unwrap();
        let timeout = Duration::from_millis(10);
        // A backlog of 0 leaves room for one client.
        let waiting = connect_within(&path, timeout).unwrap();
        let refused = connect_within(&path, timeout).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        let taken = ControlSocket::open(&path).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop((waiting, listener));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn an_unknown_request_is_answered_with_the_known_ones() {
        let path = path("unparsable");
        let socket = started(&path);
        let unknown = raw(&path, b"{\"command\":\"reboot\"}\n");
        // The client may be of another version, so the answer lists the known commands.
        assert!(unknown.starts_with("{\"error\":"), "{unknown}");
        for command in ["reboot", "status", "proxy", "link", "backup"] {
            assert!(unknown.contains(command), "{unknown}");
        }
        assert!(raw(&path, b"\n").contains("cannot be parsed"));
        let long = raw(&path, &[b'x'; MAX_REQUEST_LEN + 1]);
        assert!(long.contains("more than 4096 bytes"), "{long}");
        // A client that sends nothing delays the next one for a bounded time only.
        let silent = UnixStream::connect(&path).unwrap();
        let reply = serving(&socket, 1, || ask(&path, &Request::Status)).unwrap();
        assert_eq!(reply, Answer::Error("Status".to_owned()));
        drop((silent, socket));
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn the_socket_of_a_killed_process_is_replaced() {
        let path = path("left");
        fs::create_dir(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let not_running = ask(&path, &Request::Status).unwrap_err();
        assert!(
            matches!(not_running, AskError::NotRunning(..)),
            "{not_running}"
        );
        let socket = started(&path);
        serving(&socket, 1, || ask(&path, &Request::Status)).unwrap();
        drop(socket);
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }
}
