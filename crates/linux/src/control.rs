//! The control socket of a running box or server, and its client.
//!
//! A thread serves clients one after another, with a bound on time and size. So the event loop never waits
//! for a client and keeps no state of clients: it gets whole requests only, and hands back plain data, which
//! the thread turns into text.

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
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, shutdown,
    socket_with,
};

use crate::lines;
use crate::run::ReloadRequests;

/// Time that a client has to send its request, and to take each part of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that the event loop has to answer.
const LOOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request, bytes.
const MAX_REQUEST_LEN: usize = 4 << 10;
/// Longest answer, bytes: 256 connections of 16 paths, with room to spare.
const MAX_ANSWER_LEN: usize = 4 << 20;
/// Pause when no connection can be accepted because descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Clients that may wait while another is served.
const BACKLOG: i32 = 128;

/// A request that waits for the event loop.
struct Pending {
    request: Request,
    /// Channel for the one answer.
    answer: SyncSender<Answer>,
}

/// The serving side. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    wake: Arc<OwnedFd>,
    /// Sender for the thread that serves clients, until the thread is started.
    requests: Option<SyncSender<Pending>>,
    pending: Receiver<Pending>,
    opened: std::time::Instant,
}

impl ControlSocket {
    /// Listens at `path`, to which only this user may connect. The directory is made if only the last part of
    /// it is missing; a socket that nobody serves is replaced. Clients wait until the socket is
    /// [started](Self::start).
    ///
    /// # Errors
    /// Fails if the system refuses; with `AddrInUse` if another process serves `path`.
    pub(crate) fn open(path: &Path) -> io::Result<ControlSocket> {
        if let Some(directory) = path.parent() {
            match DirBuilder::new().mode(0o755).create(directory) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = Arc::new(listen_privately(path)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // One client is served at a time, so there is never a second request.
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

    /// Returns the descriptor that is readable when requests wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Has `core` answer the waiting requests. Requests to read the configuration again go to `reload_requests`,
    /// which answer them later.
    pub(crate) fn serve(
        &self,
        now: Instant,
        core: &mut impl Controlled,
        stack: &mut Stack,
        reload_requests: Option<&ReloadRequests>,
    ) {
        // Resets the counter; its value does not matter.
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
            // The client's thread may have timed out.
            let _ = answer.send(reply);
        }
    }
}

/// Listens at `path`, to which others have no access at any moment: the file gets the mode of the socket.
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Before bind, which creates the file. A chmod after it would leave a gap.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for ControlSocket {
    /// Removes the socket. The thread ends when its listener is shut down.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

fn serve_clients(listener: &UnixListener, requests: &SyncSender<Pending>, wake: &OwnedFd) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // The socket was dropped.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            // Usually EMFILE: without a pause the loop would spin until a descriptor is free.
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let answer = match lines::read(&client, MAX_REQUEST_LEN, CLIENT_TIMEOUT) {
            Ok(request) => ask_loop(request, requests, wake),
            Err(e) => Answer::Error(format!("the request cannot be parsed: {e}")),
        };
        // A client that has gone away needs no answer.
        let _ = lines::write(&client, &answer, CLIENT_TIMEOUT);
    }
}

fn ask_loop(request: Request, requests: &SyncSender<Pending>, wake: &OwnedFd) -> Answer {
    let (answer, answered) = sync_channel(1);
    let asked = requests.try_send(Pending { request, answer });
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    match asked {
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
            _ => error.fmt(f),
        }
    }
}

/// Asks the instance that serves the socket at `path`.
///
/// # Errors
/// Fails if nothing serves the socket, or if no answer comes in time.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    ask_within(path, request, LOOP_TIMEOUT + CLIENT_TIMEOUT)
}

/// Asks the instance that serves the socket at `path`, and waits for its answer for `longest`.
///
/// # Errors
/// Fails if nothing serves the socket, or if no answer comes in time.
pub(crate) fn ask_within(
    path: &Path,
    request: &Request,
    longest: Duration,
) -> Result<Answer, AskError> {
    let system = |e| AskError::System(path.to_owned(), e);
    let stream = UnixStream::connect(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            AskError::NotRunning(path.to_owned(), e)
        }
        _ => system(e),
    })?;
    lines::write(&stream, request, CLIENT_TIMEOUT).map_err(system)?;
    lines::read(&stream, MAX_ANSWER_LEN, longest).map_err(system)
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

    /// Serves `turns` requests while `client` runs.
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
        let gone = ask(&path, &Request::Status).unwrap_err().to_string();
        assert_eq!(gone, format!("{}: no such file", path.display()));
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// The event loop hangs: the client gives up after its own timeout.
    #[test]
    fn an_instance_that_does_not_answer_is_waited_for_as_long_as_is_wanted() {
        let path = path("still");
        let socket = started(&path);
        let still = ask_within(&path, &Request::Status, Duration::from_millis(10)).unwrap_err();
        let AskError::System(_, error) = still else {
            panic!("{still:?}");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(socket);
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_answered_with_what_is_known() {
        let path = path("unparsable");
        let socket = started(&path);
        let unknown = raw(&path, b"{\"command\":\"reboot\"}\n");
        // The client may be of another version, so the answer lists the known commands.
        assert!(unknown.starts_with("{\"error\":"), "{unknown}");
        for known in ["reboot", "status", "proxy", "link", "backup"] {
            assert!(unknown.contains(known), "{unknown}");
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
    fn what_a_killed_process_left_is_replaced() {
        let path = path("left");
        fs::create_dir(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let gone = ask(&path, &Request::Status).unwrap_err();
        assert!(matches!(gone, AskError::NotRunning(..)), "{gone}");
        let socket = started(&path);
        serving(&socket, 1, || ask(&path, &Request::Status)).unwrap();
        drop(socket);
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }
}
