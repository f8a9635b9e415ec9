//! Memory of idle proxied connections: user to content host, through box and server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use braid::failure::Failure;
use braid_lab::content;
use braid_testbed::netns;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::Arguments;
use crate::fixture::{self, Gateways, WAIT_TIMEOUT};

/// Most memory of an idle plaintext connection in one process, bytes.
const PLAINTEXT_BAR_BYTES: f64 = 16_000.0;
/// The same with protection: TLS keeps the keys, tickets and buffers of a connection until it closes.
const PROTECTED_BAR_BYTES: f64 = 24_000.0;
/// Connections opened and closed first, so that pools and tables have the size of a process in use.
const WARM_UP_CONNECTIONS: u32 = 100;
/// Idle time before a measurement; delayed acknowledgements and joins have ended by then.
const IDLE_TIME: Duration = Duration::from_secs(4);
const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: content\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nidle\n";

/// The result for box and server.
#[derive(Debug, Serialize)]
pub struct Idle {
    connections: u32,
    protected: bool,
    #[serde(rename = "box")]
    gateway_box: Memory,
    server: Memory,
}

/// Growth of one process over all connections, divided by their number.
#[derive(Debug, Serialize)]
struct Memory {
    rss_bytes: f64,
    socket_bytes: f64,
    /// The sum of the process's memory and the sockets' memory.
    bytes: f64,
    bar: f64,
    holds: bool,
}

/// Memory of a host at one moment, bytes.
#[derive(Debug, Clone, Copy)]
struct Holding {
    rss: u64,
    sockets: u64,
}

/// Measures the memory of idle connections with protection and without.
pub fn measure(arguments: &Arguments) -> Result<Vec<Idle>, Failure> {
    // Both ends of each connection are open in this process. Box and server inherit the limit.
    raise_descriptors(u64::from(arguments.idle) * 3 + 1_000)?;
    let both = [Gateways::Braid, Gateways::Plaintext];
    let measured = both.map(|gateways| measure_one(gateways, arguments));
    measured.into_iter().collect()
}

fn measure_one(gateways: Gateways, arguments: &Arguments) -> Result<Idle, Failure> {
    let mut fixture = Fixture(fixture::up(gateways, [("200mbit", "1ms"); 2], "")?);
    let content = fixture.offer()?;
    drop(fixture.open(content, WARM_UP_CONNECTIONS)?);
    thread::sleep(IDLE_TIME);
    let before = fixture.holding()?;
    let open = fixture.open(content, arguments.idle)?;
    thread::sleep(IDLE_TIME);
    let after = fixture.holding()?;
    let count = f64::from(arguments.idle);
    drop(open);
    fixture.0.testbed.down()?;
    let protected = gateways == Gateways::Braid;
    let bar = if protected {
        PROTECTED_BAR_BYTES
    } else {
        PLAINTEXT_BAR_BYTES
    };
    Ok(Idle {
        connections: arguments.idle,
        protected,
        gateway_box: Memory::grown(before[0], after[0], count, bar),
        server: Memory::grown(before[1], after[1], count, bar),
    })
}

impl Memory {
    fn grown(before: Holding, after: Holding, count: f64, bar: f64) -> Memory {
        let rss_bytes = (after.rss as f64 - before.rss as f64) / count;
        let socket_bytes = (after.sockets as f64 - before.sockets as f64) / count;
        let bytes = rss_bytes + socket_bytes;
        Memory {
            rss_bytes,
            socket_bytes,
            bytes,
            bar,
            holds: bytes <= bar,
        }
    }
}

impl Idle {
    /// Prints the result as text.
    pub fn print(&self) {
        println!(
            "Memory of an idle proxied connection, {}, growth over {} of them",
            if self.protected {
                "protected"
            } else {
                "in clear"
            },
            self.connections
        );
        for (name, memory) in [("box", &self.gateway_box), ("server", &self.server)] {
            println!(
                "  {name:<9}{:.1} kB (process {:.1}, sockets {:.1}), wanted <= {:.0} kB: {}",
                memory.bytes / 1e3,
                memory.rss_bytes / 1e3,
                memory.socket_bytes / 1e3,
                memory.bar / 1e3,
                if memory.holds { "holds" } else { "MISSED" }
            );
        }
    }
}

/// A testbed with box and server running.
struct Fixture(braid_testbed::fixture::Fixture);

impl Fixture {
    /// Serves answers on the content host. Returns the listener's address.
    fn offer(&self) -> Result<SocketAddr, Failure> {
        let listener = content::listen(&self.0)?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            // Streams are kept until the process ends: the user closes first.
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                if answer(&stream).is_ok() {
                    open.push(stream);
                }
            }
        });
        Ok(address)
    }

    /// Opens connections from the user host. Each gets one answer and then stays silent.
    fn open(&self, to: SocketAddr, count: u32) -> Result<Vec<TcpStream>, Failure> {
        let namespace = &self.0.testbed.layout().host("user")?.namespace;
        let opened = netns::run_inside(namespace, || (0..count).map(|_| ask(to)).collect());
        opened.map_err(|e| Failure::run(format_args!("a connection to {to}"), e))
    }

    /// Reads the memory of box and server, in this order.
    fn holding(&mut self) -> Result<[Holding; 2], Failure> {
        let mut holding = [Holding { rss: 0, sockets: 0 }; 2];
        for (host, holding) in ["box", "server"].into_iter().zip(&mut holding) {
            let pid = self
                .0
                .testbed
                .pid(host)
                .ok_or_else(|| Failure::Run(format!("the {host} ended")))?;
            let output = self.0.exec(host, "ss")?.args(["-Htmna"]).output()?;
            *holding = Holding {
                rss: resident(&std::fs::read_to_string(format!("/proc/{pid}/status"))?),
                sockets: socket_memory(&String::from_utf8_lossy(&output.stdout)),
            };
        }
        Ok(holding)
    }
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    let mut request = [0; REQUEST.len()];
    stream.read_exact(&mut request)?;
    stream.write_all(ANSWER)
}

fn ask(to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    stream.write_all(REQUEST)?;
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer)?;
    Ok(stream)
}

/// Returns `VmRSS` of a `/proc/<pid>/status`, in bytes.
fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Returns the memory charged to all TCP sockets of a host, in bytes: received and unread (`r`), set
/// aside (`f`), queued for sending (`w`), options (`o`) and backlog (`bl`), from
/// `skmem:(r..,rb..,t..,tb..,f..,w..,o..,bl..,d..)` of `ss -m`.
fn socket_memory(sockets: &str) -> u64 {
    sockets
        .split("skmem:(")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .flat_map(|fields| fields.split(','))
        .filter_map(|field| {
            let digits = field.find(|c: char| c.is_ascii_digit())?;
            let (name, value) = field.split_at(digits);
            matches!(name, "r" | "f" | "w" | "o" | "bl").then(|| value.parse::<u64>().ok())?
        })
        .sum()
}

fn raise_descriptors(wanted: u64) -> Result<(), Failure> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: now.maximum.map(|maximum| maximum.max(wanted)),
        };
        setrlimit(Resource::Nofile, raised)
            .map_err(|e| Failure::run(format_args!("cannot have {wanted} descriptors"), e))?;
    }
    Ok(())
}
