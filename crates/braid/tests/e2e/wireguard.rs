//! A userspace WireGuard of the LAN through the tunnel. Its session goes on while each link goes dark once.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use braid_wire::ip;

use super::attacks::{inside, namespace};
use super::fixture::{Ends, Fixture};

/// The usual port of WireGuard.
const PORT: u16 = 51_820;
/// The first byte of a message that initiates a handshake.
const INITIATION: u8 = 1;
/// Time after which the initiator replaces its keys (REKEY_AFTER_TIME), whatever the network does.
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Time between two questions, and between two looks at the timers.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a packet within WireGuard.
const SIZE: usize = 300;
/// Answers that have to come in each step.
const STEP: u64 = 50;

/// The counters of a peer, which the test reads while the peer runs.
#[derive(Default)]
struct Shown {
    /// Handshakes that the peer has initiated.
    handshakes: AtomicU64,
    /// Packets that have arrived.
    packets: AtomicU64,
}

/// One end of WireGuard.
struct Peer {
    tunn: Tunn,
    socket: UdpSocket,
    /// The address from which the other end sent its last good message.
    remote: Option<SocketAddr>,
    /// All addresses of the other end.
    remotes: BTreeSet<SocketAddr>,
    /// Messages that were refused.
    refused: Vec<WireGuardError>,
    shown: Arc<Shown>,
}

impl Peer {
    /// Returns the peer `own` of the peers 1 and 2.
    fn new(own: u8, socket: UdpSocket, remote: Option<SocketAddr>) -> Self {
        let secret = |peer: u8| StaticSecret::from([peer; 32]);
        let other = PublicKey::from(&secret(3 - own));
        socket.set_read_timeout(Some(INTERVAL)).expect("a socket");
        Peer {
            tunn: Tunn::new(secret(own), other, None, None, own.into(), None),
            socket,
            remote,
            remotes: BTreeSet::new(),
            refused: Vec::new(),
            shown: Arc::default(),
        }
    }

    fn put(&self, message: &[u8]) {
        if message[0] == INITIATION {
            self.shown.handshakes.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(remote) = self.remote {
            // A packet that has no route now is lost, as any packet may be.
            let _ = self.socket.send_to(message, remote);
        }
    }

    fn send(&mut self, packet: &[u8]) {
        let mut buffer = [0; 2_048];
        if let TunnResult::WriteToNetwork(message) = self.tunn.encapsulate(packet, &mut buffer) {
            self.put(message);
        }
    }

    fn tick(&mut self) {
        let mut buffer = [0; 2_048];
        if let TunnResult::WriteToNetwork(message) = self.tunn.update_timers(&mut buffer) {
            self.put(message);
        }
    }

    /// Receives a message; returns the packet in it.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let (mut message, mut buffer) = ([0; 2_048], [0; 2_048]);
        let (len, from) = self.socket.recv_from(&mut message).ok()?;
        let result = self
            .tunn
            .decapsulate(Some(from.ip()), &message[..len], &mut buffer);
        if let TunnResult::Err(error) = result {
            self.refused.push(error);
            return None;
        }
        self.remote = Some(from);
        self.remotes.insert(from);
        match result {
            TunnResult::WriteToTunnelV4(packet, _) => {
                self.shown.packets.fetch_add(1, Ordering::AcqRel);
                return Some(packet.to_vec());
            }
            TunnResult::WriteToNetwork(answer) => self.put(answer),
            _ => return None,
        }
        // Packets that have waited for the handshake.
        while let TunnResult::WriteToNetwork(message) =
            self.tunn.decapsulate(None, &[], &mut buffer)
        {
            self.put(message);
        }
        None
    }

    /// Asks a question in each interval.
    fn ask(mut self, ending: &AtomicBool) -> Self {
        let question = question();
        let mut due = Instant::now();
        while !ending.load(Ordering::Acquire) {
            if Instant::now() >= due {
                due = Instant::now() + INTERVAL;
                self.send(&question);
                self.tick();
            }
            if let Some(packet) = self.receive() {
                assert_eq!(packet, question, "an answer was altered");
            }
        }
        self
    }

    /// Returns each packet.
    fn answer(mut self, ending: &AtomicBool) -> Self {
        while !ending.load(Ordering::Acquire) {
            if let Some(packet) = self.receive() {
                self.send(&packet);
            }
            self.tick();
        }
        self
    }
}

/// Returns a packet from one address within WireGuard to the other.
fn question() -> Vec<u8> {
    let header = ip::Repr {
        src: Ipv4Addr::new(10, 9, 0, 1).into(),
        dst: Ipv4Addr::new(10, 9, 0, 2).into(),
        // For experiments (RFC 3692).
        protocol: 253,
        payload_len: SIZE - 20,
        hop_limit: 64,
        traffic_class: 0,
    };
    let mut packet = vec![0x5a; SIZE];
    header.emit(&mut packet);
    packet
}

#[test]
#[ignore = "network"]
fn wireguard_needs_no_new_handshake_when_a_link_goes_dark() {
    let mut bed = Fixture::up();
    bed.wait_for_tunnel();
    let to = SocketAddr::new(bed.v4("content"), PORT);
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let [peer, host] = [("content", to), ("user", any)].map(|(host, at)| {
        let socket = inside(&namespace(&bed, host), || UdpSocket::bind(at));
        socket.expect("a free port")
    });
    let (peer, host) = (Peer::new(2, peer, None), Peer::new(1, host, Some(to)));
    let shown = [&peer, &host].map(|peer| Arc::clone(&peer.shown));
    let handshakes = || {
        shown
            .each_ref()
            .map(|s| s.handshakes.load(Ordering::Acquire))
    };
    let ending = AtomicBool::new(false);
    let [peer, host] = thread::scope(|scope| {
        let peer = scope.spawn(|| peer.answer(&ending));
        let host = scope.spawn(|| host.ask(&ending));
        let ends = Ends(&ending);
        let answered = || shown[1].packets.load(Ordering::Acquire);
        bed.wait_for("an answer", |_| answered() > 0);
        let (begun, before) = (Instant::now(), handshakes());
        bed.darken_each_link(STEP, answered);
        let after = handshakes();
        // On a busy machine the test may last longer than the keys.
        if begun.elapsed() < REKEY_AFTER {
            assert_eq!(after, before, "handshakes");
        }
        drop(ends);
        [peer, host].map(|end| end.join().expect("no panic"))
    });
    for end in [&peer, &host] {
        assert!(end.refused.is_empty(), "{:?}", end.refused);
        assert_eq!(end.remotes.len(), 1, "{:?}", end.remotes);
    }
    let seen = peer.remotes.first().expect("an address").ip();
    assert_eq!(seen, bed.v4("server"), "it came by the tunnel");
}
