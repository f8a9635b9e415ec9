//! The path MTU: from the link's MTU, from reports of the network (RFC 1191, RFC 8201), and from arrivals
//! and losses (RFC 4821, RFC 8899).

use core::time::Duration;

use braid_wire::Instant;

/// The sizes to fall back to when large packets vanish: the least MTU of IPv6, the base size of Linux, and
/// the least MTU that is believed (RFC 8899 section 5.1.2: BASE_PLPMTU, MIN_PLPMTU).
const FALLBACK_MTUS: [u32; 3] = [1280, 1024, 576];
/// The time before another size is probed: a size may have been too large for a moment only.
const PROBE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The time before sizes that failed are probed again (PMTU_RAISE_TIMER, RFC 8899 section 5.1.1).
const PMTU_RAISE_TIMER: Duration = Duration::from_secs(600);
/// The number of losses of one size after which it counts as too large (MAX_PROBES, RFC 8899 section
/// 5.1.2).
const MAX_PROBES: u32 = 3;
/// The precision in bytes at which the search ends.
const SEARCH_PRECISION_BYTES: u32 = 16;

/// The packet size of one path, and the search for a larger one. All sizes are of IP packets, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathMtu {
    least: u32,
    /// The MTU of the link.
    most: u32,
    current: u32,
    /// The largest size that may pass: the link's, or the one reported since the search began.
    top: u32,
    /// The smallest size known not to pass; more than `top` if there is none.
    too_large: u32,
    tries: u32,
    /// The size of the probe in flight.
    probing: Option<u32>,
    /// The time of the next probe; `None` while one is in flight, and if there is none.
    next_at: Option<Instant>,
}

/// The effect of a report of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    NoNews,
    /// Packets are smaller from now on.
    Smaller,
    /// The probed size does not pass.
    TooLarge,
}

impl PathMtu {
    /// Creates the state of a path over a link that takes `most`; it never goes below `least`.
    pub fn new(most: u32, least: u32) -> Self {
        let most = most.max(least);
        PathMtu {
            least,
            most,
            current: most,
            top: most,
            too_large: most + 1,
            tries: 0,
            probing: None,
            next_at: None,
        }
    }

    /// Returns the current packet size.
    pub fn get(&self) -> u32 {
        self.current
    }

    /// Returns the size to fall back to when packets of the current one vanish.
    pub fn smaller(&self) -> Option<u32> {
        let fits = |size: &u32| *size < self.current && *size >= self.least;
        FALLBACK_MTUS.into_iter().find(fits)
    }

    /// Processes a report that packets over `mtu` do not pass. During a probe `mtu` is the next size to
    /// probe, unless less passes (RFC 8899 section 4.6.2).
    pub fn on_report(&mut self, now: Instant, mtu: u32) -> Report {
        let mtu = mtu.max(self.least);
        if mtu < self.current {
            self.shrink(now + PMTU_RAISE_TIMER, mtu);
            return Report::Smaller;
        }
        if self.probing.take_if(|size| *size > mtu).is_none() {
            return Report::NoNews;
        }
        self.top = mtu;
        self.too_large = mtu + 1;
        self.tries = 0;
        self.go_on(now, now);
        Report::TooLarge
    }

    /// Falls back to a smaller size, because large packets vanish while small ones arrive. Returns whether
    /// there is one.
    pub fn on_black_hole(&mut self, now: Instant) -> bool {
        let smaller = self.smaller();
        if let Some(size) = smaller {
            self.shrink(now + PROBE_RETRY_DELAY, size);
        }
        smaller.is_some()
    }

    fn shrink(&mut self, next_at: Instant, size: u32) {
        self.current = size;
        self.tries = 0;
        self.rest(next_at);
    }

    /// Resets the search; no size is probed before `until`.
    fn rest(&mut self, until: Instant) {
        self.top = self.most;
        self.too_large = self.most + 1;
        self.probing = None;
        self.next_at = Some(until);
    }

    /// Plans the next probe at `next_at`, unless the search is close enough.
    fn go_on(&mut self, now: Instant, next_at: Instant) {
        if self.current == self.most {
            self.next_at = None;
        } else if self.current == self.top
            || self.too_large <= self.current + SEARCH_PRECISION_BYTES
        {
            self.rest(now + PMTU_RAISE_TIMER);
        } else {
            self.next_at = Some(next_at);
        }
    }

    /// Returns the size to probe now, if any: first the largest, then halfway between a size that passes
    /// and one that does not.
    pub fn due(&self, now: Instant) -> Option<u32> {
        self.next_at.filter(|at| *at <= now)?;
        match self.too_large > self.top {
            true => Some(self.top),
            false => Some((self.current + self.too_large) / 2),
        }
    }

    /// Notes that a packet of `size`, no more than was due, leaves as the probe.
    pub fn on_probe_sent(&mut self, size: u32) {
        self.probing = Some(size);
        self.next_at = None;
    }

    /// Notes that the probe arrived or was lost. A report received meanwhile prevails.
    pub fn on_result(&mut self, now: Instant, arrived: bool) {
        let Some(size) = self.probing.take() else {
            return;
        };
        if arrived {
            self.current = self.current.max(size);
            self.tries = 0;
        } else {
            self.tries += 1;
            if self.tries >= MAX_PROBES {
                self.too_large = self.too_large.min(size);
                self.tries = 0;
            }
        }
        self.go_on(
            now,
            if arrived {
                now
            } else {
                now + PROBE_RETRY_DELAY
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a path that passes packets of `mtu` bytes. Returns the size found and the number of
    /// probes.
    fn search(mut path: PathMtu, mtu: u32) -> (u32, u32) {
        let mut now = Instant::ZERO;
        let mut packets = 0;
        while let Some(at) = path.next_at.filter(|at| *at < now + PMTU_RAISE_TIMER) {
            now = at;
            let size = path.due(now).expect("it is due");
            path.on_probe_sent(size);
            path.on_result(now, size <= mtu);
            packets += 1;
        }
        (path.get(), packets)
    }

    /// RFC 8899 section 5.3.2: the search finds the size within 16 bytes and then rests.
    #[test]
    fn a_search_ends_close_to_the_size() {
        for (mtu, found, packets) in [(1500, 1500, 1), (1300, 1293, 13), (1492, 1486, 7)] {
            let mut path = PathMtu::new(1500, 576);
            assert!(path.on_black_hole(Instant::ZERO));
            assert_eq!(path.get(), 1280);
            assert_eq!(search(path, mtu), (found, packets), "{mtu}");
        }
    }

    #[test]
    fn there_is_a_least_size() {
        for (least, sizes) in [(576, vec![1280, 1024, 576]), (1280, vec![1280])] {
            let mut path = PathMtu::new(1500, least);
            for size in sizes {
                assert!(path.on_black_hole(Instant::ZERO));
                assert_eq!(path.get(), size);
            }
            assert!(!path.on_black_hole(Instant::ZERO));
        }
    }

    /// RFC 1191 section 6.3: a reported size is believed for ten minutes.
    #[test]
    fn a_report_is_believed_for_a_while() {
        let mut path = PathMtu::new(1500, 576);
        assert_eq!(path.on_report(Instant::ZERO, 1400), Report::Smaller);
        assert_eq!(path.on_report(Instant::ZERO, 1450), Report::NoNews);
        assert_eq!(path.due(Instant::from_millis(599_999)), None);
        assert_eq!(path.due(Instant::from_millis(600_000)), Some(1500));
        assert_eq!(path.on_report(Instant::ZERO, 68), Report::Smaller);
        assert_eq!(path.get(), 576);
    }

    /// RFC 8899 section 4.6.2.
    #[test]
    fn a_report_on_a_try_says_what_to_try_next() {
        let now = Instant::ZERO;
        let probing = || {
            let mut path = PathMtu::new(1500, 576);
            path.on_black_hole(now);
            path.on_probe_sent(1500);
            path
        };
        let soon = now + PROBE_RETRY_DELAY;
        for (mtu, report, due) in [
            (1500, Report::NoNews, None),
            (1400, Report::TooLarge, Some(1400)),
            // A size that passes already, and a smaller one.
            (1280, Report::TooLarge, None),
            (1000, Report::Smaller, None),
        ] {
            let mut path = probing();
            assert_eq!(path.on_report(now, mtu), report, "{mtu}");
            assert_eq!(path.due(now), due, "{mtu}");
            path.on_result(now, false);
            assert_eq!(path.due(now), due, "{mtu}");
            let again = (mtu == 1500).then_some(1500).or(due);
            assert_eq!(path.due(soon), again, "{mtu}");
        }
        let mut path = probing();
        path.on_report(now, 1400);
        assert_eq!(search(path, 1400), (1400, 1));
        assert_eq!(search(path, 1350).0, 1340);
    }
}
