//! Counters and snapshots.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_wire::{Dsn64, Instant};

use crate::strategy::FlowSize;
use crate::{FallbackCause, PathId, SubflowId, Urgency};

/// The counters of a stack since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStats {
    /// Packets received, super-segments counted once.
    pub packets_in: u64,
    /// Packets sent, super-segments counted once.
    pub packets_out: u64,
    /// Packets that are not well-formed IP or TCP, or of an unknown protocol.
    pub malformed: u64,
    /// Packets with a wrong checksum.
    pub bad_checksum: u64,
    /// Segments for no connection here. Those for an address of ours are answered by RST, within a bound,
    /// but not while third ACKs of stateless handshakes are expected.
    pub out_of_the_blue: u64,
    /// SYNs dropped because a bound of [`crate::Config`] was reached, or too many answers waited.
    pub syns_dropped: u64,
    /// SYNs answered without keeping state ([`crate::Config::max_half_open`]).
    pub syn_cookies: u64,
    /// Connections opened whose SYN carried payload that the server accepted
    /// ([`crate::Config::fast_open`]).
    pub fast_opened: u64,
    /// Connections accepted whose SYN carried payload that was accepted.
    pub fast_accepted: u64,
    /// Connections ended because their peer was silent and others needed their resources.
    pub reclaimed: u64,
    /// MP_JOINs refused: unknown token, or the bound on subflows.
    pub joins_refused: u64,
    /// MP_JOINs, ours and peers', whose remote end did not prove by its HMAC to be the peer.
    pub joins_forged: u64,
    /// SYNs with MP_JOIN sent, repeats included.
    pub join_syns: u64,
    /// Connections that fell back, by cause in declaration order; the first,
    /// [`FallbackCause::NotRequested`], is no fallback.
    pub fallbacks: [u64; FallbackCause::COUNT],
}

/// The data sent on a subflow, or on all subflows that a connection had on a path. A packet is a segment on
/// the wire: a super-segment counts as the packets that the device cuts it into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes sent for the first time on the subflow, copies included and retransmissions excluded.
    pub bytes_sent: u64,
    /// The part of `bytes_sent` that was copies of bytes sent before.
    pub bytes_copied: u64,
    /// Payload bytes sent again on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes deemed lost.
    pub bytes_lost: u64,
    /// Packets with payload, retransmissions excluded.
    pub packets_sent: u64,
    /// Packets with payload sent again on the same subflow.
    pub packets_retransmitted: u64,
    /// The part of `packets_sent` that left while the connection had data that was never sent.
    pub packets_while_unsent: u64,
    /// The part of `packets_while_unsent` that was copies.
    pub copies_while_unsent: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// The part of `rtos` that turned out spurious.
    pub spurious_rtos: u64,
    /// Reductions of the window because of ECN marks (RFC 3168).
    pub mark_reductions: u64,
    /// SYNs with MP_JOIN, repeats included.
    pub join_syns: u64,
}

impl Traffic {
    /// Returns the share of the sent payload bytes that was deemed lost, `0.0..=1.0`.
    pub fn loss(&self) -> f32 {
        let sent = (self.bytes_sent + self.bytes_retransmitted).max(1);
        // Data wrongly deemed lost may be lost again, so the ratio could exceed 1.
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

    /// Returns counters in which each is `f` of the one here and the one in `other`.
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
    /// Payload bytes received in order on the subflows.
    pub bytes_received: u64,
    /// Bytes of the stream that arrived on them although they were here already.
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
    /// Fast recovery (RFC 6675). The window shown is the one in force, which proportional rate reduction
    /// leads to the reduced one.
    Fast,
    /// After a retransmission timeout.
    Timeout,
}

/// A snapshot of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowStats {
    /// Its id.
    pub id: SubflowId,
    /// Its local path.
    pub path: PathId,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port as seen here.
    pub remote: SocketAddr,
    /// Set if its handshake is complete.
    pub established: bool,
    /// Set if it is used only when no other subflow works.
    pub backup: bool,
    /// Set if it has potentially failed.
    pub stale: bool,
    /// The newest round-trip time measured; zero before the first.
    pub latest_rtt: Duration,
    /// The smoothed round-trip time.
    pub srtt: Duration,
    /// The mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// The lowest round-trip time.
    pub min_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// The timeouts in a row without an acknowledgement of new data; each doubles the timeout.
    pub backoff: u32,
    /// The pacing rate in bytes/s; 0 if packets are not paced yet.
    pub pacing_rate: u64,
    /// The bytes that leave at once nevertheless: the rest of an initial window.
    pub unpaced: u64,
    /// The delivery rate in bytes/s, by the latest sample that reflects the path; 0 before the first.
    pub delivery_rate: u64,
    /// The congestion window in bytes.
    pub cwnd: u64,
    /// The slow-start threshold in bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// The bytes in flight.
    pub in_flight: u64,
    /// The subflow offset, counted from the SYN, that is to be acknowledged next.
    pub snd_una: u64,
    /// The payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// The largest IP packet that the path is believed to carry, in bytes.
    pub path_mtu: u32,
    /// The bytes that the peer's window of the subflow still allows beyond the sent data.
    pub peer_window: u64,
    /// The bytes that arrived behind a hole, as reported by the peer's SACK blocks.
    pub sacked: u64,
    /// The bytes deemed lost and not sent again since.
    pub lost: u64,
    /// The state of loss recovery.
    pub recovery: LossRecovery,
    /// Set if both sides agreed on selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Set if both sides agreed on timestamps (RFC 7323).
    pub timestamps: bool,
    /// Set if sent packets may be marked: both sides agreed on ECN (RFC 3168), and the congestion control
    /// responds to marks.
    pub ecn: bool,
    /// The payload bytes received in order on this subflow.
    pub bytes_received: u64,
    /// The bytes of the stream that arrived on it although they were here already.
    pub duplicate: u64,
    /// The payload bytes received behind a hole in the subflow's own sequence.
    pub out_of_order: u64,
    /// The data sent.
    pub traffic: Traffic,
}

/// The payload that a connection moved between two addresses, over all subflows it has or had there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// The local path.
    pub path: PathId,
    /// The remote address as seen here: it distinguishes links that the peer reaches at one local address.
    pub remote: IpAddr,
    /// The subflows opened there, including those never answered.
    pub subflows: u32,
    /// The payload moved on them.
    pub moved: Moved,
}

/// A snapshot of a path: the payload that all connections moved there since the start of the stack, and the
/// state of the subflows that are established there now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathTotals {
    /// The payload moved since the start.
    pub moved: Moved,
    /// The number of established subflows.
    pub subflows: u32,
    /// The data sent on these.
    pub traffic_now: Traffic,
    /// The lowest of their smoothed round-trip times; zero if there is none.
    pub srtt: Duration,
    /// The highest of their delivery rates in bytes/s; 0 if there is none.
    pub delivery_rate: u64,
    /// The payload bytes received on these, in order or not.
    pub received_now: u64,
    /// The part of `received_now` that arrived after later bytes: these bytes were lost and sent again, or
    /// overtaken.
    pub late_now: u64,
    /// The lowest recent round trip measured by their received payload, including the peer's queue; zero if
    /// there is none.
    pub arrival_rtt: Duration,
    /// The recent rate of received payload on all of them, in bytes/s.
    pub arrival_rate: u64,
}

/// The counts of options by which the ends of a connection informed each other of addresses (RFC 8684
/// section 3.4), repeats included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressSignals {
    /// ADD_ADDRs sent, echoes of the peer's excluded.
    pub add_addr_sent: u32,
    /// ADD_ADDRs received that prove the peer's origin, echoes of ours excluded.
    pub add_addr_received: u32,
    /// REMOVE_ADDRs sent; each names one address or several.
    pub remove_addr_sent: u32,
    /// REMOVE_ADDRs received.
    pub remove_addr_received: u32,
}

/// A snapshot of a connection. Offsets are bytes of the stream, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnStats {
    /// The tokens (RFC 8684 section 3.1), ours and the peer's; `None` if MPTCP is not in use.
    pub tokens: Option<(u32, u32)>,
    /// The initial data sequence numbers, ours and the peer's (the DSN of the first byte that no SYN
    /// carried is one more); `None` if MPTCP is not in use.
    pub idsn: Option<(Dsn64, Dsn64)>,
    /// The first offset not acknowledged at the data level.
    pub snd_una: u64,
    /// The first offset never sent.
    pub snd_nxt: u64,
    /// The end of the data written and not dropped.
    pub snd_end: u64,
    /// The bytes never sent, by urgency.
    pub unsent: [u64; Urgency::COUNT],
    /// The bytes dropped because their deadline passed before they were sent.
    pub dropped: u64,
    /// The bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// The first offset not received in order.
    pub rcv_nxt: u64,
    /// The first offset not read.
    pub rcv_read: u64,
    /// The bytes from `rcv_nxt` to the right edge of the announced window.
    pub recv_window: u64,
    /// The bytes received behind a hole in the stream, including those behind a hole of their subflow.
    pub out_of_order: u64,
    /// The bytes of the stream that arrived although they were here already: copies, and data sent again on
    /// another subflow.
    pub duplicate: u64,
    /// The time at which anything was last received.
    pub last_received: Instant,
    /// The time at which payload last moved, either way.
    pub last_payload: Instant,
    /// The memory held in bytes, in whole blocks: data not acknowledged or not read yet.
    pub memory: u64,
    /// Set if mappings carry checksums (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// The known size of the flow.
    pub flow_size: FlowSize,
    /// The bytes of the flow that were acknowledged, and that arrived in order.
    pub flow_moved: (u64, u64),
    /// The urgency of writes without a class.
    pub urgency: Urgency,
    /// The name of the strategy.
    pub strategy: &'static str,
    /// The name of the congestion control, which all its subflows run.
    pub congestion: &'static str,
    /// The time with bytes written and not acknowledged at the data level, up to the last packet or call.
    pub busy: Duration,
    /// The part of `busy` with new bytes that waited for the peer's window.
    pub window_limited: Duration,
    /// The counts of address signals.
    pub addresses: AddressSignals,
    /// The payload by path and remote address, in that order; only where a subflow was opened.
    pub paths: Vec<PathStats>,
}

impl ConnStats {
    /// Returns the number of SYNs with MP_JOIN sent, repeats included.
    pub fn join_syns(&self) -> u64 {
        self.paths.iter().map(|p| p.moved.traffic.join_syns).sum()
    }
}
