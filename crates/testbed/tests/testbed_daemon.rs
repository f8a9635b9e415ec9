//! Tests of a testbed held by a daemon. This program starts itself again as the daemon, whose standard output
//! must be its own. So it has no test harness, and parses the arguments of one itself.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use braid_testbed as testbed;
use braid_testbed::netns;
use braid_testbed::{Client, LinkChange, Options, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};

const DEMO: &str = include_str!("../../../examples/testbed/demo.toml");

/// Bound on every wait: other work may delay a machine for seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The argument that makes this program the daemon of the testbed in the file that follows.
const DAEMON: &str = "daemon";

/// A test by its name; it gets the name of its testbed.
type Test = (&'static str, fn(&str));

/// All tests. Each is of the tier `network`, so it appears as ignored to a test runner.
const TESTS: [Test; 3] = [
    ("life_of_a_daemon", life_of_a_daemon),
    ("a_daemon_keeps_nothing_open", a_daemon_keeps_nothing_open),
    (
        "nothing_is_left_of_a_killed_daemon",
        nothing_is_left_of_a_killed_daemon,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, file] = &arguments[..]
        && mode == DAEMON
    {
        return daemon(Path::new(file));
    }
    let asked = Asked::of(arguments);
    let chosen: Vec<_> = TESTS.iter().filter(|(name, _)| asked.wants(name)).collect();
    if asked.list {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !asked.ignored {
        println!("{} tests ignored (network)", chosen.len());
        return ExitCode::SUCCESS;
    }
    if let Err(reason) = netns::capability() {
        reason.announce("testbed tests");
        return ExitCode::SUCCESS;
    }
    let failed: Vec<_> = chosen
        .iter()
        .filter(|(name, test)| !passes(name, *test))
        .collect();
    println!(
        "{} of {} tests passed",
        chosen.len() - failed.len(),
        chosen.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn daemon(file: &Path) -> ExitCode {
    let spec = Spec::read(file).unwrap();
    let options = Options {
        start_nothing: true,
        ..Options::default()
    };
    match testbed::run_daemon(spec, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Runs a test on a testbed of its own, and removes the testbed whatever happened.
fn passes(name: &str, test: fn(&str)) -> bool {
    // The length of the test's name keeps the testbeds' names apart.
    let testbed = format!("bd{}-{}", std::process::id(), name.len());
    let passed = std::panic::catch_unwind(|| test(&testbed)).is_ok();
    testbed::down(&testbed).unwrap();
    let _ = std::fs::remove_file(description(&testbed));
    println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    passed
}

/// The arguments of the standard test harness that select tests.
#[derive(Default)]
struct Asked {
    ignored: bool,
    list: bool,
    exact: bool,
    filters: Vec<String>,
    skipped: Vec<String>,
}

impl Asked {
    fn of(arguments: Vec<String>) -> Asked {
        let mut asked = Asked::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--ignored" | "--include-ignored" => asked.ignored = true,
                "--list" => asked.list = true,
                "--exact" => asked.exact = true,
                "--skip" => asked.skipped.extend(arguments.next()),
                // Skips the option's value, which is no filter.
                "--test-threads" | "--format" | "--color" | "--logfile" | "--shuffle-seed" => {
                    arguments.next();
                }
                option if option.starts_with('-') => {
                    let skipped = option.strip_prefix("--skip=").map(str::to_owned);
                    asked.skipped.extend(skipped);
                }
                _ => asked.filters.push(argument),
            }
        }
        asked
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        let chosen = self.filters.is_empty() || self.filters.iter().any(matches);
        chosen && !self.skipped.iter().any(matches)
    }
}

/// Returns the path of the description of the testbed called `name`.
fn description(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{name}.toml"))
}

/// Writes the demonstration's testbed under another name to a file, and starts its daemon.
fn up(name: &str) -> Client {
    let file = description(name);
    let text = DEMO.replace("name = \"demo\"", &format!("name = \"{name}\""));
    std::fs::write(&file, text).unwrap();
    spawn(name).unwrap()
}

fn spawn(name: &str) -> Result<Client, testbed::Error> {
    testbed::spawn_daemon(name, [DAEMON.as_ref(), description(name).as_os_str()])
}

/// Returns the namespaces visible here; those in a daemon's own user namespace are not.
fn namespaces_of(name: &str) -> Vec<String> {
    let prefix = format!("{name}.");
    netns::list()
        .unwrap()
        .into_iter()
        .filter(|n| n.starts_with(&prefix))
        .collect()
}

/// The daemon's starter may wait for the end of a pipe that the daemon inherited.
fn a_daemon_keeps_nothing_open(name: &str) {
    let (mut ours, given) = std::io::pipe().unwrap();
    fcntl_setfd(&given, FdFlags::empty()).unwrap();
    let _client = up(name);
    drop(given);
    let mut ends = [PollFd::new(&ours, PollFlags::IN)];
    let timeout = Timespec::try_from(TIMEOUT).unwrap();
    assert_eq!(poll(&mut ends, Some(&timeout)), Ok(1), "held open");
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    testbed::down(name).unwrap();
}

fn life_of_a_daemon(name: &str) {
    let client = up(name);
    assert!(matches!(spawn(name), Err(testbed::Error::Busy(_))));

    client.start("content").unwrap();
    let status = client.status().unwrap();
    assert_eq!(status.hosts.len(), 5);
    let content = status.hosts.iter().find(|h| h.name == "content").unwrap();
    let first = content.process.as_ref().unwrap().pid.unwrap();
    client.restart("content").unwrap();
    let status = client.status().unwrap();
    let content = status.hosts.iter().find(|h| h.name == "content").unwrap();
    assert_ne!(content.process.as_ref().unwrap().pid, Some(first));

    client
        .set(
            "link2",
            None,
            &LinkChange::parse(["rate=5M", "down"]).unwrap(),
        )
        .unwrap();
    let status = client.status().unwrap();
    let link2 = status.links.iter().find(|l| l.name == "link2").unwrap();
    assert_eq!(
        (link2.forward.rate, link2.reverse.up),
        (Some(5_000_000), false)
    );
    // 1 BDP at the new rate: 5 Mbit/s x 70 ms.
    assert_eq!(link2.forward.queue, "43750 bytes");
    let unknown = client
        .set("link3", None, &LinkChange::default())
        .unwrap_err();
    assert!(unknown.to_string().contains("link1, link2"), "{unknown}");

    let output = client
        .exec("user", "ip")
        .unwrap()
        .args(["-o", "addr"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("192.168.77.2/24"));

    testbed::down(name).unwrap();
    assert_eq!(namespaces_of(name), [""; 0]);
    assert!(matches!(client.status(), Err(testbed::Error::NotUp(_))));
    testbed::down(name).unwrap();
}

fn nothing_is_left_of_a_killed_daemon(name: &str) {
    let client = up(name);
    client.start("content").unwrap();
    let status = client.status().unwrap();
    let nginx = status
        .hosts
        .iter()
        .find_map(|h| h.process.as_ref())
        .unwrap()
        .pid
        .unwrap();
    let daemon = rustix::process::Pid::from_raw(status.pid as i32).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();

    testbed::down(name).unwrap();
    assert_eq!(namespaces_of(name), [""; 0]);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let state = std::fs::read_to_string(format!("/proc/{nginx}/stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        assert!(Instant::now() < deadline, "nginx is still there: {state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
