//! One end of a session.

use core::net::SocketAddr;
use std::collections::VecDeque;

use braid_engine::{PathId, Urgency};
use braid_wire::{Instant, Rng};

use crate::config::{Config, PathConfig, PathState, Role};
use crate::frame::{Frame, Frames, Label};
use crate::header::{self, Header, SessionId};
use crate::replay::ReplayWindow;
use crate::seal::{Keys, Secrets, TAG_LEN};
use crate::{DatagramError, SendError};

/// A datagram to send, appended to the buffer of [`Tunnel::poll_transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The path, which on the box names the link.
    pub path: PathId,
    /// The destination.
    pub remote: SocketAddr,
    /// The length of the datagram, in bytes.
    pub len: usize,
}

/// Counters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Inner packets accepted by [`Tunnel::send`].
    pub packets_sent: u64,
    /// Inner packets refused because the queue was full or its delay stood.
    pub packets_dropped: u64,
    /// Inner packets handed out by [`Tunnel::poll_delivery`].
    pub packets_delivered: u64,
    /// Inner packets that were given up while later ones of their flow waited.
    pub packets_missing: u64,
    /// Inner packets delivered after later ones of their flow.
    pub packets_reordered: u64,
    /// Inner packets received more than once and dropped.
    pub packets_duplicate: u64,
    /// Packets sent once more because the peer asked for them or their path died.
    pub packets_resent: u64,
    /// Packets that the peer was asked to send once more.
    pub packets_rerequested: u64,
    /// Datagrams that were dropped because no key opened them.
    pub datagrams_forged: u64,
    /// Datagrams that were dropped because they were received before.
    pub datagrams_replayed: u64,
}

/// Counters and estimates of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// The path.
    pub path: PathId,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes of datagrams sent.
    pub bytes_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Bytes of datagrams received.
    pub bytes_received: u64,
}

/// A path with the state of both directions.
#[derive(Debug)]
struct Path {
    id: PathId,
    remote: SocketAddr,
    next_number: u64,
    replay: ReplayWindow,
    bytes_sent: u64,
    bytes_received: u64,
    datagrams_received: u64,
}

/// One end of a session with one peer.
#[derive(Debug)]
pub struct Tunnel {
    config: Config,
    session: SessionId,
    role: Role,
    keys: Keys,
    paths: Vec<Path>,
    queue: VecDeque<Vec<u8>>,
    sequence: u64,
    deliveries: VecDeque<Vec<u8>>,
    delivered: Vec<u8>,
    stats: Stats,
}

impl Tunnel {
    /// Creates one end of the session `session`. `rng` draws the data of path challenges.
    pub fn new(config: Config, role: Role, session: SessionId, rng: Rng) -> Self {
        let _ = rng;
        let keys = Keys::new(role, config.suite, config.old_epoch_lifetime);
        Tunnel {
            config,
            session,
            role,
            keys,
            paths: Vec::new(),
            queue: VecDeque::new(),
            sequence: 0,
            deliveries: VecDeque::new(),
            delivered: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Installs the keys of an epoch. Both ends install the same secrets under the same number; the server does so
    /// first. Returns false if the epoch is not higher than all before.
    pub fn install_keys(&mut self, now: Instant, epoch: u64, secrets: &Secrets) -> bool {
        self.keys.expire(now);
        self.keys.install(epoch, secrets)
    }

    /// Adds a path. The server needs no call: it learns paths from the box's datagrams, with the MTU of
    /// [`Config`]. Returns false if the path exists or there are too many.
    pub fn add_path(&mut self, _now: Instant, path: PathId, config: PathConfig) -> bool {
        if self.paths.len() >= self.config.max_paths || self.paths.iter().any(|p| p.id == path) {
            return false;
        }
        self.paths.push(Path {
            id: path,
            remote: config.remote,
            next_number: 0,
            replay: ReplayWindow::default(),
            bytes_sent: 0,
            bytes_received: 0,
            datagrams_received: 0,
        });
        true
    }

    /// Removes a path. Its number must not be used again in this session's epoch.
    pub fn remove_path(&mut self, _now: Instant, path: PathId) {
        self.paths.retain(|p| p.id != path);
    }

    /// Sets the administrative state of a path.
    pub fn set_path_state(&mut self, _now: Instant, _path: PathId, _state: PathState) {}

    /// Takes an inner packet.
    ///
    /// # Errors
    ///
    /// A packet that is refused is dropped, as by a full queue of a router.
    pub fn send(
        &mut self,
        _now: Instant,
        _urgency: Urgency,
        packet: &[u8],
    ) -> Result<(), SendError> {
        self.queue.push_back(packet.to_vec());
        self.stats.packets_sent += 1;
        Ok(())
    }

    /// Takes a datagram that came from `remote`, and opens it in place. Bytes that do not open change nothing.
    ///
    /// # Errors
    ///
    /// Names the reason for which the datagram was dropped.
    pub fn receive(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<(), DatagramError> {
        let header = Header::parse(datagram)?;
        if header.session != self.session {
            return Err(DatagramError::Malformed);
        }
        if self.role == Role::Server {
            let config = PathConfig { remote, mtu: 1500 };
            self.add_path(now, header.path, config);
        }
        let path = self
            .paths
            .iter_mut()
            .find(|p| p.id == header.path)
            .ok_or(DatagramError::TooManyPaths)?;
        let number = header::expand(header.number, path.replay.next());
        if !path.replay.is_fresh(number) {
            return Err(DatagramError::Replayed);
        }
        let len = datagram.len() as u64;
        let frames = self.keys.open(now, &header, number, datagram)?;
        path.replay.insert(number);
        path.remote = remote;
        path.bytes_received += len;
        path.datagrams_received += 1;
        for frame in Frames::new(frames) {
            if let Frame::Packet(_, packet) = frame? {
                self.deliveries.push_back(packet.to_vec());
            }
        }
        Ok(())
    }

    /// Appends the next datagram that may be sent at `now` to `buf`. Returns `None` if there is none.
    pub fn poll_transmit(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        let path = self.paths.first_mut()?;
        let packet = self.queue.pop_front()?;
        let start = buf.len();
        buf.resize(start + Header::LEN, 0);
        let label = Label {
            flow: 0,
            sequence: header::truncate(self.sequence),
            sole: true,
            again: false,
        };
        Frame::Packet(label, &packet).emit(true, buf);
        self.sequence += 1;
        buf.resize(buf.len() + TAG_LEN, 0);
        let header = Header {
            phase: 0,
            session: self.session,
            path: path.id,
            number: header::truncate(path.next_number),
        };
        if !self.keys.seal(header, path.next_number, &mut buf[start..]) {
            buf.truncate(start);
            return None;
        }
        path.next_number += 1;
        let len = buf.len() - start;
        path.bytes_sent += len as u64;
        Some(Transmit {
            path: path.id,
            remote: path.remote,
            len,
        })
    }

    /// Returns the next inner packet from the peer.
    pub fn poll_delivery(&mut self) -> Option<&[u8]> {
        self.delivered = self.deliveries.pop_front()?;
        self.stats.packets_delivered += 1;
        Some(&self.delivered)
    }

    /// Returns the time at which to call [`Tunnel::handle_timeout`], and [`Tunnel::poll_transmit`] after it.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.keys.next_timeout()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.keys.expire(now);
    }

    /// Returns the counters of the session.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns counters and estimates of each path, in the order in which they were added.
    pub fn path_stats(&self) -> impl Iterator<Item = PathStats> {
        self.paths.iter().map(|p| PathStats {
            path: p.id,
            datagrams_sent: p.next_number,
            bytes_sent: p.bytes_sent,
            datagrams_received: p.datagrams_received,
            bytes_received: p.bytes_received,
        })
    }

    /// Asserts what always holds. Debug builds check it after every call.
    pub fn invariants(&self) {
        assert!(self.paths.len() <= self.config.max_paths);
    }
}
