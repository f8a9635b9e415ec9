//! Statistics of a connection and its subflows.

use core::time::Duration;

use super::connection::Connection;
use super::subflow::Subflow;
use super::subflows::Subflows;
use crate::Config;
use crate::stats::{ConnStats, Moved, PathStats, PathTotals, SubflowStats};

/// The maximum number of entries of [`ConnStats::paths`]. A bound is needed, since a peer might join from ever
/// new addresses. The value is a guess: eight times the default maximum of subflows.
const MAX_PATHS: usize = 64;

impl Subflow {
    /// Returns the payload that the subflow has moved so far.
    fn moved(&self) -> Moved {
        Moved {
            bytes_received: self.rcv.bytes_received(),
            duplicate: self.duplicate,
            traffic: self.snd.traffic,
        }
    }

    /// Returns the current statistics of the subflow.
    pub fn stats(&self) -> SubflowStats {
        SubflowStats {
            id: self.id,
            path: self.path,
            local: self.tuple.local,
            remote: self.tuple.remote,
            established: self.is_established(),
            backup: self.is_backup(),
            stale: self.signs.stale,
            latest_rtt: self.snd.rtt.latest(),
            srtt: self.snd.rtt.srtt(),
            rttvar: self.snd.rtt.rttvar(),
            min_rtt: self.snd.rtt.min(),
            rto: self.snd.rto(),
            backoff: self.snd.backoff(),
            pacing_rate: self.snd.pacer.rate(),
            unpaced: self.snd.pacer.free(),
            delivery_rate: self.snd.delivery_rate(),
            cwnd: self.snd.cwnd(),
            ssthresh: self.snd.cc.ssthresh(),
            in_flight: self.snd.in_flight(),
            snd_una: self.snd.una,
            mss: self.snd.mss(),
            path_mtu: self.size.mtu.get(),
            peer_window: self.snd.peer_room(),
            sacked: self.snd.board.sacked(),
            lost: self.snd.board.lost(),
            recovery: self.snd.recovery(),
            sack: self.agreed.sack,
            timestamps: self.agreed.timestamps,
            ecn: self.ecn.sends_ect() && self.snd.cc.responds_to_ecn(),
            bytes_received: self.rcv.bytes_received(),
            duplicate: self.duplicate,
            out_of_order: self.rcv.out_of_order_bytes(),
            traffic: self.snd.traffic,
        }
    }
}

impl Connection {
    /// Returns the current statistics of the connection.
    pub fn stats(&self, config: &Config) -> ConnStats {
        ConnStats {
            tokens: self
                .transport
                .mode
                .mptcp()
                .map(|m| (m.local.token, m.remote.token)),
            idsn: self
                .transport
                .mode
                .mptcp()
                .map(|m| (m.local.idsn, m.remote.idsn)),
            snd_una: self.transport.snd.una(),
            snd_nxt: self.transport.snd.nxt,
            snd_end: self.transport.snd.buf.end(),
            unsent: self.transport.snd.unsent_by_urgency(),
            dropped: self.transport.snd.dropped,
            peer_window: self.transport.snd.peer_window(),
            rcv_nxt: self.transport.rcv.buf.rcv_nxt(),
            rcv_read: self.transport.rcv.buf.next(),
            recv_window: self
                .transport
                .rcv
                .edge
                .saturating_sub(self.transport.rcv.buf.rcv_nxt()),
            out_of_order: self.transport.rcv.buf.out_of_order_bytes(),
            duplicate: self.transport.rcv.duplicate,
            last_received: self.transport.live.last_received,
            last_payload: self.transport.live.last_payload,
            memory: (self.transport.snd.buf.memory() + self.transport.rcv.buf.memory()) as u64,
            checksum: self.transport.mode.mptcp().is_some_and(|m| m.checksum),
            flow_size: self.flow.size,
            flow_moved: self.flow.moved(&self.transport.snd, &self.transport.rcv),
            urgency: self.profile.urgency,
            strategy: self.strategy.name(),
            congestion: self.profile.algorithm(config).name(),
            busy: self.transport.live.busy.total,
            window_limited: self.transport.live.busy.for_window,
            addresses: self.transport.signals.counts,
            paths: self.transport.subflows.path_totals(),
        }
    }
}

impl Subflows {
    /// Returns the payload moved on each path by present and past subflows.
    pub(super) fn path_totals(&self) -> Vec<PathStats> {
        let mut totals = self.gone.clone();
        for subflow in self.iter() {
            add_subflow(&mut totals, subflow);
        }
        totals
    }

    /// Adds the payload moved on each path to `totals`, which has an entry for every path.
    pub fn add_moved(&self, totals: &mut [Moved]) {
        let closed = self.gone.iter().map(|p| (p.path, p.moved));
        let current = self.iter().map(|s| (s.path, s.moved()));
        for (path, moved) in closed.chain(current) {
            if let Some(total) = totals.get_mut(usize::from(path.0)) {
                total.add(&moved);
            }
        }
    }

    /// Adds the current state of the established subflows to `totals`, which has an entry for every path.
    pub fn add_subflows(&self, totals: &mut [PathTotals]) {
        for subflow in self.iter().filter(|s| s.is_established()) {
            let Some(total) = totals.get_mut(usize::from(subflow.path.0)) else {
                continue;
            };
            let snd = &subflow.snd;
            total.subflows += 1;
            total.traffic_now.add(&snd.traffic);
            total.delivery_rate = total.delivery_rate.max(snd.delivery_rate());
            let srtt = snd.rtt.srtt();
            lower(&mut total.srtt, srtt);
            let arriving = &subflow.rcv.arriving;
            total.received_now += arriving.received;
            total.late_now += arriving.late;
            total.arrival_rate += arriving.rate();
            lower(&mut total.arrival_rtt, arriving.rtt());
        }
    }

    /// Adds the payload of a subflow that is removed now to the totals of closed subflows.
    pub fn count_gone(&mut self, subflow: &Subflow) {
        add_subflow(&mut self.gone, subflow);
    }
}

/// Lowers `lowest` to `time`. A zero means that the time is not known.
fn lower(lowest: &mut Duration, time: Duration) {
    if lowest.is_zero() || !time.is_zero() && time < *lowest {
        *lowest = time;
    }
}

/// Adds the payload of `subflow` to the entry of its path and remote address. Once there are [`MAX_PATHS`]
/// entries, the payload of a further address is added to an adjacent entry, so that the sums stay right.
fn add_subflow(totals: &mut Vec<PathStats>, subflow: &Subflow) {
    let (path, remote) = (subflow.path, subflow.tuple.remote.ip());
    let at = totals.partition_point(|t| (t.path, t.remote) < (path, remote));
    let known = totals
        .get(at)
        .is_some_and(|t| (t.path, t.remote) == (path, remote));
    if !known && totals.len() < MAX_PATHS {
        totals.insert(
            at,
            PathStats {
                path,
                remote,
                subflows: 0,
                moved: Moved::default(),
            },
        );
    }
    let at = at.min(totals.len() - 1);
    let total = &mut totals[at];
    total.subflows += 1;
    total.moved.add(&subflow.moved());
}
