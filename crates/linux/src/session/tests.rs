//! Tests of two sessions on one thread, with a pair of sockets between them in place of devices and links.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use braid_engine::buffer::PacketBuffer;
use braid_engine::streams::BadFrame;
use braid_engine::{Config, PathConfig, RxMeta, Transmit};
use braid_wire::Rng;
use rustix::event::{EventfdFlags, eventfd};
use socket2::{Domain, Socket, Type};

use super::*;
use crate::driver::Clock;
use crate::sockets::Limits;

/// One end of a link between two engines. Packets are at most 1500 bytes long.
struct Wire {
    socket: Socket,
    buffer: PacketBuffer,
}

impl PacketIo for Wire {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        let packet = [transmit.header, &transmit.payload.concat()].concat();
        self.socket.send(&packet).map(drop)
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        let mut packet = [0; 1500];
        let Ok(n) = self.socket.read(&mut packet) else {
            return Ok(None);
        };
        self.buffer.fill(&packet[..n]);
        let meta = RxMeta {
            checksum_ok: true,
            gso_size: 0,
        };
        Ok(Some((&mut self.buffer, meta)))
    }
}

/// The end that connects, and the end that accepts.
struct Pair([Session<Wire, ()>; 2]);

impl Pair {
    fn new() -> Pair {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).expect("sockets");
        let clock = Clock::new();
        let strategy = || braid_strategy::factory(braid_strategy::DEFAULT).expect("a strategy");
        let stack = |n: u8| {
            let config = Config {
                max_transmit: 1500,
                ..Config::default()
            };
            let mut stack = Stack::new(config, Rng::from_seed([n; 32]), strategy());
            let path = PathConfig::v4([10, 0, 0, n].into());
            stack.add_path(path).expect("the first path");
            stack
        };
        let (mut client, mut server) = (stack(1), stack(2));
        let address = ([10, 0, 0, 2], 7000).into();
        server.listen(address).expect("a free port");
        let options = ConnectOptions::new(address, strategy()());
        let peer = Peer::connect(clock.now(), &mut client, options).expect("a path");
        let session = |socket: Socket, stack, peer| {
            socket.set_nonblocking(true).expect("a socket");
            let buffer = PacketBuffer::new();
            let wire = Wire { socket, buffer };
            let driver = Driver::new(clock, wire, stack, peer, (), Limits::default());
            Session::on(driver.expect("descriptors"))
        };
        let client = session(one, client, peer);
        Pair([client, session(other, server, Peer::default())])
    }

    /// Lets both ends work until `done`. The times of the waits have always come already.
    fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.0[0].now() + Duration::from_secs(60);
        while !done(self) {
            for session in &mut self.0 {
                assert!(session.now() < end, "it takes too long");
                session.wait(Some(session.now())).expect("it waits");
            }
        }
    }
}

#[test]
fn streams_arrive_by_urgency_and_the_session_closes_in_order() {
    let mut pair = Pair::new();
    let sizes = [150_000, 50_000];
    for (level, size) in [7, 0].into_iter().zip(sizes) {
        let writer = &mut pair.0[0];
        let urgency = Urgency::new(level).expect("a level");
        let stream = writer.open_stream(urgency).expect("few streams");
        assert_eq!(writer.write(stream, &vec![0; size], None), Ok(size));
        assert_eq!(writer.finish(stream), Ok(true));
    }
    let (mut read, mut ended, mut buf) = ([0; 2], Vec::new(), [0; 4_000]);
    pair.run(|Pair([_, reader])| {
        for stream in reader.incoming() {
            loop {
                match reader.read(stream, &mut buf).expect("an open stream") {
                    Read::Bytes(n) => read[stream as usize] += n,
                    Read::End => ended.push(stream),
                    Read::Missed(n) => panic!("{n} bytes are missing"),
                    Read::Nothing => break,
                }
                if ended.last() == Some(&stream) {
                    break;
                }
            }
        }
        ended.len() == 2
    });
    assert_eq!((read, ended), (sizes, vec![1, 0]));
    let closed = thread::scope(|scope| {
        let close = |session: &mut Session<Wire, ()>| {
            let end = session.now() + Duration::from_secs(60);
            session.close(end).expect("it waits")
        };
        let ends = pair
            .0
            .each_mut()
            .map(|session| scope.spawn(move || close(session)));
        ends.map(|end| end.join().expect("no panic"))
    });
    assert_eq!(closed, [Some(CloseReason::Finished); 2]);
    assert!(pair.0[1].has_ended());
}

#[test]
fn a_peer_that_violates_the_format_is_aborted() {
    let mut pair = Pair::new();
    pair.run(|Pair(ends)| ends.iter().all(Session::is_connected));
    let now = pair.0[0].now();
    let Driver { core, stack, .. } = &mut pair.0[0].driver;
    let conn = core.conn().expect("a connection");
    stack
        .write(now, conn, &[0xff; 16])
        .expect("an open connection");
    pair.run(|Pair(ends)| ends.iter().all(|end| end.closed().is_some()));
    let error = StreamError::BadFrame(BadFrame::Flags(0xff));
    assert_eq!(pair.0[1].read(0, &mut [0]), Err(error));
    assert_eq!(pair.0[1].closed(), Some(CloseReason::Aborted));
}

/// A program that takes over signals ends its session in order.
#[test]
fn a_stop_ends_a_wait_and_leaves_the_session_open() {
    let mut pair = Pair::new();
    pair.run(|Pair(ends)| ends.iter().all(Session::is_connected));
    let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let Pair([writer, reader]) = &mut pair;
    let stream = writer.open_stream(Urgency::default()).expect("few streams");
    assert_eq!(writer.write(stream, b"last", None), Ok(4));
    let soon = Some(writer.now());
    assert_eq!(writer.wait_or_stop(stop.as_fd(), soon).ok(), Some(false));
    rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("a descriptor");
    assert_eq!(writer.wait_or_stop(stop.as_fd(), None).ok(), Some(true));
    let (end, later) = (writer.now(), reader.now() + Duration::from_secs(60));
    assert_eq!(writer.close(end).ok(), Some(None));
    while reader.incoming().is_empty() {
        assert!(reader.now() < later, "it takes too long");
        reader.wait(Some(later)).expect("it waits");
    }
    assert_eq!(reader.read(stream, &mut [0; 8]), Ok(Read::Bytes(4)));
}
