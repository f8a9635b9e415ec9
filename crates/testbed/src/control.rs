//! The daemon that owns a testbed, its control socket, and the client.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use braid_linux::run::Signals;
use braid_linux::{lines, sys};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::change::LinkChange;
use crate::emulator::Direction;
use crate::error::Error;
use crate::netns::{self, Capability};
use crate::spec::Spec;
use crate::status::Status;
use crate::testbed::{Options, Testbed};
use crate::{stale_resources, state};

/// The longest wait for a client to send its request, and to take each part of the answer. A guess: only a
/// client that hangs takes seconds. The daemon serves one client at a time, so it would block the others.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait for the daemon's answer. The slowest request restarts a process that does not end: 60 s
/// until it is killed, 60 s until it is gone, and twice 60 s for the start of the new one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(240);

/// The longest wait for the daemon to exit after it has taken the testbed down. A guess: only a daemon that
/// hangs takes seconds; it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum length of a request and of the daemon's first line, bytes. A guess, which bounds memory.
const MAX_REQUEST_LEN: usize = 64 << 10;

/// The maximum length of an answer, bytes. A guess, which bounds memory.
const MAX_ANSWER_LEN: usize = 1 << 20;

/// The line that the daemon writes to standard output when the testbed is up.
const READY: &str = "ready";

/// A request of a client, one line of JSON.
#[derive(Serialize, Deserialize)]
enum Request {
    Status,
    Set {
        link: String,
        direction: Option<Direction>,
        change: Box<LinkChange>,
    },
    Start(String),
    Restart(String),
    Down,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    Status(Box<Status>),
    Failed(String),
}

/// Starts this executable again in the background, and waits until the testbed named `name` is up. `arguments`
/// must name a command that calls [`run_daemon`].
///
/// # Errors
///
/// [`Error::Busy`], or [`Error::Daemon`] with the message of a daemon that failed.
pub fn spawn_daemon<S: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Client, Error> {
    if state::is_locked(name) {
        return Err(Error::Busy(name.to_owned()));
    }
    let step = |e| Error::system("start the testbed's daemon", e);
    let program = std::env::current_exe().map_err(step)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // Ctrl-C in the terminal must end the program in the foreground only, and not the daemon.
    sys::detach_on_exec(&mut command);
    let mut child = command.spawn().map_err(step)?;
    let mut first_line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout.take(MAX_REQUEST_LEN as u64))
            .read_line(&mut first_line)
            .map_err(step)?;
    }
    match first_line.trim() {
        READY => Client::connect(name),
        "" => Err(Error::Daemon(
            "the testbed's daemon ended before the testbed was up".to_owned(),
        )),
        message => Err(Error::Daemon(message.to_owned())),
    }
}

/// Runs the daemon: brings the testbed up, reports it to [`spawn_daemon`] on standard output, and answers
/// requests on the control socket. A request, SIGTERM or SIGINT makes it take the testbed down and return. A
/// daemon that is not root moves to a user namespace first.
///
/// Call it before any other thread starts, since signals are blocked in the calling thread and later ones only,
/// and before anything is written to standard output.
///
/// # Errors
///
/// As [`Testbed::up`]. The message has already been sent to [`spawn_daemon`].
pub fn run_daemon(spec: Spec, options: Options) -> Result<(), Error> {
    let up = || -> Result<(Testbed, UnixListener, Signals), Error> {
        let step = |e| Error::system("set up the testbed's daemon", e);
        let capability = netns::ensure_capable().map_err(Error::NotCapable)?;
        let signals = Signals::take_over().map_err(step)?;
        let name = spec.name.to_string();
        // Nobody outside a user namespace can find the processes that a killed daemon leaves in it, so they die
        // with the daemon.
        let dies_with_thread = capability == Capability::UserNamespace;
        let testbed = Testbed::up_with(spec, options, dies_with_thread)?;
        let listener = UnixListener::bind(state::socket(&name)).map_err(step)?;
        Ok((testbed, listener, signals))
    };
    match up() {
        Ok((testbed, listener, signals)) => {
            detach(&testbed).map_err(|e| Error::system("detach the testbed's daemon", e))?;
            serve(testbed, &listener, &signals)
        }
        Err(error) => {
            // `spawn_daemon` reads one line, and a message may have several.
            println!("{}", error.to_string().replace('\n', " "));
            Err(error)
        }
    }
}

/// Reports readiness, and redirects output from the terminal to a log.
fn detach(testbed: &Testbed) -> io::Result<()> {
    println!("{READY}");
    io::stdout().flush()?;
    let log = File::create(testbed.state_dir().join("daemon.log"))?;
    rustix::stdio::dup2_stdout(&log)?;
    rustix::stdio::dup2_stderr(&log)?;
    Ok(())
}

fn serve(mut testbed: Testbed, listener: &UnixListener, signals: &Signals) -> Result<(), Error> {
    loop {
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(Error::system("wait for requests", e.into())),
        }
        if !ready[1].revents().is_empty() {
            return testbed.down();
        }
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        let request = match lines::read(&stream, MAX_REQUEST_LEN, CLIENT_TIMEOUT) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%error, "a request on the control socket cannot be read");
                let answer = Answer::Failed(error.to_string());
                let _ = lines::write(&stream, &answer, CLIENT_TIMEOUT);
                continue;
            }
        };
        if matches!(request, Request::Down) {
            let result = testbed.down();
            let answer = match &result {
                Ok(()) => Answer::Done,
                Err(e) => Answer::Failed(e.to_string()),
            };
            let _ = lines::write(&stream, &answer, CLIENT_TIMEOUT);
            return result;
        }
        let answer = answer(&mut testbed, request);
        let answer = answer.unwrap_or_else(|e| Answer::Failed(e.to_string()));
        // A failed write means that the client has gone; it needs no answer.
        let _ = lines::write(&stream, &answer, CLIENT_TIMEOUT);
    }
}

fn answer(testbed: &mut Testbed, request: Request) -> Result<Answer, Error> {
    match request {
        Request::Status => return Ok(Answer::Status(Box::new(testbed.status()?))),
        Request::Set {
            link,
            direction,
            mut change,
        } => {
            // A request carries the path of a trace but not its contents. The path is absolute, since the
            // client has resolved it.
            change.load("/".as_ref())?;
            testbed.set(&link, direction, &change)?;
        }
        Request::Start(host) => testbed.start(&host)?,
        Request::Restart(host) => testbed.restart(&host)?,
        // `serve` handles it, since it ends the daemon.
        Request::Down => {}
    }
    Ok(Answer::Done)
}

/// A client of a testbed's daemon. Each request uses a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    name: String,
}

impl Client {
    /// Returns a client of the testbed named `name`.
    ///
    /// # Errors
    ///
    /// [`Error::NotUp`].
    pub fn connect(name: &str) -> Result<Client, Error> {
        let client = Client {
            name: name.to_owned(),
        };
        client.dial()?;
        Ok(client)
    }

    /// Returns the testbed's status, as [`Testbed::status`] does.
    ///
    /// # Errors
    ///
    /// [`Error::NotUp`] if the daemon has ended.
    pub fn status(&self) -> Result<Status, Error> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            _ => Err(Error::Daemon(
                "the daemon gave an answer that does not fit the request".to_owned(),
            )),
        }
    }

    /// Returns a command on a host, as [`Testbed::exec`] does. It also works from outside the daemon's user
    /// namespace.
    ///
    /// # Errors
    ///
    /// As [`Testbed::exec`].
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        let status = self.status()?;
        let Some(namespace) = status
            .hosts
            .iter()
            .find(|h| h.name == host)
            .map(|h| &h.namespace)
        else {
            let known = status.hosts.iter().map(|h| h.name.clone()).collect();
            return Err(Error::NoSuchHost(host.to_owned(), known));
        };
        let mut command = Command::new(program);
        enter_from_outside(&mut command, status.pid, namespace)
            .map_err(|e| Error::system(format!("enter namespace {namespace}"), e))?;
        Ok(command)
    }

    /// Changes a link as [`Testbed::set`] does.
    ///
    /// # Errors
    ///
    /// As [`Testbed::set`].
    pub fn set(
        &self,
        link: &str,
        direction: Option<Direction>,
        change: &LinkChange,
    ) -> Result<(), Error> {
        self.execute(&Request::Set {
            link: link.to_owned(),
            direction,
            change: Box::new(change.clone()),
        })
    }

    /// Starts a host's process as [`Testbed::start`] does.
    ///
    /// # Errors
    ///
    /// As [`Testbed::start`].
    pub fn start(&self, host: &str) -> Result<(), Error> {
        self.execute(&Request::Start(host.to_owned()))
    }

    /// Restarts a host's process as [`Testbed::restart`] does.
    ///
    /// # Errors
    ///
    /// As [`Testbed::restart`].
    pub fn restart(&self, host: &str) -> Result<(), Error> {
        self.execute(&Request::Restart(host.to_owned()))
    }

    /// Sends a request whose answer has no content.
    fn execute(&self, request: &Request) -> Result<(), Error> {
        self.ask(request).map(drop)
    }

    fn ask(&self, request: &Request) -> Result<Answer, Error> {
        let stream = self.dial()?;
        let written = lines::write(&stream, request, CLIENT_TIMEOUT);
        match written.and_then(|()| lines::read(&stream, MAX_ANSWER_LEN, ANSWER_TIMEOUT)) {
            Ok(Answer::Failed(message)) => Err(Error::Daemon(message)),
            Ok(answer) => Ok(answer),
            Err(e) => Err(Error::system("talk to the testbed's daemon", e)),
        }
    }

    fn dial(&self) -> Result<UnixStream, Error> {
        UnixStream::connect(state::socket(&self.name)).map_err(|_| Error::NotUp(self.name.clone()))
    }
}

/// Makes `command` start in a network namespace of the daemon `pid`. If the daemon is in another user
/// namespace, the command enters its user and mount namespaces too.
fn enter_from_outside(command: &mut Command, pid: u32, namespace: &str) -> io::Result<()> {
    let open_file =
        |path: &str| Ok::<_, io::Error>(File::open(format!("/proc/{pid}/{path}"))?.into());
    let same_user_namespace = std::fs::read_link(format!("/proc/{pid}/ns/user"))?
        == std::fs::read_link("/proc/self/ns/user")?;
    if same_user_namespace {
        return netns::enter_on_exec(command, namespace);
    }
    // The network namespace is mounted in the daemon's mount namespace only.
    let network = open_file(&format!("root/run/netns/{namespace}"))?;
    let namespaces = vec![open_file("ns/user")?, open_file("ns/mnt")?, network];
    sys::join_on_exec(command, namespaces);
    Ok(())
}

/// Takes the testbed named `name` down, even if the process that made it is dead. Asks a running daemon to end,
/// and then removes remaining processes, namespaces and the state directory. Succeeds if there is no such
/// testbed.
///
/// # Errors
///
/// [`Error::System`] with the first step that failed.
pub fn down(name: &str) -> Result<(), Error> {
    stop_daemon(name)?;
    stale_resources::remove(name)
}

/// Asks the daemon of testbed `name` to end, waits for its end, and kills it if it hangs. Does nothing if
/// there is no daemon.
fn stop_daemon(name: &str) -> Result<(), Error> {
    let client = match Client::connect(name) {
        Ok(client) => client,
        Err(_) => return Ok(()),
    };
    let result = client.execute(&Request::Down);
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while state::is_locked(name) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(hanging_daemon) = state::lock_holder(name) {
        let killed = kill_process(hanging_daemon, Signal::KILL);
        killed.map_err(|e| Error::system("end the testbed's daemon", e.into()))?;
    }
    match result {
        // The connection broke because the daemon died; the caller removes what remains.
        Err(Error::System { .. }) => Ok(()),
        other => other,
    }
}
