//! `mptcp_connect`, the test client of Multipath TCP that comes with Linux, in each of its transfer modes,
//! with the engine at the other end. `scripts/mptcp-connect.sh` builds it.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use braid_testbed::Pattern;
use nix::sys::socket::{setsockopt, sockopt};

use super::interop::{Interop, PORT, Side};

/// Arguments of each mode, the number of transfers with it, and the bytes each way. With `-r` it rests for
/// 0.4 s after every write.
const WAYS: [(&[&str], usize, usize); 10] = [
    (&["-m", "poll"], 1, 1_000_000),
    (&["-m", "mmap"], 1, 1_000_000),
    (&["-m", "sendfile"], 1, 1_000_000),
    (&["-P", "saveWithPeek"], 1, 1_000_000),
    (&["-P", "saveAfterPeek"], 1, 1_000_000),
    (&["-c", "TIMESTAMPNS"], 1, 1_000_000),
    (&["-S", "65536", "-R", "65536"], 1, 1_000_000),
    (&["-j"], 1, 1_000_000),
    (&["-I", "3"], 3, 200_000),
    (&["-r", "10000"], 1, 50_000),
];

/// Longest run, seconds. A busy machine may stand still for several of them.
const MAX_RUN_S: &str = "180";
/// Longest wait for something to read or to write, seconds.
const MAX_SILENCE_S: &str = "60";

/// A transfer between the two, both ways at once.
struct Transfer {
    interop: Interop,
    /// The engine sends and takes payload in SYNs.
    fast_open: bool,
    /// The connection may fall back to TCP.
    may_fall_back: bool,
    directory: PathBuf,
    /// Linux stamps packets only while a socket wants that, and starts some time after the first one wants
    /// it. Packets before that would lack the time stamp that `mptcp_connect -c` asks for.
    _stamps: UdpSocket,
}

impl Transfer {
    fn new(client: Side, v6: bool) -> Self {
        let mut interop = Interop::new(client, 2);
        interop.v6 = v6;
        let directory = interop.bed.testbed.state_dir().to_owned();
        let stamps = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        setsockopt(&stamps, sockopt::ReceiveTimestampns, &true).expect("a socket option");
        Transfer {
            interop,
            fast_open: false,
            may_fall_back: false,
            directory,
            _stamps: stamps,
        }
    }

    /// Starts it; the received bytes go to a file.
    fn mptcp_connect(&self, way: &[&str], address: &[&str]) -> Child {
        let program = std::env::var_os("BRAID_MPTCP_CONNECT");
        let program =
            program.expect("BRAID_MPTCP_CONNECT names what scripts/mptcp-connect.sh built");
        let output = File::create(self.directory.join("output")).expect("a writable directory");
        let mut command = self.interop.bed.exec("kernel", "timeout");
        command
            .arg(MAX_RUN_S)
            .arg(program)
            .args(["-t", MAX_SILENCE_S, "-p", &PORT.to_string()]);
        command
            .arg("-i")
            .arg(self.directory.join("input"))
            .args(way)
            .args(address);
        command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// Waits until it listens.
    fn wait_for_listener(&self) {
        let filter = format!("sport = :{PORT}");
        let listeners = || self.interop.bed.print("kernel", "ss", &["-Hltn", &filter]);
        self.interop
            .wait_until("mptcp_connect to listen", || !listeners().is_empty());
    }

    /// Runs the transfers: everything arrives, in both directions, over Multipath TCP.
    fn run(&self, client: Side, (way, times, size): (&[&str], usize, usize)) {
        // The cookie of the first connection serves the following ones, and `mptcp_connect` uses it in its
        // first connection only.
        let (opening, processes): (&[&str], _) = match (self.fast_open, client) {
            (true, Side::Engine) => (&["--fast-open", "--in-turn"], 1),
            (true, Side::Kernel) => (&["--fast-open"], times),
            (false, _) => (&[], 1),
        };
        let mut input = vec![0; size];
        Pattern::new(2).fill(&mut input);
        fs::write(self.directory.join("input"), input).expect("a writable directory");
        let (bytes, connections) = (size.to_string(), times.to_string());
        let engine = [
            "--connections",
            &connections,
            "--send",
            &bytes,
            "--seed",
            "1",
            "--expect",
            &bytes,
            "--verify",
            "2",
        ];
        let config = self.interop.config();
        let bed = &self.interop.bed;
        let address = |host| self.interop.address(host).to_string();
        let family: &[&str] = if self.interop.v6 { &["-6"] } else { &[] };
        let (mut engine, kernel) = match client {
            Side::Engine => {
                let here = address("kernel");
                let kernel = self.mptcp_connect(way, &[&["-l"], family, &[&here]].concat());
                self.wait_for_listener();
                let to =
                    std::net::SocketAddr::new(self.interop.address("kernel"), PORT).to_string();
                let arguments = [&["connect", "-c", &config, &to][..], opening, &engine].concat();
                (bed.engine_peer("engine", &arguments), kernel)
            }
            Side::Kernel => {
                let arguments = [&["listen", "-c", &config][..], opening, &engine].concat();
                let engine = bed.engine_peer("engine", &arguments);
                let there = address("engine");
                let connect = || self.mptcp_connect(way, &[family, &[&there]].concat());
                for _ in 1..processes {
                    let ended = connect().wait_with_output().expect("it ends");
                    let said = String::from_utf8_lossy(&ended.stderr);
                    assert!(ended.status.success(), "{way:?}: {said}");
                }
                (engine, connect())
            }
        };
        let ended = kernel.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        let seen = || self.interop.seen();
        assert!(ended.status.success(), "{way:?}: {said}\n{}", seen());
        let output = engine.wait();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{way:?}: {report}\n{}", seen());
        let fallback = if self.may_fall_back { "" } else { "false" };
        let reports = report.matches(&format!("\"fallback\":{fallback}")).count();
        assert_eq!(reports, times, "{way:?}: {report}");
        let came = fs::read(self.directory.join("output")).expect("what it received");
        assert_eq!(came.len(), size * times / processes, "{way:?}");
        for came in came.chunks(size) {
            assert_eq!(Pattern::new(1).check(came), Ok(()), "{way:?}");
        }
    }
}

fn every_way(client: Side, v6: bool) {
    let transfer = Transfer::new(client, v6);
    for way in WAYS {
        transfer.run(client, way);
    }
}

#[test]
#[ignore = "network"]
fn it_sends_to_the_engine_and_receives() {
    every_way(Side::Kernel, false);
}

#[test]
#[ignore = "network"]
fn the_engine_sends_to_it_and_receives() {
    every_way(Side::Engine, false);
}

#[test]
#[ignore = "network"]
fn both_ways_round_over_ipv6() {
    every_way(Side::Kernel, true);
    every_way(Side::Engine, true);
}

/// TCP Fast Open with Multipath TCP (RFC 8684 appendix B): the first connection gets a cookie, and the SYNs
/// of the others carry the first bytes.
fn fast_open(client: Side, v6: bool, checksum: bool) {
    let mut transfer = Transfer::new(client, v6);
    transfer.fast_open = true;
    transfer.interop.checksum = checksum;
    // As client and as server, with cookies.
    transfer.interop.set_kernel("ipv4/tcp_fastopen", 3);
    let way: &[&str] = match client {
        Side::Engine => &["-o", "MPTFO", "-I", "3"],
        Side::Kernel => &["-o", "MPTFO"],
    };
    transfer.run(client, (way, 3, 200_000));
    let count = |name: &str| {
        transfer
            .interop
            .count_any(&format!("TcpExtTCPFastOpen{name}"))
    };
    match client {
        Side::Kernel => assert_eq!((count("Active"), count("ActiveFail")), (2, 0)),
        Side::Engine => {
            assert_eq!((count("Passive"), count("PassiveFail")), (2, 0));
            assert_eq!(count("CookieReqd"), 1);
        }
    }
    for name in [
        "MPCapableFallbackACK",
        "MPCapableDataFallback",
        "DSSNotMatching",
    ] {
        assert_eq!(transfer.interop.count(name), 0, "{name}");
    }
}

#[test]
#[ignore = "network"]
fn it_opens_fast_to_the_engine() {
    fast_open(Side::Kernel, false, false);
    fast_open(Side::Kernel, true, false);
}

#[test]
#[ignore = "network"]
fn the_engine_opens_fast_to_it() {
    fast_open(Side::Engine, false, false);
    fast_open(Side::Engine, true, false);
}

/// The kernel has a cookie that the engine no longer accepts, and retransmits the SYN's payload beside a
/// DATA_ACK and without keys (RFC 8684 section 3.7, fallback). All of it arrives.
#[test]
#[ignore = "network"]
fn it_repeats_what_the_engine_does_not_take() {
    for (checksum, size) in [(false, 1), (false, 3_500_000), (true, 1), (true, 3_500_000)] {
        let mut transfer = Transfer::new(Side::Kernel, false);
        transfer.interop.checksum = checksum;
        transfer.interop.set_kernel("ipv4/tcp_fastopen", 3);
        let way: &[&str] = &["-o", "MPTFO"];
        transfer.fast_open = true;
        transfer.run(Side::Kernel, (way, 2, size));
        transfer.fast_open = false;
        transfer.may_fall_back = true;
        transfer.run(Side::Kernel, (way, 1, size));
        // The kernel's SYN carried data.
        let sent = transfer.interop.count_any("TcpExtTCPFastOpenActiveFail");
        assert!(sent > 0, "no SYN carried data that was not taken");
    }
}

#[test]
#[ignore = "network"]
fn both_open_fast_with_checksums() {
    fast_open(Side::Kernel, false, true);
    fast_open(Side::Engine, false, true);
}
