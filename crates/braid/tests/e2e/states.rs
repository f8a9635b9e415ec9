//! Links and servers that are neither up nor down, and their conditions in `status` and the log.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid_proxy::verdict::{Condition, Health};
use braid_testbed::Role;
use braid_testbed::netns;
use braid_testbed::render::render_config;

use super::control::status;
use super::fixture::{Fixture, render_changed};

/// The portal's port on the router.
const PORT: u16 = 8_080;

/// A captive portal on link1: its web server answers every TCP connection, everything else is dropped.
/// Dropping it ends the server but leaves its rules.
struct Portal(Arc<AtomicBool>);

impl Portal {
    fn put(bed: &Fixture, answers: bool) -> Self {
        let router = bed.testbed.layout().host("internet").expect("a known host");
        let at = SocketAddr::from(([0, 0, 0, 0], PORT));
        let listener = netns::run_inside(&router.namespace, || TcpListener::bind(at));
        let listener = listener.expect("it listens");
        listener.set_nonblocking(true).expect("a socket");
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        thread::spawn(move || {
            let mut kept = Vec::new();
            while !told.load(Ordering::Acquire) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                if answers {
                    // A box that has gone is no error here.
                    let _ =
                        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n<html>log in</html>");
                } else {
                    kept.push(stream);
                }
            }
        });
        let drop = "chain f {\n\
             type filter hook forward priority 0\n\
             iifname \"link1\" drop\n\
             oifname \"link1\" drop\n\
             }\n";
        let rules = format!(
            "table ip portal {{\n\
             chain p {{\n\
             type nat hook prerouting priority -100\n\
             iifname \"link1\" meta l4proto tcp redirect to :{PORT}\n\
             }}\n\
             {drop}}}\n\
             table ip6 portal {{\n{drop}}}\n"
        );
        nft(bed, &rules);
        Portal(ending)
    }

    /// Opens the portal, as after a login.
    fn log_in(self, bed: &Fixture) {
        nft(bed, "delete table ip portal\ndelete table ip6 portal\n");
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Brings up a bed on which neither box nor server runs yet.
fn idle() -> Fixture {
    Fixture::up_idle(render_config(None).expect("randomness"))
}

/// Loads rules on the router that both links lead to.
fn nft(bed: &Fixture, rules: &str) {
    bed.nft("internet", rules).expect("nft runs");
}

fn condition(bed: &Fixture, link: usize) -> Option<Condition> {
    status(bed, "box").paths[link].condition
}

fn wait_for_condition(bed: &mut Fixture, link: usize, condition_: Condition) {
    bed.wait_for(&format!("link {} to be: {condition_}", link + 1), |bed| {
        condition(bed, link) == Some(condition_)
    });
}

/// The box starts behind a portal on its faster link. It reports that, serves users over the other link, and
/// works fully after a login.
#[test]
#[ignore = "network"]
fn a_captive_portal_is_named_and_avoided() {
    for answers in [true, false] {
        let mut bed = idle();
        bed.start("server");
        let portal = Portal::put(&bed, answers);
        bed.start("box");
        bed.wait_for_interception();
        wait_for_condition(&mut bed, 0, Condition::CaptivePortal);
        for _ in 0..5 {
            bed.fetch(10_000);
        }
        let now = status(&bed, "box");
        assert_eq!(now.verdict.health, Health::Degraded);
        assert_eq!(now.verdict.reasons[0].code, "captive-portal");
        assert_eq!(now.verdict.reasons[0].subject.as_deref(), Some("link1"));
        bed.wait_for("the log to say so", |bed| {
            bed.log("box")
                .contains("link link1 is behind a captive portal")
        });
        portal.log_in(&bed);
        wait_for_condition(&mut bed, 0, Condition::Working);
        assert_eq!(status(&bed, "box").verdict.health, Health::Working);
        bed.down();
    }
}

/// The faster link's network removes the options of Multipath TCP.
#[test]
#[ignore = "network"]
fn a_link_that_strips_multipath_tcp_is_named_and_avoided() {
    let mut bed = idle();
    bed.start("server");
    let rules = "table inet strip {\n\
         chain f {\n\
         type filter hook forward priority 0\n\
         iifname \"link1\" tcp dport 1080 reset tcp option mptcp\n\
         oifname \"link1\" tcp sport 1080 reset tcp option mptcp\n\
         }\n\
         }\n";
    nft(&bed, rules);
    bed.start("box");
    bed.wait_for_interception();
    wait_for_condition(&mut bed, 0, Condition::MptcpStripped);
    let before = bed.carried();
    bed.fetch(1_000_000);
    let carried = bed.carried();
    assert!(
        carried[1] > before[1] + 1_000_000,
        "{before:?}, {carried:?}"
    );
    assert_eq!(status(&bed, "box").verdict.health, Health::Degraded);
    nft(&bed, "delete table inet strip\n");
    wait_for_condition(&mut bed, 0, Condition::Working);
}

/// No user can connect: `lan` names a missing interface, which is plugged in later.
#[test]
#[ignore = "network"]
fn a_lan_that_is_missing_is_named() {
    let renamed = |text: String| {
        let line = |line: &str| match line.starts_with("lan = ") {
            true => "lan = \"eth99\"".to_owned(),
            false => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let mut bed = Fixture::up_idle(render_changed(Role::Box, renamed));
    bed.start("server");
    bed.start("box");
    let reason = |bed: &Fixture| status(bed, "box").verdict.reasons.into_iter().next();
    bed.wait_for("the verdict to name the interface", |bed| {
        reason(bed)
            .is_some_and(|r| r.code == "lan-missing" && r.subject.as_deref() == Some("eth99"))
    });
    assert_eq!(status(&bed, "box").verdict.health, Health::Down);
    let plug = "link add eth99 type veth peer name eth98";
    bed.run("box", "ip", &plug.split(" ").collect::<Vec<_>>());
    bed.wait_for("the verdict to be: working", |bed| {
        status(bed, "box").verdict.health == Health::Working
    });
}

/// Dark links, one after the other, and a server that is gone.
#[test]
#[ignore = "network"]
fn an_outage_is_no_success() {
    let mut bed = Fixture::up();
    bed.set_link("link2", "down");
    wait_for_condition(&mut bed, 1, Condition::NoAnswers);
    let one = status(&bed, "box");
    assert_eq!(one.verdict.health, Health::Degraded);
    assert_eq!(one.verdict.reasons[0].subject.as_deref(), Some("link2"));
    bed.set_link("link1", "down");
    bed.wait_for("the verdict to be: down", |bed| {
        status(bed, "box").verdict.health == Health::Down
    });
    let log = bed.log("box");
    let begins = "new connections are forwarded over one link, unprotected";
    assert!(log.contains(begins), "{log}");
    bed.set_link("link1", "up");
    bed.set_link("link2", "up");
    bed.wait_for("the verdict to be: working", |bed| {
        status(bed, "box").verdict.health == Health::Working
    });
    let log = bed.log("box");
    let ends = log.rfind("new connections are aggregated");
    assert!(ends > log.rfind(begins), "{log}");
}

#[test]
#[ignore = "network"]
fn a_box_that_starts_without_a_server_says_what_becomes_of_users() {
    let mut bed = idle();
    bed.start("box");
    bed.wait_for("a line on new connections", |bed| {
        let line = "new connections are forwarded over one link, unprotected";
        bed.log("box").contains(line)
    });
}
