//! `braid-lab` over emulated links, as a user runs it.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use braid_testbed::netns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::outcomes::assert_outcomes;

/// A measurement in progress, killed when dropped.
struct Measurement(Child);

impl Drop for Measurement {
    fn drop(&mut self) {
        // The measurement may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a measurement that would take minutes, and waits until its namespaces exist.
fn started() -> Measurement {
    let child = Command::new(env!("CARGO_BIN_EXE_braid-lab"))
        .args(["fct", "--backend", "links", "--size", "10M", "--runs", "50"])
        .args(["--paths", "1mbit,40ms,0%;1mbit,100ms,0%"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("braid-lab starts");
    let mut measurement = Measurement(child);
    let deadline = Instant::now() + Duration::from_secs(60);
    while measurement.namespaces().len() < 2 {
        assert!(Instant::now() < deadline, "no namespaces");
        let running = matches!(measurement.0.try_wait(), Ok(None));
        assert!(running, "it has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    measurement
}

impl Measurement {
    fn namespaces(&self) -> Vec<String> {
        let pid = self.0.id();
        let mut names = netns::list().expect("a list of namespaces");
        names.retain(|name| name.starts_with(&format!("braidlab{pid}-")));
        names
    }

    /// Sends a signal to the measurement and waits for its end.
    fn end(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("it runs");
        self.0.wait().expect("it ends")
    }
}

#[test]
#[ignore = "network"]
fn an_interrupted_measurement_leaves_nothing() {
    if let Err(reason) = netns::ensure_capable() {
        return reason.announce("an_interrupted_measurement_leaves_nothing");
    }
    let mut measurement = started();
    assert_eq!(measurement.end(Signal::INT).code(), Some(1));
    assert_eq!(measurement.namespaces(), [""; 0]);
}

#[test]
#[ignore = "network"]
fn what_a_killed_measurement_leaves_goes_with_the_next() {
    if let Err(reason) = netns::ensure_capable() {
        return reason.announce("what_a_killed_measurement_leaves_goes_with_the_next");
    }
    let mut killed = started();
    killed.end(Signal::KILL);
    let mut next = started();
    assert_eq!(killed.namespaces(), [""; 0]);
    next.end(Signal::TERM);
    assert_eq!(next.namespaces(), [""; 0]);
}

/// The connection goes through the installed box and server, with curl and nginx at the ends.
#[test]
#[ignore = "network"]
fn a_connection_is_established_in_the_order_of_t_mptcp() {
    if let Err(reason) = netns::ensure_capable() {
        return reason.announce("a_connection_is_established_in_the_order_of_t_mptcp");
    }
    let out = tempfile::tempdir().expect("a directory");
    let out = out.path();
    let run = Command::new(env!("CARGO_BIN_EXE_braid-lab"))
        .args(["run", "tm-3", "--backend", "links", "--runs", "1"])
        .args(["--json", "--out"])
        .arg(out)
        .output()
        .expect("braid-lab starts");
    let capture = std::fs::read(out.join("tm-3/links/cells/cold-box.pcapng"));
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    let outcomes: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!(outcomes[0]["holds"], true, "{outcomes:#}");
    assert!(
        capture.expect("a capture").len() > 1_000_000,
        "the file is in it"
    );
}

mod soak {
    use super::*;

    /// The claims on tiny files do not depend on chance, and Linux runs beside the engine.
    #[test]
    #[ignore = "soak"]
    fn experiments_run_over_links() {
        if let Err(reason) = netns::ensure_capable() {
            return reason.announce("experiments_run_over_links");
        }
        let ids = ["fsa-6a", "fsa-5"];
        let out = tempfile::tempdir().expect("a directory");
        let out = out.path();
        let run = Command::new(env!("CARGO_BIN_EXE_braid-lab"))
            .arg("run")
            .args(ids)
            .args(["--backend", "links", "--runs", "2"])
            .args(["--json", "--out"])
            .arg(out)
            .output()
            .expect("braid-lab starts");
        let linux = out.join("fsa-6a/links/cells/cubic-iw10-4k-Linux-MPTCP.json");
        let linux = std::fs::read_to_string(linux);
        let errors = String::from_utf8_lossy(&run.stderr);
        if errors.contains("too busy to emulate links") {
            return netns::Reason(errors.into_owned()).announce("an experiment over links");
        }
        assert!(run.status.success(), "{errors}");
        assert_outcomes(&run.stdout, &ids, 1);
        let outcomes: Value = serde_json::from_slice(&run.stdout).expect("JSON");
        let measured = outcomes[0]["measured"].as_object().expect("by claim");
        for (claim, judged) in measured
            .iter()
            .filter(|(claim, _)| claim.contains("MP_JOIN"))
        {
            assert_eq!(judged["holds"], true, "{claim}: {judged}");
        }
        let linux: Value = serde_json::from_str(&linux.expect("the case")).expect("JSON");
        assert_eq!(linux["cell"]["completed"], 2);
    }
}
