//! How large packets a path takes: by the link's MTU, by what the network reports (RFC 1191, 8201), and
//! by what arrives and what does not (RFC 4821, 8899).

use core::time::Duration;

use braid_wire::Instant;

/// Sizes to fall back to when large packets vanish: what IPv6 promises, what Linux begins with, and the
/// least that is believed (RFC 8899 section 5.1.2: BASE_PLPMTU, MIN_PLPMTU).
const FALLBACKS: [u32; 3] = [1280, 1024, 576];
/// Before another size is tried: one that was too large may have been so for a moment only.
const SOON: Duration = Duration::from_secs(1);
/// Before larger sizes are tried that were found not to pass (PMTU_RAISE_TIMER, RFC 8899 section 5.1.1).
const LATER: Duration = Duration::from_secs(600);
/// Packets of one size that must be lost before it counts as too large (MAX_PROBES there).
const MAX_TRIES: u32 = 3;
/// The search ends when it knows the size up to this many bytes.
const CLOSE: u32 = 16;

/// The size of packets on one path, and the search for a larger one. All sizes are of IP packets, in
/// bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathMtu {
    least: u32,
    /// What the link takes.
    most: u32,
    current: u32,
    /// The smallest size known not to pass; more than `most` where there is none.
    too_large: u32,
    tries: u32,
    /// When the next size is tried; `None` while one is, and where there is none.
    next_at: Option<Instant>,
}

impl PathMtu {
    /// A path over a link that takes `most`; never less than `least`.
    pub fn new(most: u32, least: u32) -> Self {
        let most = most.max(least);
        PathMtu {
            least,
            most,
            current: most,
            too_large: most + 1,
            tries: 0,
            next_at: None,
        }
    }

    /// The size of packets now.
    pub fn get(&self) -> u32 {
        self.current
    }

    /// The size that packets fall back to when those of the present one vanish.
    pub fn smaller(&self) -> Option<u32> {
        let fits = |size: &u32| *size < self.current && *size >= self.least;
        FALLBACKS.into_iter().find(fits)
    }

    /// The network reported that packets over `mtu` do not pass. Returns whether that is news.
    pub fn on_report(&mut self, now: Instant, mtu: u32) -> bool {
        let mtu = mtu.max(self.least);
        let smaller = mtu < self.current;
        if smaller {
            self.shrink(now + LATER, mtu);
        }
        smaller
    }

    /// Large packets vanish while small ones arrive. Returns whether that changes anything.
    pub fn on_black_hole(&mut self, now: Instant) -> bool {
        let smaller = self.smaller();
        if let Some(size) = smaller {
            self.shrink(now + SOON, size);
        }
        smaller.is_some()
    }

    fn shrink(&mut self, next_at: Instant, size: u32) {
        self.current = size;
        self.too_large = self.most + 1;
        self.tries = 0;
        self.next_at = Some(next_at);
    }

    /// The size to try now, if any: first that of the link, then halfway between what passes and what
    /// does not.
    pub fn due(&self, now: Instant) -> Option<u32> {
        self.next_at.filter(|at| *at <= now)?;
        match self.too_large > self.most {
            true => Some(self.most),
            false => Some((self.current + self.too_large) / 2),
        }
    }

    /// A packet of the size that was due is on its way.
    pub fn on_try(&mut self) {
        self.next_at = None;
    }

    /// A packet of `size` arrived or was lost.
    pub fn on_result(&mut self, now: Instant, size: u32, arrived: bool) {
        if arrived {
            self.current = self.current.max(size);
            self.tries = 0;
        } else {
            self.tries += 1;
            if self.tries >= MAX_TRIES {
                self.too_large = self.too_large.min(size);
                self.tries = 0;
            }
        }
        self.next_at = if self.current == self.most {
            None
        } else if self.too_large <= self.current + CLOSE {
            self.too_large = self.most + 1;
            Some(now + LATER)
        } else {
            Some(if arrived { now } else { now + SOON })
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a path that takes packets of `mtu` bytes, and returns what it settles on and the
    /// number of packets that took.
    fn search(mut path: PathMtu, mtu: u32) -> (u32, u32) {
        let mut now = Instant::ZERO;
        let mut packets = 0;
        while let Some(at) = path.next_at.filter(|at| *at < now + LATER) {
            now = at;
            let size = path.due(now).expect("it is due");
            path.on_try();
            path.on_result(now, size, size <= mtu);
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

    /// RFC 1191 section 6.3: what was reported is believed for ten minutes.
    #[test]
    fn a_report_is_believed_for_a_while() {
        let mut path = PathMtu::new(1500, 576);
        assert!(path.on_report(Instant::ZERO, 1400));
        assert!(!path.on_report(Instant::ZERO, 1450), "no news");
        assert_eq!(path.due(Instant::from_millis(599_999)), None);
        assert_eq!(path.due(Instant::from_millis(600_000)), Some(1500));
        assert!(path.on_report(Instant::ZERO, 68));
        assert_eq!(path.get(), 576);
    }
}
