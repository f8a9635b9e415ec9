//! The traffic of each flow, for people.

use std::collections::BTreeMap;

use arrayvec::ArrayVec;
use braid_engine::PathId;
use braid_wire::Instant;

use crate::classify::FlowKey;
use crate::config::MAX_PATHS;
use crate::stats::{FlowPathStats, FlowStats, FlowTreatment};

/// The traffic of a flow in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// The time of the first packet.
    since: Instant,
    /// The time of the last packet.
    last: Instant,
    /// Bytes of inner packets, each once.
    pub bytes: u64,
    /// Packets that the queue dropped.
    pub dropped: u64,
    /// Bytes of inner packets on each path, with those of repeated packets.
    by_path: [u64; MAX_PATHS],
}

impl Usage {
    /// Starts to count for a flow whose first packet comes now.
    pub fn start(now: Instant) -> Self {
        Usage {
            since: now,
            last: now,
            ..Usage::default()
        }
    }

    /// Counts a packet of `len` bytes on a path.
    pub fn add(&mut self, now: Instant, path: usize, len: usize) {
        self.last = now;
        self.bytes += len as u64;
        self.by_path[path] += len as u64;
    }

    /// Counts a packet of `len` bytes that another path, or this one, has carried before.
    pub fn add_repeated(&mut self, path: usize, len: usize) {
        self.by_path[path] += len as u64;
    }
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Direction {
    /// The key as packets of this direction have it.
    pub key: FlowKey,
    pub usage: Usage,
    /// `None` for packets that the peer sends.
    pub treatment: Option<FlowTreatment>,
}

impl FlowStats {
    /// Returns a flow without traffic, whose packets to the peer have this key.
    fn new(key: FlowKey) -> Self {
        FlowStats {
            protocol: key.protocol,
            local: key.src,
            remote: key.dst,
            ports: key.ports(),
            started_at: Instant::FAR_FUTURE,
            used_at: Instant::ZERO,
            bytes_sent: 0,
            bytes_received: 0,
            packets_dropped: 0,
            treatment: None,
            paths: ArrayVec::new(),
        }
    }

    /// Adds one direction. `paths` has the id of each path.
    fn add(&mut self, direction: &Direction, paths: &[PathId]) {
        let Direction {
            usage, treatment, ..
        } = direction;
        let sends = treatment.is_some();
        self.started_at = self.started_at.min(usage.since);
        self.used_at = self.used_at.max(usage.last);
        self.packets_dropped += usage.dropped;
        let total = if sends {
            &mut self.bytes_sent
        } else {
            &mut self.bytes_received
        };
        *total += usage.bytes;
        if treatment.is_some() {
            self.treatment = *treatment;
        }
        for (path, bytes) in paths.iter().zip(usage.by_path).filter(|(_, n)| *n > 0) {
            let known = self.paths.iter().position(|p| p.path == *path);
            let at = known.unwrap_or_else(|| {
                self.paths.push(FlowPathStats {
                    path: *path,
                    bytes_sent: 0,
                    bytes_received: 0,
                });
                self.paths.len() - 1
            });
            let entry = &mut self.paths[at];
            if sends {
                entry.bytes_sent += bytes;
            } else {
                entry.bytes_received += bytes;
            }
        }
    }
}

/// Joins the directions of flows. `paths` has the id of each path.
pub(crate) fn join(
    sent: impl Iterator<Item = Direction>,
    received: impl Iterator<Item = Direction>,
    paths: &[PathId],
) -> Vec<FlowStats> {
    let mut flows: Vec<FlowStats> = Vec::new();
    let mut by_key: BTreeMap<FlowKey, usize> = BTreeMap::new();
    let received = received.map(|direction| (direction.key.reversed(), direction));
    for (key, direction) in sent.map(|d| (d.key, d)).chain(received) {
        let at = *by_key.entry(key).or_insert_with(|| {
            flows.push(FlowStats::new(key));
            flows.len() - 1
        });
        flows[at].add(&direction, paths);
    }
    flows
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::Mode;
    use crate::classify::key;

    fn direction(key: FlowKey, ms: u64, sends: bool) -> Direction {
        let mut usage = Usage::start(Instant::from_millis(ms));
        usage.add(Instant::from_millis(ms + 5), 0, 100);
        usage.add(Instant::from_millis(ms + 10), 1, 50);
        usage.add_repeated(0, 50);
        let treatment = FlowTreatment {
            urgency: 1,
            mode: Mode::Aggregate,
            hides_losses: true,
            queued_bytes: 0,
        };
        Direction {
            key,
            usage,
            treatment: sends.then_some(treatment),
        }
    }

    #[test]
    fn both_directions_are_one_flow() {
        let paths = [PathId(3), PathId(5)];
        let sent = [direction(key(1), 20, true)];
        let received = [
            direction(key(1).reversed(), 10, false),
            direction(key(2).reversed(), 40, false),
        ];
        let flows = join(sent.into_iter(), received.into_iter(), &paths);
        assert_eq!(flows.len(), 2);
        let flow = &flows[0];
        assert_eq!((flow.bytes_sent, flow.bytes_received), (150, 150));
        assert_eq!(flow.started_at, Instant::from_millis(10));
        assert_eq!(flow.used_at, Instant::from_millis(30));
        assert_eq!(flow.ports, Some((5000, 53)));
        let by_path: Vec<_> = flow.paths.iter().map(|p| (p.path, p.bytes_sent)).collect();
        assert_eq!(by_path, [(PathId(3), 150), (PathId(5), 50)]);
        assert_eq!(flow.remote, IpAddr::from([192, 0, 2, 1]));
        // The local end is the one of packets to the peer, also where only the peer has sent any.
        assert_eq!(flows[1].remote, IpAddr::from([192, 0, 2, 2]));
        assert_eq!((flows[1].bytes_sent, flows[1].bytes_received), (0, 150));
        assert_eq!(flows[1].treatment, None);
    }
}
