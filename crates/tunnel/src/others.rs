//! Other traffic of this host on a path of the tunnel.

use core::time::Duration;

use braid_engine::{PathLoad, Urgency};
use braid_wire::Instant;

/// The time after other traffic on a path for which a measured rate may be but a part of the path's.
const SHARED_SPAN: Duration = Duration::from_secs(2);

/// Other traffic on a path, as its sender counts it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others {
    pub load: PathLoad,
    /// The urgency of the most urgent data of this host on the path, the tunnel's included.
    pub most_urgent: Option<Urgency>,
    /// The last time at which there was any.
    seen_at: Option<Instant>,
}

impl Others {
    /// Returns the time that the bytes of others and `in_flight` own ones wait for the bottleneck, if others have any.
    /// `own_rate` is the own part of its rate, bytes/s, and `empty` the round trip of the empty path.
    pub fn queue(&self, in_flight: u64, own_rate: u64, empty: Duration) -> Duration {
        let rate = self.load.delivery_rate.saturating_add(own_rate);
        if self.load.in_flight == 0 || rate == 0 {
            return Duration::ZERO;
        }
        let bytes = u128::from(self.load.in_flight.saturating_add(in_flight));
        let micros = bytes * 1_000_000 / u128::from(rate);
        // A rate at the start of a transfer is far too low, and says nothing beyond this.
        let longest = empty * 2;
        let drained = Duration::from_micros(micros.min(u128::from(u64::MAX)) as u64);
        drained.min(longest + empty).saturating_sub(empty)
    }

    /// Sets the load of now, and the urgency of the most urgent data.
    pub fn set(&mut self, now: Instant, load: PathLoad, most_urgent: Option<Urgency>) {
        (self.load, self.most_urgent) = (load, most_urgent);
        if load.in_flight > 0 {
            self.seen_at = Some(now);
        }
    }

    /// Returns true if others used the path lately.
    pub fn were_seen(&self, now: Instant) -> bool {
        self.seen_at.is_some_and(|at| now < at + SHARED_SPAN)
    }
}

/// The time for which a path stays claimed after a packet. It bridges the time between look-ups of somebody who follows
/// links: less urgent data that filled the queue in between would delay the next one. A guess, as for connections.
const CLAIM_TIME: Duration = Duration::from_secs(3);
/// The queueing delay at which a claim does not help any more. Less urgent data of this host, which gives way, leaves
/// half of it.
const MAX_QUEUE: Duration = Duration::from_millis(20);
/// The time that a claim has to shorten the queue: some round trips of a long path.
const CLAIM_TRIAL: Duration = Duration::from_secs(2);
/// The time for which a path is not claimed because the last claim did not help: somebody else fills the queue, and
/// what this host leaves would be theirs. A guess.
const CLAIM_PAUSE: Duration = Duration::from_secs(30);

/// The urgency of the packets on a path, by which less urgent data of this host gives way there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claim {
    /// The urgency of the most urgent packet of the last [`CLAIM_TIME`], and the time at which it was sent.
    latest: Option<(Urgency, Instant)>,
    /// The time since which the queue is long although the path is claimed.
    queued_since: Option<Instant>,
    paused_until: Instant,
}

impl Claim {
    /// Notes that a packet is sent.
    pub fn note(&mut self, now: Instant, urgency: Urgency) {
        let most = match self.current(now) {
            Some((known, _)) if known < urgency => return,
            _ => urgency,
        };
        self.latest = Some((most, now));
    }

    fn current(&self, now: Instant) -> Option<(Urgency, Instant)> {
        self.latest.filter(|(_, at)| now < *at + CLAIM_TIME)
    }

    /// Returns the urgency for other senders and the time of its last packet, unless a claim of the path does not
    /// shorten its queue.
    pub fn get(&mut self, now: Instant, queue: Duration) -> Option<(Urgency, Instant)> {
        let urgency = self.current(now).filter(|_| now >= self.paused_until);
        if urgency.is_none() || queue <= MAX_QUEUE {
            self.queued_since = None;
            return urgency;
        }
        let since = *self.queued_since.get_or_insert(now);
        if now < since + CLAIM_TRIAL {
            return urgency;
        }
        self.queued_since = None;
        self.paused_until = now + CLAIM_PAUSE;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_others_beyond_the_path_wait() {
        let ms = Duration::from_millis;
        let others = |in_flight, delivery_rate| Others {
            load: PathLoad {
                in_flight,
                delivery_rate,
            },
            ..Others::default()
        };
        // At 1 MB/s, 20 ms are 20 kB.
        assert_eq!(others(20_000, 1_000_000).queue(0, 0, ms(20)), ms(0));
        assert_eq!(others(30_000, 1_000_000).queue(0, 0, ms(20)), ms(10));
        assert_eq!(
            others(30_000, 900_000).queue(5_000, 100_000, ms(20)),
            ms(15)
        );
        assert_eq!(others(0, 0).queue(90_000, 1_000_000, ms(20)), ms(0));
        assert_eq!(others(90_000, 0).queue(0, 0, ms(20)), ms(0));
        assert_eq!(others(u64::MAX, 1).queue(1, 1, ms(20)), ms(40));
    }

    #[test]
    fn a_claim_lasts_and_ends_if_it_does_not_help() {
        let at = Instant::from_millis;
        let ms = Duration::from_millis;
        let [dns, default] = [1, 3].map(|level| Urgency::new(level).unwrap());
        let mut claims = Claim::default();
        let claim = &mut claims;
        let urgency = |got: Option<(Urgency, Instant)>| got.map(|(urgency, _)| urgency);
        assert_eq!(claim.get(at(0), ms(0)), None);
        claim.note(at(0), dns);
        // Less urgent packets do not end the claim of the look-up, and do not prolong it.
        claim.note(at(2_000), default);
        assert_eq!(urgency(claim.get(at(2_900), ms(50))), Some(dns));
        claim.note(at(3_000), default);
        assert_eq!(urgency(claim.get(at(3_000), ms(50))), Some(default));
        claim.note(at(4_000), dns);
        // A queue that drains in between starts the trial anew.
        assert_eq!(urgency(claim.get(at(4_000), ms(10))), Some(dns));
        claim.note(at(4_800), dns);
        assert_eq!(urgency(claim.get(at(5_000), ms(50))), Some(dns));
        assert_eq!(urgency(claim.get(at(6_900), ms(50))), Some(dns));
        assert_eq!(claim.get(at(7_000), ms(50)), None);
        claim.note(at(36_000), dns);
        assert_eq!(claim.get(at(36_000), ms(0)), None);
        assert_eq!(urgency(claim.get(at(37_000), ms(0))), Some(dns));
    }
}
