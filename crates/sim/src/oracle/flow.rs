//! The oracle's record of a subflow (or TCP connection), built from the packets of one end. Offsets count sequence
//! numbers; the SYN has offset 0.

use core::ops::Range;
use std::collections::VecDeque;

use braid_engine::buffer::RangeSet;
use braid_engine::stats::{LossRecovery, SubflowStats};
use braid_engine::{ConnId, SegmentKind, SubflowId};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, Seq32};

use super::segment::Segment;
use super::violation::{Checker, Rule};

/// The maximum number of ranges and of mappings that are recorded for a subflow. 16,384 is a guess that bounds
/// memory. Once a subflow has more, its receiving direction is not checked any more.
const MAX_REMEMBERED: usize = 16_384;

/// Bytes by which the options grow if the data sequence number and the DATA_ACK have 8 bytes each instead of 4.
const MAX_OPTION_GROWTH: u64 = 8;

/// The ranges of a sequence that have arrived, in any order.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// The first offset that has not arrived.
    pub next: u64,
    /// Ranges that arrived behind the gap at `next`.
    behind: RangeSet,
}

impl Arrived {
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if range.start > self.next {
            self.behind.insert(range);
            return;
        }
        self.next = self.next.max(range.end);
        if !self.behind.is_empty() {
            if let Some(reached) = self.behind.range_containing(self.next) {
                self.next = reached.end;
            }
            self.behind.remove_below(self.next);
        }
    }

    pub fn is_full(&self) -> bool {
        self.behind.len() > MAX_REMEMBERED
    }
}

/// A mapping: `len` bytes from offset `sub` of the subflow are the bytes from offset `data` of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Map {
    pub data: u64,
    pub sub: u64,
    pub len: u64,
}

impl Map {
    fn end(&self) -> u64 {
        self.sub + self.len
    }

    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.sub <= range.start && range.end <= self.end()
    }

    /// Returns the place in the stream of the mapped part of `range`.
    pub fn place(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.clamp(self.sub, self.end());
        let end = range.end.clamp(start, self.end());
        self.data + (start - self.sub)..self.data + (end - self.sub)
    }
}

/// A subflow.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub conn: Option<ConnId>,
    pub id: Option<SubflowId>,
    pub iss: Option<Seq32>,
    pub irs: Option<Seq32>,
    /// The window scales in the SYN of this end and in the SYN of the peer.
    scales: (Option<u8>, Option<u8>),
    /// The first is true if the SYN of this end permits SACK, the second if the SYN of the peer does.
    permits_sack: (bool, bool),
    /// The number of accepted payload bytes in the SYN of this end and in the SYN of the peer. Mappings do not
    /// count them (RFC 8684 appendix B.2).
    pub in_syn: (u64, u64),
    /// The number of payload bytes in the SYN of this end and in the SYN of the peer.
    offered: (u64, u64),
    // --- The sending direction.
    una: u64,
    nxt: u64,
    sacked: RangeSet,
    /// The number of duplicate acknowledgements without SACK, minus the number of segments acknowledged since.
    /// Each duplicate stands for a segment that has arrived (RFC 9937 section 6.1).
    duplicates: u64,
    /// The maximum size of a segment for which a duplicate may stand, bytes. It is a maximum, because the segment
    /// size can change.
    duplicate_len: u64,
    /// The window fields of the peer's last two acknowledgements, the newest first. The engine ignores an
    /// acknowledgement that another one has overtaken, so the engine may compare with either field.
    windows: [u16; 2],
    /// The first offset past the peer's window.
    pub edge: u64,
    fin: Option<u64>,
    /// The congestion window at the last segment outside fast recovery.
    window: u64,
    /// The segment size at the last segment.
    mss: u64,
    /// The value of `nxt` at the start of fast recovery; `None` unless the last segment left during fast recovery.
    /// Recovery ends when this offset is acknowledged. Another recovery may begin at once.
    recovering: Option<u64>,
    /// The time of the last segment that exceeded the window.
    excess_at: Option<Instant>,
    // --- The receiving direction.
    pub arrived: Arrived,
    /// The highest acknowledgement that this end has sent.
    acked: u64,
    /// Mappings of the peer that cover more than the segment in which they came.
    mappings: VecDeque<Map>,
    /// Payload that arrived before its mapping.
    unmapped: RangeSet,
}

impl Flow {
    /// Returns the scale of the windows that the peer announces. RFC 7323 section 2.2: windows are scaled only
    /// if both SYNs have the option.
    pub fn peer_shift(&self) -> u8 {
        self.scales.0.and(self.scales.1).unwrap_or(0)
    }

    /// Returns the scale of the windows that this end announces.
    pub fn local_shift(&self) -> u8 {
        self.scales.1.and(self.scales.0).unwrap_or(0)
    }

    /// Returns the number of bytes sent that the peer has acknowledged neither cumulatively nor selectively.
    fn outstanding(&self) -> u64 {
        (self.nxt - self.una).saturating_sub(self.sacked.bytes())
    }

    /// Returns whether a segment of the peer that acknowledges no new data is a duplicate acknowledgement (RFC
    /// 5681 section 2). Each duplicate means that a segment behind the missing one has arrived, so there cannot be
    /// more duplicates than segments in flight. A window update is no duplicate.
    fn is_duplicate(&self, segment: &Segment<'_>) -> bool {
        let segments = (self.nxt - self.una).div_ceil(self.mss.max(1));
        self.permits_sack != (true, true)
            && segment.len == 0
            && !segment.has(Flags::FIN)
            && !segment.signals
            && self.windows.contains(&segment.tcp.window)
            && self.duplicates < segments
    }

    /// Returns whether more ranges or mappings arrived than the oracle records.
    pub fn is_blind(&self) -> bool {
        let remembered = self.mappings.len().max(self.unmapped.len());
        remembered > MAX_REMEMBERED || self.arrived.is_full()
    }

    /// Records a SYN or SYN/ACK of this end. Returns false for a retransmission.
    pub fn on_syn_sent(&mut self, segment: &Segment<'_>, checker: &mut Checker<'_>) -> bool {
        let first = self.iss != Some(segment.tcp.seq);
        if first {
            if !segment.has(Flags::ACK) {
                *self = Flow::default();
                self.offered.0 = segment.len;
            }
            self.iss = Some(segment.tcp.seq);
            (self.una, self.nxt) = (0, 1);
        }
        if let Some((ack, irs)) = segment.ack().zip(self.irs) {
            let (taken, offered) = (ack.diff(irs.add(1)), self.offered.1);
            let possible = u64::try_from(taken).is_ok_and(|taken| taken <= offered);
            checker.check(possible, Rule::Gap, || {
                format!("acknowledges {taken} bytes of a SYN that carried {offered}")
            });
            if first && possible {
                self.in_syn.1 = taken as u64;
                self.arrived.next = 1 + self.in_syn.1;
                self.acked = self.arrived.next;
            }
        } else {
            let len = segment.len;
            checker.check(first || len == 0, Rule::Info, || {
                format!("a SYN that is repeated carries {len} bytes")
            });
        }
        self.scales.0 = segment.tcp.options.window_scale;
        self.permits_sack.0 = segment.tcp.options.sack_permitted;
        first
    }

    /// Returns the number of payload bytes in this end's SYN that `answer` acknowledges, or `None` if `answer` is
    /// to another SYN.
    pub fn taken(&self, answer: &Segment<'_>) -> Option<u64> {
        let taken = answer.ack()?.diff(self.iss?.add(1));
        u64::try_from(taken)
            .ok()
            .filter(|taken| *taken <= self.offered.0)
    }

    /// Records a SYN or SYN/ACK of the peer.
    pub fn on_syn_received(&mut self, segment: &Segment<'_>) {
        self.irs = Some(segment.tcp.seq);
        self.arrived.next = 1;
        self.acked = 1;
        self.scales.1 = segment.tcp.options.window_scale;
        self.windows[0] = segment.tcp.window;
        self.permits_sack.1 = segment.tcp.options.sack_permitted;
        if segment.ack().is_none() {
            self.offered.1 = segment.len;
        } else if let Some(taken) = self.taken(segment) {
            self.in_syn.0 = taken;
            (self.una, self.nxt) = (1 + taken, 1 + taken);
            self.edge = self.una + u64::from(segment.tcp.window);
        }
    }

    /// Checks a segment of this end that is neither SYN nor RST. Returns the place of its payload, and whether the
    /// segment has bytes that this subflow has not sent before.
    pub fn on_sent(
        &mut self,
        segment: &Segment<'_>,
        checker: &mut Checker<'_>,
    ) -> Option<(Range<u64>, bool)> {
        let start = segment.tcp.seq.offset_near(self.iss?, self.nxt)?;
        let nxt = self.nxt;
        checker.check(start <= nxt, Rule::Gap, || {
            format!("byte {start} of a subflow is sent after {nxt}")
        });
        let payload = start..start + segment.len;
        let fin = segment.has(Flags::FIN);
        if fin {
            let known = *self.fin.get_or_insert(payload.end);
            checker.check(known == payload.end, Rule::Fin, || {
                format!("FIN at {} after one at {known}", payload.end)
            });
        }
        if let Some(fin) = self.fin {
            // `max(nxt)`: a keepalive repeats the last acknowledged sequence number, which may be the FIN's.
            checker.check(payload.end <= fin.max(nxt), Rule::Fin, || {
                format!("payload {payload:?} behind FIN at {fin}")
            });
        }
        let end = payload.end + u64::from(fin);
        let new = end > self.nxt;
        self.nxt = self.nxt.max(end);
        self.check_ack(segment, checker);
        Some((payload, new))
    }

    /// Returns the acknowledgement of a segment of this end, as an offset of the stream of a plain TCP connection.
    pub fn acknowledged(&self, segment: &Segment<'_>) -> Option<u64> {
        let ack = segment.ack()?.offset_near(self.irs?, self.arrived.next)?;
        Some(ack.saturating_sub(1))
    }

    /// Checks that acknowledged data has arrived.
    fn check_ack(&mut self, segment: &Segment<'_>, checker: &mut Checker<'_>) {
        let (Some(ack), Some(irs)) = (segment.ack(), self.irs) else {
            return;
        };
        if self.is_blind() {
            return;
        }
        let next = self.arrived.next;
        let ack = ack.offset_near(irs, next).unwrap_or(0);
        let acked = self.acked;
        checker.check((acked..=next).contains(&ack), Rule::Gap, || {
            format!("acknowledges {ack} after {acked}, but only bytes below {next} have arrived")
        });
        self.acked = acked.max(ack);
    }

    /// Records a segment of the peer that is neither SYN nor RST, and returns the range of its payload.
    /// `data_ack_new` is true if the segment's DATA_ACK advances. The peer may have sent the segment for that
    /// reason, so it does not count as a duplicate acknowledgement.
    pub fn on_received(&mut self, segment: &Segment<'_>, data_ack_new: bool) -> Option<Range<u64>> {
        let ack = segment.ack()?.offset_near(self.iss?, self.una)?;
        if ack <= self.nxt {
            if ack > self.una {
                // The first of the acknowledged segments is the one that was missing, so no duplicate stands for
                // it.
                let acked_segments = (ack - self.una) / self.mss.max(1);
                let counted = acked_segments.saturating_sub(1);
                self.duplicates = self.duplicates.saturating_sub(counted);
                self.una = ack;
                self.sacked.remove_below(ack);
                if self.una == self.nxt {
                    self.duplicates = 0;
                }
            } else if ack == self.una && !data_ack_new && self.is_duplicate(segment) {
                self.duplicate_len = match self.duplicates {
                    0 => self.mss,
                    _ => self.duplicate_len.max(self.mss),
                };
                self.duplicates += 1;
            }
            if ack == self.una && segment.tcp.window != self.windows[0] {
                self.windows = [segment.tcp.window, self.windows[0]];
            }
            let window = u64::from(segment.tcp.window) << self.peer_shift();
            self.edge = self.edge.max(ack + window);
            for (left, right) in &segment.tcp.options.sack {
                let offset = |n: &Seq32| n.offset_near(self.iss?, self.una);
                if let (Some(left), Some(right)) = (offset(left), offset(right))
                    && self.una < left
                {
                    self.sacked.insert(left..right.min(self.nxt));
                }
            }
        }
        let start = segment.tcp.seq.offset_near(self.irs?, self.arrived.next)?;
        let end = start + segment.len;
        self.arrived
            .insert(start..end + u64::from(segment.has(Flags::FIN)));
        Some(start..end)
    }

    /// Inserts the place of each mapped part of the payload `range` into `stream`. `map` is the mapping in the
    /// payload's segment, if there is one. The mapping may also place earlier payload that has none.
    pub fn locate(&mut self, range: Range<u64>, map: Option<Map>, stream: &mut Arrived) {
        let covered = map.is_some_and(|map| map.covers(&range));
        if !covered {
            for map in &self.mappings {
                stream.insert(map.place(&range));
            }
            if !self.mappings.iter().any(|m| m.covers(&range)) {
                self.unmapped.insert(range.clone());
            }
        }
        let Some(map) = map else { return };
        stream.insert(map.place(&range));
        if !self.unmapped.is_empty() {
            for range in self.unmapped.iter() {
                stream.insert(map.place(&range));
            }
            self.unmapped.remove(map.sub..map.end());
        }
        let covers_more = map.sub < range.start || map.end() > range.end;
        if covers_more && self.mappings.back() != Some(&map) {
            self.remember(map);
        }
    }

    /// Keeps a mapping for later payload, and removes mappings whose payload has arrived.
    fn remember(&mut self, map: Map) {
        let arrived = self.arrived.next;
        while self.mappings.front().is_some_and(|m| m.end() <= arrived) {
            self.mappings.pop_front();
        }
        self.mappings.push_back(map);
    }

    /// Compares the engine's statistics with the packets and with the congestion window, after a segment of
    /// this end has left.
    pub fn check_flight(
        &mut self,
        stats: &SubflowStats,
        (kind, single): (SegmentKind, bool),
        checker: &mut Checker<'_>,
    ) {
        let now = checker.at;
        let mss = u64::from(stats.mss);
        let outstanding = self.outstanding();
        // The engine may subtract a segment for each duplicate acknowledgement, but never the missing segment.
        let len = self.duplicate_len.max(self.mss).max(mss);
        let arrived = (self.duplicates * len).min(outstanding.saturating_sub(1));
        let outstanding = outstanding - arrived;
        checker.check(
            stats.in_flight + stats.lost >= outstanding,
            Rule::Flight,
            || format!("{outstanding} bytes are outstanding: {stats:?}"),
        );
        // The window counts segments. Longer options shrink a segment only when it is sent, so the window may
        // still count segments of the earlier size.
        let size_before = match core::mem::replace(&mut self.mss, mss) {
            0 => mss + MAX_OPTION_GROWTH,
            size => size.max(mss),
        };
        let limit = match stats.recovery {
            // The data in flight may exceed the reduced window at first. This data may not grow above the larger
            // of two values, its size at the start of recovery and the new window (RFC 9937), plus the first
            // retransmission, which does not wait. The window before recovery may be larger than the last one that
            // this oracle saw: a spurious timeout may have been undone, or the window may have grown without a
            // segment. Twice ssthresh bounds the window before recovery, because nearly all controllers reduce the
            // window to half or more.
            LossRecovery::Fast => {
                if self.recovering.is_none_or(|end| self.una >= end) {
                    self.recovering = Some(self.nxt);
                    let window_before = stats.ssthresh.saturating_mul(2);
                    self.window = self.window.max(stats.in_flight).max(window_before);
                }
                self.window.max(stats.ssthresh).saturating_add(mss)
            }
            _ => {
                self.recovering = None;
                self.window = (stats.cwnd * size_before).div_ceil(mss);
                // One segment may always be in flight.
                self.window.max(size_before)
            }
        };
        // The engine counts the sequence number of FIN as in flight, but FIN needs no room in the window.
        let in_flight = stats
            .in_flight
            .saturating_sub(u64::from(self.fin.is_some()));
        if in_flight <= limit {
            return;
        }
        // A tail loss probe may exceed the window by one segment (RFC 8985 section 7.3). Probes are at least a
        // round trip apart; half the minimum leaves a margin. The engine does not use limited transmit (RFC
        // 3042), which may exceed the window too.
        let min_interval = stats.min_rtt / 2;
        let rare = self.excess_at.is_none_or(|at| now >= at + min_interval);
        self.excess_at = Some(now);
        let is_probe = kind == SegmentKind::Retransmission && single && rare;
        checker.check(is_probe, Rule::CongestionWindow, || {
            format!("{in_flight} bytes in flight after {kind:?}, {limit} allowed: {stats:?}")
        });
    }
}
