//! Statistics: counters since the start of a stack, and snapshots of connections, subflows and paths.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_wire::{Dsn64, Instant};

use crate::strategy::FlowSize;
use crate::{FallbackCause, PathId, SubflowId, Urgency};

/// The counters of a stack since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStats {
    /// The number of packets received; a super-segment counts once.
    pub packets_in: u64,
    /// The number of packets sent; a super-segment counts once.
    pub packets_out: u64,
    /// The number of received packets that are not well-formed IP or TCP, or have an unknown protocol.
    pub malformed: u64,
    /// The number of received packets with a wrong checksum.
    pub bad_checksum: u64,
    /// The number of received segments that belong to no connection. If such a segment came to an address of
    /// this stack, it is answered by RST, unless too many answers wait, or third ACKs of stateless handshakes
    /// are expected.
    pub out_of_the_blue: u64,
    /// The number of SYNs dropped because a bound of [`crate::Config`] was reached, or too many answers waited.
    pub syns_dropped: u64,
    /// The number of SYNs answered without keeping state ([`crate::Config::max_half_open`]).
    pub syn_cookies: u64,
    /// The number of connections opened by a SYN whose payload the server accepted
    /// ([`crate::Config::fast_open`]).
    pub fast_opened: u64,
    /// The number of connections accepted together with the payload of their SYN.
    pub fast_accepted: u64,
    /// The number of connections ended because their peer was silent and others needed their resources.
    pub reclaimed: u64,
    /// The number of received SYNs with MP_JOIN that were refused, for example because the token is unknown or
    /// the connection has too many subflows.
    pub joins_refused: u64,
    /// The number of joins in which the remote end sent a wrong HMAC, and so is not the peer. It counts joins
    /// opened by either end.
    pub joins_forged: u64,
    /// The number of SYNs with MP_JOIN sent, repeats included.
    pub join_syns: u64,
    /// The numbers of connections that fell back, by cause in the order of declaration. The first cause,
    /// [`FallbackCause::NotRequested`], is no fallback.
    pub fallbacks: [u64; FallbackCause::COUNT],
}

/// The data sent on a subflow, or on several subflows together. A packet is a segment on the wire: a
/// super-segment counts as the packets into which the device cuts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The payload bytes sent for the first time on the subflow, copies included and retransmissions excluded.
    pub bytes_sent: u64,
    /// The part of `bytes_sent` that was sent before on another subflow.
    pub bytes_copied: u64,
    /// The payload bytes sent again on the same subflow.
    pub bytes_retransmitted: u64,
    /// The payload bytes deemed lost.
    pub bytes_lost: u64,
    /// The number of packets with payload, retransmissions excluded.
    pub packets_sent: u64,
    /// The number of packets with payload sent again on the same subflow.
    pub packets_retransmitted: u64,
    /// The part of `packets_sent` that carried new data, or was sent while the connection had unsent data.
    pub packets_while_unsent: u64,
    /// The part of `packets_while_unsent` that carried copies. It tells how far copies delayed new data.
    pub copies_while_unsent: u64,
    /// The number of retransmission timeouts.
    pub rtos: u64,
    /// The part of `rtos` that turned out spurious: the data had arrived.
    pub spurious_rtos: u64,
    /// The number of reductions of the congestion window because of ECN marks (RFC 3168).
    pub mark_reductions: u64,
    /// The number of SYNs with MP_JOIN, repeats included.
    pub join_syns: u64,
}

impl Traffic {
    /// Returns the share of the sent payload bytes that was deemed lost, from 0.0 to 1.0.
    pub fn loss(&self) -> f32 {
        let sent = (self.bytes_sent + self.bytes_retransmitted).max(1);
        // Bytes that were wrongly deemed lost may be counted twice, so the ratio could exceed 1.
        (self.bytes_lost as f32 / sent as f32).min(1.0)
    }

    /// Adds `other` to the counters.
    pub fn add(&mut self, other: &Traffic) {
        *self = self.zip(other, |own, other| own + other);
    }

    /// Returns the growth of the counters since `before`.
    fn since(&self, before: &Traffic) -> Traffic {
        self.zip(before, |own, before| own - before)
    }

    /// Applies `f` to each pair of counters of `self` and `other`.
    fn zip(&self, other: &Traffic, f: impl Fn(u64, u64) -> u64) -> Traffic {
        Traffic {
            bytes_sent: f(self.bytes_sent, other.bytes_sent),
            bytes_copied: f(self.bytes_copied, other.bytes_copied),
            bytes_retransmitted: f(self.bytes_retransmitted, other.bytes_retransmitted),
            bytes_lost: f(self.bytes_lost, other.bytes_lost),
            packets_sent: f(self.packets_sent, other.packets_sent),
            packets_retransmitted: f(self.packets_retransmitted, other.packets_retransmitted),
            packets_while_unsent: f(self.packets_while_unsent, other.packets_while_unsent),
            copies_while_unsent: f(self.copies_while_unsent, other.copies_while_unsent),
            rtos: f(self.rtos, other.rtos),
            spurious_rtos: f(self.spurious_rtos, other.spurious_rtos),
            mark_reductions: f(self.mark_reductions, other.mark_reductions),
            join_syns: f(self.join_syns, other.join_syns),
        }
    }
}

/// The payload moved both ways on a subflow, or on several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// The payload bytes received in order on the subflows.
    pub bytes_received: u64,
    /// The bytes of the stream that arrived on the subflows after they had arrived before.
    pub duplicate: u64,
    /// The data sent.
    pub traffic: Traffic,
}

impl Moved {
    /// Adds `other` to the counters.
    pub(crate) fn add(&mut self, other: &Moved) {
        self.bytes_received += other.bytes_received;
        self.duplicate += other.duplicate;
        self.traffic.add(&other.traffic);
    }

    /// Returns the growth of the counters since `before`.
    pub(crate) fn since(&self, before: &Moved) -> Moved {
        Moved {
            bytes_received: self.bytes_received - before.bytes_received,
            duplicate: self.duplicate - before.duplicate,
            traffic: self.traffic.since(&before.traffic),
        }
    }
}

/// The state of a subflow's loss recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossRecovery {
    /// Nothing is being recovered.
    Open,
    /// The subflow is in fast recovery (RFC 6675). Meanwhile `cwnd` is the window in force: proportional rate
    /// reduction (RFC 9937) moves it step by step to the reduced window.
    Fast,
    /// The subflow recovers from a retransmission timeout.
    Timeout,
}

/// A snapshot of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowStats {
    /// The id of the subflow.
    pub id: SubflowId,
    /// The local path of the subflow.
    pub path: PathId,
    /// The local address and port.
    pub local: SocketAddr,
    /// The remote address and port, as seen here.
    pub remote: SocketAddr,
    /// Set if the handshake is complete.
    pub established: bool,
    /// Set if either end wants the subflow to be a backup, used only when no other subflow works.
    pub backup: bool,
    /// Set if the subflow has potentially failed.
    pub stale: bool,
    /// The newest sample of the round-trip time; zero before the first sample.
    pub latest_rtt: Duration,
    /// The smoothed round-trip time.
    pub srtt: Duration,
    /// The mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// The lowest round-trip time.
    pub min_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// The number of timeouts in a row without an acknowledgement of new data; each doubles the timeout.
    pub backoff: u32,
    /// The pacing rate in bytes/s; 0 if packets are not paced yet.
    pub pacing_rate: u64,
    /// The number of bytes that may still be sent without pacing: the rest of an initial window.
    pub unpaced: u64,
    /// The delivery rate in bytes/s, by the latest sample that reflects the path; 0 before the first sample.
    pub delivery_rate: u64,
    /// The congestion window in bytes.
    pub cwnd: u64,
    /// The slow-start threshold in bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// The bytes in flight.
    pub in_flight: u64,
    /// The first subflow offset that is not acknowledged; the SYN has offset 0.
    pub snd_una: u64,
    /// The payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// The largest IP packet that the path is believed to carry, in bytes.
    pub path_mtu: u32,
    /// The number of bytes that the peer's window on this subflow still allows beyond the sent data.
    pub peer_window: u64,
    /// The number of bytes that arrived behind a hole, as reported by the peer's SACK blocks.
    pub sacked: u64,
    /// The number of bytes deemed lost and not sent again since.
    pub lost: u64,
    /// The state of loss recovery.
    pub recovery: LossRecovery,
    /// Set if both sides agreed on selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Set if both sides agreed on timestamps (RFC 7323).
    pub timestamps: bool,
    /// Set if sent packets are ECN-capable: both sides agreed on ECN (RFC 3168), and the congestion control
    /// responds to marks.
    pub ecn: bool,
    /// The payload bytes received in order on this subflow.
    pub bytes_received: u64,
    /// The bytes of the stream that arrived on this subflow after they had arrived before.
    pub duplicate: u64,
    /// The payload bytes received behind a hole in the subflow's own sequence.
    pub out_of_order: u64,
    /// The data sent.
    pub traffic: Traffic,
}

/// The payload that a connection moved between a local path and a remote address, over all present and past
/// subflows between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// The local path.
    pub path: PathId,
    /// The remote address, as seen here. It distinguishes the links by which a peer reaches the same local
    /// address.
    pub remote: IpAddr,
    /// The number of subflows opened there, including those never answered.
    pub subflows: u32,
    /// The payload moved on these subflows.
    pub moved: Moved,
}

/// A snapshot of a path: the payload that all connections moved there since the stack or the path started, and
/// the state of the subflows that are established there now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathTotals {
    /// The payload moved since the start.
    pub moved: Moved,
    /// The number of established subflows. The following fields refer to these subflows.
    pub subflows: u32,
    /// The data sent on the established subflows.
    pub traffic_now: Traffic,
    /// The lowest smoothed round-trip time of these subflows; zero if none is known.
    pub srtt: Duration,
    /// The highest delivery rate of these subflows in bytes/s; 0 if none is known.
    pub delivery_rate: u64,
    /// The payload bytes received on these subflows, in order or not.
    pub received_now: u64,
    /// The part of `received_now` that arrived after later bytes: these bytes were lost and sent again, or
    /// were overtaken.
    pub late_now: u64,
    /// The lowest recent round-trip time that received payload shows on these subflows. It includes the time in
    /// the peer's queue. Zero means that it is not known.
    pub arrival_rtt: Duration,
    /// The sum of the recent rates of received payload on these subflows, in bytes/s.
    pub arrival_rate: u64,
}

/// The numbers of address options that a connection exchanged with its peer (RFC 8684 section 3.4), repeats
/// included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressSignals {
    /// The number of ADD_ADDRs sent, without the echoes of the peer's ADD_ADDRs.
    pub add_addr_sent: u32,
    /// The number of ADD_ADDRs received with a right HMAC, without the peer's echoes.
    pub add_addr_received: u32,
    /// The number of REMOVE_ADDRs sent; each names one address or several.
    pub remove_addr_sent: u32,
    /// The number of REMOVE_ADDRs received.
    pub remove_addr_received: u32,
}

/// A snapshot of a connection. Offsets are bytes of the stream, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnStats {
    /// The tokens (RFC 8684 section 3.1), ours and the peer's; `None` if MPTCP is not in use.
    pub tokens: Option<(u32, u32)>,
    /// The initial data sequence numbers, ours and the peer's; `None` if MPTCP is not in use. The first byte
    /// that was not payload of a SYN has the next number.
    pub idsn: Option<(Dsn64, Dsn64)>,
    /// The first offset not acknowledged at the data level.
    pub snd_una: u64,
    /// The first offset never sent.
    pub snd_nxt: u64,
    /// The end of the written data, dropped bytes not counted.
    pub snd_end: u64,
    /// The number of bytes never sent, by urgency.
    pub unsent: [u64; Urgency::COUNT],
    /// The number of bytes dropped because their deadline passed before they were sent.
    pub dropped: u64,
    /// The number of bytes that the peer's window still allows beyond the sent data.
    pub peer_window: u64,
    /// The first offset not received in order.
    pub rcv_nxt: u64,
    /// The first offset not read.
    pub rcv_read: u64,
    /// The number of bytes from `rcv_nxt` to the right edge of the announced window.
    pub recv_window: u64,
    /// The number of bytes received behind a hole in the stream.
    pub out_of_order: u64,
    /// The number of bytes of the stream that arrived after they had arrived before: copies, and data sent
    /// again on another subflow.
    pub duplicate: u64,
    /// The time at which a segment was last received.
    pub last_received: Instant,
    /// The time at which payload was last sent, received or acknowledged.
    pub last_payload: Instant,
    /// The memory held for data that is not acknowledged or not read yet, in bytes; always whole blocks.
    pub memory: u64,
    /// Set if mappings carry checksums (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// The size of the flow as far as it is known.
    pub flow_size: FlowSize,
    /// The number of bytes of the flow that the peer acknowledged, and the number received in order.
    pub flow_moved: (u64, u64),
    /// The urgency of writes without a class.
    pub urgency: Urgency,
    /// The name of the strategy.
    pub strategy: &'static str,
    /// The name of the congestion control, which all subflows of the connection run.
    pub congestion: &'static str,
    /// The total time in which written bytes were not acknowledged at the data level, up to the last packet or
    /// call.
    pub busy: Duration,
    /// The part of `busy` in which new bytes waited for the peer's window.
    pub window_limited: Duration,
    /// The numbers of address options exchanged.
    pub addresses: AddressSignals,
    /// The payload by path and remote address, sorted by them. There is an entry only if a subflow was opened
    /// there.
    pub paths: Vec<PathStats>,
}

impl ConnStats {
    /// Returns the number of SYNs with MP_JOIN sent, repeats included.
    pub fn join_syns(&self) -> u64 {
        self.paths.iter().map(|p| p.moved.traffic.join_syns).sum()
    }
}
