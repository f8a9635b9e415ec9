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
    /// rate, because a subflow had not left its first slow start and there was no queue; or other traffic used a part
    /// of the path, which only records by [`ForeignTraffic`](crate::ForeignTraffic) tell.
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

/// The records by the peer's address and the local path.
#[derive(Debug, Default)]
pub(crate) struct Records {
    records: BTreeMap<(IpAddr, PathId), PathRecord>,
    max_len: usize,
}

impl Records {
    /// Creates a table of at most `max_len` records. If the table is full, a new record replaces the oldest.
    pub fn new(max_len: usize) -> Self {
        Records {
            records: BTreeMap::new(),
            max_len,
        }
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
