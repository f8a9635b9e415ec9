//! The fuzz target of `braid-engine`: two stacks, a sequence of packets and calls.
//!
//! No input may make a stack panic, break one of its invariants (which debug builds assert after
//! every call), spin, or keep anything of connections that are over. Where packets were at most
//! lost, repeated and put out of order, what is read is what was written.

mod forge;
mod world;

use std::time::Duration;

use bolero::{TypeGenerator, check, produce};
use braid_engine::{Class, PathId, Protocol, Urgency};
use braid_wire::tcp;

use forge::{Change, Error, change};
use world::{EndSetup, Packet, World, strategy};

/// A case. `honest` leaves out what changes or forges packets.
#[derive(Debug, Clone, TypeGenerator)]
struct Case {
    honest: bool,
    v6: bool,
    ends: [EndSetup; 2],
    #[generator(produce::<Vec<Step>>().with().len(0..200))]
    steps: Vec<Step>,
}

#[derive(Debug, Clone, TypeGenerator)]
enum Step {
    Call { end: bool, conn: u8, call: Call },
    Write { end: bool, conn: u8, stream: u8, urgency: u8, len: u16 },
    /// So many one-way trips of a network that loses nothing; the applications read or do not.
    Carry { trips: u8, millis: u8, read: bool },
    /// Nothing arrives for so long.
    Pass { micros: u16, shift: u8 },
    /// What happens to one of the packets under way.
    Packet { end: bool, at: u8, fate: Fate },
    /// A packet made from one seen before.
    Forge {
        end: bool,
        from: u8,
        #[generator(produce::<Vec<Change>>().with().len(1..5))]
        changes: Vec<Change>,
    },
    /// The network complains about a packet that this end sent.
    Icmp { end: bool, about: u8, error: Error },
    Garbage { end: bool, bytes: Vec<u8> },
}

#[derive(Debug, Clone, TypeGenerator)]
enum Call {
    Connect { strategy: u8, tcp: bool, path: Option<u8>, flow_size: Option<u32> },
    Read(u16),
    ReadAll,
    Shutdown,
    Abort,
    FlowSize(u64),
    PathUp(u8, bool),
    LeavePath(u8),
}

#[derive(Debug, Clone, TypeGenerator)]
enum Fate {
    Arrive,
    Drop,
    Twice,
    Late,
    Change(#[generator(produce::<Vec<Change>>().with().len(1..3))] Vec<Change>),
    Flip { at: u16, bits: u8, checksum: bool },
    Cut(u16),
}

/// As connection numbers beyond those in use do.
fn pick<T: Clone>(of: &[T], n: u8) -> Option<T> {
    of.get(usize::from(n) % of.len().max(1)).cloned()
}

impl Case {
    fn run(&self) {
        let mut world = World::new(&self.ends, self.v6, self.honest);
        world.connect(0, |_| {});
        for step in &self.steps {
            if std::env::var_os("TRACE").is_some() {
                println!("{} STEP {step:?}", world.now);
            }
            self.step(&mut world, step);
        }
        world.finish();
    }

    fn step(&self, world: &mut World, step: &Step) {
        match step {
            Step::Call { end, conn, call } => call_one(world, usize::from(*end), *conn, call),
            Step::Write { end, conn, stream, urgency, len } => {
                let end = usize::from(*end);
                if let Some(conn) = pick(&world.ends[end].conns, *conn) {
                    let class = Class {
                        stream: u32::from(stream % 4),
                        urgency: Urgency::new(urgency % 8).expect("a level"),
                    };
                    world.write(end, conn, class, usize::from(*len));
                }
            }
            Step::Carry { trips, millis, read } => {
                for _ in 0..trips % 32 {
                    world.carry(Duration::from_millis((*millis).into()));
                    if *read {
                        world.read_all();
                    }
                }
            }
            Step::Pass { micros, shift } => {
                world.pass(Duration::from_micros(u64::from(*micros) << (shift % 12)));
            }
            Step::Packet { end, at, fate } => self.packet(world, usize::from(*end), *at, fate),
            _ if self.honest => {}
            Step::Forge { end, from, changes } => {
                let end = usize::from(*end);
                if let Some(packet) = pick(&world.ends[end].seen, *from) {
                    let packet = change(&packet, changes, &world.ends[end]);
                    world.receive(end, &packet);
                }
            }
            Step::Icmp { end, about, error } => {
                let end = usize::from(*end);
                let sent = pick(&world.ends[1 - end].seen, *about);
                if let Some(packet) = sent.and_then(|packet| error.about(&packet)) {
                    world.receive(end, &packet);
                }
            }
            Step::Garbage { end, bytes } => {
                let bytes = bytes.clone();
                world.receive(usize::from(*end), &Packet { bytes, gso_size: 0 });
            }
        }
    }

    fn packet(&self, world: &mut World, end: usize, at: u8, fate: &Fate) {
        let inbox = &mut world.ends[end].inbox;
        let at = usize::from(at) % inbox.len().max(1);
        let Some(mut packet) = inbox.remove(at) else {
            return;
        };
        match fate {
            Fate::Drop => return,
            Fate::Twice => inbox.push_back(packet.clone()),
            Fate::Late => return inbox.push_back(packet),
            Fate::Change(changes) if !self.honest => {
                packet = change(&packet, changes, &world.ends[end]);
            }
            Fate::Flip { at, bits, checksum } if !self.honest => {
                let at = usize::from(*at) % packet.bytes.len();
                packet.bytes[at] ^= bits;
                if *checksum {
                    // It need not be TCP any more.
                    let _ = tcp::complete_checksum(&mut packet.bytes);
                }
            }
            Fate::Cut(len) if !self.honest => packet.bytes.truncate(usize::from(*len)),
            _ => {}
        }
        world.receive(end, &packet);
    }
}

fn call_one(world: &mut World, at: usize, conn: u8, call: &Call) {
    let now = world.now;
    let conn = pick(&world.ends[at].conns, conn);
    let stack = &mut world.ends[at].stack;
    match (call, conn) {
        (Call::Connect { strategy: n, tcp, path, flow_size }, _) => {
            return world.connect(at, |options| {
                options.strategy = strategy(*n);
                if *tcp {
                    options.protocol = Protocol::Tcp;
                }
                options.path = path.map(|path| PathId(path % 4));
                options.flow_size = flow_size.map(u64::from);
            });
        }
        (Call::PathUp(path, up), _) => stack.set_path_up(now, PathId(path % 4), *up),
        (Call::LeavePath(path), _) => {
            stack.leave_path(now, PathId(path % 4));
            world.ends[at].left = true;
        }
        (Call::ReadAll, _) => world.read_all(),
        (_, None) => {}
        (Call::Read(max), Some(conn)) => world.read(at, conn, (*max).into()),
        // It may be closed already.
        (Call::Shutdown, Some((conn, _))) => drop(stack.shutdown(now, conn)),
        (Call::Abort, Some((conn, _))) => stack.abort(now, conn),
        (Call::FlowSize(bytes), Some((conn, _))) => drop(stack.set_flow_size(now, conn, *bytes)),
    }
    world.drain();
}

#[test]
fn packets_and_calls() {
    check!().with_type::<Case>().for_each(Case::run);
}
