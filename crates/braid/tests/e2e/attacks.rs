//! Attacks on the server by hosts that are no users, while users are at work: their messages are refused,
//! counted and logged once, none reaches a destination, and users notice nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_testbed::{Capture, Captured, Role, netns};
use braid_wire::{ip, tcp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use super::control::status;
use super::fixture::{Fixture, Judge, changed, render_changed};
use super::load::{Attack, Load, USERS};
use super::reload::{SocksFixture, allowing_plaintext};

/// The server's default port.
const PORT: u16 = 1080;
/// Attempts a second: fewer than the failures for which the server refuses a source.
const ATTEMPTS: f64 = 80.0;
/// Time that an attacker waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Offset of a user's clock, in either direction, with which the server refuses a password, minutes.
const MINUTES: i64 = 10;

/// A host that may be a user of the server.
pub struct Client {
    server: SocketAddr,
    server_key: PublicKey,
    key: PrivateKey,
    nonce: AtomicU64,
}

impl Client {
    /// Returns the user without a box of a server that also serves in plaintext.
    pub fn of_fixture(world: &SocksFixture) -> Self {
        let state = world.bed.testbed.state_dir();
        let key = |file: &str| PrivateKey::read(&state.join(file)).expect("a key");
        Client {
            server: SocketAddr::new(world.bed.v4("server"), PORT),
            server_key: key("server/server.key").public(),
            key: key("guest.key"),
            nonce: AtomicU64::new(1),
        }
    }

    /// Returns greeting and password for a destination, by a clock that is off by `minutes`.
    fn sign_in(&self, key: &PrivateKey, destination: &Destination, minutes: i64) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("a clock that was set").as_millis() as i64;
        let mut nonce = [0; 16];
        let used = self.nonce.fetch_add(1, Ordering::Relaxed);
        nonce[..8].copy_from_slice(&used.to_be_bytes());
        let at = (now + minutes * 60_000) as u64;
        let password = password(key, self.server_key, &destination.to_bytes(), at, nonce);
        sign_in(self.key.public().to_string().as_bytes(), &password)
    }

    /// Returns the messages of a user with a password.
    pub fn asks(&self, destination: &Destination) -> Vec<u8> {
        let signed_in = self.sign_in(&self.key, destination, 0);
        [signed_in, request(None, destination)].concat()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.server, ANSWER_TIMEOUT).expect("it listens");
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .expect("a socket");
        stream
    }

    /// Returns the server's answer up to its end, or `expected` bytes of it.
    pub fn answer(&self, says: &[u8], expected: usize) -> Vec<u8> {
        let mut stream = self.connect();
        let mut answer = vec![0; expected];
        let mut len = 0;
        // A reset tells as much as an orderly end.
        if stream.write_all(says).is_ok() {
            while len < expected
                && let Ok(read @ 1..) = stream.read(&mut answer[len..])
            {
                len += read;
            }
        }
        answer.truncate(len);
        answer
    }
}

/// A function that makes a client's messages up to its request.
type Says = dyn Fn(&Client, &Destination) -> Vec<u8> + Sync;

/// An attempt that the server refuses.
struct Refused {
    /// The counter for it at the server.
    counter: &'static str,
    /// The end of the server's answer.
    answer: &'static [u8],
    says: Box<Says>,
}

fn refused(
    counter: &'static str,
    answer: &'static [u8],
    says: impl Fn(&Client, &Destination) -> Vec<u8> + Sync + 'static,
) -> Refused {
    let says = Box::new(says);
    Refused {
        counter,
        answer,
        says,
    }
}

/// The server's answers to an unknown method, to a wrong password and to an unsupported command.
const NO_METHOD: &[u8] = &[5, 0xff];
const WRONG: &[u8] = &[1, 1];
const NOT_ALLOWED: &[u8] = &[5, 2, 0, 1, 0, 0, 0, 0, 0, 0];
const NO_COMMAND: &[u8] = &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0];

/// Returns a request with another command in place of CONNECT: BIND is 2, UDP ASSOCIATE 3 (RFC 1928 section 4).
fn with_command(command: u8) -> impl Fn(&Client, &Destination) -> Vec<u8> {
    move |client, to| {
        let mut request = request(None, to);
        request[1] = command;
        [client.sign_in(&client.key, to, 0), request].concat()
    }
}

fn by_clock(minutes: i64) -> impl Fn(&Client, &Destination) -> Vec<u8> {
    move |client, to| {
        let signed_in = client.sign_in(&client.key, to, minutes);
        [signed_in, request(None, to)].concat()
    }
}

/// Returns all refused attempts in plaintext; `replayed` is a flight that was sent before.
fn refusals(replayed: &[u8]) -> Vec<Refused> {
    let replayed = replayed.to_vec();
    vec![
        refused("no_method", NO_METHOD, |_, to| {
            [&[5, 1, 0], &request(None, to)[..]].concat()
        }),
        refused("auth_malformed", WRONG, |client, to| {
            let user = client.key.public().to_string();
            [sign_in(user.as_bytes(), b"hunter2"), request(None, to)].concat()
        }),
        refused("auth_wrong", WRONG, |client, to| {
            let other = PrivateKey::from_seed([7; 32]);
            [client.sign_in(&other, to, 0), request(None, to)].concat()
        }),
        refused("auth_replayed", WRONG, move |_, _| replayed.clone()),
        refused("auth_time", WRONG, by_clock(MINUTES)),
        refused("auth_time", WRONG, by_clock(-MINUTES)),
        refused("auth_destination", NOT_ALLOWED, |client, to| {
            let elsewhere = Destination::Address(([192, 0, 2, 1], 80).into());
            let signed_in = client.sign_in(&client.key, &elsewhere, 0);
            [signed_in, request(None, to)].concat()
        }),
        // The same password twice on one connection: the server reads the second as a request.
        refused("auth_destination", NOT_ALLOWED, |client, to| {
            client.sign_in(&client.key, to, 0).repeat(2)
        }),
        refused("bad_command", NO_COMMAND, with_command(2)),
        refused("bad_command", NO_COMMAND, with_command(3)),
    ]
}

/// Makes all attempts in turn, again and again; returns how often each was made, by counter.
fn say_all(
    attack: &Attack,
    client: &Client,
    to: &Destination,
    all: &[Refused],
) -> BTreeMap<&'static str, u64> {
    let mut said = BTreeMap::new();
    keep_pace(attack, 3 * all.len(), |n| {
        let Refused {
            counter,
            answer,
            says,
        } = &all[n % all.len()];
        let heard = client.answer(&says(client, to), 64);
        assert!(heard.ends_with(answer), "{counter}, {n}: {heard:?}");
        *said.entry(*counter).or_default() += 1;
    });
    said
}

/// Makes numbered attempts at an even pace until the attack has to end, but at least `least`.
pub fn keep_pace(attack: &Attack, least: usize, mut attempt: impl FnMut(usize)) {
    attack.begins();
    let begun = Instant::now();
    for n in 0.. {
        if !attack.goes_on() && n >= least {
            break;
        }
        attempt(n);
        let due = Duration::from_secs_f64(n as f64 / ATTEMPTS);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}

/// Returns the server's counters.
pub fn counters(bed: &Fixture) -> BTreeMap<String, u64> {
    status(bed, "server").counters
}

fn content(bed: &Fixture) -> Destination {
    Destination::Address(SocketAddr::new(bed.v4("content"), 80))
}

/// Returns the growth of a counter.
pub fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, name: &str) -> u64 {
    after[name] - before[name]
}

fn strangers(judge: Judge) {
    let mut world = SocksFixture::with_socks_client();
    let to = content(&world.bed);
    let client = Client::of_fixture(&world);
    let once = client.asks(&to);
    let router = namespace(&world.bed, "internet");
    let served = inside(&router, || client.answer(&once, 14));
    assert_eq!(served, [&[5, 2, 1, 0, 5, 0, 0, 1][..], &[0; 6]].concat());
    let mut load = Load::start(&mut world.bed, judge);
    let before = counters(&world.bed);
    let mut said = BTreeMap::new();
    let all = refusals(&once);
    let kept = load.during(&mut world.bed, |attack| {
        said = say_all(attack, &client, &to, &all);
    });
    kept.expect_enough("refusals");
    let after = counters(&world.bed);
    println!("{said:?}");
    for (counter, said) in said {
        assert_eq!(grown(&before, &after, counter), said, "{counter}");
    }
    // Only users were connected.
    assert_eq!(grown(&before, &after, "connected"), USERS as u64);
    load.expect_memory_back(&mut world.bed);

    // A restarted server has forgotten the passwords it has seen, but knows the time of its start.
    world.bed.testbed.kill("server").expect("it ran");
    world.bed.start("server");
    world = world.knowing_socks_client();
    let answer = inside(&router, || client.answer(&once, 14));
    assert!(answer.ends_with(WRONG), "{answer:?}");
    let counters = counters(&world.bed);
    assert_eq!((counters["auth_time"], counters["connected"]), (1, 0));
}

pub fn namespace(bed: &Fixture, host: &str) -> String {
    let host = bed.testbed.layout().host(host).expect("a known host");
    host.namespace.clone()
}

/// Returns the result of `work` on another host.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    netns::run_inside(namespace, || Ok(work())).expect("a known host")
}

/// Returns the first flights of boxes' connections, up to the server's first answer, the longest first.
fn first_flights(packets: &[Captured]) -> Vec<Vec<u8>> {
    let mut flights = BTreeMap::new();
    for captured in packets {
        let Ok((header, segment)) = ip::Repr::parse(&captured.bytes) else {
            continue;
        };
        let Ok((segment, payload)) = tcp::Repr::parse(segment) else {
            continue;
        };
        let ends = [
            SocketAddr::new(header.src, segment.src_port),
            SocketAddr::new(header.dst, segment.dst_port),
        ];
        match (segment.dst_port == PORT, segment.src_port == PORT) {
            (true, _) if segment.flags.contains(tcp::Flags::SYN) => {
                let joins = segment.options.join().is_some();
                let flight = (segment.seq.add(1), Vec::new(), joins);
                flights.entry(ends[0]).or_insert(flight);
            }
            // A packet is captured twice, as it comes and as it goes.
            (true, _) if !payload.is_empty() => match flights.get_mut(&ends[0]) {
                Some((next, said, false)) if segment.seq == *next => {
                    said.extend_from_slice(payload);
                    *next = segment.seq.add(payload.len() as u32);
                }
                _ => {}
            },
            (_, true) if !payload.is_empty() => {
                if let Some((_, _, over)) = flights.get_mut(&ends[1]) {
                    *over = true;
                }
            }
            _ => {}
        }
    }
    let mut flights: Vec<_> = flights.into_values().map(|(_, said, _)| said).collect();
    flights.sort_by_key(|said| core::cmp::Reverse(said.len()));
    flights
}

/// Returns the number of whole TLS records.
fn records(mut flight: &[u8]) -> usize {
    let mut records = 0;
    while let [_, _, _, a, b, rest @ ..] = flight {
        let len = usize::from(u16::from_be_bytes([*a, *b]));
        let Some(rest) = rest.get(len..) else { break };
        (flight, records) = (rest, records + 1);
    }
    records
}

/// Returns a first flight with a user's request, as an observer on a link sees it.
fn recorded(bed: &mut Fixture) -> Vec<u8> {
    let small = bed.offer("small", 20_000);
    // The first connection brings tickets.
    bed.fetch(1_000);
    let capture = Capture::start(&bed.testbed, "internet").expect("a capture");
    let users: Vec<_> = (0..4).map(|_| bed.curl("small")).collect();
    for user in users {
        user.expect_bytes(&small);
    }
    let flights = first_flights(&capture.finish().expect("packets"));
    let flight = flights.into_iter().next().expect("a connection");
    // A ClientHello, greeting, request, early hints, and the user's bytes.
    assert!(records(&flight) >= 5, "{} records", records(&flight));
    flight
}

/// Sends a recorded flight on a new connection: it gets a handshake, and nothing more.
fn replay(client: &Client, flight: &[u8]) {
    let mut stream = client.connect();
    stream.write_all(flight).expect("it takes that");
    let mut answer = [0; 4096];
    let len = stream.read(&mut answer).expect("an answer");
    assert_eq!(answer[0], 22, "{:?}", &answer[..len]);
}

/// Returns the number of packets with payload that reached the content host.
fn reached(packets: &[Captured]) -> usize {
    let with_payload = packets.iter().filter(|captured| {
        let segment = ip::Repr::parse(&captured.bytes).ok();
        let segment = segment.and_then(|(_, segment)| tcp::Repr::parse(segment).ok());
        segment.is_some_and(|(tcp, payload)| tcp.dst_port == 80 && !payload.is_empty())
    });
    with_payload.count()
}

fn recorded_first_flights(judge: Judge) {
    // Without idle connections in the pool, a user's request leaves in the first flight.
    let cold = |text| format!("{text}\n[expert]\nidle_pool_size = 0\n");
    let render = changed(
        render_changed(Role::Server, allowing_plaintext),
        Role::Box,
        cold,
    );
    let mut world = SocksFixture::of(Fixture::up_idle(render));
    let flight = recorded(&mut world.bed);
    let client = Client::of_fixture(&world);
    let router = namespace(&world.bed, "internet");
    let mut load = Load::start(&mut world.bed, judge);
    let before = counters(&world.bed);
    let mut said = 0;
    let kept = load.during(&mut world.bed, |attack| {
        keep_pace(attack, 20, |n| {
            // Every other time the flight is sent twice on one connection.
            replay(&client, &flight.repeat(1 + n % 2));
            said += 1;
        });
    });
    kept.expect_enough("replayed flights");
    let after = counters(&world.bed);
    let unknown = grown(&before, &after, "unknown_tickets");
    assert_eq!(unknown, said, "{after:?}");
    assert_eq!(grown(&before, &after, "connected"), USERS as u64);
    load.expect_memory_back(&mut world.bed);

    world.bed.testbed.kill("server").expect("it ran");
    world.bed.testbed.stop("box").expect("it ran");
    world.bed.start("server");
    let capture = Capture::start(&world.bed.testbed, "content").expect("a capture");
    inside(&router, || replay(&client, &flight));
    let reached = reached(&capture.finish().expect("packets"));
    assert_eq!(reached, 0, "the destination heard something");
    let counters = counters(&world.bed);
    let counted = ["unknown_tickets", "connected"].map(|name| counters[name]);
    assert_eq!(counted, [1, 0], "{counters:?}");
}

/// As many as the server permits, without those of users.
const HALF_OPEN: usize = 2_000;

fn half_open_handshakes(judge: Judge) {
    raise_descriptors();
    let mut world = SocksFixture::with_socks_client();
    let hello = recorded_hello(&mut world.bed);
    let client = Client::of_fixture(&world);
    let mut load = Load::start(&mut world.bed, judge);
    let before = counters(&world.bed);
    let kept = load.during(&mut world.bed, |attack| {
        let mut held = Vec::new();
        for n in 0..HALF_OPEN {
            let mut stream = client.connect();
            // Half of them send nothing at all.
            let says = &hello[..(n % 2) * hello.len() / 2];
            stream.write_all(says).expect("it takes that");
            held.push(stream);
        }
        attack.begins();
        while attack.goes_on() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    kept.expect_enough("half-open handshakes");
    world.bed.wait_for("them to be counted", |bed| {
        let after = counters(bed);
        let names = ["probes", "handshake_aborted", "handshake_timeout"];
        let ended: u64 = names.map(|name| grown(&before, &after, name)).iter().sum();
        ended >= HALF_OPEN as u64
    });
    assert_eq!(grown(&before, &counters(&world.bed), "over_limit"), 0);
    load.expect_memory_back(&mut world.bed);
}

/// Returns a box's ClientHello.
fn recorded_hello(bed: &mut Fixture) -> Vec<u8> {
    let capture = Capture::start(&bed.testbed, "internet").expect("a capture");
    bed.fetch(1_000);
    let flights = first_flights(&capture.finish().expect("packets"));
    let hello = flights.into_iter().next().expect("a connection");
    assert_eq!(hello[0], 22, "a handshake");
    hello
}

/// Idle connections beside which users keep their rate.
const IDLE: usize = 5_000;
// Idle connections beside which users are served.
const SOME_IDLE: usize = 1_000;
/// Ports of the destinations of idle connections; each has half of them and never accepts one.
pub const SINKS: [u16; 2] = [7_100, 7_101];

/// Returns a destination whose kernel completes handshakes that no program accepts.
pub fn sink(namespace: &str, at: SocketAddr) -> Socket {
    let listen = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&at.into())?;
        socket.listen(4_096)?;
        Ok::<_, std::io::Error>(socket)
    };
    inside(namespace, listen).expect("it listens")
}

fn idle_connections(judge: Judge, idle: usize) {
    raise_descriptors();
    let mut world = SocksFixture::with_socks_client();
    let at = SINKS.map(|port| SocketAddr::new(world.bed.v4("content"), port));
    let sinks = at.map(|at| sink(&namespace(&world.bed, "content"), at));
    let client = Client::of_fixture(&world);
    let mut load = Load::start(&mut world.bed, judge);
    let before = counters(&world.bed);
    let kept = load.during(&mut world.bed, |attack| {
        let mut held = Vec::new();
        for n in 0..idle {
            let mut stream = client.connect();
            let asks = client.asks(&Destination::Address(at[n % 2]));
            stream.write_all(&asks).expect("it takes that");
            held.push(stream);
        }
        for stream in &mut held {
            let mut answer = [0; 14];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[4..6], [5, 0], "{answer:?}");
        }
        attack.begins();
        while attack.goes_on() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    kept.expect_enough("idle connections");
    let connected = grown(&before, &counters(&world.bed), "connected");
    assert_eq!(connected, (idle + USERS) as u64);
    drop(sinks);
    world.bed.wait_for("them to be gone", |bed| {
        status(bed, "server").connections_total < 100
    });
    load.expect_memory_back(&mut world.bed);
}

/// Raises the limit of descriptors, since both ends of thousands of connections are in this process.
pub fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, all).expect("what is allowed");
}

#[test]
#[ignore = "network"]
fn those_who_are_no_user_reach_nothing() {
    strangers(Judge::Service);
}

#[test]
#[ignore = "network"]
fn a_recorded_first_flight_reaches_nothing() {
    recorded_first_flights(Judge::Service);
}

#[test]
#[ignore = "network"]
fn half_open_handshakes_keep_nobody_from_being_served() {
    half_open_handshakes(Judge::Service);
}

#[test]
#[ignore = "network"]
fn idle_connections_keep_nobody_from_being_served() {
    idle_connections(Judge::Service, SOME_IDLE);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn those_who_are_no_user_cost_users_no_rate() {
        strangers(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn recorded_first_flights_cost_users_no_rate() {
        recorded_first_flights(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn half_open_handshakes_cost_users_no_rate() {
        half_open_handshakes(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn idle_connections_cost_users_no_rate() {
        idle_connections(Judge::Clock, IDLE);
    }
}
