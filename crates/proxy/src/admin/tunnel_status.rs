//! The part of the status that describes the tunnel.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use braid_tunnel::PathStats;
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
