//! One end of a tunnel as a node of the world: the box's or the server's.

use core::net::SocketAddr;
use core::time::Duration;

use braid_tunnel::{
    Config, FlowPolicy, PathConfig, PathId, Role, Secrets, SessionId, Tunnel, Urgency,
};
use braid_wire::{Instant, Rng};

use crate::node::{Node, Packet, Turn};
use crate::oracle::{Rule, Violation};
use crate::transfer::{PathSettings, SERVER, client_addr};
use crate::udp::UdpHeader;
use crate::world::{LinkId, NodeId, World};

/// The outer port of both ends.
const PORT: u16 = 443;
/// The MTU of every path, bytes.
const MTU: usize = 1500;
/// The time over which wakes are counted.
const WAKE_PERIOD: Duration = Duration::from_millis(1);
/// Maximum number of wakes in [`WAKE_PERIOD`]. A guess: twenty times as many as the packets that 10 Gbit/s carry.
const MAX_WAKES: u32 = 20_000;

/// Both ends of a tunnel in a world.
#[derive(Debug, Clone)]
pub struct TunnelEnds {
    /// The box's end, a [`TunnelNode`].
    pub near: NodeId,
    /// The server's end, a [`TunnelNode`].
    pub far: NodeId,
    /// The links of each path: (up, down).
    pub paths: Vec<(LinkId, LinkId)>,
}

impl TunnelEnds {
    /// Adds both ends of a tunnel to `world`, with a link for each path. There may be at most 254 paths: the number
    /// of a path is an octet of addresses. The next interface of each end, which the caller connects, leads to its
    /// inner hosts. Their packets have the urgency `urgency`. Both ends have the same session and keys in every run.
    pub fn add(
        world: &mut World,
        config: &Config,
        urgency: Urgency,
        paths: Vec<PathSettings>,
    ) -> TunnelEnds {
        let now = world.now();
        let remote = SocketAddr::new(SERVER.into(), PORT);
        let near = world.add(|rng| {
            let mut tunnel = open(config, Role::Box, now, rng);
            for path in 0..paths.len() {
                let config = PathConfig { remote, mtu: MTU };
                tunnel.add_path(now, PathId(path as u8), config);
            }
            let addr = |path| SocketAddr::new(client_addr(path).into(), PORT);
            TunnelNode::new(tunnel, urgency, (0..paths.len()).map(addr).collect())
        });
        let far = world.add(|rng| {
            let tunnel = open(config, Role::Server, now, rng);
            TunnelNode::new(tunnel, urgency, vec![remote; paths.len()])
        });
        let paths = paths.into_iter();
        let paths = paths.map(|path| world.connect(near, far, path.up, path.down));
        let paths = paths.collect();
        TunnelEnds { near, far, paths }
    }
}

/// Returns one end of a tunnel, with keys.
fn open(config: &Config, role: Role, now: Instant, rng: Rng) -> Tunnel {
    let mut tunnel = Tunnel::new(config.clone(), role, SessionId([1; 8]), rng);
    let secrets = Secrets {
        of_box: [1; 32],
        of_server: [2; 32],
    };
    tunnel.install_keys(now, 0, &secrets);
    tunnel
}

/// A node with one end of a tunnel. It forwards packets of the inner hosts into the tunnel, and hands them what
/// comes out.
///
/// The node is an oracle for its end: no packet is larger than the MTU, and the tunnel's timer lies in the future
/// after each turn.
#[derive(Debug)]
pub struct TunnelNode {
    tunnel: Tunnel,
    /// The policy of flows from the inner hosts.
    policy: FlowPolicy,
    /// The own address of each path. Path `n` is interface `n`. The interface after those of the paths leads to the
    /// inner hosts.
    addrs: Vec<SocketAddr>,
    /// The datagram that is being sent.
    datagram: Vec<u8>,
    /// The wake at which the current [`WAKE_PERIOD`] began, and the number of wakes since then.
    wakes: (Instant, u32),
    /// True if the tunnel's timers are ignored, because they expire too often.
    is_stopped: bool,
}

impl TunnelNode {
    fn new(tunnel: Tunnel, urgency: Urgency, addrs: Vec<SocketAddr>) -> Self {
        TunnelNode {
            tunnel,
            policy: FlowPolicy {
                urgency: Some(urgency),
                mode: None,
            },
            addrs,
            datagram: Vec::new(),
            wakes: (Instant::ZERO, 0),
            is_stopped: false,
        }
    }

    fn inner_iface(&self) -> u32 {
        self.addrs.len() as u32
    }

    /// Takes a packet from a path. Ignores it if it has no datagram for this tunnel.
    fn take(&mut self, turn: &Turn<'_>, bytes: &mut [u8]) {
        let Some((header, payload)) = UdpHeader::parse(turn, bytes) else {
            return;
        };
        if self.addrs.contains(&header.dst) {
            let start = bytes.len() - payload.len();
            // A datagram that cannot be decrypted changes nothing, so the error needs no handling.
            let _ = (self.tunnel).receive(turn.now, header.src, &mut bytes[start..]);
        }
    }

    /// Hands the inner hosts what has come out of the tunnel.
    fn deliver(&mut self, turn: &mut Turn<'_>) {
        let iface = self.inner_iface();
        while let Some(inner) = self.tunnel.poll_delivery() {
            let mut bytes = turn.buffer();
            bytes.extend_from_slice(inner);
            turn.send(iface, Packet::new(bytes));
        }
    }

    /// Sends what the tunnel has to send.
    fn transmit(&mut self, turn: &mut Turn<'_>) {
        loop {
            self.datagram.clear();
            let Some(transmit) = self.tunnel.poll_transmit(turn.now, &mut self.datagram) else {
                return;
            };
            let PathId(path) = transmit.path;
            let Some(src) = self.addrs.get(usize::from(path)) else {
                continue;
            };
            let header = UdpHeader::new(*src, transmit.remote);
            let fill = |payload: &mut [u8]| payload.copy_from_slice(&self.datagram);
            let packet = header.packet(turn, transmit.len, fill);
            let (len, mtu) = (packet.bytes.len(), MTU);
            if len > mtu {
                report(
                    turn,
                    Rule::Bound,
                    format!("a packet of {len} bytes exceeds the MTU of {mtu}"),
                );
            }
            turn.send(path.into(), packet);
        }
    }

    /// Checks that the timer lies in the future, and that it has not expired too often lately. Virtual time would
    /// stand still otherwise, or nearly so.
    fn check_timer(&mut self, turn: &mut Turn<'_>) {
        let (since, count) = self.wakes;
        self.wakes = if turn.now.saturating_since(since) < WAKE_PERIOD {
            (since, count + 1)
        } else {
            (turn.now, 0)
        };
        let Some(at) = self.next_timeout() else {
            return;
        };
        if at <= turn.now || self.wakes.1 > MAX_WAKES {
            let seen = format!("the tunnel's timer stands at {at} after {count} wakes in 1 ms");
            report(turn, Rule::Timer, seen);
            self.is_stopped = true;
        }
    }
}

fn report(turn: &mut Turn<'_>, rule: Rule, seen: String) {
    turn.report(vec![Violation {
        at: turn.now,
        rule,
        conn: None,
        seen,
    }]);
}

impl Node for TunnelNode {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, mut packet: Packet) {
        if iface == self.inner_iface() {
            // A packet that is refused is lost, as in a full queue.
            let _ = self.tunnel.send(turn.now, self.policy, &packet.bytes);
        } else {
            self.take(turn, &mut packet.bytes);
        }
        turn.recycle(packet);
        self.deliver(turn);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if self.next_timeout().is_some_and(|at| at <= turn.now) {
            self.tunnel.handle_timeout(turn.now);
        }
        self.deliver(turn);
        self.transmit(turn);
        self.check_timer(turn);
        if cfg!(debug_assertions) {
            self.tunnel.invariants();
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.tunnel.next_timeout().filter(|_| !self.is_stopped)
    }
}
