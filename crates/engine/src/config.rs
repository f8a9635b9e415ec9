//! Settings of a [`crate::Stack`] and of its paths.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::Urgency;
use crate::cc::{Algorithm, LEDBAT};
use crate::non_exhaustive::NonExhaustive;

/// The settings of a stack, among them the bounds of its resources.
///
/// Later versions may have more settings, so start from the defaults:
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
    /// The size of the largest IP packet handed to the driver, in bytes: the link MTU, or up to 65,521 if the
    /// device cuts super-segments (GSO).
    pub max_transmit: usize,
    /// Set if the device completes TCP checksums; otherwise the engine computes them.
    pub checksum_offload: bool,
    /// The local ports of opened subflows, unless the application names one; not empty.
    pub ports: RangeInclusive<u16>,
    /// The initial congestion window in segments, at least 1. The default of 10 is that of RFC 6928. Papers
    /// often compare with older stacks, which used 2 (RFC 2581) or 3.
    pub initial_window: u32,
    /// The maximum congestion window in segments, at least 1, for comparisons with papers; `None` sets no
    /// maximum.
    pub max_cwnd: Option<u32>,
    /// The delay of acknowledgements.
    pub delayed_ack: DelayedAck,
    /// The use of ECN, by which queues mark packets instead of dropping them.
    pub ecn: Ecn,
    /// The congestion control of new subflows.
    pub congestion: Algorithm,
    /// The congestion control of connections that yield to all others ([`Urgency::LEAST_URGENT`]).
    pub background: Algorithm,
    /// The maximum number of unacknowledged or unsent bytes that a connection buffers. In addition it retains
    /// acknowledged bytes that a subflow may still have to retransmit, up to the same number or 256 KiB,
    /// whichever is more.
    pub send_buffer: usize,
    /// The maximum number of bytes that a connection buffers for the reader. It is also the largest window that
    /// a connection announces. The first window is 64 KiB, or this value if it is less.
    pub recv_buffer: usize,
    /// The maximum number of bytes of payload that all connections together hold. An eighth is reserved for data
    /// received in order. Half of the memory is for shares of 128 KiB; every writer gets one as long as shares
    /// are left. The rest is shared: in each direction a connection gets at most an eighth of what is still free
    /// of the rest. So a lone connection that sends in one direction buffers up to a 24th of the memory, and
    /// less once other connections hold memory.
    pub memory: usize,
    /// Set to require DSS checksums on every connection. With checksums the ends notice if a middlebox changes
    /// the payload (RFC 8684 section 3.3.1), but need more processor time. Checksums are also used if the peer
    /// requires them.
    pub checksum: bool,
    /// The lower bound of the retransmission timeout. RFC 6298 section 2.4 recommends 1 s; the default of 200 ms
    /// is that of Linux.
    pub min_rto: Duration,
    /// The upper bound of the retransmission timeout. RFC 6298 section 2.5 asks for at least 60 s. The default
    /// of 10 s is shorter, so that a connection continues soon after an outage; the value is a guess.
    pub max_rto: Duration,
    /// The time for which a connection waits for its peer before it ends (the user timeout of RFC 5482). It
    /// waits for a sign of life, for the acknowledgement of sent data, or for a subflow. The default is about
    /// the time that Linux waits (`tcp_retries2`), so that a connection survives the outages that regular TCP
    /// would survive (RFC 9293 section 3.8.3).
    // Conforms: 9293-3.8.3-1
    pub user_timeout: Duration,
    /// The maximum duration of a connection attempt. The default is a guess.
    pub connect_timeout: Duration,
    /// The maximum number of connections, closing ones included.
    pub max_connections: usize,
    /// The maximum number of accepted connections whose handshake is not complete. Beyond this number, SYNs are
    /// answered without keeping state, so that a flood of SYNs does not keep other peers out (RFC 4987 section
    /// 3.6). The price is that a lost SYN/ACK is not repeated, and that segment sizes are rounded down to one of
    /// four. The default is a guess.
    pub max_half_open: usize,
    /// Enables TCP Fast Open (RFC 7413) in both roles. A client sends the data written at opening in its SYN,
    /// once the server has granted it a cookie. A server grants cookies, and accepts payload of SYNs before
    /// the handshake is complete.
    ///
    /// Fast Open is off by default, because the application has to tolerate duplicated payload (section 6.1). A
    /// network may duplicate a SYN after its connection has ended, and if a SYN is not answered in time, the
    /// same payload is sent again on the next path. While a SYN with payload is under way, no second SYN is sent
    /// on another path, so if its path has become dark, the opening takes a timeout longer.
    // Conforms: 7413-4.2-2
    pub fast_open: bool,
    /// The maximum number of accepted connections that have payload of a SYN and whose handshake is not
    /// complete. They count in `max_half_open` too. Beyond the maximum, payload of SYNs is not accepted (RFC
    /// 7413 section 5.1). The default is a guess.
    pub max_fast_open: usize,
    /// Set to ask peers not to open further subflows to the address and port to which they connected, for
    /// example behind a load balancer (C flag, RFC 8684 section 3.1). Joins there are refused. Peers can join
    /// at the addresses announced by [`Stack::announce`](crate::Stack::announce).
    pub deny_join_initial: bool,
    /// The maximum number of subflows of one connection, at most 32. The default is a guess: four links with
    /// two address families.
    pub max_subflows: usize,
    /// The maximum number of records of paths to peers, which outlive the connections. The default is a guess.
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
            // A guess: at 1 Gbit/s 8 MiB last 67 ms, about as long as a round trip across a continent.
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
    /// The maximum delay of an acknowledgement. The engine assumes that its peer delays at most 1.5 times as
    /// long. If the peer delays longer, the engine sends a needless tail loss probe after a lone segment (RFC
    /// 8985 section 7.2).
    pub timeout: Duration,
    /// The number of segments after which an acknowledgement is sent at once: 2 (RFC 9293), or 1 to acknowledge
    /// each segment.
    pub every: u32,
    /// The number of segments at the start that are acknowledged one by one, so that the peer's congestion
    /// window grows quickly.
    pub quick: u32,
}

impl Default for DelayedAck {
    fn default() -> Self {
        // As in Linux: 40 ms is its minimum delay, and its quick acknowledgements are 16.
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
    /// ECN is used if the peer asks for it. This is the default, as in Linux: few bottlenecks mark packets, and
    /// some networks drop a SYN that asks for ECN, which costs a second.
    #[default]
    Answer,
    /// Opened subflows ask for ECN, and accepted ones use it if the peer asks for it.
    Ask,
}

/// The settings of a path, which is a local endpoint: an access link of a box, or a listening address of a
/// server.
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
    /// The size of the largest IP packet that the link carries, in bytes. A value below 576 counts as 576, and
    /// for IPv6 a value below 1280 as 1280.
    pub mtu: u16,
    /// Set to open subflows with the backup bit (RFC 8684 section 3.2).
    pub backup: bool,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

/// A path without addresses, with an MTU of 1500 bytes, which is not a backup.
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
    /// Returns the settings of a path with this address and an MTU of 1500 bytes, which is not a backup.
    pub fn v4(addr: Ipv4Addr) -> Self {
        PathConfig {
            v4: Some(addr),
            ..PathConfig::default()
        }
    }

    /// Returns the first of `remotes` to whose address family the path has a local address, together with that
    /// local address.
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
