//! The engine and the kernel's Multipath TCP with each other, both ways round: 50 MB each way on
//! one connection, every byte compared, both directions ended in order.

use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use braid_proxy::keys::PrivateKey;
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
/// Before what the kernel receives, as nftables calls it.
pub const RECEIVED: &str = "prerouting";
/// Behind what the kernel sends.
pub const SENT: &str = "postrouting";
/// What a side is told: so much each way, compared byte by byte.
fn told<'a>(bytes: &'a str, [own, other]: [&'a str; 2]) -> [&'a str; 8] {
    [
        "--send", bytes, "--seed", own, "--expect", bytes, "--verify", other,
    ]
}

/// The engine or the kernel.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    Engine,
    Kernel,
}

/// The engine and the kernel as the two ends of a connection.
pub struct Interop {
    pub bed: Bed,
    /// Who opens the connection.
    pub client: Side,
    paths: usize,
    /// The engine requires DSS checksums.
    pub checksum: bool,
    /// The engine asks for congestion marks.
    asks_ecn: bool,
    /// What each side sends, bytes.
    pub bytes: &'static str,
    /// The connection is one of IPv6.
    pub v6: bool,
    /// The kernel connects by a socket of IPv6 to an IPv4-mapped address.
    pub mapped: bool,
    /// The engine announces its addresses where it listens.
    pub announces: bool,
    /// The engine wants no joins to the address that the kernel came to.
    pub denies_joins: bool,
}

impl Interop {
    pub fn new(client: Side, paths: usize) -> Self {
        // A kernel client chooses the link by the source address of a subflow. A kernel server
        // must not: all subflows come to one address of its own, and their way back is that of
        // the destination.
        let by_source = client == Side::Kernel && paths == 2;
        let bed =
            Bed::of(&DESCRIPTION.replace("MPTCP", if by_source { "mptcp = true" } else { "" }));
        Interop {
            bed,
            client,
            paths,
            checksum: false,
            asks_ecn: false,
            bytes: "50000000",
            v6: false,
            mapped: false,
            announces: false,
            denies_joins: false,
        }
    }

    /// The same with nothing lost, for what the kernel says once and nobody acknowledges (addresses that
    /// go, priorities, why a subflow ends): the queues take all that windows and send buffers hold, and
    /// the links are so slow that one of them does not take all of it.
    pub fn lossless(client: Side, paths: usize) -> Self {
        let mut interop = Self::new(client, paths);
        interop.set_kernel("ipv4/tcp_rmem", "4096 131072 400000");
        interop.set_kernel("ipv4/tcp_wmem", "4096 16384 400000");
        for link in ["link1", "link2"] {
            interop.bed.set_link(link, "rate=40mbit queue=4MB");
        }
        interop
    }

    /// The first address of a host.
    pub fn address(&self, host: &str) -> IpAddr {
        match self.v6 {
            true => self.bed.v6(host),
            false => self.bed.v4(host),
        }
    }

    /// Writes a setting below `net` in the kernel's namespace.
    pub fn set_kernel(&self, name: &str, value: impl Display) {
        let write = format!("echo '{value}' > /proc/sys/net/{name}");
        self.bed.run("kernel", "sh", &["-c", &write]);
    }

    /// Puts a rule of nftables at the kernel's host, in the table `meddling`.
    pub fn meddle(&self, hook: &str, rule: &str) {
        let chain = format!("chain meddling {{ type filter hook {hook} priority -300; {rule}; }};");
        let table = format!("table inet meddling {{ {chain} }};");
        self.bed.run("kernel", "nft", &[&table]);
    }

    /// Starts both sides; the engine's first.
    pub fn start(&self) -> [Background; 2] {
        self.start_with(&[])
    }

    /// The same; the engine is told more.
    pub fn start_with(&self, more: &[&str]) -> [Background; 2] {
        let [engine, kernel] = [["1", "2"], ["2", "1"]].map(|seeds| told(self.bytes, seeds));
        self.start_as(&[&engine, more].concat(), &kernel)
    }

    /// Starts both sides with what each is told; the engine's first.
    pub fn start_as(&self, engine: &[&str], kernel: &[&str]) -> [Background; 2] {
        let config = self.config();
        match self.client {
            Side::Engine => {
                // What it announces without a port is joined at the same one.
                let listen = format!("[::]:{PORT}");
                let arguments = [&["listen", &listen], kernel].concat();
                let listening = self.bed.kernel_peer("kernel", &arguments);
                let to = SocketAddr::new(self.address("kernel"), PORT).to_string();
                let arguments = [&["connect", "-c", &config, &to], engine].concat();
                [self.bed.engine_peer("engine", &arguments), listening]
            }
            Side::Kernel => {
                let arguments = [&["listen", "-c", &config], engine].concat();
                let listening = self.bed.engine_peer("engine", &arguments);
                let to = match (self.mapped, self.address("engine")) {
                    (true, IpAddr::V4(v4)) => v4.to_ipv6_mapped().into(),
                    (_, address) => address,
                };
                let to = SocketAddr::new(to, PORT).to_string();
                let arguments = [&["connect", &to], kernel].concat();
                [listening, self.bed.kernel_peer("kernel", &arguments)]
            }
        }
    }

    /// Writes the engine's configuration; its path.
    pub fn config(&self) -> String {
        let mut text = match self.client {
            Side::Engine => "lan = \"lo\"\n".to_owned(),
            Side::Kernel => {
                let mut listen = vec![self.address("engine").to_string()];
                if self.announces {
                    listen.push(self.bed.v4_of("engine", 1).to_string());
                }
                let (announces, denies) = (self.announces, self.denies_joins);
                format!(
                    "listen = {listen:?}\nport = {PORT}\nannounce = {announces}\n\
                     deny_join_initial = {denies}\n"
                )
            }
        };
        if self.checksum {
            text.insert_str(0, "checksum = true\n");
        }
        if self.asks_ecn {
            // BBR answers no marks.
            text.insert_str(0, "ecn = \"ask\"\ncongestion = \"cubic\"\n");
        }
        // Nobody signs in here.
        text.insert_str(0, "key_file = \"engine.key\"\n");
        let key = PrivateKey::from_seed([1; 32]);
        let other = format!("key = \"{}\"\n", key.public());
        if self.client == Side::Kernel {
            text.push_str(&format!("[[user]]\nname = \"nobody\"\n{other}"));
        } else {
            for (i, link) in ["link1", "link2"].into_iter().enumerate().take(self.paths) {
                let gateways = [self.bed.v4_of("kernel", i), self.bed.v6_of("kernel", i)];
                let gateways = gateways.map(|gateway| gateway.to_string());
                text.push_str(&format!(
                    "[[link]]\ninterface = \"{link}\"\ngateway = {gateways:?}\n"
                ));
            }
            let server = self.address("kernel");
            text.push_str(&format!("[[server]]\naddress = \"{server}\"\n{other}"));
        }
        let directory = self.bed.testbed.state_dir();
        let key_file = directory.join("engine.key");
        if !key_file.exists() {
            key.create(&key_file)
                .expect("the state directory is writable");
        }
        let path = directory.join("engine.toml");
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
        for report in self.reports(peers) {
            assert_eq!(report["fallback"], false, "{report}");
            assert_eq!(report["subflows"], subflows, "{report}");
        }
    }

    /// The same where a subflow may be gone before the kernel's peer, which looks now and then only,
    /// has seen it: what counts is what the engine saw.
    pub fn expect_short_lived(&self, peers: [Background; 2], subflows: usize) {
        let reports = self.reports(peers);
        assert_eq!(reports[0]["subflows"], subflows, "{}", reports[0]);
        for report in reports {
            assert_eq!(report["fallback"], false, "{report}");
        }
    }

    /// Waits for both sides: all arrived; what they report.
    pub fn reports(&self, peers: [Background; 2]) -> [Value; 2] {
        let reports = self.ends(peers);
        if !reports.iter().all(|r| r["ok"] == true) {
            let counters = self.bed.print("kernel", "nstat", &["-as"]);
            panic!("{reports:?}\n{counters}");
        }
        reports
    }

    /// Waits for both sides, however they end; what they report.
    pub fn ends(&self, peers: [Background; 2]) -> [Value; 2] {
        peers.map(|mut peer| {
            let output = peer.wait();
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let report = printed.lines().find(|line| line.contains("\"role\""));
            let report = report.unwrap_or_else(|| panic!("no report: {printed}{said}"));
            let report = serde_json::from_str::<Value>(report).expect("JSON");
            let well = report["ok"] == true;
            if !well {
                eprintln!("{said}");
            }
            assert_eq!(output.status.success(), well, "{report}\n{said}");
            report
        })
    }

    /// One of the kernel's counters of Multipath TCP.
    pub fn count(&self, name: &str) -> u64 {
        self.count_any(&format!("MPTcpExt{name}"))
    }

    /// Any of the kernel's counters.
    pub fn count_any(&self, name: &str) -> u64 {
        let printed = self.bed.print("kernel", "nstat", &["-asz", "--json"]);
        let counters: Value = serde_json::from_str(&printed).expect("JSON");
        let value = &counters["kernel"][name];
        value
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {value}"))
    }

    /// The kernel's own counters: joined as often as there are paths, never fallen back, and the
    /// connection ended by DATA_FIN, not by a reset.
    fn expect_counters(&self) {
        let joins = match self.client {
            Side::Engine => self.count("MPJoinAckRx"),
            Side::Kernel => self.count("MPJoinSynAckRx"),
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

fn plain(client: Side, paths: usize) {
    let interop = Interop::new(client, paths);
    let peers = interop.start();
    interop.finish(peers);
}

fn lossy(client: Side) {
    let mut interop = Interop::new(client, 2);
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "loss=2%");
    }
    let peers = interop.start();
    interop.finish(peers);
}

/// One link carries nothing for 10 s in the middle.
fn dark(client: Side) {
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
    // What was under way there went over the other link meanwhile, both ways, and came twice.
    for name in ["MPTCPRetrans", "DuplicateData"] {
        assert!(interop.count(name) > 0, "{name}");
    }
}

/// The MTU of one link falls in the middle, at both of its ends; its subflow stays in use, and is
/// never replaced.
fn narrowed(client: Side) {
    let mut interop = Interop::new(client, 2);
    interop.bytes = "30000000";
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "rate=40mbit");
    }
    let peers = interop.start();
    interop.bed.wait_for("both links to be in use", |bed| {
        bed.carried().iter().all(|carried| *carried > 1_000_000)
    });
    for host in ["engine", "kernel"] {
        let narrow = ["link", "set", "link2", "mtu", "1300"];
        interop.bed.run(host, "ip", &narrow);
    }
    let before = interop.bed.carried();
    interop.finish(peers);
    let [_, carried] = interop.bed.carried();
    assert!(carried > before[1] + 2_000_000, "it is left alone");
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_a_smaller_mtu() {
    narrowed(Side::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_a_smaller_mtu() {
    narrowed(Side::Kernel);
}

/// DSS checksums (RFC 8684 section 3.3.1), required by the engine, the kernel or both.
fn checksums(client: Side) {
    for (engine, kernel) in [(true, false), (false, true), (true, true)] {
        let mut interop = Interop::new(client, 2);
        interop.checksum = engine;
        interop.set_kernel("mptcp/checksum_enabled", u32::from(kernel));
        interop.bed.set_link("link1", "loss=1%");
        let peers = interop.start();
        interop.finish(peers);
    }
}

/// Queues that mark (RFC 3168): the kernel gets marked packets, and is told of marks on its own.
fn marks(client: Side) {
    let mut interop = Interop::new(client, 2);
    interop.asks_ecn = true;
    interop.set_kernel("ipv4/tcp_ecn", 1);
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "codel=1ms/10ms/mark");
    }
    let peers = interop.start();
    interop.finish(peers);
    for name in ["IpExtInCEPkts", "TcpExtTCPDeliveredCE"] {
        assert!(interop.count_any(name) > 0, "{name}");
    }
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_marks() {
    marks(Side::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_marks() {
    marks(Side::Kernel);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_checksums() {
    checksums(Side::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_checksums() {
    checksums(Side::Kernel);
}

/// The kernel answers every SYN without state.
#[test]
#[ignore = "network"]
fn engine_to_kernel_with_syn_cookies() {
    let interop = Interop::new(Side::Engine, 2);
    interop.set_kernel("ipv4/tcp_syncookies", 2);
    let peers = interop.start();
    interop.finish(peers);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_over_one_path() {
    plain(Side::Engine, 1);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_over_two_paths() {
    plain(Side::Engine, 2);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_loss() {
    lossy(Side::Engine);
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_with_a_dark_link() {
    dark(Side::Engine);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_over_one_path() {
    plain(Side::Kernel, 1);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_over_two_paths() {
    plain(Side::Kernel, 2);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_loss() {
    lossy(Side::Kernel);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_with_a_dark_link() {
    dark(Side::Kernel);
}
