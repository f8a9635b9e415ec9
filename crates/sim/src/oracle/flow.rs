//! A subflow (or TCP connection) as the packets of one end show it. Offsets count from the SYN, which has
//! offset 0.

use core::ops::Range;
use std::collections::VecDeque;

use braid_engine::buffer::RangeSet;
use braid_engine::stats::{LossRecovery, SubflowStats};
use braid_engine::{ConnId, SegmentKind, SubflowId};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, Seq32};

use super::segment::Segment;
use super::violation::{Checker, Rule};

/// Most ranges and mappings remembered of one subflow; beyond that its receiving side is no longer
/// judged.
const MAX_REMEMBERED: usize = 16_384;

/// Bytes by which the options grow when data sequence numbers and DATA_ACKs are sent in full.
const MAX_OPTION_GROWTH: u64 = 8;

/// The ranges of a sequence that arrived, in any order.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// The first missing offset.
    pub next: u64,
    behind: RangeSet,
}

impl Arrived {
    pub fn insert(&mut self, range: Range<u64>) {
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

/// Bytes of the subflow that carry bytes of the stream.
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

/// A segment of this end, in offsets.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub payload: Range<u64>,
    /// The segment has bytes that were not sent on this subflow before.
    pub new: bool,
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    pub conn: Option<ConnId>,
    pub id: Option<SubflowId>,
    pub iss: Option<Seq32>,
    pub irs: Option<Seq32>,
    /// Window scales of the SYNs: this end's, and the peer's.
    scales: (Option<u8>, Option<u8>),
    /// The SYNs permit SACK.
    takes_sack: (bool, bool),
    /// Payload of the SYNs that was taken, of this end and the peer. No mapping counts it (RFC 8684
    /// appendix B.2).
    pub in_syn: (u64, u64),
    /// Payload that the SYNs had.
    offered: (u64, u64),
    // --- sent
    una: u64,
    nxt: u64,
    sacked: RangeSet,
    /// Duplicate acknowledgements where there is no SACK, each for a segment that has arrived (RFC 9937
    /// section 6.1), less the segments acknowledged since.
    duplicates: u64,
    /// The longest segment that a duplicate may stand for, bytes: the size may have changed since.
    duplicate_len: u64,
    /// Window fields of the peer's last acknowledgements, the newest first. The engine may have ignored
    /// an acknowledgement that was overtaken.
    windows: [u16; 2],
    /// The first offset past the peer's window.
    pub edge: u64,
    fin: Option<u64>,
    /// The congestion window when last seen outside fast recovery.
    window: u64,
    /// The segment size at that time.
    mss: u64,
    /// The next offset when fast recovery began, if the last segment left in it. Recovery is over once
    /// all bytes below are acknowledged, and another one may follow at once.
    recovering: Option<u64>,
    /// The time at which a segment last left although the window was used up.
    excess_at: Option<Instant>,
    // --- received
    pub arrived: Arrived,
    acked: u64,
    mappings: VecDeque<Map>,
    /// Payload that came before its mapping.
    unmapped: RangeSet,
}

impl Flow {
    /// Returns the shift of the windows that the peer announces.
    pub fn peer_shift(&self) -> u8 {
        self.scales.0.and(self.scales.1).unwrap_or(0)
    }

    /// Returns the shift of the windows announced here.
    pub fn local_shift(&self) -> u8 {
        self.scales.1.and(self.scales.0).unwrap_or(0)
    }

    /// Returns the bytes sent that the peer has not acknowledged, selectively or not.
    fn outstanding(&self) -> u64 {
        (self.nxt - self.una).saturating_sub(self.sacked.bytes())
    }

    /// Returns whether a segment of the peer that acknowledges nothing new is a duplicate
    /// acknowledgement, each of which tells of an arrival behind the missing data (RFC 5681 section 2). A
    /// window update is none, and there are no more duplicates than segments.
    fn is_duplicate(&self, segment: &Segment) -> bool {
        let segments = (self.nxt - self.una).div_ceil(self.mss.max(1));
        self.takes_sack != (true, true)
            && segment.len == 0
            && !segment.has(Flags::FIN)
            && !segment.signals
            && self.windows.contains(&segment.window)
            && self.duplicates < segments
    }

    /// Returns whether more ranges came than are remembered.
    pub fn is_blind(&self) -> bool {
        let remembered = self.mappings.len().max(self.unmapped.len());
        remembered > MAX_REMEMBERED || self.arrived.is_full()
    }

    /// Notes this end's SYN or SYN/ACK. Returns whether it is the first.
    pub fn on_syn_sent(&mut self, segment: &Segment, checker: &mut Checker<'_>) -> bool {
        let first = self.iss != Some(segment.seq);
        if first {
            if !segment.has(Flags::ACK) {
                *self = Flow::default();
                self.offered.0 = segment.len;
            }
            self.iss = Some(segment.seq);
            (self.una, self.nxt) = (0, 1);
        }
        if let Some((ack, irs)) = segment.ack.zip(self.irs) {
            let (taken, came) = (ack.diff(irs.add(1)), self.offered.1);
            let sound = u64::try_from(taken).is_ok_and(|taken| taken <= came);
            checker.check(sound, Rule::Gap, || {
                format!("acknowledges {taken} bytes of a SYN that carried {came}")
            });
            if first && sound {
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
        self.scales.0 = segment.scale;
        self.takes_sack.0 = segment.takes_sack;
        first
    }

    /// Returns how much of the payload of this end's SYN an answer takes; `None` if it answers another
    /// SYN.
    pub fn taken(&self, answer: &Segment) -> Option<u64> {
        let taken = answer.ack?.diff(self.iss?.add(1));
        u64::try_from(taken)
            .ok()
            .filter(|taken| *taken <= self.offered.0)
    }

    /// Notes the peer's SYN or SYN/ACK.
    pub fn on_syn_received(&mut self, segment: &Segment) {
        self.irs = Some(segment.seq);
        self.arrived.next = 1;
        self.acked = 1;
        self.scales.1 = segment.scale;
        self.windows[0] = segment.window;
        self.takes_sack.1 = segment.takes_sack;
        if segment.ack.is_none() {
            self.offered.1 = segment.len;
        } else if let Some(taken) = self.taken(segment) {
            self.in_syn.0 = taken;
            (self.una, self.nxt) = (1 + taken, 1 + taken);
            self.edge = self.una + u64::from(segment.window);
        }
    }

    /// Checks a segment of this end, not a SYN or RST, and returns its place.
    pub fn on_sent(&mut self, segment: &Segment, checker: &mut Checker<'_>) -> Option<Placed> {
        let start = segment.seq.offset_near(self.iss?, self.nxt)?;
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
            // A probe repeats the last acknowledged byte, even if that is FIN.
            checker.check(payload.end <= fin.max(nxt), Rule::Fin, || {
                format!("payload {payload:?} behind FIN at {fin}")
            });
        }
        let end = payload.end + u64::from(fin);
        let new = end > self.nxt;
        self.nxt = self.nxt.max(end);
        self.check_ack(segment, checker);
        Some(Placed { payload, new })
    }

    /// Returns the acknowledgement of a segment of this end, as an offset of the stream if that is the
    /// subflow's.
    pub fn acknowledged(&self, segment: &Segment) -> Option<u64> {
        let ack = segment.ack?.offset_near(self.irs?, self.arrived.next)?;
        Some(ack.saturating_sub(1))
    }

    /// Checks that acknowledged data has arrived.
    fn check_ack(&mut self, segment: &Segment, checker: &mut Checker<'_>) {
        let (Some(ack), Some(irs)) = (segment.ack, self.irs) else {
            return;
        };
        if self.is_blind() {
            return;
        }
        let next = self.arrived.next;
        let ack = ack.offset_near(irs, next).unwrap_or(0);
        let acked = self.acked;
        checker.check((acked..=next).contains(&ack), Rule::Gap, || {
            format!("acknowledges {ack} after {acked}, with all below {next} here")
        });
        self.acked = acked.max(ack);
    }

    /// Notes a segment of the peer, not a SYN or RST, and returns its payload. A segment that brings
    /// `news` of the data level may have been sent for that alone.
    pub fn on_received(&mut self, segment: &Segment, news: bool) -> Option<Range<u64>> {
        let ack = segment.ack?.offset_near(self.iss?, self.una)?;
        if ack <= self.nxt {
            if ack > self.una {
                // The first of these segments was the missing one, so no duplicate stood for it.
                let told = (ack - self.una) / self.mss.max(1);
                self.duplicates = self.duplicates.saturating_sub(told.saturating_sub(1));
                self.una = ack;
                self.sacked.remove_below(ack);
                if self.una == self.nxt {
                    self.duplicates = 0;
                }
            } else if ack == self.una && !news && self.is_duplicate(segment) {
                self.duplicate_len = match self.duplicates {
                    0 => self.mss,
                    _ => self.duplicate_len.max(self.mss),
                };
                self.duplicates += 1;
            }
            if ack == self.una && segment.window != self.windows[0] {
                self.windows = [segment.window, self.windows[0]];
            }
            let window = u64::from(segment.window) << self.peer_shift();
            self.edge = self.edge.max(ack + window);
            for (left, right) in &segment.sack {
                let offset = |n: &Seq32| n.offset_near(self.iss?, self.una);
                if let (Some(left), Some(right)) = (offset(left), offset(right))
                    && self.una < left
                {
                    self.sacked.insert(left..right.min(self.nxt));
                }
            }
        }
        let start = segment.seq.offset_near(self.irs?, self.arrived.next)?;
        let end = start + segment.len;
        self.arrived
            .insert(start..end + u64::from(segment.has(Flags::FIN)));
        Some(start..end)
    }

    /// Calls `place` with the place in the stream of payload `range`, as far as that is known. `map` is
    /// the mapping of the payload's segment, if any.
    pub fn locate(
        &mut self,
        range: Range<u64>,
        map: Option<Map>,
        mut place: impl FnMut(Range<u64>),
    ) {
        let covered = map.is_some_and(|map| map.covers(&range));
        if !covered {
            for map in &self.mappings {
                place(map.place(&range));
            }
            if !self.mappings.iter().any(|m| m.covers(&range)) {
                self.unmapped.insert(range.clone());
            }
        }
        let Some(map) = map else { return };
        place(map.place(&range));
        if !self.unmapped.is_empty() {
            for range in self.unmapped.iter() {
                place(map.place(&range));
            }
            self.unmapped.remove(map.sub..map.end());
        }
        let elsewhere = map.sub < range.start || map.end() > range.end;
        if elsewhere && self.mappings.back() != Some(&map) {
            self.remember(map);
        }
    }

    fn remember(&mut self, map: Map) {
        let passed = self.arrived.next;
        while self.mappings.front().is_some_and(|m| m.end() <= passed) {
            self.mappings.pop_front();
        }
        self.mappings.push_back(map);
    }

    /// Compares the engine's figures with the packets and with its window, after a segment of this end
    /// has left.
    pub fn check_flight(
        &mut self,
        now: Instant,
        stats: &SubflowStats,
        (kind, single): (SegmentKind, bool),
        checker: &mut Checker<'_>,
    ) {
        let mss = u64::from(stats.mss);
        let outstanding = self.outstanding();
        // The missing segment itself has not arrived.
        let len = self.duplicate_len.max(self.mss).max(mss);
        let told = (self.duplicates * len).min(outstanding.saturating_sub(1));
        let outstanding = outstanding - told;
        checker.check(
            stats.in_flight + stats.lost >= outstanding,
            Rule::Flight,
            || format!("{outstanding} bytes are outstanding: {stats:?}"),
        );
        // Longer options make segments smaller at the moment of sending, and the window counts segments.
        let before = match core::mem::replace(&mut self.mss, mss) {
            0 => mss + MAX_OPTION_GROWTH,
            before => before.max(mss),
        };
        let limit = match stats.recovery {
            // At first the flight may exceed the reduced window, but it grows neither above its size
            // before nor above the new window (RFC 9937); the first retransmission does not wait. The
            // size before may exceed the window last seen: if a timeout turned out spurious just before,
            // the window that it had closed is open again, and a window may have grown while nothing was
            // sent. Nearly all controllers halve the window at most.
            LossRecovery::Fast => {
                if self.recovering.is_none_or(|end| self.una >= end) {
                    self.recovering = Some(self.nxt);
                    let before = stats.ssthresh.saturating_mul(2);
                    self.window = self.window.max(stats.in_flight).max(before);
                }
                self.window.max(stats.ssthresh).saturating_add(mss)
            }
            _ => {
                self.recovering = None;
                self.window = (stats.cwnd * before).div_ceil(mss);
                // One segment may always be in flight.
                self.window.max(before)
            }
        };
        // FIN takes a sequence number and no window.
        let in_flight = stats
            .in_flight
            .saturating_sub(u64::from(self.fin.is_some()));
        if in_flight <= limit {
            return;
        }
        // A tail loss probe leaves although the window is used up (RFC 8985 section 7.3): one segment a
        // round trip. The engine does not use limited transmit (RFC 3042).
        let pause = stats.min_rtt / 2;
        let rare = self.excess_at.is_none_or(|at| now >= at + pause);
        self.excess_at = Some(now);
        let excused = kind == SegmentKind::Retransmission && single && rare;
        checker.check(excused, Rule::CongestionWindow, || {
            format!("{in_flight} bytes in flight after {kind:?}, {limit} allowed: {stats:?}")
        });
    }
}
