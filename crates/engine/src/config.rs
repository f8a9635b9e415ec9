//! Settings of a [`crate::Stack`] and of its paths.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::Urgency;
use crate::cc::{Algorithm, LEDBAT};

/// Settings of a stack; every bound of the engine is here.
#[derive(Debug, Clone)]
pub struct Config {
    /// Largest IP packet handed to the driver, in bytes: up to 65,521 where the device segments
    /// (GSO), or the link MTU where it does not.
    pub max_transmit: usize,
    /// The device completes TCP checksums; otherwise the engine computes them.
    pub checksum_offload: bool,
    /// Ports that subflows are opened from, where the application names none; not empty.
    pub ports: RangeInclusive<u16>,
    /// Initial congestion window in segments, at least 1: 10 (RFC 6928), 3, or 2 (RFC 2581).
    pub initial_window: u32,
    /// Most segments in flight on a subflow, whatever congestion control says; `None` sets no
    /// bound. At least 1.
    pub max_cwnd: Option<u32>,
    /// When received data is acknowledged.
    pub delayed_ack: DelayedAck,
    /// Whether marks take the place of losses where a queue on the way can mark.
    pub ecn: Ecn,
    /// Congestion control of new subflows.
    pub congestion: Algorithm,
    /// The same of connections that stand back behind all others ([`Urgency::LEAST`]).
    pub background: Algorithm,
    /// Most bytes a connection buffers for sending, acknowledged ones excluded. It keeps as many of
    /// those at most (256 KiB at least) where a subflow still has to repeat them.
    pub send_buffer: usize,
    /// Most bytes a connection buffers for the reader; the largest window announced. Less than
    /// 64 KiB is obeyed too, and is all there is from the start.
    pub recv_buffer: usize,
    /// Most bytes of payload all connections together may hold. An eighth is for data received in
    /// order, half for shares of 128 KiB that every writer gets as long as there is any; of what is
    /// left of the rest, one connection gets at most an eighth. So a connection alone has buffers of up
    /// to a 24th of it, and what it may hold shrinks as others come.
    pub memory: usize,
    /// DSS checksums are required of every connection: what a middlebox changes in the payload is
    /// noticed (RFC 8684 section 3.3.1), for some processor time. Where the peer requires them they are
    /// used anyway.
    pub checksum: bool,
    /// Lower bound of the retransmission timeout (RFC 6298 says 1 s, Linux 200 ms).
    pub min_rto: Duration,
    /// Upper bound of the retransmission timeout.
    pub max_rto: Duration,
    /// How long a connection waits for its peer (the user timeout of RFC 5482): for a sign of life, for
    /// the acknowledgement of what it sent, or for a subflow. Then it is given up. The default is what
    /// Linux's `tcp_retries2` amounts to, so a connection outlives each outage that regular TCP would
    /// have outlived (RFC 9293 section 3.8.3).
    // Conforms: 9293-3.8.3-1
    pub user_timeout: Duration,
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
    /// Most connections, closing ones included.
    pub max_connections: usize,
    /// Most accepted connections whose handshake is not complete. Beyond that SYNs are answered without
    /// keeping anything of them, so that a flood of SYNs keeps nobody out (RFC 4987 section 3.6): a
    /// lost SYN/ACK is not repeated then, and segment sizes are rounded down to one of four.
    pub max_half_open: usize,
    /// TCP Fast Open (RFC 7413), both ways: a SYN carries what is written when a connection is opened,
    /// as soon as the server has given a cookie for that, and servers give cookies and take such payload
    /// before the handshake is through. Off by default, since an application must bear it that payload
    /// comes twice (section 6.1): a network may double a SYN whose connection is over, and with several
    /// paths an answer that is late has the same payload follow a handshake on the next one. What a SYN
    /// carries has no second SYN beside it, so a path that became dark costs a timeout.
    // Conforms: 7413-4.2-2
    pub fast_open: bool,
    /// Most accepted connections that have payload of a SYN and whose handshake is not complete; they
    /// count among `max_half_open` too. Beyond that handshakes are ordinary ones (RFC 7413 section
    /// 5.1).
    pub max_fast_open: usize,
    /// Peers are asked to open no further subflows to the address and port they came to, as where a
    /// load balancer stands there (C flag, RFC 8684 section 3.1); those that do are refused. They join
    /// at what [`Stack::announce`](crate::Stack::announce) tells them.
    pub deny_join_initial: bool,
    /// Most subflows of one connection.
    pub max_subflows: usize,
    /// Most paths to peers that are remembered beyond their connections.
    pub max_records: usize,
}

impl Config {
    /// Congestion control of connections of this urgency.
    pub(crate) fn congestion_of(&self, urgency: Urgency) -> Algorithm {
        match urgency {
            Urgency::LEAST => self.background,
            _ => self.congestion,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_transmit: 65_521,
            checksum_offload: true,
            // Linux's.
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
        }
    }
}

/// When received data is acknowledged (RFC 9293 section 3.8.6.3). Data out of order, data that fills
/// a hole and the end of a stream always are at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedAck {
    /// Longest delay of an acknowledgement. The peer is taken to delay half as long again at most:
    /// where it takes longer, a lone segment is probed for needlessly (RFC 8985 section 7.2).
    pub timeout: Duration,
    /// Segments after which one is sent at once: 2, or 1 to acknowledge each.
    pub every: u32,
    /// So many segments at the start are acknowledged one by one, so that the peer's window opens
    /// quickly.
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

/// Explicit congestion notification (RFC 3168): queues mark packets instead of dropping them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Never.
    Off,
    /// Where the peer asks for it. The default, as in Linux: what asks meets networks that drop such
    /// SYNs, which costs a second, and few bottlenecks mark.
    #[default]
    Answer,
    /// It is asked for as well.
    Ask,
}

/// A local endpoint: one access link of the box, or one listening address of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// Local IPv4 address of subflows on this path.
    pub v4: Option<Ipv4Addr>,
    /// Local IPv6 address of subflows on this path.
    pub v6: Option<Ipv6Addr>,
    /// Largest IP packet the link carries, bytes; less than 576 (IPv6: 1280) counts as that.
    pub mtu: u16,
    /// Subflows are opened with the backup bit (RFC 8684 section 3.2).
    pub backup: bool,
}

impl PathConfig {
    /// A path with this address, an MTU of 1500 bytes, and no backup.
    pub fn v4(addr: Ipv4Addr) -> Self {
        PathConfig {
            v4: Some(addr),
            v6: None,
            mtu: 1500,
            backup: false,
        }
    }

    /// The first of `remotes` whose family this path has, with the local address that goes with it.
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

    /// Whether `addr` is the path's local address.
    pub fn owns(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => self.v4 == Some(a),
            IpAddr::V6(a) => self.v6 == Some(a),
        }
    }
}

/// Which protocol a new connection opens with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// MPTCP v1, falling back to TCP where the peer does not speak it.
    Mptcp,
    /// Regular TCP.
    Tcp,
}
