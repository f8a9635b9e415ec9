//! Tests of the event loop with a device that follows a script.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::rc::Rc;

use braid_engine::buffer::PacketBuffer;
use braid_engine::{
    CloseReason, Config, ConnectOptions, Event, PathConfig, Protocol, RxMeta, Transmit,
};
use braid_wire::{Rng, Seq32, ip, tcp};
use rustix::event::{EventfdFlags, eventfd};

use super::*;

/// A result of the device's next read.
#[derive(Clone, Copy)]
enum Step {
    /// A packet of 65,535 bytes, which the engine drops. Two such packets have slightly fewer bytes than
    /// `GATHER_AFTER_BYTES` (131,072), and three have more.
    Large,
    /// The answer to the first packet that was sent: a RST.
    Reset,
    /// No packet. After the last step there is also no packet.
    End,
}
use Step::{End, Large, Reset};

/// A device that is always readable.
struct Script {
    readable: OwnedFd,
    steps: VecDeque<Step>,
    sent: Option<Vec<u8>>,
    buffer: PacketBuffer,
    clock: Clock,
    read_times: ReadTimes,
}

/// The times at which the steps were read.
type ReadTimes = Rc<RefCell<Vec<Instant>>>;

impl PacketIo for Script {
    fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.sent.get_or_insert_with(|| transmit.header.to_vec());
        Ok(())
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        self.read_times.borrow_mut().push(self.clock.now());
        match self.steps.pop_front() {
            Some(Large) => self.buffer.fill(&[0; 65_535]),
            Some(Reset) => {
                let sent = self.sent.as_ref().expect("a packet was sent");
                self.buffer.fill(&reset(sent));
            }
            Some(End) | None => return Ok(None),
        }
        let meta = RxMeta {
            checksum_ok: true,
            gso_size: 0,
        };
        Ok(Some((&mut self.buffer, meta)))
    }
}

/// Returns the RST that answers a SYN to a closed port.
fn reset(syn: &[u8]) -> Vec<u8> {
    let (ip, segment) = ip::Repr::parse_head(syn, syn.len()).expect("a packet");
    let (syn, _) = tcp::Repr::parse(&syn[segment]).expect("a segment");
    let packet = ip::Repr {
        src: ip.dst,
        dst: ip.src,
        payload_len: tcp::HEADER_LEN,
        ..ip
    };
    let segment = tcp::Repr {
        src_port: syn.dst_port,
        dst_port: syn.src_port,
        seq: Seq32(0),
        ack: syn.seq.add(1),
        flags: tcp::Flags::RST | tcp::Flags::ACK,
        window: 0,
        options: tcp::Options::default(),
    };
    let ip_len = packet.header_len();
    let mut answer = vec![0; ip_len + tcp::HEADER_LEN];
    packet.emit(&mut answer);
    segment.emit(&mut answer[ip_len..]);
    answer
}

/// A core that records the reason for the close of its connection, and the number of reads before the close.
struct CloseRecorder {
    read_times: ReadTimes,
    closed: Option<(CloseReason, usize)>,
}

impl Core for CloseRecorder {
    fn on_engine_event(&mut self, _: &mut Ctx<'_>, event: Event) {
        if let Event::Closed { reason, .. } = event {
            self.closed = Some((reason, self.read_times.borrow().len()));
        }
    }
}

/// Returns a driver whose device follows these steps, and whose engine opens a connection.
fn driver(steps: &[Step]) -> Driver<Script, CloseRecorder, ()> {
    let clock = Clock::new();
    let strategy = || braid_strategy::factory(braid_strategy::DEFAULT).expect("a strategy");
    let mut stack = Stack::new(Config::default(), Rng::from_seed([1; 32]), strategy());
    let path = PathConfig::v4([10, 0, 0, 2].into());
    stack.add_path(path).expect("the first path");
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        ..ConnectOptions::new(([10, 0, 9, 1], 80).into(), strategy()())
    };
    stack.connect(clock.now(), options).expect("a path");
    let read_times = ReadTimes::default();
    let script = Script {
        readable: eventfd(1, EventfdFlags::CLOEXEC).expect("a descriptor"),
        steps: steps.iter().copied().collect(),
        sent: None,
        buffer: PacketBuffer::new(),
        clock,
        read_times: Rc::clone(&read_times),
    };
    let core = CloseRecorder {
        read_times,
        closed: None,
    };
    let limits = sockets::Limits::default();
    Driver::new(clock, script, stack, core, (), limits).expect("descriptors")
}

/// Runs the driver until all steps were read. Returns the device and the core.
fn run(steps: &[Step]) -> (Script, CloseRecorder) {
    let mut driver = driver(steps);
    let never = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let outcome = driver.run(never.as_fd(), |driver| driver.packets.steps.is_empty());
    outcome.expect("it waits");
    (driver.packets, driver.core)
}

#[test]
fn packets_gather_after_a_batch_of_many_bytes() {
    let (script, _) = run(&[Large, Large, Large, End, End]);
    let read_times = script.read_times.borrow();
    let [.., end, next] = read_times[..] else {
        panic!("{read_times:?}");
    };
    let between = next.saturating_since(end);
    assert!(between >= GATHER_DELAY, "{between:?}");
}

#[test]
fn the_core_gets_events_before_all_of_many_bytes_are_read() {
    // The RST and two large packets together exceed `GATHER_AFTER_BYTES`: 40 + 2 * 65,535 = 131,110.
    let (_, core) = run(&[Reset, Large, Large, Large, Large, End]);
    let (reason, read_times) = core.closed.expect("it is told");
    assert_eq!((reason, read_times), (CloseReason::Refused, 3));
}

#[test]
fn the_clock_is_read_again_after_the_core_got_events() {
    let before = Instant::ZERO;
    assert_eq!(driver(&[Large, End]).receive(before), before);
    assert!(driver(&[Large, Large, Large, End]).receive(before) > before);
}

#[test]
fn the_core_gets_events_of_few_bytes_once_all_are_read() {
    let (_, core) = run(&[Reset, Large, End]);
    let (reason, read_times) = core.closed.expect("it is told");
    assert_eq!((reason, read_times), (CloseReason::Refused, 3));
}
