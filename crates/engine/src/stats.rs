//! Counters and snapshots.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_wire::{Dsn64, Instant};

use crate::strategy::FlowSize;
use crate::{FallbackCause, PathId, SubflowId, Urgency};

/// Counters of a stack since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Packets taken in, super-segments counted once.
    pub packets_in: u64,
    /// Packets handed out, super-segments counted once.
    pub packets_out: u64,
    /// Packets that are not well-formed IP or TCP, or of an unknown protocol.
    pub malformed: u64,
    /// Packets with a wrong checksum.
    pub bad_checksum: u64,
    /// Segments for no connection here; those for an address of ours are answered by RST, within
    /// a bound, and by nothing while third ACKs are checked by what was kept of no SYN.
    pub strays: u64,
    /// SYNs dropped because a bound of [`crate::Config`] was reached, or too many answers waited.
    pub syns_dropped: u64,
    /// SYNs answered without keeping anything of them ([`crate::Config::max_half_open`]).
    pub syn_cookies: u64,
    /// Connections opened whose SYN brought payload that the server took ([`crate::Config::fast_open`]).
    pub fast_opened: u64,
    /// Connections accepted whose SYN brought payload that was taken.
    pub fast_accepted: u64,
    /// Connections ended because their peer was silent and others needed what they held.
    pub reclaimed: u64,
    /// MP_JOINs refused: unknown token, or the bound on subflows.
    pub joins_refused: u64,
    /// MP_JOINs, ours and peers', whose far end did not prove by its HMAC that it is the peer.
    pub joins_forged: u64,
    /// SYNs with MP_JOIN sent, repeated ones included.
    pub join_syns: u64,
    /// Connections that fell back, by cause: [`FallbackCause::NotRequested`], which is no fallback, and
    /// so on in order.
    pub fallbacks: [u64; FallbackCause::COUNT],
}

/// What was sent on a subflow, or on all subflows a connection had on a path. A packet is a segment
/// on the wire: a super-segment counts as the packets the device cuts it into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes sent for the first time on the subflow, copies included and retransmissions
    /// excluded.
    pub bytes_sent: u64,
    /// Of these, copies of bytes that had been sent before.
    pub bytes_copied: u64,
    /// Payload bytes sent again on the same subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes deemed lost.
    pub bytes_lost: u64,
    /// Packets with payload, retransmissions excluded.
    pub packets_sent: u64,
    /// Packets with payload sent again on the same subflow.
    pub packets_retransmitted: u64,
    /// Of `packets_sent`, those that left while the connection had data that was never sent.
    pub packets_while_unsent: u64,
    /// Of `packets_while_unsent`, the copies.
    pub copies_while_unsent: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Of these, those that turned out needless.
    pub spurious_rtos: u64,
    /// Reductions of the window because of congestion marks (RFC 3168).
    pub mark_reductions: u64,
    /// SYNs with MP_JOIN, repeated ones included.
    pub join_syns: u64,
}

impl Traffic {
    /// Share of the payload bytes sent that were deemed lost, `0.0..=1.0`.
    pub fn loss(&self) -> f32 {
        let sent = (self.bytes_sent + self.bytes_retransmitted).max(1);
        // What was taken for lost in error may be lost again.
        (self.bytes_lost as f32 / sent as f32).min(1.0)
    }

    /// Adds `other` to the counters.
    pub fn add(&mut self, other: &Traffic) {
        *self = self.zip(other, |own, other| own + other);
    }

    /// Returns the counters as they grew since `before`.
    fn since(&self, before: &Traffic) -> Traffic {
        self.zip(before, |own, before| own - before)
    }

    /// Returns the counters that `f` makes of each one here and in `other`.
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

/// Payload moved both ways on a subflow, or on several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Payload bytes received in order on the subflows.
    pub bytes_received: u64,
    /// Bytes of the stream that came on them although they were here already.
    pub duplicate: u64,
    /// What was sent.
    pub traffic: Traffic,
}

impl Moved {
    /// Adds `other` to the counters.
    pub(crate) fn add(&mut self, other: &Moved) {
        self.bytes_received += other.bytes_received;
        self.duplicate += other.duplicate;
        self.traffic.add(&other.traffic);
    }

    /// Returns the counters as they grew since `before`.
    pub(crate) fn since(&self, before: &Moved) -> Moved {
        Moved {
            bytes_received: self.bytes_received - before.bytes_received,
            duplicate: self.duplicate - before.duplicate,
            traffic: self.traffic.since(&before.traffic),
        }
    }
}

/// Where the loss recovery of a subflow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossRecovery {
    /// Nothing is being recovered.
    Open,
    /// Fast recovery (RFC 6675). The window shown is the one in force, which proportional rate
    /// reduction leads to the reduced one.
    Fast,
    /// After a retransmission timeout.
    Timeout,
}

/// A subflow at one moment.
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
    /// Its handshake is through.
    pub established: bool,
    /// Used only where no other works.
    pub backup: bool,
    /// Potentially failed.
    pub stale: bool,
    /// Newest round-trip time measured; zero before the first.
    pub latest_rtt: Duration,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Lowest round-trip time.
    pub min_rtt: Duration,
    /// Retransmission timeout, backoff included.
    pub rto: Duration,
    /// Timeouts in a row without an acknowledgement of anything new: the timeout is doubled as often.
    pub backoff: u32,
    /// Bytes/s at which packets leave; 0 where they are not paced yet.
    pub pacing_rate: u64,
    /// Bytes that leave at once nevertheless: what is left of an initial window.
    pub unpaced: u64,
    /// Bytes/s at which the peer got what was sent, by the latest sample of that that tells of the
    /// path; 0 before the first.
    pub delivery_rate: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Place in the subflow's sequence, counted from the SYN, of what is to be acknowledged next.
    pub snd_una: u64,
    /// Payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// Largest IP packet that the path is taken to carry, bytes.
    pub path_mtu: u32,
    /// Bytes that the subflow may still send beyond what was sent, as its peer's window has it.
    pub peer_window: u64,
    /// Bytes that arrived behind a hole, as the peer's SACK blocks say.
    pub sacked: u64,
    /// Bytes deemed lost and not sent again since.
    pub lost: u64,
    /// Where loss recovery stands.
    pub recovery: LossRecovery,
    /// Selective acknowledgements are agreed (RFC 2018).
    pub sack: bool,
    /// Timestamps are agreed (RFC 7323).
    pub timestamps: bool,
    /// What is sent may be marked: that is agreed (RFC 3168), and the congestion control answers marks.
    pub ecn: bool,
    /// Payload bytes received in order on this subflow.
    pub bytes_received: u64,
    /// Bytes of the stream that came on it although they were here already.
    pub duplicate: u64,
    /// Payload bytes received here behind a hole in the subflow's own sequence.
    pub out_of_order: u64,
    /// What was sent.
    pub traffic: Traffic,
}

/// What a connection moved between two addresses, over all subflows it has or had there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// The local path.
    pub path: PathId,
    /// Address of the far end as seen here: tells paths apart where several end at one address.
    pub remote: IpAddr,
    /// Subflows opened there, those that were never answered included.
    pub subflows: u32,
    /// Payload moved on them.
    pub moved: Moved,
}

/// A path at one moment: what all connections moved there since the start of the stack, and what
/// the subflows say that are established there now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathTotals {
    /// Payload moved since the start.
    pub moved: Moved,
    /// Established subflows.
    pub subflows: u32,
    /// What was sent on these.
    pub traffic_now: Traffic,
    /// The lowest of their smoothed round-trip times; zero where there is none.
    pub srtt: Duration,
    /// The highest of their delivery rates, bytes/s; 0 where there is none.
    pub delivery_rate: u64,
    /// Payload bytes received on these, in order or not.
    pub received_now: u64,
    /// Of these, bytes that arrived after later ones: they were lost and sent again, or overtaken.
    pub late_now: u64,
    /// The lowest round trip of late that their received payload tells of, with the peer's queue in it;
    /// zero where there is none.
    pub arrival_rtt: Duration,
    /// Bytes/s of payload that arrived of late on all of them.
    pub arrival_rate: u64,
}

/// Options by which the ends of a connection told each other of addresses (RFC 8684 section 3.4),
/// repeated ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressSignals {
    /// ADD_ADDR sent, echoes of the peer's left out.
    pub add_addr_sent: u32,
    /// ADD_ADDR received that prove to be the peer's, echoes of ours left out.
    pub add_addr_received: u32,
    /// REMOVE_ADDR sent; each names one address or several.
    pub remove_addr_sent: u32,
    /// REMOVE_ADDR received.
    pub remove_addr_received: u32,
}

/// A connection at one moment. Offsets are bytes of the stream, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnStats {
    /// Tokens (RFC 8684 section 3.1), ours and the peer's; `None` where MPTCP is not in use.
    pub tokens: Option<(u32, u32)>,
    /// Initial data sequence numbers, ours and the peer's (the DSN of the first byte that no SYN carried is
    /// one more); `None` where MPTCP is not in use.
    pub idsn: Option<(Dsn64, Dsn64)>,
    /// Bytes acknowledged at the data level: the first offset that is not.
    pub snd_una: u64,
    /// The first offset never sent.
    pub snd_nxt: u64,
    /// Bytes written and not dropped: the first offset that is not used when all of them are sent.
    pub snd_end: u64,
    /// Bytes never sent, by urgency.
    pub unsent: [u64; Urgency::COUNT],
    /// Bytes dropped because their deadline passed before they were sent.
    pub dropped: u64,
    /// Bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// The first offset not received in order.
    pub rcv_nxt: u64,
    /// The first offset not read.
    pub rcv_read: u64,
    /// Bytes from `rcv_nxt` to the right edge of the window announced.
    pub recv_window: u64,
    /// Bytes received behind a hole in the stream (those behind a hole of their subflow included).
    pub out_of_order: u64,
    /// Bytes of the stream that came although they were here already: copies, and what was sent again
    /// on another subflow.
    pub duplicate: u64,
    /// When anything was received last.
    pub last_heard: Instant,
    /// When payload moved last, either way.
    pub last_payload: Instant,
    /// Memory held, bytes: what is not acknowledged or not read yet, in whole blocks.
    pub memory: u64,
    /// Mappings carry checksums (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// What is known of the size of the flow.
    pub flow_size: FlowSize,
    /// Bytes of the flow that were acknowledged, and that arrived in order.
    pub flow_moved: (u64, u64),
    /// How urgent writes are that name no class.
    pub urgency: Urgency,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Name of the congestion control, which is that of all its subflows.
    pub congestion: &'static str,
    /// Time with bytes written and not acknowledged at the data level, up to the last packet or call.
    pub busy: Duration,
    /// Of it, time with new bytes that waited for the peer's window.
    pub window_limited: Duration,
    /// What was said of addresses.
    pub addresses: AddressSignals,
    /// By path and address of the far end, in that order; only where a subflow was opened.
    pub paths: Vec<PathStats>,
}

impl ConnStats {
    /// SYNs with MP_JOIN sent, repeated ones included.
    pub fn join_syns(&self) -> u64 {
        self.paths.iter().map(|p| p.moved.traffic.join_syns).sum()
    }
}
