//! A connection as the packets of one end show it. Offsets count from the first byte of the stream, which
//! has offset 0.

use core::ops::Range;

use braid_engine::{SegmentKind, SubflowId, TransmitInfo};
use braid_wire::mptcp::{Capable, DssMapping, Join, WireDsn};
use braid_wire::tcp::Flags;
use braid_wire::{Dsn64, Instant, Seq32};
use sha2::{Digest, Sha256};

use super::flow::{Arrived, Flow, Map, Placed};
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

    /// Returns the offset of a data sequence number near the offset `near`. The first `in_syn` bytes of
    /// the stream have no data sequence number (RFC 8684 appendix B.2).
    fn offset(&self, dsn: WireDsn, near: u64, in_syn: u64) -> Option<u64> {
        let expected = self.idsn.add(1).add(near.wrapping_sub(in_syn));
        near.checked_add_signed(dsn.expand(expected).diff(expected))
    }
}

/// Notes a key. Each key is hashed only once, because hashing is slow.
fn learn(known: &mut Option<Key>, key: u64) {
    if known.is_none_or(|known| known.key != key) {
        *known = Some(Key::new(key));
    }
}

/// Returns the offset of a subflow sequence number near the offset `near`. The first `in_syn` bytes have
/// no number.
fn numbered_from(seq: u32, near: u64, in_syn: u64) -> Option<u64> {
    let sub = Seq32(seq).offset_near(Seq32(0), near.saturating_sub(in_syn))?;
    Some(sub + in_syn)
}

/// The length of a mapping without an end; a quarter of the range, so that sums do not overflow.
const INFINITE_LEN: u64 = u64::MAX >> 2;

/// Returns the payload bytes of a mapping; the infinite one has no end (RFC 8684 section 3.7).
fn mapped(mapping: &DssMapping, data_fin: bool) -> u64 {
    match mapping.is_infinite() {
        true => INFINITE_LEN,
        false => u64::from(mapping.len).saturating_sub(u64::from(data_fin)),
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub opened_at: Instant,
    /// The engine has reported the connection.
    pub open: bool,
    /// The engine has reported the connection's end.
    pub ended: bool,
    pub last_heard: Instant,
    /// The last time at which the peer acknowledged new data, or nothing was left to acknowledge; and the
    /// offset up to which it had acknowledged then.
    pub moved: (Instant, u64),
    /// MPTCP is not in use.
    fell_back: bool,
    /// The subflow of the last MP_CAPABLE or plain SYN. An unanswered SYN may be followed by another, on
    /// another path and with another key; answers to the first then no longer count.
    initial: Option<SubflowId>,
    local: Option<Key>,
    remote: Option<Key>,
    /// A mapping has been received.
    mapped: bool,
    /// Payload of SYNs that was taken: this end's, and the peer's.
    in_syn: (u64, u64),
    // --- sent
    /// The first offset never sent.
    nxt: u64,
    /// The offset up to which the peer has acknowledged, on any subflow.
    acked: u64,
    /// The first offset past the peer's window.
    edge: u64,
    fin: Option<u64>,
    /// The end of the last mapping sent; true if DATA_FIN is on that mapping.
    last: (u64, bool),
    // --- received
    pub arrived: Arrived,
    /// The end of the peer's stream by DATA_FIN, and by the FIN of the initial subflow.
    peer_fin: Option<u64>,
    peer_end: Option<u64>,
    /// The right edge of the announced windows.
    announced: u64,
    /// Bytes handed to the application.
    pub delivered: u64,
    /// So much data came out of order that the oracle no longer follows.
    pub blind: bool,
}

impl Conn {
    pub fn new(now: Instant) -> Conn {
        Conn {
            opened_at: now,
            open: false,
            ended: false,
            last_heard: now,
            moved: (now, 0),
            fell_back: false,
            initial: None,
            local: None,
            remote: None,
            mapped: false,
            in_syn: (0, 0),
            nxt: 0,
            acked: 0,
            edge: 0,
            fin: None,
            last: (0, false),
            arrived: Arrived::default(),
            peer_fin: None,
            peer_end: None,
            announced: 0,
            delivered: 0,
            blind: false,
        }
    }

    /// Returns whether the stream's bytes are the subflow's bytes.
    fn is_plain(&self) -> bool {
        self.fell_back || self.local.is_none() || self.remote.is_none()
    }

    /// Returns the end of the peer's stream, once that is known.
    pub fn end(&self) -> Option<u64> {
        match self.is_plain() {
            true => self.peer_end,
            false => self.peer_fin,
        }
    }

    /// Notes that the engine fell back, with one of `flows` left. All payload of that subflow belongs to
    /// the stream, in order, even payload that came without a mapping just before (RFC 8684 section 3.7).
    pub fn on_fallback<'a>(&mut self, flows: impl Iterator<Item = &'a mut Flow>) {
        self.fell_back = true;
        let whole = Map {
            data: 0,
            sub: 1,
            len: INFINITE_LEN,
        };
        for flow in flows.filter(|flow| self.mapped && flow.id == self.initial) {
            let arrived = &mut self.arrived;
            flow.locate(1..1, Some(whole), |place| {
                if !place.is_empty() {
                    arrived.insert(place);
                }
            });
        }
    }

    /// Checks this end's SYN or SYN/ACK; `first` marks the first one of its subflow.
    pub fn on_syn_sent(
        &mut self,
        (flow, first): (&Flow, bool),
        segment: &Segment,
        info: &TransmitInfo,
        checker: &mut Checker<'_>,
    ) {
        checker.check(info.data == (0..segment.len), Rule::Info, || {
            format!("a SYN with {} bytes is called {info:?}", segment.len)
        });
        if first && segment.ack.is_some() && segment.join.is_none() {
            let (taken, delivered) = (flow.in_syn.1, self.delivered);
            self.in_syn.1 = taken;
            self.arrived = Arrived::default();
            self.arrived.insert(0..taken);
            checker.check(delivered <= taken, Rule::Gap, || {
                format!("{delivered} bytes are delivered, {taken} of the SYN are acknowledged")
            });
        }
        if let Some(Capable::SynAck { sender_key, .. }) = segment.capable {
            learn(&mut self.local, sender_key);
        }
        if segment.join.is_none() {
            self.initial = Some(info.subflow);
        }
        let Some(Join::Syn { token, .. }) = segment.join else {
            checker.check(info.kind == SegmentKind::Control, Rule::Info, || {
                format!("a SYN without MP_JOIN is called {:?}", info.kind)
            });
            return;
        };
        checker.check(info.kind == SegmentKind::JoinSyn, Rule::Info, || {
            format!("a SYN with MP_JOIN is called {:?}", info.kind)
        });
        let known = self.remote.map(|key| key.token);
        checker.check(known == Some(token), Rule::Mapping, || {
            format!("joins {token:#x}, the peer's token is {known:#x?}")
        });
    }

    /// Notes the peer's SYN or SYN/ACK. `taken` means that its subflow goes on.
    pub fn on_syn_received(&mut self, flow: &Flow, segment: &Segment, taken: bool) {
        // Among several SYNs in parallel the one that is answered first opens the connection.
        if taken && segment.ack.is_some() && self.remote.is_none() {
            self.initial = flow.id;
        }
        if flow.id != self.initial {
            return;
        }
        if let Some(Capable::SynAck { sender_key, .. }) = segment.capable {
            learn(&mut self.remote, sender_key);
        }
        // The window of a SYN is not scaled, and counts from the first byte after the acknowledged ones.
        if segment.ack.is_some() {
            let taken = flow.in_syn.0;
            self.in_syn.0 = taken;
            (self.nxt, self.acked) = (taken, taken);
            self.edge = self.edge.max(taken + u64::from(segment.window));
        }
    }

    /// Checks a segment of this end, which is `placed` in its subflow.
    pub fn on_sent(
        &mut self,
        flow: &Flow,
        (segment, info): (&Segment, &TransmitInfo),
        placed: &Placed,
        checker: &mut Checker<'_>,
    ) {
        if let Some(Capable::Ack { sender_key, .. } | Capable::Data { sender_key, .. }) =
            segment.capable
        {
            learn(&mut self.local, sender_key);
        }
        self.check_data_ack(flow, segment, checker);
        let map = self.map_sent(flow, segment, placed.payload.start, checker);
        if info.kind == SegmentKind::Control {
            // A probe repeats a byte of the subflow.
            checker.check(!placed.new || segment.len == 0, Rule::Info, || {
                format!("payload {:?} goes as control", placed.payload)
            });
            return;
        }
        let place = match map {
            Some(map) => {
                checker.check(map.covers(&placed.payload), Rule::Mapping, || {
                    format!("{map:?} does not cover the payload {:?}", placed.payload)
                });
                map.place(&placed.payload)
            }
            None => {
                checker.check(self.is_plain(), Rule::Mapping, || {
                    format!("no mapping for the payload {:?}", placed.payload)
                });
                placed.payload.start.saturating_sub(1)..placed.payload.end.saturating_sub(1)
            }
        };
        let edge = match self.is_plain() {
            true => flow.edge.saturating_sub(1),
            false => self.edge,
        };
        self.check_place(&place, (info, placed.new, edge), checker);
    }

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
            format!("{place:?} of the stream is sent, the peer takes what is below {edge}")
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

    /// Checks and returns the mapping of a segment of this end. Its payload starts at `near` and may
    /// carry DATA_FIN.
    fn map_sent(
        &mut self,
        flow: &Flow,
        segment: &Segment,
        near: u64,
        checker: &mut Checker<'_>,
    ) -> Option<Map> {
        let in_syn = flow.in_syn.0;
        if let Some(Capable::Data { data_len, .. }) = segment.capable {
            return Some(Map {
                data: in_syn,
                sub: 1 + in_syn,
                len: data_len.into(),
            });
        }
        let dss = segment.dss?;
        let mapping = dss.mapping?;
        let data = self.local?.offset(mapping.dsn, self.nxt, self.in_syn.0)?;
        let len = mapped(&mapping, dss.data_fin);
        self.check_last(data..data + len, dss.data_fin, checker);
        if dss.data_fin {
            let at = data + len;
            let known = *self.fin.get_or_insert(at);
            let nxt = self.nxt;
            checker.check(known == at && nxt <= at, Rule::Fin, || {
                format!("DATA_FIN at {at}, after one at {known}, with all below {nxt} sent")
            });
        }
        Some(Map {
            data,
            sub: numbered_from(mapping.subflow_seq, near, in_syn)?,
            len,
        })
    }

    /// Checks that either all mappings that end with the last byte carry DATA_FIN, or none: Linux
    /// overlooks DATA_FIN on one that comes late.
    fn check_last(&mut self, mapping: Range<u64>, fin: bool, checker: &mut Checker<'_>) {
        if mapping.is_empty() {
            return;
        }
        let (end, rides) = self.last;
        if mapping.end > end {
            self.last = (mapping.end, fin);
        }
        checker.check(mapping.end != end || rides == fin, Rule::Fin, || {
            format!("DATA_FIN on one copy of {mapping:?} and not on another")
        });
    }

    /// Checks that acknowledged data has arrived at the data level, and that the window is not taken
    /// back.
    fn check_data_ack(&mut self, flow: &Flow, segment: &Segment, checker: &mut Checker<'_>) {
        let next = self.arrived.next;
        let ack = match segment.dss.and_then(|dss| dss.data_ack) {
            Some(ack) => self
                .remote
                .and_then(|key| key.offset(ack, next, self.in_syn.1)),
            // FIN is acknowledged too, but is no byte of the stream.
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
            format!("DATA_ACK {ack}, with all below {next} here")
        });
        let shift = flow.local_shift();
        let edge = ack + (u64::from(segment.window) << shift);
        let announced = self.announced;
        checker.check(
            edge + (1 << shift) + 1 > announced,
            Rule::WindowShrunk,
            || format!("the window ends at {edge}, after {announced}"),
        );
        self.announced = announced.max(edge);
    }

    /// Notes a segment of the peer, not a SYN or RST.
    pub fn on_received(&mut self, now: Instant, flow: &mut Flow, segment: &Segment) {
        self.last_heard = now;
        let ack = segment.dss.and_then(|dss| dss.data_ack);
        let ack = ack.and_then(|ack| self.local?.offset(ack, self.nxt, self.in_syn.0));
        let news = ack.is_some_and(|ack| ack > self.acked);
        let sent = self.nxt + u64::from(self.fin.is_some());
        self.acked = self.acked.max(ack.unwrap_or(0).min(sent));
        let Some(payload) = flow.on_received(segment, news) else {
            return;
        };
        let window = u64::from(segment.window) << flow.peer_shift();
        let initial = flow.id == self.initial;
        let capable = segment.capable.filter(|_| initial);
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
            let arrived = &mut self.arrived;
            flow.locate(payload, map, |place| {
                if !place.is_empty() {
                    arrived.insert(place);
                }
            });
        }
        self.blind |= flow.is_blind() || self.arrived.is_full();
    }

    /// Returns the mapping of a segment of the peer whose payload starts at `near`.
    fn map_received(&mut self, flow: &Flow, segment: &Segment, near: u64) -> Option<Map> {
        let in_syn = flow.in_syn.1;
        if let Some(Capable::Data { data_len, .. }) =
            segment.capable.filter(|_| flow.id == self.initial)
        {
            return Some(Map {
                data: in_syn,
                sub: 1 + in_syn,
                len: data_len.into(),
            });
        }
        let dss = segment.dss?;
        let mapping = dss.mapping?;
        let next = self.arrived.next;
        let data = self.remote?.offset(mapping.dsn, next, self.in_syn.1)?;
        let len = mapped(&mapping, dss.data_fin);
        if dss.data_fin {
            self.peer_fin.get_or_insert(data + len);
        }
        Some(Map {
            data,
            sub: numbered_from(mapping.subflow_seq, near, in_syn)?,
            len,
        })
    }
}
