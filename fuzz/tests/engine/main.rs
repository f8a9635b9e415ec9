//! The fuzz target of `braid-engine`: a sequence of packets and calls.
//!
//! No input makes a stack panic, breaks one of its invariants (debug builds assert them after every
//! call), lets it spin, or leaves anything of connections that are over. Where packets are at most
//! lost, repeated and put out of order, what is read is what was written.

mod forge;
mod world;

use std::time::Duration;

use bolero::{TypeGenerator, check, produce};
use braid_engine::strategy::FlowSize;
use braid_engine::{Class, JoinAuth, PathId, Protocol, Urgency};
use braid_wire::ip;

use forge::{Change, Packet, change, icmp_error};
use world::{EndSetup, World, strategy};

#[derive(Debug, Clone, TypeGenerator)]
struct Case {
    /// Leaves out what changes or forges packets.
    honest: bool,
    v6: bool,
    ends: [EndSetup; 2],
    #[generator(produce::<Vec<Step>>().with().len(0..300))]
    steps: Vec<Step>,
}

#[derive(Debug, Clone, TypeGenerator)]
struct Step {
    end: bool,
    /// The number of a connection, path or packet, modulo those that exist.
    which: u8,
    what: What,
}

#[derive(Debug, Clone, TypeGenerator)]
enum What {
    Connect(Connect),
    /// Stream, urgency and length.
    Write(u8, u8, u16),
    Read(u16),
    Shutdown,
    Abort,
    FlowSize(u8, u64),
    Urgency(u8),
    Strategy(u8),
    JoinAuth(u8),
    PathUp(bool),
    LeavePath,
    /// So many trips of so many milliseconds on a network that loses nothing.
    Carry(u8, u8),
    /// And the applications read.
    CarryAndRead(u8, u8),
    /// Nothing arrives for so many microseconds, shifted.
    Pass(u16, u8),
    /// The fate of a packet under way.
    Mark,
    Arrive,
    Drop,
    Repeat,
    Delay,
    Cut(u16),
    Change(#[generator(produce::<Vec<Change>>().with().len(1..3))] Vec<Change>),
    /// A packet made from one that was seen before.
    Forge(#[generator(produce::<Vec<Change>>().with().len(1..5))] Vec<Change>),
    /// The network complains about a packet that the end sent.
    Icmp(u8, u16),
    Garbage(Vec<u8>),
}

#[derive(Debug, Clone, TypeGenerator)]
struct Connect {
    strategy: u8,
    tcp: bool,
    path: Option<u8>,
    flow_size: Option<u32>,
}

fn urgency(level: u8) -> Urgency {
    Urgency::new(level % 8).expect("a level")
}

impl Case {
    fn run(&self) {
        let mut world = World::new(&self.ends, self.v6, self.honest);
        world.connect(0, |_| {});
        for step in &self.steps {
            let end = usize::from(step.end);
            match &step.what {
                What::Carry(..) | What::CarryAndRead(..) | What::Pass(..) => {
                    pass(&mut world, &step.what);
                }
                What::Arrive | What::Drop | What::Repeat | What::Delay | What::Mark => {
                    deliver(&mut world, end, step);
                }
                What::Cut(_)
                | What::Change(_)
                | What::Forge(_)
                | What::Icmp(..)
                | What::Garbage(_) => {
                    if !self.honest {
                        interfere(&mut world, end, step);
                    }
                }
                _ => call(&mut world, end, step),
            }
        }
        world.finish();
    }
}

fn pick<T: Clone>(of: &[T], which: u8) -> Option<T> {
    of.get(usize::from(which) % of.len().max(1)).cloned()
}

fn pass(world: &mut World, what: &What) {
    match *what {
        What::Carry(trips, ms) | What::CarryAndRead(trips, ms) => {
            for _ in 0..trips % 32 {
                world.carry(Duration::from_millis(ms.into()));
                if matches!(what, What::CarryAndRead(..)) {
                    world.read_all();
                }
            }
        }
        What::Pass(micros, shift) => {
            world.pass(Duration::from_micros(u64::from(micros) << (shift % 12)));
        }
        _ => {}
    }
}

fn deliver(world: &mut World, end: usize, step: &Step) {
    let inbox = &mut world.ends[end].inbox;
    let Some(mut packet) = inbox.remove(usize::from(step.which) % inbox.len().max(1)) else {
        return;
    };
    if matches!(step.what, What::Mark)
        && let Ok(mut view) = ip::Packet::new(&mut packet.bytes)
    {
        view.mark();
    }
    if matches!(step.what, What::Repeat | What::Delay | What::Mark) {
        inbox.push_back(packet.clone());
    }
    if matches!(step.what, What::Arrive | What::Repeat) {
        world.receive(end, &packet);
    }
}

fn interfere(world: &mut World, end: usize, step: &Step) {
    let [here, there] = [&world.ends[end], &world.ends[1 - end]];
    let under_way = || {
        here.inbox
            .get(usize::from(step.which) % here.inbox.len().max(1))
    };
    let packet = match &step.what {
        What::Cut(len) => under_way().cloned().map(|mut packet| {
            packet.bytes.truncate(usize::from(*len));
            packet
        }),
        What::Change(changes) => under_way().map(|p| change(p, changes, &here.seen)),
        What::Forge(changes) => {
            let packet = pick(&here.seen, step.which);
            packet.map(|packet| change(&packet, changes, &here.seen))
        }
        What::Icmp(n, mtu) => {
            pick(&there.seen, step.which).and_then(|packet| icmp_error(*n, *mtu, &packet))
        }
        What::Garbage(bytes) => Some(Packet {
            bytes: bytes.clone(),
            gso_size: 0,
        }),
        _ => None,
    };
    if let Some(packet) = packet {
        world.receive(end, &packet);
    }
}

fn call(world: &mut World, at: usize, step: &Step) {
    let now = world.now;
    let path = PathId(step.which % 4);
    let conn = pick(&world.ends[at].conns, step.which);
    let stack = &mut world.ends[at].stack;
    match (&step.what, conn) {
        (What::Connect(how), _) => world.connect(at, |options| {
            options.strategy = strategy(how.strategy);
            if how.tcp {
                options.protocol = Protocol::Tcp;
            }
            options.path = how.path.map(|path| PathId(path % 4));
            options.flow_size = how
                .flow_size
                .map_or(FlowSize::Unknown, |bytes| FlowSize::Declared(bytes.into()));
        }),
        (What::PathUp(up), _) => stack.set_path_up(now, path, *up),
        (What::LeavePath, _) => world.leave_path(at, path),
        (What::Write(stream, level, len), Some(conn)) => {
            let class = Class {
                stream: u32::from(stream % 4),
                urgency: urgency(*level),
                // Whoever checks what is read expects all that was written.
                deadline: (!world.honest && *level >= 128)
                    .then(|| now + Duration::from_millis(u64::from(*level))),
            };
            world.write(at, conn, class, usize::from(*len));
        }
        (What::Read(max), Some(conn)) => world.read(at, conn, usize::from(*max)),
        // It may be closed already.
        (What::Shutdown, Some((conn, _))) => drop(stack.shutdown(now, conn)),
        (What::Abort, Some((conn, _))) => stack.abort(now, conn),
        (What::FlowSize(known, bytes), Some((conn, _))) => {
            let known =
                [FlowSize::Predicted, FlowSize::Read, FlowSize::Declared][usize::from(known % 3)];
            let _ = stack.set_flow_size(now, conn, known(*bytes));
        }
        (What::Urgency(level), Some((conn, _))) => {
            let _ = stack.set_urgency(now, conn, urgency(*level));
        }
        (What::Strategy(n), Some((conn, _))) => {
            let _ = stack.set_strategy(now, conn, strategy(*n));
        }
        (What::JoinAuth(n), Some((conn, _))) => {
            let secrets = [1, 2].map(|secret| JoinAuth::Secret([secret; 32]));
            let ways = [JoinAuth::Keys, JoinAuth::Pending, secrets[0], secrets[1]];
            let _ = stack.set_join_auth(now, conn, ways[usize::from(n % 4)]);
        }
        _ => {}
    }
    world.drain();
}

#[test]
fn packets_and_calls() {
    check!().with_type::<Case>().for_each(Case::run);
}
