//! What a box or a server is doing, as plain data for people and machines. It is put together when
//! somebody asks and costs nothing otherwise.
//!
//! As JSON it is a promise (`docs/status.md`): fields may be added, none is changed or taken away
//! without another [`VERSION`].

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

use super::verdict::{Condition, Verdict};
use crate::select::selection::Measured;

/// Version of the form. Version 2 has all of version 1, a verdict, and the conditions of links and servers.
pub const VERSION: u32 = 2;

/// Most connections that are shown.
const MAX_CONNECTIONS: usize = 256;
/// Most paths of a connection that are shown; a box might join from ever new addresses.
const MAX_PATHS: usize = 16;

/// Box or server, now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Which of the two.
    pub role: Role,
    /// Name in the configuration.
    pub name: String,
    /// Process id, which the driver knows.
    pub pid: u32,
    /// Whether it works, and why not.
    #[serde(default)]
    pub verdict: Verdict,
    /// Time since the start, s, which the driver knows.
    pub uptime_s: f64,
    /// Strategy of connections for which nothing else is wished.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: String,
    /// Of a box: what becomes of new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyStatus>,
    /// Of a box: its servers, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerStatus>,
    /// Of a box: how it chooses among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<SelectStatus>,
    /// Of a box: connections that wait for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmStatus>,
    /// Whether the rules, routes and settings of the kernel that it needs are in force.
    #[serde(default)]
    pub rules: RulesStatus,
    /// Links of a box, listening addresses of a server, in the order of the configuration.
    pub paths: Vec<PathStatus>,
    /// How many connections of users there are.
    pub connections_total: usize,
    /// The connections that moved most, the first most of all; at most 256.
    pub connections: Vec<ConnStatus>,
    /// What was counted since the start, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Box or server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The aggregation box.
    Box,
    /// The aggregation server.
    Server,
}

/// What becomes of new connections at a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// The switch is on.
    pub on: bool,
    /// New connections are taken in: the switch is on and a server is reached. Otherwise they are
    /// forwarded unjoined.
    pub taking_in: bool,
}

/// What became of the rules, routes and settings of the kernel that box or server needs. Other programs may
/// remove them, as a firewall does that is loaded by `flush ruleset`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum RulesStatus {
    /// They are as they were set up.
    #[default]
    Sound,
    /// Some were removed, and put back.
    Restored {
        /// What was put back last.
        what: String,
        /// The program that removed it, and its process id, where the kernel told.
        by: Option<String>,
        /// How often something was put back since the start.
        times: u64,
        /// When last, seconds since 1970-01-01 UTC.
        at: u64,
    },
    /// Some are missing: users have no service, or not all of it.
    Missing {
        /// What is missing, and why it could not be put back.
        why: String,
    },
}

/// Connections to a server that are opened before users ask for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStatus {
    /// A user could have them now.
    pub ready: usize,
    /// They are being opened.
    pub opening: usize,
    /// Most there may be.
    pub most: usize,
}

/// How a box chooses among its servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectStatus {
    /// As configured: `auto`, `bandwidth`, `delay`, `order`.
    pub by: String,
    /// The server that was asked for by name, if one was.
    pub wanted: Option<String>,
    /// What was asked to be measured is not through.
    #[serde(default)]
    pub measuring: bool,
}

/// A server as its box sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its addresses and port.
    pub addresses: Vec<std::net::SocketAddr>,
    /// Over some link, or not known yet; `false` where all of them failed.
    pub reached: bool,
    /// New connections go there, all of them or some.
    pub current: bool,
    /// The address families in which it reaches destinations, as it says.
    #[serde(default)]
    pub families: Families,
    /// What box and server agreed to speak last; `None` before their first handshake, without protection, and
    /// where they have no version in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolStatus>,
    /// What is said to it is protected ([`crate::config::Protection`]).
    #[serde(default)]
    pub protected: bool,
    /// Its state over the link where that is best.
    #[serde(default)]
    pub condition: Condition,
    /// Its state over each link, in their order.
    #[serde(default)]
    pub over_links: Vec<Condition>,
    /// What was measured: a path for each link, in their order.
    #[serde(default)]
    pub measured: Measured,
    /// It is the one by bandwidth.
    #[serde(default)]
    pub by_bandwidth: bool,
    /// It is the one by delay.
    #[serde(default)]
    pub by_delay: bool,
}

/// What both ends of a connection speak under TLS (`docs/protocol.md`, "Versions").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolStatus {
    /// The version, from 1.
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

/// A path, now, with all connections together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Name of the link, or listening address.
    pub name: String,
    /// Whether it is used.
    pub state: PathState,
    /// Of a box: the state of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// Of a box: what is not TCP goes over this link.
    #[serde(default)]
    pub default: bool,
    /// Of a box: this link is used while no other works, if it is up.
    #[serde(default)]
    pub backup: bool,
    /// Round trip, ms, of the direction in which it is longer: the lowest of the subflows there; where
    /// there are none, what a box remembers of earlier ones. `None` where nothing is known.
    pub rtt_ms: Option<f64>,
    /// Share of the bytes sent on the same subflows that were lost, 0 to 1; `None` where none were
    /// sent.
    pub loss: Option<f64>,
    /// Quality of a box's link beside its other links, from 0 to 1, the lower the better: half the
    /// round trip and half the loss, each as a share of the highest there is (the MP score of `maps`,
    /// with measured loss). `None` where the round trip is not known or the link is not used.
    #[serde(default)]
    pub score: Option<f64>,
    /// Rate at which the far end got what was sent, bit/s: the highest of the same subflows.
    pub delivery_rate: Option<f64>,
    /// Share of the bytes received on the subflows there that were lost on the way or overtaken, 0 to 1;
    /// `None` where none were received.
    #[serde(default)]
    pub loss_received: Option<f64>,
    /// Rate at which payload arrived of late, bit/s.
    #[serde(default)]
    pub arrival_rate: Option<f64>,
    /// Established subflows.
    pub subflows: u32,
    /// Payload bytes sent since the start, copies included and retransmissions excluded.
    pub bytes_sent: u64,
    /// Of these, copies of bytes that had been sent before.
    pub bytes_copied: u64,
    /// Payload bytes sent again on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
}

/// Whether a path is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// It is used.
    Up,
    /// It is used, and carries no answers of any server.
    Dark,
    /// Metered, and others suffice.
    Spared,
    /// No carrier, no address or no gateway.
    Down,
    /// Switched off.
    Off,
}

/// A connection, now. Its directions are those of the user: up is from the user to the destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnStatus {
    /// A number that no other connection of the process has.
    pub id: u64,
    /// At a box the user's address, at a server the user's name, where it is known.
    pub user: Option<String>,
    /// Where the user wants to go, where it is known.
    pub destination: Option<String>,
    /// Name of the destination where a box knows it beside the address, from TLS or HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What both ends speak; `None` until that is known, and without protection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolStatus>,
    /// How far it has come: `waiting` for a user, `connecting`, `handshake`, `resolving`, `open`,
    /// `closing`.
    pub state: String,
    /// Time since it began, s.
    pub age_s: f64,
    /// It runs over Multipath TCP; `false` after a fallback to regular TCP, and while it opens.
    pub mptcp: bool,
    /// Size of the flow, bytes, where one is known.
    pub size: Option<u64>,
    /// How that is known.
    pub size_from: SizeFrom,
    /// What it is by that size, or by the bytes there are so far where these are more.
    pub class: Class,
    /// The redundancy degree that goes with it (FSA-MPTCP): the strategy `fsa` copies by it.
    pub alpha: f64,
    /// 0, most urgent, to 7.
    pub urgency: u8,
    /// Name of the strategy.
    pub strategy: String,
    /// Name of the congestion control of its subflows.
    #[serde(default)]
    pub congestion: String,
    /// Bytes of the user that have arrived at the far end of the connection.
    pub bytes_up: u64,
    /// Bytes for the user that have arrived there.
    pub bytes_down: u64,
    /// The stream between box and server.
    #[serde(default)]
    pub stream: StreamStatus,
    /// By path and far end; those that moved nothing too, at most 16.
    pub paths: Vec<ConnPathStatus>,
}

/// The stream of a connection, seen from this end, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamStatus {
    /// The tokens of Multipath TCP, ours and the far end's.
    pub tokens: Option<(u32, u32)>,
    /// Mappings carry checksums.
    pub checksum: bool,
    /// Written here and never sent.
    pub unsent: u64,
    /// Sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// What the far end's window still takes.
    pub peer_window: u64,
    /// What the window announced here still takes.
    pub window: u64,
    /// Received behind a hole.
    pub out_of_order: u64,
    /// Received although it was here.
    pub duplicate: u64,
    /// Memory held.
    pub memory: u64,
    /// Time with bytes written and not acknowledged at the data level, s.
    pub busy_s: f64,
    /// Of it, time with new bytes that waited for the far end's window, s.
    pub window_limited_s: f64,
    /// Options that told of addresses, repeated ones included, echoes left out.
    pub add_addr_sent: u32,
    /// The same of the far end's.
    pub add_addr_received: u32,
    /// Options that withdrew addresses, one or several each.
    pub remove_addr_sent: u32,
    /// The same of the far end's.
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

/// What a flow is by its size (FSA-MPTCP).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// At most 4 KiB.
    Mosquito,
    /// Less than 1 MiB.
    Mouse,
    /// Larger.
    Elephant,
}

/// How the size of a flow is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeFrom {
    /// It is not.
    Unknown,
    /// An estimate.
    Predicted,
    /// The protocol tells, such as HTTP's `Content-Length`.
    Read,
    /// The application said so.
    Declared,
}

/// What a connection does on one path, towards one address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnPathStatus {
    /// Name of the path.
    pub path: String,
    /// Address of the far end.
    pub remote: IpAddr,
    /// What the subflow there is doing.
    pub state: SubflowState,
    /// Smoothed round trip, ms.
    pub rtt_ms: Option<f64>,
    /// Share of bytes sent that were lost, 0 to 1; `None` where none were sent.
    pub loss: Option<f64>,
    /// Payload bytes sent, copies included and retransmissions excluded.
    pub bytes_sent: u64,
    /// Of these, copies of bytes that had been sent before.
    pub bytes_copied: u64,
    /// Payload bytes sent again on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Bytes that came here, in order or not, although another path had brought them or, of a segment
    /// that is in part new, this one.
    #[serde(default)]
    pub bytes_duplicate: u64,
    /// The newest subflow there.
    #[serde(default)]
    pub subflow: Option<SubflowStatus>,
}

/// A subflow, as the kernel's `tcp_info` has it: sizes in bytes, rates in bit/s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubflowStatus {
    /// Address and port at this end.
    pub local: SocketAddr,
    /// Address and port at the far end.
    pub remote: SocketAddr,
    /// `open`, or `fast` or `timeout` while losses are repaired.
    pub recovery: String,
    /// Mean deviation of the round trip, ms.
    pub rtt_var_ms: Option<f64>,
    /// Lowest round trip, ms.
    pub rtt_min_ms: Option<f64>,
    /// Retransmission timeout, ms.
    pub rto_ms: Option<f64>,
    /// Timeouts in a row.
    pub backoff: u32,
    /// Congestion window.
    pub cwnd: u64,
    /// Slow-start threshold; `None` before the first loss.
    pub ssthresh: Option<u64>,
    /// In flight.
    pub in_flight: u64,
    /// Arrived behind a hole.
    pub sacked: u64,
    /// Lost and not sent again yet.
    pub lost: u64,
    /// What the far end's window still takes here.
    pub peer_window: u64,
    /// Payload of a packet.
    pub mss: u32,
    /// Largest packet of the path.
    pub path_mtu: u32,
    /// Rate at which packets leave.
    pub pacing_rate: u64,
    /// Rate at which they arrive.
    pub delivery_rate: u64,
    /// Selective acknowledgements are agreed.
    pub sack: bool,
    /// Timestamps are agreed.
    pub timestamps: bool,
    /// What is sent may be marked: that is agreed, and the congestion control answers marks.
    pub ecn: bool,
    /// Packets with payload, retransmissions excluded.
    pub packets_sent: u64,
    /// Packets sent again.
    pub packets_retransmitted: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Of these, those that turned out needless.
    pub spurious_rtos: u64,
    /// Reductions of the window because of congestion marks.
    pub mark_reductions: u64,
    /// Received behind a hole of the subflow.
    pub out_of_order: u64,
    /// Bytes of the stream that came on it although they were here.
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

/// What a subflow is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubflowState {
    /// It carries data.
    Up,
    /// It waits until no other works.
    Backup,
    /// It timed out, or its link is down: potentially failed.
    Stale,
    /// Its handshake is under way.
    Opening,
    /// There is none any more.
    Gone,
}

/// What the configuration says of a core.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) strategy: String,
    pub(crate) congestion: &'static str,
    pub(crate) rules: RulesStatus,
}

impl About {
    /// The status of a core without paths and connections.
    pub(crate) fn status(&self, role: Role) -> Status {
        Status {
            version: VERSION,
            role,
            name: self.name.clone(),
            pid: 0,
            verdict: Verdict::default(),
            uptime_s: 0.0,
            strategy: self.strategy.clone(),
            congestion: self.congestion.to_owned(),
            proxy: None,
            servers: Vec::new(),
            select: None,
            warm: None,
            rules: self.rules.clone(),
            paths: Vec::new(),
            connections_total: 0,
            connections: Vec::new(),
            counters: BTreeMap::new(),
        }
    }
}

/// What a core knows of a connection and the engine does not.
pub(crate) struct Session {
    pub(crate) user: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) agreed: Option<Agreed>,
    pub(crate) state: &'static str,
    pub(crate) age: Duration,
    /// What is sent goes up, as at a box.
    pub(crate) sends_up: bool,
}

/// Shows the connections that moved most of those that `session` knows, with the names that
/// `path_name` has for paths.
pub(crate) fn connections(
    stack: &Stack,
    session: impl Fn(ConnId) -> Option<Session>,
    path_name: impl Fn(PathId) -> String,
) -> Vec<ConnStatus> {
    let mut all: Vec<(ConnId, u64)> = stack.conn_bytes().collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let known = all.iter().filter_map(|(c, _)| Some((*c, session(*c)?)));
    known
        .filter_map(|(conn, session)| connection(stack, conn, session, &path_name))
        .take(MAX_CONNECTIONS)
        .collect()
}

fn connection(
    stack: &Stack,
    conn: ConnId,
    session: Session,
    path_name: impl Fn(PathId) -> String,
) -> Option<ConnStatus> {
    let stats = stack.conn_stats(conn)?;
    let subflows = stack.subflows(conn);
    let (mut up, mut down) = stats.flow_moved;
    if !session.sends_up {
        core::mem::swap(&mut up, &mut down);
    }
    let limits = Limits::default();
    let size = flow::size(stats.flow_size, up.max(down));
    let on_path = |p: &PathStats| {
        let here = |s: &&SubflowStats| (s.path, s.remote.ip()) == (p.path, p.remote);
        ConnPathStatus::new(p, path_name(p.path), subflows.iter().rev().find(here))
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
        paths: stats.paths.iter().take(MAX_PATHS).map(on_path).collect(),
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
    /// A path that is up.
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
            // Each tells of the queue of one direction only.
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

    /// Where no subflow says anything now, what was remembered of earlier ones does.
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

/// Scores the paths that are used against each other.
pub(crate) fn score(paths: &mut [PathStatus]) {
    let attributes = |path: &PathStatus| {
        let loss = path.loss.unwrap_or(0.0);
        let rtt = path.rtt_ms.filter(|_| path.state == PathState::Up)?;
        Some(Attributes { rtt, loss })
    };
    // Of now: no time matters.
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

/// `None` of a time that was never measured.
pub(crate) fn milliseconds(time: Duration) -> Option<f64> {
    (!time.is_zero()).then_some(time.as_secs_f64() * 1e3)
}

/// Counters by name, and those of the engine of what nobody who keeps to the protocol sends.
pub(crate) fn counters(
    counters: impl Iterator<Item = (&'static str, u64)>,
    engine: &StackStats,
) -> BTreeMap<String, u64> {
    let engine = [
        ("malformed", engine.malformed),
        ("bad_checksum", engine.bad_checksum),
        ("strays", engine.strays),
        ("syns_dropped", engine.syns_dropped),
        ("syn_cookies", engine.syn_cookies),
        ("reclaimed", engine.reclaimed),
        ("joins_refused", engine.joins_refused),
        ("joins_forged", engine.joins_forged),
    ];
    let all = counters.chain(engine);
    all.map(|(name, n)| (name.to_owned(), n)).collect()
}
