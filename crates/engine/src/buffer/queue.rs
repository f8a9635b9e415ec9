//! Written data without a stream offset yet, in the order in which it will get one.

use std::collections::VecDeque;

use braid_wire::Instant;

use super::blocks::Span;
use crate::{Class, Urgency};

/// The most bytes of one chunk. Successive small writes of one stream become one chunk up to this size, so
/// that the list stays short compared with its data, and urgent data does not wait for long.
const MAX_MERGED_CHUNK: usize = 4096;

/// The capacity above which the list is freed when the queue is cleared.
const MAX_KEPT_CAPACITY: usize = 64;

/// The bytes of one write that lie in one block.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    span: Span,
    stream: u32,
    urgency: Urgency,
    deadline: Option<Instant>,
    /// Set if the next chunk belongs to the same write.
    more: bool,
}

/// The waiting writes by urgency, and those of one urgency in the order in which they were made. A partly
/// sent write is finished first, because readers need units that nothing interrupts.
#[derive(Debug, Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    /// The number of chunks at the front that are the rest of a partly sent write.
    started: usize,
    bytes: [u64; Urgency::COUNT],
    /// The time before which no deadline passes.
    first_deadline: Option<Instant>,
}

impl Queue {
    /// Returns the bytes by urgency.
    pub fn bytes(&self) -> [u64; Urgency::COUNT] {
        self.bytes
    }

    /// Returns the bytes of memory that the list itself takes.
    pub fn overhead(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>()
    }

    /// Returns the most urgent urgency among the waiting bytes.
    pub fn most_urgent(&self) -> Option<Urgency> {
        let first = self.chunks.front()?;
        let next = self.chunks.get(self.started).unwrap_or(first);
        Some(first.urgency.min(next.urgency))
    }

    /// Returns the number of bytes at the front that are of one urgency.
    pub fn run(&self) -> u64 {
        let Some(first) = self.chunks.front() else {
            return 0;
        };
        let next = self.chunks.get(self.started);
        if next.is_some_and(|next| next.urgency < first.urgency) {
            let rest = self.chunks.range(..self.started);
            return rest.map(|p| p.span.len() as u64).sum();
        }
        self.bytes[first.urgency.index()]
    }

    /// Raises the waiting bytes of `class`'s stream to at least its urgency, because they must go before
    /// the stream's next bytes. It takes time only if less urgent bytes wait.
    pub fn raise(&mut self, class: Class) {
        let is_last = |p: &Chunk| p.urgency <= class.urgency;
        if self.chunks.back().is_none_or(is_last) {
            return;
        }
        let below = self.end_of(class.urgency);
        let mut others = self.chunks.range(below..);
        if others.all(|p| p.stream != class.stream) {
            return;
        }
        let others = &mut self.chunks.make_contiguous()[below..];
        others.sort_by_key(|p| p.stream != class.stream);
        for chunk in others.iter_mut().take_while(|p| p.stream == class.stream) {
            let n = chunk.span.len() as u64;
            self.bytes[chunk.urgency.index()] -= n;
            self.bytes[class.urgency.index()] += n;
            chunk.urgency = class.urgency;
        }
    }

    /// Adds bytes of `class`. `more` is set if bytes of the same write follow with the next call.
    pub fn push(&mut self, class: Class, span: Span, more: bool) {
        self.bytes[class.urgency.index()] += span.len() as u64;
        let at = self.end_of(class.urgency);
        if at > self.started
            && let Some(last) = self.chunks.get_mut(at - 1)
            && (last.stream, last.urgency) == (class.stream, class.urgency)
            && (last.deadline, class.deadline) == (None, None)
            && last.span.len() + span.len() <= MAX_MERGED_CHUNK
            && last.span.join(span)
        {
            last.more = more;
            return;
        }
        let chunk = Chunk {
            span,
            stream: class.stream,
            urgency: class.urgency,
            deadline: class.deadline,
            more,
        };
        let deadlines = [self.first_deadline, class.deadline];
        self.first_deadline = deadlines.into_iter().flatten().min();
        self.chunks.insert(at, chunk);
    }

    /// Takes back bytes that were [popped](Self::pop) last; they go before all others.
    pub fn push_front(&mut self, span: Span, urgency: Urgency) {
        self.bytes[urgency.index()] += span.len() as u64;
        self.started += 1;
        self.chunks.push_front(Chunk {
            span,
            stream: 0,
            urgency,
            deadline: None,
            more: true,
        });
    }

    /// Returns the index behind all chunks that are at least as urgent as `urgency`.
    fn end_of(&self, urgency: Urgency) -> usize {
        // With one class there is no other case.
        if self.chunks.back().is_none_or(|p| p.urgency <= urgency) {
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

    /// Removes and returns up to `max` bytes from the front, as far as they lie in one chunk.
    pub fn pop(&mut self, max: usize) -> Option<Span> {
        if self.started == 0 {
            let whole = self.chunks.iter().position(|p| !p.more);
            self.started = whole.map_or(0, |n| n + 1);
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

    /// Removes writes whose deadline has passed and that are not partly sent, and calls `dropped` with
    /// their bytes.
    pub fn drop_late(&mut self, now: Instant, mut dropped: impl FnMut(Span)) {
        if self.first_deadline.is_none_or(|at| at > now) {
            return;
        }
        let (mut n, mut first) = (0, None::<Instant>);
        self.chunks.retain(|chunk| {
            n += 1;
            let late = n > self.started && chunk.deadline.is_some_and(|at| at <= now);
            if late {
                self.bytes[chunk.urgency.index()] -= chunk.span.len() as u64;
                dropped(chunk.span);
            } else if n > self.started {
                first = [first, chunk.deadline].into_iter().flatten().min();
            }
            !late
        });
        self.first_deadline = first;
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
