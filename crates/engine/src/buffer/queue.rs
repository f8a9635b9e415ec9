//! Written data that has no stream offset yet, in the order in which it will be mapped.

use std::collections::VecDeque;

use braid_wire::Instant;

use super::blocks::Span;
use crate::{Class, Urgency};

/// The maximum number of bytes of a merged chunk. Successive small writes of one stream are merged up to this
/// size. Merging keeps the list short; the limit keeps urgent data from waiting long for the end of a chunk. The
/// value is a guess.
const MAX_MERGED_CHUNK: usize = 4096;

/// The capacity above which the list is freed when the queue is cleared. The value is a guess.
const MAX_KEPT_CAPACITY: usize = 64;

/// The bytes of one write that lie in one block.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    span: Span,
    stream: u32,
    urgency: Urgency,
    deadline: Option<Instant>,
    /// True if the next chunk belongs to the same write.
    is_continued: bool,
}

/// The waiting writes, sorted by urgency; writes of the same urgency are in the order in which they were written.
/// The rest of a partly sent write precedes all other writes, so that no other data interrupts the units that
/// readers parse.
#[derive(Debug, Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    /// The number of chunks at the front that belong to a partly sent write.
    started: usize,
    /// The number of waiting bytes by urgency.
    bytes: [u64; Urgency::COUNT],
    /// A lower bound of the deadlines of all waiting chunks. If it is `None`, no waiting chunk has a deadline.
    first_deadline: Option<Instant>,
}

impl Queue {
    /// Returns the number of waiting bytes by urgency.
    pub fn bytes(&self) -> [u64; Urgency::COUNT] {
        self.bytes
    }

    /// Returns the number of bytes of memory that the list itself uses.
    pub fn overhead(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>()
    }

    /// Returns the highest urgency of the waiting bytes.
    pub fn most_urgent(&self) -> Option<Urgency> {
        let first = self.chunks.front()?;
        // The rest of a partly sent write comes first, although the next write may be more urgent.
        let next = self.chunks.get(self.started).unwrap_or(first);
        Some(first.urgency.min(next.urgency))
    }

    /// Returns the number of bytes at the front that have the same urgency.
    pub fn run(&self) -> u64 {
        let Some(first) = self.chunks.front() else {
            return 0;
        };
        let next = self.chunks.get(self.started);
        if next.is_some_and(|next| next.urgency < first.urgency) {
            let rest = self.chunks.range(..self.started);
            return rest.map(|chunk| chunk.span.len() as u64).sum();
        }
        self.bytes[first.urgency.index()]
    }

    /// Raises the waiting bytes of the stream of `class` to at least the urgency of `class`, because the bytes of
    /// a stream keep their order. This takes constant time if all waiting bytes are at least as urgent as `class`.
    pub fn raise(&mut self, class: Class) {
        let is_as_urgent = |chunk: &Chunk| chunk.urgency <= class.urgency;
        if self.chunks.back().is_none_or(is_as_urgent) {
            return;
        }
        let first_less_urgent = self.end_of(class.urgency);
        let mut less_urgent = self.chunks.range(first_less_urgent..);
        if less_urgent.all(|chunk| chunk.stream != class.stream) {
            return;
        }
        // A stable sort moves the chunks of the stream to the front and keeps the order otherwise.
        let less_urgent = &mut self.chunks.make_contiguous()[first_less_urgent..];
        less_urgent.sort_by_key(|chunk| chunk.stream != class.stream);
        let of_stream = |chunk: &&mut Chunk| chunk.stream == class.stream;
        for chunk in less_urgent.iter_mut().take_while(of_stream) {
            let n = chunk.span.len() as u64;
            self.bytes[chunk.urgency.index()] -= n;
            self.bytes[class.urgency.index()] += n;
            chunk.urgency = class.urgency;
        }
    }

    /// Adds the bytes `span` of `class`. `is_continued` is set if the next call adds bytes of the same write.
    pub fn push(&mut self, class: Class, span: Span, is_continued: bool) {
        self.bytes[class.urgency.index()] += span.len() as u64;
        let at = self.end_of(class.urgency);
        if at > self.started
            && let Some(last) = self.chunks.get_mut(at - 1)
            && (last.stream, last.urgency) == (class.stream, class.urgency)
            && (last.deadline, class.deadline) == (None, None)
            && last.span.len() + span.len() <= MAX_MERGED_CHUNK
            && last.span.join(span)
        {
            last.is_continued = is_continued;
            return;
        }
        let chunk = Chunk {
            span,
            stream: class.stream,
            urgency: class.urgency,
            deadline: class.deadline,
            is_continued,
        };
        let deadlines = [self.first_deadline, class.deadline];
        self.first_deadline = deadlines.into_iter().flatten().min();
        self.chunks.insert(at, chunk);
    }

    /// Puts the bytes that were [popped](Self::pop) last back at the front. They count as the rest of a partly
    /// sent write.
    pub fn push_front(&mut self, span: Span, urgency: Urgency) {
        self.bytes[urgency.index()] += span.len() as u64;
        self.started += 1;
        // A partly sent write is neither raised nor dropped, so its stream and its deadline no longer matter.
        self.chunks.push_front(Chunk {
            span,
            stream: 0,
            urgency,
            deadline: None,
            is_continued: true,
        });
    }

    /// Returns the number of chunks that are at least as urgent as `urgency`, including the rest of a partly sent
    /// write. A new chunk of this urgency is inserted at this index.
    fn end_of(&self, urgency: Urgency) -> usize {
        // The fast path: if all data is of one class, no other case occurs.
        if self
            .chunks
            .back()
            .is_none_or(|last| last.urgency <= urgency)
        {
            return self.chunks.len();
        }
        let (mut low, mut high) = (self.started, self.chunks.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.chunks[middle].urgency <= urgency {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Removes and returns up to `max` bytes from the front, at most one chunk.
    pub fn pop(&mut self, max: usize) -> Option<Span> {
        if self.started == 0 {
            // The pop starts the first write, which extends up to its last chunk.
            let last = self.chunks.iter().position(|chunk| !chunk.is_continued);
            self.started = last.map_or(0, |n| n + 1);
        }
        let first = self.chunks.front_mut()?;
        let span = first.span.cut(max);
        self.bytes[first.urgency.index()] -= span.len() as u64;
        if first.span.len() == 0 {
            self.chunks.pop_front();
            self.started -= 1;
        }
        Some(span)
    }

    /// Removes the writes whose deadline has passed, unless they are partly sent, and calls `on_dropped` with
    /// their bytes.
    pub fn drop_late(&mut self, now: Instant, mut on_dropped: impl FnMut(Span)) {
        if self.first_deadline.is_none_or(|at| at > now) {
            return;
        }
        let (mut n, mut first_deadline) = (0, None::<Instant>);
        self.chunks.retain(|chunk| {
            n += 1;
            let is_late = n > self.started && chunk.deadline.is_some_and(|at| at <= now);
            if is_late {
                self.bytes[chunk.urgency.index()] -= chunk.span.len() as u64;
                on_dropped(chunk.span);
            } else if n > self.started {
                let deadlines = [first_deadline, chunk.deadline];
                first_deadline = deadlines.into_iter().flatten().min();
            }
            !is_late
        });
        self.first_deadline = first_deadline;
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.chunks.clear();
        if self.chunks.capacity() > MAX_KEPT_CAPACITY {
            self.chunks = VecDeque::new();
        }
        self.started = 0;
        self.bytes = [0; Urgency::COUNT];
        self.first_deadline = None;
    }
}
