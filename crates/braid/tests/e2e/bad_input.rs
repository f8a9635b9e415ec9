//! Malformed input from strangers is counted and logged, and nobody else notices.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use braid_testbed::Pattern;
use braid_testbed::netns;
use braid_testbed::render::render_config;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::control::status;
use super::fixture::{Fixture, unique_name, write_script};

/// The server's default port.
const PORT: u16 = 1080;
/// Enough to hit every length and flag many times.
const PACKETS: usize = 20_000;

/// Sends TCP segments of random bytes and lengths from the router to `to`. Their ports are right, so that
/// they pass the packet filter; some are shorter than a TCP header.
fn send_garbage(bed: &Fixture, to: SocketAddr) -> io::Result<()> {
    let host = bed.testbed.layout().host("internet").expect("a known host");
    netns::run_inside(&host.namespace, || {
        let domain = Domain::for_address(to);
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::TCP))?;
        let to_host = SockAddr::from(SocketAddr::new(to.ip(), 0));
        let mut pattern = Pattern::new(42);
        let mut segment = [0; 120];
        for i in 0..PACKETS {
            pattern.fill(&mut segment);
            segment[2..4].copy_from_slice(&to.port().to_be_bytes());
            if i % 2 == 0 {
                // With a plausible header length the options are parsed.
                segment[12] = 0x50 + ((i % 11) << 4) as u8;
            }
            let len = 4 + i % (segment.len() - 4);
            // The queue of the socket may be full for a moment.
            let _ = socket.send_to(&segment[..len], &to_host);
        }
        Ok(())
    })
}

fn expect_alive(bed: &mut Fixture) {
    bed.fetch(1_000_000);
    for host in ["box", "server"] {
        assert!(
            bed.testbed.pid(host).is_some(),
            "{host} ended:\n{}",
            bed.log(host)
        );
        let lines = bed.log(host).lines().count();
        assert!(
            lines < 100,
            "{host} wrote {lines} lines:\n{}",
            bed.log(host)
        );
    }
}

#[test]
#[ignore = "network"]
fn random_packets_harm_nobody() {
    let mut bed = Fixture::up();
    for address in [bed.v4("server"), bed.v6("server")] {
        send_garbage(&bed, SocketAddr::new(address, PORT)).expect("a raw socket");
    }
    expect_alive(&mut bed);
}

#[test]
#[ignore = "network"]
fn garbage_in_place_of_socks_is_refused() {
    let mut bed = Fixture::up();
    send_garbage_for_socks(&bed);
    expect_alive(&mut bed);
}

/// Box and server have an error to log, and cannot write it: the disk is full, or the reader is gone.
#[test]
#[ignore = "network"]
fn a_log_that_cannot_be_written_ends_nothing() {
    for stderr in ["2>/dev/full", "2> >(exit 0)"] {
        let program = std::env::temp_dir().join(format!("{}-braid", unique_name()));
        let braid = env!("CARGO_BIN_EXE_braid");
        let script = format!("#!/bin/bash\nexec {braid} \"$@\" {stderr}\n");
        write_script(&program, &script);
        let render = render_config(None).expect("randomness");
        let mut bed = Fixture::up_idle_by(render, program.clone());
        for host in ["server", "box"] {
            bed.testbed.start(host).expect("it starts");
        }
        bed.wait_for_interception();
        send_garbage_for_socks(&bed);
        bed.wait_for("the server to refuse it", |bed| {
            status(bed, "server").counters["plaintext_refused"] >= 4
        });
        expect_alive(&mut bed);
        // The system clears the directory of temporary files too.
        let _ = fs::remove_file(program);
    }
}

fn send_garbage_for_socks(bed: &Fixture) {
    let address = SocketAddr::new(bed.v4("server"), PORT).to_string();
    for (transport, seed) in [("tcp", "1"), ("mptcp", "2"), ("tcp", "3"), ("mptcp", "4")] {
        let mut peer = bed.kernel_peer(
            "internet",
            &[
                "connect",
                &address,
                "--transport",
                transport,
                "--send",
                "100000",
                "--seed",
                seed,
            ],
        );
        // The server ends the connection; the timing decides how the sender sees that.
        let report = String::from_utf8_lossy(&peer.wait().stdout).into_owned();
        assert!(!report.contains("no progress"), "{report}");
    }
}

#[test]
#[ignore = "network"]
fn connections_that_say_nothing_are_ended() {
    let mut bed = Fixture::up();
    let IpAddr::V4(address) = bed.v4("server") else {
        panic!("an IPv4 address")
    };
    let script = format!("exec 3<>/dev/tcp/{address}/{PORT}; printf '\\5'; cat <&3");
    let mut silent: Vec<_> = (0..100)
        .map(|_| {
            let mut command = bed.exec("internet", "bash");
            command
                .args(["-c", &script])
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            command.stderr(Stdio::null()).spawn().expect("bash starts")
        })
        .collect();
    bed.fetch(1_000_000);
    bed.wait_for("the server to end them", |_| {
        silent
            .iter_mut()
            .all(|child| matches!(child.try_wait(), Ok(Some(_))))
    });
    expect_alive(&mut bed);
}
