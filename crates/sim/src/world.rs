//! The world: nodes, links, and the order of events.

use core::any::Any;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use braid_links::{Counters, Link, Schedule, Settings, flip_bit};
use braid_wire::{Instant, Rng, ip};

use crate::node::{Node, Packet, Turn, child, recycle};
use crate::oracle::Violation;
use crate::tap::{PacketEvent, Tap};

pub use crate::node::{LinkId, NodeId};

/// The time at which every world starts. It is not zero, so that code may subtract a duration from it.
pub const START: Instant = Instant::from_millis(1_000);

/// A future event. The sequence number in [`World::events`] orders events of the same time, so that runs are
/// repeatable.
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

/// Sets CE in a packet of an ECN-capable transport (RFC 3168). Returns false for other packets, which a link
/// drops instead.
fn mark(frame: &mut Frame) -> bool {
    ip::Packet::new(&mut frame.packet.bytes).is_ok_and(|mut packet| packet.mark())
}

/// One direction of a link, with its place in the world.
struct Wire {
    id: LinkId,
    link: Link<Frame>,
    /// The node and its interface at the end of the direction.
    to: NodeId,
    iface: u32,
    rng: Rng,
    /// The time of the link's event in the heap. The heap may hold later events of the link; they are ignored.
    armed: Option<Instant>,
    /// Changes of the settings to come.
    schedule: Schedule,
    taps: Vec<Box<dyn Tap>>,
}

impl Wire {
    fn notify_taps(&mut self, at: Instant, event: PacketEvent, packet: &Packet) {
        for tap in &mut self.taps {
            tap.on_packet(at, self.id, event, packet);
        }
    }
}

/// A node, with its place in the world.
struct NodeSlot {
    node: Box<dyn Node>,
    rng: Rng,
    /// The outgoing link of each interface.
    ifaces: Vec<LinkId>,
    /// The time of the node's wake in the heap. The heap may hold later wakes of the node; they are ignored.
    armed: Option<Instant>,
}

/// An observer that the world calls at fixed intervals: see [`World::sample`].
pub trait Sampler: Send {
    /// Takes a sample of `world`. The world has called [`World::refresh`], so the counters are up to date.
    fn sample(&mut self, world: &World);
}

struct Sampling {
    every: Duration,
    next: Instant,
    sampler: Box<dyn Sampler>,
}

/// Nodes and links in virtual time.
#[derive(Default)]
pub struct World {
    now: Instant,
    sequence: u64,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    nodes: Vec<NodeSlot>,
    wires: Vec<Wire>,
    samplings: Vec<Sampling>,
    seed: u64,
    /// True if hosts compute and verify transport checksums.
    checksums: bool,
    /// The packets that the current node has sent in its turn, each with its interface.
    sent: Vec<(u32, Packet)>,
    /// The number of packets so far, which is the number of the last packet.
    packets: u64,
    /// Empty buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// Violations that the current node has reported in its turn.
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

/// The component id of the first node, beyond all 32-bit ids of links. Because the ranges are separate, an added
/// link changes no random stream of a node, and an added node none of a link.
const FIRST_NODE_COMPONENT: u64 = 1 << 32;
/// The maximum number of violations kept. 64 is a guess: the first violations explain a run, and the rest only
/// uses memory.
const MAX_VIOLATIONS: usize = 64;

/// Returns the random streams of node `id` in a world of `seed`: the stream of its turns, and the stream of its
/// stack.
pub fn node_streams(seed: u64, id: u32) -> (Rng, Rng) {
    let mut own = Rng::for_component(seed, FIRST_NODE_COMPONENT + u64::from(id));
    let of_stack = child(&mut own);
    (own, of_stack)
}

impl World {
    /// Makes an empty world.
    pub fn new(seed: u64) -> Self {
        World {
            now: START,
            seed,
            ..World::default()
        }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the seed. A world with the same seed replays the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Makes hosts compute transport checksums and verify them.
    ///
    /// By default hosts skip checksums, which saves time and changes nothing as long as no packet is corrupted or
    /// rewritten. The world itself turns checksums on for links that corrupt packets, and for nodes that rewrite
    /// them. Packets that are on a link at the time of the call have no checksum, so hosts drop them as
    /// corrupted.
    pub fn use_checksums(&mut self) {
        self.checksums = true;
    }

    /// Adds a node. `build` gets the random stream for the node's stack. [`Turn::rng`] has another stream.
    pub fn add<N: Node>(&mut self, build: impl FnOnce(Rng) -> N) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let (rng, stack_rng) = node_streams(self.seed, id.0);
        let node = build(stack_rng);
        self.checksums |= node.needs_checksums();
        self.nodes.push(NodeSlot {
            node: Box::new(node),
            rng,
            ifaces: Vec::new(),
            armed: None,
        });
        self.arm_node(id);
        id
    }

    /// Connects two nodes by a link with the settings `there` from `a` to `b`, and `back` from `b` to `a`. Each
    /// node gets one more interface. Returns the two directions.
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
            // The world reports dropped packets to taps and reuses their buffers.
            link.keep_dropped();
            link.mark_by(mark);
            self.wires.push(Wire {
                id,
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

    /// Returns the outgoing and the incoming link of each interface of a node.
    pub fn interfaces(&self, id: NodeId) -> Vec<(LinkId, LinkId)> {
        let ifaces = self.nodes[id.0 as usize].ifaces.iter();
        // `connect` gives the two directions of a link an even number and the next odd one, so they differ in
        // the last bit.
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

    /// Calls `f` with a node to give it work, and then gives the node a turn.
    ///
    /// # Panics
    /// Panics if the node is not an `N`.
    pub fn with_node<N: Node, R>(&mut self, id: NodeId, f: impl FnOnce(&mut N, Instant) -> R) -> R {
        let node: &mut dyn Any = &mut *self.nodes[id.0 as usize].node;
        let result = f(
            node.downcast_mut().expect("a node of another type"),
            self.now,
        );
        self.wake(id);
        result
    }

    /// Makes the world keep the violations that oracles report. By default the first one panics.
    pub fn keep_violations(&mut self) {
        self.keep_violations = true;
    }

    /// Returns the first 64 violations that the nodes' oracles reported, in the order of time. Usually the
    /// later violations are consequences of the first one.
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

    /// Sets a schedule of changes of a link. Its times count from [`START`]. The new schedule replaces the rest
    /// of an earlier one.
    pub fn schedule(&mut self, id: LinkId, schedule: Schedule) {
        self.checksums |= schedule.changes().any(|c| c.settings.corrupt > 0.0);
        self.wires[id.0 as usize].schedule = schedule;
        self.arm_change(id);
    }

    /// Makes `tap` watch a link. A link may have several taps.
    pub fn tap(&mut self, id: LinkId, tap: Box<dyn Tap>) {
        self.wires[id.0 as usize].taps.push(tap);
    }

    /// Makes the world call `sampler` now and at each multiple of `every` from now, as long as the world runs. A
    /// sample is taken before the events of the same time.
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
        // See `interfaces`: the numbers of the two directions differ in the last bit.
        let back = &self.wires[id.0 as usize ^ 1];
        (back.to, self.wires[id.0 as usize].to)
    }

    /// Returns the settings of a link.
    pub fn link_settings(&self, id: LinkId) -> &Settings {
        self.wires[id.0 as usize].link.settings()
    }

    /// Returns the counters of a link. The length of the queue is as of the last event of the link or the last
    /// [`refresh`](Self::refresh).
    pub fn counters(&self, id: LinkId) -> Counters {
        self.wires[id.0 as usize].link.counters()
    }

    /// Brings the [`counters`](Self::counters) of all links up to the present.
    pub fn refresh(&mut self) {
        for index in 0..self.wires.len() {
            self.wires[index].link.advance(self.now);
            self.clear_dropped(LinkId(index as u32));
        }
    }

    /// Runs until `done` returns true, `limit` has passed, or there is no event. Returns the last value of `done`.
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

    /// Runs for exactly `time`, even if no event is left.
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
                    self.wake(id);
                }
            }
        }
    }

    /// Hands the packets that a link delivers at `at` to the node at the link's end.
    fn deliver(&mut self, at: Instant, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        // This event is obsolete: the link got an earlier one after this one was pushed. A heap cannot remove
        // entries.
        if wire.armed != Some(at) {
            return;
        }
        wire.armed = None;
        self.now = at;
        let (to, iface) = (wire.to, wire.iface);
        while let Some(delivery) = self.wires[id.0 as usize].link.poll_deliver(at) {
            let sent_at = delivery.packet.sent_at;
            let mut packet = delivery.packet.packet;
            if let Some(bit) = delivery.flip {
                flip_bit(&mut packet.bytes, bit);
            }
            let event = PacketEvent::Delivered { sent_at };
            self.wires[id.0 as usize].notify_taps(at, event, &packet);
            self.turn(to, |node, turn| node.receive(turn, iface, packet));
        }
        self.clear_dropped(id);
        self.arm_link(id);
        self.wake(to);
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

    /// Calls `f` with a node in its turn, and handles the violations that the node reports.
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
            self.handle_violations(id);
        }
    }

    /// Keeps the violations that node `id` has reported, or panics.
    fn handle_violations(&mut self, id: NodeId) {
        if !self.keep_violations {
            let (seed, first) = (self.seed, &self.reported[0]);
            panic!("seed {seed}, node {}: {first}", id.0);
        }
        let free = MAX_VIOLATIONS.saturating_sub(self.violations.len());
        let reported = self.reported.drain(..).take(free);
        self.violations.extend(reported.map(|v| (id, v)));
    }

    /// Wakes a node, which ends its turn, and hands the packets that it sent to the links.
    fn wake(&mut self, id: NodeId) {
        self.turn(id, |node, turn| node.wake(turn));
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
        wire.notify_taps(self.now, PacketEvent::Sent, &packet);
        let len = packet.bytes.len() as u32;
        // A link does not report a duplicated packet, but its counter rises. The packet moves into the link, so a
        // tap needs a clone. The clone is made only for links that may duplicate.
        let may_duplicate = !wire.taps.is_empty() && wire.link.settings().duplicate > 0.0;
        let original = may_duplicate.then(|| (packet.clone(), wire.link.counters().duplicated));
        let frame = Frame {
            packet,
            sent_at: self.now,
        };
        wire.link.enqueue(self.now, frame, len, &mut wire.rng);
        if let Some((original, before)) = original
            && wire.link.counters().duplicated != before
        {
            wire.notify_taps(self.now, PacketEvent::Duplicated, &original);
        }
        self.clear_dropped(id);
        self.arm_link(id);
    }

    /// Reports the packets that a link has dropped to its taps, and recycles their buffers.
    fn clear_dropped(&mut self, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        while let Some(dropped) = wire.link.poll_dropped() {
            let Frame { packet, sent_at } = dropped.packet;
            let cause = dropped.cause;
            let event = PacketEvent::Dropped { sent_at, cause };
            wire.notify_taps(dropped.at, event, &packet);
            recycle(&mut self.spare, packet);
        }
    }

    /// Pushes the link's next event if it is earlier than the one in the heap.
    fn arm_link(&mut self, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        if let Some(at) = wire.link.next_event().map(|at| at.max(self.now))
            && wire.armed.is_none_or(|armed| at < armed)
        {
            wire.armed = Some(at);
            self.push(at, Event::Deliver(id));
        }
    }

    /// Pushes the next change of the link's schedule.
    fn arm_change(&mut self, id: LinkId) {
        if let Some(elapsed) = self.wires[id.0 as usize].schedule.next_change() {
            self.push((START + elapsed).max(self.now), Event::Change(id));
        }
    }

    /// Pushes the node's next wake if it is earlier than the one in the heap.
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
