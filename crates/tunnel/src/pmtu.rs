//! The search for the size of the largest packet that a path takes (DPLPMTUD, RFC 8899).
//!
//! A path starts with a size that every path is taken to carry. A probe is a challenge in a datagram that is padded
//! to the size in question: the response confirms the size. The loss of a probe says nothing else. The link's own
//! MTU is tried first, because most paths take it, and then the middle of what is left.

use core::time::Duration;

use braid_wire::{Instant, Rng};

/// Probes of one size that may get no answer (RFC 8899 section 5.1.2, `MAX_PROBES`).
const MAX_PROBES: u8 = 3;
/// The least time for the answer to a probe (RFC 8899 section 5.1.1, `PROBE_TIMER`).
const MIN_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time after which sizes that got no answer are tried once more (RFC 8899 section 5.1.1, `PMTU_RAISE_TIMER`).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// The search ends when it is exact to so many bytes: a smaller gain is not worth a probe.
const PRECISION: usize = 16;
/// The least and the greatest MTU of a link.
const MTU_RANGE: (usize, usize) = (576, 9216);

/// A size that waits for its answer.
#[derive(Debug, Clone, Copy)]
struct Probe {
    size: usize,
    data: [u8; 8],
    /// Probes of this size so far.
    count: u8,
    expires: Instant,
}

/// The MTU of one path. Sizes are those of IP packets, in bytes.
#[derive(Debug)]
pub(crate) struct PathMtu {
    floor: usize,
    ceiling: usize,
    confirmed: usize,
    /// Sizes from this one on get no answer.
    refused: usize,
    probe: Option<Probe>,
    /// The end of the last search.
    ended_at: Option<Instant>,
}

impl PathMtu {
    /// Starts with `floor`, and looks for more up to `ceiling`, the MTU of the link.
    pub fn new(floor: usize, ceiling: usize) -> Self {
        let ceiling = ceiling.clamp(MTU_RANGE.0, MTU_RANGE.1);
        let floor = floor.clamp(MTU_RANGE.0, ceiling);
        PathMtu {
            floor,
            ceiling,
            confirmed: floor,
            refused: ceiling + 1,
            probe: None,
            ended_at: None,
        }
    }

    /// Returns the size of the largest packet that is known to pass.
    pub fn size(&self) -> usize {
        self.confirmed
    }

    /// Returns the size that every path is taken to carry.
    pub fn floor(&self) -> usize {
        self.floor
    }

    /// Returns the MTU of the link.
    pub fn ceiling(&self) -> usize {
        self.ceiling
    }

    /// Returns the next size to try, unless the search is over.
    fn candidate(&self) -> Option<usize> {
        if self.refused > self.ceiling {
            return (self.confirmed < self.ceiling).then_some(self.ceiling);
        }
        let middle = self.confirmed.midpoint(self.refused);
        (self.refused - self.confirmed > PRECISION).then_some(middle)
    }

    /// Returns the size and the data of a probe to send at `now`. `timeout` is the time in which the path answers.
    pub fn take_probe(
        &mut self,
        now: Instant,
        timeout: Duration,
        rng: &mut Rng,
    ) -> Option<(usize, [u8; 8])> {
        if let Some(probe) = self.probe.filter(|probe| now >= probe.expires) {
            if probe.count >= MAX_PROBES {
                self.refused = probe.size;
                self.probe = None;
            }
        } else if self.probe.is_some() {
            return None;
        }
        let size = self
            .probe
            .map_or_else(|| self.candidate(), |p| Some(p.size))?;
        let mut data = [0; 8];
        rng.fill(&mut data);
        self.probe = Some(Probe {
            size,
            // A late response to an earlier probe of this size is ignored: the response to this one says the same.
            data,
            count: self.probe.map_or(0, |probe| probe.count) + 1,
            expires: now + timeout.max(MIN_PROBE_TIMEOUT),
        });
        Some((size, data))
    }

    /// Takes the data of a response. Returns false if it answers no probe.
    pub fn on_response(&mut self, data: [u8; 8]) -> bool {
        let Some(probe) = self.probe.filter(|probe| probe.data == data) else {
            return false;
        };
        self.confirmed = self.confirmed.max(probe.size);
        self.probe = None;
        true
    }

    /// Starts anew, because large packets vanish and small ones do not (RFC 8899 section 4.3).
    pub fn on_black_hole(&mut self) {
        *self = PathMtu::new(self.floor, self.ceiling);
    }

    /// Tries refused sizes once more if the last search ended long ago.
    pub fn raise(&mut self, now: Instant) {
        if self.probe.is_some() || self.candidate().is_some() {
            self.ended_at = None;
            return;
        }
        let ended_at = *self.ended_at.get_or_insert(now);
        if now >= ended_at + RAISE_INTERVAL {
            self.refused = self.ceiling + 1;
            self.ended_at = None;
        }
    }

    /// Returns true if a probe may be sent at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        match self.probe {
            Some(probe) => now >= probe.expires,
            None => self.candidate().is_some(),
        }
    }

    /// Returns the time at which a probe counts as lost.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.probe.map(|probe| probe.expires)
    }
}

#[cfg(test)]
mod tests;
