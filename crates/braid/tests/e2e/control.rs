//! A running box and server that are asked and switched.

use std::process::Output;

use braid_proxy::status::{PathState, ProxyStatus, Status};

use super::bed::{Bed, stderr};

/// Asks the `role` of the testbed, from the machine itself.
fn ask(bed: &Bed, role: &str, arguments: &[&str]) -> Output {
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

fn expect_text(bed: &Bed, role: &str, arguments: &[&str]) -> String {
    let output = ask(bed, role, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// What box or server show of themselves.
pub fn status(bed: &Bed, role: &str) -> Status {
    let text = expect_text(bed, role, &["status", "--json"]);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

#[test]
#[ignore = "network"]
fn a_running_box_is_asked_and_switched() {
    let mut bed = Bed::up();
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=20mbit");
    let expected = bed.offer("large", 30_000_000);
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 4_000_000
    });

    let boxed = status(&bed, "box");
    let proxy = ProxyStatus {
        on: true,
        taking_in: true,
    };
    assert_eq!((boxed.version, boxed.proxy), (1, Some(proxy)));
    let content = format!("{}:80", bed.v4("content"));
    let [conn] = &boxed.connections[..] else {
        panic!("{boxed:?}")
    };
    assert_eq!(conn.destination.as_deref(), Some(content.as_str()));
    assert!(conn.mptcp && conn.bytes_down > 4_000_000, "{conn:?}");
    for path in &boxed.paths {
        assert_eq!((path.state, path.subflows), (PathState::Up, 1), "{path:?}");
        assert!(
            path.bytes_received > 500_000 && path.rtt_ms.is_some(),
            "{path:?}"
        );
    }
    let server = status(&bed, "server");
    let [conn] = &server.connections[..] else {
        panic!("{server:?}")
    };
    assert_eq!((conn.user.as_deref(), conn.paths.len()), (Some("box"), 2));
    assert!(conn.bytes_down > 4_000_000, "{conn:?}");
    for text in [
        expect_text(&bed, "box", &["status"]),
        expect_text(&bed, "server", &["status"]),
    ] {
        assert!(text.contains(&content) && text.contains("Mbit/s"), "{text}");
        println!("{text}");
    }

    expect_text(&bed, "box", &["link", "link1", "off"]);
    bed.wait_for("the link to be left", |bed| {
        status(bed, "box").paths[0].subflows == 0
    });
    let [first, second] = bed.carried();
    bed.wait_for("the other link to go on", |bed| {
        bed.carried()[1] > second + 2_000_000
    });
    let left = bed.carried()[0] - first;
    assert!(left < 100_000, "{left} bytes over a link that is off");
    assert_eq!(status(&bed, "box").paths[0].state, PathState::Off);
    expect_text(&bed, "box", &["link", "link1", "on"]);
    bed.wait_for("both links to be used", |bed| {
        bed.carried()[0] > first + 1_000_000
    });

    expect_text(&bed, "box", &["proxy", "off"]);
    let joined = status(&bed, "box").counters["accepted"];
    bed.wait_for("the intake to close", |bed| {
        bed.print("box", "ss", &["-Hltn"]).is_empty()
    });
    bed.fetch(100_000);
    let forwarded = status(&bed, "box");
    assert_eq!(forwarded.counters["accepted"], joined);
    assert_eq!(
        forwarded.proxy,
        Some(ProxyStatus {
            on: false,
            taking_in: false
        })
    );
    // What was taken in goes on.
    download.expect_bytes(&expected);
    expect_text(&bed, "box", &["proxy", "on"]);
    bed.wait_for_intake();
    bed.fetch(100_000);
    assert_eq!(status(&bed, "box").counters["accepted"], joined + 1);
}

#[test]
#[ignore = "network"]
fn who_cannot_be_asked_is_told_apart() {
    let mut bed = Bed::up();
    let unknown = ask(&bed, "box", &["link", "dsl", "off"]);
    assert_eq!(unknown.status.code(), Some(1));
    let why = "braid: the box says: there is no link \"dsl\"; the links are link1, link2\n";
    assert_eq!(stderr(&unknown), why);
    bed.testbed
        .stop("box")
        .unwrap_or_else(|e| panic!("stop: {e}"));
    let gone = ask(&bed, "box", &["status"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = stderr(&gone);
    assert!(
        said.starts_with("braid: no box is running here ("),
        "{said}"
    );
    assert!(said.ends_with("control.sock: no such file)\n"), "{said}");
}
