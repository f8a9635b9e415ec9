//! The privileges of box and server once they run.

use std::collections::BTreeMap;
use std::fs;

use super::control::status;
use super::fixture::{Fixture, stderr};
use super::reload::SocksFixture;

/// CAP_NET_ADMIN, and if Landlock bounds the files that may be read again, CAP_DAC_READ_SEARCH.
const KEPT: &str = "0000000000001000";
const KEPT_TO_READ: &str = "0000000000001004";

/// Returns the fields of a thread's privileges, and their expected values.
fn expected(kept: &str) -> [(&'static str, &str); 6] {
    [
        ("CapInh", "0000000000000000"),
        ("CapPrm", kept),
        ("CapEff", kept),
        ("CapBnd", kept),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
    ]
}

fn has_landlock(bed: &mut Fixture) -> bool {
    !bed.log("server").contains("no Landlock")
}

/// Fails if a thread of the host's process has other privileges; returns the number of threads.
fn expect_little(bed: &mut Fixture, host: &str) -> usize {
    let expected = expected(if has_landlock(bed) {
        KEPT_TO_READ
    } else {
        KEPT
    });
    let pid = bed.testbed.pid(host).expect("it runs");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let tasks: Vec<_> = tasks.map(|task| task.expect("readable").path()).collect();
    for task in &tasks {
        let text = fs::read_to_string(task.join("status")).expect("it runs");
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<_, _> = fields.map(|(k, v)| (k, v.trim())).collect();
        let found = expected.map(|(name, _)| (name, fields[name]));
        assert_eq!(found, expected, "{host}, {}", fields["Name"]);
    }
    tasks.len()
}

#[test]
#[ignore = "network"]
fn every_thread_of_box_and_server_can_do_little() {
    let mut world = SocksFixture::up();
    world.write(&world.file(true, true, str::to_owned));
    world.expect_reloaded("users: 1 added\n");
    world.bed.fetch(1_000_000);
    // Names are still looked up, on one more thread: `localhost` is found, and forbidden.
    let (well, _) = world.socks_download_from("localhost", "no").end();
    assert!(!well);
    let counters = status(&world.bed, "server").counters;
    assert_eq!((counters["forbidden"], counters["not_resolved"]), (1, 0));
    // The other threads serve the control socket and read the configuration.
    assert_eq!(expect_little(&mut world.bed, "server"), 4);
    assert_eq!(expect_little(&mut world.bed, "box"), 3);
}

/// The server reads a key wherever the configuration names it, and no other file there.
#[test]
#[ignore = "network"]
fn a_server_reads_no_file_but_its_own() {
    let mut world = SocksFixture::up();
    if !has_landlock(&mut world.bed) {
        return;
    }
    let elsewhere = world.bed.testbed.state_dir().join("guest.key");
    let beside = world.bed.testbed.state_dir().join("server/other.key");
    fs::copy(elsewhere, beside).expect("the state directory is writable");
    let with_key = |file: &str| {
        let line = format!("key_file = \"{file}\"");
        world.write(&world.file(true, false, |settings| {
            settings.replace("key_file = \"server.key\"", &line)
        }));
    };
    with_key("other.key");
    world.expect_reloaded("not before a restart: key_file\n");
    with_key("../guest.key");
    let refused = world.reload();
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("guest.key: Permission denied"), "{said}");
}
