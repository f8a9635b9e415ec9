//! The status of a box or a server as plain data, for people and machines. It is built only on request.
//!
//! The JSON form is stable (`docs/status.md`): a release may add fields, but may change or remove fields only with
//! another [`VERSION`]. Therefore some fields keep an older name in JSON.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::stats::{
    ConnStats, LossRecovery, PathStats, PathTotals, StackStats, SubflowStats,
};
use braid_engine::strategy::FlowSize;
use braid_engine::{ConnId, PathId, PathRecord, Stack};
use braid_secure::Families;
use braid_secure::channel::Agreed;
use braid_strategy::parts::flow::{self, FlowClass, Limits};
use braid_strategy::parts::quality::{self, Attributes, Highest, Weights};
use braid_wire::Instant;
use serde::{Deserialize, Serialize};

use super::tunnel_status::TunnelStatus;
use super::verdict::{Condition, Verdict};
use crate::admin::report::RENAMED_COUNTERS;
use crate::select::selection::Measured;

/// Version of the JSON form. Version 2 adds to version 1 a verdict, and the conditions of links and servers.
pub const VERSION: u32 = 2;

/// Maximum number of connections in a status. It limits the size of a busy server's answer. The value is a guess.
const MAX_SHOWN_CONNECTIONS: usize = 256;
/// Maximum number of paths of a connection in a status. Without it the answer could grow without limit, because a
/// box can join from any number of addresses. The value is a guess.
const MAX_SHOWN_PATHS: usize = 16;

/// The current status of a box or a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Box or server.
    pub role: Role,
    /// Name in the configuration.
    pub name: String,
    /// Process id. The driver fills it in.
    pub pid: u32,
    /// The health, with reasons.
    #[serde(default)]
    pub verdict: Verdict,
    /// Time since the start, s. The driver fills it in.
    pub uptime_s: f64,
    /// Strategy of connections for which no rule sets another one.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: String,
    /// For a box: the state of the interception of new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyStatus>,
    /// For a box: its servers, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerStatus>,
    /// For a box: the choice among its servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<SelectStatus>,
    /// For a box: idle connections.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "warm")]
    pub idle_pool: Option<IdlePoolStatus>,
    /// The tunnel; `None` in the answer of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelStatus>,
    /// The state of the kernel's rules, routes and settings that box or server needs.
    #[serde(default)]
    pub rules: RulesStatus,
    /// Links of a box, listening addresses of a server, in the order of the configuration.
    pub paths: Vec<PathStatus>,
    /// Number of users' connections.
    pub connections_total: usize,
    /// The connections that moved the most bytes, in descending order; at most 256.
    pub connections: Vec<ConnStatus>,
    /// Counters since the start, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The aggregation box.
    Box,
    /// The aggregation server.
    Server,
}

/// The interception of new connections at a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// True while interception is switched on (`braid on`).
    pub on: bool,
    /// True while new connections are intercepted: interception is switched on and a server is reachable.
    /// Otherwise they are forwarded without aggregation.
    #[serde(rename = "taking_in")]
    pub intercepting: bool,
}

/// State of the kernel's rules, routes and settings that box or server needs. Other programs may remove them, for
/// example a firewall that loads `flush ruleset`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum RulesStatus {
    /// All items are as the program set them up.
    #[default]
    Sound,
    /// Another program removed some items, and they were restored.
    Restored {
        /// The last restored item.
        what: String,
        /// The program that removed it, with its process id, if the kernel reports it.
        by: Option<String>,
        /// Number of restorations since the start.
        times: u64,
        /// Time of the last restoration, seconds since 1970-01-01 UTC.
        at: u64,
    },
    /// Some items are missing, so that users have no service or only a part of it.
    Missing {
        /// The missing items, and why they could not be restored.
        why: String,
    },
}

/// The numbers of connections to a server that a box opens before users need them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdlePoolStatus {
    /// Number of connections that are ready for a user.
    pub ready: usize,
    /// Number of connections that are being opened.
    pub opening: usize,
    /// Maximum number of idle connections.
    pub most: usize,
}

/// The choice of a box among its servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectStatus {
    /// The configured rule: `auto`, `bandwidth`, `delay`, `order`.
    pub by: String,
    /// The server selected by hand, if any.
    pub wanted: Option<String>,
    /// True while a measurement that an operator requested is not complete.
    #[serde(default)]
    pub measuring: bool,
}

/// A server as its box sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server's name.
    #[serde(default)]
    pub name: String,
    /// The server's addresses and port.
    pub addresses: Vec<std::net::SocketAddr>,
    /// True if the server answers over some link or was not tried yet, false if it failed over all links.
    pub reached: bool,
    /// True if some or all new connections go to this server.
    pub current: bool,
    /// The address families of the destinations that the server says it reaches.
    #[serde(default)]
    pub families: Families,
    /// The version and features of the last handshake. `None` before the first handshake, in plaintext, and if box
    /// and server have no version in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolStatus>,
    /// True if connections to the server are protected ([`crate::config::Protection`]).
    #[serde(default)]
    pub protected: bool,
    /// The best of the server's states over all links.
    #[serde(default)]
    pub condition: Condition,
    /// The server's state over each link, in the order of the links.
    #[serde(default)]
    pub over_links: Vec<Condition>,
    /// The server's measurements, with a path for each link, in the order of the links.
    #[serde(default)]
    pub measured: Measured,
    /// True if a choice by bandwidth selects this server.
    #[serde(default)]
    pub by_bandwidth: bool,
    /// True if a choice by delay selects this server.
    #[serde(default)]
    pub by_delay: bool,
    /// The destinations whose own measurements select this server, although it is not the usual one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationStatus>,
}

/// Destinations with a choice of their own among the servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationStatus {
    /// The prefix of the destinations, such as `198.51.100.0/24`.
    pub prefix: String,
    /// True for a choice by delay, false for one by bandwidth.
    pub by_delay: bool,
}

/// The version and features in use under TLS (`docs/protocol.md`, "Versions").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolStatus {
    /// The version; the first one is 1.
    pub version: u16,
    /// Numbers of the features that both ends have.
    #[serde(default)]
    pub features: Vec<u8>,
}

impl From<Agreed> for ProtocolStatus {
    fn from(agreed: Agreed) -> Self {
        let has = |bit: &u8| agreed.features >> bit & 1 != 0;
        ProtocolStatus {
            version: agreed.version,
            features: (0..32).filter(has).collect(),
        }
    }
}

/// The current status of a path, over all connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Name of the link, or listening address.
    pub name: String,
    /// The use of the path.
    pub state: PathState,
    /// For a box: the state of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// For a box: true if everything that is not TCP goes over this link.
    #[serde(default)]
    pub default: bool,
    /// For a box: true if the link is used only while no other link works.
    #[serde(default)]
    pub backup: bool,
    /// Round-trip time, ms. The established subflows have one lowest value for sent data and one for received
    /// data. The field has the larger of the two. Without a subflow, the field has the value that a box remembers,
    /// or `None`.
    pub rtt_ms: Option<f64>,
    /// Share of the bytes sent on the established subflows that were lost, 0 to 1. `None` if no bytes were sent.
    pub loss: Option<f64>,
    /// Quality of a box's link relative to its other links, from 0 to 1; lower is better. It is half the
    /// round-trip time plus half the loss, each as a share of the highest value of all links (the MP score of
    /// `maps`, with measured loss). `None` if the round-trip time is unknown or the link is not in use.
    #[serde(default)]
    pub score: Option<f64>,
    /// Highest delivery rate of the established subflows, bit/s.
    pub delivery_rate: Option<f64>,
    /// Share of the bytes received on the established subflows that were lost or reordered on the path, 0 to 1.
    /// `None` if no bytes were received.
    #[serde(default)]
    pub loss_received: Option<f64>,
    /// Recent arrival rate of payload, bit/s.
    #[serde(default)]
    pub arrival_rate: Option<f64>,
    /// Number of established subflows.
    pub subflows: u32,
    /// Payload bytes sent since the start, including copies, excluding retransmissions.
    pub bytes_sent: u64,
    /// Copies among the bytes sent: bytes that had been sent before.
    pub bytes_copied: u64,
    /// Payload bytes retransmitted on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
}

/// The use of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// In use.
    Up,
    /// In use, but no server answers over it.
    #[serde(rename = "dark")]
    NoAnswers,
    /// Not in use, because the link is metered and another link is up.
    #[serde(rename = "spared")]
    MeteredStandby,
    /// Not in use: the link has no carrier, no address or no gateway.
    Down,
    /// Switched off by an operator.
    Off,
}

/// The current status of a connection. "Up" is the direction from the user to the destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnStatus {
    /// A number that no other connection of the process has.
    pub id: u64,
    /// The user's address at a box, the user's name at a server. `None` if it is unknown.
    pub user: Option<String>,
    /// The user's destination, or `None` if it is unknown.
    pub destination: Option<String>,
    /// The name of the destination, if a box read it from TLS or HTTP while the user gave an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The version and features in use; `None` until they are known, and in plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolStatus>,
    /// The stage of the connection: `waiting` for a user, `connecting`, `handshake`, `resolving`, `open`,
    /// `closing`.
    pub state: String,
    /// Time since the connection began, s.
    pub age_s: f64,
    /// True if the connection uses Multipath TCP; false while it opens, and after a fallback to regular TCP.
    pub mptcp: bool,
    /// Size of the flow, bytes, or `None` if it is unknown.
    pub size: Option<u64>,
    /// The source of the size.
    pub size_from: SizeFrom,
    /// The class by `size`, or by the number of bytes moved so far if that number is larger.
    pub class: Class,
    /// The redundancy degree of the class (FSA-MPTCP). The strategy `fsa` sends copies according to this degree.
    pub alpha: f64,
    /// Urgency, 0 (most urgent) to 7.
    pub urgency: u8,
    /// Name of the strategy.
    pub strategy: String,
    /// Name of the congestion control of its subflows.
    #[serde(default)]
    pub congestion: String,
    /// Bytes from the user: at a box those that the server has acknowledged, at a server those received in order.
    pub bytes_up: u64,
    /// Bytes to the user: at a box those received in order, at a server those that the box has acknowledged.
    pub bytes_down: u64,
    /// The stream between box and server.
    #[serde(default)]
    pub stream: StreamStatus,
    /// One entry for each path and peer address, also for those without a subflow now; at most 16.
    pub paths: Vec<ConnPathStatus>,
}

/// The stream of a connection at this end. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamStatus {
    /// The tokens of Multipath TCP (RFC 8684 section 3.2), ours and the peer's.
    pub tokens: Option<(u32, u32)>,
    /// True if mappings carry checksums.
    pub checksum: bool,
    /// Bytes written but never sent.
    pub unsent: u64,
    /// Bytes sent but not acknowledged at the data level.
    pub outstanding: u64,
    /// Room in the peer's receive window.
    pub peer_window: u64,
    /// Room in the receive window announced here.
    pub window: u64,
    /// Bytes received behind a hole.
    pub out_of_order: u64,
    /// Bytes received more than once.
    pub duplicate: u64,
    /// Memory in use.
    pub memory: u64,
    /// Total time in which bytes were unacknowledged at the data level, s.
    pub busy_s: f64,
    /// The part of `busy_s` in which new bytes waited for the peer's window, s.
    pub window_limited_s: f64,
    /// ADD_ADDR options sent, including repeated ones, without echoes.
    pub add_addr_sent: u32,
    /// ADD_ADDR options received, without echoes.
    pub add_addr_received: u32,
    /// REMOVE_ADDR options sent, each with one or several addresses.
    pub remove_addr_sent: u32,
    /// REMOVE_ADDR options received.
    pub remove_addr_received: u32,
}

impl From<&ConnStats> for StreamStatus {
    fn from(stats: &ConnStats) -> Self {
        StreamStatus {
            tokens: stats.tokens,
            checksum: stats.checksum,
            unsent: stats.unsent.iter().sum(),
            outstanding: stats.snd_nxt - stats.snd_una,
            peer_window: stats.peer_window,
            window: stats.recv_window,
            out_of_order: stats.out_of_order,
            duplicate: stats.duplicate,
            memory: stats.memory,
            busy_s: stats.busy.as_secs_f64(),
            window_limited_s: stats.window_limited.as_secs_f64(),
            add_addr_sent: stats.addresses.add_addr_sent,
            add_addr_received: stats.addresses.add_addr_received,
            remove_addr_sent: stats.addresses.remove_addr_sent,
            remove_addr_received: stats.addresses.remove_addr_received,
        }
    }
}

/// The class of a flow by its size (FSA-MPTCP).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// At most 4 KiB.
    Mosquito,
    /// More than 4 KiB and less than 1 MiB.
    Mouse,
    /// 1 MiB or more.
    Elephant,
}

/// The source of a flow's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeFrom {
    /// The size is unknown.
    Unknown,
    /// An estimate.
    Predicted,
    /// Read from the protocol, such as HTTP's `Content-Length`.
    Read,
    /// Declared by the application.
    Declared,
}

/// The status of a connection on one path, towards one peer address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnPathStatus {
    /// Name of the path.
    pub path: String,
    /// Address of the peer.
    pub remote: IpAddr,
    /// The state of the newest subflow on this path.
    pub state: SubflowState,
    /// Smoothed round-trip time, ms.
    pub rtt_ms: Option<f64>,
    /// Share of the bytes sent that were lost, 0 to 1. `None` if no bytes were sent.
    pub loss: Option<f64>,
    /// Payload bytes sent, including copies, excluding retransmissions.
    pub bytes_sent: u64,
    /// Copies among the bytes sent: bytes that had been sent before.
    pub bytes_copied: u64,
    /// Payload bytes retransmitted on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Redundant bytes received, in order or not. Another path had delivered them before. In a segment that is
    /// partly new, the bytes that this path had delivered before count too.
    #[serde(default)]
    pub bytes_duplicate: u64,
    /// The newest subflow on this path.
    #[serde(default)]
    pub subflow: Option<SubflowStatus>,
}

/// A subflow, with the values of Linux's `tcp_info`: sizes in bytes, rates in bit/s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubflowStatus {
    /// Address and port at this end.
    pub local: SocketAddr,
    /// Address and port at the peer.
    pub remote: SocketAddr,
    /// The state of loss recovery: `open` without a loss, `fast` or `timeout` while losses are repaired.
    pub recovery: String,
    /// Mean deviation of the round-trip time, ms.
    pub rtt_var_ms: Option<f64>,
    /// Lowest round-trip time, ms.
    pub rtt_min_ms: Option<f64>,
    /// Retransmission timeout, ms.
    pub rto_ms: Option<f64>,
    /// Consecutive retransmission timeouts.
    pub backoff: u32,
    /// Congestion window.
    pub cwnd: u64,
    /// Slow-start threshold; `None` before the first loss.
    pub ssthresh: Option<u64>,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes that the peer has received behind a hole.
    pub sacked: u64,
    /// Bytes lost and not yet retransmitted.
    pub lost: u64,
    /// Room in the peer's receive window.
    pub peer_window: u64,
    /// Maximum size of a packet's payload.
    pub mss: u32,
    /// Maximum size of a packet on the path.
    pub path_mtu: u32,
    /// Rate at which packets leave.
    pub pacing_rate: u64,
    /// Rate at which packets arrive at the peer.
    pub delivery_rate: u64,
    /// True if both ends use selective acknowledgements.
    pub sack: bool,
    /// True if both ends use timestamps.
    pub timestamps: bool,
    /// True if routers may mark packets sent: both ends use ECN, and the congestion control responds to marks.
    pub ecn: bool,
    /// Packets with payload sent, without retransmissions.
    pub packets_sent: u64,
    /// Retransmitted packets.
    pub packets_retransmitted: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Spurious retransmission timeouts.
    pub spurious_rtos: u64,
    /// Reductions of the window because of congestion marks.
    pub mark_reductions: u64,
    /// Bytes received behind a hole of the subflow.
    pub out_of_order: u64,
    /// Redundant bytes of the stream received on this subflow.
    #[serde(default)]
    pub duplicate: u64,
}

impl From<&SubflowStats> for SubflowStatus {
    fn from(s: &SubflowStats) -> Self {
        let recovery = match s.recovery {
            LossRecovery::Open => "open",
            LossRecovery::Fast => "fast",
            LossRecovery::Timeout => "timeout",
        };
        SubflowStatus {
            local: s.local,
            remote: s.remote,
            recovery: recovery.to_owned(),
            rtt_var_ms: milliseconds(s.rttvar),
            rtt_min_ms: milliseconds(s.min_rtt),
            rto_ms: milliseconds(s.rto),
            backoff: s.backoff,
            cwnd: s.cwnd,
            // The engine has the highest value until the first loss sets the threshold.
            ssthresh: (s.ssthresh < u64::MAX).then_some(s.ssthresh),
            in_flight: s.in_flight,
            sacked: s.sacked,
            lost: s.lost,
            peer_window: s.peer_window,
            mss: s.mss,
            path_mtu: s.path_mtu,
            pacing_rate: s.pacing_rate.saturating_mul(8),
            delivery_rate: s.delivery_rate.saturating_mul(8),
            sack: s.sack,
            timestamps: s.timestamps,
            ecn: s.ecn,
            packets_sent: s.traffic.packets_sent,
            packets_retransmitted: s.traffic.packets_retransmitted,
            rtos: s.traffic.rtos,
            spurious_rtos: s.traffic.spurious_rtos,
            mark_reductions: s.traffic.mark_reductions,
            out_of_order: s.out_of_order,
            duplicate: s.duplicate,
        }
    }
}

/// The state of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubflowState {
    /// The subflow carries data.
    Up,
    /// The subflow carries no data while another one works.
    Backup,
    /// The subflow has potentially failed: it timed out, or its link is down.
    Stale,
    /// The handshake of the subflow is not complete.
    Opening,
    /// The subflow is closed.
    Gone,
}

/// The parts of a core's status that follow from its configuration.
#[derive(Debug)]
pub(crate) struct CoreInfo {
    pub(crate) name: String,
    pub(crate) strategy: String,
    pub(crate) congestion: &'static str,
    pub(crate) rules: RulesStatus,
}

impl CoreInfo {
    /// Returns the status of a core without paths and connections.
    pub(crate) fn status(&self, role: Role) -> Status {
        Status {
            version: VERSION,
            role,
            name: self.name.clone(),
            // The driver fills in process id and uptime, and the core the other parts.
            pid: 0,
            verdict: Verdict::default(),
            uptime_s: 0.0,
            strategy: self.strategy.clone(),
            congestion: self.congestion.to_owned(),
            proxy: None,
            servers: Vec::new(),
            select: None,
            idle_pool: None,
            tunnel: None,
            rules: self.rules.clone(),
            paths: Vec::new(),
            connections_total: 0,
            connections: Vec::new(),
            counters: BTreeMap::new(),
        }
    }
}

/// The parts of a connection's status that the engine does not know.
pub(crate) struct SessionInfo {
    pub(crate) user: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) agreed: Option<Agreed>,
    pub(crate) state: &'static str,
    pub(crate) age: Duration,
    /// True if the bytes sent on the connection go up, as at a box. At a server they go down.
    pub(crate) sends_up: bool,
}

/// Returns the status of the connections for which `session_info` returns something, those with the most bytes
/// first. `path_name` returns the name of a path.
pub(crate) fn connections(
    stack: &Stack,
    session_info: impl Fn(ConnId) -> Option<SessionInfo>,
    path_name: impl Fn(PathId) -> String,
) -> Vec<ConnStatus> {
    let mut all: Vec<(ConnId, u64)> = stack.conn_bytes().collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    // Connections for which the core has no session, such as a box's probes, are left out.
    let known = all
        .iter()
        .filter_map(|(c, _)| Some((*c, session_info(*c)?)));
    known
        .filter_map(|(conn, session)| connection(stack, conn, session, &path_name))
        .take(MAX_SHOWN_CONNECTIONS)
        .collect()
}

fn connection(
    stack: &Stack,
    conn: ConnId,
    session: SessionInfo,
    path_name: impl Fn(PathId) -> String,
) -> Option<ConnStatus> {
    let stats = stack.conn_stats(conn)?;
    let subflows = stack.subflows(conn);
    // The first number counts the bytes sent, the second the bytes received.
    let (mut up, mut down) = stats.flow_moved;
    if !session.sends_up {
        core::mem::swap(&mut up, &mut down);
    }
    let limits = Limits::default();
    let size = flow::size(stats.flow_size, up.max(down));
    let on_path = |p: &PathStats| {
        let is_on_path = |s: &&SubflowStats| (s.path, s.remote.ip()) == (p.path, p.remote);
        // The newest subflow is last.
        ConnPathStatus::new(p, path_name(p.path), subflows.iter().rev().find(is_on_path))
    };
    Some(ConnStatus {
        id: conn.as_u64(),
        user: session.user,
        destination: session.destination,
        host: session.host,
        protocol: session.agreed.map(ProtocolStatus::from),
        state: session.state.to_owned(),
        age_s: session.age.as_secs_f64(),
        mptcp: stack.is_mptcp(conn) == Some(true),
        size: stats.flow_size.bytes(),
        size_from: stats.flow_size.into(),
        class: limits.class(size).into(),
        alpha: limits.redundancy(size),
        urgency: stats.urgency.level(),
        strategy: stats.strategy.to_owned(),
        congestion: stats.congestion.to_owned(),
        bytes_up: up,
        bytes_down: down,
        stream: StreamStatus::from(&stats),
        paths: stats
            .paths
            .iter()
            .take(MAX_SHOWN_PATHS)
            .map(on_path)
            .collect(),
    })
}

impl ConnPathStatus {
    fn new(totals: &PathStats, path: String, newest: Option<&SubflowStats>) -> Self {
        let traffic = &totals.moved.traffic;
        ConnPathStatus {
            path,
            remote: totals.remote,
            state: newest.map_or(SubflowState::Gone, SubflowState::from),
            rtt_ms: newest.and_then(|s| milliseconds(s.srtt)),
            loss: (traffic.bytes_sent > 0).then(|| traffic.loss().into()),
            bytes_sent: traffic.bytes_sent,
            bytes_copied: traffic.bytes_copied,
            bytes_retransmitted: traffic.bytes_retransmitted,
            bytes_received: totals.moved.bytes_received,
            bytes_duplicate: totals.moved.duplicate,
            subflow: newest.map(SubflowStatus::from),
        }
    }
}

impl PathStatus {
    /// Returns the status of a path that is up.
    pub(crate) fn new(name: String, totals: &PathTotals) -> Self {
        let traffic = &totals.moved.traffic;
        let now = &totals.traffic_now;
        let bits = totals.delivery_rate as f64 * 8.0;
        PathStatus {
            name,
            state: PathState::Up,
            condition: None,
            default: false,
            backup: false,
            // `srtt` includes the queue of sent data only, `arrival_rtt` the queue of received data only.
            rtt_ms: milliseconds(totals.srtt.max(totals.arrival_rtt)),
            loss: (now.bytes_sent > 0).then(|| now.loss().into()),
            score: None,
            delivery_rate: (bits > 0.0).then_some(bits),
            loss_received: (totals.received_now > 0)
                .then(|| totals.late_now as f64 / totals.received_now as f64),
            arrival_rate: (totals.arrival_rate > 0).then_some(totals.arrival_rate as f64 * 8.0),
            subflows: totals.subflows,
            bytes_sent: traffic.bytes_sent,
            bytes_copied: traffic.bytes_copied,
            bytes_retransmitted: traffic.bytes_retransmitted,
            bytes_received: totals.moved.bytes_received,
        }
    }

    /// Takes values that no current subflow provides from the record of earlier subflows.
    pub(crate) fn fill_in(&mut self, record: Option<&PathRecord>) {
        let Some(record) = record else { return };
        let bits = record.delivery_rate as f64 * 8.0;
        let lost = record.bytes_lost as f64 / record.bytes_sent as f64;
        self.rtt_ms = self.rtt_ms.or(milliseconds(record.srtt));
        self.delivery_rate = self.delivery_rate.or((bits > 0.0).then_some(bits));
        self.loss = self
            .loss
            .or((record.bytes_sent > 0).then_some(lost.min(1.0)));
    }
}

impl From<&SubflowStats> for SubflowState {
    fn from(subflow: &SubflowStats) -> Self {
        match subflow {
            s if !s.established => SubflowState::Opening,
            s if s.stale => SubflowState::Stale,
            s if s.backup => SubflowState::Backup,
            _ => SubflowState::Up,
        }
    }
}

/// Sets the score of the paths in use, each relative to the others.
pub(crate) fn score(paths: &mut [PathStatus]) {
    let attributes = |path: &PathStatus| {
        let loss = path.loss.unwrap_or(0.0);
        let rtt = path.rtt_ms.filter(|_| path.state == PathState::Up)?;
        Some(Attributes { rtt, loss })
    };
    // `Highest` expires old values by their time. Here all values are current, so any time will do.
    let known = paths.iter().filter_map(attributes);
    let highest = Highest::default().with(Instant::ZERO, known);
    let weights = Weights {
        rtt: 0.5,
        loss: 0.5,
    };
    for path in paths {
        path.score = attributes(path).map(|own| quality::score(weights, own, highest));
    }
}

impl From<FlowClass> for Class {
    fn from(class: FlowClass) -> Self {
        match class {
            FlowClass::Mosquito => Class::Mosquito,
            FlowClass::Mouse => Class::Mouse,
            FlowClass::Elephant => Class::Elephant,
        }
    }
}

impl From<FlowSize> for SizeFrom {
    fn from(size: FlowSize) -> Self {
        match size {
            FlowSize::Unknown => SizeFrom::Unknown,
            FlowSize::Predicted(_) => SizeFrom::Predicted,
            FlowSize::Read(_) => SizeFrom::Read,
            FlowSize::Declared(_) => SizeFrom::Declared,
        }
    }
}

/// Converts a time to milliseconds. Returns `None` for zero, by which the engine marks a time that was never
/// measured.
pub(crate) fn milliseconds(time: Duration) -> Option<f64> {
    (!time.is_zero()).then_some(time.as_secs_f64() * 1e3)
}

/// Returns the counters of a core and those of the engine, by name. A renamed counter is included by its old name
/// too, so that scripts continue to work for one version.
pub(crate) fn counters(
    counters: impl Iterator<Item = (&'static str, u64)>,
    engine: &StackStats,
) -> BTreeMap<String, u64> {
    let engine = [
        ("malformed", engine.malformed),
        ("bad_checksum", engine.bad_checksum),
        ("strays", engine.out_of_the_blue),
        ("syns_dropped", engine.syns_dropped),
        ("syn_cookies", engine.syn_cookies),
        ("reclaimed", engine.reclaimed),
        ("joins_refused", engine.joins_refused),
        ("joins_forged", engine.joins_forged),
    ];
    let all: BTreeMap<&str, u64> = counters.chain(engine).collect();
    let renamed = RENAMED_COUNTERS.iter();
    let renamed = renamed.filter_map(|(old, new)| Some((*old, *all.get(new)?)));
    let all = all.iter().map(|(name, n)| (*name, *n));
    all.chain(renamed)
        .map(|(name, n)| (name.to_owned(), n))
        .collect()
}
