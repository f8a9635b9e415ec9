//! One budget of each link for the engine and the tunnel: each side sees what the other has in flight and how urgent it
//! is, and both learn from one record of the path.

use core::net::IpAddr;
use core::time::Duration;

use braid_engine::{ForeignTraffic, PathLoad, PathRecord, Stack};
use braid_tunnel::{Measured, PathId, PathUse, Tunnel};
use braid_wire::Instant;

/// The time between exchanges of a session in use. It is short beside the round trips of most links, and costs a busy
/// server little. A guess.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// The time between records of what a tunnel has measured, as for connections.
const RECORD_INTERVAL: Duration = Duration::from_secs(2);

/// The exchange of one session with the engine.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The session's part in the engine's counts, for each path of the session.
    parts: Vec<(PathId, ForeignTraffic)>,
    exchanged_at: Instant,
    recorded_at: Instant,
}

impl Sharing {
    /// Exchanges the state of each path. `link` returns the peer's address and the engine's path. Returns true while
    /// there is something to exchange.
    pub(crate) fn exchange(
        &mut self,
        now: Instant,
        tunnel: &mut Tunnel,
        stack: &mut Stack,
        link: impl Fn(&PathUse) -> Option<(IpAddr, PathId)>,
    ) -> bool {
        self.exchanged_at = now;
        let records = now >= self.recorded_at + RECORD_INTERVAL;
        if records {
            self.recorded_at = now;
        }
        let mut is_busy = false;
        for used in tunnel.path_uses(now) {
            let part = self.part(used.path);
            let Some(link) = link(&used) else {
                part.end(stack);
                tunnel.set_path_load(now, used.path, PathLoad::default(), None);
                continue;
            };
            part.set_load(stack, now, link, used.load);
            is_busy |= part.is_counted() || used.urgency.is_some();
            if let Some((urgency, sent_at)) = used.urgency {
                part.note_urgency(stack, link, urgency, sent_at);
                part.hold_urgency(stack, now, link, urgency);
            }
            let most_urgent = part.most_urgent(stack, now, link);
            tunnel.set_path_load(now, used.path, part.others(stack, link), most_urgent);
            if used.wants_seed
                && let Some(record) = part.record(stack, link)
                && used
                    .measured
                    .is_none_or(|m| record.fits(m.least_round_trip))
            {
                tunnel.seed_path(used.path, record.delivery_rate);
            }
            let measured = used.measured.filter(|m| records && m.rate > 0);
            if let Some(measured) = measured {
                part.add_record(stack, link, record(now, measured));
            }
        }
        is_busy
    }

    /// Returns the time from which the session may exchange again.
    pub(crate) fn due(&self) -> Instant {
        self.exchanged_at + EXCHANGE_INTERVAL
    }

    /// Takes back what the engine counts.
    pub(crate) fn end(&mut self, stack: &mut Stack) {
        for (_, mut part) in self.parts.drain(..) {
            part.end(stack);
        }
    }

    /// Returns true if the engine counts something.
    pub(crate) fn is_counted(&self) -> bool {
        self.parts.iter().any(|(_, part)| part.is_counted())
    }

    fn part(&mut self, path: PathId) -> &mut ForeignTraffic {
        let known = self.parts.iter().position(|(of, _)| *of == path);
        let at = known.unwrap_or_else(|| {
            self.parts.push((path, ForeignTraffic::default()));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }
}

/// Returns the record of what a tunnel has measured. Its losses include those by congestion, which records leave out.
fn record(now: Instant, measured: Measured) -> PathRecord {
    PathRecord {
        at: now,
        srtt: measured.round_trip,
        rttvar: measured.variation,
        base_rtt: measured.least_round_trip,
        delivery_rate: measured.rate,
        is_lower_bound: measured.is_lower_bound,
        ..PathRecord::default()
    }
}
