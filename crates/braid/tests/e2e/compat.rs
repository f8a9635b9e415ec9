//! Box and server of neighbouring releases: the program of the last one, which `compat/previous` names, beside
//! the one under test.

use std::fs;
use std::path::{Path, PathBuf};

use braid_proxy::status::ProtocolStatus;
use braid_proxy::verdict::{Condition, Health};
use braid_testbed::render::render_config;

use super::control::status;
use super::fixture::{Fixture, bulk, unique_name, write_script};

/// Programs that box and server run, each to be replaced while the other one goes on.
struct Programs(PathBuf);

impl Programs {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(unique_name());
        fs::create_dir(&directory).expect("a temporary directory");
        let programs = Programs(directory);
        let script = format!("#!/bin/sh\nexec {}/\"$1\" \"$@\"\n", programs.0.display());
        write_script(&programs.runner(), &script);
        programs
    }

    /// Runs what the role has, which the first argument names.
    fn runner(&self) -> PathBuf {
        self.0.join("braid")
    }

    /// Has a role run this program from its next start on.
    fn set(&self, role: &str, program: &Path) {
        let link = self.0.join(role);
        // There is none before the first time.
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(program, link).expect("the directory is writable");
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Users are served over both links, box and server have agreed on this version, and nothing is wrong.
fn expect_service(bed: &mut Fixture, version: u16) {
    bed.wait_for_interception();
    let expected = bed.offer("file", bulk());
    // The second connection comes with a ticket, or is one that has served the first.
    for _ in 0..2 {
        bed.curl("file").expect_bytes(&expected);
    }
    bed.expect_both_links();
    bed.wait_for("the box to find all in order", |bed| {
        status(bed, "box").verdict.health == Health::Working
    });
    let of_box = status(bed, "box");
    let server = &of_box.servers[0];
    assert_eq!(server.condition, Condition::Working);
    // Releases before version 2 do not show it.
    let protocol = |protocol: &Option<ProtocolStatus>| protocol.as_ref().map(|p| p.version);
    let shown = [protocol(&server.protocol)];
    let connections = status(bed, "server").connections;
    let shown = shown
        .into_iter()
        .chain(connections.iter().map(|conn| protocol(&conn.protocol)));
    let shown: Vec<u16> = shown.flatten().collect();
    assert!(shown.iter().all(|v| *v == version), "{shown:?}");
    assert!(!shown.is_empty(), "neither end shows what is spoken");
}

/// The server is updated under a box of the last release and the other way round, and users are served at each
/// step.
#[test]
#[ignore = "network"]
fn releases_next_to_each_other_work_together() {
    let previous = std::env::var_os("BRAID_PREVIOUS").map(PathBuf::from);
    let previous = previous.expect("BRAID_PREVIOUS names what scripts/previous.sh built");
    let today = Path::new(env!("CARGO_BIN_EXE_braid"));
    let programs = Programs::new();
    let render = render_config(None).expect("randomness");
    let mut bed = Fixture::up_idle_by(render, programs.runner());
    let start = |bed: &mut Fixture, role: &str, program: &Path| {
        programs.set(role, program);
        bed.start(role);
    };
    start(&mut bed, "server", &previous);
    start(&mut bed, "box", today);
    expect_service(&mut bed, 1);
    for (role, program, version) in [("server", today, 2), ("box", previous.as_path(), 1)] {
        bed.testbed.stop(role).expect("it ran");
        start(&mut bed, role, program);
        expect_service(&mut bed, version);
    }
}
