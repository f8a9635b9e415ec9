//! Packet devices that cut and join super-segments, with the kernel's own stack at both ends.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use braid_linux::sys::cut_sent_datagrams;
use braid_linux::tun::PacketTun;
use braid_testbed::netns;
use braid_wire::{ip, tcp, udp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{TIMEOUT, World};

const LEFT: [&str; 2] = ["10.9.0.1", "fd09::1"];
const RIGHT: [&str; 2] = ["10.9.0.2", "fd09::2"];
const MTU: usize = 1_500;
const PORT: u16 = 7;

/// Counters of one direction of a wire.
#[derive(Debug, Default)]
struct Carried {
    reads: u64,
    packets: u64,
    writes: u64,
}

/// Checks a packet as a receiver does that trusts nothing.
fn check(packet: &[u8]) {
    assert!(packet.len() <= MTU, "{} bytes", packet.len());
    let (header, payload) = ip::Repr::parse(packet).unwrap();
    let (src, dst) = (header.src, header.dst);
    match header.protocol {
        ip::PROTO_TCP => assert!(tcp::verify_checksum(src, dst, payload)),
        ip::PROTO_UDP => assert!(udp::verify_checksum(src, dst, payload)),
        _ => {}
    }
}

/// Moves what waits in `from` to `to`, packet by packet.
fn carry(from: &mut PacketTun, to: &mut PacketTun, carried: &mut Carried) {
    while let Some(mut packets) = from.recv().unwrap() {
        carried.reads += 1;
        while let Some(packet) = packets.next() {
            carried.packets += 1;
            check(packet);
            to.send(packet);
        }
    }
    carried.writes += to.flush().writes;
}

/// Connects two namespaces by a wire of two packet devices while `work` runs. Returns what went from left to right.
fn with_wire(work: impl FnOnce(&World)) -> Carried {
    let world = World::new(&["left", "right"]);
    let open = |namespace: &str, [v4, v6]: [&str; 2]| {
        let create = || PacketTun::create("tun").map_err(std::io::Error::other);
        let tun = netns::run_inside(&world.name(namespace), create).unwrap();
        for address in [format!("{v4}/24"), format!("{v6}/64 nodad")] {
            world.ip(namespace, &format!("addr add {address} dev tun"));
        }
        world.ip(namespace, &format!("link set tun up mtu {MTU}"));
        tun
    };
    let (mut left, mut right) = (open("left", LEFT), open("right", RIGHT));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let wire = scope.spawn(|| {
            let (mut forth, mut back) = (Carried::default(), Carried::default());
            while !is_over.load(Ordering::Relaxed) {
                carry(&mut left, &mut right, &mut forth);
                carry(&mut right, &mut left, &mut back);
                let mut fds =
                    [&left, &right].map(|tun| PollFd::from_borrowed_fd(tun.fd(), PollFlags::IN));
                let interval = Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                poll(&mut fds, Some(&interval)).unwrap();
            }
            forth
        });
        work(&world);
        is_over.store(true, Ordering::Relaxed);
        wire.join().unwrap()
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i * 31 % 253) as u8).collect()
}

fn to(family: usize) -> SocketAddr {
    let address: IpAddr = RIGHT[family].parse().unwrap();
    (address, PORT).into()
}

#[test]
#[ignore = "network"]
fn streams_pass_a_wire_that_cuts_and_joins_super_segments() {
    let sent = pattern(8 << 20);
    for family in [0, 1] {
        let carried = with_wire(|world| {
            let listener = world.inside("right", || TcpListener::bind(to(family)).unwrap());
            let connect = || TcpStream::connect_timeout(&to(family), TIMEOUT).unwrap();
            let mut user = world.inside("left", connect);
            let (mut host, _) = listener.accept().unwrap();
            host.set_read_timeout(Some(TIMEOUT)).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    user.write_all(&sent).unwrap();
                    user.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut received = Vec::new();
                host.read_to_end(&mut received).unwrap();
                assert!(received == sent, "the stream arrives as it was");
            });
        });
        // The kernel sends bulk data in super-segments of many packets.
        assert!(carried.packets > carried.reads * 3, "{carried:?}");
        assert!(carried.packets > carried.writes * 3, "{carried:?}");
    }
}

#[test]
#[ignore = "network"]
fn bursts_of_datagrams_pass_a_wire_that_cuts_and_joins_super_segments() {
    const COUNT: usize = 40;
    for family in [0, 1] {
        // The last one is shorter.
        let sent = pattern(1_200 * COUNT - 7);
        let carried = with_wire(|world| {
            let host = world.inside("right", || UdpSocket::bind(to(family)).unwrap());
            host.set_read_timeout(Some(TIMEOUT)).unwrap();
            let any = SocketAddr::new(LEFT[family].parse().unwrap(), 0);
            let user = world.inside("left", || UdpSocket::bind(any).unwrap());
            cut_sent_datagrams(user.as_fd(), 1_200).unwrap();
            user.connect(to(family)).unwrap();
            assert_eq!(user.send(&sent).unwrap(), sent.len());
            let mut buffer = vec![0; 1 << 16];
            for datagram in sent.chunks(1_200) {
                let len = host.recv(&mut buffer).unwrap();
                assert!(&buffer[..len] == datagram, "in order and as it was");
            }
        });
        // Beside the datagrams, the kernel sends what belongs to IPv6.
        assert!(carried.packets >= COUNT as u64, "{carried:?}");
        assert!(carried.packets >= carried.reads + 39, "{carried:?}");
        assert!(carried.packets >= carried.writes + 39, "{carried:?}");
    }
}

/// A device that is down refuses packets, each of which is counted.
#[test]
#[ignore = "network"]
fn a_device_that_is_down_refuses_packets() {
    let world = World::new(&["left"]);
    let create = || PacketTun::create("tun").map_err(std::io::Error::other);
    let mut tun = netns::run_inside(&world.name("left"), create).unwrap();
    for _ in 0..3 {
        tun.send(&[0x45, 0, 0, 20]);
    }
    let written = tun.flush();
    assert_eq!(
        (written.packets, written.writes, written.refused),
        (0, 0, 3)
    );
}
