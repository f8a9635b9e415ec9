//! Tests of streams over the loopback interface.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use braid_proxy::app::{
    Arrival, ConnectFailure, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};
use braid_wire::Instant;
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketType, socket};

use super::{Limits, Sockets};

struct Loop {
    epoll: OwnedFd,
    sockets: Sockets,
}

impl Loop {
    fn new(limits: Limits) -> Loop {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let sockets = Sockets::new(epoll.try_clone().unwrap(), limits).unwrap();
        Loop { epoll, sockets }
    }

    /// Returns the next event; panics if none comes.
    fn event(&mut self) -> DownstreamEvent {
        for _ in 0..100 {
            if let Some(event) = self.sockets.next_event() {
                return event;
            }
            self.wait(Duration::from_millis(100));
        }
        panic!("no event");
    }

    fn wait(&mut self, timeout: Duration) {
        let mut ready = Vec::with_capacity(16);
        let timeout = Timespec::try_from(timeout).unwrap();
        let room = rustix::buffer::spare_capacity(&mut ready);
        epoll::wait(&self.epoll, room, Some(&timeout)).unwrap();
        for event in &ready {
            self.sockets.on_ready(event.data.u64(), event.flags);
        }
    }

    fn connected(&mut self, listener: &TcpListener) -> (DownstreamId, TcpStream) {
        let id = self.sockets.connect(listener.local_addr().unwrap());
        let id = id.unwrap();
        let (peer, _) = listener.accept().unwrap();
        assert_eq!(self.event(), DownstreamEvent::Connected { id });
        (id, peer)
    }

    fn read(&mut self, id: DownstreamId) -> Result<Vec<u8>, DownstreamError> {
        let mut buffer = [0; 64];
        let bufs = &mut [IoSliceMut::new(&mut buffer)];
        let read = self.sockets.read(id, bufs)?;
        Ok(buffer[..read].to_vec())
    }
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

#[test]
fn both_directions_end_in_order() {
    let listener = listener();
    let mut it = Loop::new(Limits::default());
    let (id, mut peer) = it.connected(&listener);
    assert_eq!(it.read(id), Err(DownstreamError::WouldBlock));
    peer.write_all(b"ping").unwrap();
    assert_eq!(it.event(), DownstreamEvent::Readable { id });
    assert_eq!(it.read(id), Ok(b"ping".to_vec()));
    assert_eq!(it.read(id), Err(DownstreamError::WouldBlock));

    assert_eq!(it.sockets.write(id, &[IoSlice::new(b"pong")]), Ok(4));
    it.sockets.shutdown(id);
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "pong");

    peer.write_all(b"last").unwrap();
    drop(peer);
    assert_eq!(it.event(), DownstreamEvent::Readable { id });
    assert_eq!(it.read(id), Ok(b"last".to_vec()));
    while it.read(id) == Err(DownstreamError::WouldBlock) {
        assert_eq!(it.event(), DownstreamEvent::Readable { id });
    }
    assert_eq!(it.read(id), Ok(Vec::new()));
    it.sockets.close(id);
    assert!(it.sockets.is_empty());
}

#[test]
fn a_full_socket_says_when_it_has_room() {
    let listener = listener();
    let mut it = Loop::new(Limits::default());
    let (id, mut peer) = it.connected(&listener);
    let block = vec![7; 1 << 20];
    let mut written = 0;
    while let Ok(n) = it.sockets.write(id, &[IoSlice::new(&block)]) {
        written += n;
    }
    let mut rest = vec![0; written];
    peer.read_exact(&mut rest).unwrap();
    assert_eq!(it.event(), DownstreamEvent::Writable { id });
    assert!(it.sockets.write(id, &[IoSlice::new(&block)]).is_ok());
}

#[test]
fn a_reset_reaches_the_peer_and_is_heard_from_it() {
    let listener = listener();
    let mut it = Loop::new(Limits::default());
    let (id, mut peer) = it.connected(&listener);
    it.sockets.reset(id);
    let error = peer.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let (id, peer) = it.connected(&listener);
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    assert_eq!(it.event(), DownstreamEvent::Broken { id });
}

#[test]
fn ids_are_not_used_again_and_dead_ones_do_nothing() {
    let listener = listener();
    let mut it = Loop::new(Limits::default());
    let (first, mut peer) = it.connected(&listener);
    peer.write_all(b"late").unwrap();
    it.wait(Duration::from_millis(100));
    it.sockets.close(first);
    let (second, _peer) = it.connected(&listener);
    assert_ne!(first, second);
    assert_eq!(it.read(first), Err(DownstreamError::Broken));
    it.sockets.close(first);
    assert_eq!(it.sockets.len(), 1);
    assert_eq!(it.sockets.next_event(), None, "nothing of the dead stream");
}

#[test]
fn attempts_fail_as_they_should() {
    let mut it = Loop::new(Limits {
        streams: 1,
        connect_timeout: Duration::from_secs(5),
    });
    // Bound, so that no other socket takes the port, but not listening.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let nobody = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
    let id = it.sockets.connect(nobody).unwrap();
    let failure = ConnectFailure::Refused;
    assert_eq!(it.event(), DownstreamEvent::ConnectFailed { id, failure });

    // A listener whose queue is full answers no more SYNs.
    let full = listener();
    rustix::net::listen(&full, 0).unwrap();
    let _first = TcpStream::connect(full.local_addr().unwrap()).unwrap();
    let id = it.sockets.connect(full.local_addr().unwrap()).unwrap();
    assert_eq!(
        it.sockets.connect(nobody),
        Err(ConnectFailure::NoResources),
        "one stream is the limit"
    );
    let deadline = Instant::ZERO + Duration::from_secs(5);
    assert_eq!(it.sockets.next_timeout(), Some(deadline));
    it.sockets.handle_timeout(deadline);
    let failure = ConnectFailure::TimedOut;
    assert_eq!(it.event(), DownstreamEvent::ConnectFailed { id, failure });
    assert_eq!(it.sockets.next_timeout(), None);
}

#[test]
fn names_are_looked_up() {
    let mut it = Loop::new(Limits::default());
    let id = it.sockets.resolve("127.0.0.1", 80).unwrap();
    let addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 80))];
    assert_eq!(it.event(), DownstreamEvent::Resolved { id, addresses });
    let id = it.sockets.resolve("no\0name", 80).unwrap();
    let addresses = Vec::new();
    assert_eq!(it.event(), DownstreamEvent::Resolved { id, addresses });
}

#[test]
fn what_is_peeked_at_is_still_there() {
    let listener = listener();
    let mut it = Loop::new(Limits::default());
    let (id, mut peer) = it.connected(&listener);
    let mut buffer = [0; 64];
    assert_eq!(
        it.sockets.peek(id, &mut buffer),
        Err(DownstreamError::WouldBlock)
    );
    peer.write_all(b"ping").unwrap();
    assert_eq!(it.event(), DownstreamEvent::Readable { id });
    for _ in 0..2 {
        assert_eq!(it.sockets.peek(id, &mut buffer), Ok(4));
        assert_eq!(&buffer[..4], b"ping");
    }
    assert_eq!(it.sockets.peek(id, &mut buffer[..2]), Ok(2));
    assert_eq!(it.read(id), Ok(b"ping".to_vec()));
    drop(peer);
    assert_eq!(it.event(), DownstreamEvent::Readable { id });
    assert_eq!(it.sockets.peek(id, &mut buffer), Ok(0), "the end");
    assert_eq!(it.read(id), Ok(Vec::new()));
}

#[test]
fn a_listener_of_its_own_tells_who_came_and_how_the_syn_was_marked() {
    for host in ["127.0.0.1", "::1"] {
        let mut it = Loop::new(Limits::default());
        // Another process may have taken the free port by now.
        let listening = (0..16).find_map(|_| {
            let any = SocketAddr::new(host.parse().unwrap(), 0);
            let free = TcpListener::bind(any).unwrap().local_addr().unwrap();
            it.sockets.listen(free).is_ok().then_some(free)
        });
        let free = listening.expect("a free port");
        assert!(it.sockets.listen(free).is_err(), "somebody listens there");
        // Closing the intercepting listeners closes no other listener.
        it.sockets.set_intercepting(false).unwrap();
        for (tos, expected) in [(0, 0), (0xb8, 46), (0x21, 8)] {
            let user = marked(free, tos);
            let event = it.event();
            let DownstreamEvent::Accepted { id, .. } = event else {
                panic!("{event:?}");
            };
            let expected = DownstreamEvent::Accepted {
                id,
                peer: user.local_addr().unwrap(),
                destination: free,
                arrival: Arrival::Addressed,
                dscp: expected,
            };
            assert_eq!(event, expected);
            it.sockets.reset(id);
        }
    }
}

/// Users whose connection waits in the kernel's queue when interception ends are served.
#[test]
fn connections_that_wait_are_accepted_before_the_intake_closes() {
    let mut it = Loop::new(Limits::default());
    let socket = listener();
    socket.set_nonblocking(true).unwrap();
    let addr = socket.local_addr().unwrap();
    let intercepts = (socket.into(), addr);
    let opened = it.sockets.listener(intercepts, Arrival::Intercepted);
    it.sockets.listeners.push(opened.unwrap());
    let mut user = TcpStream::connect(addr).unwrap();
    it.sockets.set_intercepting(false).unwrap();
    let DownstreamEvent::Accepted { id, arrival, .. } = it.event() else {
        panic!("nobody was accepted");
    };
    assert_eq!(arrival, Arrival::Intercepted);
    it.wait(Duration::from_secs(1));
    it.sockets.write(id, &[IoSlice::new(b"here")]).unwrap();
    let mut got = [0; 4];
    user.read_exact(&mut got).unwrap();
    assert!(TcpStream::connect(addr).is_err(), "it is closed");
}

/// Connects with a traffic class of `tos`.
fn marked(to: SocketAddr, tos: u8) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let fd = match to {
        SocketAddr::V4(_) => {
            let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_ip_tos(&fd, tos).unwrap();
            fd
        }
        SocketAddr::V6(_) => {
            let fd = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
            sockopt::set_ipv6_tclass(&fd, tos.into()).unwrap();
            fd
        }
    };
    connect(&fd, &to).unwrap();
    TcpStream::from(fd)
}
