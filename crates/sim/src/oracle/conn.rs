//! The oracle's record of a connection, built from the packets of one end. Offsets count bytes of the stream; the
//! first byte has offset 0.

use core::ops::Range;

use braid_engine::{SegmentKind, SubflowId, TransmitInfo};
use braid_wire::mptcp::{Capable, Dss, Join, WireDsn};
use braid_wire::tcp::Flags;
use braid_wire::{Dsn64, Instant, Seq32};
use sha2::{Digest, Sha256};

use super::flow::{Arrived, Flow, Map};
use super::segment::Segment;
use super::violation::{Checker, Rule};

/// A key with its token and initial data sequence number (RFC 8684 section 3.1).
#[derive(Debug, Clone, Copy)]
struct Key {
    key: u64,
    token: u32,
    idsn: Dsn64,
}

impl Key {
    fn new(key: u64) -> Key {
        let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
        let [a, b, c, d, ..] = hash;
        let mut idsn = [0; 8];
        idsn.copy_from_slice(&hash[24..]);
        Key {
            key,
            token: u32::from_be_bytes([a, b, c, d]),
            idsn: Dsn64(u64::from_be_bytes(idsn)),
        }
    }

    /// Returns the offset of a data sequence number. A short number may stand for several offsets; the result is
    /// the one nearest to `near`. The first `in_syn` bytes of the stream were in a SYN and have no data sequence
    /// number (RFC 8684 appendix B.2).
    fn offset(&self, dsn: WireDsn, near: u64, in_syn: u64) -> Option<u64> {
        let expected = self.idsn.add(1).add(near.wrapping_sub(in_syn));
        near.checked_add_signed(dsn.expand(expected).diff(expected))
    }
}

/// Stores a key. Does not hash a known key again, because hashing is slow.
fn learn(known: &mut Option<Key>, key: u64) {
    if known.is_none_or(|known| known.key != key) {
        *known = Some(Key::new(key));
    }
}

/// The length of a mapping without an end: a quarter of the range, so that sums do not overflow.
const INFINITE_LEN: u64 = u64::MAX >> 2;

/// Returns the mapping of an MP_CAPABLE with data, on a subflow with `in_syn` bytes in its SYN.
fn first_mapping(capable: Option<Capable>, in_syn: u64) -> Option<Map> {
    let Some(Capable::Data { data_len, .. }) = capable else {
        return None;
    };
    Some(Map {
        data: in_syn,
        sub: 1 + in_syn,
        len: data_len.into(),
    })
}

/// Returns the mapping of a DSS, and whether DATA_FIN follows its last byte. `data` returns the offset of a data
/// sequence number. Of the possible offsets in the subflow the one nearest to `near` counts. Subflow sequence
/// numbers do not count the first `in_syn` bytes, which were in the SYN.
fn mapping(
    dss: Dss,
    data: impl FnOnce(WireDsn) -> Option<u64>,
    in_syn: u64,
    near: u64,
) -> Option<(Map, bool)> {
    let mapping = dss.mapping?;
    let seq = Seq32(mapping.subflow_seq);
    let sub = seq.offset_near(Seq32(0), near.saturating_sub(in_syn))?;
    let map = Map {
        data: data(mapping.dsn)?,
        sub: sub + in_syn,
        // DATA_FIN takes a data sequence number, but is no payload. An infinite mapping has no end (RFC 8684
        // section 3.7).
        len: match mapping.is_infinite() {
            true => INFINITE_LEN,
            false => u64::from(mapping.len).saturating_sub(u64::from(dss.data_fin)),
        },
    };
    Some((map, dss.data_fin))
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub opened_at: Instant,
    /// True once the engine has reported the connection as open.
    pub open: bool,
    /// True once the engine has reported the connection as closed.
    pub ended: bool,
    /// The time of the peer's last segment.
    pub last_heard: Instant,
    /// The time of the last progress, and the acknowledged offset at that time. Progress means that the peer
    /// acknowledged new data, or that there was nothing to acknowledge.
    pub moved: (Instant, u64),
    /// True once the engine has reported a fallback to TCP.
    fell_back: bool,
    /// The subflow of the last SYN with MP_CAPABLE or without MPTCP. If a SYN gets no answer, the engine may send
    /// a second SYN on another path and with another key. An answer to the first SYN then does not count.
    initial: Option<SubflowId>,
    local: Option<Key>,
    remote: Option<Key>,
    /// True once a mapping has been received.
    mapped: bool,
    /// The number of accepted payload bytes in the SYN of this end and in the SYN of the peer.
    in_syn: (u64, u64),
    // --- The sending direction.
    /// The first offset that was never sent.
    nxt: u64,
    /// The offset up to which the peer has acknowledged the stream, on any subflow.
    acked: u64,
    /// The first offset past the peer's window.
    edge: u64,
    /// The offset of this end's DATA_FIN.
    fin: Option<u64>,
    /// The end of the last mapping sent; the flag is true if that mapping has DATA_FIN.
    last: (u64, bool),
    // --- The receiving direction.
    pub arrived: Arrived,
    /// The end of the peer's stream according to DATA_FIN.
    peer_fin: Option<u64>,
    /// The end of the peer's stream according to the FIN of the initial subflow. In plain TCP this end counts.
    peer_end: Option<u64>,
    /// The right edge of the windows that this end has announced.
    announced: u64,
    /// The number of bytes handed to the application.
    pub delivered: u64,
    /// True once the oracle has stopped recording arrivals, because too many ranges arrived out of order.
    pub blind: bool,
}

impl Conn {
    pub fn new(now: Instant) -> Conn {
        Conn {
            opened_at: now,
            last_heard: now,
            moved: (now, 0),
            ..Conn::default()
        }
    }

    /// Returns whether the connection is plain TCP, in which the stream's bytes are the subflow's bytes.
    fn is_plain(&self) -> bool {
        self.fell_back || self.local.is_none() || self.remote.is_none()
    }

    /// Returns the end of the peer's stream, if it is known.
    pub fn end(&self) -> Option<u64> {
        match self.is_plain() {
            true => self.peer_end,
            false => self.peer_fin,
        }
    }

    /// Records that the engine fell back to TCP on the initial subflow, one of `flows`. After a fallback, the
    /// payload of this subflow is the stream, including payload that arrived earlier without a mapping (RFC 8684
    /// section 3.7).
    pub fn on_fallback<'a>(&mut self, flows: impl Iterator<Item = &'a mut Flow>) {
        self.fell_back = true;
        let whole = Map {
            data: 0,
            sub: 1,
            len: INFINITE_LEN,
        };
        for flow in flows.filter(|flow| self.mapped && flow.id == self.initial) {
            flow.locate(1..1, Some(whole), &mut self.arrived);
        }
    }

    /// Checks a SYN or SYN/ACK of this end. `first` is true unless the segment is a retransmission.
    pub fn on_syn_sent(
        &mut self,
        (flow, first): (&Flow, bool),
        segment: &Segment<'_>,
        info: &TransmitInfo,
        checker: &mut Checker<'_>,
    ) {
        checker.check(info.data == (0..segment.len), Rule::Info, || {
            format!("a SYN with {} bytes is called {info:?}", segment.len)
        });
        if first && segment.ack().is_some() && segment.join().is_none() {
            // All payload of the SYN may count as arrived so far. The SYN/ACK shows how much of it the engine
            // accepted.
            let (taken, delivered) = (flow.in_syn.1, self.delivered);
            self.in_syn.1 = taken;
            self.arrived = Arrived::default();
            self.arrived.insert(0..taken);
            checker.check(delivered <= taken, Rule::Gap, || {
                format!(
                    "{delivered} bytes are delivered, but only {taken} of the SYN are acknowledged"
                )
            });
        }
        if let Some(Capable::SynAck { sender_key, .. }) = segment.capable() {
            learn(&mut self.local, sender_key);
        }
        if segment.join().is_none() {
            self.initial = Some(info.subflow);
        }
        let mut kind = SegmentKind::Control;
        if let Some(Join::Syn { token, .. }) = segment.join() {
            kind = SegmentKind::JoinSyn;
            let known = self.remote.map(|key| key.token);
            checker.check(known == Some(token), Rule::Mapping, || {
                format!("joins {token:#x}, but the peer's token is {known:#x?}")
            });
        }
        checker.check(info.kind == kind, Rule::Info, || {
            format!("a SYN of the kind {kind:?} is called {:?}", info.kind)
        });
    }

    /// Records a SYN or SYN/ACK of the peer. `alive` is true if the engine has the subflow.
    pub fn on_syn_received(&mut self, flow: &Flow, segment: &Segment<'_>, alive: bool) {
        // If several SYNs are sent in parallel, the one with the first answer opens the connection.
        if alive && segment.ack().is_some() && self.remote.is_none() {
            self.initial = flow.id;
        }
        if flow.id != self.initial {
            return;
        }
        if let Some(Capable::SynAck { sender_key, .. }) = segment.capable() {
            learn(&mut self.remote, sender_key);
        }
        // RFC 7323 section 2.2: the window of a SYN is not scaled. The window begins at the acknowledged byte.
        if segment.ack().is_some() {
            let taken = flow.in_syn.0;
            self.in_syn.0 = taken;
            (self.nxt, self.acked) = (taken, taken);
            self.edge = self.edge.max(taken + u64::from(segment.tcp.window));
        }
    }

    /// Checks a segment of this end. `payload` is the place of its payload in the subflow, and `new` is true if it
    /// has bytes that the subflow has not sent before.
    pub fn on_sent(
        &mut self,
        flow: &Flow,
        (segment, info): (&Segment<'_>, &TransmitInfo),
        (payload, new): (Range<u64>, bool),
        checker: &mut Checker<'_>,
    ) {
        if let Some(Capable::Ack { sender_key, .. } | Capable::Data { sender_key, .. }) =
            segment.capable()
        {
            learn(&mut self.local, sender_key);
        }
        self.check_data_ack(flow, segment, checker);
        let map = self.map_sent(flow, segment, payload.start, checker);
        if info.kind == SegmentKind::Control {
            // A keepalive or window probe repeats a byte of the subflow.
            checker.check(!new || segment.len == 0, Rule::Info, || {
                format!("payload {payload:?} is sent as a control segment")
            });
            return;
        }
        let place = match map {
            Some(map) => {
                checker.check(map.covers(&payload), Rule::Mapping, || {
                    format!("{map:?} does not cover the payload {payload:?}")
                });
                map.place(&payload)
            }
            None => {
                checker.check(self.is_plain(), Rule::Mapping, || {
                    format!("no mapping for the payload {payload:?}")
                });
                payload.start.saturating_sub(1)..payload.end.saturating_sub(1)
            }
        };
        let edge = match self.is_plain() {
            true => flow.edge.saturating_sub(1),
            false => self.edge,
        };
        self.check_place(&place, (info, new, edge), checker);
    }

    /// Checks the place in the stream of a segment's payload.
    fn check_place(
        &mut self,
        place: &Range<u64>,
        (info, new, edge): (&TransmitInfo, bool, u64),
        checker: &mut Checker<'_>,
    ) {
        let nxt = self.nxt;
        checker.check(place.start <= nxt, Rule::Gap, || {
            format!("{place:?} of the stream is sent after {nxt}")
        });
        checker.check(!new || place.end <= edge, Rule::PeerWindow, || {
            format!("{place:?} of the stream is sent, but the peer's window ends at {edge}")
        });
        if let Some(fin) = self.fin {
            checker.check(place.end <= fin, Rule::Fin, || {
                format!("{place:?} of the stream lies behind DATA_FIN at {fin}")
            });
        }
        let kind = match (new, place.start < nxt) {
            (false, _) => SegmentKind::Retransmission,
            (true, true) => SegmentKind::Copy,
            (true, false) => SegmentKind::New,
        };
        checker.check((info.kind, &info.data) == (kind, place), Rule::Info, || {
            format!("{kind:?} of {place:?} is called {info:?}")
        });
        self.nxt = nxt.max(place.end);
    }

    /// Checks and returns the mapping of a segment of this end. The payload starts at offset `near` of the
    /// subflow.
    fn map_sent(
        &mut self,
        flow: &Flow,
        segment: &Segment<'_>,
        near: u64,
        checker: &mut Checker<'_>,
    ) -> Option<Map> {
        let in_syn = flow.in_syn.0;
        if let Some(map) = first_mapping(segment.capable(), in_syn) {
            return Some(map);
        }
        let data = |dsn| self.local?.offset(dsn, self.nxt, self.in_syn.0);
        let (map, data_fin) = mapping(segment.dss()?, data, in_syn, near)?;
        let end = map.data + map.len;
        self.check_last(map.data..end, data_fin, checker);
        if data_fin {
            let known = *self.fin.get_or_insert(end);
            let nxt = self.nxt;
            checker.check(known == end && nxt <= end, Rule::Fin, || {
                format!("DATA_FIN at {end}, after one at {known}, with all below {nxt} sent")
            });
        }
        Some(map)
    }

    /// Checks that either all mappings that end with the last byte have DATA_FIN, or none. Linux overlooks a
    /// DATA_FIN on a later copy of a mapping.
    fn check_last(&mut self, mapping: Range<u64>, fin: bool, checker: &mut Checker<'_>) {
        if mapping.is_empty() {
            return;
        }
        let (end, last_has_fin) = self.last;
        if mapping.end > end {
            self.last = (mapping.end, fin);
        }
        let consistent = mapping.end != end || last_has_fin == fin;
        checker.check(consistent, Rule::Fin, || {
            format!("DATA_FIN on one copy of {mapping:?} and not on another")
        });
    }

    /// Checks that data acknowledged at the data level has arrived, and that the right edge of the window does not
    /// move left.
    fn check_data_ack(&mut self, flow: &Flow, segment: &Segment<'_>, checker: &mut Checker<'_>) {
        let next = self.arrived.next;
        let ack = match segment.dss().and_then(|dss| dss.data_ack) {
            Some(ack) => self
                .remote
                .and_then(|key| key.offset(ack, next, self.in_syn.1)),
            // An acknowledgement counts the FIN, which is no byte of the stream.
            None if self.is_plain() => flow
                .acknowledged(segment)
                .map(|ack| ack.min(self.peer_end.unwrap_or(u64::MAX))),
            None => None,
        };
        let Some(ack) = ack.filter(|_| !self.blind) else {
            return;
        };
        let fin = u64::from(self.peer_fin == Some(next));
        checker.check(ack <= next + fin, Rule::Gap, || {
            format!("DATA_ACK {ack}, but only bytes below {next} have arrived")
        });
        let shift = flow.local_shift();
        let edge = ack + (u64::from(segment.tcp.window) << shift);
        let announced = self.announced;
        // Scaling rounds the window down by less than one unit (RFC 7323 section 2.4), and the announced edge may
        // count a FIN that `ack` leaves out.
        checker.check(
            edge + (1 << shift) + 1 > announced,
            Rule::WindowShrunk,
            || format!("the window ends at {edge}, after {announced}"),
        );
        self.announced = announced.max(edge);
    }

    /// Records a segment of the peer that is neither SYN nor RST.
    pub fn on_received(&mut self, now: Instant, flow: &mut Flow, segment: &Segment<'_>) {
        self.last_heard = now;
        let ack = segment.dss().and_then(|dss| dss.data_ack);
        let ack = ack.and_then(|ack| self.local?.offset(ack, self.nxt, self.in_syn.0));
        let advances = ack.is_some_and(|ack| ack > self.acked);
        let sent = self.nxt + u64::from(self.fin.is_some());
        self.acked = self.acked.max(ack.unwrap_or(0).min(sent));
        let Some(payload) = flow.on_received(segment, advances) else {
            return;
        };
        let window = u64::from(segment.tcp.window) << flow.peer_shift();
        let initial = flow.id == self.initial;
        let capable = segment.capable().filter(|_| initial);
        if let Some(Capable::Ack { sender_key, .. } | Capable::Data { sender_key, .. }) = capable {
            learn(&mut self.remote, sender_key);
            // Before the first DATA_ACK the window counts from the first byte.
            self.edge = self.edge.max(self.in_syn.0 + window);
        }
        if let Some(ack) = ack {
            self.edge = self.edge.max(ack + window);
        }
        let map = self.map_received(flow, segment, payload.start);
        self.mapped |= map.is_some();
        let plain = payload.start.saturating_sub(1)..payload.end.saturating_sub(1);
        if initial && segment.has(Flags::FIN) {
            self.peer_end.get_or_insert(plain.end);
        }
        if initial && !self.mapped {
            self.arrived.insert(plain);
        } else if segment.len > 0 {
            flow.locate(payload, map, &mut self.arrived);
        }
        self.blind |= flow.is_blind() || self.arrived.is_full();
    }

    /// Returns the mapping of a segment of the peer. The payload starts at offset `near` of the subflow.
    fn map_received(&mut self, flow: &Flow, segment: &Segment<'_>, near: u64) -> Option<Map> {
        let in_syn = flow.in_syn.1;
        let capable = segment.capable().filter(|_| flow.id == self.initial);
        if let Some(map) = first_mapping(capable, in_syn) {
            return Some(map);
        }
        let data = |dsn| self.remote?.offset(dsn, self.arrived.next, self.in_syn.1);
        let (map, data_fin) = mapping(segment.dss()?, data, in_syn, near)?;
        if data_fin {
            self.peer_fin.get_or_insert(map.data + map.len);
        }
        Some(map)
    }
}
