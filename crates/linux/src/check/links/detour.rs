//! Routes over each link for a check's own packets, independent of the routing table and of a running box.
//!
//! The numbers of the rules and routes, and the name of the nftables table, follow from the name of an instance.
//! No instance of this name ever runs. So a later check finds and removes what a killed check left.

use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use socket2::{Domain, Socket, Type};

use crate::net::link::network;
use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Route, Rule, Target};
use crate::net::shortcut::Shortcut;
use crate::net::{InstanceNames, Result, SystemError};
use crate::nft;

/// Name of the instance from which the numbers of rules and routes and the name of the table follow.
const INSTANCE_NAME: &str = "braid-check";
/// Metric of the routes. Any value does, since the tables have no other routes.
const ROUTE_METRIC: u32 = 100;
/// Maximum number of ports that are tried. A port of the engine is unsuitable. The kernel chooses such a port
/// only if an operator has changed the kernel's range of automatic ports so that the range overlaps the engine's
/// ports. The number is a guess.
const MAX_PORT_TRIES: usize = 64;

/// A route over one link in one address family.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    /// Index of the link in the configuration.
    pub index: u8,
    /// Index of the interface.
    pub interface: u32,
    /// The gateway; `None` if the link needs none.
    pub gateway: Option<IpAddr>,
    /// Addresses of the interface in this family.
    pub addresses: Vec<Address>,
    /// True for IPv6.
    pub v6: bool,
}

/// The routes over all links, removed on drop.
#[derive(Debug)]
pub(super) struct Detour {
    instance_names: InstanceNames,
    /// An abstract Unix socket, which only one process in a network namespace can bind.
    _claim: UnixListener,
}

impl Detour {
    /// Installs routes, rules and the nftables table for the check's packets.
    ///
    /// # Errors
    /// Fails if another check is running, or if the kernel refuses a route, a rule or the table.
    pub fn open(exits: &[Exit], ports: &[u16]) -> Result<Detour> {
        let cannot = || SystemError::cannot("get the lock of the checks");
        let name = UnixAddr::from_abstract_name(INSTANCE_NAME.as_bytes()).map_err(cannot())?;
        let detour = Detour {
            _claim: UnixListener::bind_addr(&name).map_err(cannot())?,
            instance_names: InstanceNames::of_tun(INSTANCE_NAME),
        };
        // Removes what a killed check left.
        detour.remove()?;
        let mut netlink = Netlink::open().map_err(SystemError::cannot("add routes"))?;
        for exit in exits {
            detour
                .add_route(&mut netlink, exit)
                .map_err(SystemError::cannot("add routes"))?;
        }
        nft::keep_from_sockets(&detour.instance_names, ports)?;
        Ok(detour)
    }

    /// Returns the mark of packets that leave over a link.
    pub fn mark(&self, index: u8) -> u32 {
        self.instance_names.flow_mark(index)
    }

    fn add_route(&self, netlink: &mut Netlink, exit: &Exit) -> std::io::Result<()> {
        let table = self.instance_names.flow_table(exit.index);
        let interface = exit.interface;
        for address in &exit.addresses {
            let (destination, gateway) = (network(address).addr(), None);
            netlink.replace_route(&Route {
                table,
                destination,
                prefix_len: address.prefix_len,
                target: Target::Via { interface, gateway },
                metric: ROUTE_METRIC,
            })?;
        }
        let target = Target::Via {
            interface,
            gateway: exit.gateway,
        };
        netlink.replace_route(&Route::default_of(exit.v6, table, target, ROUTE_METRIC))?;
        netlink.add_rule(&Rule {
            v6: exit.v6,
            priority: self.instance_names.rule_priority(),
            table,
            mark: Some(self.mark(exit.index)),
            ..Rule::default()
        })
    }

    fn remove(&self) -> Result<()> {
        let cannot = || SystemError::cannot("remove routes and rules");
        let mut netlink = Netlink::open().map_err(cannot())?;
        let instance_names = &self.instance_names;
        netlink
            .delete_rules(|priority| instance_names.owns_priority(priority))
            .map_err(cannot())?;
        netlink
            .delete_routes(|table| instance_names.owns_table(table))
            .map_err(cannot())?;
        nft::remove(instance_names)
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "the check could not remove all of its routes; the next check removes them");
        }
    }
}

/// Reserves a TCP port of `address` until the returned socket is closed. An engine on this machine never uses
/// the port.
///
/// # Errors
/// Fails if the kernel refuses a socket, or if no suitable port was found.
pub(super) fn reserve_port(address: IpAddr) -> std::io::Result<(Socket, u16)> {
    let mut unsuitable = Vec::new();
    for _ in 0..MAX_PORT_TRIES {
        let local = std::net::SocketAddr::new(address, 0);
        let socket = Socket::new(Domain::for_address(local), Type::STREAM, None)?;
        socket.bind(&local.into())?;
        let port = socket
            .local_addr()?
            .as_socket()
            .map_or(0, |addr| addr.port());
        if port > 0 && !Shortcut::ports().contains(&port) {
            return Ok((socket, port));
        }
        // The socket stays open, so that the kernel chooses another port at the next try.
        unsuitable.push(socket);
    }
    Err(std::io::ErrorKind::AddrInUse.into())
}
