//! The aggregation server as a node.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::{ApiError, PathConfig, Stack};
use braid_proxy::{ServerConfig, ServerCore};
use braid_wire::icmp::TcpError;
use braid_wire::{Instant, Rng, ip};

use super::machine::Machine;
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
}

/// The aggregation server as a node that can be switched off and on.
#[derive(Debug)]
pub struct ServerNode {
    config: ServerNodeConfig,
    rng: Rng,
    /// `None` while the node is off.
    machine: Option<Machine<ServerCore>>,
}

impl ServerNode {
    /// Makes a server that is switched off.
    pub fn new(config: ServerNodeConfig, rng: Rng) -> Self {
        ServerNode {
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
        });
        Ok(())
    }

    /// Switches the node off: it forgets its state and sends nothing.
    pub fn kill(&mut self) {
        self.machine = None;
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
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        if let Ok(view) = ip::Packet::new(&packet.bytes[..])
            && self.config.config.listen.contains(&view.dst())
        {
            let for_engine = self.is_for_engine(&view);
            match &mut self.machine {
                Some(machine) if for_engine => machine.receive(turn, &packet.bytes),
                Some(machine) => machine.receive_downstream(turn, &packet.bytes),
                None => {}
            }
        }
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let routes = &self.config.routes;
        let route = |dst: IpAddr| {
            let found = routes.iter().find(|(addr, _)| *addr == dst);
            found.map_or(0, |(_, iface)| *iface)
        };
        machine.wake(turn, |_, dst| route(dst), route);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Machine::next_timeout)
    }
}
