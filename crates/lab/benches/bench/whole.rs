//! Transfers from user to content host over two links that nothing holds back: through box and server,
//! and through relays on the kernel's Multipath TCP as people build them today, in plaintext
//! (`redsocks` and `microsocks` under `mptcpize`) and encrypted (shadowsocks-libev under `mptcpize`).
//! The variants alternate, so that other load of the machine falls on all alike.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use braid::failure::Failure;
use braid_lab::content::{self, fetch};
use braid_testbed::fixture::Fixture;
use braid_testbed::netns;
use serde::Serialize;

use crate::Arguments;
use crate::cost::Cost;
use crate::fixture::{self, Gateways, WAIT_TIMEOUT};
use crate::peers::{ATTEMPTS, MIN_CARRIED_BYTES};
use crate::speed::{Ratio, Spread};

/// Concurrent connections, as many as a household has.
const USERS: usize = 16;
/// Connections of one run.
const CONNECTIONS: usize = 1_600;
/// Bytes that each connection fetches.
const SMALL_FETCH_BYTES: u64 = 1_000;
/// The port of the relay at the server.
const SERVER_PORT: u16 = 1_080;
/// The port of the relay at the box, to which users' connections are redirected.
const INTERCEPTION_PORT: u16 = 12_345;
/// Routing table of the relays' second link.
const SECOND_LINK_TABLE: u32 = 102;

/// The cipher of the relays, which box and server agree on too.
const CIPHER: &str = "aes-128-gcm";

/// Ratio that Braid must exceed against encrypting relays.
const OTHERS_BAR: f64 = 1.0;
/// Bounds of protected to plaintext: least bulk rate, most processor time per Gbit, least connections
/// per second.
const PROTECTION_BARS: [f64; 3] = [0.6, 1.6, 0.75];

/// Figures of every variant, and the comparisons.
#[derive(Debug, Serialize)]
pub struct Whole {
    bytes: u64,
    connections: usize,
    users: usize,
    cipher: &'static str,
    relays: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowsocks: Option<Summary>,
    braid: Summary,
    /// Box and server with plaintext between them.
    #[serde(rename = "clear")]
    plaintext: Summary,
    /// Ratios of Braid to relays.
    ratios: Summary,
    /// Ratios of Braid to relays that encrypt.
    #[serde(skip_serializing_if = "Option::is_none")]
    over_shadowsocks: Option<Summary>,
    /// Ratios of Braid to Braid in plaintext: the cost of protection.
    protection: Summary,
    bars: Vec<Bar>,
}

/// A bound on the median of a ratio.
#[derive(Debug, Serialize)]
struct Bar {
    what: &'static str,
    wanted: &'static str,
    #[serde(flatten)]
    ratio: Ratio,
}

/// Spreads over all runs.
#[derive(Debug, Clone, Copy, Serialize)]
struct Summary {
    bulk_gbit_s: Spread,
    /// Processor time of the box's and the server's process, or of the two relays.
    bulk_cpu_s_per_gbit: Spread,
    /// Processor time of the whole machine: the kernel charges its work on packets to the process that
    /// it interrupts.
    bulk_machine_s_per_gbit: Spread,
    connections_s: Spread,
    connection_cpu_s: Spread,
    connection_machine_s: Spread,
}

/// Figures of one run of one variant, in the order of the fields of [`Summary`].
#[derive(Debug, Clone, Copy)]
struct Run([f64; 6]);

/// Measures all variants. Returns `None` after a message where a tool for the relays is missing.
pub fn measure(arguments: &Arguments) -> Result<Option<Whole>, Failure> {
    let missing = |tools: &[&'static str]| tools.iter().copied().find(|tool| !installed(tool));
    if let Some(missing) = missing(&["redsocks", "microsocks", "mptcpize"]) {
        eprintln!(
            "WHOLE WAY SKIPPED (the command '{missing}' is missing: apt-get install redsocks \
             microsocks mptcpize)"
        );
        return Ok(None);
    }
    let mut variants = vec![
        Variant::braid(arguments, Gateways::Braid)?,
        Variant::braid(arguments, Gateways::Plaintext)?,
        Variant::relays(arguments)?,
    ];
    match missing(&["ss-server", "ss-redir"]) {
        Some(missing) => eprintln!(
            "RELAYS THAT ENCRYPT SKIPPED (the command '{missing}' is missing: apt-get install \
             shadowsocks-libev)"
        ),
        None => variants.push(Variant::shadowsocks(arguments)?),
    }
    let runs = alternate(&mut variants, arguments)?;
    let [braid, plaintext, relays, others @ ..] = &runs[..] else {
        return Err(Failure::Run("a variant is missing".to_owned()));
    };
    let over = |others: &Vec<Run>| -> Summary {
        let pairs = braid.iter().zip(others);
        Summary::of(&pairs.map(|(b, other)| b.over(other)).collect::<Vec<_>>())
    };
    let (protection, over_shadowsocks) = (over(plaintext), others.first().map(over));
    Ok(Some(Whole {
        bytes: arguments.bytes / 4,
        connections: CONNECTIONS,
        users: USERS,
        cipher: CIPHER,
        relays: Summary::of(relays),
        shadowsocks: others.first().map(|runs| Summary::of(runs)),
        braid: Summary::of(braid),
        plaintext: Summary::of(plaintext),
        ratios: over(relays),
        over_shadowsocks,
        protection,
        bars: bars(&protection, over_shadowsocks.as_ref()),
    }))
}

/// Runs each variant once per round. The first round warms caches and grows tables, so it does not
/// count.
fn alternate(variants: &mut [Variant], arguments: &Arguments) -> Result<Vec<Vec<Run>>, Failure> {
    let mut runs = vec![Vec::new(); variants.len()];
    for round in 0..=arguments.pairs {
        for (variant, runs) in variants.iter_mut().zip(&mut runs) {
            let run = variant.run_or_again(arguments.bytes / 4)?;
            if round > 0 {
                runs.push(run);
            }
            eprintln!(
                "run {round}: {} {:.2} Gbit/s, {:.0} connections/s",
                variant.name, run.0[0], run.0[3]
            );
        }
    }
    Ok(runs)
}

fn bars(protection: &Summary, over_shadowsocks: Option<&Summary>) -> Vec<Bar> {
    let [rate, cpu, connections] = PROTECTION_BARS;
    let bar = |what, wanted, ratio| Bar {
        what,
        wanted,
        ratio,
    };
    let more = |what, of| bar(what, ">", Ratio::more_than(of, OTHERS_BAR));
    let others = over_shadowsocks.into_iter().flat_map(|over| {
        [
            more("Braid / shadowsocks, Gbit/s", over.bulk_gbit_s),
            more("Braid / shadowsocks, connections/s", over.connections_s),
        ]
    });
    let protection = [
        bar(
            "protected / clear, Gbit/s",
            ">=",
            Ratio::at_least(protection.bulk_gbit_s, rate),
        ),
        bar(
            "protected / clear, the two processes' time for a Gbit",
            "<=",
            Ratio::at_most(protection.bulk_cpu_s_per_gbit, cpu),
        ),
        bar(
            "protected / clear, connections/s",
            ">=",
            Ratio::at_least(protection.connections_s, connections),
        ),
    ];
    others.chain(protection).collect()
}

fn installed(tool: &str) -> bool {
    let mut find = Command::new("sh");
    find.args(["-c", &format!("command -v {tool}")]);
    find.stdout(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

impl Run {
    fn over(&self, other: &Run) -> Run {
        let mut ratio = *self;
        for (value, other) in ratio.0.iter_mut().zip(other.0) {
            *value /= other;
        }
        ratio
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Summary {
        let spread = |n: usize| Spread::of(runs.iter().map(|run| run.0[n]));
        Summary {
            bulk_gbit_s: spread(0),
            bulk_cpu_s_per_gbit: spread(1),
            bulk_machine_s_per_gbit: spread(2),
            connections_s: spread(3),
            connection_cpu_s: spread(4),
            connection_machine_s: spread(5),
        }
    }
}

/// A testbed of its own, with the programs of one variant running in it.
struct Variant {
    name: &'static str,
    fixture: Fixture,
    content: SocketAddr,
    /// The relays, empty where box and server run.
    children: Vec<Child>,
}

impl Variant {
    fn braid(arguments: &Arguments, gateways: Gateways) -> Result<Variant, Failure> {
        let mut fixture = fixture::unshaped(gateways, &arguments.congestion)?;
        fixture.start("server", WAIT_TIMEOUT)?;
        fixture.start("box", WAIT_TIMEOUT)?;
        fixture.wait_for_interception(WAIT_TIMEOUT)?;
        Variant::of(gateways.name(), fixture)
    }

    fn relays(arguments: &Arguments) -> Result<Variant, Failure> {
        let mut variant = Variant::others(arguments, Gateways::Relays)?;
        let server = variant.fixture.address("server")?.to_string();
        let config = variant.fixture.testbed.state_dir().join("redsocks.conf");
        let text = format!(
            "base {{ log_info = off; daemon = off; redirector = iptables; }}\n\
             redsocks {{ local_ip = 0.0.0.0; local_port = {INTERCEPTION_PORT}; ip = {server}; \
             port = {SERVER_PORT}; type = socks5; }}\n"
        );
        fs::write(&config, text)?;
        let port = SERVER_PORT.to_string();
        variant.spawn("server", &["microsocks", "-i", &server, "-p", &port])?;
        variant.spawn("box", &["redsocks", "-c", &config.display().to_string()])?;
        variant.wait_until_served()?;
        Ok(variant)
    }

    /// Starts the relays of shadowsocks-libev. Their option `--mptcp` asks for the interface of
    /// kernels from before Linux 5.6, so `mptcpize` makes them use the kernel's Multipath TCP.
    fn shadowsocks(arguments: &Arguments) -> Result<Variant, Failure> {
        let mut variant = Variant::others(arguments, Gateways::Shadowsocks)?;
        let server = variant.fixture.address("server")?.to_string();
        let [port, interception] = [SERVER_PORT, INTERCEPTION_PORT].map(|port| port.to_string());
        let common = ["-s", &server, "-p", &port, "-k", "bench", "-m", CIPHER];
        variant.spawn("server", &[&["ss-server"][..], &common].concat())?;
        let from = ["-b", "0.0.0.0", "-l", &interception];
        variant.spawn("box", &[&["ss-redir"][..], &common, &from].concat())?;
        variant.wait_until_served()?;
        Ok(variant)
    }

    /// Builds a testbed without box and server. Users' connections are redirected to [`INTERCEPTION_PORT`] of
    /// the box, and the kernel uses both links.
    fn others(arguments: &Arguments, gateways: Gateways) -> Result<Variant, Failure> {
        let fixture = fixture::unshaped(gateways, &arguments.congestion)?;
        let variant = Variant::of(gateways.name(), fixture)?;
        let redirect = format!(
            "add table ip relay; \
             add chain ip relay in {{ type nat hook prerouting priority -100; }}; \
             add rule ip relay in iifname home meta l4proto tcp redirect to :{INTERCEPTION_PORT}"
        );
        variant.configure(&["nft", &redirect])?;
        variant.join_second_link(&arguments.congestion)?;
        Ok(variant)
    }

    fn wait_until_served(&mut self) -> Result<(), Failure> {
        let (content, user) = (self.content, self.user()?);
        let what = format!("the relays ({})", self.name);
        Ok(self.fixture.wait_for(&what, WAIT_TIMEOUT, |_| {
            Ok(netns::run_inside(&user, || fetch(content, SMALL_FETCH_BYTES)).is_ok())
        })?)
    }

    /// Lets the kernel open a second subflow by itself, from the address of the second link.
    fn join_second_link(&self, congestion: &str) -> Result<(), Failure> {
        let link = self.fixture.interface("box", |i| i.name == "link2")?;
        let (from, (_, via, _)) = (link.address4, &link.neighbours[0]);
        for command in [
            format!("rule add from {from} lookup {SECOND_LINK_TABLE} pref {SECOND_LINK_TABLE}"),
            format!(
                "route add default via {via} dev link2 congctl {congestion} table {SECOND_LINK_TABLE}"
            ),
            "mptcp limits set subflows 2".to_owned(),
            format!("mptcp endpoint add {from} dev link2 subflow"),
        ] {
            let words = ["ip"].into_iter().chain(command.split(' '));
            self.configure(&words.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn configure(&self, command: &[&str]) -> Result<(), Failure> {
        let done = self
            .fixture
            .exec("box", command[0])?
            .args(&command[1..])
            .status()?;
        match done.success() {
            true => Ok(()),
            false => Err(Failure::Run(format!("{command:?}: {done}"))),
        }
    }

    fn of(name: &'static str, fixture: Fixture) -> Result<Variant, Failure> {
        let content = content::offer(&fixture)?;
        Ok(Variant {
            name,
            fixture,
            content,
            children: Vec::new(),
        })
    }

    fn spawn(&mut self, host: &str, command: &[&str]) -> Result<(), Failure> {
        let mut relay = self.fixture.exec(host, "mptcpize")?;
        relay.arg("run").args(command);
        relay.stdin(Stdio::null());
        // The relays print a line for each connection, which would bury the results.
        relay.stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(relay.spawn()?);
        Ok(())
    }

    fn user(&self) -> Result<String, Failure> {
        Ok(self
            .fixture
            .testbed
            .layout()
            .host("user")?
            .namespace
            .clone())
    }

    /// Runs once; relays on the kernel's Multipath TCP are tried again, with a message. Their join
    /// sometimes fails or comes late, and some transfers end early.
    fn run_or_again(&mut self, bytes: u64) -> Result<Run, Failure> {
        let again = if self.children.is_empty() {
            0
        } else {
            ATTEMPTS - 1
        };
        for _ in 0..again {
            match self.run(bytes) {
                Err(failure) => eprintln!("{}: {failure}; again", self.name),
                run => return run,
            }
        }
        self.run(bytes)
    }

    /// Makes a bulk transfer, then many short connections.
    fn run(&mut self, bytes: u64) -> Result<Run, Failure> {
        let (user, content) = (self.user()?, self.content);
        let carried = self.carried()?;
        let (bulk, bulk_seconds) = self.timed(|| {
            netns::run_inside(&user, || fetch(content, bytes))?;
            Ok(())
        })?;
        let carried: Vec<u64> = self
            .carried()?
            .iter()
            .zip(carried)
            .map(|(a, b)| a - b)
            .collect();
        let least = *carried.iter().min().unwrap_or(&0);
        if least < MIN_CARRIED_BYTES {
            return Err(Failure::Run(format!(
                "a link was not in use: {carried:?} bytes"
            )));
        }
        let (small, small_seconds) = self.timed(|| connections(&user, content))?;
        let (gbit, count) = (bytes as f64 * 8.0 / 1e9, CONNECTIONS as f64);
        Ok(Run([
            gbit / bulk_seconds,
            bulk.processes / gbit,
            bulk.machine / gbit,
            count / small_seconds,
            small.processes / count,
            small.machine / count,
        ]))
    }

    /// Does `work`. Returns its processor time and its duration in seconds.
    fn timed(
        &mut self,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(Cost, f64), Failure> {
        let pids = self.pids()?;
        let (before, since) = (Cost::now(&pids)?, Instant::now());
        work()?;
        let seconds = since.elapsed().as_secs_f64();
        Ok((Cost::now(&pids)?.since(&before), seconds))
    }

    fn pids(&mut self) -> Result<Vec<u32>, Failure> {
        if !self.children.is_empty() {
            return Ok(self.children.iter().map(Child::id).collect());
        }
        fixture::pids(&mut self.fixture)
    }

    /// Returns the bytes that the box has received and sent on each link.
    fn carried(&self) -> Result<[u64; 2], Failure> {
        let namespace = self.fixture.testbed.layout().host("box")?.namespace.clone();
        Ok(netns::run_inside(&namespace, || {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(["link1:", "link2:"].map(|link| crate::veth::carried(&text, link)))
        })?)
    }
}

impl Drop for Variant {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The relay may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets all users fetch [`SMALL_FETCH_BYTES`] bytes again and again, each time on a new connection.
fn connections(user: &str, content: SocketAddr) -> Result<(), Failure> {
    let one = || {
        netns::run_inside(user, || {
            for _ in 0..CONNECTIONS / USERS {
                fetch(content, SMALL_FETCH_BYTES)?;
            }
            Ok(())
        })
    };
    thread::scope(|scope| {
        let users: Vec<_> = (0..USERS).map(|_| scope.spawn(one)).collect();
        for user in users {
            let done = user.join();
            done.map_err(|_| Failure::Run("a user panicked".to_owned()))??;
        }
        Ok(())
    })
}

impl Whole {
    /// Prints the results as text.
    pub fn print(&self) {
        println!(
            "The whole way, through box and server, and through relays on kernel MPTCP: redsocks and \
             microsocks, and those of shadowsocks ({}): {} GB; {} connections by {} users at once, \
             {SMALL_FETCH_BYTES} bytes each; median (least to most)",
            self.cipher,
            self.bytes as f64 / 1e9,
            self.connections,
            self.users
        );
        let mut variants = vec![("relays", self.relays)];
        variants.extend(self.shadowsocks.map(|summary| ("shadowsocks", summary)));
        variants.extend([("Braid", self.braid), ("Braid in clear", self.plaintext)]);
        table(&variants, |scale| scale);
        let mut ratios = vec![("Braid / relays", self.ratios)];
        ratios.extend(
            self.over_shadowsocks
                .map(|over| ("Braid / shadowsocks", over)),
        );
        ratios.push(("protected / clear", self.protection));
        table(&ratios, |_| 1.0);
        for Bar {
            what,
            wanted,
            ratio,
        } in &self.bars
        {
            println!("  {what}: {}", ratio.text(wanted));
        }
    }
}

/// Prints one column per summary. `in_unit` turns the scale of a row's unit into the factor for its
/// values: the scale itself, or 1 for ratios.
fn table(columns: &[(&str, Summary)], in_unit: impl Fn(f64) -> f64) {
    type Row = fn(&Summary) -> Spread;
    let rows: [(&str, Row, f64); 6] = [
        ("Gbit/s", |s| s.bulk_gbit_s, 1.0),
        ("ms/Gbit, the two processes", |s| s.bulk_cpu_s_per_gbit, 1e3),
        ("ms/Gbit, whole machine", |s| s.bulk_machine_s_per_gbit, 1e3),
        ("connections/s", |s| s.connections_s, 1.0),
        ("us/connection, the two", |s| s.connection_cpu_s, 1e6),
        ("us/connection, machine", |s| s.connection_machine_s, 1e6),
    ];
    let line = |name: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>30}")).collect();
        println!("  {name:<28}{cells}");
    };
    line(
        "",
        columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
    );
    for (name, of, scale) in rows {
        let text = |(_, summary): &(_, _)| of(summary).times(in_unit(scale)).text();
        line(name, columns.iter().map(text).collect());
    }
}
