//! Reads from the kernel whether gateways answer. The kernel knows this after packets were sent to the gateways.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use crate::net::netlink::Netlink;

/// The kernel's state of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// The neighbour has answered ARP or neighbour discovery.
    Answers,
    /// The neighbour has not answered.
    Silent,
}

/// Returns the neighbours whose state the kernel knows, with the index of their interface.
///
/// # Errors
/// Fails if netlink does.
pub(super) fn neighbours() -> io::Result<Vec<(u32, IpAddr, Neighbour)>> {
    let get = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let found = Netlink::open()?.dump(get)?;
    let neighbours = found.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewNeighbour(message) => neighbour_of(&message),
        _ => None,
    });
    Ok(neighbours.collect())
}

fn neighbour_of(message: &NeighbourMessage) -> Option<(u32, IpAddr, Neighbour)> {
    let address = message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => Some(IpAddr::V4(*a)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(a)) => Some(IpAddr::V6(*a)),
        _ => None,
    })?;
    let state = match message.header.state {
        NeighbourState::Incomplete | NeighbourState::Failed => Neighbour::Silent,
        NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Probe => Neighbour::Answers,
        // In other states, such as NOARP and PERMANENT, the kernel does not ask the neighbour.
        _ => return None,
    };
    Some((message.header.ifindex, address, state))
}
