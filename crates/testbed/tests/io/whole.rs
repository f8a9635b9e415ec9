//! A user's connection through box and server, in one process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;

use braid_engine::Urgency;
use braid_engine::streams::Read as StreamRead;
use braid_linux::run::{AppConfig, Privileges, Role, run_box, run_server};
use braid_linux::session::Session;
use braid_proxy::config::{BoxConfig, LinkConfig, ServerConfig};
use braid_secure::keys::PrivateKey;
use rustix::event::{EventfdFlags, eventfd};

use crate::support::{TIMEOUT, World, wait_for};

const BOX: &str = r#"
    lan = "lan"
    [[link]]
    interface = "wan1"
    [[link]]
    interface = "wan2"
    [server]
    address = "192.0.1.2"
    key = "SERVER"
"#;
const SERVER: &str = r#"
    listen = "192.0.1.2"
    [[user]]
    name = "box"
    key = "BOX"
"#;
const WEB: &str = "11.0.0.7";
const LEN: usize = 3 << 20;

fn world() -> World {
    let world = World::new(&["user", "box", "server", "web"]);
    world.veth(
        ("user", "eth", "192.168.7.2/24"),
        ("box", "lan", "192.168.7.1/24"),
    );
    for n in [1, 2] {
        world.veth(
            ("box", &format!("wan{n}"), &format!("192.0.{n}.1/24")),
            ("server", &format!("eth{n}"), &format!("192.0.{n}.2/24")),
        );
        let gateway = format!("route add default via 192.0.{n}.2 dev wan{n} metric {n}");
        world.ip("box", &gateway);
    }
    world.veth(
        ("server", "out", "11.0.0.1/24"),
        ("web", "eth", "11.0.0.7/24"),
    );
    world.ip("user", "route add default via 192.168.7.1");
    // The way back of forwarded packets.
    world.ip("web", "route add default via 11.0.0.1");
    world.sh("server", "echo 1 >/proc/sys/net/ipv4/ip_forward");
    world
}

/// Runs a host that answers requests in capital letters, then sends `LEN` bytes, and closes.
fn serve_web(world: &World) {
    world.inside("web", || {
        let listener = TcpListener::bind((WEB, 80)).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || answer(stream));
            }
        });
    });
}

fn answer(mut stream: TcpStream) {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let _ = stream.write_all(text.to_uppercase().as_bytes());
    let _ = stream.write_all(&vec![b'.'; LEN]);
}

fn fetch(world: &World, port: u16) -> std::io::Result<Vec<u8>> {
    let to = SocketAddr::new(WEB.parse().unwrap(), port);
    world.inside("user", || {
        let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"hello")?;
        // A reset may have come by now; the read reports it.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(text)
    })
}

/// Returns the bytes that the box received over the less used of its links.
fn received(world: &World) -> u64 {
    let [wan1, wan2] = ["wan1", "wan2"].map(|device| world.carried("box", device));
    wan1[0].min(wan2[0])
}

#[test]
#[ignore = "network"]
fn a_user_is_served_through_box_and_server() {
    let world = world();
    serve_web(&world);
    run(&world, (BOX, SERVER), |_| {
        check(&world);
        check_sessions(&world);
    });
}

/// The descriptors that stop box and server.
pub struct Stops {
    gateway: OwnedFd,
    server: OwnedFd,
}

impl Stops {
    fn stop(fd: &OwnedFd) {
        rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
    }

    /// Stops the server.
    pub fn stop_server(&self) {
        Stops::stop(&self.server);
    }
}

/// Runs box and server with these configurations, in which `SERVER` and `BOX` stand for their keys, while `check`
/// runs. Nothing of the box is left afterwards.
pub fn run(world: &World, (text, server_text): (&str, &str), check: impl FnOnce(&Stops)) {
    let [box_key, server_key] = [1, 2].map(|n| PrivateKey::from_seed([n; 32]));
    let text = text.replace("SERVER", &server_key.public().to_string());
    let server_text = server_text.replace("BOX", &box_key.public().to_string());
    let box_config = BoxConfig::with_key("box.toml", &text, box_key).unwrap();
    let server_config = ServerConfig::with_key("server.toml", &server_text, server_key).unwrap();
    // One each, since each run takes the signal off its descriptor.
    let [gateway, server] = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let stops = Stops { gateway, server };
    thread::scope(|scope| {
        let (ready, started) = mpsc::channel();
        let (stops, server_ready) = (&stops, ready.clone());
        scope.spawn(move || {
            world.inside("server", || {
                let (privileges, stop) = (Privileges::Kept, stops.server.as_fd());
                let started = || server_ready.send(()).unwrap();
                run_server(&server_config, None, privileges, stop, started).unwrap();
            });
        });
        // After a panic server and box still have to be stopped, since the scope waits for them.
        let checked = catch_unwind(AssertUnwindSafe(|| {
            started.recv_timeout(TIMEOUT).expect("the server is up");
            scope.spawn(move || {
                world.inside("box", || {
                    let (privileges, stop) = (Privileges::Kept, stops.gateway.as_fd());
                    let started = || ready.send(()).unwrap();
                    run_box(&box_config, None, privileges, stop, started).unwrap();
                });
            });
            started.recv_timeout(TIMEOUT).expect("the box is up");
            check(stops);
        }));
        Stops::stop(&stops.server);
        Stops::stop(&stops.gateway);
        if let Err(panic) = checked {
            resume_unwind(panic);
        }
    });
    let left = world.sh("box", "nft list ruleset; ip rule; ip -6 rule");
    assert!(
        !left.contains("braid") && !left.contains("10.215"),
        "{left}"
    );
}

fn check(world: &World) {
    // The box intercepts connections once it knows that the server answers.
    let listeners = || world.sh("box", "ss -Htln");
    wait_for("connections are taken in", listeners, || {
        listeners().contains("127.0.0.1:").then_some(())
    });
    let before = received(world);
    let links = || world.sh("box", "ip -s link; ss -tin");
    let mut fetched = 0;
    wait_for("both links carry", links, || {
        let text = fetch(world, 80).unwrap();
        assert_eq!(text.len(), 5 + LEN);
        assert!(text.starts_with(b"HELLO..."));
        fetched += 1;
        (fetched >= 3 && received(world) > before + LEN as u64 / 10).then_some(())
    });
    // Nothing listens there: a reset follows.
    let error = fetch(world, 81).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Programs with a session of their own run on the hosts of box and server, over the same links.
fn check_sessions(world: &World) {
    let address = SocketAddr::from(([192, 0, 1, 2], 7000));
    let listening = AppConfig::new(Role::Listen {
        addresses: vec![address.ip()],
        port: address.port(),
        anywhere: true,
        announce: false,
    });
    let connecting = AppConfig::new(Role::Connect {
        links: ["wan1", "wan2"].map(LinkConfig::new).to_vec(),
        servers: vec![address],
    });
    let (ready, listens) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || world.inside("server", || receive_hello(&listening, &ready)));
        listens.recv_timeout(TIMEOUT).expect("the session listens");
        world.inside("box", || {
            let mut session = Session::open(&connecting).unwrap();
            assert!(fetch(world, 80).unwrap().starts_with(b"HELLO..."));
            let stream = session.open_stream(Urgency::default()).unwrap();
            assert_eq!(session.write(stream, b"hello", None), Ok(5));
            assert_eq!(session.finish(stream), Ok(true));
            let end = session.now() + TIMEOUT;
            assert!(session.close(end).unwrap().is_some());
        });
    });
    // Box and server still have all of their own.
    assert!(fetch(world, 80).unwrap().starts_with(b"HELLO..."));
}

/// Receives the word of a peer in a session.
fn receive_hello(config: &AppConfig, ready: &mpsc::Sender<()>) {
    let mut session = Session::open(config).unwrap();
    ready.send(()).unwrap();
    let (mut word, mut buffer) = (Vec::new(), [0; 8]);
    let end = session.now() + TIMEOUT;
    while !session.has_ended() {
        assert!(session.now() < end, "the word is late: {word:?}");
        session.wait(Some(end)).unwrap();
        for stream in session.incoming() {
            while let StreamRead::Bytes(n) = session.read(stream, &mut buffer).unwrap() {
                word.extend_from_slice(&buffer[..n]);
            }
        }
    }
    assert_eq!(word, b"hello");
    session.close(end).unwrap();
}
