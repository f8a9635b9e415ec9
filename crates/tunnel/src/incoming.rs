//! The inner packets that came from the peer, until they are delivered.

use std::collections::VecDeque;

use braid_wire::Instant;

use crate::classify::FlowKey;
use crate::config::Config;
use crate::frame::Label;
use crate::header;
use crate::policy::{FlowPolicy, Statement};
use crate::pool::Pool;
use crate::reorder::{Arrival, Lost, Outcome, PathsView, ReceiveFlow};
use crate::stats::Stats;
use crate::usage::Direction;

/// Most places for packets that wait or are missing, in all flows.
const MAX_SLOTS: usize = 65_536;
/// Most requests for lost packets that wait to be sent.
const MAX_REQUESTS: usize = 256;

/// Packets of a flow to ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub flow: u16,
    pub lost: Lost,
}

/// The flows of the peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    flows: Vec<ReceiveFlow>,
    /// Flows that wait for packets.
    waiting: Vec<u16>,
    deliveries: VecDeque<Vec<u8>>,
    requests: VecDeque<Request>,
    /// Bytes of packets that wait for earlier ones, and the places for these and for missing ones.
    bytes: usize,
    slots: usize,
    max_bytes: usize,
    max_flows: u16,
}

impl Incoming {
    pub fn new(config: &Config) -> Self {
        Incoming {
            flows: Vec::new(),
            waiting: Vec::new(),
            deliveries: VecDeque::new(),
            requests: VecDeque::new(),
            bytes: 0,
            slots: 0,
            max_bytes: config.reorder_buffer,
            max_flows: config.max_flows,
        }
    }

    /// Returns the flow with this number, or `None` if the peer uses more numbers than agreed.
    fn flow(&mut self, number: u16) -> Option<&mut ReceiveFlow> {
        if number >= self.max_flows {
            return None;
        }
        // A peer names the numbers in order, so the table grows with the flows in use.
        if usize::from(number) >= self.flows.len() {
            self.flows
                .resize_with(usize::from(number) + 1, ReceiveFlow::default);
        }
        self.flows.get_mut(usize::from(number))
    }

    /// Takes the label of a packet's head on `path`, whose tail is still to come.
    pub fn on_head(&mut self, now: Instant, path: usize, label: Label, paths: &PathsView) {
        if !label.again {
            self.on_latest(now, path, label.flow, label.sequence, paths);
        }
    }

    /// Takes the statement that nothing of the flow below `sequence` comes on `path` any more.
    pub fn on_latest(
        &mut self,
        now: Instant,
        path: usize,
        number: u16,
        sequence: u32,
        paths: &PathsView,
    ) {
        let Some(flow) = self.flow(number) else {
            return;
        };
        let sequence = header::expand(sequence, flow.next());
        flow.on_frontier(now, path, sequence, paths);
        self.wait(number);
    }

    /// Notes that the flow may wait for packets.
    fn wait(&mut self, number: u16) {
        if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
    }

    /// Takes a packet. Returns what it states about its flow, if that is news.
    pub fn on_packet(
        &mut self,
        now: Instant,
        (path, label): (usize, Label),
        packet: Vec<u8>,
        paths: &PathsView,
        (pool, stats): (&mut Pool, &mut Stats),
    ) -> Option<Statement> {
        let Some(flow) = self.flow(label.flow) else {
            pool.recycle(packet);
            return None;
        };
        let sequence = header::expand(label.sequence, flow.next());
        if flow.is_beyond(sequence) {
            self.make_room(now, label.flow, sequence, paths, stats);
        }
        let flow = &mut self.flows[usize::from(label.flow)];
        let before = (flow.bytes(), flow.slots());
        let (key, len) = (FlowKey::of(&packet), packet.len());
        let outcome = flow.insert(
            now,
            Arrival {
                path,
                sequence,
                sole: label.sole,
                hides_losses: label.hides_losses,
                again: label.again,
                packet,
            },
            paths,
        );
        self.bytes += flow.bytes() - before.0;
        self.slots += flow.slots() - before.1;
        let statement = key.and_then(|key| {
            let policy = FlowPolicy {
                urgency: label.urgency,
                mode: Some(label.mode),
            };
            let statement = flow.state(label.flow, key, policy);
            let is_new = !matches!(outcome, Outcome::Duplicate(_));
            flow.count(now, key, (path, len), is_new);
            statement
        });
        match outcome {
            Outcome::Placed => self.wait(label.flow),
            Outcome::Late(packet) => {
                stats.packets_reordered += 1;
                self.deliveries.push_back(packet);
            }
            Outcome::Duplicate(buffer) => {
                stats.packets_duplicate += 1;
                pool.recycle(buffer);
            }
        }
        statement
    }

    /// Delivers what waits in a flow until there is a place for `sequence`.
    fn make_room(
        &mut self,
        now: Instant,
        number: u16,
        sequence: u64,
        paths: &PathsView,
        stats: &mut Stats,
    ) {
        while self.flows[usize::from(number)].is_beyond(sequence) {
            if self.flows[usize::from(number)].is_waiting() {
                self.give_up(number, stats);
                self.pop(now, number, paths, stats);
            } else {
                let flow = &mut self.flows[usize::from(number)];
                self.slots -= flow.slots();
                flow.jump(sequence);
            }
        }
    }

    /// Gives up what the flow waits for first.
    fn give_up(&mut self, number: u16, stats: &mut Stats) {
        let flow = &mut self.flows[usize::from(number)];
        let before = flow.slots();
        flow.give_up(&mut stats.packets_missing);
        self.slots -= before - flow.slots();
    }

    /// Moves packets of the flow that are in order to the deliveries.
    fn pop(&mut self, now: Instant, number: u16, paths: &PathsView, stats: &mut Stats) {
        let flow = &mut self.flows[usize::from(number)];
        let before = (flow.bytes(), flow.slots());
        while let Some(packet) = flow.pop(now, paths, &mut stats.packets_missing) {
            self.deliveries.push_back(packet);
        }
        self.bytes -= before.0 - flow.bytes();
        self.slots -= before.1 - flow.slots();
    }

    /// Delivers what can be delivered at `now`, and finds what is lost.
    pub fn advance(&mut self, now: Instant, paths: &PathsView, stats: &mut Stats) {
        let mut index = 0;
        while let Some(&number) = self.waiting.get(index) {
            let flow = &mut self.flows[usize::from(number)];
            let before = flow.slots();
            let requests = &mut self.requests;
            flow.prove(now, paths, |lost| {
                stats.packets_rerequested += u64::from(lost.count);
                if requests.len() < MAX_REQUESTS {
                    requests.push_back(Request { flow: number, lost });
                }
            });
            self.slots += flow.slots() - before;
            self.pop(now, number, paths, stats);
            if self.bytes > self.max_bytes || self.slots > MAX_SLOTS {
                self.give_up(number, stats);
                self.pop(now, number, paths, stats);
            }
            if self.flows[usize::from(number)].is_settled() {
                self.waiting.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Returns the next packet to deliver.
    pub fn pop_delivery(&mut self) -> Option<Vec<u8>> {
        self.deliveries.pop_front()
    }

    /// Returns true if lost packets have to be asked for.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns the next request for lost packets.
    pub fn pop_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    pub fn next_timeout(&self, paths: &PathsView) -> Option<Instant> {
        let flows = self.waiting.iter().map(|n| &self.flows[usize::from(*n)]);
        Instant::earliest(flows.map(|flow| flow.next_timeout(paths)))
    }

    /// Returns the traffic of each flow.
    pub fn usage(&self) -> impl Iterator<Item = Direction> {
        let used = self.flows.iter().filter_map(ReceiveFlow::usage);
        used.map(|(key, usage)| Direction {
            key,
            usage,
            treatment: None,
        })
    }

    /// Forgets what came on a path that is new.
    pub fn forget_path(&mut self, path: usize) {
        for flow in &mut self.flows {
            flow.forget_path(path);
        }
    }

    pub fn invariants(&self) {
        let bytes: usize = self.flows.iter().map(ReceiveFlow::bytes).sum();
        let slots: usize = self.flows.iter().map(ReceiveFlow::slots).sum();
        assert_eq!((bytes, slots), (self.bytes, self.slots));
        assert!(self.requests.len() <= MAX_REQUESTS);
        assert!(self.flows.len() <= usize::from(self.max_flows));
        for flow in &self.flows {
            flow.invariants();
        }
    }
}
