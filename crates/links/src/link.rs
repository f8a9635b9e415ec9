//! One direction of a link.

use std::collections::VecDeque;
use std::time::Duration;

use braid_wire::{Instant, Rng};

use crate::counters::Counters;
use crate::line::Line;
use crate::queue::{Held, Queue};
use crate::settings::Settings;

/// Most packets a link holds in queue, line and air together, whatever its settings; more are
/// dropped as by a full queue. A bound for settings that have none: unlimited rate, long delay.
pub const MAX_HELD: usize = 1 << 17;

/// One direction of a link, carrying packets of type `P`.
///
/// The driver hands each packet to [`enqueue`](Self::enqueue), and whenever
/// [`next_event`](Self::next_event) has come calls [`poll_deliver`](Self::poll_deliver) until it
/// answers `None`. Both `next_event` and what is due may change by `enqueue` and
/// [`set`](Self::set), so it is to be asked again after each of them. Time handed in must not go
/// backwards; if it does, the latest is taken.
#[derive(Debug)]
pub struct Link<P> {
    settings: Settings,
    now: Instant,
    queue: Queue<P>,
    line: Line,
    /// The packet on the line and when its last bit leaves.
    in_service: Option<(Instant, Held<P>)>,
    /// What has left the line, with its time of delivery, in order.
    in_flight: VecDeque<Delivery<P>>,
    last_delivery: Instant,
    counters: Counters,
}

/// A packet at the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// When it arrived, exactly; a driver that comes later is late by the difference.
    pub at: Instant,
    /// The packet.
    pub packet: P,
    /// Its length in bytes.
    pub len: u32,
}

/// What became of a packet handed to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The link has it.
    Queued,
    /// Dropped: the queue is full.
    DroppedQueue,
    /// Dropped by random loss.
    DroppedLoss,
    /// Dropped: the link is down.
    DroppedDown,
}

impl<P> Link<P> {
    /// An empty link at time 0.
    pub fn new(settings: Settings) -> Self {
        Link {
            settings,
            now: Instant::ZERO,
            queue: Queue::new(),
            line: Line::default(),
            in_service: None,
            in_flight: VecDeque::new(),
            last_delivery: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// Hands in a packet of `len` bytes. A dropped packet is dropped here and now.
    pub fn enqueue(&mut self, now: Instant, packet: P, len: u32, rng: &mut Rng) -> Verdict {
        self.advance(now);
        self.counters.offered.add(len);
        if !self.settings.up {
            self.counters.dropped_down.add(len);
            return Verdict::DroppedDown;
        }
        if self.settings.loss.strikes(rng) {
            self.counters.dropped_loss.add(len);
            return Verdict::DroppedLoss;
        }
        let jitter = draw_jitter(self.settings.jitter, rng);
        let held = Held {
            packet,
            len,
            jitter,
        };
        let room = self.in_flight.len() + self.queue.now().packets as usize + 1 < MAX_HELD;
        let taken = if room && self.in_service.is_none() {
            self.serve(self.now, held);
            true
        } else {
            room && self.queue.push(self.settings.queue, held).is_ok()
        };
        if taken {
            return Verdict::Queued;
        }
        self.counters.dropped_queue.add(len);
        Verdict::DroppedQueue
    }

    /// When the next packet is to be delivered, if the link holds any.
    pub fn next_event(&self) -> Option<Instant> {
        match (self.in_flight.front(), &self.in_service) {
            (Some(first), _) => Some(first.at),
            (None, Some((ends, held))) => Some(self.arrival(*ends, held.jitter)),
            (None, None) => None,
        }
    }

    /// The next packet whose time has come.
    pub fn poll_deliver(&mut self, now: Instant) -> Option<Delivery<P>> {
        self.advance(now);
        if self.in_flight.front()?.at > self.now {
            return None;
        }
        let delivery = self.in_flight.pop_front()?;
        self.counters.delivered.add(delivery.len);
        Some(delivery)
    }

    /// Changes the settings from `now` on. What remains of the packet on the line takes the new
    /// rate; packets already queued stay even if the queue is now too long; packets in the air
    /// keep their times. A link going down loses all it holds.
    pub fn set(&mut self, now: Instant, settings: Settings) {
        self.advance(now);
        let old = self.settings.rate;
        self.settings = settings;
        if !settings.up {
            self.lose_everything();
            return;
        }
        if let Some((ends, _)) = &mut self.in_service {
            *ends = self.line.change_rate(self.now, old, settings.rate);
        }
        self.advance(now);
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What went through so far, and the queue as of the latest time handed in.
    pub fn counters(&self) -> Counters {
        Counters {
            queue: self.queue.now(),
            queue_max: self.queue.max(),
            ..self.counters
        }
    }

    /// Lets the line work until `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some((ends, held)) = self.in_service.take_if(|(ends, _)| *ends <= self.now) {
            let at = self.arrival(ends, held.jitter);
            self.last_delivery = at;
            self.in_flight.push_back(Delivery {
                at,
                packet: held.packet,
                len: held.len,
            });
            if let Some(next) = self.queue.pop() {
                self.serve(ends, next);
            }
        }
    }

    fn serve(&mut self, now: Instant, held: Held<P>) {
        let ends = self.line.send(now, self.settings.rate, held.len);
        self.in_service = Some((ends, held));
    }

    /// When a packet that leaves the line at `ends` arrives: never before the one ahead of it.
    fn arrival(&self, ends: Instant, jitter: Duration) -> Instant {
        (ends + self.settings.delay + jitter).max(self.last_delivery)
    }

    fn lose_everything(&mut self) {
        let lost = &mut self.counters.dropped_down;
        self.in_flight.drain(..).for_each(|d| lost.add(d.len));
        self.in_service
            .take()
            .into_iter()
            .for_each(|(_, held)| lost.add(held.len));
        while let Some(held) = self.queue.pop() {
            lost.add(held.len);
        }
        self.line = Line::default();
    }
}

fn draw_jitter(jitter: Duration, rng: &mut Rng) -> Duration {
    if jitter.is_zero() {
        return Duration::ZERO;
    }
    let most = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX - 1);
    Duration::from_nanos(rng.below(most + 1))
}
