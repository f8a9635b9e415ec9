//! The engine and the kernel's Multipath TCP with each other, both ways round: 10 MB each way on one
//! connection (50 MB in `make soak`), every byte compared, both directions ended in order.
//!
//! The links are slower than the processor, so that both are used even on a busy machine. In `make soak` they
//! have 200 and 100 Mbit/s instead. A test that acts during a transfer calls [`Interop::hold`], which slows
//! the links down further. Waiting for the ends of the transfer speeds them up again. So the transfer ends
//! after the steps of the test, however long these take.

use std::env;
use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, Scope};
use std::time::{Duration, Instant, SystemTime};

use braid_secure::keys::PrivateKey;
use braid_testbed::emulator::Direction;
use braid_testbed::fixture::POLL_INTERVAL;
use braid_testbed::{Capture, Captured, LinkChange, Testbed};
use braid_wire::{ip, tcp};
use serde_json::Value;

use super::fixture::{Background, Fixture};

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
rate = "40mbit"
delay = "2ms"
queue = "100kB"

[[link]]
name = "link2"
from = "engine"
to = "kernel"
rate = "20mbit"
delay = "4ms"
queue = "100kB"
"#;

/// The port at which the accepting side listens.
pub const PORT: u16 = 7005;
/// The nftables hook before the kernel receives.
pub const RECEIVED: &str = "prerouting";
/// The nftables hook behind the kernel's sending.
pub const SENT: &str = "postrouting";

/// Rate of a link during the steps of a test: 10 MB take 10 s over two such links and 20 s over one.
/// A step takes a tenth of a second, and may take a second or two on a machine with other work.
const HELD_RATE: &str = "4mbit";
/// Rate of a link once only the end of the transfer is awaited.
const RELEASED_RATE: &str = "40mbit";
/// Rates and queues in `make soak`, unless a test holds the links: the processor is the limit there.
const SOAK_LINKS: [(&str, &str); 2] = [
    ("link1", "rate=200mbit queue=1000p"),
    ("link2", "rate=100mbit queue=1000p"),
];
/// Longest wait for a condition.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the end of a transfer. 50 MB over one released link take 10 s.
const MAX_TRANSFER: Duration = Duration::from_secs(240);
/// Time for which a failed test captures packets: some retransmissions if the connection is stuck.
const CAPTURED: Duration = Duration::from_secs(3);
/// Packets that a failed test shows: some round trips of both subflows, and not a screen more.
const LAST_PACKETS: usize = 20;

/// Returns whether `make soak` runs this, whose transfers are longer.
pub fn is_soak() -> bool {
    env::var_os("BRAID_SOAK").is_some()
}

/// Returns the bytes that each side of a transfer sends.
fn transfer_bytes() -> u64 {
    if is_soak() { 50_000_000 } else { 10_000_000 }
}

/// Returns the arguments of a side: so many bytes each way, compared byte by byte.
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
    pub bed: Fixture,
    /// The side that opens the connection.
    pub client: Side,
    paths: usize,
    /// The engine requires DSS checksums.
    pub checksum: bool,
    /// The engine asks for congestion marks.
    asks_ecn: bool,
    /// The links run at [`HELD_RATE`].
    held: bool,
    /// Bytes that each side sends.
    pub bytes: u64,
    /// The connection uses IPv6.
    pub v6: bool,
    /// The kernel connects an IPv6 socket to an IPv4-mapped address.
    pub mapped: bool,
    /// The engine announces its addresses where it listens.
    pub announces: bool,
    /// The engine denies joins to the address that the kernel connected to.
    pub denies_joins: bool,
}

impl Interop {
    pub fn new(client: Side, paths: usize) -> Self {
        // A kernel client chooses the link by the source address of a subflow. A kernel server must not: all
        // subflows come to one address of its own, and their way back depends on the destination.
        let by_source = client == Side::Kernel && paths == 2;
        let mut bed =
            Fixture::of(&DESCRIPTION.replace("MPTCP", if by_source { "mptcp = true" } else { "" }));
        if is_soak() {
            for (link, settings) in SOAK_LINKS {
                bed.set_link(link, settings);
            }
        }
        Interop {
            bed,
            client,
            paths,
            checksum: false,
            asks_ecn: false,
            held: false,
            bytes: transfer_bytes(),
            v6: false,
            mapped: false,
            announces: false,
            denies_joins: false,
        }
    }

    /// Makes a connection that loses nothing, held until its ends are awaited. The kernel sends some messages
    /// once, without acknowledgement: withdrawn addresses, priorities, reasons for the end of a subflow. The
    /// queues take all that windows and send buffers hold, and a held link is so slow that it does not take
    /// all of it.
    pub fn lossless(client: Side, paths: usize) -> Self {
        let mut interop = Self::new(client, paths);
        // Small enough to pass through a held link in less than a second.
        interop.set_kernel("ipv4/tcp_rmem", "4096 131072 400000");
        interop.set_kernel("ipv4/tcp_wmem", "4096 16384 400000");
        for link in ["link1", "link2"] {
            interop.bed.set_link(link, "queue=4MB");
        }
        interop.hold();
        interop
    }

    /// Slows the links down, so that the transfer outlasts the steps of a test.
    pub fn hold(&mut self) {
        self.held = true;
        self.set_rate(HELD_RATE);
    }

    /// Speeds held links up. Further waits must be for counts that also hold after the end of the transfer.
    pub fn release(&mut self) {
        if self.held {
            self.held = false;
            self.set_rate(RELEASED_RATE);
        }
    }

    fn set_rate(&mut self, rate: &str) {
        for link in ["link1", "link2"] {
            self.bed.set_link(link, &format!("rate={rate}"));
        }
    }

    /// Waits until `condition` holds, for a minute at most, and shows at failure the state instead.
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + MAX_WAIT;
        while !condition() {
            if Instant::now() >= end {
                panic!("waited in vain for {what}\n{}", self.seen());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until one of the kernel's counters of Multipath TCP has reached `least`.
    pub fn wait_for_count(&self, name: &str, least: u64) {
        self.wait_until(&format!("{name} to reach {least}"), || {
            self.count(name) >= least
        });
    }

    /// Waits until a subflow has joined. A client opens the subflows, except if a test makes the other side
    /// announce addresses to it.
    pub fn wait_for_join(&self) {
        self.wait_for_count(self.joins(), 1);
    }

    /// Waits until the links have carried `bytes` more, both ways together, so that an event that must not
    /// happen had time to happen.
    pub fn wait_for_progress(&self, bytes: u64) {
        let total = || -> u64 { self.carried().iter().flatten().sum() };
        let goal = total() + bytes;
        self.wait_until(&format!("{bytes} more bytes to be carried"), || {
            total() >= goal
        });
    }

    /// Returns the bytes that each link has carried: those that the engine sent, and those that the kernel sent.
    pub fn carried(&self) -> [[u64; 2]; 2] {
        ["link1", "link2"].map(|link| {
            let status = self.bed.testbed.link_status(link).expect("statistics");
            [status.forward, status.reverse].map(|direction| direction.bytes_delivered)
        })
    }

    /// Makes a link carry nothing, in one direction or in both.
    fn darken(&mut self, link: &str, direction: Option<Direction>) {
        let down = LinkChange::parse(["down"]).expect("a change");
        let darkened = self.bed.testbed.set(link, direction, &down);
        darkened.expect("it changes");
    }

    /// Returns the bytes of data that a link has lost on the way to the kernel.
    fn data_lost(&self, link: &str) -> u64 {
        let status = self.bed.testbed.link_status(link).expect("statistics");
        let way = status.forward;
        let bytes = way.bytes_offered.saturating_sub(way.bytes_delivered);
        let packets = way.packets_offered.saturating_sub(way.packets_delivered);
        bytes.saturating_sub(way.queue_bytes + packets * MAX_ACK_LEN)
    }

    /// Returns the next data sequence numbers that the kernel expects from the engine, and the engine from
    /// the kernel by its DATA_ACKs. There are none if the kernel has no open connection.
    fn in_order(&self) -> Option<[u64; 2]> {
        let shown = self
            .bed
            .print("kernel", "ss", &["-HinM", "state", "established"]);
        let number = |name| {
            let mut words = shown.split_whitespace();
            let number = words.find_map(|word| word.strip_prefix(name))?;
            u64::from_str_radix(number, 16).ok()
        };
        Some([number("rcv_nxt:")?, number("snd_una:")?])
    }

    /// Describes a failed test: the connection as the kernel sees it, carried and dropped bytes of the links,
    /// and the last packets. Takes [`CAPTURED`] for these.
    pub fn seen(&self) -> String {
        seen_by(self.observers(), &self.bed.testbed)
    }

    /// Returns commands that show counters and sockets of the kernel.
    fn observers(&self) -> [Command; 2] {
        [("nstat", "-as"), ("ss", "-OaeimntM")].map(|(program, argument)| {
            let mut command = self.bed.exec("kernel", program);
            command.arg(argument);
            command
        })
    }

    /// Returns the first address of a host.
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

    /// Puts a rule of nftables at the kernel's host, in the table `middlebox`.
    pub fn edit_segments(&self, hook: &str, rule: &str) {
        let chain =
            format!("chain middlebox {{ type filter hook {hook} priority -300; {rule}; }};");
        let table = format!("table inet middlebox {{ {chain} }};");
        self.bed.run("kernel", "nft", &[&table]);
    }

    /// Starts both sides; returns the engine's first.
    pub fn start(&self) -> [Background; 2] {
        self.start_with(&[])
    }

    /// Does the same, with more arguments for the engine.
    pub fn start_with(&self, more: &[&str]) -> [Background; 2] {
        let bytes = self.bytes.to_string();
        let [engine, kernel] = [["1", "2"], ["2", "1"]].map(|seeds| told(&bytes, seeds));
        self.start_as(&[&engine, more].concat(), &kernel)
    }

    /// Starts both sides with their arguments; returns the engine's first.
    pub fn start_as(&self, engine: &[&str], kernel: &[&str]) -> [Background; 2] {
        let config = self.config();
        match self.client {
            Side::Engine => {
                // An address that is announced without a port is joined at the same port.
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

    /// Writes the engine's configuration; returns its path.
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
                    "listen = {listen:?}\nport = {PORT}\nexpert.announce = {announces}\n\
                     expert.deny_join_initial = {denies}\n"
                )
            }
        };
        if self.checksum {
            text.insert_str(0, "expert.checksum = true\n");
        }
        if self.asks_ecn {
            // BBR does not respond to marks.
            text.insert_str(0, "expert.ecn = \"ask\"\ncongestion = \"cubic\"\n");
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

    /// Waits for both sides and checks their reports.
    fn finish(&mut self, peers: [Background; 2]) {
        self.expect_subflows(peers, self.paths);
        self.expect_counters();
        if self.paths == 2 {
            for carried in self.bed.carried() {
                let least = self.least_share();
                assert!(carried > least, "a link carried {carried} bytes only");
            }
        }
    }

    /// Returns the least bytes that a link in use carries.
    fn least_share(&self) -> u64 {
        self.bytes / 25
    }

    /// Waits for both sides: everything arrived, over at most `subflows` subflows at once.
    pub fn expect_subflows(&mut self, peers: [Background; 2], subflows: usize) {
        for report in self.reports(peers) {
            assert_eq!(report["fallback"], false, "{report}");
            assert_eq!(report["subflows"], subflows, "{report}");
        }
    }

    /// Does the same if a subflow may end before the kernel's peer, which looks at intervals, has seen it:
    /// only the engine's count matters.
    pub fn expect_short_lived(&mut self, peers: [Background; 2], subflows: usize) {
        let reports = self.reports(peers);
        assert_eq!(reports[0]["subflows"], subflows, "{}", reports[0]);
        for report in reports {
            assert_eq!(report["fallback"], false, "{report}");
        }
    }

    /// Waits for both sides: everything arrived; returns their reports.
    pub fn reports(&mut self, peers: [Background; 2]) -> [Value; 2] {
        let reports = self.ends(peers);
        if !reports.iter().all(|r| r["ok"] == true) {
            panic!("{reports:?}\n{}", self.seen());
        }
        reports
    }

    /// Waits for both sides, however they end, over fast links; returns their reports.
    pub fn ends(&mut self, peers: [Background; 2]) -> [Value; 2] {
        self.release();
        let test: &Interop = self;
        thread::scope(|scope| {
            let _watchdog = test.watch(scope);
            peers.map(|peer| test.report(peer))
        })
    }

    /// Waits for one side; returns its report.
    fn report(&self, mut peer: Background) -> Value {
        let output = peer.wait();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = printed.lines().find(|line| line.contains("\"role\""));
        let report =
            report.unwrap_or_else(|| panic!("no report: {printed}{said}\n{}", self.seen()));
        let report = serde_json::from_str::<Value>(report).expect("JSON");
        let well = report["ok"] == true;
        if !well {
            eprintln!("{said}");
        }
        assert_eq!(output.status.success(), well, "{report}\n{said}");
        report
    }

    /// Ends the peers if they take longer than [`MAX_TRANSFER`], after printing what [`Self::seen`]
    /// describes: they then report what they had. Dropping the value cancels that.
    fn watch<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>) -> Sender<()> {
        let (watchdog, ended) = mpsc::channel();
        let (observers, testbed) = (self.observers(), &self.bed.testbed);
        let hosts = ["engine", "kernel"].map(|host| {
            let host = self.bed.testbed.layout().host(host).expect("a known host");
            host.namespace.clone()
        });
        scope.spawn(move || {
            if ended.recv_timeout(MAX_TRANSFER) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let seen = seen_by(observers, testbed);
            eprintln!("waited in vain for the end of a transfer\n{seen}");
            for host in hosts {
                let end = format!("ip netns pids {host} | xargs -r kill");
                // If this fails too, the test hangs, and the output above tells why.
                let _ = Command::new("sh").args(["-c", &end]).status();
            }
        });
        watchdog
    }

    /// Returns one of the kernel's counters of Multipath TCP.
    pub fn count(&self, name: &str) -> u64 {
        self.count_any(&format!("MPTcpExt{name}"))
    }

    /// Returns any of the kernel's counters.
    pub fn count_any(&self, name: &str) -> u64 {
        let printed = self.bed.print("kernel", "nstat", &["-asz", "--json"]);
        let counters: Value = serde_json::from_str(&printed).expect("JSON");
        let value = &counters["kernel"][name];
        value
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {value}"))
    }

    /// Checks the kernel's own counters: as many joins as further paths, no fallback, and the connection
    /// ended by DATA_FIN, not by a reset.
    fn expect_counters(&self) {
        assert_eq!(self.count(self.joins()), self.paths as u64 - 1, "joins");
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

    /// Returns the name of the kernel's counter of joined subflows.
    fn joins(&self) -> &'static str {
        match self.client {
            Side::Engine => "MPJoinAckRx",
            Side::Kernel => "MPJoinSynAckRx",
        }
    }
}

fn seen_by(mut observers: [Command; 2], testbed: &Testbed) -> String {
    let mut seen = observers.each_mut().map(printed_by).concat();
    for link in ["link1", "link2"] {
        seen.push_str(&format!("{:#?}\n", testbed.link_status(link)));
    }
    seen + &last_packets(testbed)
}

/// Describes the last packets that pass the kernel's host from now on. A capture of the whole transfer would
/// keep every byte of tests that do not fail.
fn last_packets(testbed: &Testbed) -> String {
    let capture = Capture::start(testbed, "kernel");
    thread::sleep(CAPTURED);
    let packets = match capture.and_then(Capture::finish) {
        Ok(packets) => packets,
        Err(error) => return format!("no packets: {error}\n"),
    };
    let first = packets.first().map_or(SystemTime::now(), |first| first.at);
    let shown = packets.len().min(LAST_PACKETS);
    let mut seen = format!("last {shown} of {} packets:\n", packets.len());
    for packet in &packets[packets.len() - shown..] {
        seen.push_str(&described(packet, first));
    }
    seen
}

/// Describes a packet by the time since `first` and its headers.
fn described(packet: &Captured, first: SystemTime) -> String {
    let at = packet.at.duration_since(first).unwrap_or_default();
    let Ok((header, segment)) = ip::Repr::parse(&packet.bytes) else {
        return format!("{at:?} no IP: {} bytes\n", packet.bytes.len());
    };
    match tcp::Repr::parse(segment) {
        Ok((tcp, payload)) if header.protocol == ip::PROTO_TCP => {
            let (from, to, len) = (header.src, header.dst, payload.len());
            format!("{at:?} {from} > {to}, {len} bytes: {tcp:?}\n")
        }
        _ => format!("{at:?} {header:?}\n"),
    }
}

/// Returns the output of a command, or why it did not run.
fn printed_by(command: &mut Command) -> String {
    match command.output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("{command:?}: {error}\n"),
    }
}

fn plain(client: Side, paths: usize) {
    let mut interop = Interop::new(client, paths);
    if paths == 1 {
        // No second link has to be used.
        interop.bed.set_link("link1", "rate=200mbit");
    }
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

/// Returns the least time that a link is dark. In `make soak` time-outs back off meanwhile.
fn darkness() -> Duration {
    if is_soak() {
        Duration::from_secs(10)
    } else {
        Duration::ZERO
    }
}

/// Maximum length of a packet without data, bytes: the headers of IPv6 and TCP with all options.
const MAX_ACK_LEN: u64 = 100;
/// More bytes than a link delays at once, which [`Interop::data_lost`] counts as lost.
const MIN_LOST_BYTES: u64 = 10_000;

/// One link carries nothing in the middle of the transfer.
fn dark(client: Side) {
    let mut interop = Interop::new(client, 2);
    interop.hold();
    // With a longer queue the kernel would declare the subflow stale before its timer for the connection
    // expires, and not count the retransmissions. On a busy machine it may do so in any case.
    for link in ["link1", "link2"] {
        interop.bed.set_link(link, "queue=100kB");
    }
    let peers = interop.start();
    interop.wait_until("both links to be in use", || {
        let least = interop.least_share();
        interop.carried().as_flattened().iter().all(|c| *c > least)
    });
    let given_up = |interop: &Interop| {
        let counters = ["MPTCPRetrans", "SubflowStale"];
        counters.map(|name| interop.count(name)).iter().sum::<u64>()
    };
    let (had_given_up, came_twice) = (given_up(&interop), interop.count("DuplicateData"));
    let lost_before = interop.data_lost("link2");
    // At first only the way to the kernel goes dark. Acknowledgements still return, so the engine sends new data,
    // which is lost. If both ways went dark at once, all data under way could be in the queue, which is delivered.
    interop.darken("link2", Some(Direction::Forward));
    interop.wait_until("link 2 to lose data on the way to the kernel", || {
        interop.data_lost("link2") > lost_before + MIN_LOST_BYTES
    });
    interop.darken("link2", None);
    let (since, [before, _]) = (Instant::now(), interop.carried());
    let in_order = interop.in_order().expect("a connection");
    // A hole that link 2 left and link 1 did not fill would stop delivery in order.
    interop.wait_until("link 1 to carry on, with what link 2 lost", || {
        let [after, _] = interop.carried();
        let Some(now) = interop.in_order() else {
            return false;
        };
        let carries_on = |i: usize| {
            after[i] > before[i] + 1_000_000 && now[i].wrapping_sub(in_order[i]) > 1_000_000
        };
        (0..2).all(carries_on) && given_up(&interop) > had_given_up && since.elapsed() >= darkness()
    });
    interop.bed.set_link("link2", "up");
    // What link 2 lost went over link 1 meanwhile. Link 2 repeats it, so it arrives twice.
    interop.wait_for_count("DuplicateData", came_twice + 1);
    interop.finish(peers);
}

/// The MTU of one link falls in the middle, at both of its ends; its subflow stays in use, and is never replaced.
fn narrowed(client: Side) {
    let mut interop = Interop::new(client, 2);
    interop.hold();
    let peers = interop.start();
    interop.wait_until("both links to be in use", || {
        let least = interop.least_share();
        interop.bed.carried().iter().all(|carried| *carried > least)
    });
    for host in ["engine", "kernel"] {
        let narrow = ["link", "set", "link2", "mtu", "1300"];
        interop.bed.run(host, "ip", &narrow);
    }
    let [_, before] = interop.carried();
    // The links are slow until then: a fast link 1 alone would carry the rest before link 2 is used.
    interop.wait_until("link 2 to carry on with a smaller MTU, both ways", || {
        let [_, after] = interop.carried();
        let least = interop.bytes / 10;
        (0..2).all(|way| after[way] > before[way] + least)
    });
    interop.finish(peers);
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

/// Queues that mark (RFC 3168): the kernel gets marked packets, and learns of marks on its own.
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
    let mut interop = Interop::new(Side::Engine, 2);
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
