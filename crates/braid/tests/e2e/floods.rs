//! Floods of forged packets at the server while users are at work (RFC 4987).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::netns;
use braid_wire::mptcp::{Capable, CapableFlags, Join, MptcpOption};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Rng, Seq32, ip};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::bed::{Bed, Download};

/// Packets a second that are sent, where the machine can.
const RATE: f64 = 50_000.0;
/// Where fewer reach the server's engine, the machine has no processor for users and flood together, and
/// tells nothing.
const LEAST: f64 = 0.8 * RATE;
const SPAN: Duration = Duration::from_secs(4);
/// Spans of which one is enough: something else may have the processors in one, a flood is in all.
const SPANS: u32 = 3;
/// The share of their rate that users keep.
const ENOUGH: f64 = 0.9;
/// The server's port.
const PORT: u16 = 1080;
/// Addresses that nobody has (RFC 5737): the forged packets come from there.
const NOWHERE: [u8; 3] = [203, 0, 113];
/// Honest users that come during a flood.
const USERS: usize = 25;
/// Memory of the server's process may grow by so much, bytes.
const GROWTH: u64 = 64 << 20;

/// What a forged packet is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Syn,
    CapableSyn,
    JoinSyn,
    JoinAck,
    Ack,
    Rst,
    Malformed,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Syn,
        Kind::CapableSyn,
        Kind::JoinSyn,
        Kind::JoinAck,
        Kind::Ack,
        Kind::Rst,
        Kind::Malformed,
    ];

    fn flags(self) -> Flags {
        match self {
            Kind::Syn | Kind::CapableSyn | Kind::JoinSyn | Kind::Malformed => Flags::SYN,
            Kind::JoinAck | Kind::Ack => Flags::ACK,
            Kind::Rst => Flags::RST,
        }
    }

    fn option(self, rng: &mut Rng) -> Option<MptcpOption> {
        let option = match self {
            Kind::CapableSyn => MptcpOption::Capable(Capable::Syn {
                version: 1,
                flags: CapableFlags::DEFAULT_OFFER,
            }),
            Kind::JoinSyn => MptcpOption::Join(Join::Syn {
                backup: false,
                address_id: 1,
                token: rng.u32(),
                nonce: rng.u32(),
            }),
            Kind::JoinAck => {
                let mut hmac = [0; 20];
                rng.fill(&mut hmac);
                MptcpOption::Join(Join::Ack { hmac })
            }
            Kind::Syn | Kind::Ack | Kind::Rst | Kind::Malformed => return None,
        };
        Some(option)
    }

    /// A packet to `server` whose numbers are drawn at random.
    fn forge(self, rng: &mut Rng, server: Ipv4Addr) -> Vec<u8> {
        let mut repr = tcp::Repr::new(1 + rng.below(65_535) as u16, PORT, self.flags());
        (repr.seq, repr.ack) = (Seq32(rng.u32()), Seq32(rng.u32()));
        repr.options.mss = self.flags().contains(Flags::SYN).then_some(1460);
        if let Some(option) = self.option(rng) {
            repr.options.mptcp.push(option);
        }
        let [a, b, c] = NOWHERE;
        let src = Ipv4Addr::new(a, b, c, rng.below(256) as u8);
        let header = ip::Repr {
            src: src.into(),
            dst: server.into(),
            protocol: ip::PROTO_TCP,
            payload_len: repr.header_len(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let mut packet = vec![0; header.header_len() + repr.header_len()];
        header.emit(&mut packet);
        let options = header.header_len() + tcp::HEADER_LEN;
        repr.emit(&mut packet[header.header_len()..]);
        if let Kind::Malformed = self {
            rng.fill(&mut packet[options..]);
        }
        tcp::complete_checksum(&mut packet).expect("a TCP segment");
        packet
    }
}

/// Sends packets of a kind until it is to end.
fn flood(socket: &Socket, kind: Kind, server: Ipv4Addr, ending: &AtomicBool) {
    let to = SockAddr::from(SocketAddr::new(server.into(), 0));
    let mut rng = Rng::for_component(kind as u64, 0);
    let (begun, mut forged) = (Instant::now(), 0);
    while !ending.load(Ordering::Acquire) {
        let due = (begun.elapsed().as_secs_f64() * RATE) as u64;
        while forged < due {
            // What the device has no room for is lost: what counts is what arrives.
            let _ = socket.send_to(&kind.forge(&mut rng, server), &to);
            forged += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends a flood when it is dropped, also by a test that fails.
struct EndsWith<'a>(&'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Memory of the server's process, bytes.
fn memory(bed: &mut Bed) -> u64 {
    let pid = bed.testbed.pid("server").expect("it runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("of a process");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.expect("resident memory").trim();
    let kib = resident
        .split(' ')
        .next()
        .and_then(|n| n.parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// Packets that the server's system has handed to its engine.
fn reached(bed: &Bed) -> u64 {
    let printed = bed.print("server", "ip", &["-j", "-s", "link", "show", "braid0"]);
    let link: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let packets = link[0]["stats64"]["tx"]["packets"].as_u64();
    packets.expect("a counter")
}

/// Bytes a second of a download under way, over [`SPAN`].
fn rate(bytes: impl Fn() -> u64) -> f64 {
    let (begun, before) = (Instant::now(), bytes());
    thread::sleep(SPAN);
    (bytes() - before) as f64 / begun.elapsed().as_secs_f64()
}

/// A download goes on at its rate, everybody who comes is served, and the server's memory does not
/// grow with the flood.
#[test]
#[ignore = "network"]
fn floods_change_nothing_for_users() {
    let mut bed = Bed::up();
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=10mbit");
    let IpAddr::V4(server) = bed.v4("server") else {
        unreachable!("the address of IPv4");
    };
    let [a, b, c] = NOWHERE;
    let nowhere = format!("{a}.{b}.{c}.0/24");
    bed.run("internet", "ip", &["route", "add", "blackhole", &nowhere]);
    let namespace = bed.testbed.layout().host("internet").expect("a host");
    let socket = netns::run_inside(&namespace.namespace, || {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))
    });
    let socket = socket.expect("a raw socket");
    let small = bed.offer("small", 20_000);
    bed.offer("large", 400_000_000);
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 8_000_000
    });
    let before = memory(&mut bed);
    for kind in Kind::ALL {
        let (alone, quiet) = (rate(|| download.bytes()), reached(&bed));
        let ending = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| flood(&socket, kind, server, &ending));
            let ended = EndsWith(&ending);
            let begun = Instant::now();
            let users: Vec<_> = (0..USERS).map(|_| bed.curl("small")).collect();
            let moved = || download.bytes() + users.iter().map(Download::bytes).sum::<u64>();
            let mut share: f64 = 0.0;
            for _ in 0..SPANS {
                share = share.max(rate(moved) / alone);
                if share > ENOUGH {
                    break;
                }
            }
            for user in users {
                user.expect_bytes(&small);
            }
            drop(ended);
            let flood = (reached(&bed) - quiet) as f64 / begun.elapsed().as_secs_f64();
            println!("{kind:?}: {flood:.0} packets/s reached the engine, users have {share:.2}");
            if flood < LEAST {
                eprintln!("== {kind:?} FLOOD SKIPPED (this machine brings {flood:.0} packets/s)");
                return;
            }
            assert!(share > ENOUGH, "{kind:?}: {share:.2} of {alone:.0} bytes/s");
        });
        let grown = memory(&mut bed).saturating_sub(before);
        assert!(grown < GROWTH, "{kind:?}: the server grew by {grown} bytes");
    }
}
