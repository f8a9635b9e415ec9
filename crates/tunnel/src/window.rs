//! Minima and maxima over a window of time.

use core::time::Duration;

use braid_wire::Instant;

/// The least or greatest value of the last one to two `span`s. Two buckets suffice: the older one is dropped when
/// the newer one is a `span` old.
#[derive(Debug, Clone, Copy)]
struct Extreme<T> {
    older: Option<T>,
    newer: Option<T>,
    turned_at: Instant,
}

impl<T: Copy> Extreme<T> {
    const NEW: Self = Extreme {
        older: None,
        newer: None,
        turned_at: Instant::ZERO,
    };

    fn push(&mut self, now: Instant, span: Duration, value: T, pick: fn(T, T) -> T) {
        self.turn(now, span);
        self.newer = Some(self.newer.map_or(value, |newer| pick(newer, value)));
    }

    fn turn(&mut self, now: Instant, span: Duration) {
        let age = now.saturating_since(self.turned_at);
        if age >= span {
            self.older = self.newer.take();
            if age >= span * 2 {
                // An old value is better than none, so the last one stays until another one comes.
                self.turned_at = now;
            } else {
                self.turned_at += span;
            }
        }
        if self.newer.is_none() && self.older.is_none() {
            self.turned_at = now;
        }
    }

    fn get(&self, pick: fn(T, T) -> T) -> Option<T> {
        match (self.older, self.newer) {
            (Some(a), Some(b)) => Some(pick(a, b)),
            (a, b) => a.or(b),
        }
    }
}

/// The least value in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Min<T>(Extreme<T>);

impl<T: Copy + Ord> Min<T> {
    pub const NEW: Self = Min(Extreme::NEW);

    pub fn push(&mut self, now: Instant, span: Duration, value: T) {
        self.0.push(now, span, value, T::min);
    }

    pub fn get(&self) -> Option<T> {
        self.0.get(T::min)
    }
}

/// The greatest value in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Max<T>(Extreme<T>);

impl<T: Copy + Ord> Max<T> {
    pub const NEW: Self = Max(Extreme::NEW);

    pub fn push(&mut self, now: Instant, span: Duration, value: T) {
        self.0.push(now, span, value, T::max);
    }

    pub fn get(&self) -> Option<T> {
        self.0.get(T::max)
    }
}
