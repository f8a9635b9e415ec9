//! The crate `mptcp-rs`, another Multipath TCP in user space, as the client of Braid's server, in
//! simulated time.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{CloseReason, PathConfig};
use braid_links::{Loss, Rate, Settings};
use braid_sim::traffic::{Role, Stream, pattern_from};
use braid_sim::{Host, HostConfig, Node, NodeId, Packet, Turn, World};
use braid_wire::Instant;
use mptcp_rs::{ConnectConfig, ConnectionHandle, Endpoint, Event, ReadError, SubflowId};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), 443);
const PATHS: usize = 3;
const REQUEST: u64 = 500_000;
const ANSWER: u64 = 3_000_000;
/// The time after which links and queues are empty and all events are handled.
const SETTLED: Duration = Duration::from_millis(500);

fn local(path: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, path as u8, 1).into()
}

fn theirs(now: Instant) -> mptcp_rs::Instant {
    mptcp_rs::Instant::from_nanos(now.as_nanos())
}

/// A host of one connection that sends [`REQUEST`] bytes, reads to the end, and closes its direction at
/// the end or once its request is sent.
struct Client {
    endpoint: Endpoint<ChaCha20Rng>,
    conn: ConnectionHandle,
    now: Instant,
    sent: u64,
    received: u64,
    closes_early: bool,
    /// The peer's direction has ended.
    ended: bool,
    events: Vec<Event>,
    /// Bytes of packets that came on each path.
    arrived: [u64; PATHS],
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    fn new(now: Instant) -> Self {
        let mut endpoint = Endpoint::new(ChaCha20Rng::seed_from_u64(1));
        let config = ConnectConfig::default();
        let conn = endpoint.connect_mptcp(theirs(now), local(0), SERVER, config);
        Client {
            conn: conn.expect("a good configuration"),
            endpoint,
            now,
            sent: 0,
            received: 0,
            closes_early: false,
            ended: false,
            events: Vec::new(),
            arrived: [0; PATHS],
        }
    }

    fn join(&mut self, path: usize) {
        let now = theirs(self.now);
        let joined = self
            .endpoint
            .add_subflow(now, self.conn, local(path), SERVER, 1500, false);
        joined.expect("a connection that may be joined");
    }

    fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }

    fn subflows(&self) -> usize {
        let ups = self.events.iter();
        1 + ups
            .filter(|event| matches!(event, Event::SubflowUp { .. }))
            .count()
    }

    /// Reads, checks and writes as much as possible.
    fn transfer(&mut self) {
        let Some(conn) = self.endpoint.connection(self.conn) else {
            return;
        };
        let mut buffer = [0; 4096];
        while !self.ended {
            match conn.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    for byte in &buffer[..n] {
                        assert_eq!(*byte, pattern_from(self.received)[0], "{}", self.received);
                        self.received += 1;
                    }
                }
                Err(ReadError::WouldBlock | ReadError::Reset) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        while self.sent < REQUEST {
            let bytes = pattern_from(self.sent);
            let most = bytes.len().min((REQUEST - self.sent) as usize);
            match conn.write(&bytes[..most]) {
                Ok(0) | Err(_) => return,
                Ok(n) => self.sent += n as u64,
            }
        }
        if self.ended || self.closes_early {
            conn.close();
        }
    }
}

impl Node for Client {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet) {
        self.now = turn.now;
        self.arrived[iface as usize] += packet.bytes.len() as u64;
        self.endpoint.handle_packet(theirs(turn.now), &packet.bytes);
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        self.now = turn.now;
        let now = theirs(turn.now);
        self.endpoint.handle_timeout(now);
        while let Some((_, event)) = self.endpoint.poll_event() {
            self.events.push(event);
            if event == (Event::Connected { mptcp: true }) {
                (1..PATHS).for_each(|path| self.join(path));
            }
        }
        if self.has(Event::Connected { mptcp: true }) {
            self.transfer();
        }
        let mut buffer = [0; 1500];
        while let Some(len) = self.endpoint.poll_transmit(now, &mut buffer) {
            // The third byte of the source address is the path's number.
            let iface = u32::from(buffer[14]);
            turn.send(iface, Packet::new(buffer[..len].to_vec()));
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let due = self.endpoint.poll_timeout()?;
        Some(Instant::from_nanos(due.as_nanos()))
    }

    fn needs_checksums(&self) -> bool {
        true
    }
}

struct Fixture {
    world: World,
    client: NodeId,
    server: NodeId,
}

impl Fixture {
    fn new(seed: u64, loss: f64) -> Fixture {
        let mut world = World::new(seed);
        let now = world.now();
        let client = world.add(|_| Client::new(now));
        let server = world.add(|rng| {
            let mut config = HostConfig::new(vec![PathConfig::v4(Ipv4Addr::new(10, 9, 0, 1))]);
            config.routes = (0..PATHS).map(|n| (local(n), n as u32)).collect();
            Host::new(config, rng)
        });
        for path in 0..PATHS {
            let link = Settings {
                rate: Rate::bits_per_second(10_000_000),
                delay: Duration::from_millis(10 + 10 * path as u64),
                loss: Loss::uniform(loss),
                ..Settings::default()
            };
            world.connect(client, server, link.clone(), link);
        }
        let answer = Stream::new(Role::Answer {
            request: REQUEST,
            size: ANSWER,
        });
        let served = world.serve(server, SERVER, answer);
        served.expect("a free port");
        let mut fixture = Fixture {
            world,
            client,
            server,
        };
        // The client's SYN is due, but the client reports no timer for it.
        fixture.with(|_| {});
        fixture
    }

    fn client(&self) -> &Client {
        self.world.node(self.client)
    }

    fn with(&mut self, act: impl FnOnce(&mut Client)) {
        self.world
            .with_node(self.client, |client: &mut Client, now| {
                client.now = now;
                act(client);
            });
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Client) -> bool) {
        let client = self.client;
        let limit = Duration::from_secs(60);
        let came = self.world.run(limit, |world| done(world.node(client)));
        let client = self.client();
        assert!(
            came,
            "{what}: {} read, {:?}",
            client.received, client.events
        );
    }

    fn run_until_answered(&mut self) {
        self.run_until("the answer", |client| client.ended);
        assert_eq!(self.client().received, ANSWER);
    }

    fn closed(&self) -> Option<CloseReason> {
        let host = self.world.host(self.server);
        let (_, reason) = host.finished().first()?.closed?;
        Some(reason)
    }
}

/// The client ends its subflows together with its direction; the answer still comes on all of them.
// Conforms: 8684-3.3.3-8
#[test]
fn a_transfer_by_three_subflows() {
    for closes_early in [false, true] {
        let mut fixture = Fixture::new(1, 0.0);
        fixture.with(|client| client.closes_early = closes_early);
        fixture.run_until_answered();
        let client = fixture.client();
        assert!(client.has(Event::Connected { mptcp: true }));
        assert_eq!(client.subflows(), PATHS);
        let least = client.arrived.iter().min();
        assert!(least > Some(&300_000), "{:?}", client.arrived);
        fixture.world.advance(SETTLED);
        assert_eq!(fixture.closed(), Some(CloseReason::Finished));
    }
}

#[test]
fn a_transfer_with_loss() {
    for seed in 1..=5 {
        let mut fixture = Fixture::new(seed, 0.02);
        fixture.run_until_answered();
        let client = fixture.client();
        assert!(!client.has(Event::FellBack), "{seed}");
        assert_eq!(client.subflows(), PATHS, "{seed}");
    }
}

/// MP_PRIO: a subflow that the client makes a backup carries no data until it is regular again.
#[test]
fn a_subflow_that_is_demoted() {
    let mut fixture = Fixture::new(1, 0.0);
    fixture.run_until("some of the answer", |client| client.received > 300_000);
    let demoted = fixture
        .client()
        .events
        .iter()
        .find_map(|event| match event {
            Event::SubflowUp { subflow } => Some(*subflow),
            _ => None,
        });
    let demoted: SubflowId = demoted.expect("a join");
    let mut second = |backup| {
        fixture.with(|client| {
            let now = theirs(client.now);
            let set = client
                .endpoint
                .set_backup(now, client.conn, demoted, backup);
            set.expect("an open subflow");
        });
        fixture.world.advance(SETTLED / 2);
        let before = fixture.client().arrived;
        fixture.world.advance(SETTLED / 2);
        let after = fixture.client().arrived;
        after[1] - before[1]
    };
    let (idle, used) = (second(true), second(false));
    assert!(idle < 20_000 && used > 100_000, "{idle}, {used}");
    fixture.run_until_answered();
}

#[test]
fn the_client_closes_fast() {
    let mut fixture = Fixture::new(1, 0.0);
    fixture.run_until("some of the answer", |client| client.received > 300_000);
    fixture.with(|client| {
        let conn = client.endpoint.connection(client.conn);
        conn.expect("it is open").abort();
    });
    fixture.world.advance(SETTLED);
    assert_eq!(fixture.closed(), Some(CloseReason::Reset));
}

#[test]
fn the_server_closes_fast() {
    let mut fixture = Fixture::new(1, 0.0);
    fixture.run_until("some of the answer", |client| client.received > 300_000);
    fixture
        .world
        .with_node(fixture.server, |host: &mut Host, now| {
            host.abort_labelled(now, 0)
        });
    let reset = Event::Closed {
        reason: mptcp_rs::CloseReason::Reset,
    };
    fixture.run_until("the end", |client| client.has(reset));
}
