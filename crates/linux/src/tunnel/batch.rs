//! The datagrams that are sent next. The core hands them out path by turns; each path's are gathered to runs, of which
//! the kernel takes each with one call (`UDP_SEGMENT`).

use arrayvec::ArrayVec;
use braid_proxy::app::TunnelTransmit;

/// Maximum number of datagrams in a run. Linux 4.18 takes 64 (`UDP_MAX_SEGMENTS`), later versions take 128.
pub(super) const MAX_RUN: usize = 64;
/// Maximum number of bytes in a run: an IP packet has at most 65,535 bytes with the headers of IPv6 (40) and UDP (8).
const MAX_RUN_BYTES: usize = 65_535 - 48;
/// Maximum number of datagrams in a batch, and the number of bytes that fills it: full runs for two links. More would
/// leave the cache of a processor core before they are sent.
const MAX_BATCH: usize = 2 * MAX_RUN;
const FULL_BATCH_BYTES: usize = 2 * MAX_RUN_BYTES;

/// Datagrams of all paths, in the order in which the core made them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    datagrams: Vec<Datagram>,
    /// Number of datagrams at the front that are in earlier runs.
    taken: usize,
}

#[derive(Debug)]
struct Datagram {
    transmit: TunnelTransmit,
    /// The place of its first byte.
    at: usize,
    /// True if it is in an earlier run.
    is_taken: bool,
}

/// Datagrams for one path and peer, all of the length of the first, except the last, which may be shorter.
#[derive(Debug)]
pub(super) struct Run<'a> {
    /// Path and peer of the run, and the length of its first datagram.
    pub head: TunnelTransmit,
    /// Number of datagrams.
    pub datagrams: usize,
    /// The bytes of the datagrams. Each part has whole datagrams.
    pub parts: ArrayVec<&'a [u8], MAX_RUN>,
}

impl Run<'_> {
    /// Returns the datagrams one by one.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.parts
            .iter()
            .flat_map(|part| part.chunks(self.head.len))
    }
}

impl Batch {
    pub fn new() -> Batch {
        Batch {
            bytes: Vec::with_capacity(FULL_BATCH_BYTES + MAX_RUN_BYTES),
            datagrams: Vec::with_capacity(MAX_BATCH),
            taken: 0,
        }
    }

    /// Returns the number of datagrams.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Returns whether the datagrams should be sent before others are added.
    pub fn is_full(&self) -> bool {
        self.len() >= MAX_BATCH || self.bytes.len() >= FULL_BATCH_BYTES
    }

    /// Returns the buffer, to which the next datagram is appended before [`Self::add`].
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Adds the datagram that was appended to the buffer last.
    pub fn add(&mut self, transmit: TunnelTransmit) {
        self.datagrams.push(Datagram {
            transmit,
            at: self.bytes.len() - transmit.len,
            is_taken: false,
        });
    }

    /// Takes the next run: as many datagrams as possible for the path and peer of the first one that is left. The runs
    /// of a path have its datagrams in order.
    pub fn next_run(&mut self) -> Option<Run<'_>> {
        let left = &mut self.datagrams[self.taken..];
        let first = left.iter().position(|datagram| !datagram.is_taken)?;
        self.taken += first;
        let head = left[first].transmit;
        let mut run = Run {
            head,
            datagrams: 0,
            parts: ArrayVec::new(),
        };
        let (mut len, mut part) = (0, 0..0);
        let of_head = |d: &&mut Datagram| {
            !d.is_taken && (d.transmit.path, d.transmit.remote) == (head.path, head.remote)
        };
        for datagram in left[first..].iter_mut().filter(of_head) {
            let own = datagram.transmit.len;
            if run.datagrams == MAX_RUN || own > head.len || len + own > MAX_RUN_BYTES.max(head.len)
            {
                break;
            }
            datagram.is_taken = true;
            run.datagrams += 1;
            len += own;
            if datagram.at != part.end {
                if !part.is_empty() {
                    run.parts.push(&self.bytes[part.clone()]);
                }
                part = datagram.at..datagram.at;
            }
            part.end += own;
            if own < head.len {
                break;
            }
        }
        run.parts.push(&self.bytes[part]);
        Some(run)
    }

    /// Forgets all datagrams.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.datagrams.clear();
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use braid_proxy::app::PathId;

    use super::*;

    /// Returns the path and the datagrams of each run. A datagram is given as path and length, and its bytes have its
    /// number in the batch.
    fn runs(datagrams: &[(u8, usize)]) -> Vec<(u8, Vec<(u8, usize)>)> {
        let mut batch = Batch::new();
        for (number, &(path, len)) in (0..).zip(datagrams) {
            let end = batch.buffer().len() + len;
            batch.buffer().resize(end, number);
            batch.add(TunnelTransmit {
                path: PathId(path),
                remote: "192.0.2.1:1080".parse().unwrap(),
                len,
            });
        }
        let mut runs = Vec::new();
        while let Some(run) = batch.next_run() {
            let each = run.each().map(|datagram| {
                assert!(datagram.iter().all(|byte| *byte == datagram[0]));
                (datagram[0], datagram.len())
            });
            let each: Vec<_> = each.collect();
            assert_eq!(run.datagrams, each.len());
            runs.push((run.head.path.0, each));
        }
        runs
    }

    #[test]
    fn a_run_has_one_path_and_one_length() {
        let datagrams = |numbers: &[u8], len| numbers.iter().map(|n| (*n, len)).collect();
        assert_eq!(runs(&[(0, 1_400); 3]), [(0, datagrams(&[0, 1, 2], 1_400))]);
        // Paths by turns.
        assert_eq!(
            runs(&[(0, 1_400), (1, 1_300), (0, 1_400), (1, 1_300), (1, 1_300)]),
            [
                (0, datagrams(&[0, 2], 1_400)),
                (1, datagrams(&[1, 3, 4], 1_300))
            ]
        );
        // A shorter datagram is the last one, and a longer one begins another run.
        assert_eq!(
            runs(&[(0, 1_400), (0, 300), (0, 300)]),
            [(0, vec![(0, 1_400), (1, 300)]), (0, vec![(2, 300)])]
        );
        assert_eq!(
            runs(&[(0, 300), (0, 1_400)]),
            [(0, vec![(0, 300)]), (0, vec![(1, 1_400)])]
        );
    }

    #[test]
    fn runs_are_bounded() {
        let counts = |datagrams: &[(u8, usize)]| -> Vec<usize> {
            runs(datagrams).iter().map(|(_, run)| run.len()).collect()
        };
        assert_eq!(counts(&[(0, 100); 65]), [MAX_RUN, 1]);
        // 46 x 1,400 = 64,400 bytes; with another one 65,800, more than a packet holds.
        assert_eq!(counts(&[(0, 1_400); 60]), [46, 14]);
        // The kernel refuses a datagram that no packet holds.
        assert_eq!(counts(&[(0, 65_527), (0, 1)]), [1, 1]);
    }

    #[test]
    fn a_batch_is_full_at_its_bounds() {
        let mut batch = Batch::new();
        let transmit = TunnelTransmit {
            path: PathId(0),
            remote: "192.0.2.1:1080".parse().unwrap(),
            len: 1,
        };
        for _ in 0..MAX_BATCH {
            assert!(!batch.is_full());
            batch.buffer().push(0);
            batch.add(transmit);
        }
        assert!(batch.is_full());
        batch.clear();
        assert!(!batch.is_full() && batch.next_run().is_none());
        batch.buffer().resize(FULL_BATCH_BYTES, 0);
        assert!(batch.is_full());
    }
}
