//! A testbed in a separate process, its daemon, and the daemon's control socket.

use std::ffi::OsStr;
use std::fs::{File, read_link};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use braid_linux::run::Signals;
use braid_linux::{lines, sys};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::change::LinkChange;
use crate::emulator::Direction;
use crate::error::Error;
use crate::netns::{self, Capability};
use crate::programs::wait_until;
use crate::spec::Spec;
use crate::status::{HostStatus, Status};
use crate::testbed::{Options, Testbed};
use crate::{stale_resources, state};

/// Maximum time for a client to send its request, and to read each part of the answer. The limit matters only for
/// a client that hangs, which would block the others: the daemon serves one client at a time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for the daemon to answer. The limit matters only for a daemon that hangs. The slowest request
/// restarts a process that does not end. It takes 180 s: 60 s after SIGTERM, 60 s after SIGKILL, and 60 s to
/// start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(240);

/// Maximum time for the daemon to exit after it has taken the testbed down. A daemon that hangs is killed after
/// that time.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum length of a request, bytes. 64 KiB is a guess, far above the length of any change of a link.
const MAX_REQUEST_LEN: usize = 64 << 10;

/// Maximum length of an answer, bytes. 1 MiB is a guess, far above the length of any status.
const MAX_ANSWER_LEN: usize = 1 << 20;

/// The line that the daemon writes to its standard output once the testbed is up.
const READY: &str = "ready";

#[derive(Serialize, Deserialize)]
enum Request {
    Status,
    /// Changes the link of this name in one direction, or in both for `None`.
    Set(String, Option<Direction>, Box<LinkChange>),
    Start(String),
    Restart(String),
    Down,
}

/// The answer to a request: the status for [`Request::Status`], `None` for another request, or the message of an
/// error.
type Answer = Result<Option<Status>, String>;

/// Starts this executable again in the background, and waits until the testbed named `name` is up. The `arguments`
/// name a hidden subcommand that calls [`run_daemon`].
///
/// # Errors
///
/// [`Error::Busy`], or [`Error::Failed`] with the message that the daemon sent before it ended.
pub fn spawn_daemon<S: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Client, Error> {
    if state::is_locked(name) {
        return Err(Error::Busy(name.to_owned()));
    }
    let step = |e| Error::system("start the testbed's daemon", e);
    let mut command = Command::new(std::env::current_exe().map_err(step)?);
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // Ctrl-C in the terminal must not end the daemon together with the program in the foreground.
    sys::detach_on_exec(&mut command);
    let mut child = command.spawn().map_err(step)?;
    let mut first_line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout.take(MAX_REQUEST_LEN as u64));
        stdout.read_line(&mut first_line).map_err(step)?;
    }
    let message = match first_line.trim() {
        READY => return Client::connect(name),
        "" => "the testbed's daemon ended before the testbed was up",
        message => message,
    };
    Err(Error::Failed(message.to_owned()))
}

/// Runs the daemon: brings the testbed up, reports that to [`spawn_daemon`] on standard output, and answers on the
/// control socket. Ends when a client asks it to end, or on SIGTERM, SIGINT or SIGHUP. Removes everything before
/// it returns. Must be called before any other thread is started and before anything is written to standard
/// output. A daemon that is not root first moves to a user namespace.
///
/// # Errors
///
/// As [`Testbed::up`]. The message has also been sent to [`spawn_daemon`].
pub fn run_daemon(spec: Spec, options: Options) -> Result<(), Error> {
    let up = || -> Result<(Testbed, UnixListener, Signals), Error> {
        let step = |e| Error::system("set up the testbed's daemon", e);
        let capability = netns::ensure_capable().map_err(Error::NotCapable)?;
        let signals = Signals::take_over().map_err(step)?;
        let name = spec.name.to_string();
        // The user namespace hides the processes of a killed daemon from `down`, so these processes must die with
        // the daemon.
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
            // `spawn_daemon` reads one line, but a message may have several lines.
            println!("{}", error.to_string().replace('\n', " "));
            Err(error)
        }
    }
}

/// Reports readiness, and redirects the output of the daemon from the terminal to a log.
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
        let request = lines::read(&stream, MAX_REQUEST_LEN, CLIENT_TIMEOUT);
        let is_last = matches!(request, Ok(Request::Down));
        let result = match request {
            Ok(request) => carry_out(&mut testbed, request),
            Err(error) => {
                tracing::warn!(%error, "a request on the control socket is not valid");
                Err(Error::Failed(error.to_string()))
            }
        };
        let answer = result.as_ref().map_err(ToString::to_string);
        // A client that has gone away needs no answer.
        let _ = lines::write(&stream, &answer, CLIENT_TIMEOUT);
        if is_last {
            return result.map(drop);
        }
    }
}

fn carry_out(testbed: &mut Testbed, request: Request) -> Result<Option<Status>, Error> {
    match request {
        Request::Status => return testbed.status().map(Some),
        Request::Set(link, direction, mut change) => {
            // Only the path of a trace is sent, not its contents, so the trace is loaded here again. The client
            // has made the path absolute.
            change.load("/".as_ref())?;
            testbed.set(&link, direction, &change)?;
        }
        Request::Start(host) => testbed.start(&host)?,
        Request::Restart(host) => testbed.restart(&host)?,
        Request::Down => testbed.tear_down()?,
    }
    Ok(None)
}

/// A client of the daemon of a testbed. Each call opens a new connection.
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
    /// [`Error::NotUp`] if the daemon went away.
    pub fn status(&self) -> Result<Status, Error> {
        let wrong = "the testbed's daemon sent the wrong answer; it may be a different version";
        let status = self.ask(&Request::Status)?;
        status.ok_or_else(|| Error::Failed(wrong.to_owned()))
    }

    /// Returns a command as [`Testbed::exec`] does. The command works from outside the daemon's user namespace
    /// too.
    ///
    /// # Errors
    ///
    /// As [`Testbed::exec`].
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        let status = self.status()?;
        let found = status.hosts.iter().find(|h| h.name == host);
        let HostStatus { namespace, .. } = found.ok_or_else(|| {
            let known = status.hosts.iter().map(|h| h.name.clone()).collect();
            Error::NoSuchHost(host.to_owned(), known)
        })?;
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
        let change = Box::new(change.clone());
        self.order(&Request::Set(link.to_owned(), direction, change))
    }

    /// Starts a host's process as [`Testbed::start`] does.
    ///
    /// # Errors
    ///
    /// As [`Testbed::start`].
    pub fn start(&self, host: &str) -> Result<(), Error> {
        self.order(&Request::Start(host.to_owned()))
    }

    /// Restarts a host's process as [`Testbed::restart`] does.
    ///
    /// # Errors
    ///
    /// As [`Testbed::restart`].
    pub fn restart(&self, host: &str) -> Result<(), Error> {
        self.order(&Request::Restart(host.to_owned()))
    }

    fn order(&self, request: &Request) -> Result<(), Error> {
        self.ask(request).map(drop)
    }

    fn ask(&self, request: &Request) -> Result<Option<Status>, Error> {
        let stream = self.dial()?;
        let asked = lines::write(&stream, request, CLIENT_TIMEOUT);
        let answer = asked.and_then(|()| lines::read(&stream, MAX_ANSWER_LEN, ANSWER_TIMEOUT));
        let answer: Answer =
            answer.map_err(|e| Error::system("talk to the testbed's daemon", e))?;
        answer.map_err(Error::Failed)
    }

    fn dial(&self) -> Result<UnixStream, Error> {
        UnixStream::connect(state::socket(&self.name)).map_err(|_| Error::NotUp(self.name.clone()))
    }
}

/// Makes `command` start in the network namespace with the name `namespace` of the daemon `pid`. If the daemon
/// runs in another user namespace, the command also joins that user namespace and its mount namespace.
fn enter_from_outside(command: &mut Command, pid: u32, namespace: &str) -> io::Result<()> {
    let open_file = |what: &str| File::open(format!("/proc/{pid}/{what}")).map(Into::into);
    let user_namespace = |process: &str| read_link(format!("/proc/{process}/ns/user"));
    if user_namespace(&pid.to_string())? == user_namespace("self")? {
        return netns::enter_on_exec(command, namespace);
    }
    // The network namespace is mounted at a place that only the daemon sees, so the path leads through the
    // daemon's root.
    let network = open_file(&format!("root/run/netns/{namespace}"))?;
    // The user namespace comes first, because it gives the rights to join the others.
    let namespaces = vec![open_file("ns/user")?, open_file("ns/mnt")?, network];
    sys::join_on_exec(command, namespaces);
    Ok(())
}

/// Takes the testbed named `name` down, even if the process that made it is dead. If there is a daemon, asks it to
/// end. Then removes what remains: processes, namespaces, state directory. Succeeds if there is nothing to do.
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
    let Ok(client) = Client::connect(name) else {
        return Ok(());
    };
    let result = client.order(&Request::Down);
    wait_until(EXIT_TIMEOUT, || !state::is_locked(name));
    if let Some(hung) = state::lock_holder(name) {
        let killed = kill_process(hung, Signal::KILL);
        killed.map_err(|e| Error::system("end the testbed's daemon", e.into()))?;
    }
    match result {
        // The daemon died before it answered. The caller removes what remains of the testbed.
        Err(Error::System { .. }) => Ok(()),
        other => other,
    }
}
