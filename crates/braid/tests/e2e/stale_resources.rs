//! Neither box, server nor testbed leaves resources behind.

use std::fs;
use std::mem;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use braid_testbed::netns;

use super::fixture::{Fixture, description, laboratory, stderr, unique_name};

/// Returns everything of this machine's own network that a testbed, box or server could leave behind.
fn machine() -> Vec<String> {
    let look = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    vec![
        look("ip", &["-brief", "link"]),
        look("ip", &["rule"]),
        look("ip", &["-6", "rule"]),
        look("ip", &["route", "show", "table", "all"]),
        look("nft", &["list", "ruleset"]),
    ]
}

/// Returns the namespaces of a testbed. Other tests have their own namespaces meanwhile.
fn namespaces(testbed: &str) -> Vec<String> {
    let mut names = netns::list().expect("a list of namespaces");
    names.retain(|name| name.starts_with(&format!("{testbed}.")));
    names
}

/// Returns the network state of one host of a testbed.
fn host(bed: &Fixture, host: &str) -> Vec<String> {
    vec![
        bed.print(host, "ip", &["-brief", "link"]),
        bed.print(host, "ip", &["rule"]),
        bed.print(host, "ip", &["-6", "rule"]),
        bed.print(host, "ip", &["route", "show", "table", "all"]),
        bed.print(host, "nft", &["list", "ruleset"]),
        bed.print(host, "sh", &["-c", SETTINGS]),
    ]
}

/// Prints the kernel settings of interfaces that box and server change.
const SETTINGS: &str = "cd /proc/sys/net && grep . ipv[46]/conf/*/forwarding ipv4/conf/*/rp_filter";

/// Returns the same once it has settled: the kernel adds local addresses and routes of a new interface a
/// little later.
pub fn settled_host(bed: &mut Fixture, name: &str) -> Vec<String> {
    let (mut seen, mut times) = (host(bed, name), 0);
    bed.wait_for("its interfaces to be set up", |bed| {
        thread::sleep(Duration::from_millis(100));
        let before = mem::replace(&mut seen, host(bed, name));
        times = if seen == before { times + 1 } else { 0 };
        times == 5
    });
    seen
}

/// Waits until a host is as it was `before`: the kernel removes routes a little later.
pub fn expect_as_before(bed: &mut Fixture, name: &str, before: &[String]) {
    bed.wait_for(&format!("{name} to leave nothing behind"), |bed| {
        let now = host(bed, name);
        if now != before {
            println!("{name}: {now:#?}, not {before:#?}");
        }
        now == before
    });
}

#[test]
#[ignore = "network"]
fn box_and_server_leave_their_hosts_as_they_were() {
    let mut bed = Fixture::up_idle(braid_testbed::render::render_config(None).expect("randomness"));
    for name in ["server", "box"] {
        let before = settled_host(&mut bed, name);
        bed.start(name);
        assert_ne!(host(&bed, name), before, "{name} set nothing up");
        // A crash, a new start, an orderly end.
        bed.testbed.kill(name).expect("it ran");
        bed.start(name);
        bed.testbed.stop(name).expect("it ran");
        expect_as_before(&mut bed, name, &before);
    }
}

#[test]
#[ignore = "network"]
fn nothing_is_left_after_down() {
    let before = machine();
    let bed = Fixture::up();
    bed.fetch(100_000);
    let state = bed.testbed.state_dir().to_owned();
    let name = bed.testbed.layout().name.clone();
    assert!(
        !namespaces(&name).is_empty(),
        "its namespaces have its name"
    );
    bed.down();
    assert_eq!(namespaces(&name), [""; 0]);
    assert_eq!(machine(), before);
    assert!(!state.exists());
}

/// Runs the command `braid-lab testbed …` on a description of its own.
struct Cli {
    file: PathBuf,
}

impl Cli {
    fn testbed(&self, command: &str, rest: &[&str]) -> Output {
        Command::new(laboratory())
            .args(["testbed", command])
            .arg(&self.file)
            .args(rest)
            .output()
            .expect("it runs")
    }

    fn expect(&self, command: &str, rest: &[&str]) -> String {
        let output = self.testbed(command, rest);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        self.testbed("down", &[]);
        // The system clears the directory of temporary files too.
        let _ = fs::remove_file(&self.file);
    }
}

#[test]
#[ignore = "network"]
fn a_testbed_is_built_used_changed_and_removed_by_command() {
    let before = machine();
    let name = unique_name();
    let file = std::env::temp_dir().join(format!("{name}.toml"));
    fs::write(&file, description(&name)).expect("a writable directory");
    let cli = Cli { file };
    assert!(cli.expect("up", &[]).contains("link1"));
    assert!(
        cli.expect("exec", &["user", "ip", "-brief", "address"])
            .contains("home")
    );
    cli.expect("set", &["link1", "rate=5mbit", "loss=1%"]);
    let status = cli.expect("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let link = &status["links"][0]["forward"];
    assert_eq!(
        (link["rate"].as_u64(), link["loss"].as_f64()),
        (Some(5_000_000), Some(0.01))
    );
    assert_eq!(cli.testbed("set", &["link9", "up"]).status.code(), Some(2));
    cli.expect("down", &[]);
    assert_eq!(namespaces(&name), [""; 0]);
    assert_eq!(machine(), before);
    assert_eq!(cli.testbed("status", &[]).status.code(), Some(1));
}
