//! The processes of the hosts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use braid::program::{self, BRAID};
use braid_linux::sys::die_with_parent;
use rustix::process::{Pid, Signal, kill_process};

use super::Testbed;
use crate::error::Error;
use crate::layout::HostLayout;
use crate::netns;
use crate::programs::wait_until;
use crate::spec::Role;
use crate::status::ChildStatus;

/// Maximum time for a process to end after a signal. The limit matters only for a process that hangs. It is long
/// because a box runs `nft` several times after SIGTERM, and the machine may stand still for seconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time until nginx listens. The limit matters only for an nginx that hangs, because the end of nginx is
/// noticed at once.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A process of a host, running or ended.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Returns the process id, unless the process has ended.
    pub fn running_pid(&mut self) -> Option<u32> {
        self.exit_status().is_none().then(|| self.child.id())
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn status(&mut self) -> ChildStatus {
        let ended = self.exit_status();
        ChildStatus {
            pid: ended.is_none().then(|| self.child.id()),
            ended: ended.map(|status| status.to_string()),
            log: self.log.display().to_string(),
        }
    }

    fn signal(&mut self, signal: Signal) {
        // An unreaped child keeps its id, so the signal cannot hit another process.
        if let Some(pid) = self.running_pid().and_then(|p| Pid::from_raw(p as i32)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends the signals one after the other until the process has ended, each if the signal before did not end
    /// the process within [`EXIT_TIMEOUT`].
    fn stop(&mut self, signals: &[Signal]) {
        for signal in signals {
            self.signal(*signal);
            if wait_until(EXIT_TIMEOUT, || self.running_pid().is_none()) {
                return;
            }
        }
    }
}

impl Testbed {
    /// Starts the process of `host` (box, server or content), unless it runs already.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::NoProcess`] for a host whose role has no process, or whose
    /// configuration is missing.
    pub fn start(&mut self, host: &str) -> Result<(), Error> {
        let layout = self.layout.host(host)?;
        let present = self.processes.get_mut(host);
        if present.is_some_and(|process| process.running_pid().is_some()) {
            return Ok(());
        }
        let step = |e| Error::system(format!("start the process of {host}"), e);
        let directory = self.state_dir.join(host);
        fs::create_dir_all(&directory).map_err(step)?;
        let mut command = match layout.role {
            Role::Content => nginx(layout, self.spec.directory(), &directory).map_err(step)?,
            Role::Box | Role::Server => self.braid(layout, &directory)?,
            Role::User | Role::Router => {
                let why = format!("its role is `{}`", layout.role.name());
                return Err(Error::NoProcess(host.to_owned(), why));
            }
        };
        let log = self.log(host);
        let mut spawn = || -> io::Result<Process> {
            // A restarted process appends to the log of the previous process.
            let output = File::options().create(true).append(true).open(&log)?;
            netns::enter_on_exec(&mut command, &layout.namespace)?;
            command
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output);
            if self.dies_with_thread {
                die_with_parent(&mut command);
            }
            let mut process = Process {
                child: command.spawn()?,
                log: log.clone(),
            };
            if layout.role == Role::Content {
                wait_for_port(&mut process, &layout.namespace, 80)?;
            }
            Ok(process)
        };
        let process = spawn().map_err(step)?;
        self.processes.insert(host.to_owned(), process);
        Ok(())
    }

    /// Returns the path of the log of the process of `host`.
    pub(crate) fn log(&self, host: &str) -> PathBuf {
        self.state_dir.join(host).join("log")
    }

    /// Ends the process of `host`: SIGTERM, and SIGKILL after 60 s.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn stop(&mut self, host: &str) -> Result<(), Error> {
        self.end(host, &[Signal::TERM, Signal::KILL])
    }

    /// Ends the process of `host` by SIGKILL, as a crash would.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn kill(&mut self, host: &str) -> Result<(), Error> {
        self.end(host, &[Signal::KILL])
    }

    /// Does [`stop`](Self::stop), then [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop) and [`start`](Self::start).
    pub fn restart(&mut self, host: &str) -> Result<(), Error> {
        self.stop(host)?;
        self.start(host)
    }

    /// Returns the process id of the process of `host`, while it runs.
    pub fn pid(&mut self, host: &str) -> Option<u32> {
        self.processes.get_mut(host).and_then(Process::running_pid)
    }

    fn end(&mut self, host: &str, signals: &[Signal]) -> Result<(), Error> {
        self.layout.host(host)?;
        if let Some(process) = self.processes.get_mut(host) {
            process.stop(signals);
        }
        Ok(())
    }

    /// Stops all processes. They all get SIGTERM first, so that they end at the same time.
    pub(super) fn stop_all(&mut self) {
        for process in self.processes.values_mut() {
            process.signal(Signal::TERM);
        }
        for process in self.processes.values_mut() {
            process.stop(&[Signal::TERM, Signal::KILL]);
        }
    }

    /// Returns the command for `braid box` or `braid server`.
    fn braid(&self, host: &HostLayout, directory: &Path) -> Result<Command, Error> {
        let role = host.role.name();
        let config = match (&host.spec.config, &self.options.render) {
            (Some(config), _) => self.spec.directory().join(config),
            (None, render) => {
                let rendered = render
                    .as_ref()
                    .and_then(|render| render(&self.layout, host));
                let rendered = rendered.ok_or_else(|| {
                    let why = "the testbed file names no `config` for it".to_owned();
                    Error::NoProcess(host.name.clone(), why)
                })?;
                let write = |ending, text: &str| -> Result<PathBuf, Error> {
                    let path = directory.join(format!("{role}.{ending}"));
                    write_private(&path, text)
                        .map_err(|e| Error::system(format!("write {}", path.display()), e))?;
                    Ok(path)
                };
                write("key", &rendered.key.to_text())?;
                write("toml", &rendered.text)?
            }
        };
        let program = match &self.options.executable {
            Some(program) => program.clone(),
            None => program::find(BRAID).map_err(|e| Error::system("start box and server", e))?,
        };
        let mut command = Command::new(program);
        command.arg(role).arg("-c").arg(config);
        Ok(command)
    }
}

/// Writes a key or a configuration, which only this user may read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// Returns the command for nginx. It runs as a single process of user root, because a user namespace has no other
/// users. A request with `?rate=2m` limits its response to 2 MiB/s. The limits of files, connections and backlogs
/// are guesses: they allow more connections than any test opens.
fn nginx(host: &HostLayout, relative_to: &Path, directory: &Path) -> io::Result<Command> {
    let root = match &host.spec.directory {
        Some(served) => std::path::absolute(relative_to.join(served))?,
        None => directory.join("www"),
    };
    fs::create_dir_all(&root)?;
    let temporary = directory.join("tmp");
    fs::create_dir_all(&temporary)?;
    let (name, temporary, root) = (&host.name, temporary.display(), root.display());
    let config = format!(
        "user root;\ndaemon off;\nmaster_process off;\npid {temporary}/pid;\nerror_log stderr warn;\n\
         worker_rlimit_nofile 8192;\nevents {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n\
         \x20 map $arg_rate $rate {{ \"\" 0; default $arg_rate; }}\n\
         \x20 limit_rate $rate;\n  server_tokens off;\n\
         \x20 default_type application/octet-stream;\n\
         \x20 client_body_temp_path \"{temporary}/body\";\n  proxy_temp_path \"{temporary}/proxy\";\n\
         \x20 fastcgi_temp_path \"{temporary}/fastcgi\";\n  uwsgi_temp_path \"{temporary}/uwsgi\";\n\
         \x20 scgi_temp_path \"{temporary}/scgi\";\n\
         \x20 server {{ listen 80 backlog=4096; listen [::]:80 backlog=4096; server_name {name};\n\
         \x20   root \"{root}\"; autoindex on; }}\n}}\n"
    );
    let path = directory.join("nginx.conf");
    fs::write(&path, config)?;
    // The PATH of users other than root often lacks sbin directories.
    let mut programs = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].into_iter();
    let program = programs.find(|program| Path::new(program).exists());
    let mut command = Command::new(program.unwrap_or("nginx"));
    command.arg("-p").arg(directory).arg("-c").arg(path);
    Ok(command)
}

/// Waits until the process listens on `port`. If it does not, kills it, and fails with the last line of its log.
fn wait_for_port(process: &mut Process, namespace: &str, port: u16) -> io::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1));
    let mut listens = false;
    wait_until(START_TIMEOUT, || {
        listens = process.running_pid().is_some() && netns::run_inside(namespace, connect).is_ok();
        listens || process.running_pid().is_none()
    });
    if listens {
        return Ok(());
    }
    process.stop(&[Signal::KILL]);
    let log = fs::read_to_string(&process.log).unwrap_or_default();
    let last = log.lines().last().unwrap_or("it does not listen");
    Err(io::Error::other(last))
}
