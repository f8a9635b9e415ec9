//! Routes over each link for a check's own packets, independent of the routing table and of a running box.
//!
//! Rules, routes and the nftables table are named and numbered after an instance that never runs, so a later
//! check finds and removes the remains of a check that was killed.

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

/// Name of the instance that owns rules, routes and table.
const INSTANCE_NAME: &str = "braid-check";
/// Metric of the routes. The tables have no others, so that any value does.
const ROUTE_METRIC: u32 = 100;
/// Ports to try. The kernel's range for automatic ports may overlap the engine's ports, if an operator
/// changed it.
const MAX_TRIES: usize = 64;

/// A route over one link in one family.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    /// Index of the link in the configuration.
    pub index: u8,
    pub interface: u32,
    pub gateway: Option<IpAddr>,
    /// Addresses of the interface, of this family.
    pub addresses: Vec<Address>,
    pub v6: bool,
}

/// The routes over all links, removed on drop.
#[derive(Debug)]
pub(super) struct Detour {
    instance_names: InstanceNames,
    /// Abstract socket that only one check in a network namespace can hold.
    _claim: UnixListener,
}

impl Detour {
    /// Installs routes, rules and the nftables table for the check's packets.
    ///
    /// # Errors
    /// Fails if another check is at work, or if the system refuses.
    pub fn open(exits: &[Exit], ports: &[u16]) -> Result<Detour> {
        let cannot = || SystemError::cannot("get the lock of the checks");
        let name = UnixAddr::from_abstract_name(INSTANCE_NAME.as_bytes()).map_err(cannot())?;
        let detour = Detour {
            _claim: UnixListener::bind_addr(&name).map_err(cannot())?,
            instance_names: InstanceNames::of_tun(INSTANCE_NAME),
        };
        // Removes the remains of a check that was killed.
        detour.remove()?;
        let mut netlink = Netlink::open().map_err(SystemError::cannot("add routes"))?;
        for exit in exits {
            detour
                .add(&mut netlink, exit)
                .map_err(SystemError::cannot("add routes"))?;
        }
        nft::keep_from_sockets(&detour.instance_names, ports)?;
        Ok(detour)
    }

    /// Returns the mark of packets that leave over a link.
    pub fn mark(&self, index: u8) -> u32 {
        self.instance_names.flow_mark(index)
    }

    fn add(&self, netlink: &mut Netlink, exit: &Exit) -> std::io::Result<()> {
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

/// Reserves a TCP port of `address` for as long as the socket lives. No engine on this machine takes it for
/// its own.
///
/// # Errors
/// Fails if the system refuses a socket, or if no free port was found.
pub(super) fn reserve_port(address: IpAddr) -> std::io::Result<(Socket, u16)> {
    let mut passed_over = Vec::new();
    for _ in 0..MAX_TRIES {
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
        // Keeping the socket open makes the kernel choose another port next.
        passed_over.push(socket);
    }
    Err(std::io::ErrorKind::AddrInUse.into())
}
