//! `braid lab fct` over emulated links, as a user runs it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use braid_linux::netns;
use rustix::process::{Pid, Signal, kill_process};

/// Starts a measurement that would take minutes, and waits until its namespaces are there.
fn started() -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args([
            "lab", "fct", "--arm", "links", "--size", "10M", "--runs", "50",
        ])
        .args(["--paths", "1mbit,40ms,0%;1mbit,100ms,0%"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("braid starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    while namespaces_of(child.id()).len() < 2 {
        assert!(Instant::now() < deadline, "no namespaces");
        assert!(matches!(child.try_wait(), Ok(None)), "it has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn namespaces_of(pid: u32) -> Vec<String> {
    let mut names = netns::list().expect("a list of namespaces");
    names.retain(|name| name.starts_with(&format!("braidlab{pid}-")));
    names
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process id");
    kill_process(pid, signal).expect("it runs");
}

#[test]
#[ignore = "network"]
fn an_interrupted_measurement_leaves_nothing() {
    if let Err(reason) = netns::ensure_capable() {
        return reason.announce("an_interrupted_measurement_leaves_nothing");
    }
    let mut child = started();
    send(&child, Signal::INT);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    assert_eq!(namespaces_of(child.id()), [""; 0]);
}

#[test]
#[ignore = "network"]
fn what_a_killed_measurement_leaves_goes_with_the_next() {
    if let Err(reason) = netns::ensure_capable() {
        return reason.announce("what_a_killed_measurement_leaves_goes_with_the_next");
    }
    let mut child = started();
    send(&child, Signal::KILL);
    child.wait().expect("it ends");
    assert_eq!(namespaces_of(child.id()).len(), 2);
    let mut next = started();
    assert_eq!(namespaces_of(child.id()), [""; 0]);
    send(&next, Signal::TERM);
    next.wait().expect("it ends");
    assert_eq!(namespaces_of(next.id()), [""; 0]);
}
