//! One direction of a link.

use std::collections::VecDeque;

use braid_wire::{Instant, Rng};

use crate::codel;
use crate::counters::Counters;
use crate::line::Line;
use crate::queue::{PacketDraw, Queue, QueuedPacket};
use crate::random::LossState;
use crate::settings::{Rate, Settings};

/// Maximum number of packets in the queue, on the line and in flight together. The link drops further packets as
/// if the queue were full. The bound protects memory if the settings do not, for example with an unlimited rate
/// and a long delay. 2^17 packets of 1,500 bytes are 200 MB.
pub const MAX_LINK_PACKETS: usize = 1 << 17;

/// One direction of a link, for packets of type `P`. The link does not read packets. It clones those that it
/// duplicates. [`Delivery::flip`] tells the driver which bit of a corrupted packet to flip.
/// [`mark_by`](Self::mark_by) sets the function that marks a packet.
///
/// The driver passes each packet to [`enqueue`](Self::enqueue). At the time of [`next_event`](Self::next_event) it
/// calls [`poll_deliver`](Self::poll_deliver) until this returns `None`. [`enqueue`](Self::enqueue) and
/// [`set`](Self::set) may change `next_event`, so the driver queries `next_event` again after each call of them.
/// Packets may overtake each other, and CoDel may drop them, so it is possible that no packet is due at
/// `next_event`. The driver then waits for the next event.
///
/// The time should not go backwards. If the driver passes an earlier time, the link uses the latest time so far.
#[derive(Debug)]
pub struct Link<P> {
    settings: Settings,
    /// The latest time that the driver passed.
    now: Instant,
    queue: Queue<P>,
    line: Line,
    /// The packet on the line, and the time at which its last bit leaves.
    in_service: Option<(Instant, QueuedPacket<P>)>,
    /// Packets that have left the line, with their times of delivery, in order.
    in_flight: VecDeque<Delivery<P>>,
    /// Packets on a detour, in order of delivery.
    on_detour: VecDeque<Delivery<P>>,
    /// The delivery time of the latest packet that took no detour; later packets arrive no earlier.
    last_delivery: Instant,
    loss: LossState,
    codel: codel::State,
    /// Marks a packet of an ECN-capable transport. Returns false if it could not mark the packet.
    mark: fn(&mut P) -> bool,
    counters: Counters,
    /// Dropped packets for [`poll_dropped`](Self::poll_dropped); `None` unless the driver called
    /// [`keep_dropped`](Self::keep_dropped).
    dropped: Option<VecDeque<Dropped<P>>>,
}

/// A packet that arrives at the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// The exact time of arrival. If the driver polls later, the packet is late by the difference.
    pub at: Instant,
    /// The packet.
    pub packet: P,
    /// The packet's length in bytes.
    pub len: u32,
    /// The bit that the driver has to flip with [`flip_bit`], less than 8 times `len`; `None` unless the packet is
    /// corrupted.
    pub flip: Option<u32>,
}

/// Flips bit `bit` of a packet, counted from the most significant bit of its first byte. Does nothing if
/// the packet has no such bit.
pub fn flip_bit(packet: &mut [u8], bit: u32) {
    if let Some(byte) = packet.get_mut(bit as usize / 8) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// The result of passing a packet to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The link holds the packet.
    Queued,
    /// The packet is dropped.
    Dropped(DropCause),
}

/// The reason why a link dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// The queue was full.
    Queue,
    /// CoDel dropped the packet.
    CoDel,
    /// The packet was lost at random.
    Loss,
    /// The link was down, or went down while the packet was in it.
    Down,
}

/// A packet that a link dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<P> {
    /// The exact time of the drop.
    pub at: Instant,
    /// The packet.
    pub packet: P,
    /// The reason.
    pub cause: DropCause,
}

impl<P> Link<P> {
    /// Creates an empty link at time 0.
    pub fn new(settings: Settings) -> Self {
        Link::starting_at(Instant::ZERO, settings)
    }

    /// Creates an empty link at time `now`. If the rate is a trace, the trace starts at `now`.
    pub fn starting_at(now: Instant, settings: Settings) -> Self {
        Link {
            settings,
            now,
            queue: Queue::new(),
            line: Line::new(now),
            in_service: None,
            in_flight: VecDeque::new(),
            on_detour: VecDeque::new(),
            last_delivery: Instant::ZERO,
            loss: LossState::default(),
            codel: codel::State::default(),
            mark: |_| false,
            counters: Counters::default(),
            dropped: None,
        }
    }

    /// Makes the link keep dropped packets for [`poll_dropped`](Self::poll_dropped) from now on.
    pub fn keep_dropped(&mut self) {
        self.dropped.get_or_insert_default();
    }

    /// Sets the function with which CoDel [marks](crate::CoDel::marks) packets. `mark` returns whether it could
    /// mark the packet. CoDel drops the packets that cannot be marked.
    pub fn mark_by(&mut self, mark: fn(&mut P) -> bool) {
        self.mark = mark;
    }

    /// Returns the next dropped packet, in the order in which the link processed the drops. A drop by CoDel may
    /// have an earlier time than the previous drop in this order, because the link computes it only when the
    /// driver passes a later time.
    ///
    /// After any other call, the driver calls `poll_dropped` until it returns `None`. At most [`MAX_LINK_PACKETS`]
    /// packets are stored.
    pub fn poll_dropped(&mut self) -> Option<Dropped<P>> {
        self.dropped.as_mut()?.pop_front()
    }

    /// Passes a packet of `len` bytes to the link. The verdict covers all drops except those by CoDel: CoDel drops
    /// a packet only when the packet would leave the queue. If the packet is duplicated, the verdict is about the
    /// original.
    pub fn enqueue(&mut self, now: Instant, packet: P, len: u32, rng: &mut Rng) -> Verdict
    where
        P: Clone,
    {
        self.advance(now);
        self.counters.offered.add(len);
        if !self.settings.up {
            return self.drop(self.now, packet, len, DropCause::Down);
        }
        if self.loss.loses_next(self.settings.loss, rng) {
            return self.drop(self.now, packet, len, DropCause::Loss);
        }
        if !rng.chance(self.settings.duplicate) {
            return self.admit(packet, len, rng);
        }
        let verdict = self.admit(packet.clone(), len, rng);
        self.counters.duplicated.add(len);
        self.admit(packet, len, rng);
        verdict
    }

    /// Puts a packet on the line or in the queue.
    fn admit(&mut self, packet: P, len: u32, rng: &mut Rng) -> Verdict {
        let queued = QueuedPacket {
            packet,
            len,
            entered: self.now,
            draw: PacketDraw::draw(&self.settings, len, rng),
        };
        let in_flight = self.in_flight.len() + self.on_detour.len();
        // The `+ 1` counts the packet on the line.
        let has_room = in_flight + self.queue.now().packets as usize + 1 < MAX_LINK_PACKETS;
        let admitted = if !has_room {
            Err(queued)
        } else if self.in_service.is_none() {
            self.serve(self.now, queued);
            Ok(())
        } else {
            self.queue.push(self.settings.queue, queued)
        };
        match admitted {
            Ok(()) => Verdict::Queued,
            Err(queued) => self.drop(self.now, queued.packet, len, DropCause::Queue),
        }
    }

    /// Counts a dropped packet, and stores it for [`poll_dropped`](Self::poll_dropped) if the driver wants that.
    fn drop(&mut self, at: Instant, packet: P, len: u32, cause: DropCause) -> Verdict {
        let tally = match cause {
            DropCause::Queue => &mut self.counters.dropped_queue,
            DropCause::CoDel => &mut self.counters.dropped_codel,
            DropCause::Loss => &mut self.counters.dropped_loss,
            DropCause::Down => &mut self.counters.dropped_down,
        };
        tally.add(len);
        let stored = self.dropped.as_mut();
        if let Some(stored) = stored.filter(|stored| stored.len() < MAX_LINK_PACKETS) {
            stored.push_back(Dropped { at, packet, cause });
        }
        Verdict::Dropped(cause)
    }

    /// Returns the time at which the driver has to poll next, or `None` if the link is empty. The result is the
    /// time of the next delivery or, while that is not known yet, an earlier time.
    pub fn next_event(&self) -> Option<Instant> {
        let in_order = match (self.in_flight.front(), &self.in_service) {
            (Some(first), _) => Some(first.at),
            // A packet on a detour may arrive after the packet that follows it, so the next delivery is not known
            // yet.
            (None, Some((ends_at, queued))) if !queued.draw.detour.is_zero() => Some(*ends_at),
            (None, Some((ends_at, queued))) => Some(self.arrival(*ends_at, queued)),
            (None, None) => None,
        };
        let detoured = self.on_detour.front().map(|first| first.at);
        in_order.into_iter().chain(detoured).min()
    }

    /// Returns the next packet that has arrived by `now`, if any.
    pub fn poll_deliver(&mut self, now: Instant) -> Option<Delivery<P>> {
        self.advance(now);
        let source = match (self.in_flight.front(), self.on_detour.front()) {
            (Some(a), Some(b)) if b.at < a.at => &mut self.on_detour,
            (None, Some(_)) => &mut self.on_detour,
            _ => &mut self.in_flight,
        };
        if source.front()?.at > self.now {
            return None;
        }
        let delivery = source.pop_front()?;
        self.counters.delivered.add(delivery.len);
        if delivery.flip.is_some() {
            self.counters.corrupted.add(delivery.len);
        }
        Some(delivery)
    }

    /// Changes the settings from `now` on. The rest of the packet on the line leaves at the new rate. Queued
    /// packets stay, even if the queue now exceeds its limit. Packets in flight keep their delivery times. A link
    /// that goes down loses all packets in it.
    pub fn set(&mut self, now: Instant, settings: Settings) {
        self.advance(now);
        let old = core::mem::replace(&mut self.settings, settings);
        if !self.settings.up {
            self.lose_everything();
        }
        let len = self.in_service.as_ref().map_or(0, |(_, queued)| queued.len);
        let rates = (&old.rate, &self.settings.rate);
        let free_at = self.line.change_rate(self.now, rates, len);
        let departure = self.departure(self.now, free_at);
        if let Some((ends_at, _)) = &mut self.in_service {
            *ends_at = departure;
        }
        // At a higher rate the packet on the line may leave now, so the link advances again.
        self.advance(now);
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the counters and the queue as of the latest time that the driver passed.
    pub fn counters(&self) -> Counters {
        Counters {
            queue: self.queue.now(),
            queue_max: self.queue.max(),
            ..self.counters
        }
    }

    /// Advances the link to `now`, as every method with a time does. After the call, [`counters`](Self::counters)
    /// returns the state at `now`.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some((ends_at, queued)) =
            self.in_service.take_if(|(ends_at, _)| *ends_at <= self.now)
        {
            self.launch(ends_at, queued);
            if let Some(next) = self.dequeue(ends_at) {
                self.serve(ends_at, next);
            }
        }
    }

    /// Takes the packet that the line serialises next, at `now`, from the queue.
    fn dequeue(&mut self, now: Instant) -> Option<QueuedPacket<P>> {
        let Some(codel) = self.settings.codel else {
            return self.queue.pop();
        };
        let mut dropped = Vec::new();
        let drop = |queued: QueuedPacket<P>| dropped.push(queued);
        let (mark, marked) = (self.mark, &mut self.counters.marked);
        let mark = |queued: &mut QueuedPacket<P>| {
            let is_marked = codel.marks && mark(&mut queued.packet);
            if is_marked {
                marked.add(queued.len);
            }
            is_marked
        };
        let next = (self.codel).dequeue(codel, now, &mut self.queue, mark, drop);
        for queued in dropped {
            self.drop(now, queued.packet, queued.len, DropCause::CoDel);
        }
        next
    }

    /// Puts a packet on the line.
    fn serve(&mut self, now: Instant, queued: QueuedPacket<P>) {
        let free_at = self.line.send(now, &self.settings.rate, queued.len);
        self.in_service = Some((self.departure(now, free_at), queued));
    }

    /// Returns the time at which the packet on the line leaves: at `free_at`, or earlier if the token bucket
    /// ([`Settings::burst`]) has tokens.
    ///
    /// The line is a virtual clock that also counts the tokens: packets may leave before the line's time, by at
    /// most the time for which a full bucket lasts at the rate.
    fn departure(&self, now: Instant, free_at: Instant) -> Instant {
        let Rate::Fixed(rate) = self.settings.rate else {
            return free_at;
        };
        let bucket_nanos = u64::from(self.settings.burst) * 8 * 1_000_000_000 / rate.get();
        let departure = free_at.as_nanos().saturating_sub(bucket_nanos);
        Instant::from_nanos(departure).max(now.min(free_at))
    }

    /// Starts the propagation of a packet that has left the line at `ends_at`.
    fn launch(&mut self, ends_at: Instant, queued: QueuedPacket<P>) {
        let at = self.arrival(ends_at, &queued);
        let delivery = Delivery {
            at,
            packet: queued.packet,
            len: queued.len,
            flip: queued.draw.flip,
        };
        if queued.draw.detour.is_zero() {
            self.last_delivery = at;
            self.in_flight.push_back(delivery);
        } else {
            self.counters.detoured.add(queued.len);
            // If the detour is constant, this index is the end of the list. But the settings may have shortened
            // the detour since an earlier packet, or jitter that reorders may have drawn a shorter one.
            let index = self.on_detour.partition_point(|other| other.at <= at);
            self.on_detour.insert(index, delivery);
        }
    }

    /// Returns the arrival time of a packet that leaves the line at `ends_at`. The result is never before the
    /// arrival of an earlier packet that took no detour.
    fn arrival(&self, ends_at: Instant, queued: &QueuedPacket<P>) -> Instant {
        let straight = (ends_at + self.settings.delay + queued.draw.jitter).max(self.last_delivery);
        straight + queued.draw.detour
    }

    /// Drops all packets in the link, because it went down: first those in flight, then the line, then the queue.
    fn lose_everything(&mut self) {
        let detoured = core::mem::take(&mut self.on_detour);
        let in_flight = core::mem::take(&mut self.in_flight);
        for lost in in_flight.into_iter().chain(detoured) {
            self.drop(self.now, lost.packet, lost.len, DropCause::Down);
        }
        let mut next = self.in_service.take().map(|(_, queued)| queued);
        while let Some(queued) = next.or_else(|| self.queue.pop()) {
            self.drop(self.now, queued.packet, queued.len, DropCause::Down);
            next = None;
        }
        self.line.abort();
        self.codel = codel::State::default();
    }
}
