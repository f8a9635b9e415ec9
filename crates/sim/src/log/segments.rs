//! The segments of a log whose fates are not final.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::{ConnId, PathId, SubflowId};
use braid_links::DropCause;
use braid_wire::Instant;

use super::record::Kind;
use crate::world::{LinkId, NodeId};

/// The maximum number of segments whose fates are not final. A guess that bounds memory.
pub const MAX_OPEN: usize = 1 << 16;

/// An end of a connection.
pub(super) type End = (NodeId, ConnId);

/// A segment at the time of sending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub id: u64,
    pub from: End,
    pub subflow: SubflowId,
    pub path: PathId,
    pub kind: Kind,
    pub dsn: u64,
    pub ssn: u64,
    pub len: u64,
    pub at: Instant,
}

/// The loss of a segment. If link and cause are missing, the receiving host found the segment corrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub at: Instant,
    pub link: Option<LinkId>,
    pub cause: Option<DropCause>,
}

/// The arrival of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    pub at: Instant,
    pub host: NodeId,
    /// The connection at the host, if it exists.
    pub conn: Option<ConnId>,
    /// Bytes that the receiver accepted and did not have before.
    pub fresh: u64,
}

/// A segment and its fate so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fate {
    pub sent: Sent,
    /// The number of the segment's packets on links. It exceeds one if a link duplicated the segment, or if a
    /// middlebox cut it.
    on_links: u32,
    /// The first link of the segment.
    pub link: Option<LinkId>,
    pub lost: Option<Lost>,
    pub arrival: Option<Arrival>,
    /// The time at which the receiver had the whole stream up to the segment's end.
    pub delivered: Option<Instant>,
}

impl Fate {
    /// Returns whether no packet of the segment is on a link, and none of its bytes wait behind a hole in the
    /// stream.
    fn is_final(&self) -> bool {
        self.on_links == 0 && self.arrival.is_none_or(|arrival| arrival.fresh == 0)
    }
}

/// Follows segments from host to host.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Segments by number. The numbers are in order of sending.
    open: BTreeMap<u64, Fate>,
    /// Segments that arrived and wait behind a hole in the stream of a connection: the offset of the segment's
    /// end, and its number.
    waiting: BTreeMap<End, BTreeSet<(u64, u64)>>,
    /// Segments that are final unless another part appears. A middlebox that cuts a segment hands the parts to a
    /// link one after the other, and the link may drop the first part before it gets the second.
    provisional: Vec<u64>,
    finalized: Vec<Fate>,
}

impl Segments {
    pub fn on_sent(&mut self, sent: Sent) {
        if self.open.len() >= MAX_OPEN
            && let Some((oldest, _)) = self.open.first_key_value()
        {
            self.finalize(*oldest);
        }
        let fate = Fate {
            on_links: 0,
            link: None,
            lost: None,
            arrival: None,
            delivered: None,
            sent,
        };
        self.open.insert(fate.sent.id, fate);
    }

    /// Counts one more packet of the segment on links: a node handed it to a link, or a link duplicated it.
    pub fn on_link(&mut self, id: u64, link: LinkId) {
        if let Some(fate) = self.open.get_mut(&id) {
            fate.on_links += 1;
            fate.link.get_or_insert(link);
        }
    }

    /// Counts one packet of the segment less on links: a link delivered or dropped it.
    pub fn off_link(&mut self, id: u64) {
        if let Some(fate) = self.open.get_mut(&id) {
            fate.on_links = fate.on_links.saturating_sub(1);
        }
    }

    /// Records that a packet was lost. The segment counts as lost unless another of its packets arrives.
    pub fn on_lost(&mut self, id: u64, lost: Lost) {
        if let Some(fate) = self.open.get_mut(&id) {
            fate.lost = Some(lost);
            self.provisional.push(id);
        }
    }

    /// Finalizes provisional segments of which no other part has appeared. They were lost or brought no new bytes.
    pub fn review(&mut self) {
        for id in core::mem::take(&mut self.provisional) {
            if self.open.get(&id).is_some_and(Fate::is_final) {
                self.finalize(id);
            }
        }
    }

    /// Records that a segment, or the next part of a segment, arrived at a connection. The connection now has the
    /// whole stream up to `rcv_nxt`.
    pub fn on_arrived(&mut self, id: u64, arrival: Arrival, rcv_nxt: u64) {
        let Some(fate) = self.open.get_mut(&id) else {
            return;
        };
        match &mut fate.arrival {
            Some(first) => first.fresh += arrival.fresh,
            None => fate.arrival = Some(arrival),
        }
        if let Some(conn) = arrival.conn.filter(|_| arrival.fresh > 0) {
            let end = (fate.sent.dsn + fate.sent.len, id);
            let to = (arrival.host, conn);
            self.waiting.entry(to).or_default().insert(end);
            self.on_in_order(to, rcv_nxt, arrival.at);
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
            if let Some(fate) = self.open.get_mut(&id) {
                fate.delivered = Some(at);
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
        if let Some(mut fate) = self.open.remove(&id) {
            // One packet of the segment was lost, but another one arrived.
            fate.lost = fate.lost.filter(|_| fate.arrival.is_none());
            self.finalized.push(fate);
        }
    }

    /// Returns the segments that became final since the last call.
    pub fn finalized(&mut self) -> Vec<Fate> {
        core::mem::take(&mut self.finalized)
    }
}
