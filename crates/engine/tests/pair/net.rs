//! The world of the pair tests: an opener with one address per link, a listener with one address,
//! super-segments cut into packets as a device would.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{
    CloseReason, Config, ConnId, ConnectOptions, Event, PathConfig, Protocol, RxMeta, Stack,
    TxChecksum,
};
use braid_links::{Link, Settings};
use braid_wire::{Instant, Rng, Seq32, ip, tcp};

use crate::oracle::Oracle;
use crate::strategy::strategy;

pub const PORT: u16 = 4433;
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);

pub fn client_addr(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, n as u8, 2)
}

/// What a middlebox does to a packet: `None` drops it.
pub type Middlebox = Box<dyn FnMut(Instant, Vec<u8>) -> Option<Vec<u8>>>;

/// What happens to packets besides what links do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chaos {
    /// Share of packets that come twice.
    pub duplicate: f64,
    /// Share of packets that take a detour and are overtaken.
    pub detour: f64,
    /// Longest detour.
    pub longest: Duration,
}

/// One host with the streams its connections carry.
pub struct Host {
    pub stack: Stack,
    pub events: Vec<Event>,
    pub apps: Vec<App>,
    /// What accepted connections do.
    pub accept: Option<App>,
}

/// Sends `to_send` bytes of a pattern and checks what it receives against the same pattern.
#[derive(Clone)]
pub struct App {
    pub conn: Option<ConnId>,
    pub to_send: u64,
    pub sent: u64,
    pub received: u64,
    pub eof: bool,
    pub shut: bool,
    /// Stops reading while set.
    pub paused: bool,
    /// Whether what is received is held against the pattern.
    pub checked: bool,
    /// An event says that there is something to do.
    due: bool,
}

impl App {
    pub fn new(to_send: u64) -> Self {
        App {
            conn: None,
            to_send,
            sent: 0,
            received: 0,
            eof: false,
            shut: false,
            paused: false,
            checked: true,
            due: true,
        }
    }

    /// Reads on after a pause.
    pub fn resume(&mut self) {
        self.paused = false;
        self.due = true;
    }

    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        let Some(conn) = self.conn.filter(|_| self.due) else {
            return;
        };
        self.due = false;
        while self.sent < self.to_send {
            let from = self.sent;
            let max = (self.to_send - from) as usize;
            let n = stack.write_with(now, conn, max, |slices| {
                let mut at = from;
                for slice in slices.iter_mut() {
                    for byte in slice.iter_mut() {
                        *byte = pattern(at);
                        at += 1;
                    }
                }
                Ok::<_, braid_engine::ApiError>((at - from) as usize)
            });
            match n {
                Ok(n) if n > 0 => self.sent += n as u64,
                _ => break,
            }
        }
        if self.sent == self.to_send && !self.shut {
            self.shut = stack.shutdown(now, conn).is_ok();
        }
        while !self.paused && stack.readable(conn) > 0 {
            let at = self.received;
            let n = stack
                .read_with(now, conn, |slices| {
                    let mut at = at;
                    for byte in slices.iter().flat_map(|s| s.iter()) {
                        assert!(!self.checked || *byte == pattern(at), "byte {at} differs");
                        at += 1;
                    }
                    Ok::<_, braid_engine::ApiError>((at - self.received) as usize)
                })
                .unwrap();
            self.received += n as u64;
        }
        self.eof |= stack.read_finished(conn);
    }
}

/// A byte that depends on its place, so that no shift goes unnoticed.
pub fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 17)) as u8
}

impl core::fmt::Debug for Net {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for host in [&self.client, &self.server] {
            writeln!(
                f,
                "next timeout {:?}, {:?}",
                host.stack.next_timeout(),
                host.stack
            )?;
            for app in host.apps.iter().filter_map(|a| a.conn) {
                writeln!(f, "{:#?}", host.stack.subflows(app))?;
            }
            writeln!(f, "{:?}", host.events)?;
        }
        Ok(())
    }
}

pub struct Net {
    pub now: Instant,
    pub client: Host,
    pub server: Host,
    pub up: Vec<Link<Vec<u8>>>,
    pub down: Vec<Link<Vec<u8>>>,
    pub middlebox: Option<Middlebox>,
    pub chaos: Chaos,
    /// Packets on a detour: when they arrive, and whether at the server.
    detours: Vec<(Instant, bool, Vec<u8>)>,
    /// What both hosts sent is held against the rules, from the client and from the server.
    pub oracles: [Oracle; 2],
    pub rng: Rng,
    pub config: Config,
}

impl Net {
    pub fn new(links: &[Settings], config: Config, seed: u64) -> Self {
        let host = |id| Host {
            stack: Stack::new(
                config.clone(),
                Rng::for_component(seed, id),
                Box::new(strategy),
            ),
            events: Vec::new(),
            apps: Vec::new(),
            accept: None,
        };
        let mut net = Net {
            now: Instant::from_millis(1000),
            client: host(1),
            server: host(2),
            up: links.iter().map(|s| Link::new(s.clone())).collect(),
            down: links.iter().map(|s| Link::new(s.clone())).collect(),
            middlebox: None,
            chaos: Chaos::default(),
            detours: Vec::new(),
            oracles: [Oracle::default(), Oracle::default()],
            rng: Rng::for_component(seed, 3),
            config,
        };
        for n in 0..links.len() {
            net.client.stack.add_path(path(client_addr(n)));
        }
        net.server.stack.add_path(path(SERVER));
        net.server.stack.listen(server_addr()).unwrap();
        net
    }

    /// Opens a connection that uploads `up` bytes and downloads `down` bytes.
    pub fn transfer(&mut self, up: u64, down: u64, protocol: Protocol) -> ConnId {
        let conn = self
            .client
            .stack
            .connect(
                self.now,
                ConnectOptions {
                    protocol,
                    ..ConnectOptions::new(server_addr(), strategy())
                },
            )
            .unwrap();
        let mut app = App::new(up);
        app.conn = Some(conn);
        self.client.apps.push(app);
        self.server.accept = Some(App::new(down));
        conn
    }

    /// Runs until `done` or for `limit`; returns whether `done`.
    pub fn run(&mut self, limit: Duration, done: impl Fn(&Net) -> bool) -> bool {
        let end = self.now + limit;
        let (mut last, mut rounds) = (self.now, 0);
        loop {
            self.step();
            rounds = if self.now > last { 0 } else { rounds + 1 };
            last = self.now;
            assert!(
                rounds < 1000,
                "time stands still at {}: {self:#?}",
                self.now
            );
            if done(self) {
                return true;
            }
            let Some(next) = self.next_event() else {
                return done(self);
            };
            if next > end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
        }
    }

    /// Until both ends have reported the end of every connection.
    pub fn run_to_end(&mut self, limit: Duration) -> bool {
        self.run(limit, |net| {
            net.client.all_closed() && net.server.all_closed()
        })
    }

    fn next_event(&self) -> Option<Instant> {
        let links = self
            .up
            .iter()
            .chain(&self.down)
            .filter_map(Link::next_event);
        let stacks = [&self.client.stack, &self.server.stack]
            .into_iter()
            .filter_map(Stack::next_timeout);
        let detours = self.detours.iter().map(|(at, ..)| *at);
        links.chain(stacks).chain(detours).min()
    }

    fn step(&mut self) {
        for i in 0..self.up.len() {
            while let Some(d) = self.up[i].poll_deliver(self.now) {
                self.arrive(d.packet, true);
            }
            while let Some(d) = self.down[i].poll_deliver(self.now) {
                self.arrive(d.packet, false);
            }
        }
        while let Some(i) = self.detours.iter().position(|(at, ..)| *at <= self.now) {
            let (_, up, packet) = self.detours.remove(i);
            self.deliver(&packet, up);
        }
        self.client.stack.handle_timeout(self.now);
        self.server.stack.handle_timeout(self.now);
        for _ in 0..3 {
            self.client.run_apps(self.now);
            self.server.run_apps(self.now);
        }
        let [up, down] = &mut self.oracles;
        let (up, down) = (
            self.client.drain(self.now, up),
            self.server.drain(self.now, down),
        );
        up.into_iter().for_each(|p| self.send(p, true));
        down.into_iter().for_each(|p| self.send(p, false));
        for host in [&self.client, &self.server] {
            let next = host.stack.next_timeout();
            assert!(next.is_none_or(|at| at > self.now), "a timer in the past");
        }
    }

    /// A packet came out of its link.
    fn arrive(&mut self, packet: Vec<u8>, up: bool) {
        let chaos = self.chaos;
        if self.rng.chance(chaos.duplicate) {
            let again = self.now + chaos.longest.mul_f64(self.rng.unit());
            self.detours.push((again, up, packet.clone()));
        }
        if self.rng.chance(chaos.detour) {
            let late = self.now + chaos.longest.mul_f64(self.rng.unit());
            self.detours.push((late, up, packet));
        } else {
            self.deliver(&packet, up);
        }
    }

    fn deliver(&mut self, packet: &[u8], up: bool) {
        let (host, oracle) = match up {
            true => (&mut self.server, &mut self.oracles[1]),
            false => (&mut self.client, &mut self.oracles[0]),
        };
        oracle.on_received(packet);
        host.stack.receive(self.now, packet, RxMeta::default());
    }

    fn send(&mut self, packet: Vec<u8>, up: bool) {
        let (ip, _) = ip::Repr::parse(&packet).unwrap();
        let IpAddr::V4(client) = (if up { ip.src } else { ip.dst }) else {
            panic!("the pair tests speak IPv4");
        };
        let packet = match &mut self.middlebox {
            Some(alter) => match alter(self.now, packet) {
                Some(packet) => packet,
                None => return,
            },
            None => packet,
        };
        let n = usize::from(client.octets()[2]);
        let links = if up { &mut self.up } else { &mut self.down };
        // A packet of a forged connection may name a link that is not there.
        let Some(link) = links.get_mut(n) else { return };
        let len = packet.len() as u32;
        link.enqueue(self.now, packet, len, &mut self.rng);
    }
}

impl Host {
    /// How its connections ended, in order.
    pub fn closed_with(&self) -> Vec<CloseReason> {
        let closed = self.events.iter().filter_map(|e| match e {
            Event::Closed { reason, .. } => Some(*reason),
            _ => None,
        });
        closed.collect()
    }

    fn run_apps(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            if let (Event::Accepted { conn, .. }, Some(app)) = (event, &self.accept) {
                let mut app = app.clone();
                app.conn = Some(conn);
                self.apps.push(app);
            }
            self.events.push(event);
            if let Event::Readable { conn } | Event::Writable { conn } = event {
                let app = self.apps.iter_mut().find(|a| a.conn == Some(conn));
                app.into_iter().for_each(|a| a.due = true);
            }
        }
        for app in &mut self.apps {
            app.pump(now, &mut self.stack);
        }
    }

    fn drain(&mut self, now: Instant, oracle: &mut Oracle) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let take = |stack: &mut Stack| {
            let t = stack.poll_transmit(now)?;
            assert_eq!(t.checksum, TxChecksum::Done);
            Some(([t.header, &t.payload.concat()].concat(), t.gso_size))
        };
        while let Some((packet, gso_size)) = take(&mut self.stack) {
            let conns = self.apps.iter().filter_map(|a| a.conn);
            let subflows: Vec<_> = conns.flat_map(|c| self.stack.subflows(c)).collect();
            oracle.on_sent(&packet, &subflows);
            segment(&packet, gso_size, &mut packets);
            assert!(packets.len() < 100_000, "no end of packets");
        }
        packets
    }

    pub fn all_closed(&self) -> bool {
        !self.apps.is_empty() && self.closed() == self.apps.len()
    }

    pub fn closed(&self) -> usize {
        let closed = |e: &&Event| matches!(e, Event::Closed { .. });
        self.events.iter().filter(closed).count()
    }
}

/// Cuts a super-segment as a device does: the header repeated, sequence and checksum advanced.
fn segment(packet: &[u8], gso_size: u16, out: &mut Vec<Vec<u8>>) {
    let (ip, segment) = ip::Repr::parse(packet).unwrap();
    let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
    assert!(tcp::verify_checksum(ip.src, ip.dst, segment));
    if gso_size == 0 {
        assert!(
            packet.len() <= 1500,
            "{} bytes without gso_size",
            packet.len()
        );
        out.push(packet.to_vec());
        return;
    }
    let mut seq: Seq32 = tcp.seq;
    for part in payload.chunks(usize::from(gso_size)) {
        let mut tcp = tcp.clone();
        tcp.seq = seq;
        seq = seq.add(part.len() as u32);
        let ip = ip::Repr {
            payload_len: tcp.header_len() + part.len(),
            ..ip
        };
        let mut bytes = vec![0; 20 + tcp.header_len()];
        ip.emit(&mut bytes);
        tcp.emit(&mut bytes[20..]);
        tcp::fill_checksum(ip.src, ip.dst, &mut bytes[20..], &[part]);
        bytes.extend_from_slice(part);
        assert!(bytes.len() <= 1500, "segment of {} bytes", bytes.len());
        out.push(bytes);
    }
}

pub fn server_addr() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(SERVER), PORT)
}

fn path(addr: Ipv4Addr) -> PathConfig {
    PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    }
}

/// The engine's settings without checksum offload.
pub fn config() -> Config {
    Config {
        checksum_offload: false,
        ..Config::default()
    }
}
