//! The seam to other traffic of this host on the same paths: what each side has in flight, how urgent it is, and what
//! it has measured.

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_engine::{PathId, PathLoad, Urgency};
use braid_wire::Instant;

use crate::config::MAX_PATHS;
use crate::path::RATE_AGE;
use crate::tunnel::Tunnel;

/// The use of a path by a tunnel, for other senders on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathUse {
    /// The path.
    pub path: PathId,
    /// The peer's address on the path.
    pub remote: SocketAddr,
    /// The tunnel's data in flight.
    pub load: PathLoad,
    /// The urgency of the most urgent packet of the last 3 s and the time at which it was sent. Other data of this host
    /// gives way to it. A flow of low rate of which nothing waits counts as important, because calls, games and
    /// look-ups are like that. `None` if there was no packet, or if the queue of the path stays long although the path
    /// has been claimed.
    pub urgency: Option<(Urgency, Instant)>,
    /// The measurements, if there are any.
    pub measured: Option<Measured>,
    /// True while nothing is known of the path's rate, so that [`Tunnel::seed_path`] is of use.
    pub wants_seed: bool,
}

/// The measurements of a path to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The mean deviation of the round-trip time.
    pub variation: Duration,
    /// The round-trip time without queues.
    pub least_round_trip: Duration,
    /// The rate of the path, bytes/s; 0 if it was not measured in the last seconds.
    pub rate: u64,
    /// True if the path may be faster, because others used a part of it.
    pub is_lower_bound: bool,
}

impl Tunnel {
    /// Returns the use of each path.
    pub fn path_uses(&mut self, now: Instant) -> ArrayVec<PathUse, MAX_PATHS> {
        let uses = self.paths.iter_mut().map(|path| {
            let rate = path.control.rate(&path.estimate);
            let loaded_at = path
                .control
                .loaded_at()
                .filter(|_| !path.control.is_starting());
            let is_recent = loaded_at.is_some_and(|at| now < at + RATE_AGE);
            PathUse {
                path: path.id,
                remote: path.address.remote(),
                // What is on its way on a silent path may never be reported.
                load: if path.is_usable() {
                    PathLoad {
                        in_flight: path.present_in_flight(now),
                        delivery_rate: path.present_rate(now),
                    }
                } else {
                    PathLoad::default()
                },
                urgency: path.claim.get(now, path.estimate.queue_delay()),
                measured: path.estimate.rtt().map(|rtt| Measured {
                    round_trip: rtt.smoothed,
                    variation: rtt.variation,
                    least_round_trip: rtt.least(),
                    // At the start, the rate shows how much there was to send.
                    rate: rate.filter(|_| is_recent).unwrap_or(0),
                    is_lower_bound: path.others.were_seen(now),
                }),
                wants_seed: path.control.wants_seed(&path.estimate),
            }
        });
        uses.collect()
    }

    /// Sets the load of a path by other senders of this host, and the urgency of the most urgent data there, the
    /// tunnel's included. A packet is expected to wait behind the load. Less urgent packets of large flows keep the queue
    /// of the path short.
    pub fn set_path_load(
        &mut self,
        now: Instant,
        path: PathId,
        load: PathLoad,
        most_urgent: Option<Urgency>,
    ) {
        if let Some(path) = self.paths.iter_mut().find(|p| p.id == path) {
            path.others.set(now, load, most_urgent);
        }
    }

    /// Starts a path of unknown rate at `rate` bytes/s, which was measured before or by others, if that is more than
    /// the path would start with. It soon shows if the rate is another one.
    pub fn seed_path(&mut self, path: PathId, rate: u64) {
        if let Some(path) = self.paths.iter_mut().find(|p| p.id == path) {
            path.control.seed(rate, &path.estimate);
        }
    }
}
