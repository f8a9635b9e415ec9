//! The segments of a log whose fates are not final.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::ConnId;
use braid_wire::Instant;

use super::record::Segment;
use crate::world::{LinkId, NodeId};

/// The maximum number of segments whose fates are not final. A guess that bounds memory.
pub const MAX_OPEN: usize = 1 << 16;

/// An end of a connection.
pub(super) type End = (NodeId, ConnId);

/// A segment whose fate is not final.
struct Open {
    /// The record, with the facts so far.
    record: Segment<'static>,
    /// The number of the segment's packets on links. It exceeds one if a link duplicated the segment, or if a
    /// middlebox cut it.
    on_links: u32,
}

impl Open {
    /// Returns whether no packet of the segment is on a link, and none of its bytes wait behind a hole in the
    /// stream.
    fn is_final(&self) -> bool {
        self.on_links == 0 && self.record.fresh == 0
    }
}

/// Follows segments from host to host.
#[derive(Default)]
pub(super) struct Segments {
    /// Segments by number. The numbers are in order of sending.
    open: BTreeMap<u64, Open>,
    /// Segments that arrived and wait behind a hole in the stream of a connection: the offset of the segment's
    /// end, and its number.
    waiting: BTreeMap<End, BTreeSet<(u64, u64)>>,
    /// Segments that are final unless another part appears. A middlebox that cuts a segment hands the parts to a
    /// link one after the other, and the link may drop the first part before it gets the second.
    provisional: Vec<u64>,
    finalized: Vec<Segment<'static>>,
}

impl Segments {
    /// Records that a host sends a segment. `record` has no fate yet.
    pub fn on_sent(&mut self, record: Segment<'static>) {
        if self.open.len() >= MAX_OPEN
            && let Some((oldest, _)) = self.open.first_key_value()
        {
            self.finalize(*oldest);
        }
        let on_links = 0;
        self.open.insert(record.id, Open { record, on_links });
    }

    /// Counts one more packet of the segment on links: a node handed it to a link, or a link duplicated it.
    pub fn on_link(&mut self, id: u64, link: LinkId) {
        if let Some(segment) = self.open.get_mut(&id) {
            segment.on_links += 1;
            segment.record.link.get_or_insert(link.0);
        }
    }

    /// Counts one packet of the segment less on links: a link delivered or dropped it.
    pub fn off_link(&mut self, id: u64) {
        if let Some(segment) = self.open.get_mut(&id) {
            segment.on_links = segment.on_links.saturating_sub(1);
        }
    }

    /// Records that a packet was lost on `link`, or at the receiving host. The segment counts as lost unless
    /// another of its packets arrives.
    pub fn on_lost(&mut self, id: u64, at: Instant, link: Option<LinkId>, cause: &'static str) {
        if let Some(Open { record, .. }) = self.open.get_mut(&id) {
            record.dropped_ns = Some(at.as_nanos());
            record.dropped_by = link.map(|link| link.0);
            record.dropped_for = Some(cause);
            self.provisional.push(id);
        }
    }

    /// Finalizes provisional segments of which no other part has appeared. They were lost or brought no new bytes.
    pub fn review(&mut self) {
        for id in core::mem::take(&mut self.provisional) {
            if self.open.get(&id).is_some_and(Open::is_final) {
                self.finalize(id);
            }
        }
    }

    /// Records that a segment, or the next part of a segment, arrived at a host and its connection, if that
    /// exists. The connection accepted `fresh` bytes that it did not have before, and now has the whole stream up
    /// to `rcv_nxt`.
    pub fn on_arrived(
        &mut self,
        id: u64,
        at: Instant,
        (host, name): (NodeId, &'static str),
        conn: Option<ConnId>,
        (fresh, rcv_nxt): (u64, u64),
    ) {
        let Some(Open { record, .. }) = self.open.get_mut(&id) else {
            return;
        };
        if record.arrived_ns.is_none() {
            record.to = Some(name);
            record.to_conn = conn.map(ConnId::as_u64);
            record.arrived_ns = Some(at.as_nanos());
        }
        record.fresh += fresh;
        if let Some(conn) = conn.filter(|_| fresh > 0) {
            let end = (record.dsn + record.len, id);
            let to = (host, conn);
            self.waiting.entry(to).or_default().insert(end);
            self.on_in_order(to, rcv_nxt, at);
        } else {
            self.provisional.push(id);
        }
    }

    /// Marks the segments up to `rcv_nxt` as delivered.
    fn on_in_order(&mut self, to: End, rcv_nxt: u64, at: Instant) {
        let Some(waiting) = self.waiting.get_mut(&to) else {
            return;
        };
        let behind = waiting.split_off(&(rcv_nxt + 1, 0));
        for (_, id) in core::mem::replace(waiting, behind) {
            if let Some(segment) = self.open.get_mut(&id) {
                segment.record.delivered_ns = Some(at.as_nanos());
            }
            self.finalize(id);
        }
    }

    /// Makes the segments that wait at a connection final: the connection ended and takes no more.
    pub fn on_closed(&mut self, end: End) {
        for (_, id) in self.waiting.remove(&end).unwrap_or_default() {
            self.finalize(id);
        }
    }

    /// Makes all segments final.
    pub fn close(&mut self) {
        self.waiting.clear();
        self.provisional.clear();
        while let Some((id, _)) = self.open.first_key_value() {
            self.finalize(*id);
        }
    }

    fn finalize(&mut self, id: u64) {
        if let Some(Open { mut record, .. }) = self.open.remove(&id) {
            // One packet of the segment was lost, but another one arrived.
            if record.arrived_ns.is_some() {
                (record.dropped_ns, record.dropped_by, record.dropped_for) = (None, None, None);
            }
            self.finalized.push(record);
        }
    }

    /// Returns the segments that became final since the last call.
    pub fn finalized(&mut self) -> Vec<Segment<'static>> {
        core::mem::take(&mut self.finalized)
    }
}
