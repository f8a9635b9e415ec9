//! Settings of a [`crate::Stack`] and of its paths.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::Urgency;
use crate::cc::{Algorithm, LEDBAT};
use crate::non_exhaustive::NonExhaustive;

/// The settings of a stack; every bound of the engine is here.
///
/// Versions to come have more settings, so begin with the defaults:
///
/// ```
/// use braid_engine::Config;
///
/// let config = Config {
///     memory: 64 << 20,
///     max_connections: 1_000,
///     ..Config::default()
/// };
/// assert_eq!(config.max_subflows, 8);
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    /// The largest IP packet handed to the driver, in bytes: up to 65,521 if the device segments (GSO),
    /// otherwise the link MTU.
    pub max_transmit: usize,
    /// Set if the device completes TCP checksums; otherwise the engine computes them.
    pub checksum_offload: bool,
    /// The ports that subflows are opened from if the application names none; not empty.
    pub ports: RangeInclusive<u16>,
    /// The initial congestion window in segments, at least 1: 10 (RFC 6928), 3, or 2 (RFC 2581).
    pub initial_window: u32,
    /// The most segments in flight on a subflow, whatever congestion control allows; `None` sets no bound.
    /// At least 1.
    pub max_cwnd: Option<u32>,
    /// The delay of acknowledgements.
    pub delayed_ack: DelayedAck,
    /// The use of ECN, by which queues mark packets instead of dropping them.
    pub ecn: Ecn,
    /// The congestion control of new subflows.
    pub congestion: Algorithm,
    /// The congestion control of connections that yield to all others ([`Urgency::LEAST_URGENT`]).
    pub background: Algorithm,
    /// The most bytes that a connection buffers for sending, acknowledged ones excluded. It keeps up to as
    /// many acknowledged bytes (at least 256 KiB) that a subflow may still have to retransmit.
    pub send_buffer: usize,
    /// The most bytes that a connection buffers for the reader, which is the largest window announced. Less
    /// than 64 KiB is possible too, and is then the window from the start.
    pub recv_buffer: usize,
    /// The most bytes of payload that all connections together may hold. An eighth is reserved for data
    /// received in order, and half is for shares of 128 KiB that every writer gets while there is any. Of
    /// the free part of the rest, one connection gets at most an eighth. So a lone connection has buffers
    /// of up to a 24th of the memory, and its limit shrinks as others come.
    pub memory: usize,
    /// Set to require DSS checksums on every connection: changes of the payload by a middlebox are noticed
    /// (RFC 8684 section 3.3.1), at the cost of processor time. If the peer requires checksums they are
    /// used anyway.
    pub checksum: bool,
    /// The lower bound of the retransmission timeout (RFC 6298: 1 s, Linux: 200 ms).
    pub min_rto: Duration,
    /// The upper bound of the retransmission timeout.
    pub max_rto: Duration,
    /// The time for which a connection waits for its peer (the user timeout of RFC 5482): for a sign of
    /// life, for the acknowledgement of sent data, or for a subflow. Then it is given up. The default
    /// is about as long as Linux's `tcp_retries2`, so a connection survives the outages that regular TCP
    /// would have survived (RFC 9293 section 3.8.3).
    // Conforms: 9293-3.8.3-1
    pub user_timeout: Duration,
    /// The most time that a connection attempt may take.
    pub connect_timeout: Duration,
    /// The most connections, closing ones included.
    pub max_connections: usize,
    /// The most accepted connections whose handshake is not complete. Beyond that SYNs are answered without
    /// keeping state, so that a flood of SYNs keeps nobody out (RFC 4987 section 3.6): a lost SYN/ACK is
    /// then not repeated, and segment sizes are rounded down to one of four.
    pub max_half_open: usize,
    /// Enables TCP Fast Open (RFC 7413), both ways. As a client, the SYN carries the data written at
    /// opening, once the server has granted a cookie. As a server, cookies are granted and such payload is
    /// accepted before the handshake is complete. Off by default, since an application must tolerate
    /// duplicated payload (section 6.1): a network may duplicate a SYN whose connection is over, and with
    /// several paths a late answer makes the same payload follow a handshake on the next path. A SYN with
    /// payload has no second SYN beside it, so a path that became dark costs a timeout.
    // Conforms: 7413-4.2-2
    pub fast_open: bool,
    /// The most accepted connections that have payload of a SYN and whose handshake is not complete; they
    /// count in `max_half_open` too. Beyond that handshakes are ordinary ones (RFC 7413 section 5.1).
    pub max_fast_open: usize,
    /// Set to ask peers to open no further subflows to the address and port that they connected to, for
    /// example behind a load balancer (C flag, RFC 8684 section 3.1); joins there are refused. Peers join
    /// at the addresses announced by [`Stack::announce`](crate::Stack::announce).
    pub deny_join_initial: bool,
    /// The most subflows of one connection.
    pub max_subflows: usize,
    /// The most paths to peers whose records outlive their connections.
    pub max_records: usize,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl Config {
    /// Returns the congestion control of connections of this urgency.
    pub(crate) fn congestion_of(&self, urgency: Urgency) -> Algorithm {
        match urgency {
            Urgency::LEAST_URGENT => self.background,
            _ => self.congestion,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_transmit: 65_521,
            checksum_offload: true,
            // Linux's default range (`ip_local_port_range`).
            ports: 32_768..=60_999,
            initial_window: 10,
            max_cwnd: None,
            delayed_ack: DelayedAck::default(),
            ecn: Ecn::default(),
            congestion: Algorithm::default(),
            background: LEDBAT,
            // Conforms: 8684-3.3.5-4
            send_buffer: 8 << 20,
            recv_buffer: 8 << 20,
            memory: 512 << 20,
            checksum: false,
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(10),
            user_timeout: Duration::from_secs(15 * 60),
            connect_timeout: Duration::from_secs(15),
            max_connections: 65_536,
            max_half_open: 256,
            fast_open: false,
            max_fast_open: 64,
            deny_join_initial: false,
            max_subflows: 8,
            max_records: 1024,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

/// The delay of acknowledgements (RFC 9293 section 3.8.6.3). Data out of order, data that fills a hole and
/// the end of a stream are always acknowledged at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedAck {
    /// The longest delay of an acknowledgement. The peer is assumed to delay at most half as long again: a
    /// longer delay makes the engine probe for a lone segment needlessly (RFC 8985 section 7.2).
    pub timeout: Duration,
    /// The number of segments after which an acknowledgement is sent at once: 2, or 1 to acknowledge each.
    pub every: u32,
    /// The number of segments at the start that are acknowledged one by one, so that the peer's window
    /// opens quickly.
    pub quick: u32,
}

impl Default for DelayedAck {
    fn default() -> Self {
        DelayedAck {
            timeout: Duration::from_millis(40),
            every: 2,
            quick: 16,
        }
    }
}

/// The use of explicit congestion notification (RFC 3168), by which queues mark packets instead of dropping
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// ECN is never used.
    Off,
    /// ECN is used if the peer asks for it. The default, as in Linux: a SYN that asks may meet a network
    /// that drops it, which costs a second, and few bottlenecks mark.
    #[default]
    Answer,
    /// ECN is asked for, and used if the peer asks.
    Ask,
}

/// A local endpoint: one access link of the box, or one listening address of the server.
///
/// ```
/// use braid_engine::PathConfig;
///
/// let metered = PathConfig {
///     mtu: 1400,
///     backup: true,
///     ..PathConfig::v4([10, 0, 1, 2].into())
/// };
/// assert!(metered.owns([10, 0, 1, 2].into()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// The local IPv4 address of subflows on this path.
    pub v4: Option<Ipv4Addr>,
    /// The local IPv6 address of subflows on this path.
    pub v6: Option<Ipv6Addr>,
    /// The largest IP packet that the link carries, in bytes; less than 576 (IPv6: 1280) counts as that.
    pub mtu: u16,
    /// Set to open subflows with the backup bit (RFC 8684 section 3.2).
    pub backup: bool,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

/// A path without addresses, with an MTU of 1500 bytes, and no backup.
impl Default for PathConfig {
    fn default() -> Self {
        PathConfig {
            v4: None,
            v6: None,
            mtu: 1500,
            backup: false,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

impl PathConfig {
    /// Creates a path with this address, an MTU of 1500 bytes, and no backup.
    pub fn v4(addr: Ipv4Addr) -> Self {
        PathConfig {
            v4: Some(addr),
            ..PathConfig::default()
        }
    }

    /// Returns the first of `remotes` whose family this path has, with the path's local address of that
    /// family.
    pub(crate) fn towards(
        &self,
        remotes: impl IntoIterator<Item = SocketAddr>,
    ) -> Option<(IpAddr, SocketAddr)> {
        remotes.into_iter().find_map(|remote| {
            let local = match remote {
                SocketAddr::V4(_) => self.v4.map(IpAddr::V4),
                SocketAddr::V6(_) => self.v6.map(IpAddr::V6),
            };
            local.map(|local| (local, remote))
        })
    }

    /// Returns whether `addr` is a local address of the path.
    pub fn owns(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => self.v4 == Some(a),
            IpAddr::V6(a) => self.v6 == Some(a),
        }
    }
}

/// The protocol that a new connection opens with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// MPTCP v1, with fallback to TCP if the peer does not support it.
    Mptcp,
    /// Regular TCP.
    Tcp,
}
