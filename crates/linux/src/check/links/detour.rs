//! A way out over each link for a check's own packets, whatever the routing table and a running box say.
//!
//! Rules, routes and a table of nftables have names and numbers of an instance that never runs, so a later
//! check finds what one that was killed has left behind.

use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use socket2::{Domain, Socket, Type};

use crate::net::link::network;
use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Route, Rule, Target};
use crate::net::shortcut::Shortcut;
use crate::net::{Identity, Result, SystemError};
use crate::nft;

/// Whose names and numbers these are.
const NAME: &str = "braid-check";
/// Metric of the routes.
const METRIC: u32 = 100;
/// The kernel's range of ports may be another than the usual one.
const TRIES: usize = 64;

/// The way over one link in one family.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    /// Place of the link in the configuration.
    pub index: u8,
    pub interface: u32,
    pub gateway: Option<IpAddr>,
    /// Addresses of the interface, of this family.
    pub addresses: Vec<Address>,
    pub v6: bool,
}

/// The ways of all links, as long as this lives.
#[derive(Debug)]
pub(super) struct Detour {
    identity: Identity,
    /// There can be one in a network namespace.
    _claim: UnixListener,
}

impl Detour {
    /// # Errors
    /// Where another check is at it, or the system refuses.
    pub fn open(exits: &[Exit], ports: &[u16]) -> Result<Detour> {
        let doing = || SystemError::doing("be the only check at work here");
        let name = UnixAddr::from_abstract_name(NAME.as_bytes()).map_err(doing())?;
        let detour = Detour {
            _claim: UnixListener::bind_addr(&name).map_err(doing())?,
            identity: Identity::of_tun(NAME),
        };
        detour.remove()?;
        let mut netlink = Netlink::open().map_err(SystemError::doing("add routes"))?;
        for exit in exits {
            detour
                .add(&mut netlink, exit)
                .map_err(SystemError::doing("add routes"))?;
        }
        nft::keep_from_sockets(&detour.identity, ports)?;
        Ok(detour)
    }

    /// The mark of packets that leave over a link.
    pub fn mark(&self, index: u8) -> u32 {
        self.identity.flow_mark(index)
    }

    fn add(&self, netlink: &mut Netlink, exit: &Exit) -> std::io::Result<()> {
        let table = self.identity.flow_table(exit.index);
        let interface = exit.interface;
        for address in &exit.addresses {
            let (destination, gateway) = (network(address).addr(), None);
            netlink.replace_route(&Route {
                table,
                destination,
                prefix_len: address.prefix_len,
                target: Target::Via { interface, gateway },
                metric: METRIC,
            })?;
        }
        let target = Target::Via {
            interface,
            gateway: exit.gateway,
        };
        netlink.replace_route(&Route::default_of(exit.v6, table, target, METRIC))?;
        netlink.add_rule(&Rule {
            v6: exit.v6,
            priority: self.identity.rule_priority(),
            table,
            mark: Some(self.mark(exit.index)),
            ..Rule::default()
        })
    }

    fn remove(&self) -> Result<()> {
        let doing = || SystemError::doing("remove routes and rules");
        let mut netlink = Netlink::open().map_err(doing())?;
        let identity = &self.identity;
        netlink
            .delete_rules(|priority| identity.owns_priority(priority))
            .map_err(doing())?;
        netlink
            .delete_routes(|table| identity.owns_table(table))
            .map_err(doing())?;
        nft::remove(identity)
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "the check leaves something behind; the next one removes it");
        }
    }
}

/// A TCP port of `address` that nobody else has as long as this lives, and that no engine on this machine
/// takes for its own.
///
/// # Errors
/// What the system refuses.
pub(super) fn reserve_port(address: IpAddr) -> std::io::Result<(Socket, u16)> {
    let mut passed_over = Vec::new();
    for _ in 0..TRIES {
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
        passed_over.push(socket);
    }
    Err(std::io::ErrorKind::AddrInUse.into())
}
