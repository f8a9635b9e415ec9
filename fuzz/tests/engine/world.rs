//! Two engines, the packets between them, and what the applications on both wrote and read.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bolero::TypeGenerator;
use braid_engine::buffer::PacketBuffer;
use braid_engine::strategy::Strategy;
use braid_engine::{
    ApiError, Class, CloseReason, Config, ConnId, ConnectOptions, Ecn, Event, PathConfig, PathId,
    RxMeta, Stack, cc,
};
use braid_wire::{Instant, Rng};

use crate::forge::{Packet, parse, without};

const PORT: u16 = 443;
/// Most packets under way to one end; more are dropped.
const MAX_UNDER_WAY: usize = 512;
/// Packets kept to forge others from, those that open connections among them.
const MAX_SEEN: usize = 64;
/// Far more than the windows take at the least segment size.
const MAX_DRAINED: usize = 20_000;
/// Timers that lead to nothing, one after another.
const MAX_IDLE_TIMERS: usize = 200;
/// Streams of a connection; the number of a stream is in each of its bytes.
const STREAMS: usize = 4;
/// A stream counts its bytes by a prime, so that no block that is missing goes unnoticed.
const PERIOD: u64 = 61;

/// The settings of one end.
#[derive(Debug, Clone, TypeGenerator)]
pub struct EndSetup {
    #[generator(1..=3)]
    paths: u8,
    backup: u8,
    strategy: u8,
    congestion: u8,
    /// Powers of two from 4 KiB on.
    #[generator(0..10)]
    buffer: u8,
    #[generator(0..12)]
    memory: u8,
    super_segments: bool,
    #[generator(1..=8)]
    max_subflows: u8,
    /// Without any, every SYN is answered by a cookie.
    #[generator(0..=4)]
    max_half_open: u8,
    checksum: bool,
    fast_open: bool,
    deny_join_initial: bool,
    /// Paths that peers are told of.
    announced: u8,
    #[generator(0..3)]
    ecn: u8,
    /// Timestamps (1) and SACK (2) that it does without, if these are few enough.
    #[generator(0..12)]
    lacks: u8,
}

impl EndSetup {
    fn config(&self) -> Config {
        Config {
            max_transmit: if self.super_segments { 65_521 } else { 1500 },
            checksum_offload: false,
            congestion: cc::TABLE[usize::from(self.congestion) % cc::TABLE.len()],
            send_buffer: 4096 << self.buffer,
            recv_buffer: 4096 << self.buffer,
            memory: 8192 << self.memory,
            max_connections: 8,
            max_half_open: self.max_half_open.into(),
            checksum: self.checksum,
            fast_open: self.fast_open,
            deny_join_initial: self.deny_join_initial,
            max_subflows: usize::from(self.max_subflows),
            user_timeout: Duration::from_secs(30),
            ecn: [Ecn::Off, Ecn::Answer, Ecn::Ask][usize::from(self.ecn) % 3],
            ..Config::default()
        }
    }
}

/// The strategy with this number.
pub fn strategy(n: u8) -> Box<dyn Strategy> {
    let names: Vec<_> = braid_strategy::names().collect();
    let name = names[usize::from(n) % names.len()];
    braid_strategy::by_name(name).expect("a strategy of the list")
}

/// A stack and what is under way to it.
pub struct End {
    pub stack: Stack,
    device: PacketBuffer,
    /// Connections, each with its place in the books.
    pub conns: Vec<(ConnId, usize)>,
    pub inbox: VecDeque<Packet>,
    /// Some of the packets that were sent here.
    pub seen: Vec<Packet>,
    received: usize,
    /// Its SYNs have neither timestamps nor word of SACK, or lack one of them.
    lacks: [bool; 2],
    /// The end took a path out of use: a peer that accepted a connection there cannot open another.
    left: bool,
}

/// Bytes by stream.
type Counts = [u64; STREAMS];

/// One direction of a connection.
#[derive(Default)]
struct Books {
    written: Counts,
    read: Counts,
}

/// Both engines; each is as much the one tested as the other.
pub struct World {
    pub now: Instant,
    pub ends: [End; 2],
    v6: bool,
    /// The books of every connection, by the end that writes.
    books: Vec<[Books; 2]>,
    /// Whose SYN came from there.
    opened: BTreeMap<SocketAddr, usize>,
    /// No packet was changed or forged: what is written must arrive.
    pub honest: bool,
}

impl World {
    pub fn new(setup: &[EndSetup; 2], v6: bool, honest: bool) -> World {
        let end = |at: usize| {
            let setup = &setup[at];
            let accepts = setup.strategy;
            let rng = Rng::for_component(1, at as u64);
            let factory = Box::new(move || strategy(accepts));
            let mut stack = Stack::new(setup.config(), rng, factory);
            for path in 0..setup.paths {
                let (v4, v6) = addresses(at, path);
                let added = stack.add_path(PathConfig {
                    v6: Some(v6),
                    backup: setup.backup >> path & 1 != 0,
                    ..PathConfig::v4(v4)
                });
                added.expect("fewer paths than a stack takes");
                if setup.announced >> path & 1 != 0 {
                    for addr in [IpAddr::from(v4), IpAddr::from(v6)] {
                        let told = stack.announce(PathId(path), SocketAddr::new(addr, PORT));
                        told.expect("an address of the path");
                    }
                }
            }
            let listening = stack.listen(server(at, v6));
            listening.expect("an address of the first path");
            End {
                stack,
                device: PacketBuffer::new(),
                conns: Vec::new(),
                inbox: VecDeque::new(),
                seen: Vec::new(),
                received: 0,
                lacks: [1, 2].map(|bit| setup.lacks < 4 && setup.lacks & bit != 0),
                left: false,
            }
        };
        World {
            now: Instant::ZERO,
            ends: [end(0), end(1)],
            v6,
            books: Vec::new(),
            opened: BTreeMap::new(),
            honest,
        }
    }

    /// Opens a connection to the other end.
    pub fn connect(&mut self, at: usize, change: impl FnOnce(&mut ConnectOptions)) {
        let mut options = ConnectOptions::new(server(1 - at, self.v6), strategy(0));
        options.remote_alt = Some(server(1 - at, !self.v6));
        change(&mut options);
        let end = &mut self.ends[at];
        if let Ok(conn) = end.stack.connect(self.now, options) {
            end.conns.push((conn, self.books.len()));
            self.books.push(Default::default());
        }
        self.drain();
    }

    pub fn write(&mut self, at: usize, (conn, book): (ConnId, usize), class: Class, max: usize) {
        let stream = class.stream as usize;
        let written = &mut self.books[book][at].written[stream];
        let stack = &mut self.ends[at].stack;
        let result = stack.write_class(self.now, conn, class, max, |slices| {
            let room = slices.iter_mut().flat_map(|s| s.iter_mut());
            let filled = room.take(max).map(|byte| {
                *byte = (stream as u8) << 6 | (*written % PERIOD) as u8;
                *written += 1;
            });
            Ok::<_, ApiError>(filled.count())
        });
        assert!(result.is_ok_and(|n| n <= max) || result == Err(ApiError::SendClosed));
        self.drain();
    }

    /// Reads up to `max` bytes and holds them against what was written.
    pub fn read(&mut self, at: usize, (conn, book): (ConnId, usize), max: usize) {
        let Books { written, read } = &mut self.books[book][1 - at];
        let end = &mut self.ends[at];
        let result = end.stack.read_with(self.now, conn, |slices| {
            let bytes = slices.iter().flat_map(|s| s.iter());
            let checked = bytes.take(max).map(|byte| {
                let stream = usize::from(byte >> 6);
                let right = u64::from(byte & 63) == read[stream] % PERIOD;
                read[stream] += 1;
                assert!(!self.honest || right && read[stream] <= written[stream]);
            });
            Ok::<_, ApiError>(checked.count())
        });
        assert!(result.is_ok(), "{result:?}");
        if end.stack.read_finished(conn) {
            assert!(!self.honest || read == written, "{read:?} of {written:?}");
        }
        self.drain();
    }

    /// Both applications read all there is.
    pub fn read_all(&mut self) {
        for at in 0..2 {
            for conn in self.ends[at].conns.clone() {
                // It may have ended with the last.
                while self.ends[at].stack.readable(conn.0) > 0 {
                    self.read(at, conn, usize::MAX);
                }
                if self.ends[at].conns.contains(&conn) {
                    self.read(at, conn, 1);
                }
            }
        }
    }

    pub fn leave_path(&mut self, at: usize, path: PathId) {
        let end = &mut self.ends[at];
        end.stack.leave_path(self.now, path);
        end.left = true;
    }

    pub fn receive(&mut self, at: usize, packet: &Packet) {
        let meta = RxMeta {
            checksum_ok: false,
            gso_size: packet.gso_size,
        };
        let end = &mut self.ends[at];
        end.device.fill(&packet.bytes);
        end.stack.receive_from(self.now, &mut end.device, meta);
        self.drain();
    }

    /// Lets time go on, and all timers run out on time.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut idle = 0;
        while let Some(next) = self.next_timeout().filter(|next| *next <= until) {
            assert!(next > self.now, "a timer that stands still");
            self.now = next;
            for end in &mut self.ends {
                end.stack.handle_timeout(next);
            }
            idle = if self.drain() == 0 { idle + 1 } else { 0 };
            assert!(idle < MAX_IDLE_TIMERS, "timers for nothing");
        }
        self.now = until;
    }

    fn next_timeout(&self) -> Option<Instant> {
        let timers = self.ends.iter().filter_map(|e| e.stack.next_timeout());
        timers.min()
    }

    /// All packets arrive after `delay`, in order.
    pub fn carry(&mut self, delay: Duration) {
        let packets = [0, 1].map(|at| std::mem::take(&mut self.ends[at].inbox));
        self.pass(delay);
        for (at, packets) in packets.into_iter().enumerate() {
            packets.iter().for_each(|packet| self.receive(at, packet));
        }
    }

    /// Takes all events and packets out of both stacks; returns how many.
    pub fn drain(&mut self) -> usize {
        let mut drained = 0;
        for at in 0..2 {
            // Where there is nothing to send, the stack may have found that a connection is over.
            let mut sends = true;
            loop {
                let before = drained;
                while let Some(event) = self.ends[at].stack.poll_event() {
                    self.on_event(at, event);
                    drained += 1;
                }
                if !sends && drained == before {
                    break;
                }
                sends = self.transmit(at);
                drained += usize::from(sends);
                assert!(drained < MAX_DRAINED, "no end of packets");
            }
        }
        drained
    }

    fn on_event(&mut self, at: usize, event: Event) {
        let conns = &mut self.ends[at].conns;
        match event {
            Event::Accepted { conn, remote, .. } => {
                let book = self.opened.get(&remote).copied();
                conns.push((conn, book.unwrap_or(self.books.len())));
                if book.is_none() {
                    assert!(!self.honest, "nobody opened it");
                    self.books.push(Default::default());
                }
            }
            Event::Closed { conn, reason } => {
                let Some(i) = conns.iter().position(|(id, _)| *id == conn) else {
                    return;
                };
                let (_, book) = conns.swap_remove(i);
                let Books { written, read } = &self.books[book][1 - at];
                if reason == CloseReason::Finished {
                    assert!(!self.honest || read == written, "{read:?} of {written:?}");
                }
            }
            _ => {}
        }
    }

    /// Moves a packet to the other end's inbox.
    fn transmit(&mut self, at: usize) -> bool {
        let [mut from, mut to] = self.ends.each_mut();
        if at == 1 {
            std::mem::swap(&mut from, &mut to);
        }
        let Some(t) = from.stack.poll_transmit(self.now) else {
            return false;
        };
        let packet = Packet {
            bytes: [t.header, &t.payload.concat()].concat(),
            gso_size: t.gso_size,
        };
        let packet = without(packet, from.lacks[0], from.lacks[1]);
        let conn = t.info.map(|info| info.conn);
        if let Some((_, book)) = from.conns.iter().find(|(id, _)| Some(*id) == conn)
            && let Some((ip, tcp, _)) = parse(&packet.bytes)
        {
            let source = SocketAddr::new(ip.src, tcp.src_port);
            self.opened.insert(source, *book);
        }
        // The first ones are kept, and of the others the last.
        to.received += 1;
        if to.seen.len() < MAX_SEEN {
            to.seen.push(packet.clone());
        } else {
            to.seen[MAX_SEEN / 4 + to.received % (MAX_SEEN * 3 / 4)] = packet.clone();
        }
        if to.inbox.len() < MAX_UNDER_WAY {
            to.inbox.push_back(packet);
        }
        true
    }

    /// A good network brings everything through, and in the end nothing is left.
    pub fn finish(&mut self) {
        for at in 0..2 {
            for path in 0..3 {
                let stack = &mut self.ends[at].stack;
                stack.set_path_up(self.now, PathId(path), true);
            }
        }
        let end = self.now + Duration::from_secs(120);
        while self.now < end {
            self.drain();
            self.carry(Duration::from_millis(10));
            self.read_all();
            if self.ends.iter().all(|e| e.inbox.is_empty()) {
                let next = self.next_timeout().map_or(end, |at| at.min(end));
                self.pass(next.saturating_since(self.now));
            }
        }
        let [a, b] = &self.ends;
        let both = |book| b.conns.iter().any(|(_, other)| *other == book);
        let all_came = self.honest && !a.left && !b.left;
        for (_, book) in a.conns.iter().filter(|(_, book)| both(*book)) {
            for Books { written, read } in &self.books[*book] {
                assert!(!all_came || read == written, "{read:?} of {written:?}");
            }
        }
        for at in 0..2 {
            for (conn, _) in self.ends[at].conns.clone() {
                self.ends[at].stack.abort(self.now, conn);
            }
        }
        self.drain();
        self.pass(Duration::from_secs(600));
        for End { stack, conns, .. } in &self.ends {
            assert!(conns.is_empty(), "{conns:?}");
            assert_eq!((stack.connections(), stack.buffered()), (0, 0));
        }
    }
}

fn addresses(end: usize, path: u8) -> (Ipv4Addr, Ipv6Addr) {
    let end = end as u8 + 1;
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, path.into(), end.into());
    (Ipv4Addr::new(10, 0, path, end), v6)
}

/// Returns the address at which an end listens.
fn server(end: usize, v6: bool) -> SocketAddr {
    let (four, six) = addresses(end, 0);
    let ip: IpAddr = if v6 { six.into() } else { four.into() };
    SocketAddr::new(ip, PORT)
}
