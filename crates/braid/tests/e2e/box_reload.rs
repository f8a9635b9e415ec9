//! A box that reads its configuration again while users download.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};

use super::control::{ask, status};
use super::fixture::{Download, Fixture, stderr};

/// The box's file, and its text at the start.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn of(bed: &Fixture) -> Self {
        let path = bed.testbed.state_dir().join("box/box.toml");
        let text = fs::read_to_string(&path).expect("a configuration");
        File { path, text }
    }

    /// Replaces the box's file, as editors do.
    fn write(&self, text: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, text).expect("the state directory is writable");
        fs::rename(new, &self.path).expect("in one directory");
    }

    /// Returns the file without one of the links.
    fn without(&self, link: &str) -> String {
        let (head, rest) = self.text.split_once("\n[[link]]").expect("links");
        let (links, servers) = rest.split_once("\n[[server]]").expect("servers");
        let links = links.split("\n[[link]]");
        let kept = links.filter(|l| !l.contains(&format!("interface = {link:?}")));
        let kept: String = kept.map(|l| format!("\n[[link]]{l}")).collect();
        format!("{head}{kept}\n[[server]]{servers}")
    }

    /// Returns the file with a line above the links.
    fn with(&self, line: &str) -> String {
        format!("{line}\n{}", self.text)
    }
}

fn reload(bed: &Fixture) -> Output {
    ask(bed, "box", &["reload"])
}

fn expect_reloaded(bed: &Fixture, expected: &str) {
    let output = reload(bed);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

/// Sends SIGHUP, and waits until the box logs `expected`.
fn hang_up(bed: &mut Fixture, expected: &str) {
    let before = bed.log("box").len();
    let pid = bed.testbed.pid("box").expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, Signal::HUP).expect("it runs");
    bed.wait_for(expected, |bed| {
        let log = bed.log("box");
        log.get(before..).is_some_and(|new| new.contains(expected))
    });
}

/// Starts a download over slow links, and waits until some of it has arrived.
fn under_way(bed: &mut Fixture) -> (Download, Vec<u8>) {
    bed.fetch(1_000);
    bed.slow_down();
    let expected = bed.offer("large", 30_000_000);
    let download = bed.curl("large");
    expect_progress(bed, &download);
    (download, expected)
}

fn expect_progress(bed: &mut Fixture, download: &Download) {
    let before = download.bytes();
    bed.wait_for("the download to go on", |_| {
        download.bytes() > before + 700_000
    });
}

fn links(bed: &Fixture) -> Vec<String> {
    let paths = status(bed, "box").paths.into_iter();
    paths.map(|path| path.name).collect()
}

/// A link, the faster one too, is removed and added again while it carries a download.
#[test]
#[ignore = "network"]
fn links_come_and_go_while_a_user_downloads() {
    for (link, at) in [("link1", 0), ("link2", 1)] {
        let mut bed = Fixture::up();
        let file = File::of(&bed);
        let (download, expected) = under_way(&mut bed);
        file.write(&file.without(link));
        expect_reloaded(&bed, &format!("changed: link {link} removed\n"));
        assert_eq!(links(&bed).len(), 1);
        expect_progress(&mut bed, &download);
        // The kernel set-up of the link is removed a little later.
        bed.wait_for("the link to have no rule", |bed| {
            let rules = bed.print("box", "nft", &["list", "ruleset"]);
            // The recorded settings name the link too.
            !rules.contains(&format!("{link:?}"))
        });
        let before = bed.carried();
        expect_progress(&mut bed, &download);
        // The server may still send challenges of the tunnel, small datagrams, over a path that is gone at the box.
        let carried = bed.carried()[at] - before[at];
        assert!(carried < 1_000, "{link} is in use: {carried} bytes");
        file.write(&file.text);
        expect_reloaded(&bed, &format!("changed: link {link} added\n"));
        bed.wait_for("the link to carry the same download", |bed| {
            bed.carried()[at] > before[at] + 300_000
        });
        bed.release();
        download.expect_bytes(&expected);
        assert_eq!(links(&bed), ["link1", "link2"]);
        bed.expect_both_links();
    }
}

/// A link added to a box that started with one gets its kernel settings, routes and rules.
#[test]
#[ignore = "network"]
fn a_box_begins_with_one_link_and_gets_another() {
    let mut bed = Fixture::up();
    let file = File::of(&bed);
    bed.testbed.stop("box").expect("it ran");
    let key = file.path.with_file_name("box.key");
    assert!(key.exists());
    let one = file.without("link2");
    // The testbed would write the file anew.
    let mut child = bed.exec("box", env!("CARGO_BIN_EXE_braid"));
    file.write(&one);
    let child = child.args(["box", "-c"]).arg(&file.path);
    let child = child.current_dir(file.path.parent().expect("a directory"));
    let mut child = child.spawn().expect("it starts");
    bed.wait_for_interception();
    let (download, expected) = under_way(&mut bed);
    file.write(&file.text);
    expect_reloaded(&bed, "changed: link link2 added\n");
    let before = bed.carried();
    bed.wait_for("the link to carry the same download", |bed| {
        bed.carried()[1] > before[1] + 300_000
    });
    bed.release();
    download.expect_bytes(&expected);
    bed.expect_both_links();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    let left = bed.print("box", "ip", &["rule"]);
    assert!(!left.contains("proto 180"), "{left}");
}

#[test]
#[ignore = "network"]
fn settings_change_while_a_user_downloads() {
    let mut bed = Fixture::up();
    let file = File::of(&bed);
    let (download, expected) = under_way(&mut bed);
    let intercepted = |bed: &Fixture| status(bed, "box").counters["accepted"];

    // A destination that is only forwarded from now on; settings that need a restart are named.
    let content = bed.v4("content");
    let settings =
        format!("bypass = \"{content}\"\nshortcut = false\nexpert.max_connections_per_host = 50");
    file.write(&file.with(&settings));
    expect_reloaded(
        &bed,
        "changed: expert.max_connections_per_host, bypass; not before a restart: shortcut\n",
    );
    let before = intercepted(&bed);
    bed.fetch(10_000);
    assert_eq!(intercepted(&bed), before, "it was intercepted");
    file.write(&file.with("shortcut = false"));
    let said = "reloaded the configuration: changed: expert.max_connections_per_host, bypass; not before a restart: shortcut";
    hang_up(&mut bed, said);
    bed.fetch(10_000);
    assert_eq!(intercepted(&bed), before + 1);
    bed.release();
    download.expect_bytes(&expected);
}

/// A file that the system refuses, or one with a mistake, changes nothing.
#[test]
#[ignore = "network"]
fn what_is_refused_changes_nothing() {
    let mut bed = Fixture::up();
    let file = File::of(&bed);
    // A proxy for programs, and an address at which no program can listen.
    let lan = "0.0.0.0:1081";
    file.write(&file.with(&format!("socks = {lan:?}")));
    expect_reloaded(&bed, "changed: socks\n");
    assert!(bed.print("box", "ss", &["-Hltn"]).contains("0.0.0.0:1081"));
    file.write(&file.with("socks = [\"0.0.0.0:1081\", \"0.0.0.0:81\"]\nbypass = \"192.0.2.0/24\""));
    let refused = reload(&bed);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("listen at 0.0.0.0:81"),
        "{}",
        stderr(&refused)
    );
    let rules = bed.print("box", "nft", &["list", "ruleset"]);
    assert!(!rules.contains("192.0.2.0"), "something of it holds");
    assert!(bed.print("box", "ss", &["-Hltn"]).contains("0.0.0.0:1081"));

    // A file with a mistake changes nothing.
    file.write(&file.with("bypass = \"192.0.2.0/33\""));
    let refused = reload(&bed);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("box.toml:1:"),
        "{}",
        stderr(&refused)
    );
    hang_up(&mut bed, "the configuration stays as it was");

    bed.fetch(10_000);
}

#[test]
#[ignore = "network"]
fn servers_and_gateways_change_while_a_user_downloads() {
    let mut bed = Fixture::up();
    let file = File::of(&bed);
    let (download, expected) = under_way(&mut bed);
    // Another server, which does not answer, before the existing one; then without it.
    let spare = "[[server]]\nname = \"spare\"\naddress = \"192.0.2.77\"";
    let key = file
        .text
        .lines()
        .find(|l| l.starts_with("key = "))
        .expect("a key");
    let two = file
        .text
        .replacen("[[server]]", &format!("{spare}\n{key}\n\n[[server]]"), 1);
    file.write(&two);
    expect_reloaded(&bed, "changed: server spare added\n");
    bed.fetch(10_000);
    file.write(&file.text);
    expect_reloaded(&bed, "changed: server spare removed\n");
    bed.fetch(10_000);

    // The wrong gateway on a link, and the right one again.
    let gateway = file
        .text
        .lines()
        .find(|l| l.starts_with("gateway = "))
        .expect("one");
    let wrong = file.text.replacen(gateway, "gateway = [\"10.1.2.3\"]", 1);
    file.write(&wrong);
    expect_reloaded(&bed, "changed: link link1 changed\n");
    expect_progress(&mut bed, &download);
    file.write(&file.text);
    expect_reloaded(&bed, "changed: link link1 changed\n");
    bed.release();
    download.expect_bytes(&expected);
    bed.expect_both_links();
}
