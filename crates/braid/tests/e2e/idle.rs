//! The cost, to a box and a server, of thousands of connections that are idle.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use braid_testbed::Role;

use super::attacks::{SINKS, inside, namespace, raise_descriptors, sink};
use super::control::status;
use super::fixture::{Fixture, render_changed};

mod soak {
    use super::*;

    /// Connections of one host.
    const IDLE: usize = 5_000;
    /// Connections that are opened together: a server bounds the handshakes of one source.
    const AT_ONCE: usize = 200;
    /// A time in which only keepalives are sent: each of two subflows sends two.
    const MEASURED: Duration = Duration::from_secs(120);
    /// Least keepalives in that time.
    const QUESTIONS: u64 = IDLE as u64 * 2 * 2;

    /// Processor time and wakeups of a daemon so far.
    #[derive(Clone, Copy)]
    struct Used {
        /// Processor time, ns.
        time: u64,
        wakeups: u64,
    }

    fn used(bed: &mut Fixture, host: &str) -> Used {
        let pid = bed.testbed.pid(host).expect("it runs");
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("a process");
        let schedstat = read("schedstat");
        let time = schedstat.split_whitespace().next().expect("a time");
        let status = read("status");
        let mut lines = status.lines();
        let wakeups = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Used {
            time: time.parse().expect("a number"),
            wakeups: wakeups.expect("a line").trim().parse().expect("a number"),
        }
    }

    #[test]
    #[ignore = "soak"]
    fn connections_on_which_nobody_speaks_are_asked_together() {
        raise_descriptors();
        let mut bed = Fixture::up_with(render_changed(Role::Box, |text| {
            format!("{text}\n[expert]\nmax_connections_per_host = 6000\n")
        }));
        let at = SINKS.map(|port| SocketAddr::new(bed.v4("content"), port));
        let sinks = at.map(|at| sink(&namespace(&bed, "content"), at));
        let user = namespace(&bed, "user");
        let connect = |n: usize| {
            let mut stream = TcpStream::connect(at[n % 2]).expect("the box takes it in");
            stream.write_all(b"hello").expect("a connection");
            stream
        };
        let mut held: Vec<TcpStream> = Vec::new();
        while held.len() < IDLE {
            let next = held.len()..held.len() + AT_ONCE;
            held.extend(inside(&user, || next.map(connect).collect::<Vec<_>>()));
            bed.wait_for("all of them to be served", |bed| {
                status(bed, "server").counters["connected"] >= held.len() as u64
            });
        }
        // Traffic from the start of the connections is over by then.
        thread::sleep(Duration::from_secs(60));
        let before = ["box", "server"].map(|host| used(&mut bed, host));
        thread::sleep(MEASURED);
        let after = ["box", "server"].map(|host| used(&mut bed, host));
        let connected = status(&bed, "box").connections_total;
        drop((held, sinks));
        assert!(connected >= IDLE, "{connected} are left");
        for (host, (before, after)) in ["box", "server"].iter().zip(before.iter().zip(&after)) {
            let share = (after.time - before.time) as f64 / MEASURED.as_nanos() as f64;
            let wakeups = after.wakeups - before.wakeups;
            println!(
                "{host}: {:.2} % of a core, {wakeups} wakeups",
                share * 100.0
            );
            assert!(wakeups < QUESTIONS, "{host} woke {wakeups} times");
        }
    }
}
