//! The whole way, user to content host, over two links that nothing holds back: through box and
//! server, and through relays on the kernel's Multipath TCP as people build them today (`redsocks` and
//! `microsocks` under `mptcpize`). In turn, so that whatever else the machine does falls on both alike.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use braid::failure::Failure;
use braid_testbed::bed::Bed;
use braid_testbed::netns;
use serde::Serialize;

use crate::Arguments;
use crate::bed::{self, Gateways, LONGEST};
use crate::cost::Cost;
use crate::peers::LEAST_CARRIED;
use crate::speed::Spread;

/// Connections at once, as a household has them.
const USERS: usize = 16;
/// Of one run.
const CONNECTIONS: usize = 1_600;
/// What each of these fetches.
const SMALL: u64 = 1_000;
const SOCKS_PORT: u16 = 1_080;
const INTAKE_PORT: u16 = 12_345;
/// Routing table of the relays' second link.
const TABLE: u32 = 102;

/// The ways of doing it, and the comparisons.
#[derive(Debug, Serialize)]
pub struct Whole {
    bytes: u64,
    connections: usize,
    users: usize,
    relays: Summary,
    braid: Summary,
    /// Box and server without protection.
    clear: Summary,
    /// Braid to relays.
    ratios: Summary,
    /// Braid to Braid without protection: what that costs.
    protection: Summary,
}

/// Medians of all runs.
#[derive(Debug, Serialize)]
struct Summary {
    bulk_gbit_s: Spread,
    /// Processor time of the two processes in the middle.
    bulk_cpu_s_per_gbit: Spread,
    /// Of the whole machine: what the kernel does with packets is charged to whoever is interrupted.
    bulk_machine_s_per_gbit: Spread,
    connections_s: Spread,
    connection_cpu_s: Spread,
    connection_machine_s: Spread,
}

/// One run of one arm.
#[derive(Debug, Clone, Copy)]
struct Run([f64; 6]);

/// Measures, or says what is missing.
pub fn measure(arguments: &Arguments) -> Result<Option<Whole>, Failure> {
    let tools = ["redsocks", "microsocks", "mptcpize"];
    if let Some(missing) = tools.iter().find(|tool| !installed(tool)) {
        eprintln!(
            "WHOLE WAY SKIPPED (the command '{missing}' is missing: apt-get install redsocks \
             microsocks mptcpize)"
        );
        return Ok(None);
    }
    let mut arms = [
        Arm::relays(arguments)?,
        Arm::braid(arguments, Gateways::Braid)?,
        Arm::braid(arguments, Gateways::Clear)?,
    ];
    let mut runs: [Vec<Run>; 3] = [const { Vec::new() }; 3];
    for pair in 0..=arguments.pairs {
        for (arm, runs) in arms.iter_mut().zip(&mut runs) {
            let run = arm.run(arguments.bytes / 4)?;
            if pair > 0 {
                runs.push(run);
            }
        }
        if let [[.., r], [.., b], [.., c]] = runs.each_ref().map(Vec::as_slice) {
            eprintln!(
                "run {pair}: relays {:.2}, Braid {:.2}, in clear {:.2} Gbit/s; {:.0}, {:.0}, {:.0} \
                 connections/s",
                r.0[0], b.0[0], c.0[0], r.0[3], b.0[3], c.0[3]
            );
        }
    }
    let [relays, braid, clear] = &runs;
    let over = |others: &[Run]| -> Vec<Run> {
        let pairs = braid.iter().zip(others);
        pairs.map(|(b, other)| b.over(other)).collect()
    };
    Ok(Some(Whole {
        bytes: arguments.bytes / 4,
        connections: CONNECTIONS,
        users: USERS,
        relays: Summary::of(relays),
        braid: Summary::of(braid),
        clear: Summary::of(clear),
        ratios: Summary::of(&over(relays)),
        protection: Summary::of(&over(clear)),
    }))
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

/// A testbed of its own, with what carries users' connections running in it.
struct Arm {
    bed: Bed,
    content: SocketAddr,
    /// The relays where they are not box and server.
    children: Vec<Child>,
}

impl Arm {
    fn braid(arguments: &Arguments, gateways: Gateways) -> Result<Arm, Failure> {
        let mut bed = bed::unshaped(gateways, &arguments.congestion)?;
        bed.start("server", LONGEST)?;
        bed.start("box", LONGEST)?;
        bed.wait_for_intake(LONGEST)?;
        Arm::of(bed)
    }

    fn relays(arguments: &Arguments) -> Result<Arm, Failure> {
        let bed = bed::unshaped(Gateways::Others, &arguments.congestion)?;
        let mut arm = Arm::of(bed)?;
        let server = arm.bed.address("server")?.to_string();
        let config = arm.bed.testbed.state_dir().join("redsocks.conf");
        let text = format!(
            "base {{ log_info = off; daemon = off; redirector = iptables; }}\n\
             redsocks {{ local_ip = 0.0.0.0; local_port = {INTAKE_PORT}; ip = {server}; \
             port = {SOCKS_PORT}; type = socks5; }}\n"
        );
        fs::write(&config, text)?;
        let redirect = format!(
            "add table ip relay; \
             add chain ip relay in {{ type nat hook prerouting priority -100; }}; \
             add rule ip relay in iifname home meta l4proto tcp redirect to :{INTAKE_PORT}"
        );
        arm.configure(&["nft", &redirect])?;
        arm.join_second_link(&arguments.congestion)?;
        let port = SOCKS_PORT.to_string();
        arm.spawn("server", &["microsocks", "-i", &server, "-p", &port])?;
        arm.spawn("box", &["redsocks", "-c", &config.display().to_string()])?;
        let (content, user) = (arm.content, arm.user()?);
        arm.bed.wait_for("the relays", LONGEST, |_| {
            let asked = netns::run_inside(&user, || fetch(content, SMALL));
            Ok(asked.is_ok_and(|got| got == SMALL))
        })?;
        Ok(arm)
    }

    /// The kernel opens a second subflow by itself, from the address of the second link.
    fn join_second_link(&self, congestion: &str) -> Result<(), Failure> {
        let link = self.bed.interface("box", |i| i.name == "link2")?;
        let (from, (_, via, _)) = (link.address4, &link.neighbours[0]);
        for command in [
            format!("rule add from {from} lookup {TABLE} pref {TABLE}"),
            format!("route add default via {via} dev link2 congctl {congestion} table {TABLE}"),
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
            .bed
            .exec("box", command[0])?
            .args(&command[1..])
            .status()?;
        match done.success() {
            true => Ok(()),
            false => Err(Failure::Run(format!("{command:?}: {done}"))),
        }
    }

    fn of(bed: Bed) -> Result<Arm, Failure> {
        let listener = bed::listen(&bed)?;
        let content = listener.local_addr()?;
        thread::spawn(move || serve(&listener));
        Ok(Arm {
            bed,
            content,
            children: Vec::new(),
        })
    }

    fn spawn(&mut self, host: &str, command: &[&str]) -> Result<(), Failure> {
        let mut relay = self.bed.exec(host, "mptcpize")?;
        relay.arg("run").args(command);
        relay.stdin(Stdio::null());
        // They write a line for each connection.
        relay.stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(relay.spawn()?);
        Ok(())
    }

    fn user(&self) -> Result<String, Failure> {
        Ok(self.bed.testbed.layout().host("user")?.namespace.clone())
    }

    /// A bulk transfer, then connections.
    fn run(&mut self, bytes: u64) -> Result<Run, Failure> {
        let (user, content) = (self.user()?, self.content);
        let carried = self.carried()?;
        let (bulk, bulk_seconds) = self.timed(|| {
            let got = netns::run_inside(&user, || fetch(content, bytes))?;
            match got == bytes {
                true => Ok(()),
                false => Err(Failure::Run(format!("{got} of {bytes} bytes arrived"))),
            }
        })?;
        let carried: Vec<u64> = self
            .carried()?
            .iter()
            .zip(carried)
            .map(|(a, b)| a - b)
            .collect();
        let least = *carried.iter().min().unwrap_or(&0);
        if least < LEAST_CARRIED {
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

    /// What it costs, and how many seconds it takes.
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
        let hosts = ["box", "server"].into_iter();
        hosts
            .map(|host| {
                let ended = || Failure::Run(format!("the {host} ended"));
                self.bed.testbed.pid(host).ok_or_else(ended)
            })
            .collect()
    }

    /// Bytes that the box has received on each link.
    fn carried(&self) -> Result<[u64; 2], Failure> {
        let namespace = self.bed.testbed.layout().host("box")?.namespace.clone();
        Ok(netns::run_inside(&namespace, || {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(["link1:", "link2:"].map(|link| crate::veth::carried(&text, link)))
        })?)
    }
}

impl Drop for Arm {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Serves whoever asks: eight bytes say how many are wanted.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            // A user that is gone wants nothing.
            let _ = answer(stream);
        });
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(LONGEST))?;
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let mut left = u64::from_be_bytes(wanted);
    let bytes = vec![0; 1 << 18];
    while left > 0 {
        let chunk = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        stream.write_all(&bytes[..chunk])?;
        left -= chunk as u64;
    }
    Ok(())
}

/// How many bytes of so many arrived.
fn fetch(content: SocketAddr, bytes: u64) -> io::Result<u64> {
    let mut stream = TcpStream::connect(content)?;
    stream.set_read_timeout(Some(LONGEST))?;
    stream.write_all(&bytes.to_be_bytes())?;
    let mut buffer = vec![0; 1 << 18];
    let mut got = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(got),
            n => got += n as u64,
        }
    }
}

/// All users fetch something small, again and again, each on a new connection.
fn connections(user: &str, content: SocketAddr) -> Result<(), Failure> {
    let one = || {
        netns::run_inside(user, || {
            for _ in 0..CONNECTIONS / USERS {
                let got = fetch(content, SMALL)?;
                if got != SMALL {
                    return Err(io::Error::other(format!("{got} of {SMALL} bytes arrived")));
                }
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
    /// The results as text.
    pub fn print(&self) {
        println!(
            "The whole way, through box and server or through redsocks and microsocks on kernel MPTCP: \
             {} GB; {} connections by {} users at once, {SMALL} bytes each; median (least to most)",
            self.bytes as f64 / 1e9,
            self.connections,
            self.users
        );
        type Column = fn(&Summary) -> Spread;
        let rows: [(&str, Column, f64); 6] = [
            ("Gbit/s", |s| s.bulk_gbit_s, 1.0),
            ("ms/Gbit, the two processes", |s| s.bulk_cpu_s_per_gbit, 1e3),
            ("ms/Gbit, whole machine", |s| s.bulk_machine_s_per_gbit, 1e3),
            ("connections/s", |s| s.connections_s, 1.0),
            ("us/connection, the two", |s| s.connection_cpu_s, 1e6),
            ("us/connection, machine", |s| s.connection_machine_s, 1e6),
        ];
        println!(
            "  {:<28}{:>26}{:>26}{:>26}{:>24}{:>24}",
            "", "relays", "Braid", "Braid in clear", "Braid / relays", "protected / clear"
        );
        for (name, of, scale) in rows {
            let text = |summary, scale| of(summary).times(scale).text();
            println!(
                "  {name:<28}{:>26}{:>26}{:>26}{:>24}{:>24}",
                text(&self.relays, scale),
                text(&self.braid, scale),
                text(&self.clear, scale),
                text(&self.ratios, 1.0),
                text(&self.protection, 1.0)
            );
        }
    }
}
