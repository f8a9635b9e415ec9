//! A testbed held by a daemon: this program starts itself again as one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use braid_testbed as testbed;
use braid_testbed::netns;
use braid_testbed::{Client, LinkChange, Options, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};

const DEMO: &str = include_str!("../../../examples/testbed/demo.toml");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, file] = &arguments[..]
        && mode == "daemon"
    {
        let spec = Spec::read(Path::new(file)).unwrap();
        let options = Options {
            start_nothing: true,
            ..Options::default()
        };
        return match testbed::run_daemon(spec, options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if let Err(reason) = netns::capability() {
        reason.announce("testbed tests");
        return ExitCode::SUCCESS;
    }
    for (name, test) in [
        ("life_of_a_daemon", life_of_a_daemon as fn(&str)),
        ("a_daemon_keeps_nothing_open", a_daemon_keeps_nothing_open),
        (
            "nothing_is_left_of_a_killed_daemon",
            nothing_is_left_of_a_killed_daemon,
        ),
    ] {
        println!("test {name} ...");
        let testbed = format!("bd{}{}", std::process::id(), name.len());
        let result = std::panic::catch_unwind(|| test(&testbed));
        testbed::down(&testbed).unwrap();
        if result.is_err() {
            println!("test {name} ... FAILED");
            return ExitCode::FAILURE;
        }
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// The demonstration's testbed under another name, as a file; and its daemon.
fn up(name: &str) -> (PathBuf, Client) {
    let file = std::env::temp_dir().join(format!("{name}.toml"));
    let text = DEMO.replace("name = \"demo\"", &format!("name = \"{name}\""));
    std::fs::write(&file, text).unwrap();
    let arguments = ["daemon".as_ref(), file.as_os_str()];
    let client = testbed::spawn_daemon(name, arguments).unwrap();
    (file, client)
}

/// Those that are seen here: not what a daemon has in a user namespace of its own.
fn namespaces_of(name: &str) -> Vec<String> {
    let prefix = format!("{name}.");
    netns::list()
        .unwrap()
        .into_iter()
        .filter(|n| n.starts_with(&prefix))
        .collect()
}

/// Whoever started it may wait for the end of what it was given.
fn a_daemon_keeps_nothing_open(name: &str) {
    let (mut ours, given) = std::io::pipe().unwrap();
    fcntl_setfd(&given, FdFlags::empty()).unwrap();
    let (file, _client) = up(name);
    drop(given);
    let mut ends = [PollFd::new(&ours, PollFlags::IN)];
    let wait = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut ends, Some(&wait)), Ok(1), "held open");
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    testbed::down(name).unwrap();
    std::fs::remove_file(file).unwrap();
}

fn life_of_a_daemon(name: &str) {
    let (file, client) = up(name);
    let again = testbed::spawn_daemon(name, ["daemon".as_ref(), file.as_os_str()]);
    assert!(matches!(again, Err(testbed::Error::Busy(_))));

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
    // 1 BDP of the new rate: 5 Mbit/s x 70 ms.
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
    std::fs::remove_file(file).unwrap();
    assert_eq!(namespaces_of(name), [""; 0]);
    assert!(matches!(client.status(), Err(testbed::Error::NotUp(_))));
    testbed::down(name).unwrap();
}

fn nothing_is_left_of_a_killed_daemon(name: &str) {
    let (file, client) = up(name);
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
    std::fs::remove_file(file).unwrap();
    assert_eq!(namespaces_of(name), [""; 0]);
    let state = std::fs::read_to_string(format!("/proc/{nginx}/stat")).unwrap_or_default();
    let gone = state.is_empty() || state.contains(") Z ");
    assert!(gone, "nginx is still there: {state}");
}
