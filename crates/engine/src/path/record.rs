//! Records of the measurements on paths to peers. The records outlive connections, so that later connections can
//! use them.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::PathId;

/// The number of sent bytes above which the old counts are halved before new counts are added, so that recent
/// measurements outweigh old ones. The value is a guess: some thousand packets, which are enough to measure a loss
/// rate of 0.1 %.
const HALVING_BYTES: u64 = 4 << 20;
/// The time after other traffic on a path for which the rate of a connection may be but a part of the path's. A peak
/// rate is of the last 20 round trips at most, so the value covers round trips up to 100 ms. It is a guess.
const SHARED_SPAN: Duration = Duration::from_secs(2);
/// The part of a connection's rate (1/8) from which other traffic makes that rate a lower bound. Less, such as a call
/// beside a download, hardly changes it, and should not keep the record of a path that has become slower. A guess.
const SHARED_PART: u64 = 8;

/// The measurements of the last subflows on a path to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathRecord {
    /// The time of the last update.
    pub at: Instant,
    /// The smoothed round-trip time at the last update.
    pub srtt: Duration,
    /// The mean deviation of the round-trip time at the last update.
    pub rttvar: Duration,
    /// The round-trip time without queues.
    pub base_rtt: Duration,
    /// The rate of the bottleneck in bytes/s: the recent peak rate of acknowledgements; 0 if there were too few
    /// acknowledgements.
    pub delivery_rate: u64,
    /// True if the bottleneck may be faster than `delivery_rate`: the sender measured no peak itself; or it limited the
    /// rate, because a subflow had not left its first slow start and there was no queue; or traffic of another kind
    /// used a part of the path ([`ForeignTraffic`](crate::ForeignTraffic) beside a connection, or the reverse).
    pub is_lower_bound: bool,
    /// The recent peak rate in bytes/s at which data arrived from the peer: the rate of the bottleneck of that
    /// direction; 0 if too little arrived.
    pub arrival_rate: u64,
    /// The number of bytes sent, including retransmissions. The older the bytes, the less they count: the number
    /// is halved at each update while it exceeds 4 MiB.
    pub bytes_sent: u64,
    /// The part of `bytes_sent` that was lost although the queue of the path was short.
    pub bytes_lost: u64,
}

impl PathRecord {
    /// Returns whether a path whose round trip without queues is `base_rtt` now may be the recorded path. A very
    /// different round trip shows another path. The limits, half and ten times the recorded round trip, are those
    /// of Careful Resume (draft-ietf-tsvwg-careful-resume).
    pub fn fits(&self, base_rtt: Duration) -> bool {
        base_rtt * 2 >= self.base_rtt && base_rtt <= self.base_rtt * 10
    }

    /// Adds later measurements. Their counts cover the time since the last update.
    fn add(&mut self, later: PathRecord) {
        // If there is no new rate, the old rate is kept, unless the path is a different one.
        let is_same_path = self.fits(later.base_rtt);
        let newest = |old, new| if new == 0 && is_same_path { old } else { new };
        // A sender that limits the rate shows only that the path is not slower.
        let is_outdone = later.is_lower_bound && later.delivery_rate <= self.delivery_rate;
        let keeps_rate = is_same_path && (later.delivery_rate == 0 || is_outdone);
        let rate = if keeps_rate { &*self } else { &later };
        let halvings = u32::from(self.bytes_sent > HALVING_BYTES);
        *self = PathRecord {
            delivery_rate: rate.delivery_rate,
            is_lower_bound: rate.is_lower_bound,
            arrival_rate: newest(self.arrival_rate, later.arrival_rate),
            bytes_sent: (self.bytes_sent >> halvings).saturating_add(later.bytes_sent),
            bytes_lost: (self.bytes_lost >> halvings).saturating_add(later.bytes_lost),
            ..later
        };
    }
}

/// Traffic on a path that is not of connections: its highest rate of the last [`SHARED_SPAN`], or a little less.
#[derive(Debug, Clone, Copy)]
struct Foreign {
    at: Instant,
    /// Bytes/s.
    rate: u64,
}

impl Foreign {
    fn is_recent(self, now: Instant) -> bool {
        now < self.at + SHARED_SPAN
    }
}

/// The records by the peer's address and the local path.
#[derive(Debug, Default)]
pub(crate) struct Records {
    records: BTreeMap<(IpAddr, PathId), PathRecord>,
    /// The traffic on each path that is not of connections.
    foreign: BTreeMap<(IpAddr, PathId), Foreign>,
    max_len: usize,
}

impl Records {
    /// Creates a table of at most `max_len` records. If the table is full, a new record replaces the oldest.
    pub fn new(max_len: usize) -> Self {
        Records {
            records: BTreeMap::new(),
            foreign: BTreeMap::new(),
            max_len,
        }
    }

    /// Notes that traffic that is not of connections is on a path now, of which it has so many bytes/s. If the table is
    /// full of recent notes, this one is left out.
    pub fn note_foreign(&mut self, now: Instant, link: (IpAddr, PathId), rate: u64) {
        let new = Foreign { at: now, rate };
        if let Some(known) = self.foreign.get_mut(&link) {
            if rate >= known.rate || !known.is_recent(now) {
                *known = new;
            }
            return;
        }
        if self.foreign.len() >= self.max_len {
            self.foreign.retain(|_, foreign| foreign.is_recent(now));
        }
        if self.foreign.len() < self.max_len {
            self.foreign.insert(link, new);
        }
    }

    /// Returns true if traffic that is not of connections lately had a part of the path on which a connection measures
    /// `rate` bytes/s.
    pub fn is_shared(&self, now: Instant, link: (IpAddr, PathId), rate: u64) -> bool {
        let foreign = self.foreign.get(&link);
        foreign.is_some_and(|f| f.is_recent(now) && f.rate.saturating_mul(SHARED_PART) >= rate)
    }

    pub fn get(&self, peer: IpAddr, path: PathId) -> Option<PathRecord> {
        self.records.get(&(peer, path)).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, PathId, PathRecord)> {
        self.records
            .iter()
            .map(|((peer, path), record)| (*peer, *path, *record))
    }

    /// Forgets the records of `path` to all peers.
    pub fn forget_path(&mut self, path: PathId) {
        self.records
            .retain(|(_, record_path), _| *record_path != path);
        self.foreign
            .retain(|(_, foreign_path), _| *foreign_path != path);
    }

    /// Adds the measurements of a path since its last update.
    pub fn add(&mut self, peer: IpAddr, path: PathId, later: PathRecord) {
        match self.records.get_mut(&(peer, path)) {
            Some(record) => record.add(later),
            None => self.put(peer, path, later),
        }
    }

    /// Replaces the record of a path.
    pub fn put(&mut self, peer: IpAddr, path: PathId, record: PathRecord) {
        let known = self.records.contains_key(&(peer, path));
        if !known && self.records.len() >= self.max_len {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.at);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                return;
            };
            self.records.remove(&oldest);
        }
        self.records.insert((peer, path), record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    fn record(ms: u64, rate: u64) -> PathRecord {
        PathRecord {
            at: Instant::from_millis(ms),
            srtt: Duration::from_millis(ms),
            delivery_rate: rate,
            bytes_sent: 3 << 20,
            bytes_lost: 1 << 20,
            ..PathRecord::default()
        }
    }

    #[test]
    fn the_newest_counts_and_losses_add_up() {
        let mut records = Records::new(4);
        let path = PathId(0);
        records.add(PEER, path, record(10, 500));
        records.add(PEER, path, record(20, 0));
        let known = records.get(PEER, path).unwrap();
        assert_eq!(known.srtt, Duration::from_millis(20));
        assert_eq!(known.delivery_rate, 500);
        assert_eq!((known.bytes_sent, known.bytes_lost), (6 << 20, 2 << 20));
        // 6 MiB exceed the limit, so half of them is added to the new 3 MiB.
        records.add(PEER, path, record(30, 700));
        let known = records.get(PEER, path).unwrap();
        assert_eq!((known.bytes_sent, known.bytes_lost), (6 << 20, 2 << 20));
        assert_eq!(known.delivery_rate, 700);
    }

    /// A sender that limits the rate shows only that the path is not slower.
    #[test]
    fn a_lower_bound_replaces_only_lower_rates() {
        let mut records = Records::new(4);
        let path = PathId(0);
        let bound = |ms, rate| PathRecord {
            is_lower_bound: true,
            arrival_rate: rate / 10,
            base_rtt: Duration::from_millis(50),
            ..record(ms, rate)
        };
        let mut add = |record| {
            records.add(PEER, path, record);
            let known = records.get(PEER, path).unwrap();
            (
                known.delivery_rate,
                known.is_lower_bound,
                known.arrival_rate,
            )
        };
        assert_eq!(add(bound(10, 500)), (500, true, 50));
        assert_eq!(add(bound(20, 400)), (500, true, 40));
        assert_eq!(add(bound(30, 600)), (600, true, 60));
        let measured = PathRecord {
            is_lower_bound: false,
            arrival_rate: 0,
            ..bound(40, 300)
        };
        assert_eq!(add(measured), (300, false, 60));
        assert_eq!(add(bound(50, 200)), (300, false, 20));
        // Another path has another round trip.
        let other = PathRecord {
            base_rtt: Duration::from_millis(1),
            ..bound(60, 100)
        };
        assert_eq!(add(other), (100, true, 10));
    }

    #[test]
    fn other_traffic_counts_for_two_seconds() {
        let at = Instant::from_millis;
        let link = |path| (PEER, PathId(path));
        let mut records = Records::new(2);
        records.note_foreign(at(1_000), link(0), 100);
        let shared = |records: &Records, ms, path| records.is_shared(at(ms), link(path), 800);
        assert!(shared(&records, 1_000, 0) && !shared(&records, 1_000, 1));
        assert!(!records.is_shared(at(1_000), link(0), 801));
        // The highest rate counts, until it is old.
        records.note_foreign(at(2_000), link(0), 99);
        assert!(shared(&records, 2_999, 0) && !shared(&records, 3_000, 0));
        records.note_foreign(at(3_000), link(0), 99);
        assert!(records.is_shared(at(3_000), link(0), 792));
        records.note_foreign(at(3_500), link(1), 100);
        // A full table forgets what is old, and nothing else.
        records.note_foreign(at(4_999), link(2), 100);
        assert!(!shared(&records, 4_999, 2));
        records.note_foreign(at(5_000), link(2), 100);
        assert!(shared(&records, 5_000, 1) && shared(&records, 5_000, 2));
        records.forget_path(PathId(1));
        assert!(!shared(&records, 5_000, 1));
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut records = Records::new(2);
        for (path, ms) in [(0, 20), (1, 10), (2, 30)] {
            records.add(PEER, PathId(path), record(ms, 1));
        }
        let kept: Vec<u8> = records.iter().map(|(_, path, _)| path.0).collect();
        assert_eq!(kept, [0, 2]);
        let mut none = Records::new(0);
        none.add(PEER, PathId(0), record(1, 1));
        assert_eq!(none.iter().count(), 0);
    }
}
