//! What thousands of connections cost a box and a server on which nobody says anything.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use braid_testbed::Role;
use rustix::param::clock_ticks_per_second;

use super::attacks::{SINKS, inside, namespace, raise_descriptors, sink};
use super::bed::{Bed, render_changed};
use super::control::status;

mod soak {
    use super::*;

    /// Connections of one user.
    const IDLE: usize = 5_000;
    /// So many of them begin together: a server bounds the handshakes of one source.
    const AT_ONCE: usize = 200;
    /// For so long nothing but what keeps them alive is sent; each subflow asks twice in it.
    const MEASURED: Duration = Duration::from_secs(120);
    /// Most of a core that they may take at either end, of an optimised program (`BRAID_PROGRAM`); of one that
    /// checks itself, as the one built with the tests does, this many times as much.
    const MOST: f64 = 0.003;
    const UNOPTIMISED: f64 = 4.0;

    /// Returns the processor time that a daemon has used so far.
    fn used(bed: &mut Bed, host: &str) -> Duration {
        let pid = bed.testbed.pid(host).expect("it runs");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
        // proc_pid_stat(5): utime and stime are fields 14 and 15; what is left begins with the third.
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|n| n.parse::<u64>().expect("a number")).sum();
        Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
    }

    #[test]
    #[ignore = "soak"]
    fn connections_on_which_nobody_speaks_cost_little() {
        raise_descriptors();
        let mut bed = Bed::up_with(render_changed(Role::Box, |text| {
            format!("{text}\n[limits]\nper_host = 6000\n")
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
        // What came with their beginning is over.
        thread::sleep(Duration::from_secs(60));
        let before = ["box", "server"].map(|host| used(&mut bed, host));
        thread::sleep(MEASURED);
        let after = ["box", "server"].map(|host| used(&mut bed, host));
        let connected = status(&bed, "box").connections_total;
        drop((held, sinks));
        let most = match std::env::var_os("BRAID_PROGRAM") {
            Some(_) => MOST,
            None => MOST * UNOPTIMISED,
        };
        assert!(connected >= IDLE, "{connected} are left");
        for (host, (before, after)) in ["box", "server"].iter().zip(before.iter().zip(&after)) {
            let share = (*after - *before).as_secs_f64() / MEASURED.as_secs_f64();
            println!("{host}: {:.2} % of a core", share * 100.0);
            assert!(share <= most, "{host}: {share}");
        }
    }
}
