//! The engine and the kernel's Multipath TCP with each other, both ways round: 50 MB each way on
//! one connection, every byte compared, both directions ended in order.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::bed::{Background, Bed};

const DESCRIPTION: &str = r#"
name = "NAME"
congestion = "cubic"

[[host]]
name = "engine"
role = "router"
gateway = "kernel"

[[host]]
name = "kernel"
role = "router"
MPTCP

[[link]]
name = "link1"
from = "engine"
to = "kernel"
rate = "200mbit"
delay = "2ms"

[[link]]
name = "link2"
from = "engine"
to = "kernel"
rate = "100mbit"
delay = "4ms"
"#;

/// Where the side that accepts listens.
pub const PORT: u16 = 7005;
const BYTES: &str = "50000000";
/// What both sides are told: 50 MB each way, compared byte by byte.
const A: [&str; 8] = [
    "--send", BYTES, "--seed", "1", "--expect", BYTES, "--verify", "2",
];
const B: [&str; 8] = [
    "--send", BYTES, "--seed", "2", "--expect", BYTES, "--verify", "1",
];

/// Which side opens the connection.
#[derive(Clone, Copy, PartialEq)]
pub enum Client {
    Engine,
    Kernel,
}

/// The engine and the kernel as the two ends of a connection.
pub struct Interop {
    pub bed: Bed,
    client: Client,
    paths: usize,
    /// The engine requires DSS checksums.
    checksum: bool,
    /// The connection is one of IPv6.
    pub v6: bool,
    /// The engine announces its addresses where it listens.
    pub announces: bool,
}

impl Interop {
    pub fn new(client: Client, paths: usize) -> Self {
        // A kernel client chooses the link by the source address of a subflow. A kernel server
        // must not: all subflows come to one address of its own, and their way back is that of
        // the destination.
        let by_source = client == Client::Kernel && paths == 2;
        let bed =
            Bed::of(&DESCRIPTION.replace("MPTCP", if by_source { "mptcp = true" } else { "" }));
        Interop {
            bed,
            client,
            paths,
            checksum: false,
            v6: false,
            announces: false,
        }
    }

    /// The first address of a host.
    pub fn address(&self, host: &str) -> IpAddr {
        match self.v6 {
            true => self.bed.v6(host),
            false => self.bed.v4(host),
        }
    }

    /// Writes a setting below `net` in the kernel's namespace.
    pub fn set_kernel(&self, name: &str, value: u32) {
        let write = format!("echo {value} > /proc/sys/net/{name}");
        self.bed.run("kernel", "sh", &["-c", &write]);
    }

    /// Starts both sides; the engine's first.
    pub fn start(&self) -> [Background; 2] {
        let [kernel, engine] =
            ["kernel", "engine"].map(|host| SocketAddr::new(self.address(host), PORT).to_string());
        let config = self.config();
        match self.client {
            Client::Engine => {
                // What it announces without a port is joined at the same one.
                let listen = format!("[::]:{PORT}");
                let listening = self
                    .bed
                    .kernel_peer("kernel", &[&["listen", &listen], &A[..]].concat());
                let arguments = [&["connect", "-c", &config, &kernel], &B[..]].concat();
                [self.bed.engine_peer("engine", &arguments), listening]
            }
            Client::Kernel => {
                let arguments = [&["listen", "-c", &config], &A[..]].concat();
                let listening = self.bed.engine_peer("engine", &arguments);
                let arguments = [&["connect", &engine], &B[..]].concat();
                [listening, self.bed.kernel_peer("kernel", &arguments)]
            }
        }
    }

    /// Writes the engine's configuration; its path.
    pub fn config(&self) -> String {
        let mut text = match self.client {
            Client::Engine => "lan = \"lo\"\n".to_owned(),
            Client::Kernel => {
                let mut listen = vec![self.address("engine").to_string()];
                if self.announces {
                    listen.push(self.bed.v4_of("engine", 1).to_string());
                }
                let announces = self.announces;
                format!("listen = {listen:?}\nport = {PORT}\nannounce = {announces}\n")
            }
        };
        if self.checksum {
            text.insert_str(0, "checksum = true\n");
        }
        let secret = "secret = \"vXbm2Kx1VQk0pQm7cSg0o3Yd8nq4cT5zRfWl6uJh9Ae=\"\n";
        if self.client == Client::Kernel {
            text.push_str(&format!("[[user]]\nname = \"nobody\"\n{secret}"));
        } else {
            for (i, link) in ["link1", "link2"].into_iter().enumerate().take(self.paths) {
                let gateways = [self.bed.v4_of("kernel", i), self.bed.v6_of("kernel", i)];
                let gateways = gateways.map(|gateway| gateway.to_string());
                text.push_str(&format!(
                    "[[link]]\ninterface = \"{link}\"\ngateway = {gateways:?}\n"
                ));
            }
            let server = self.address("kernel");
            text.push_str(&format!("[[server]]\naddress = \"{server}\"\n{secret}"));
        }
        let path = self.bed.testbed.state_dir().join("engine.toml");
        fs::write(&path, text).expect("the state directory is writable");
        path.display().to_string()
    }

    /// Waits for both sides and looks at what they report.
    fn finish(&self, peers: [Background; 2]) {
        self.expect_subflows(peers, self.paths);
        self.expect_counters();
        if self.paths == 2 {
            for carried in self.bed.carried() {
                assert!(carried > 2_000_000, "a link carried {carried} bytes only");
            }
        }
    }

    /// Waits for both sides: all arrived, by at most so many subflows at once.
    pub fn expect_subflows(&self, peers: [Background; 2], subflows: usize) {
        let mut reports = Vec::new();
        for mut peer in peers {
            let output = peer.wait();
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let report = printed.lines().find(|line| line.contains("\"role\""));
            let report = report.unwrap_or_else(|| panic!("no report: {printed}{said}"));
            assert!(output.status.success(), "{report}\n{said}");
            reports.push(serde_json::from_str::<Value>(report).expect("JSON"));
        }
        for report in &reports {
            assert_eq!(report["fallback"], false, "{report}");
            assert_eq!(report["subflows"], subflows, "{report}");
        }
    }

    /// One of the kernel's counters of Multipath TCP.
    pub fn count(&self, name: &str) -> u64 {
        let printed = self.bed.print("kernel", "nstat", &["-asz", "--json"]);
        let counters: Value = serde_json::from_str(&printed).expect("JSON");
        let value = &counters["kernel"][format!("MPTcpExt{name}")];
        value
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {value}"))
    }

    /// The kernel's own counters: joined as often as there are paths, never fallen back, and the
    /// connection ended by DATA_FIN, not by a reset.
    fn expect_counters(&self) {
        let joins = match self.client {
            Client::Engine => self.count("MPJoinAckRx"),
            Client::Kernel => self.count("MPJoinSynAckRx"),
        };
        assert_eq!(joins, self.paths as u64 - 1, "joins");
        for name in [
            "MPCapableFallbackACK",
            "MPCapableFallbackSYNACK",
            "MPFallbackTokenInit",
            "MPFailRx",
            "MPFailTx",
            "MPFastcloseRx",
            "MPFastcloseTx",
            "MPJoinAckHMacFailure",
            "MPJoinSynAckHMacFailure",
            "DataCsumErr",
        ] {
            assert_eq!(self.count(name), 0, "{name}");
        }
    }
}

fn plain(client: Client, paths: usize) {
    let interop = Interop::new(client, paths);
    let peers = interop.start();
    interop.finish(peers);
}

fn lossy(client: Client) {
    let mut interop = Interop::new(client, 2);
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "loss=2%");
    }
    let peers = interop.start();
    interop.finish(peers);
}

/// One link carries nothing for 10 s in the middle.
fn dark(client: Client) {
    let mut interop = Interop::new(client, 2);
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "rate=25mbit");
    }
    let peers = interop.start();
    interop.bed.wait_for("both links to be in use", |bed| {
        bed.carried().iter().all(|carried| *carried > 2_000_000)
    });
    interop.bed.set_link("link2", "down");
    thread::sleep(Duration::from_secs(10));
    interop.bed.set_link("link2", "up");
    interop.finish(peers);
}

/// DSS checksums (RFC 8684 section 3.3.1), required by the engine, the kernel or both.
fn checksums(client: Client) {
    for (engine, kernel) in [(true, false), (false, true), (true, true)] {
        let mut interop = Interop::new(client, 2);
        interop.checksum = engine;
        interop.set_kernel("mptcp/checksum_enabled", kernel.into());
        interop.bed.set_link("link1", "loss=1%");
        let peers = interop.start();
        interop.finish(peers);
    }
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_checksums() {
    checksums(Client::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_checksums() {
    checksums(Client::Kernel);
}

/// The kernel answers every SYN without state.
#[test]
#[ignore = "network"]
fn engine_to_kernel_with_syn_cookies() {
    let interop = Interop::new(Client::Engine, 2);
    interop.set_kernel("ipv4/tcp_syncookies", 2);
    let peers = interop.start();
    interop.finish(peers);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_over_one_path() {
    plain(Client::Engine, 1);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_over_two_paths() {
    plain(Client::Engine, 2);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_loss() {
    lossy(Client::Engine);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_a_dark_link() {
    dark(Client::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_over_one_path() {
    plain(Client::Kernel, 1);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_over_two_paths() {
    plain(Client::Kernel, 2);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_loss() {
    lossy(Client::Kernel);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_a_dark_link() {
    dark(Client::Kernel);
}
