//! The aggregation box as a node.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use braid_engine::{ApiError, PathConfig, PathId, Stack};
use braid_links::middlebox::Direction;
use braid_proxy::app::{Core, TunnelChange};
use braid_proxy::config::MptcpHosts;
use braid_proxy::control::{Answer, Controlled, Request};
use braid_proxy::records::SavedState;
use braid_proxy::{BoxConfig, BoxCore, LinkAddresses, Notice};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Rng, ip};
use ipnet::IpNet;

use super::machine::Machine;
use super::masquerade::Masquerade;
use super::{DownstreamConfig, DownstreamTcp, ports, wall_clock};
use crate::host::strategy_of;
use crate::node::{Node, Packet, Turn, child};
use crate::watched::WatchedStack;

/// An interface number that no node has: [`Turn::send`] drops packets to it.
const NO_INTERFACE: u32 = u32::MAX;
/// The maximum number of forwarded connections that the box remembers. 1,024 is a guess: more than any simulated
/// LAN opens while a SYN may still be retransmitted.
const MAX_FORWARDED: usize = 1_024;
/// The box's UDP port of the tunnel on every link.
const TUNNEL_PORT: u16 = 41_000;

/// The settings of a box node.
#[derive(Debug, Clone)]
pub struct BoxNodeConfig {
    /// The box's `box.toml`.
    pub config: BoxConfig,
    /// The addresses of each link, in the configuration's order. Link `n` is interface `n`.
    pub links: Vec<LinkAddresses>,
    /// The hosts of the LAN. Each has an interface of its own. The interfaces of the hosts come after those of the
    /// links.
    pub lan: Vec<IpAddr>,
    /// The box's own address in the LAN.
    pub gateway: PathConfig,
    /// The settings of the box's sockets towards the LAN.
    pub downstream: DownstreamConfig,
    /// True if the box has sockets and a packet device for the tunnel.
    pub tunnel: bool,
}

impl BoxNodeConfig {
    /// Returns whether `addr` is the box's address on one of its links.
    fn is_own_on_link(&self, addr: IpAddr) -> bool {
        let owns = |l: &LinkAddresses| match addr {
            IpAddr::V4(a) => l.v4 == Some(a),
            IpAddr::V6(a) => l.v6 == Some(a),
        };
        self.links.iter().any(owns)
    }

    /// Returns the interface to the host of the LAN with this address.
    fn lan_interface(&self, addr: IpAddr) -> Option<u32> {
        let host = self.lan.iter().position(|host| *host == addr)?;
        Some((self.links.len() + host) as u32)
    }
}

/// The aggregation box as a node that can be switched off and on. If its configuration names a state directory,
/// the node keeps the saved state while it is off.
///
/// The node intercepts TCP connections of the LAN like the nftables rules of the real box. A SYN opens an
/// intercepted connection if three conditions hold: the core wants interception, the destination is not bypassed,
/// and the setting `mptcp_hosts` allows the SYN's MPTCP option. The box forwards the retransmission of a SYN that
/// it has forwarded before. Packets of other protocols than TCP go into the tunnel while there is one, from the address
/// of the box there. It forwards all other packets unchanged: to the hosts of the LAN, or over the link
/// that the core calls the best. Outside the tunnel there is no address translation, so routers need a route to the LAN.
#[derive(Debug)]
pub struct BoxNode {
    config: BoxNodeConfig,
    bypass: Vec<IpNet>,
    rng: Rng,
    /// True for each link that has its carrier.
    carrier: Vec<bool>,
    saved: SavedState,
    /// `None` while the box is off.
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    machine: Machine<BoxCore>,
    /// The path of each link.
    paths: Vec<PathId>,
    /// True while the core wants new connections to be intercepted.
    intercepting: bool,
    /// The link for forwarded packets.
    forward_over: usize,
    /// Source and destination of the connections that the box forwards, oldest first.
    forwarded: VecDeque<(SocketAddr, SocketAddr)>,
    /// True while the tunnel carries packets.
    tunnel_is_up: bool,
    /// The translation to the address in the tunnel, once there was one.
    masquerade: Option<Masquerade>,
}

impl BoxNode {
    /// Makes a box that is switched off. All its links have their carrier.
    pub fn new(config: BoxNodeConfig, rng: Rng) -> Self {
        BoxNode {
            bypass: config.config.bypassed(),
            carrier: vec![true; config.links.len()],
            saved: SavedState::default(),
            config,
            rng,
            running: None,
        }
    }

    /// Switches the box on if it is off. The box then has the state that was saved when it was last on.
    ///
    /// # Errors
    /// Fails as [`Stack::listen_any`] and [`Stack::add_path`] do.
    pub fn start(&mut self, now: Instant) -> Result<(), ApiError> {
        if self.running.is_some() {
            return Ok(());
        }
        let config = &self.config.config;
        let strategy = || strategy_of(&config.strategy);
        let rng = child(&mut self.rng);
        let mut engine = WatchedStack::new(config.engine(), rng, strategy());
        let stack = &mut engine.stack;
        let mut core = BoxCore::new(config, child(&mut self.rng), strategy());
        core.set_wall_clock(now, wall_clock(now));
        let mut paths = Vec::new();
        for (index, addresses) in self.config.links.iter().enumerate() {
            let path = core.add_link(now, index, *addresses, stack)?;
            core.set_link_up(now, path, self.carrier[index], stack);
            paths.push(path);
        }
        core.restore_state(now, stack, &self.saved);
        if self.config.tunnel {
            core.enable_tunnel();
        }
        let downstream = self.config.downstream.clone();
        let mut downstream =
            DownstreamTcp::new(downstream, self.config.gateway, child(&mut self.rng));
        downstream.listen_any(&config.socks)?;
        self.running = Some(Running {
            machine: Machine {
                core,
                engine,
                downstream,
                datagram: Vec::new(),
            },
            paths,
            intercepting: false,
            forward_over: 0,
            forwarded: VecDeque::new(),
            tunnel_is_up: false,
            masquerade: None,
        });
        Ok(())
    }

    /// Switches the box off: it sends and forwards nothing.
    pub fn kill(&mut self, now: Instant) {
        if let Some(Running { machine, .. }) = self.running.take()
            && self.config.config.state.is_some()
        {
            self.saved = machine.core.saved_state(now, &machine.engine.stack);
        }
    }

    /// Gives a link its carrier or takes the carrier away. The box gets a notice at once, as from a network card.
    pub fn set_carrier(&mut self, now: Instant, link: usize, up: bool) {
        self.carrier[link] = up;
        if let Some(running) = &mut self.running {
            let Machine { core, engine, .. } = &mut running.machine;
            core.set_link_up(now, running.paths[link], up, &mut engine.stack);
        }
    }

    /// Sends the box a request, as its control socket would. Returns `None` while the box is off.
    pub fn ask(&mut self, now: Instant, request: Request) -> Option<Answer> {
        let Machine { core, engine, .. } = &mut self.running.as_mut()?.machine;
        Some(core.control(now, &mut engine.stack, request))
    }

    /// Returns the core, while the box is on.
    pub fn core(&self) -> Option<&BoxCore> {
        self.running.as_ref().map(|r| &r.machine.core)
    }

    /// Returns the stack of the MPTCP connections with servers, while the box is on.
    pub fn stack(&self) -> Option<&Stack> {
        self.running.as_ref().map(|r| &r.machine.engine.stack)
    }

    /// Returns the sockets towards the LAN, while the box is on.
    pub fn downstream(&self) -> Option<&DownstreamTcp> {
        self.running.as_ref().map(|r| &r.machine.downstream)
    }

    /// Returns the path of a link.
    pub fn path(&self, link: usize) -> Option<PathId> {
        self.running.as_ref()?.paths.get(link).copied()
    }

    /// Returns the interface for a forwarded packet to `dst`.
    fn route(&self, dst: IpAddr) -> u32 {
        if let Some(iface) = self.config.lan_interface(dst) {
            return iface;
        }
        let best = self.running.as_ref().map_or(0, |r| r.forward_over);
        let mut links = core::iter::once(best).chain(0..self.carrier.len());
        let link = links.find(|link| self.carrier.get(*link) == Some(&true));
        link.map_or(NO_INTERFACE, |link| link as u32)
    }

    /// Returns whether a packet from the LAN belongs to the downstream sockets: it is addressed to the box, or its
    /// connection is intercepted. Adds every other connection to those that are forwarded.
    fn is_for_downstream(&mut self, packet: &ip::Packet<&[u8]>) -> bool {
        let (src, dst) = (packet.src(), packet.dst());
        if self.config.gateway.owns(dst) {
            return true;
        }
        let Some(running) = &mut self.running else {
            return false;
        };
        let Ok((ip::PROTO_TCP, segment)) = packet.transport() else {
            return false;
        };
        let Some((src_port, dst_port)) = ports(segment) else {
            return false;
        };
        let (from, to) = (
            SocketAddr::new(src, src_port),
            SocketAddr::new(dst, dst_port),
        );
        let downstream = running.machine.downstream.stack();
        if downstream.subflow_between(to, from).is_some() {
            return true;
        }
        let Ok((segment, _)) = tcp::Repr::parse(segment) else {
            return false;
        };
        // As in the nftables rule, a segment opens a connection if it has SYN and none of these flags.
        let others = [Flags::ACK, Flags::RST, Flags::FIN];
        let opens = segment.flags.contains(Flags::SYN)
            && !others.iter().any(|flag| segment.flags.contains(*flag));
        // The destination may have seen the first SYN already, so a retransmission must not be intercepted.
        if !opens || running.forwarded.contains(&(from, to)) {
            return false;
        }
        let bypassed = self.bypass.iter().any(|range| range.contains(&dst));
        let exempt = match self.config.config.mptcp_hosts {
            MptcpHosts::Forward => !segment.options.mptcp.is_empty(),
            // An MP_JOIN belongs to a connection that is not intercepted; the box does not know its token.
            MptcpHosts::Proxy => segment.options.join().is_some(),
        };
        if running.intercepting && !exempt && !bypassed {
            return true;
        }
        if running.forwarded.len() >= MAX_FORWARDED {
            running.forwarded.pop_front();
        }
        running.forwarded.push_back((from, to));
        false
    }
}

impl BoxNode {
    /// Returns whether a packet from the LAN goes into the tunnel.
    fn is_for_tunnel(&self, packet: &ip::Packet<&[u8]>) -> bool {
        let is_up = self.running.as_ref().is_some_and(|r| r.tunnel_is_up);
        let dst = packet.dst();
        is_up
            && packet.next_header() != ip::PROTO_TCP
            && self.config.lan_interface(dst).is_none()
            && !self.bypass.iter().any(|range| range.contains(&dst))
    }

    /// Returns whether a packet from a link has a datagram of the tunnel.
    fn is_datagram(&self, packet: &ip::Packet<&[u8]>) -> bool {
        self.config.is_own_on_link(packet.dst())
            && packet.transport().is_ok_and(|(protocol, datagram)| {
                let to = ports(datagram).map(|(_, to)| to);
                protocol == ip::PROTO_UDP && to == Some(TUNNEL_PORT)
            })
    }

    /// Sends the datagrams of the tunnel, and hands the LAN the packets that have come out of it.
    fn serve_tunnel(&mut self, turn: &mut Turn<'_>) {
        let Some(running) = &mut self.running else {
            return;
        };
        while let Some(packet) = running.machine.next_packet(turn) {
            let translated = running
                .masquerade
                .as_mut()
                .and_then(|masquerade| masquerade.translate(turn.now, Direction::Inbound, packet));
            let Some(mut packet) = translated.filter(|p| !p.bytes.is_empty()) else {
                continue;
            };
            let to = ip::Packet::new(&packet.bytes[..]).map(|view| view.dst());
            let iface = to.ok().and_then(|dst| self.config.lan_interface(dst));
            match iface {
                Some(iface) if decrement_ttl(&mut packet) => {
                    turn.send(iface, packet);
                }
                _ => turn.recycle(packet),
            }
        }
        let (paths, links, carrier) = (&running.paths, &self.config.links, &self.carrier);
        running.machine.send_datagrams(turn, |path, remote| {
            let link = paths.iter().position(|p| *p == path)?;
            let own = match remote {
                SocketAddr::V4(_) => links[link].v4.map(IpAddr::V4),
                SocketAddr::V6(_) => links[link].v6.map(IpAddr::V6),
            };
            let own = SocketAddr::new(own?, TUNNEL_PORT);
            carrier[link].then_some((own, link as u32))
        });
    }
}

impl Running {
    /// Hands a packet of the LAN to the tunnel.
    fn send_into_tunnel(&mut self, turn: &mut Turn<'_>, mut packet: Packet) {
        if !decrement_ttl(&mut packet) {
            return turn.recycle(packet);
        }
        let translated = self
            .masquerade
            .as_mut()
            .and_then(|masquerade| masquerade.translate(turn.now, Direction::Outbound, packet));
        if let Some(packet) = translated {
            self.machine.core.on_packet(turn.now, &packet.bytes);
            turn.recycle(packet);
        }
    }

    /// Applies changes of the tunnel to its packet device.
    fn take_tunnel_changes(&mut self) {
        while let Some(change) = self.machine.core.poll_tunnel_change() {
            self.tunnel_is_up = matches!(change, TunnelChange::Up { .. });
            let TunnelChange::Up { v4: Some(v4), .. } = change else {
                continue;
            };
            match &mut self.masquerade {
                Some(masquerade) => masquerade.rebind(v4),
                None => self.masquerade = Some(Masquerade::new(v4)),
            }
        }
    }
    /// Handles the notices that the core has for its environment (on Linux: packet filter and routes).
    fn take_notices(&mut self) {
        while let Some(notice) = self.machine.core.poll_notice() {
            match notice {
                Notice::BestPath(Some(path)) => {
                    let link = self.paths.iter().position(|p| *p == path);
                    self.forward_over = link.unwrap_or(self.forward_over);
                }
                Notice::Intercept(open) => self.intercepting = open,
                // Without a best path, forwarded packets keep the last best path. Any link would do, because no
                // address is translated.
                Notice::BestPath(None) | Notice::Reached(..) => {}
                // Servers of a simulated world reach both families.
                Notice::Families(_) => {}
            }
        }
    }
}

impl Node for BoxNode {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, mut packet: Packet) {
        let Ok(view) = ip::Packet::new(&packet.bytes[..]) else {
            return turn.recycle(packet);
        };
        let dst = view.dst();
        let from_lan = iface as usize >= self.config.links.len();
        let for_downstream = from_lan && self.is_for_downstream(&view);
        let for_tunnel = from_lan && !for_downstream && self.is_for_tunnel(&view);
        let is_datagram = !from_lan && self.is_datagram(&view);
        let for_stack = !from_lan && self.config.is_own_on_link(dst);
        let route = self.route(dst);
        let Some(running) = &mut self.running else {
            return turn.recycle(packet);
        };
        // A packet is never forwarded from a link to a link.
        let forwardable = from_lan || route as usize >= self.config.links.len();
        if for_downstream {
            running.machine.receive_downstream(turn, &packet.bytes);
        } else if for_tunnel {
            return running.send_into_tunnel(turn, packet);
        } else if is_datagram {
            let path = running.paths[iface as usize];
            running
                .machine
                .receive_datagram(turn, path, &mut packet.bytes);
        } else if for_stack {
            running.machine.receive(turn, &packet.bytes);
        } else if forwardable && decrement_ttl(&mut packet) {
            turn.send(route, packet);
            return;
        }
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let (paths, carrier) = (&running.paths, &self.carrier);
        let stack_iface = |path: PathId, _| {
            let link = paths.iter().position(|p| *p == path);
            let link = link.filter(|link| carrier[*link]);
            link.map_or(NO_INTERFACE, |link| link as u32)
        };
        let downstream_iface = |dst| self.config.lan_interface(dst).unwrap_or(NO_INTERFACE);
        running.machine.wake(turn, stack_iface, downstream_iface);
        running.take_notices();
        running.take_tunnel_changes();
        self.serve_tunnel(turn);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.running.as_ref().and_then(|r| r.machine.next_timeout())
    }
}

/// Decrements a packet's time to live. Returns false if the packet must not be forwarded.
fn decrement_ttl(packet: &mut Packet) -> bool {
    let Ok(mut packet) = ip::Packet::new(&mut packet.bytes[..]) else {
        return false;
    };
    let left = packet.hop_limit().saturating_sub(1);
    packet.set_hop_limit(left);
    packet.fill_checksum();
    left > 0
}
