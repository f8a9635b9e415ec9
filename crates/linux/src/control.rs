//! The control socket of a running box or server, from both sides.
//!
//! A thread of its own talks to whoever asks, one after another, with a bound on time and size. So
//! the event loop never waits for a client, and has no state of clients to keep: it sees whole
//! questions only, and hands plain data back, of which the thread makes the text.

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
use crate::run::Wishes;

/// How long a client may take to send its request, and each part of the answer to be taken.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// How long the event loop may take to answer.
const LOOP_TIME: Duration = Duration::from_secs(5);
/// Longest request, bytes.
const REQUEST_LEN: usize = 4 << 10;
/// Longest answer, bytes: 256 connections of 16 paths, with room to spare.
const ANSWER_LEN: usize = 4 << 20;
/// How long to wait where no connection can be taken, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Clients that wait for the one that is served.
const BACKLOG: i32 = 128;

/// A request that waits for the event loop.
struct Pending {
    request: Request,
    /// Has room for the one answer.
    answer: SyncSender<Answer>,
}

/// The serving side. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    wake: Arc<OwnedFd>,
    /// For the thread that serves clients, until it is started.
    requests: Option<SyncSender<Pending>>,
    pending: Receiver<Pending>,
    opened: std::time::Instant,
}

impl ControlSocket {
    /// Listens at `path`, which only this user may connect to. The directory is made where only
    /// that is missing; a socket that nobody serves is replaced. Clients wait until it is
    /// [started](Self::start).
    ///
    /// # Errors
    /// What the system refused; `AddrInUse` where another process serves `path`.
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

    /// Serves clients from now on, on a thread of its own.
    ///
    /// # Errors
    /// Where threads are wanting.
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when requests wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Has the requests that wait answered by `core`, and those to read the configuration again by
    /// whoever does that.
    pub(crate) fn serve(
        &self,
        now: Instant,
        core: &mut impl Controlled,
        stack: &mut Stack,
        wishes: Option<&Wishes>,
    ) {
        // Only resets the counter; what it says is of no interest.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        while let Ok(Pending { request, answer }) = self.pending.try_recv() {
            if let (Request::Reload, Some(wishes)) = (&request, wishes) {
                wishes.begin(Some(answer));
                continue;
            }
            let mut said = core.control(now, stack, request);
            if let Answer::Status(status) = &mut said {
                status.pid = std::process::id();
                status.uptime_s = self.opened.elapsed().as_secs_f64();
            }
            // The client may have lost patience.
            let _ = answer.send(said);
        }
    }
}

/// Listens at `path`, which has no rights for others at any moment: Linux gives it those of the socket.
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for ControlSocket {
    /// The thread ends by itself.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

fn serve_clients(listener: &UnixListener, requests: &SyncSender<Pending>, wake: &OwnedFd) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // Shut down.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let answer = match lines::read(&client, REQUEST_LEN, CLIENT_TIME) {
            Ok(request) => ask_loop(request, requests, wake),
            Err(e) => Answer::Error(format!("this request makes no sense: {e}")),
        };
        // The client may have gone away; that is its own affair.
        let _ = lines::write(&client, &answer, CLIENT_TIME);
    }
}

fn ask_loop(request: Request, requests: &SyncSender<Pending>, wake: &OwnedFd) -> Answer {
    let (answer, answered) = sync_channel(1);
    let asked = requests.try_send(Pending { request, answer });
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    match asked {
        Ok(()) => answered.recv_timeout(LOOP_TIME).ok(),
        Err(_) => None,
    }
    .unwrap_or_else(|| Answer::Error("no answer in time: it is busy, or ends".to_owned()))
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// Nothing serves this socket.
    NotRunning(PathBuf, io::Error),
    /// The socket cannot be used, or the answer makes no sense.
    System(PathBuf, io::Error),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (AskError::NotRunning(path, error) | AskError::System(path, error)) = self;
        write!(f, "{}: ", path.display())?;
        match error.kind() {
            ErrorKind::NotFound => f.write_str("no such file"),
            ErrorKind::ConnectionRefused => f.write_str("nobody listens"),
            ErrorKind::PermissionDenied => f.write_str("permission denied"),
            _ => error.fmt(f),
        }
    }
}

/// Asks whoever serves the socket at `path`.
///
/// # Errors
/// There is nobody, or no answer.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    ask_within(path, request, LOOP_TIME + CLIENT_TIME)
}

/// Does so, and waits for the answer for `longest`.
///
/// # Errors
/// There is nobody, or no answer.
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
    lines::write(&stream, request, CLIENT_TIME).map_err(system)?;
    lines::read(&stream, ANSWER_LEN, longest).map_err(system)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use braid_engine::Config;
    use braid_wire::Rng;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Says back what it was asked.
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
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn a_request_is_answered_and_the_socket_is_private_and_goes() {
        let path = path("whole");
        let socket = started(&path);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for on in [false, true] {
            let said = serving(&socket, 1, || ask(&path, &Request::Proxy { on })).unwrap();
            assert_eq!(said, Answer::Error(format!("Proxy {{ on: {on} }}")));
        }
        let taken = ControlSocket::open(&path).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(socket);
        let gone = ask(&path, &Request::Status).unwrap_err().to_string();
        assert_eq!(gone, format!("{}: no such file", path.display()));
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// The event loop stands still: who asks goes on after the time that it gives.
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
        let path = path("sense");
        let socket = started(&path);
        let unknown = raw(&path, b"{\"command\":\"reboot\"}\n");
        // Of another version, perhaps: nobody named what there is not.
        assert!(unknown.starts_with("{\"error\":"), "{unknown}");
        for known in ["reboot", "status", "proxy", "link", "backup"] {
            assert!(unknown.contains(known), "{unknown}");
        }
        assert!(raw(&path, b"\n").contains("makes no sense"));
        let long = raw(&path, &[b'x'; REQUEST_LEN + 1]);
        assert!(long.contains("more than 4096 bytes"), "{long}");
        // One that says nothing holds the next up for a while only.
        let silent = UnixStream::connect(&path).unwrap();
        let said = serving(&socket, 1, || ask(&path, &Request::Status)).unwrap();
        assert_eq!(said, Answer::Error("Status".to_owned()));
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
