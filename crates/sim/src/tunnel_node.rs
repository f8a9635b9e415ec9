//! One end of a tunnel as a node of the world: the box's or the server's.

use core::net::SocketAddr;

use braid_tunnel::{PathId, Tunnel, Urgency};
use braid_wire::Instant;

use crate::node::{Node, Packet, Turn};
use crate::oracle::{Rule, Violation};
use crate::udp::UdpHeader;

/// The settings of a [`TunnelNode`].
#[derive(Debug, Clone)]
pub struct TunnelNodeConfig {
    /// The own address of each path, in the order of the paths. Path `n` is interface `n`. The interface after
    /// those of the paths leads to the inner hosts.
    pub addrs: Vec<SocketAddr>,
    /// The largest IP packet that the paths take, bytes.
    pub mtu: usize,
    /// The urgency of packets from the inner hosts.
    pub urgency: Urgency,
}

/// A node with one end of a tunnel. It forwards packets of the inner hosts into the tunnel, and hands them what
/// comes out.
///
/// The node is an oracle for its end: no packet is larger than the MTU, and the tunnel's timer lies in the future
/// after each turn.
#[derive(Debug)]
pub struct TunnelNode {
    tunnel: Tunnel,
    config: TunnelNodeConfig,
    /// The datagram that is being sent.
    datagram: Vec<u8>,
    refused: u64,
    /// True if the tunnel's timers are ignored, because one of them stood still.
    is_stopped: bool,
}

impl TunnelNode {
    /// Makes a node of this end of a tunnel, whose paths exist or will be learned from its peer.
    pub fn new(tunnel: Tunnel, config: TunnelNodeConfig) -> Self {
        TunnelNode {
            tunnel,
            config,
            datagram: Vec::new(),
            refused: 0,
            is_stopped: false,
        }
    }

    /// Returns the tunnel.
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// Returns the number of packets and datagrams that the tunnel refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn inner_iface(&self) -> u32 {
        self.config.addrs.len() as u32
    }

    /// Takes a datagram from a path. Returns `None` if the packet has none for this tunnel.
    fn take(&mut self, turn: &Turn<'_>, bytes: &mut [u8]) -> Option<()> {
        let (header, payload) = UdpHeader::parse(turn, bytes)?;
        if !self.config.addrs.contains(&header.dst) {
            return None;
        }
        let start = bytes.len() - payload.len();
        self.tunnel
            .receive(turn.now, header.src, &mut bytes[start..])
            .ok()
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
            let Some(src) = self.config.addrs.get(usize::from(path)) else {
                self.refused += 1;
                continue;
            };
            let header = UdpHeader::new(*src, transmit.remote);
            let fill = |payload: &mut [u8]| payload.copy_from_slice(&self.datagram);
            let packet = header.packet(turn, transmit.len, fill);
            let (len, mtu) = (packet.bytes.len(), self.config.mtu);
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
        let taken = if iface == self.inner_iface() {
            let (now, urgency) = (turn.now, self.config.urgency);
            self.tunnel.send(now, urgency, &packet.bytes).ok()
        } else {
            self.take(turn, &mut packet.bytes)
        };
        self.refused += u64::from(taken.is_none());
        turn.recycle(packet);
        self.deliver(turn);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if self.next_timeout().is_some_and(|at| at <= turn.now) {
            self.tunnel.handle_timeout(turn.now);
        }
        self.deliver(turn);
        self.transmit(turn);
        if let Some(at) = self.next_timeout().filter(|at| *at <= turn.now) {
            report(
                turn,
                Rule::Timer,
                format!("the tunnel's timer stands at {at}"),
            );
            // With this timer, virtual time would stand still.
            self.is_stopped = true;
        }
        if cfg!(debug_assertions) {
            self.tunnel.invariants();
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.tunnel.next_timeout().filter(|_| !self.is_stopped)
    }
}
