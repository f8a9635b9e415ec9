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

struct EventLoop {
    epoll: OwnedFd,
    sockets: Sockets,
}

impl EventLoop {
    fn new(limits: Limits) -> EventLoop {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let sockets = Sockets::new(epoll.try_clone().unwrap(), limits).unwrap();
        EventLoop { epoll, sockets }
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
    let mut event_loop = EventLoop::new(Limits::default());
    let (id, mut peer) = event_loop.connected(&listener);
    assert_eq!(event_loop.read(id), Err(DownstreamError::WouldBlock));
    peer.write_all(b"ping").unwrap();
    assert_eq!(event_loop.event(), DownstreamEvent::Readable { id });
    assert_eq!(event_loop.read(id), Ok(b"ping".to_vec()));
    assert_eq!(event_loop.read(id), Err(DownstreamError::WouldBlock));

    assert_eq!(
        event_loop.sockets.write(id, &[IoSlice::new(b"pong")]),
        Ok(4)
    );
    event_loop.sockets.shutdown(id);
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "pong");

    peer.write_all(b"last").unwrap();
    drop(peer);
    assert_eq!(event_loop.event(), DownstreamEvent::Readable { id });
    assert_eq!(event_loop.read(id), Ok(b"last".to_vec()));
    while event_loop.read(id) == Err(DownstreamError::WouldBlock) {
        assert_eq!(event_loop.event(), DownstreamEvent::Readable { id });
    }
    assert_eq!(event_loop.read(id), Ok(Vec::new()));
    event_loop.sockets.close(id);
    assert!(event_loop.sockets.is_empty());
}

#[test]
fn a_full_socket_reports_when_it_has_room() {
    let listener = listener();
    let mut event_loop = EventLoop::new(Limits::default());
    let (id, mut peer) = event_loop.connected(&listener);
    let block = vec![7; 1 << 20];
    let mut written = 0;
    while let Ok(n) = event_loop.sockets.write(id, &[IoSlice::new(&block)]) {
        written += n;
    }
    let mut rest = vec![0; written];
    peer.read_exact(&mut rest).unwrap();
    assert_eq!(event_loop.event(), DownstreamEvent::Writable { id });
    assert!(
        event_loop
            .sockets
            .write(id, &[IoSlice::new(&block)])
            .is_ok()
    );
}

#[test]
fn resets_are_sent_and_received() {
    let listener = listener();
    let mut event_loop = EventLoop::new(Limits::default());
    let (id, mut peer) = event_loop.connected(&listener);
    event_loop.sockets.reset(id);
    let error = peer.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let (id, peer) = event_loop.connected(&listener);
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    assert_eq!(event_loop.event(), DownstreamEvent::Broken { id });
}

#[test]
fn ids_are_not_used_again_and_old_ones_have_no_effect() {
    let listener = listener();
    let mut event_loop = EventLoop::new(Limits::default());
    let (first, mut peer) = event_loop.connected(&listener);
    peer.write_all(b"late").unwrap();
    event_loop.wait(Duration::from_millis(100));
    event_loop.sockets.close(first);
    let (second, _peer) = event_loop.connected(&listener);
    assert_ne!(first, second);
    assert_eq!(event_loop.read(first), Err(DownstreamError::Broken));
    event_loop.sockets.close(first);
    assert_eq!(event_loop.sockets.len(), 1);
    assert_eq!(
        event_loop.sockets.next_event(),
        None,
        "nothing of the dead stream"
    );
}

#[test]
fn failed_attempts_are_reported_with_their_cause() {
    let mut event_loop = EventLoop::new(Limits {
        streams: 1,
        connect_timeout: Duration::from_secs(5),
    });
    // The socket is bound, so that no other socket takes the port, but it does not listen.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let closed_port = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
    let id = event_loop.sockets.connect(closed_port).unwrap();
    let failure = ConnectFailure::Refused;
    assert_eq!(
        event_loop.event(),
        DownstreamEvent::ConnectFailed { id, failure }
    );

    // A listener whose queue is full answers no more SYNs.
    let full_listener = listener();
    rustix::net::listen(&full_listener, 0).unwrap();
    let _first = TcpStream::connect(full_listener.local_addr().unwrap()).unwrap();
    let id = event_loop
        .sockets
        .connect(full_listener.local_addr().unwrap())
        .unwrap();
    assert_eq!(
        event_loop.sockets.connect(closed_port),
        Err(ConnectFailure::NoResources),
        "one stream is the limit"
    );
    let deadline = Instant::ZERO + Duration::from_secs(5);
    assert_eq!(event_loop.sockets.next_timeout(), Some(deadline));
    event_loop.sockets.handle_timeout(deadline);
    let failure = ConnectFailure::TimedOut;
    assert_eq!(
        event_loop.event(),
        DownstreamEvent::ConnectFailed { id, failure }
    );
    assert_eq!(event_loop.sockets.next_timeout(), None);
}

#[test]
fn names_are_looked_up() {
    let mut event_loop = EventLoop::new(Limits::default());
    let id = event_loop.sockets.resolve("127.0.0.1", 80).unwrap();
    let addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 80))];
    assert_eq!(
        event_loop.event(),
        DownstreamEvent::Resolved { id, addresses }
    );
    let id = event_loop.sockets.resolve("no\0name", 80).unwrap();
    let addresses = Vec::new();
    assert_eq!(
        event_loop.event(),
        DownstreamEvent::Resolved { id, addresses }
    );
}

#[test]
fn peeked_data_is_read_later() {
    let listener = listener();
    let mut event_loop = EventLoop::new(Limits::default());
    let (id, mut peer) = event_loop.connected(&listener);
    let mut buffer = [0; 64];
    assert_eq!(
        event_loop.sockets.peek(id, &mut buffer),
        Err(DownstreamError::WouldBlock)
    );
    peer.write_all(b"ping").unwrap();
    assert_eq!(event_loop.event(), DownstreamEvent::Readable { id });
    for _ in 0..2 {
        assert_eq!(event_loop.sockets.peek(id, &mut buffer), Ok(4));
        assert_eq!(&buffer[..4], b"ping");
    }
    assert_eq!(event_loop.sockets.peek(id, &mut buffer[..2]), Ok(2));
    assert_eq!(event_loop.read(id), Ok(b"ping".to_vec()));
    drop(peer);
    assert_eq!(event_loop.event(), DownstreamEvent::Readable { id });
    assert_eq!(event_loop.sockets.peek(id, &mut buffer), Ok(0), "the end");
    assert_eq!(event_loop.read(id), Ok(Vec::new()));
}

#[test]
fn an_accepted_connection_has_its_peer_and_the_dscp_of_its_syn() {
    for host in ["127.0.0.1", "::1"] {
        let mut event_loop = EventLoop::new(Limits::default());
        // Another process may have taken the free port meanwhile.
        let listening = (0..16).find_map(|_| {
            let any = SocketAddr::new(host.parse().unwrap(), 0);
            let free = TcpListener::bind(any).unwrap().local_addr().unwrap();
            event_loop.sockets.listen(free).is_ok().then_some(free)
        });
        let free = listening.expect("a free port");
        assert!(
            event_loop.sockets.listen(free).is_err(),
            "somebody listens there"
        );
        // Closing the intercepting listeners closes no other listener.
        event_loop.sockets.set_intercepting(false).unwrap();
        // The DSCP is the upper 6 bits: 0xb8 >> 2 = 46 and 0x21 >> 2 = 8.
        for (tos, expected) in [(0, 0), (0xb8, 46), (0x21, 8)] {
            let user = connect_with_tos(free, tos);
            let event = event_loop.event();
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
            event_loop.sockets.reset(id);
        }
    }
}

/// Connections that wait in the kernel's queue when interception ends are accepted, also more than a batch.
#[test]
fn waiting_connections_are_accepted_before_interception_ends() {
    let mut event_loop = EventLoop::new(Limits::default());
    let socket = listener();
    socket.set_nonblocking(true).unwrap();
    let addr = socket.local_addr().unwrap();
    let intercepts = (socket.into(), addr);
    let opened = event_loop
        .sockets
        .listener(intercepts, Arrival::Intercepted);
    event_loop.sockets.listeners.push(opened.unwrap());
    let mut user = TcpStream::connect(addr).unwrap();
    // More than a batch, and less than the listener's queue holds.
    let others: Vec<TcpStream> = (0..super::ACCEPT_BATCH)
        .map(|_| TcpStream::connect(addr).unwrap())
        .collect();
    event_loop.sockets.set_intercepting(false).unwrap();
    let DownstreamEvent::Accepted { id, arrival, .. } = event_loop.event() else {
        panic!("nobody was accepted");
    };
    for _ in &others {
        let event = event_loop.event();
        assert!(
            matches!(event, DownstreamEvent::Accepted { .. }),
            "{event:?}"
        );
    }
    assert_eq!(arrival, Arrival::Intercepted);
    event_loop.wait(Duration::from_secs(1));
    event_loop
        .sockets
        .write(id, &[IoSlice::new(b"here")])
        .unwrap();
    let mut got = [0; 4];
    user.read_exact(&mut got).unwrap();
    assert!(TcpStream::connect(addr).is_err(), "it is closed");
}

/// Connects with a traffic class of `tos`.
fn connect_with_tos(to: SocketAddr, tos: u8) -> TcpStream {
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
