//! Downstream sockets in memory: users' programs and content servers.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use braid_proxy::app::{
    Arrival, ConnectFailure, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};

/// Bytes that fit a socket whose program does not read.
pub const SOCKET_ROOM: usize = 64 << 10;

/// The behaviour of a destination.
#[derive(Clone)]
pub enum Content {
    /// Sends this at once, then closes its side if the flag is set.
    Sends(Vec<u8>, bool),
    /// Sends back what it receives, and closes after the other side has.
    Echoes,
    /// Reads everything, and answers with the number of bytes after the other side has closed.
    Counts,
    /// Fails to connect.
    Fails(ConnectFailure),
    /// Never answers.
    Silent,
}

/// A program's stream, as the kernel would have it.
#[derive(Default)]
pub struct Stream {
    /// Bytes that the program sends, the number read by the core, and whether the end follows.
    pub sends: Vec<u8>,
    pub sent: usize,
    pub ends: bool,
    /// Bytes that the program received.
    pub got: Vec<u8>,
    /// Most of these bytes that came at once.
    pub most: usize,
    /// The program does not read: the socket takes only [`SOCKET_ROOM`] further bytes.
    pub stalled: bool,
    pub unread: usize,
    /// The core closed its sending side.
    pub got_end: bool,
    /// The core closed or reset the stream.
    pub closed: bool,
    pub reset: bool,
    /// The program reset the stream.
    pub broken: bool,
    content: Option<Content>,
}

#[derive(Default)]
pub struct Downstream {
    pub next: u64,
    pub streams: BTreeMap<DownstreamId, Stream>,
    pub contents: BTreeMap<SocketAddr, Content>,
    pub names: BTreeMap<String, Vec<SocketAddr>>,
    /// Look-ups of names that end in `.silent`.
    pub unanswered: Vec<DownstreamId>,
    pub events: VecDeque<DownstreamEvent>,
    /// Destinations that the core connected to.
    pub attempts: Vec<SocketAddr>,
    /// The host has no route to IPv6 destinations.
    pub no_v6: bool,
}

impl Downstream {
    fn id(&mut self) -> DownstreamId {
        self.next += 1;
        DownstreamId(self.next)
    }

    /// Connects a user's program.
    pub fn open(
        &mut self,
        (arrival, destination): (Arrival, SocketAddr),
        sends: Vec<u8>,
        ends: bool,
    ) -> DownstreamId {
        let id = self.id();
        let stream = Stream {
            sends,
            ends,
            ..Stream::default()
        };
        self.streams.insert(id, stream);
        let peer = "10.0.0.10:40000".parse().unwrap();
        self.events.push_back(DownstreamEvent::Accepted {
            id,
            peer,
            destination,
            arrival,
            dscp: 0,
        });
        id
    }

    pub fn stream(&self, id: DownstreamId) -> &Stream {
        &self.streams[&id]
    }

    /// Sends more from the program.
    pub fn send(&mut self, id: DownstreamId, data: &[u8], ends: bool) {
        let stream = self.streams.get_mut(&id).unwrap();
        stream.sends.extend_from_slice(data);
        stream.ends |= ends;
        self.events.push_back(DownstreamEvent::Readable { id });
    }

    /// Resets the stream from the program.
    pub fn break_stream(&mut self, id: DownstreamId) {
        self.streams.get_mut(&id).unwrap().broken = true;
        self.events.push_back(DownstreamEvent::Broken { id });
    }

    /// Lets the resolver give up the oldest unanswered look-up.
    pub fn give_up_lookup(&mut self) {
        let id = self.unanswered.remove(0);
        let addresses = Vec::new();
        let event = DownstreamEvent::Resolved { id, addresses };
        self.events.push_back(event);
    }

    /// Lets the program read again.
    pub fn resume(&mut self, id: DownstreamId) {
        let stream = self.streams.get_mut(&id).unwrap();
        stream.stalled = false;
        stream.unread = 0;
        self.events.push_back(DownstreamEvent::Writable { id });
    }
}

impl DownstreamSockets for Downstream {
    fn connect(&mut self, destination: SocketAddr) -> Result<DownstreamId, ConnectFailure> {
        self.attempts.push(destination);
        if self.no_v6 && destination.is_ipv6() {
            return Err(ConnectFailure::FamilyUnreachable);
        }
        let content = self.contents.get(&destination).cloned();
        let id = self.id();
        let mut stream = Stream::default();
        match content {
            None => return Err(ConnectFailure::NetworkUnreachable),
            Some(Content::Fails(failure)) => {
                self.events
                    .push_back(DownstreamEvent::ConnectFailed { id, failure });
                return Ok(id);
            }
            Some(Content::Silent) => {}
            Some(content) => {
                if let Content::Sends(data, ends) = &content {
                    stream.sends = data.clone();
                    stream.ends = *ends;
                }
                stream.content = Some(content);
                self.events.push_back(DownstreamEvent::Connected { id });
            }
        }
        self.streams.insert(id, stream);
        Ok(id)
    }

    fn resolve(&mut self, name: &str, port: u16) -> Option<DownstreamId> {
        let id = self.id();
        if name.ends_with(".silent") {
            self.unanswered.push(id);
            return Some(id);
        }
        let mut addresses = self.names.get(name).cloned().unwrap_or_default();
        for addr in &mut addresses {
            addr.set_port(port);
        }
        self.events
            .push_back(DownstreamEvent::Resolved { id, addresses });
        Some(id)
    }

    fn read(
        &mut self,
        id: DownstreamId,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, DownstreamError> {
        let stream = self.streams.get_mut(&id).expect("a stream that is open");
        assert!(!stream.closed, "reads from a closed stream");
        if stream.broken {
            return Err(DownstreamError::Broken);
        }
        if stream.sent == stream.sends.len() {
            return if stream.ends {
                Ok(0)
            } else {
                Err(DownstreamError::WouldBlock)
            };
        }
        let mut n = 0;
        for buf in bufs {
            let rest = &stream.sends[stream.sent..];
            // An odd size, so that reads end anywhere.
            let len = buf.len().min(rest.len()).min(10_007 - n);
            buf[..len].copy_from_slice(&rest[..len]);
            stream.sent += len;
            n += len;
        }
        Ok(n)
    }

    fn peek(&mut self, id: DownstreamId, buf: &mut [u8]) -> Result<usize, DownstreamError> {
        let sent = self.stream(id).sent;
        let read = self.read(id, &mut [IoSliceMut::new(buf)])?;
        self.streams.get_mut(&id).unwrap().sent = sent;
        Ok(read)
    }

    fn write(&mut self, id: DownstreamId, bufs: &[IoSlice<'_>]) -> Result<usize, DownstreamError> {
        let stream = self.streams.get_mut(&id).expect("a stream that is open");
        assert!(!stream.closed && !stream.got_end, "writes after the end");
        if stream.broken {
            return Err(DownstreamError::Broken);
        }
        let mut room = match stream.stalled {
            true => SOCKET_ROOM - stream.unread,
            false => 20_011,
        };
        if room == 0 {
            return Err(DownstreamError::WouldBlock);
        }
        let mut n = 0;
        for buf in bufs {
            let len = buf.len().min(room);
            stream.got.extend_from_slice(&buf[..len]);
            if matches!(stream.content, Some(Content::Echoes)) {
                stream.sends.extend_from_slice(&buf[..len]);
            }
            room -= len;
            n += len;
        }
        stream.most = stream.most.max(n);
        if stream.stalled {
            stream.unread += n;
        }
        if matches!(stream.content, Some(Content::Echoes)) {
            self.events.push_back(DownstreamEvent::Readable { id });
        }
        Ok(n)
    }

    fn shutdown(&mut self, id: DownstreamId) {
        let stream = self.streams.get_mut(&id).expect("a stream that is open");
        stream.got_end = true;
        match stream.content {
            Some(Content::Counts) => {
                let answer = stream.got.len().to_string();
                self.send(id, answer.as_bytes(), true);
            }
            Some(Content::Echoes) => self.send(id, &[], true),
            _ => {}
        }
    }

    fn close(&mut self, id: DownstreamId) {
        let stream = self.streams.get_mut(&id).expect("a stream that is open");
        assert!(!stream.closed, "closes twice");
        stream.closed = true;
    }

    fn reset(&mut self, id: DownstreamId) {
        let stream = self.streams.get_mut(&id).expect("a stream that is open");
        assert!(!stream.closed, "closes twice");
        stream.closed = true;
        stream.reset = true;
    }
}
