//! The world: nodes and links in virtual time, and the order of events.

use core::any::Any;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use braid_links::{Counters, Link, Schedule, Settings, flip_bit};
use braid_wire::{Instant, Rng, ip};

use crate::node::{Node, Packet, Turn, recycle};
use crate::oracle::Violation;
use crate::tap::{PacketEvent, Tap};

pub use crate::node::{LinkId, NodeId};

/// The time at which every world starts. It is not zero, so that a time before the start can be expressed.
pub const START: Instant = Instant::from_millis(1_000);

/// An event to come. A sequence number orders events of the same time, so that the same seed gives the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deliver(LinkId),
    Change(LinkId),
    Wake(NodeId),
}

/// A packet on a link.
#[derive(Debug, Clone)]
struct Frame {
    packet: Packet,
    sent_at: Instant,
}

/// Marks congestion on a packet of an ECN-capable transport (RFC 3168). Returns false, without a mark, for
/// any other packet.
fn mark(frame: &mut Frame) -> bool {
    ip::Packet::new(&mut frame.packet.bytes).is_ok_and(|mut packet| packet.mark())
}

struct Wire {
    link: Link<Frame>,
    to: NodeId,
    iface: u32,
    rng: Rng,
    armed: Option<Instant>,
    schedule: Schedule,
    taps: Vec<Box<dyn Tap>>,
}

impl Wire {
    fn notify_taps(&mut self, at: Instant, id: LinkId, what: PacketEvent, packet: &Packet) {
        for tap in &mut self.taps {
            tap.on_packet(at, id, what, packet);
        }
    }
}

struct Slot {
    node: Box<dyn Node>,
    rng: Rng,
    /// The link out of each interface.
    ifaces: Vec<LinkId>,
    armed: Option<Instant>,
}

/// An observer that looks at a world at intervals: see [`World::sample`].
pub trait Sampler: core::fmt::Debug + Send {
    /// Takes a sample. The counters of the links are up to date.
    fn sample(&mut self, world: &World);
}

struct Sampling {
    every: Duration,
    next: Instant,
    sampler: Box<dyn Sampler>,
}

/// Nodes and links in virtual time.
pub struct World {
    now: Instant,
    sequence: u64,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    nodes: Vec<Slot>,
    wires: Vec<Wire>,
    samplings: Vec<Sampling>,
    seed: u64,
    checksums: bool,
    sent: Vec<(u32, Packet)>,
    packets: u64,
    spare: Vec<Vec<u8>>,
    /// Violations that a node has reported in the current turn.
    reported: Vec<Violation>,
    violations: Vec<(NodeId, Violation)>,
    keep_violations: bool,
}

impl core::fmt::Debug for World {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("seed", &self.seed)
            .field("nodes", &self.nodes.len())
            .field("links", &self.wires.len())
            .finish_non_exhaustive()
    }
}

/// Random stream of the first node. Links have the streams from 0 on, so that a further link does not change the
/// streams of nodes, and vice versa.
const NODE_STREAM: u64 = 1 << 32;
/// Maximum number of violations that are stored. Most follow from the first, so more would not help.
const MAX_VIOLATIONS: usize = 64;

/// Returns the random streams of node `id` in a world of `seed`: the node's own, and its stack's.
pub fn node_streams(seed: u64, id: u32) -> (Rng, Rng) {
    let mut own = Rng::for_component(seed, NODE_STREAM + u64::from(id));
    let mut bytes = [0; 32];
    own.fill(&mut bytes);
    (own, Rng::from_seed(bytes))
}

impl World {
    /// Makes an empty world.
    pub fn new(seed: u64) -> Self {
        World {
            now: START,
            sequence: 0,
            events: BinaryHeap::new(),
            nodes: Vec::new(),
            wires: Vec::new(),
            samplings: Vec::new(),
            seed,
            checksums: false,
            sent: Vec::new(),
            packets: 0,
            spare: Vec::new(),
            reported: Vec::new(),
            violations: Vec::new(),
            keep_violations: false,
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the seed. A world with the same seed repeats the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Makes hosts compute transport checksums and verify them.
    ///
    /// By default checksums are neither computed nor verified, which saves time and makes no difference unless a
    /// packet is corrupted or rewritten. Links that corrupt and nodes that rewrite packets turn checksums on by
    /// themselves. A packet that was sent before has no checksum, and is dropped as corrupted.
    pub fn use_checksums(&mut self) {
        self.checksums = true;
    }

    /// Adds a node. `build` receives the random stream of the node's stack, which is another than
    /// [`Turn::rng`].
    pub fn add<N: Node>(&mut self, build: impl FnOnce(Rng) -> N) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let (rng, stack_rng) = node_streams(self.seed, id.0);
        let node = build(stack_rng);
        self.checksums |= node.needs_checksums();
        self.nodes.push(Slot {
            node: Box::new(node),
            rng,
            ifaces: Vec::new(),
            armed: None,
        });
        self.arm_node(id);
        id
    }

    /// Connects two nodes by a link, which becomes the next interface of each. The direction from `a` to `b` has
    /// the settings `there`, the other direction `back`. Returns the ids of both directions in this order.
    pub fn connect(
        &mut self,
        a: NodeId,
        b: NodeId,
        there: Settings,
        back: Settings,
    ) -> (LinkId, LinkId) {
        let first = self.wires.len() as u32;
        let ends = [(a, b, there), (b, a, back)];
        let ifaces = [a, b].map(|from| self.nodes[from.0 as usize].ifaces.len() as u32);
        for (n, (from, to, settings)) in ends.into_iter().enumerate() {
            let id = LinkId(first + n as u32);
            self.nodes[from.0 as usize].ifaces.push(id);
            self.checksums |= settings.corrupt > 0.0;
            let mut link = Link::starting_at(self.now, settings);
            // Taps see dropped packets, and their buffers are reused.
            link.keep_dropped();
            link.mark_by(mark);
            self.wires.push(Wire {
                link,
                to,
                iface: ifaces[1 - n],
                rng: Rng::for_component(self.seed, u64::from(id.0)),
                armed: None,
                schedule: Schedule::default(),
                taps: Vec::new(),
            });
        }
        (LinkId(first), LinkId(first + 1))
    }

    /// Returns for each interface of a node the direction that leaves it, and the direction that enters it.
    pub fn interfaces(&self, id: NodeId) -> Vec<(LinkId, LinkId)> {
        let ifaces = self.nodes[id.0 as usize].ifaces.iter();
        // `connect` gives the two directions of a link an even number and the next odd number.
        ifaces.map(|out| (*out, LinkId(out.0 ^ 1))).collect()
    }

    /// Returns a node.
    ///
    /// # Panics
    /// Panics if the node is not an `N`.
    pub fn node<N: Node>(&self, id: NodeId) -> &N {
        let node: &dyn Any = &*self.nodes[id.0 as usize].node;
        node.downcast_ref().expect("a node of another type")
    }

    /// Calls `f` with a node, and then gives the node a turn to act on the change.
    ///
    /// # Panics
    /// Panics if the node is not an `N`.
    pub fn with_node<N: Node, R>(&mut self, id: NodeId, f: impl FnOnce(&mut N, Instant) -> R) -> R {
        let node: &mut dyn Any = &mut *self.nodes[id.0 as usize].node;
        let result = f(
            node.downcast_mut().expect("a node of another type"),
            self.now,
        );
        self.turn(id, |node, turn| node.wake(turn));
        self.end_turn(id);
        result
    }

    /// Makes the world store the violations of oracles. By default it panics at the first.
    pub fn keep_violations(&mut self) {
        self.keep_violations = true;
    }

    /// Returns the violations that the nodes' oracles saw, in the order of time, at most 64. Later ones usually
    /// follow from the first.
    pub fn violations(&self) -> &[(NodeId, Violation)] {
        &self.violations
    }

    /// Changes a link from now on.
    pub fn set_link(&mut self, id: LinkId, settings: Settings) {
        self.checksums |= settings.corrupt > 0.0;
        self.wires[id.0 as usize].link.set(self.now, settings);
        self.clear_dropped(id);
        self.arm_link(id);
    }

    /// Sets the schedule of a link. Times count from [`START`]. Replaces an earlier schedule.
    pub fn schedule(&mut self, id: LinkId, schedule: Schedule) {
        self.checksums |= schedule.changes().any(|c| c.settings.corrupt > 0.0);
        self.wires[id.0 as usize].schedule = schedule;
        self.arm_change(id);
    }

    /// Adds a tap to a link.
    pub fn tap(&mut self, id: LinkId, tap: Box<dyn Tap>) {
        self.wires[id.0 as usize].taps.push(tap);
    }

    /// Makes `sampler` sample the world now and at every interval `every`, as long as there are events. A sample
    /// comes before the events of the same time.
    ///
    /// # Panics
    /// Panics if `every` is zero.
    pub fn sample(&mut self, every: Duration, sampler: Box<dyn Sampler>) {
        assert!(!every.is_zero(), "the interval between samples is zero");
        self.samplings.push(Sampling {
            every,
            next: self.now,
            sampler,
        });
    }

    /// Returns the links, one for each direction.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.wires.len() as u32).map(LinkId)
    }

    /// Returns the nodes at which a link begins and ends.
    pub fn ends(&self, id: LinkId) -> (NodeId, NodeId) {
        // `connect` gives the two directions of a link an even number and the next odd number.
        let back = &self.wires[id.0 as usize ^ 1];
        (back.to, self.wires[id.0 as usize].to)
    }

    /// Returns the settings of a link.
    pub fn link_settings(&self, id: LinkId) -> &Settings {
        self.wires[id.0 as usize].link.settings()
    }

    /// Returns the counters of a link. The count of its queue is that of the last event on the link or of the last
    /// [`refresh`](Self::refresh).
    pub fn counters(&self, id: LinkId) -> Counters {
        self.wires[id.0 as usize].link.counters()
    }

    /// Brings the [`counters`](Self::counters) of all links up to date.
    pub fn refresh(&mut self) {
        for index in 0..self.wires.len() {
            self.wires[index].link.advance(self.now);
            self.clear_dropped(LinkId(index as u32));
        }
    }

    /// Runs until `done` returns true, until no event is left, or until `limit` has passed. Returns whether `done`
    /// returned true.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            let Some(&Reverse((at, ..))) = self.events.peek() else {
                return false;
            };
            if at > end {
                self.take_samples(end);
                self.now = end;
                return false;
            }
            self.take_samples(at);
            self.step();
        }
        true
    }

    /// Runs for `time`.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        self.run(time, |_| false);
        self.take_samples(end);
        self.now = end;
    }

    /// Takes the samples due up to `until`.
    fn take_samples(&mut self, until: Instant) {
        while let Some(at) = self.samplings.iter().map(|s| s.next).min()
            && at <= until
        {
            self.now = self.now.max(at);
            self.refresh();
            let mut samplings = core::mem::take(&mut self.samplings);
            for sampling in samplings.iter_mut().filter(|s| s.next == at) {
                sampling.sampler.sample(self);
                sampling.next += sampling.every;
            }
            self.samplings = samplings;
        }
    }

    /// Handles the next event.
    fn step(&mut self) {
        let Some(Reverse((at, _, event))) = self.events.pop() else {
            return;
        };
        match event {
            Event::Deliver(id) => self.deliver(at, id),
            Event::Change(id) => self.change(at, id),
            Event::Wake(id) => {
                if self.nodes[id.0 as usize].armed == Some(at) {
                    self.nodes[id.0 as usize].armed = None;
                    self.now = at;
                    self.turn(id, |node, turn| node.wake(turn));
                    self.end_turn(id);
                }
            }
        }
    }

    /// Hands the packets that arrive by a link at `at` to the node at its end.
    fn deliver(&mut self, at: Instant, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        // The heap keeps events that were replaced by earlier ones; this is such an event.
        if wire.armed != Some(at) {
            return;
        }
        wire.armed = None;
        self.now = at;
        let (to, iface) = (wire.to, wire.iface);
        while let Some(delivery) = self.wires[id.0 as usize].link.poll_deliver(at) {
            let Frame {
                mut packet,
                sent_at,
            } = delivery.packet;
            if let Some(bit) = delivery.flip {
                flip_bit(&mut packet.bytes, bit);
            }
            self.wires[id.0 as usize].notify_taps(
                at,
                id,
                PacketEvent::Delivered { sent_at },
                &packet,
            );
            self.turn(to, |node, turn| node.receive(turn, iface, packet));
        }
        self.clear_dropped(id);
        self.arm_link(id);
        self.turn(to, |node, turn| node.wake(turn));
        self.end_turn(to);
    }

    /// Applies the changes that a link's schedule has for `at`.
    fn change(&mut self, at: Instant, id: LinkId) {
        self.now = at;
        let elapsed = at.saturating_since(START);
        while let Some(change) = self.wires[id.0 as usize].schedule.poll(elapsed) {
            self.set_link(id, change.settings);
        }
        self.arm_change(id);
    }

    /// Gives a node a turn.
    fn turn(&mut self, id: NodeId, f: impl FnOnce(&mut dyn Node, &mut Turn<'_>)) {
        let slot = &mut self.nodes[id.0 as usize];
        let mut turn = Turn {
            now: self.now,
            rng: &mut slot.rng,
            checksums: self.checksums,
            sent: &mut self.sent,
            packets: &mut self.packets,
            spare: &mut self.spare,
            violations: &mut self.reported,
        };
        f(&mut *slot.node, &mut turn);
        if !self.reported.is_empty() {
            self.judge(id);
        }
    }

    /// Keeps the violations that the oracles of `id` saw, or stops the run.
    fn judge(&mut self, id: NodeId) {
        if !self.keep_violations {
            let (seed, first) = (self.seed, &self.reported[0]);
            panic!("seed {seed}, node {}: {first}", id.0);
        }
        let room = MAX_VIOLATIONS.saturating_sub(self.violations.len());
        let reported = self.reported.drain(..).take(room);
        self.violations.extend(reported.map(|v| (id, v)));
    }

    /// Hands the packets that a node sent to the links.
    fn end_turn(&mut self, id: NodeId) {
        let mut sent = core::mem::take(&mut self.sent);
        for (iface, packet) in sent.drain(..) {
            match self.nodes[id.0 as usize].ifaces.get(iface as usize) {
                Some(&link) => self.transmit(link, packet),
                None => recycle(&mut self.spare, packet),
            }
        }
        self.sent = sent;
        self.arm_node(id);
    }

    fn transmit(&mut self, id: LinkId, packet: Packet) {
        let wire = &mut self.wires[id.0 as usize];
        wire.notify_taps(self.now, id, PacketEvent::Sent, &packet);
        let len = packet.bytes.len() as u32;
        // The link reports no copies, so their counter tells; the clone is made only where a copy is
        // possible.
        let watched = !wire.taps.is_empty() && wire.link.settings().duplicate > 0.0;
        let original = watched.then(|| (packet.clone(), wire.link.counters().duplicated));
        let frame = Frame {
            packet,
            sent_at: self.now,
        };
        wire.link.enqueue(self.now, frame, len, &mut wire.rng);
        if let Some((original, before)) = original
            && wire.link.counters().duplicated != before
        {
            wire.notify_taps(self.now, id, PacketEvent::Duplicated, &original);
        }
        self.clear_dropped(id);
        self.arm_link(id);
    }

    /// Reports the drops of a link to its taps, and takes the buffers back.
    fn clear_dropped(&mut self, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        while let Some(dropped) = wire.link.poll_dropped() {
            let Frame { packet, sent_at } = dropped.packet;
            let cause = dropped.cause;
            wire.notify_taps(
                dropped.at,
                id,
                PacketEvent::Dropped { sent_at, cause },
                &packet,
            );
            recycle(&mut self.spare, packet);
        }
    }

    fn arm_link(&mut self, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        if let Some(at) = wire.link.next_event().map(|at| at.max(self.now))
            && wire.armed.is_none_or(|armed| at < armed)
        {
            wire.armed = Some(at);
            self.push(at, Event::Deliver(id));
        }
    }

    fn arm_change(&mut self, id: LinkId) {
        if let Some(elapsed) = self.wires[id.0 as usize].schedule.next_change() {
            self.push((START + elapsed).max(self.now), Event::Change(id));
        }
    }

    fn arm_node(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        if let Some(at) = slot.node.next_timeout().map(|at| at.max(self.now))
            && slot.armed.is_none_or(|armed| at < armed)
        {
            slot.armed = Some(at);
            self.push(at, Event::Wake(id));
        }
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}
