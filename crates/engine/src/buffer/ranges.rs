//! Sets of disjoint ranges of stream offsets, for SACK and reassembly.

use std::collections::VecDeque;
use std::ops::Range;

/// The capacity above which storage is freed when the set becomes empty, so that idle connections hold little
/// memory. The value, which is 1 KiB, is a guess.
const MAX_KEPT_CAPACITY: usize = 64;

/// A set of stream offsets, kept as sorted, disjoint, non-adjacent half-open ranges.
///
/// With n ranges, a search takes O(log n) and an insertion at the end O(1). An insertion or a removal in the
/// middle moves the ranges on the shorter side. Memory grows with the number of ranges, so a caller that stores
/// ranges received from a peer must limit [`len`](Self::len).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// The start and the end of each range.
    ranges: VecDeque<(u64, u64)>,
    /// The number of offsets in the set.
    bytes: u64,
}

impl RangeSet {
    /// Creates an empty set. Allocates nothing.
    pub const fn new() -> Self {
        RangeSet {
            ranges: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds `range` and returns the number of its offsets that were not in the set. An empty range adds nothing.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        let Range { start, end } = range;
        if start >= end {
            return 0;
        }
        // Most ranges extend the last one or follow it, so these cases come first.
        match self.ranges.back_mut() {
            Some(last) if start >= last.0 && start <= last.1 => {
                let added = end.saturating_sub(last.1);
                last.1 = last.1.max(end);
                self.bytes += added;
                return added;
            }
            Some(last) if start <= last.1 => {}
            _ => {
                self.ranges.push_back((start, end));
                self.bytes += end - start;
                return end - start;
            }
        }
        // Ranges `lo..hi` overlap or touch the new one.
        let lo = self.ranges.partition_point(|r| r.1 < start);
        let hi = self.ranges.partition_point(|r| r.0 <= end);
        if lo == hi {
            self.ranges.insert(lo, (start, end));
            self.bytes += end - start;
            return end - start;
        }
        let merged = (self.ranges[lo].0.min(start), self.ranges[hi - 1].1.max(end));
        let merged_bytes: u64 = self.ranges.range(lo..hi).map(|r| r.1 - r.0).sum();
        let added = merged.1 - merged.0 - merged_bytes;
        self.ranges[lo] = merged;
        self.ranges.drain(lo + 1..hi);
        self.bytes += added;
        added
    }

    /// Removes every offset of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        let Range { start, end } = range;
        if start >= end {
            return;
        }
        // Ranges `lo..hi` share an offset with `range`.
        let lo = self.ranges.partition_point(|r| r.1 <= start);
        let hi = self.ranges.partition_point(|r| r.0 < end);
        if lo >= hi {
            return;
        }
        // The parts that remain of the first and of the last affected range. An empty part is dropped.
        let left = (self.ranges[lo].0, start);
        let right = (end, self.ranges[hi - 1].1);
        let affected_bytes: u64 = self.ranges.range(lo..hi).map(|r| r.1 - r.0).sum();
        self.bytes -= affected_bytes;
        let mut at = lo;
        let mut spare = hi - lo;
        for part in [left, right] {
            if part.0 >= part.1 {
                continue;
            }
            self.bytes += part.1 - part.0;
            if spare > 0 {
                self.ranges[at] = part;
                spare -= 1;
            } else {
                self.ranges.insert(at, part);
            }
            at += 1;
        }
        self.ranges.drain(at..at + spare);
        self.trim();
    }

    /// Removes every offset below `offset`.
    pub fn remove_below(&mut self, offset: u64) {
        while let Some(first) = self.ranges.front_mut() {
            if first.1 <= offset {
                self.bytes -= first.1 - first.0;
                self.ranges.pop_front();
                continue;
            }
            let cut = offset.saturating_sub(first.0);
            first.0 += cut;
            self.bytes -= cut;
            break;
        }
        self.trim();
    }

    /// Removes and returns the first range if it starts at or below `offset`. Such a range continues the in-order
    /// data, which ends at `offset`.
    pub fn pop_front_up_to(&mut self, offset: u64) -> Option<Range<u64>> {
        let first = *self.ranges.front()?;
        if first.0 > offset {
            return None;
        }
        self.ranges.pop_front();
        self.bytes -= first.1 - first.0;
        self.trim();
        Some(first.0..first.1)
    }

    /// Returns whether `offset` is in the set.
    pub fn contains(&self, offset: u64) -> bool {
        self.range_containing(offset).is_some()
    }

    /// Returns whether all of `range` is in the set; true for an empty range.
    pub fn covered(&self, range: &Range<u64>) -> bool {
        range.start >= range.end
            || self
                .range_containing(range.start)
                .is_some_and(|r| r.end >= range.end)
    }

    /// Returns the range that contains `offset`.
    pub fn range_containing(&self, offset: u64) -> Option<Range<u64>> {
        // The most frequent case: new data lies above all ranges.
        self.ranges.back().filter(|last| offset < last.1)?;
        let i = self.ranges.partition_point(|r| r.1 <= offset);
        let r = self.ranges.get(i)?;
        (r.0 <= offset).then_some(r.0..r.1)
    }

    /// Returns the lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        self.ranges.front().map(|r| r.0..r.1)
    }

    /// Returns the end of the highest range, one past the largest offset in the set.
    pub fn max_end(&self) -> Option<u64> {
        self.ranges.back().map(|r| r.1)
    }

    /// Returns the ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + '_ {
        self.ranges.iter().map(|r| r.0..r.1)
    }

    /// Returns the parts of `range` that are not in the set, in ascending order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        let mut next = self.ranges.partition_point(|r| r.1 <= at);
        std::iter::from_fn(move || {
            while at < range.end {
                let (start, end) = match self.ranges.get(next) {
                    Some(r) => (r.0.min(range.end), r.1),
                    None => (range.end, range.end),
                };
                let gap = at..start;
                at = end;
                next += 1;
                if gap.start < gap.end {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether no offset is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of offsets in the set.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
        self.trim();
    }

    /// Frees the storage of an empty set if it is large.
    fn trim(&mut self) {
        if self.ranges.is_empty() && self.ranges.capacity() > MAX_KEPT_CAPACITY {
            self.ranges = VecDeque::new();
        }
    }
}
