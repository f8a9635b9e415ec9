//! Path MTU discovery: from the MTU of the link, from ICMP reports (RFC 1191, RFC 8201), and from the arrivals and
//! losses of probes (RFC 4821, RFC 8899).

use core::time::Duration;

use braid_wire::Instant;

/// The sizes to fall back to, one after another, if the path drops large packets: the minimum MTU of IPv6, the
/// base MSS of Linux, and the lowest MTU that Braid accepts for IPv4. They stand for BASE_PLPMTU and MIN_PLPMTU of
/// RFC 8899 section 5.1.2.
const FALLBACK_MTUS: [u32; 3] = [1280, 1024, 576];
/// The time between a fallback or a lost probe and the next probe. The value is a guess: brief congestion or a
/// change of route may have caused the losses, and is mostly over after this time.
const PROBE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The time before sizes that failed are probed again (PMTU_RAISE_TIMER, RFC 8899 section 5.1.1).
const PMTU_RAISE_TIMER: Duration = Duration::from_secs(600);
/// The number of lost probes of one size after which this size counts as too large (MAX_PROBES, RFC 8899 section
/// 5.1.2).
const MAX_PROBES: u32 = 3;
/// The precision in bytes at which the search ends. The value is a guess; 16 bytes are about 1 % of a packet.
const SEARCH_PRECISION_BYTES: u32 = 16;

/// The packet size of one path, and the search for a larger one. All sizes are of IP packets, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathMtu {
    /// The minimum size. A report of a lower size is raised to it.
    min: u32,
    /// The MTU of the link.
    link_mtu: u32,
    current: u32,
    /// The largest size that the path may forward: the MTU of the link, or the last reported size.
    max: u32,
    /// The smallest size that the path is known to drop; more than `max` if no such size is known.
    too_large: u32,
    /// The number of lost probes of the size that is being probed.
    lost_probes: u32,
    /// The size of the probe in flight.
    probing: Option<u32>,
    /// The time of the next probe; `None` while a probe is in flight, or if no larger size is possible.
    next_at: Option<Instant>,
}

/// The effect of an ICMP report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The report has no effect.
    NoNews,
    /// Packets are smaller from now on.
    Smaller,
    /// The path drops packets of the probed size.
    TooLarge,
}

impl PathMtu {
    /// Creates the state of a path over a link with the MTU `link_mtu`. The size never falls below `min`.
    pub fn new(link_mtu: u32, min: u32) -> Self {
        let link_mtu = link_mtu.max(min);
        PathMtu {
            min,
            link_mtu,
            current: link_mtu,
            max: link_mtu,
            too_large: link_mtu + 1,
            lost_probes: 0,
            probing: None,
            next_at: None,
        }
    }

    /// Returns the current packet size.
    pub fn get(&self) -> u32 {
        self.current
    }

    /// Returns the size to fall back to if the path drops packets of the current size; `None` if there is no lower
    /// one.
    pub fn smaller(&self) -> Option<u32> {
        let fits = |size: &u32| *size < self.current && *size >= self.min;
        FALLBACK_MTUS.into_iter().find(fits)
    }

    /// Processes a report that the path drops packets larger than `mtu`. If the report is about a probe and `mtu` is
    /// above the current size, `mtu` is the next size to probe (RFC 8899 section 4.6.2).
    pub fn on_report(&mut self, now: Instant, mtu: u32) -> Report {
        let mtu = mtu.max(self.min);
        if mtu < self.current {
            self.shrink(now + PMTU_RAISE_TIMER, mtu);
            return Report::Smaller;
        }
        // Without a larger probe there is nothing to do: packets of the current size are not larger than `mtu`.
        if self.probing.take_if(|size| *size > mtu).is_none() {
            return Report::NoNews;
        }
        self.max = mtu;
        self.too_large = mtu + 1;
        self.lost_probes = 0;
        self.continue_search(now, now);
        Report::TooLarge
    }

    /// Falls back to a smaller size, because the path drops large packets while small ones arrive. Returns whether
    /// there is a smaller size.
    pub fn on_black_hole(&mut self, now: Instant) -> bool {
        let smaller = self.smaller();
        if let Some(size) = smaller {
            self.shrink(now + PROBE_RETRY_DELAY, size);
        }
        smaller.is_some()
    }

    /// Sets a smaller current size. The search for a larger one begins at `next_at`.
    fn shrink(&mut self, next_at: Instant, size: u32) {
        self.current = size;
        self.lost_probes = 0;
        self.reset_search(next_at);
    }

    /// Resets the search: sizes that the path dropped may be probed again, but no size before `until`.
    fn reset_search(&mut self, until: Instant) {
        self.max = self.link_mtu;
        self.too_large = self.link_mtu + 1;
        self.probing = None;
        self.next_at = Some(until);
    }

    /// Plans the next probe at `next_at`, unless the search has reached its precision.
    fn continue_search(&mut self, now: Instant, next_at: Instant) {
        if self.current == self.link_mtu {
            self.next_at = None;
        } else if self.current == self.max
            || self.too_large <= self.current + SEARCH_PRECISION_BYTES
        {
            self.reset_search(now + PMTU_RAISE_TIMER);
        } else {
            self.next_at = Some(next_at);
        }
    }

    /// Returns the size to probe now, if any. The largest size is probed first, because most paths have the MTU of
    /// the link. If the path drops it, the middle between the current size and the smallest size that the path is
    /// known to drop is probed next.
    pub fn due(&self, now: Instant) -> Option<u32> {
        self.next_at.filter(|at| *at <= now)?;
        match self.too_large > self.max {
            true => Some(self.max),
            false => Some((self.current + self.too_large) / 2),
        }
    }

    /// Notes that a packet of `size` bytes is sent as the probe. `size` is at most the size that was due.
    pub fn on_probe_sent(&mut self, size: u32) {
        self.probing = Some(size);
        self.next_at = None;
    }

    /// Notes that the probe arrived or was lost. The result is ignored if a report has answered the probe already.
    pub fn on_result(&mut self, now: Instant, arrived: bool) {
        let Some(size) = self.probing.take() else {
            return;
        };
        if arrived {
            self.current = self.current.max(size);
            self.lost_probes = 0;
        } else {
            self.lost_probes += 1;
            if self.lost_probes >= MAX_PROBES {
                self.too_large = self.too_large.min(size);
                self.lost_probes = 0;
            }
        }
        self.continue_search(
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

    /// Searches on a path that drops packets larger than `mtu`. Returns the size found and the number of probes.
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

    /// RFC 8899 section 5.3.2: the search ends within 16 bytes of the path MTU. A size counts as too large after
    /// three losses. A path MTU of 1300 takes three probes each of 1500, 1390, 1335 and 1307, and one of 1293. A
    /// path MTU of 1492 takes three probes of 1500, and one each of 1390, 1445, 1472 and 1486.
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
        for (min, sizes) in [(576, vec![1280, 1024, 576]), (1280, vec![1280])] {
            let mut path = PathMtu::new(1500, min);
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

    /// RFC 8899 section 4.6.2: a report about a probe of 1500 bytes gives the next size to probe.
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
            // The current size, and a smaller one.
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
        // Three probes of 1400 are dropped. The middle between 1280 and 1400 is 1340, which arrives. The next
        // middles, 1370 and 1355, are dropped.
        assert_eq!(search(path, 1350).0, 1340);
    }
}
