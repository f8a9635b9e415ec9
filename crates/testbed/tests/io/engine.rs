//! The engine on the driver: two links, one of which vanishes and comes back.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use braid_engine::{ApiError, CloseReason, ConnId, ConnectOptions, Event, Stack};
use braid_linux::run::{AppConfig, Role, run_app};
use braid_proxy::app::{Core, Ctx};
use braid_proxy::config::LinkConfig;
use braid_wire::Instant;
use rustix::event::{EventfdFlags, eventfd};

use crate::support::{TIMEOUT, World, wait_for};

const PORT: u16 = 1080;
const LEN: u64 = 10 << 20;

/// The number of bytes that an end sends.
#[derive(Clone, Copy, Default)]
enum Amount<'a> {
    /// Nothing; the connection closes when its peer does.
    #[default]
    None,
    Bytes(u64),
    /// Bytes until this is true.
    Until(&'a AtomicBool),
}

impl Amount<'_> {
    /// Returns the number of bytes left after `sent`.
    fn left(self, sent: u64) -> u64 {
        match self {
            Amount::None => 0,
            Amount::Bytes(all) => all.saturating_sub(sent),
            Amount::Until(enough) if enough.load(Ordering::Relaxed) => 0,
            Amount::Until(_) => u64::MAX,
        }
    }
}

/// Sends bytes of a pattern on each connection and checks the pattern it receives.
#[derive(Default)]
struct Transfer<'a> {
    to_send: Amount<'a>,
    sent: u64,
    received: u64,
    subflows: usize,
    closed: Option<CloseReason>,
}

fn pattern(at: u64) -> u8 {
    (at % 251) as u8
}

impl Transfer<'_> {
    fn send(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        loop {
            let sent = self.sent;
            let max = self.to_send.left(sent).min(1 << 16) as usize;
            if max == 0 {
                break;
            }
            let written = stack.write_with::<ApiError>(now, conn, max, |parts| {
                let mut at = sent;
                for byte in parts.iter_mut().flat_map(|part| part.iter_mut()).take(max) {
                    *byte = pattern(at);
                    at += 1;
                }
                Ok((at - sent) as usize)
            });
            match written {
                Ok(n) if n > 0 => self.sent += n as u64,
                _ => return,
            }
        }
        let _ = stack.shutdown(now, conn);
    }

    fn receive(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        loop {
            let received = &mut self.received;
            let read = stack.read_with::<ApiError>(now, conn, |parts| {
                let before = *received;
                for byte in parts.iter().flat_map(|part| part.iter()) {
                    assert_eq!(*byte, pattern(*received));
                    *received += 1;
                }
                Ok((*received - before) as usize)
            });
            if !read.is_ok_and(|n| n > 0) {
                break;
            }
        }
        if stack.read_finished(conn) && matches!(self.to_send, Amount::None) {
            let _ = stack.shutdown(now, conn);
        }
    }
}

impl Core for Transfer<'_> {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let (now, stack) = (ctx.now, &mut *ctx.stack);
        match event {
            Event::Accepted { conn, .. } | Event::Connected { conn } | Event::Writable { conn }
                if !matches!(self.to_send, Amount::None) =>
            {
                self.send(now, conn, stack);
            }
            Event::Readable { conn } => self.receive(now, conn, stack),
            Event::SubflowEstablished { .. } => self.subflows += 1,
            Event::Closed { reason, .. } => self.closed = Some(reason),
            _ => {}
        }
    }
}

pub fn two_links() -> World {
    let world = World::new(&["client", "server"]);
    for n in [1, 2] {
        world.veth(
            ("client", &format!("wan{n}"), &format!("192.0.{n}.1/24")),
            ("server", &format!("eth{n}"), &format!("192.0.{n}.2/24")),
        );
        let gateway = format!("route add default via 192.0.{n}.2 dev wan{n} metric {n}");
        world.ip("client", &gateway);
    }
    world.ip("server", "addr add 198.51.100.1 dev lo");
    world
}

fn connect(now: Instant, stack: &mut Stack, remote: SocketAddr) {
    let strategy = braid_strategy::by_name(braid_strategy::DEFAULT).unwrap();
    stack
        .connect(now, ConnectOptions::new(remote, strategy))
        .unwrap();
}

/// Connects to `server` over `links` links, sends, and returns once the connection is closed.
fn client<'a>(links: u8, server: SocketAddr, up: Amount<'a>, stop: &OwnedFd) -> Transfer<'a> {
    let role = Role::Connect {
        links: (1..=links)
            .map(|n| LinkConfig::new(format!("wan{n}")))
            .collect(),
        servers: vec![server],
    };
    let start = |now: Instant, stack: &mut Stack| {
        connect(now, stack, server);
        Transfer {
            to_send: up,
            ..Transfer::default()
        }
    };
    let limit = Instant::ZERO + 5 * TIMEOUT;
    run_app(
        &AppConfig::new(role),
        start,
        stop.as_fd(),
        |now, core, _| core.closed.is_some() || now > limit,
    )
    .unwrap()
    .0
}

/// Sends `up` from the client and `down` from the server over `links` of the client's links while `during`
/// runs. Returns client and server once the connections of both are closed.
fn run<'a>(
    world: &World,
    links: u8,
    (up, down): (Amount<'a>, Amount<'a>),
    during: impl FnOnce(),
) -> [Transfer<'a>; 2] {
    let stop: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let server = SocketAddr::new("198.51.100.1".parse().unwrap(), PORT);
    let (ready, listens) = mpsc::channel();
    let closed = &AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let listening = scope.spawn(move || {
            world.inside("server", || {
                let role = Role::Listen {
                    addresses: vec![server.ip()],
                    port: PORT,
                    anywhere: false,
                    announce: false,
                };
                let start = |_: Instant, _: &mut Stack| {
                    ready.send(()).unwrap();
                    Transfer {
                        to_send: down,
                        ..Transfer::default()
                    }
                };
                // Runs until `stop`: the server may have to repeat its last acknowledgements.
                run_app(&AppConfig::new(role), start, stop.as_fd(), |_, core, _| {
                    closed.fetch_or(core.closed.is_some(), Ordering::Relaxed);
                    false
                })
                .unwrap()
                .0
            })
        });
        listens.recv().expect("the server listens");
        let connecting =
            scope.spawn(move || world.inside("client", || client(links, server, up, stop)));
        // After a panic both ends still have to be stopped, since the scope waits for them.
        let result = catch_unwind(AssertUnwindSafe(|| {
            during();
            let client = connecting.join().unwrap();
            let seen = || format!("the client closed: {:?}", client.closed);
            wait_for("the server's connection closes", seen, || {
                closed.load(Ordering::Relaxed).then_some(())
            });
            client
        }));
        rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
        match result {
            Ok(client) => [client, listening.join().unwrap()],
            Err(panic) => resume_unwind(panic),
        }
    })
}

#[test]
#[ignore = "network"]
fn a_transfer_uses_both_links() {
    let world = two_links();
    let [client, server] = run(&world, 2, (Amount::Bytes(LEN), Amount::None), || {});
    assert_eq!(client.closed, Some(CloseReason::Finished));
    assert_eq!(server.received, LEN);
    assert_eq!((client.subflows, server.subflows), (2, 2));
}

#[test]
#[ignore = "network"]
fn links_that_go_and_come_back_are_used_again() {
    let world = two_links();
    for n in [1, 2] {
        let tbf = "tbf rate 20mbit burst 64k limit 200k";
        world.sh("client", &format!("tc qdisc add dev wan{n} root {tbf}"));
    }
    let sent_over = |device: &str| {
        let [_, sent] = world.carried("client", device);
        sent
    };
    let links = || world.sh("client", "ip -s link; ip addr; ip route show table all");
    let wait_until_used = |device: &str| {
        let before = sent_over(device);
        wait_for(&format!("{device} is used"), links, || {
            (sent_over(device) >= before + 300_000).then_some(())
        });
    };
    // The other link's counters show that the sender was at work meanwhile.
    let wait_until_unused = |device: &str, other: &str| {
        let what = format!("{device} is not used while {other} is");
        wait_for(&what, links, || {
            let before = sent_over(device);
            wait_until_used(other);
            (sent_over(device) == before).then_some(())
        });
    };
    let enough = AtomicBool::new(false);
    let [client, server] = run(&world, 2, (Amount::Until(&enough), Amount::None), || {
        wait_until_used("wan1");
        wait_until_used("wan2");
        world.ip("client", "link set wan1 down");
        wait_until_unused("wan1", "wan2");
        world.ip("client", "link set wan1 up");
        wait_until_used("wan1");
        world.ip("client", "addr del 192.0.2.1/24 dev wan2");
        wait_until_unused("wan2", "wan1");
        world.ip("client", "addr add 192.0.2.1/24 dev wan2");
        wait_until_used("wan2");
        enough.store(true, Ordering::Relaxed);
    });
    assert_eq!(client.closed, Some(CloseReason::Finished));
    assert_eq!(server.received, client.sent);
}

#[test]
#[ignore = "network"]
fn the_server_learns_the_path_mtu() {
    let world = World::new(&["client", "router", "server"]);
    world.veth(
        ("client", "wan1", "192.0.1.1/24"),
        ("router", "left", "192.0.1.2/24"),
    );
    world.veth(
        ("router", "right", "192.0.2.1/24"),
        ("server", "eth", "192.0.2.2/24"),
    );
    world.ip("client", "route add default via 192.0.1.2");
    world.ip("server", "route add default via 192.0.2.1");
    world.ip("server", "addr add 198.51.100.1/32 dev eth");
    world.ip("router", "route add 198.51.100.1 via 192.0.2.2");
    world.sh("router", "echo 1 >/proc/sys/net/ipv4/ip_forward");
    // On one end only, so that the client's MSS does not reveal the path MTU.
    world.ip("router", "link set left mtu 1280");
    let [client, server] = run(&world, 1, (Amount::None, Amount::Bytes(LEN)), || {});
    assert_eq!(server.closed, Some(CloseReason::Finished));
    assert_eq!(client.received, LEN);
}
