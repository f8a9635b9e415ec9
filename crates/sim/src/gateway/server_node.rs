//! The aggregation server as a node.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::{ApiError, PathConfig, PathId, Stack};
use braid_links::middlebox::Direction;
use braid_proxy::app::Core;
use braid_proxy::control::{Answer, Controlled, Request};
use braid_proxy::{ServerConfig, ServerCore};
use braid_wire::icmp::TcpError;
use braid_wire::{Instant, Rng, ip};

use super::machine::Machine;
use super::masquerade::Masquerade;
use super::{DownstreamConfig, DownstreamTcp, ports, wall_clock};
use crate::host::strategy_of;
use crate::node::{Node, Packet, Turn, child};
use crate::watched::WatchedStack;

/// The settings of a server node.
#[derive(Debug, Clone)]
pub struct ServerNodeConfig {
    /// The server's `server.toml`. The server listens at the addresses of `listen`, and connects to destinations
    /// from the first of these addresses in each family.
    pub config: ServerConfig,
    /// Pairs of a destination and the interface to it. Packets to other destinations leave by interface 0.
    pub routes: Vec<(IpAddr, u32)>,
    /// The settings of the sockets towards destinations. Their timeout for connecting comes from `config`.
    pub downstream: DownstreamConfig,
    /// The time by which the server's wall clock is ahead of the world's.
    pub clock_ahead: Duration,
    /// True if the server has sockets and a packet device for tunnels.
    pub tunnel: bool,
}

/// The aggregation server as a node that can be switched off and on. What comes out of tunnels leaves with the server's
/// own address.
#[derive(Debug)]
pub struct ServerNode {
    config: ServerNodeConfig,
    rng: Rng,
    /// `None` while the node is off.
    machine: Option<Machine<ServerCore>>,
    /// The translation to the server's IPv4 address, if it has one. It outlives a restart of the process, as the
    /// kernel's does.
    masquerade: Option<Masquerade>,
}

impl ServerNode {
    /// Makes a server that is switched off.
    pub fn new(config: ServerNodeConfig, rng: Rng) -> Self {
        let own = path(config.config.listen.iter().copied()).v4;
        ServerNode {
            masquerade: own.filter(|_| config.tunnel).map(Masquerade::new),
            config,
            rng,
            machine: None,
        }
    }

    /// Switches the node on if it is off. The server starts without any earlier state.
    ///
    /// # Errors
    /// Fails as [`Stack::listen`] does, for example if the configuration names an address twice.
    pub fn start(&mut self, now: Instant) -> Result<(), ApiError> {
        if self.machine.is_some() {
            return Ok(());
        }
        let config = &self.config.config;
        let rng = child(&mut self.rng);
        let mut engine = WatchedStack::new(config.engine(), rng, strategy_of(&config.strategy));
        for addr in &config.listen {
            engine.stack.add_path(path([*addr]))?;
            engine.stack.listen(SocketAddr::new(*addr, config.port))?;
        }
        let mut core = ServerCore::new(config);
        core.set_wall_clock(now, wall_clock(now) + self.config.clock_ahead);
        core.set_own_addresses(config.listen.clone());
        if self.config.tunnel {
            core.enable_tunnel();
        }
        let mut downstream = self.config.downstream.clone();
        downstream.engine.connect_timeout = config.timeouts.connect;
        let downstream = DownstreamTcp::new(
            downstream,
            path(config.listen.iter().copied()),
            child(&mut self.rng),
        );
        self.machine = Some(Machine {
            core,
            engine,
            downstream,
            datagram: Vec::new(),
        });
        Ok(())
    }

    /// Switches the node off: it forgets its state and sends nothing.
    pub fn kill(&mut self) {
        self.machine = None;
    }

    /// Applies the settings of `new` that can change while the server runs, as a reload does.
    pub fn reload(&mut self, now: Instant, new: ServerConfig) {
        self.config.config.reload(new);
        if let Some(machine) = &mut self.machine {
            let config = &self.config.config;
            machine.with_core(now, |core, ctx| core.reload(ctx, config));
        }
    }

    /// Sends the server a request, as its control socket would. Returns `None` while the server is off.
    pub fn ask(&mut self, now: Instant, request: Request) -> Option<Answer> {
        let Machine { core, engine, .. } = self.machine.as_mut()?;
        Some(core.control(now, &mut engine.stack, request))
    }

    /// Returns the core, while the node is on.
    pub fn core(&self) -> Option<&ServerCore> {
        self.machine.as_ref().map(|m| &m.core)
    }

    /// Returns the stack of the MPTCP connections with boxes, while the node is on.
    pub fn stack(&self) -> Option<&Stack> {
        self.machine.as_ref().map(|m| &m.engine.stack)
    }

    /// Returns the sockets towards destinations, while the node is on.
    pub fn downstream(&self) -> Option<&DownstreamTcp> {
        self.machine.as_ref().map(|m| &m.downstream)
    }

    /// Returns whether the packet belongs to the MPTCP stack. The sockets towards destinations have the same
    /// addresses, so the port decides.
    fn is_for_engine(&self, packet: &ip::Packet<&[u8]>) -> bool {
        let port = self.config.config.port;
        let Ok((protocol, payload)) = packet.transport() else {
            return false;
        };
        match protocol {
            ip::PROTO_TCP => ports(payload).is_some_and(|(_, dst)| dst == port),
            // An ICMP error quotes a packet that this server sent, so the source port is the server's.
            ip::PROTO_ICMP | ip::PROTO_ICMPV6 => {
                TcpError::parse(packet.is_v6(), payload).is_ok_and(|e| e.src_port == port)
            }
            _ => false,
        }
    }
}

impl ServerNode {
    /// Returns the socket of the tunnel to which a packet goes; `None` if it has no datagram.
    fn socket(&self, packet: &ip::Packet<&[u8]>) -> Option<PathId> {
        let (protocol, datagram) = packet.transport().ok()?;
        let (_, to) = ports(datagram).filter(|_| protocol == ip::PROTO_UDP)?;
        let listen = &self.config.config.listen;
        let socket = listen.iter().position(|addr| *addr == packet.dst())?;
        (to == self.config.config.port).then_some(PathId(socket as u8))
    }

    /// Takes an answer to a packet of a box.
    fn receive_answer(&mut self, turn: &Turn<'_>, packet: Packet) {
        let translated = self
            .masquerade
            .as_mut()
            .and_then(|masquerade| masquerade.translate(turn.now, Direction::Inbound, packet));
        if let (Some(packet), Some(machine)) = (translated, &mut self.machine) {
            machine.core.on_packet(turn.now, &packet.bytes);
        }
    }

    /// Sends the datagrams of tunnels, and the packets that have come out of them.
    fn serve_tunnels(&mut self, turn: &mut Turn<'_>) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let config = &self.config;
        while let Some(packet) = machine.next_packet(turn) {
            let translated = self
                .masquerade
                .as_mut()
                .and_then(|masquerade| masquerade.translate(turn.now, Direction::Outbound, packet));
            let Some(packet) = translated else {
                continue;
            };
            if let Ok(dst) = ip::Packet::new(&packet.bytes[..]).map(|view| view.dst()) {
                turn.send(config.route(dst), packet);
            }
        }
        machine.send_datagrams(turn, |socket, remote| {
            let own = config.config.listen.get(usize::from(socket.0))?;
            let own = SocketAddr::new(*own, config.config.port);
            Some((own, config.route(remote.ip())))
        });
    }
}

impl ServerNodeConfig {
    /// Returns the interface to a destination.
    fn route(&self, dst: IpAddr) -> u32 {
        let found = self.routes.iter().find(|(addr, _)| *addr == dst);
        found.map_or(0, |(_, iface)| *iface)
    }
}

/// Returns a path with the first address of each family.
fn path(addresses: impl IntoIterator<Item = IpAddr>) -> PathConfig {
    let mut path = PathConfig::default();
    for addr in addresses {
        match addr {
            IpAddr::V4(addr) => path.v4 = path.v4.or(Some(addr)),
            IpAddr::V6(addr) => path.v6 = path.v6.or(Some(addr)),
        }
    }
    path
}

impl Node for ServerNode {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, mut packet: Packet) {
        if let Ok(view) = ip::Packet::new(&packet.bytes[..])
            && self.config.config.listen.contains(&view.dst())
        {
            let for_engine = self.is_for_engine(&view);
            let socket = self.socket(&view);
            let is_tcp = view.next_header() == ip::PROTO_TCP;
            if self.masquerade.is_some() && socket.is_none() && !is_tcp {
                return self.receive_answer(turn, packet);
            }
            match (&mut self.machine, socket) {
                (Some(machine), Some(socket)) => {
                    machine.receive_datagram(turn, socket, &mut packet.bytes);
                }
                (Some(machine), _) if for_engine => machine.receive(turn, &packet.bytes),
                (Some(machine), _) => machine.receive_downstream(turn, &packet.bytes),
                (None, _) => {}
            }
        }
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let config = &self.config;
        let route = |dst: IpAddr| config.route(dst);
        machine.wake(turn, |_, dst| route(dst), route);
        self.serve_tunnels(turn);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Machine::next_timeout)
    }
}
