//! The world: nodes, links, and the order of what happens.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use braid_links::{Counters, Link, Settings, Verdict};
use braid_wire::{Instant, Rng};

use crate::host::Host;

/// Time at which every world starts; not zero, so that "long before the start" is a time too.
pub const START: Instant = Instant::from_millis(1_000);

/// A node of a [`World`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One direction of a link of a [`World`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// An IP packet. Its buffer goes back to the world when it has been received.
#[derive(Debug)]
pub struct Packet(pub Vec<u8>);

/// What a node may do while it has its turn: send, draw.
pub struct Turn<'a> {
    /// The time.
    pub now: Instant,
    /// The node's own random stream.
    pub rng: &'a mut Rng,
    sent: &'a mut Vec<(u32, Packet)>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl Turn<'_> {
    /// An empty buffer, used before where there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends `packet` out of the node's interface `iface` (in order of [`World::connect`]).
    pub fn send(&mut self, iface: u32, packet: Packet) {
        self.sent.push((iface, packet));
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Deliver(LinkId),
    Wake(NodeId),
}

struct Wire {
    link: Link<Packet>,
    to: NodeId,
    iface: u32,
    rng: Rng,
    armed: Option<Instant>,
}

struct Slot {
    host: Host,
    rng: Rng,
    /// Link that leaves by each interface.
    ifaces: Vec<LinkId>,
    armed: Option<Instant>,
}

/// Nodes and links in virtual time.
pub struct World {
    now: Instant,
    sequence: u64,
    events: BinaryHeap<Reverse<(Instant, u64, What)>>,
    nodes: Vec<Slot>,
    wires: Vec<Wire>,
    seed: u64,
    sent: Vec<(u32, Packet)>,
    spare: Vec<Vec<u8>>,
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

/// Component ids: nodes count from here, links from 0, so that neither disturbs the other.
const NODE_STREAM: u64 = 1 << 32;
/// Most buffers kept for reuse.
const MAX_SPARE: usize = 1 << 12;

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        World {
            now: START,
            sequence: 0,
            events: BinaryHeap::new(),
            nodes: Vec::new(),
            wires: Vec::new(),
            seed,
            sent: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The seed; it replays the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a node. `build` gets the random stream of its stack.
    pub fn add(&mut self, build: impl FnOnce(Rng) -> Host) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let mut rng = Rng::for_component(self.seed, NODE_STREAM + u64::from(id.0));
        let mut bytes = [0; 32];
        rng.fill(&mut bytes);
        self.nodes.push(Slot {
            host: build(Rng::from_seed(bytes)),
            rng,
            ifaces: Vec::new(),
            armed: None,
        });
        id
    }

    /// Joins two nodes by a link with `there` settings from `a` to `b` and `back` from `b` to `a`.
    /// Each node gets its next interface. Returns the two directions.
    pub fn connect(
        &mut self,
        a: NodeId,
        b: NodeId,
        there: Settings,
        back: Settings,
    ) -> (LinkId, LinkId) {
        let first = self.wires.len() as u32;
        let ends = [(a, b, there), (b, a, back)];
        let ifaces = ends.map(|(from, ..)| self.nodes[from.0 as usize].ifaces.len() as u32);
        for (n, (from, to, settings)) in ends.into_iter().enumerate() {
            let id = LinkId(first + n as u32);
            self.nodes[from.0 as usize].ifaces.push(id);
            self.wires.push(Wire {
                link: Link::new(settings),
                to,
                iface: ifaces[1 - n],
                rng: Rng::for_component(self.seed, u64::from(id.0)),
                armed: None,
            });
        }
        (LinkId(first), LinkId(first + 1))
    }

    /// A node.
    pub fn host(&self, id: NodeId) -> &Host {
        &self.nodes[id.0 as usize].host
    }

    /// A node, to give it something to do: it gets a turn at once.
    pub fn with_host<R>(&mut self, id: NodeId, f: impl FnOnce(&mut Host, Instant) -> R) -> R {
        let result = f(&mut self.nodes[id.0 as usize].host, self.now);
        self.wake(id);
        result
    }

    /// Changes a link from now on.
    pub fn set_link(&mut self, id: LinkId, settings: Settings) {
        let wire = &mut self.wires[id.0 as usize];
        wire.link.set(self.now, settings);
        self.arm_link(id);
    }

    /// The settings of a link.
    pub fn link_settings(&self, id: LinkId) -> Settings {
        *self.wires[id.0 as usize].link.settings()
    }

    /// What went through a link.
    pub fn counters(&self, id: LinkId) -> Counters {
        self.wires[id.0 as usize].link.counters()
    }

    /// Runs until `done`, or until nothing happens any more, or for `limit`. Returns whether
    /// `done`.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            let Some(&Reverse((at, ..))) = self.events.peek() else {
                return false;
            };
            if at > end {
                self.now = end;
                return false;
            }
            self.step();
        }
        true
    }

    /// Lets the next thing happen.
    fn step(&mut self) {
        let Some(Reverse((at, _, what))) = self.events.pop() else {
            return;
        };
        match what {
            What::Deliver(id) => {
                let wire = &mut self.wires[id.0 as usize];
                if wire.armed != Some(at) {
                    return;
                }
                wire.armed = None;
                self.now = at;
                let (to, iface) = (wire.to, wire.iface);
                while let Some(delivery) = self.wires[id.0 as usize].link.poll_deliver(at) {
                    self.nodes[to.0 as usize]
                        .host
                        .receive(at, iface, &delivery.packet.0);
                    self.recycle(delivery.packet);
                }
                self.arm_link(id);
                self.wake(to);
            }
            What::Wake(id) => {
                if self.nodes[id.0 as usize].armed != Some(at) {
                    return;
                }
                self.nodes[id.0 as usize].armed = None;
                self.now = at;
                self.wake(id);
            }
        }
    }

    fn recycle(&mut self, packet: Packet) {
        if self.spare.len() < MAX_SPARE {
            let mut buffer = packet.0;
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Gives a node its turn and hands what it sends to the links.
    fn wake(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        let mut turn = Turn {
            now: self.now,
            rng: &mut slot.rng,
            sent: &mut self.sent,
            spare: &mut self.spare,
        };
        slot.host.wake(&mut turn);
        let mut sent = core::mem::take(&mut self.sent);
        for (iface, packet) in sent.drain(..) {
            let link = self.nodes[id.0 as usize].ifaces[iface as usize];
            let wire = &mut self.wires[link.0 as usize];
            let len = packet.0.len() as u32;
            let verdict = wire.link.enqueue(self.now, packet, len, &mut wire.rng);
            if verdict == Verdict::Queued {
                self.arm_link(link);
            }
        }
        self.sent = sent;
        self.arm_node(id);
    }

    fn arm_link(&mut self, id: LinkId) {
        let wire = &mut self.wires[id.0 as usize];
        if let Some(at) = wire.link.next_event().map(|at| at.max(self.now))
            && wire.armed.is_none_or(|armed| at < armed)
        {
            wire.armed = Some(at);
            self.push(at, What::Deliver(id));
        }
    }

    fn arm_node(&mut self, id: NodeId) {
        let slot = &mut self.nodes[id.0 as usize];
        if let Some(at) = slot.host.next_timeout().map(|at| at.max(self.now))
            && slot.armed.is_none_or(|armed| at < armed)
        {
            slot.armed = Some(at);
            self.push(at, What::Wake(id));
        }
    }

    fn push(&mut self, at: Instant, what: What) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, what)));
    }
}
