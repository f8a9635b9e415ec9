//! Deserialization of the table `[expert]` of each file, of the tables that both files have, and of settings of
//! the last version that have no successor.

use braid_engine::Ecn;
use serde::Deserialize;
use toml::Spanned;

use super::measuring::{QuietHours, Share};
use super::types::{self, Count, Size, Time, UserTimeout};

/// The table `[timeouts]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timeouts {
    pub user_timeout: Option<UserTimeout>,
    pub drain: Option<Time>,
}

/// The table `[limits]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub memory: Option<Size>,
}

/// The table `[expert]` of a box.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfBox {
    #[serde(default)]
    pub checksum: bool,
    #[serde(default, deserialize_with = "types::ecn")]
    pub ecn: Ecn,
    pub idle_timeout: Option<Time>,
    pub connection_buffer: Option<Size>,
    pub max_connections: Option<Count>,
    pub max_connections_per_host: Option<Count>,
    pub idle_pool_size: Option<Count<0>>,
    #[serde(default)]
    pub idle_pool_metered: bool,
    pub idle_probe_interval: Option<Time>,
    pub max_measurement_interval: Option<Spanned<Time>>,
    pub server_change_gain: Option<Share>,
    pub measurement_quiet_hours: Option<QuietHours>,
}

/// The table `[expert]` of a server.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfServer {
    #[serde(default)]
    pub checksum: bool,
    #[serde(default, deserialize_with = "types::ecn")]
    pub ecn: Ecn,
    pub idle_timeout: Option<Time>,
    pub connection_buffer: Option<Size>,
    pub max_connections: Option<Count>,
    pub max_connections_per_user: Option<Count>,
    #[serde(default)]
    pub announce: bool,
    pub deny_join_initial: Option<Spanned<bool>>,
    pub time_window: Option<Spanned<Time>>,
}

/// Settings of a box in the last version that have no successor.
#[derive(Deserialize)]
pub(super) struct RetiredOfBox {
    #[serde(rename = "timeouts.connect")]
    pub connect: Option<Time>,
    #[serde(rename = "timeouts.attempt")]
    pub attempt: Option<Time>,
    #[serde(rename = "timeouts.half_closed")]
    pub half_closed: Option<Time>,
    #[serde(rename = "limits.handshakes")]
    pub handshakes: Option<Count>,
    #[serde(rename = "probing.busy")]
    pub probing_busy: Option<Time>,
    #[serde(rename = "probing.failing")]
    pub probing_failing: Option<Time>,
    #[serde(rename = "probing.timeout")]
    pub probing_timeout: Option<Time>,
    #[serde(rename = "measuring.least")]
    pub measuring_least: Option<Spanned<Time>>,
    #[serde(rename = "warm.idle")]
    pub warm_idle: Option<Time>,
    #[serde(rename = "warm.age")]
    pub warm_age: Option<Time>,
}

/// Settings of a server in the last version that have no successor.
#[derive(Deserialize)]
pub(super) struct RetiredOfServer {
    #[serde(rename = "timeouts.handshake")]
    pub handshake: Option<Time>,
    #[serde(rename = "timeouts.waiting")]
    pub waiting_time: Option<Time>,
    #[serde(rename = "timeouts.connect")]
    pub connect: Option<Time>,
    #[serde(rename = "timeouts.half_closed")]
    pub half_closed: Option<Time>,
    #[serde(rename = "limits.handshakes")]
    pub handshakes: Option<Count>,
    #[serde(rename = "limits.failures")]
    pub failures: Option<Count>,
    #[serde(rename = "limits.waiting")]
    pub waiting: Option<Count>,
    #[serde(rename = "limits.lookups")]
    pub lookups: Option<Count>,
    #[serde(rename = "limits.trains")]
    pub trains: Option<Count>,
    #[serde(rename = "limits.replay")]
    pub replay: Option<Count>,
}
