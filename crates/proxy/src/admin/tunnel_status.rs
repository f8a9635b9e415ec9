//! The part of the status that describes the tunnel.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_tunnel::{FlowStats, PathId, PathStats};
use braid_wire::{Instant, ip};
use serde::{Deserialize, Serialize};

/// The tunnel of a box, or the tunnels of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// At a box `off`, `asking`, `up`, `down`; at a server `off`, `on`.
    pub state: String,
    /// The reason why a box has no tunnel, or a server offers none; `None` too if it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// At a box, the server of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The largest packet that the tunnel of a box carries, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Number of sessions.
    #[serde(default)]
    pub sessions_total: usize,
    /// The sessions: at a box its own, at a server the oldest, at most 256.
    #[serde(default)]
    pub sessions: Vec<TunnelSessionStatus>,
    /// Number of flows in the tunnel that are in use: at a server, those of the sessions in `sessions`.
    #[serde(default)]
    pub flows_total: usize,
    /// The flows in use that moved the most bytes, in descending order; at most 256.
    #[serde(default)]
    pub flows: Vec<TunnelFlowStatus>,
    /// Sessions opened since the start.
    #[serde(default)]
    pub opened: u64,
    /// Epochs of sessions after their first.
    #[serde(default)]
    pub rekeyed: u64,
    /// At a server, sessions that another one of the same key and box name replaced within a minute, while in use.
    #[serde(default)]
    pub contended: u64,
    /// Datagrams and packets that were dropped, by reason.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// At a box, attempts in a row to get a session or fresh keys that have failed.
    #[serde(default)]
    pub attempts_failed: u64,
    /// At a box, the age of the session's keys, seconds. Those of an idle session are not replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_age_secs: Option<u64>,
}

impl TunnelStatus {
    /// Maximum number of sessions in a status. It limits the size of a busy server's answer. The value is a guess.
    pub(crate) const MAX_SHOWN_SESSIONS: usize = 256;

    /// Shows that no packets pass, for a reason of this machine.
    pub(crate) fn fail(&mut self, reason: &str) {
        if self.state != "off" {
            self.state = "down".to_owned();
        }
        self.reason = Some(reason.to_owned());
    }
}

/// A session of the tunnel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TunnelSessionStatus {
    /// At a server, the user's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The IPv4 address of the box in the tunnel.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address of the box in the tunnel.
    pub v6: Option<Ipv6Addr>,
    /// Number of the epoch, whose keys are in use; the first one is 1.
    pub epoch: u64,
    /// Packets that came out of the tunnel.
    pub packets_in: u64,
    /// Packets that went into the tunnel.
    pub packets_out: u64,
    /// Number of flows that are in use.
    #[serde(default)]
    pub flows: usize,
    /// The paths: at a box by the link's name, at a server by their number at the box.
    pub paths: Vec<TunnelPathStatus>,
}

/// A path of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelPathStatus {
    /// Name of the link, or number of the path.
    pub name: String,
    /// True if the path may carry packets.
    pub usable: bool,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes of datagrams sent.
    pub bytes_sent: u64,
    /// Datagrams sent that the other end has not received.
    pub datagrams_lost: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Bytes of datagrams received.
    pub bytes_received: u64,
    /// Smoothed round-trip time, ms; `None` if it is unknown.
    pub rtt_ms: Option<f64>,
    /// Estimated rate to the other end, bit/s; `None` if it is unknown.
    pub rate: Option<f64>,
}

impl TunnelPathStatus {
    pub(crate) fn new(name: String, stats: &PathStats) -> Self {
        TunnelPathStatus {
            name,
            usable: stats.usable,
            datagrams_sent: stats.datagrams_sent,
            bytes_sent: stats.bytes_sent,
            datagrams_lost: stats.datagrams_lost,
            datagrams_received: stats.datagrams_received,
            bytes_received: stats.bytes_received,
            rtt_ms: stats.round_trip.map(|time| time.as_secs_f64() * 1e3),
            rate: stats.rate.map(|bytes| bytes as f64 * 8.0),
        }
    }
}

/// A flow in the tunnel: packets with the same addresses, protocol and ports, in both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelFlowStatus {
    /// At a server, the user's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the protocol above IP, or its number.
    pub protocol: String,
    /// The user's end, with its port if the protocol has ports. Its address is the box's address in the tunnel, to
    /// which the box translates the hosts of the LAN.
    pub source: String,
    /// The other end, with its port if the protocol has ports.
    pub destination: String,
    /// Time since the first packet, s.
    pub age_s: f64,
    /// Time since the last packet, s.
    pub idle_s: f64,
    /// Bytes of the user's packets.
    pub bytes_up: u64,
    /// Bytes of packets to the user.
    pub bytes_down: u64,
    /// Packets that this end dropped because the flow had too many waiting.
    pub packets_dropped: u64,
    /// Urgency of the packets that this end sends, 0 to 7; `None` if it sends none.
    pub urgency: Option<u8>,
    /// The rule by which this end gives packets to links: `aggregate`, `fastest`, `redundant` or `single`; `None` if
    /// it sends none.
    pub steering: Option<String>,
    /// True if this end sends lost packets again.
    pub repairs_losses: bool,
    /// Bytes that wait to be sent.
    pub queued: usize,
    /// The links that carried packets of the flow: at a box by name, at a server by their number at the box.
    pub paths: Vec<TunnelFlowPathStatus>,
}

/// The part of a link in a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelFlowPathStatus {
    /// Name of the link, or number of the path.
    pub name: String,
    /// Bytes of packets sent over the link, with those of repeated packets.
    pub bytes_sent: u64,
    /// Bytes of packets received over the link, with those of repeated packets.
    pub bytes_received: u64,
    /// The link's share of the bytes of all links, 0 to 1.
    pub share: f64,
}

/// The flows that a status shows.
#[derive(Debug)]
pub(crate) struct ShownFlows<O> {
    now: Instant,
    total: usize,
    /// The largest flows, each with its owner.
    largest: Vec<(O, FlowStats)>,
}

impl<O: Copy> ShownFlows<O> {
    /// Maximum number of flows in a status. It limits the size of the answer. A guess, as for connections.
    const MAX_SHOWN: usize = 256;
    /// The time without a packet after which a flow is not in use. NATs, which have the same question, forget a mapping
    /// of UDP after 2 min at the earliest (RFC 4787 section 4.3).
    const MAX_IDLE: Duration = Duration::from_secs(120);

    /// Starts without flows at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        ShownFlows {
            now,
            total: 0,
            largest: Vec::new(),
        }
    }

    /// Adds the flows of `owner`, and returns the number of those that are in use.
    pub(crate) fn add(&mut self, owner: O, flows: Vec<FlowStats>) -> usize {
        let is_used = |flow: &FlowStats| self.now < flow.used_at + Self::MAX_IDLE;
        let before = self.largest.len();
        let used = flows.into_iter().filter(is_used);
        self.largest.extend(used.map(|flow| (owner, flow)));
        let count = self.largest.len() - before;
        self.total += count;
        // Ties keep the order of the calls, so that equal states look alike.
        self.largest.sort_by_key(|(_, flow)| {
            Reverse((flow.bytes_sent + flow.bytes_received, flow.used_at))
        });
        self.largest.truncate(Self::MAX_SHOWN);
        count
    }

    /// Returns the number of flows in use, and the largest as `show` makes them.
    pub(crate) fn finish(
        self,
        show: impl Fn(O, &FlowStats) -> TunnelFlowStatus,
    ) -> (usize, Vec<TunnelFlowStatus>) {
        let largest = self.largest.iter();
        let shown = largest.map(|(owner, flow)| show(*owner, flow)).collect();
        (self.total, shown)
    }
}

impl TunnelFlowStatus {
    /// Returns a flow at `now`. `sends_up` is true at a box, which sends the user's packets. `path` names a path.
    pub(crate) fn new(
        now: Instant,
        flow: &FlowStats,
        sends_up: bool,
        path: impl Fn(PathId) -> String,
    ) -> Self {
        let local = end(flow.local, flow.ports.map(|(local, _)| local));
        let remote = end(flow.remote, flow.ports.map(|(_, remote)| remote));
        let moved = (flow.bytes_sent, flow.bytes_received);
        let flipped = |(a, b)| (b, a);
        let (bytes_up, bytes_down) = if sends_up { moved } else { flipped(moved) };
        let (source, destination) = if sends_up {
            (local, remote)
        } else {
            (remote, local)
        };
        let treatment = flow.treatment;
        let paths = flow.paths.iter();
        let all: u64 = paths.clone().map(|p| p.bytes_sent + p.bytes_received).sum();
        TunnelFlowStatus {
            user: None,
            protocol: protocol(flow.protocol),
            source,
            destination,
            age_s: now.saturating_since(flow.started_at).as_secs_f64(),
            idle_s: now.saturating_since(flow.used_at).as_secs_f64(),
            bytes_up,
            bytes_down,
            packets_dropped: flow.packets_dropped,
            urgency: treatment.map(|t| t.urgency),
            steering: treatment.map(|t| t.mode.name().to_owned()),
            repairs_losses: treatment.is_some_and(|t| t.hides_losses),
            queued: treatment.map_or(0, |t| t.queued_bytes),
            paths: paths
                .map(|p| TunnelFlowPathStatus {
                    name: path(p.path),
                    bytes_sent: p.bytes_sent,
                    bytes_received: p.bytes_received,
                    share: (p.bytes_sent + p.bytes_received) as f64 / all.max(1) as f64,
                })
                .collect(),
        }
    }
}

/// Returns the text of an end of a flow.
fn end(addr: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || addr.to_string(),
        |port| SocketAddr::new(addr, port).to_string(),
    )
}

/// Returns the name of a protocol (IANA, Assigned Internet Protocol Numbers), or its number.
fn protocol(number: u8) -> String {
    match number {
        1 => "icmp",
        ip::PROTO_TCP => "tcp",
        ip::PROTO_UDP => "udp",
        33 => "dccp",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "icmpv6",
        132 => "sctp",
        136 => "udplite",
        other => return other.to_string(),
    }
    .to_owned()
}

#[cfg(test)]
mod tests;
