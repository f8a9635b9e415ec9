//! Requests to a running box and server, and the switches of a box.

use std::process::Output;

use braid_proxy::status::{Class, ConnStatus, PathState, ProxyStatus, Status};
use braid_proxy::verdict::Health;
use braid_testbed::Role;

use super::fixture::{Download, Fixture, bulk, render_changed, stderr};

const JOINING: ProxyStatus = ProxyStatus {
    on: true,
    intercepting: true,
};

/// Runs a command for the `role` of the testbed on the machine itself.
pub fn ask(bed: &Fixture, role: &str, arguments: &[&str]) -> Output {
    let config = bed
        .testbed
        .state_dir()
        .join(role)
        .join(format!("{role}.toml"));
    std::process::Command::new(env!("CARGO_BIN_EXE_braid"))
        .arg(role)
        .args(arguments)
        .arg("--config")
        .arg(config)
        .output()
        .expect("it runs")
}

pub fn expect_text(bed: &Fixture, role: &str, arguments: &[&str]) -> String {
    let output = ask(bed, role, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the status of box or server.
pub fn status(bed: &Fixture, role: &str) -> Status {
    let output = ask(bed, role, &["status", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let status: Status =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}{}", stderr(&output)));
    let expected = match status.verdict.health {
        Health::Working => 0,
        Health::Degraded => 3,
        Health::Down => 4,
    };
    assert_eq!(output.status.code(), Some(expected), "{text}");
    status
}

/// Starts a large download over slow links, and waits for 2 MB of it. It does not end before [`Fixture::release`].
fn under_way(bed: &mut Fixture) -> (Download, Vec<u8>) {
    bed.slow_down();
    let expected = bed.offer("large", bulk());
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 2_000_000
    });
    (download, expected)
}

#[test]
#[ignore = "network"]
fn box_and_server_show_what_they_do() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    let boxed = status(&bed, "box");
    assert_eq!((boxed.version, boxed.proxy), (2, Some(JOINING)));
    let content = format!("{}:80", bed.v4("content"));
    let [conn] = &boxed.connections[..] else {
        panic!("{boxed:?}")
    };
    assert_eq!(conn.destination.as_deref(), Some(content.as_str()));
    assert_eq!((conn.class, conn.alpha), (Class::Elephant, 0.0));
    assert!(conn.mptcp && conn.bytes_down > 2_000_000, "{conn:?}");
    for path in &boxed.paths {
        let known = path.rtt_ms.is_some() && path.score.is_some();
        assert!(known && path.bytes_received > 250_000, "{path:?}");
        assert_eq!(path.state, PathState::Up);
    }
    let server = status(&bed, "server");
    let open = |c: &&ConnStatus| c.state == "open";
    let conn = server.connections.iter().find(open).expect("an open one");
    assert_eq!((conn.user.as_deref(), conn.paths.len()), (Some("box"), 2));
    assert!(conn.bytes_down > 2_000_000, "{conn:?}");
    for role in ["box", "server"] {
        let text = expect_text(&bed, role, &["status"]);
        println!("{text}");
        assert!(text.contains(&content) && text.contains("Mbit/s"), "{text}");
    }
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn a_link_is_switched_off_and_on_in_the_middle_of_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    expect_text(&bed, "box", &["link", "link1", "off"]);
    bed.wait_for("the link to be left", |bed| {
        status(bed, "box").paths[0].subflows == 0
    });
    assert_eq!(status(&bed, "box").paths[0].state, PathState::Off);
    let [first, second] = bed.carried();
    bed.wait_for("the other link to go on", |bed| {
        bed.carried()[1] > second + 1_000_000
    });
    let left = bed.carried()[0] - first;
    assert!(left < 100_000, "{left} bytes over a link that is off");
    expect_text(&bed, "box", &["link", "link1", "on"]);
    bed.wait_for("both links to be used", |bed| {
        bed.carried()[0] > first + 500_000
    });
    bed.release();
    download.expect_bytes(&expected);
}

/// A backup carries nothing of existing and new downloads until the other link is dark.
#[test]
#[ignore = "network"]
fn a_link_is_made_a_backup_and_regular_again_in_the_middle_of_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    expect_text(&bed, "box", &["link", "link1", "backup"]);
    assert!(status(&bed, "box").paths[0].backup);
    bed.wait_for("the link to be left", |bed| {
        let [first, second] = bed.carried();
        bed.wait_for("the other one to go on", |bed| {
            bed.carried()[1] > second + 500_000
        });
        bed.carried()[0] < first + 5_000
    });
    bed.expect_spared(0, 500_000);
    let [spared, _] = bed.carried();
    bed.set_link("link2", "down");
    bed.wait_for("the backup to take over", |bed| {
        bed.carried()[0] > spared + 1_000_000
    });
    bed.set_link("link2", "up");
    expect_text(&bed, "box", &["link", "link1", "regular"]);
    let before = bed.carried();
    bed.wait_for("both links to be used", |bed| {
        let now = bed.carried();
        (0..2).all(|link| now[link] > before[link] + 500_000)
    });
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn a_box_is_switched_off_and_on_in_the_middle_of_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    expect_text(&bed, "box", &["proxy", "off"]);
    bed.wait_for("the interception to stop", |bed| {
        bed.print("box", "ss", &["-Hltn"]).is_empty()
    });
    bed.fetch(100_000);
    let forwarding = status(&bed, "box");
    assert_eq!(
        forwarding.counters["accepted"], 1,
        "the other was forwarded"
    );
    let proxy = ProxyStatus {
        on: false,
        intercepting: false,
    };
    assert_eq!(forwarding.proxy, Some(proxy));
    bed.release();
    download.expect_bytes(&expected);
    expect_text(&bed, "box", &["proxy", "on"]);
    bed.wait_for_interception();
    bed.fetch(100_000);
    let joining = status(&bed, "box");
    assert_eq!(joining.counters["accepted"], 2);
    assert_eq!(joining.proxy, Some(JOINING));
}

/// The bytes over a link are known at once after a restart, though nothing was sent since.
#[test]
#[ignore = "network"]
fn a_box_that_is_restarted_knows_its_links() {
    // Without idle connections, whose subflows would be shown in place of the records.
    let keep = |text| format!("state = \"state\"\n{text}\n[expert]\nidle_pool_size = 0\n");
    let mut bed = Fixture::up_with(render_changed(Role::Box, keep));
    bed.fetch(100_000);
    bed.wait_for(
        "the connection to be gone, and its link to be known",
        |bed| {
            let path = &status(bed, "box").paths[0];
            path.subflows == 0 && path.loss.is_some()
        },
    );
    let stopped = bed.testbed.stop("box");
    stopped.unwrap_or_else(|e| panic!("stop: {e}"));
    bed.start("box");
    bed.wait_for_interception();
    let again = status(&bed, "box");
    assert_eq!(again.counters["accepted"], 0);
    assert!(again.paths[0].loss.is_some(), "{again:?}");
}

#[test]
#[ignore = "network"]
fn who_cannot_be_asked_is_told_apart() {
    let mut bed = Fixture::up();
    let why = "braid: the box refuses the command: there is no link \"dsl\"; \
               the links are link1, link2\n";
    for wish in ["off", "backup"] {
        let unknown = ask(&bed, "box", &["link", "dsl", wish]);
        assert_eq!(unknown.status.code(), Some(2));
        assert_eq!(stderr(&unknown), why);
    }
    bed.testbed
        .stop("box")
        .unwrap_or_else(|e| panic!("stop: {e}"));
    let gone = ask(&bed, "box", &["status"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = stderr(&gone);
    assert!(
        said.starts_with("braid: no box is running on this device; "),
        "{said}"
    );
    assert!(said.ends_with("control.sock: no such file)\n"), "{said}");
}
