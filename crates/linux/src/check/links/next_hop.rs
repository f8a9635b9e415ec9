//! Gateways that answer, and gateways that do not, as the kernel found when packets were sent to them.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use crate::net::netlink::Netlink;

/// The kernel's knowledge of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// The neighbour has said where it is.
    Answers,
    /// The neighbour was asked in vain.
    Silent,
}

/// The neighbours of which the kernel knows something.
///
/// # Errors
/// As the kernel answers.
pub(super) fn neighbours() -> io::Result<Vec<(u32, IpAddr, Neighbour)>> {
    let get = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let found = Netlink::open()?.dump(get)?;
    let known = found.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewNeighbour(message) => known(&message),
        _ => None,
    });
    Ok(known.collect())
}

fn known(message: &NeighbourMessage) -> Option<(u32, IpAddr, Neighbour)> {
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
        // Interfaces without addresses of the link layer have nobody to ask.
        _ => return None,
    };
    Some((message.header.ifindex, address, state))
}
