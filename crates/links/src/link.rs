//! One direction of a link.

use std::collections::VecDeque;

use braid_wire::{Instant, Rng};

use crate::codel;
use crate::counters::Counters;
use crate::line::Line;
use crate::queue::{Queue, QueuedPacket};
use crate::random::{LossState, PacketDraw};
use crate::settings::{Rate, Settings};

/// Most packets that a link holds in queue, line and air together; more are dropped as by a full queue.
/// The bound protects memory where the settings have none: unlimited rate, long delay.
pub const MAX_LINK_PACKETS: usize = 1 << 17;

/// One direction of a link, carrying packets of type `P`. The link never looks into packets: it clones
/// those to be duplicated, [`Delivery::flip`] tells the driver which bit of a corrupted one to flip, and
/// [`mark_by`](Self::mark_by) sets the function that marks one.
///
/// The driver hands each packet to [`enqueue`](Self::enqueue), and whenever
/// [`next_event`](Self::next_event) has come calls [`poll_deliver`](Self::poll_deliver) until that
/// returns `None`. [`enqueue`](Self::enqueue) and [`set`](Self::set) may change `next_event`, so the
/// driver asks for it again after each of them. At `next_event` nothing may be due, where packets
/// overtake each other or CoDel drops them. Time handed in must not go backwards; if it does, the latest
/// time is taken.
#[derive(Debug)]
pub struct Link<P> {
    settings: Settings,
    now: Instant,
    queue: Queue<P>,
    line: Line,
    /// The packet on the line and when its last bit leaves.
    in_service: Option<(Instant, QueuedPacket<P>)>,
    /// Packets that have left the line, with their times of delivery, in order.
    in_flight: VecDeque<Delivery<P>>,
    /// Packets on a detour, in order of delivery.
    on_detour: VecDeque<Delivery<P>>,
    last_delivery: Instant,
    loss: LossState,
    codel: codel::State,
    /// Marks a packet of an ECN-capable transport, and returns whether it did.
    mark: fn(&mut P) -> bool,
    counters: Counters,
    /// Packets dropped since the driver last asked; `None` if the driver does not ask.
    dropped: Option<VecDeque<Dropped<P>>>,
}

/// A packet at the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// The exact time of arrival; a driver that comes later is late by the difference.
    pub at: Instant,
    /// The packet.
    pub packet: P,
    /// The packet's length in bytes.
    pub len: u32,
    /// The bit to flip if the packet was corrupted, less than 8 `len`; [`flip_bit`] flips it.
    pub flip: Option<u32>,
}

/// Flips bit `bit` of a packet, counted from the most significant bit of its first byte. Does nothing if
/// the packet has no such bit.
pub fn flip_bit(packet: &mut [u8], bit: u32) {
    if let Some(byte) = packet.get_mut(bit as usize / 8) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// The result of handing a packet to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The link holds the packet.
    Queued,
    /// The packet is dropped.
    Dropped(DropCause),
}

/// The reason for which a link dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// The queue was full.
    Queue,
    /// CoDel dropped the packet.
    CoDel,
    /// The packet was lost at random.
    Loss,
    /// The link was down, or went down while it had the packet.
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
    /// Makes an empty link at time 0.
    pub fn new(settings: Settings) -> Self {
        Link::starting_at(Instant::ZERO, settings)
    }

    /// Makes an empty link at time `now`, where a trace starts.
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

    /// Keeps packets dropped from now on for [`poll_dropped`](Self::poll_dropped).
    pub fn keep_dropped(&mut self) {
        self.dropped.get_or_insert_default();
    }

    /// Sets the function by which CoDel [marks](crate::CoDel::marks) packets. `mark` returns whether the
    /// packet can be marked; CoDel drops the others.
    pub fn mark_by(&mut self, mark: fn(&mut P) -> bool) {
        self.mark = mark;
    }

    /// Returns the next dropped packet, in the order in which drops were noticed; CoDel's drops may have
    /// an earlier time than those before them.
    ///
    /// To be called after any other call until it returns `None`; at most [`MAX_LINK_PACKETS`] packets are kept.
    pub fn poll_dropped(&mut self) -> Option<Dropped<P>> {
        self.dropped.as_mut()?.pop_front()
    }

    /// Hands in a packet of `len` bytes. A drop happens here and now, except by CoDel, which drops a
    /// packet when it would have left the queue. If the packet is duplicated, the verdict is about the
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
        let draw = PacketDraw::draw(&self.settings, len, rng);
        let queued = QueuedPacket {
            packet,
            len,
            entered: self.now,
            jitter: draw.jitter,
            detour: draw.detour,
            flip: draw.flip,
        };
        let in_air = self.in_flight.len() + self.on_detour.len();
        // The packet on the line is the one more.
        let room = in_air + self.queue.now().packets as usize + 1 < MAX_LINK_PACKETS;
        let taken = if !room {
            Err(queued)
        } else if self.in_service.is_none() {
            self.serve(self.now, queued);
            Ok(())
        } else {
            self.queue.push(self.settings.queue, queued)
        };
        match taken {
            Ok(()) => Verdict::Queued,
            Err(queued) => self.drop(self.now, queued.packet, len, DropCause::Queue),
        }
    }

    /// Counts a dropped packet, and keeps it if the driver asks for drops.
    fn drop(&mut self, at: Instant, packet: P, len: u32, cause: DropCause) -> Verdict {
        let tally = match cause {
            DropCause::Queue => &mut self.counters.dropped_queue,
            DropCause::CoDel => &mut self.counters.dropped_codel,
            DropCause::Loss => &mut self.counters.dropped_loss,
            DropCause::Down => &mut self.counters.dropped_down,
        };
        tally.add(len);
        if let Some(kept) = self
            .dropped
            .as_mut()
            .filter(|kept| kept.len() < MAX_LINK_PACKETS)
        {
            kept.push_back(Dropped { at, packet, cause });
        }
        Verdict::Dropped(cause)
    }

    /// Returns when to poll next, if the link holds any packet: when the next packet is to be delivered,
    /// or sooner while that is unknown.
    pub fn next_event(&self) -> Option<Instant> {
        let in_order = match (self.in_flight.front(), &self.in_service) {
            (Some(first), _) => Some(first.at),
            // The packet behind one on a detour may arrive before it.
            (None, Some((ends, queued))) if !queued.detour.is_zero() => Some(*ends),
            (None, Some((ends, queued))) => Some(self.arrival(*ends, queued)),
            (None, None) => None,
        };
        let detoured = self.on_detour.front().map(|first| first.at);
        in_order.into_iter().chain(detoured).min()
    }

    /// Returns the next packet whose time has come.
    pub fn poll_deliver(&mut self, now: Instant) -> Option<Delivery<P>> {
        self.advance(now);
        let from = match (self.in_flight.front(), self.on_detour.front()) {
            (Some(a), Some(b)) if b.at < a.at => &mut self.on_detour,
            (None, Some(_)) => &mut self.on_detour,
            _ => &mut self.in_flight,
        };
        if from.front()?.at > self.now {
            return None;
        }
        let delivery = from.pop_front()?;
        self.counters.delivered.add(delivery.len);
        if delivery.flip.is_some() {
            self.counters.corrupted.add(delivery.len);
        }
        Some(delivery)
    }

    /// Changes the settings from `now` on. What remains of the packet on the line takes the new rate.
    /// Packets already queued stay even if the queue is now too long, and packets in the air keep their
    /// times. A link that goes down loses all packets that it holds.
    pub fn set(&mut self, now: Instant, settings: Settings) {
        self.advance(now);
        let old = core::mem::replace(&mut self.settings, settings);
        if !self.settings.up {
            self.lose_everything();
        }
        let len = self.in_service.as_ref().map_or(0, |(_, queued)| queued.len);
        let rates = (&old.rate, &self.settings.rate);
        let free_at = self.line.change_rate(self.now, rates, len);
        let leaves = self.leaves(self.now, free_at);
        if let Some((ends, _)) = &mut self.in_service {
            *ends = leaves;
        }
        self.advance(now);
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the counters so far, and the queue as of the latest time handed in.
    pub fn counters(&self) -> Counters {
        Counters {
            queue: self.queue.now(),
            queue_max: self.queue.max(),
            ..self.counters
        }
    }

    /// Lets the line work until `now`, as every call with a time does, so that
    /// [`counters`](Self::counters) are as of then.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some((ends, queued)) = self.in_service.take_if(|(ends, _)| *ends <= self.now) {
            self.launch(ends, queued);
            if let Some(next) = self.dequeue(ends) {
                self.serve(ends, next);
            }
        }
    }

    /// Returns the packet that the line takes at `now`.
    fn dequeue(&mut self, now: Instant) -> Option<QueuedPacket<P>> {
        let Some(codel) = self.settings.codel else {
            return self.queue.pop();
        };
        let mut dropped = Vec::new();
        let drop = |queued: QueuedPacket<P>| dropped.push(queued);
        let (mark, marked) = (self.mark, &mut self.counters.marked);
        let mark = |queued: &mut QueuedPacket<P>| {
            let marks = codel.marks && mark(&mut queued.packet);
            if marks {
                marked.add(queued.len);
            }
            marks
        };
        let next = (self.codel).dequeue(codel, now, &mut self.queue, mark, drop);
        for queued in dropped {
            self.drop(now, queued.packet, queued.len, DropCause::CoDel);
        }
        next
    }

    fn serve(&mut self, now: Instant, queued: QueuedPacket<P>) {
        let free_at = self.line.send(now, &self.settings.rate, queued.len);
        self.in_service = Some((self.leaves(now, free_at), queued));
    }

    /// Returns when the packet on the line leaves, which without tokens would be `free_at`. The line
    /// counts the tokens too: it becomes free as much later as packets left early.
    fn leaves(&self, now: Instant, free_at: Instant) -> Instant {
        let Rate::Fixed(rate) = self.settings.rate else {
            return free_at;
        };
        let early = u64::from(self.settings.burst) * 8 * 1_000_000_000 / rate.get();
        let leaves = free_at.as_nanos().saturating_sub(early);
        Instant::from_nanos(leaves).max(now.min(free_at))
    }

    /// Sends a packet that has left the line at `ends` on its way.
    fn launch(&mut self, ends: Instant, queued: QueuedPacket<P>) {
        let at = self.arrival(ends, &queued);
        let delivery = Delivery {
            at,
            packet: queued.packet,
            len: queued.len,
            flip: queued.flip,
        };
        if queued.detour.is_zero() {
            self.last_delivery = at;
            self.in_flight.push_back(delivery);
        } else {
            self.counters.detoured.add(queued.len);
            // Detours of equal length keep the order, but the length may have changed meanwhile.
            let place = self.on_detour.partition_point(|other| other.at <= at);
            self.on_detour.insert(place, delivery);
        }
    }

    /// Returns when a packet that leaves the line at `ends` arrives: never before an earlier packet that
    /// took no detour.
    fn arrival(&self, ends: Instant, queued: &QueuedPacket<P>) -> Instant {
        let straight = (ends + self.settings.delay + queued.jitter).max(self.last_delivery);
        straight + queued.detour
    }

    fn lose_everything(&mut self) {
        let detoured = core::mem::take(&mut self.on_detour);
        let in_air = core::mem::take(&mut self.in_flight);
        for lost in in_air.into_iter().chain(detoured) {
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
