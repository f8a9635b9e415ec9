//! Memory of an idle proxied connection: growth of the resident set of box and server and of
//! their sockets' memory over 2,000 connections that have carried a few bytes and then rest.

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use more of it"
)]
#[path = "../tests/e2e/bed.rs"]
mod bed;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use braid_linux::netns;

use self::bed::Bed;

const CONNECTIONS: usize = 2_000;
const PORT: u16 = 7007;
/// For buffers to run empty and timers to settle.
const REST: Duration = Duration::from_secs(5);
/// Bytes an idle connection may cost each of the two.
const GOAL: usize = 16 << 10;

fn main() -> io::Result<()> {
    let mut bed = Bed::up();
    let destination = SocketAddr::new(bed.v4("content"), PORT);
    let namespace = |host: &str| {
        let host = bed.testbed.layout().host(host).expect("a known host");
        host.namespace.clone()
    };
    let (content, user) = (namespace("content"), namespace("user"));
    let listener = netns::run_inside(&content, || TcpListener::bind(destination))?;
    let echo = thread::spawn(move || -> io::Result<Vec<TcpStream>> {
        (0..CONNECTIONS + 100)
            .map(|_| {
                let (mut stream, _) = listener.accept()?;
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
                Ok(stream)
            })
            .collect()
    });

    // The first ones fill caches and pools that all share.
    let first = open(&user, destination, 100)?;
    thread::sleep(REST);
    let before = ["box", "server"].map(|host| memory(&mut bed, host));
    let idle = open(&user, destination, CONNECTIONS)?;
    thread::sleep(REST);
    let after = ["box", "server"].map(|host| memory(&mut bed, host));
    for (i, host) in ["box", "server"].into_iter().enumerate() {
        let (rss, sockets) = (after[i].0 - before[i].0, after[i].1 - before[i].1);
        println!(
            "{host:<8} {:>6} bytes for each of {CONNECTIONS} idle connections ({} resident, {} sockets; goal {GOAL})",
            (rss + sockets) / CONNECTIONS as i64,
            rss / CONNECTIONS as i64,
            sockets / CONNECTIONS as i64,
        );
    }
    drop((first, idle));
    drop(echo.join());
    Ok(())
}

/// Connections of the user host, each of which has carried a byte both ways.
fn open(user: &str, to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    netns::run_inside(user, || {
        (0..count)
            .map(|_| {
                let mut stream = TcpStream::connect(to)?;
                stream.write_all(&[1])?;
                stream.read_exact(&mut [0])?;
                Ok(stream)
            })
            .collect()
    })
}

/// Resident set of a host's process, and memory of the sockets in its namespace; bytes.
fn memory(bed: &mut Bed, host: &str) -> (i64, i64) {
    let pid = bed.testbed.pid(host).expect("it runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a number");
    let rss: i64 = rss
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    let sockets = bed.print(host, "ss", &["-Htnm"]);
    // skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0): what is allocated, not the limits.
    let allocated = |text: &str| -> i64 {
        let inside = text
            .split_once("skmem:(")
            .and_then(|(_, rest)| rest.split_once(')'));
        let fields = inside.map_or("", |(fields, _)| fields).split(',');
        fields
            .filter_map(|field| {
                let digits = field.trim_start_matches(|c: char| c.is_ascii_alphabetic());
                let name = &field[..field.len() - digits.len()];
                ["r", "t", "f", "w", "o", "bl"]
                    .contains(&name)
                    .then(|| digits.parse::<i64>().ok())?
            })
            .sum()
    };
    (rss * 1024, sockets.lines().map(allocated).sum())
}
