//! Users at work while an attacker opens connections to their server. Users keep their rate and are
//! served, the server counts every attempt, no attempt reaches a destination, and the server gives back
//! the memory.
//!
//! Virtual time has no processors, so these tests judge what an attacker gets of the server: its memory,
//! its tables and its part of the links. `crates/braid/tests/e2e` judges processor time.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use braid_engine::{ConnectOptions, Protocol};
use braid_links::{QueueLimit, Settings};
use braid_proxy::config::{DEFAULT_PORT, UserConfig};
use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_sim::aggregation::{
    Aggregation, AggregationConfig, Load, TransferId, content_addr, server_addr,
};
use braid_sim::host::options;
use braid_sim::tap::{PacketEvent, Tap};
use braid_sim::traffic::{Preface, Role, Stream};
use braid_sim::{Host, LinkId, Packet};
use braid_wire::{Instant, Seq32, ip, tcp};

use crate::support::{millis, nothing_is_left, secs, server_counters, start, two_links};

/// The share of their rate that users keep.
const ENOUGH: f64 = 0.95;
/// Users that arrive during an attack, and the bytes that each of them fetches.
pub const USERS: usize = 25;
const SMALL: u64 = 20_000;
/// The time over which a rate is measured.
const SPAN: Duration = secs(3);
/// The number of spans without an attack.
const SPANS: usize = 3;
/// The time between two attempts: 80 failures a second are fewer than those for which the server refuses
/// a source.
const GAP: Duration = Duration::from_micros(12_500);
/// The wall clock of the simulator's nodes at time 0, ms since 1970.
const EPOCH_MS: u64 = 1_800_000_000_000;
/// A clock error that the server refuses in both directions, ms.
const TOO_FAR_MS: i64 = 600_000;

/// A download in progress that takes the rate of both links. The attacker is the second content host, so
/// that no attack takes a part of the users' links.
pub struct Work {
    pub net: Aggregation,
    download: TransferId,
    /// Bytes that users get at least in a span without an attack.
    alone: u64,
}

impl Work {
    /// Begins a download.
    pub fn begin(mut net: Aggregation) -> Self {
        let download = net.open(0, 0, Load::Down(100_000_000)).unwrap();
        net.run_for(secs(3));
        let mut work = Work {
            net,
            download,
            alone: 0,
        };
        // Congestion control probes now and then, which makes spans differ by some per cent.
        let spans = [(); SPANS].map(|()| work.span(|_| ()));
        work.alone = spans.into_iter().min().unwrap_or(0);
        work.net.run_for(secs(2));
        work
    }

    /// Asserts that users who arrive while `attack` is carried out are served, and that all users keep
    /// their rate. `attack` is called every [`GAP`].
    #[track_caller]
    pub fn goes_on_during(&mut self, attack: impl FnMut(&mut Aggregation)) {
        let (alone, kept) = (self.alone, self.span(attack));
        let share = kept as f64 / alone as f64;
        assert!(share > ENOUGH, "{share:.3} of {alone} bytes");
        let counters = server_counters(&self.net);
        assert_eq!((counters.over_limit, counters.over_source), (0, 0));
    }

    /// Returns the bytes that users get in a [`SPAN`], at whose beginning [`USERS`] arrive. All of these
    /// are served.
    #[track_caller]
    fn span(&mut self, mut attack: impl FnMut(&mut Aggregation)) -> u64 {
        let net = &mut self.net;
        let before = net.received();
        let users: Vec<TransferId> = (0..USERS)
            .map(|_| net.open(0, 0, Load::Down(SMALL)).unwrap())
            .collect();
        for _ in 0..SPAN.as_nanos() / GAP.as_nanos() {
            attack(net);
            net.run_for(GAP);
        }
        for id in users {
            assert!(net.duration(id).is_some(), "{:?}", net.at_user(id));
            assert_eq!(net.at_user(id).received, SMALL);
        }
        net.received() - before
    }

    /// Ends the download and all connections of the attacker; the server keeps nothing.
    #[track_caller]
    pub fn ends(mut self) {
        self.net.abort(self.download);
        give_up(&mut self.net);
        // After this time no connection waits for users any more.
        self.net.run_for(secs(320));
        nothing_is_left(&self.net);
    }

    fn counted(&self, name: &str) -> u64 {
        let counters = server_counters(&self.net);
        let mut counters = counters.iter();
        counters.find(|(n, _)| *n == name).unwrap().1
    }
}

/// Returns a network with a second content host. Its server also serves in plaintext, and has a second
/// user.
fn with_guest() -> AggregationConfig {
    let mut config = two_links();
    config.contents = 2;
    let server = &mut config.servers[0];
    server.config.unprotected = true;
    server.config.users.push(UserConfig {
        name: "guest".to_owned(),
        key: guest_key().public(),
    });
    let private = ["127.0.0.1", "192.168.1.1", "169.254.169.254"];
    let private = private.map(|addr| addr.parse().unwrap());
    let mixed = [&private[..], &[content_addr(0).into()]].concat();
    let names = &mut server.downstream.names;
    names.insert("private.test".to_owned(), private.to_vec());
    names.insert("mixed.test".to_owned(), mixed);
    config
}

fn guest_key() -> PrivateKey {
    PrivateKey::from_seed([9; 32])
}

/// Opens a connection of the attacker to the server, sends `words` and waits for its end.
fn attempt(net: &mut Aggregation, words: Vec<u8>) {
    let connect = ConnectOptions {
        protocol: Protocol::Tcp,
        ..options(SocketAddr::from((server_addr(0), DEFAULT_PORT)))
    };
    let mut stream = Stream::new(Role::Sink);
    // Any answer of the server is part of the handshake.
    stream.preface = Preface::new(words, u64::MAX);
    net.world.open(net.contents[1], connect, stream).unwrap();
}

/// Ends all connections of the attacker.
fn give_up(net: &mut Aggregation) {
    // Thousands of aborted connections end by a timer each. The oracle of the attacker's host allows 200
    // timers in a row without a packet or an event, since it takes more for a loop. No oracle ends the
    // test from here on.
    net.world.keep_violations();
    // No reset is lost in the queue of the attacker's link.
    let (link, _) = net.world.interfaces(net.contents[1])[0];
    let roomy = Settings {
        queue: QueueLimit::Packets(10_000),
        ..net.world.link_settings(link).clone()
    };
    net.world.set_link(link, roomy);
    net.world
        .with_node(net.contents[1], |host: &mut Host, now| {
            host.abort_labelled(now, 0);
        });
}

/// The sign-ins of the server's second user.
struct Guest {
    server: PublicKey,
    nonces: u64,
}

impl Guest {
    fn of(config: &AggregationConfig) -> Self {
        Guest {
            server: config.servers[0].config.key.public(),
            nonces: 0,
        }
    }

    /// Returns greeting and password for `to`, signed by `key` with a clock that is off by `off_ms`.
    fn sign_in(
        &mut self,
        now: Instant,
        key: &PrivateKey,
        to: &Destination,
        off_ms: i64,
    ) -> Vec<u8> {
        self.nonces += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonces.to_be_bytes());
        let at = (EPOCH_MS + now.as_millis()).saturating_add_signed(off_ms);
        let password = password(key, self.server, &to.to_bytes(), at, nonce);
        sign_in(guest_key().public().to_string().as_bytes(), &password)
    }

    /// Returns a sign-in and a request for `to`.
    fn asks(&mut self, now: Instant, to: &Destination) -> Vec<u8> {
        let signed_in = self.sign_in(now, &guest_key(), to, 0);
        [signed_in, request(None, to)].concat()
    }
}

fn named(name: &str) -> Destination {
    Destination::Name(name.to_owned(), 80)
}

/// Makes the attempt of number `n`; returns the name of the server's counter for it.
fn refused(n: usize, net: &mut Aggregation, guest: &mut Guest, replayed: &[u8]) -> &'static str {
    let now = net.world.now();
    let to = Destination::Address((content_addr(0), 80).into());
    let asks = request(None, &to);
    let with_command = |guest: &mut Guest, command| {
        let mut asks = asks.clone();
        asks[1] = command;
        [guest.sign_in(now, &guest_key(), &to, 0), asks].concat()
    };
    let by_clock = |guest: &mut Guest, off_ms| {
        [guest.sign_in(now, &guest_key(), &to, off_ms), asks.clone()].concat()
    };
    let (counter, words) = match n % 12 {
        0 => ("no_method", [&[5, 1, 0], &asks[..]].concat()),
        1 => {
            let user = guest_key().public().to_string();
            let signed_in = sign_in(user.as_bytes(), b"hunter2");
            ("auth_malformed", [signed_in, asks].concat())
        }
        2 => {
            let other = PrivateKey::from_seed([7; 32]);
            let signed_in = guest.sign_in(now, &other, &to, 0);
            ("auth_wrong", [signed_in, asks].concat())
        }
        3 => ("auth_replayed", replayed.to_vec()),
        4 => ("auth_time", by_clock(guest, TOO_FAR_MS)),
        5 => ("auth_time", by_clock(guest, -TOO_FAR_MS)),
        6 => {
            let elsewhere = Destination::Address(([192, 0, 2, 1], 80).into());
            let signed_in = guest.sign_in(now, &guest_key(), &elsewhere, 0);
            ("auth_destination", [signed_in, asks].concat())
        }
        // The password comes twice on one connection: the server takes the second for a request.
        7 => {
            let signed_in = guest.sign_in(now, &guest_key(), &to, 0);
            ("auth_destination", signed_in.repeat(2))
        }
        // BIND and UDP ASSOCIATE (RFC 1928 section 4).
        8 => ("bad_command", with_command(guest, 2)),
        9 => ("bad_command", with_command(guest, 3)),
        10 => {
            let private = Destination::Address(([10, 9, 9, 9], 80).into());
            ("forbidden", guest.asks(now, &private))
        }
        _ => ("forbidden", guest.asks(now, &named("private.test"))),
    };
    attempt(net, words);
    counter
}

/// Lets the content host accept connections that the attacker gets through to it, on port 80.
fn listen_at_destination(net: &mut Aggregation) {
    let at = SocketAddr::from((content_addr(0), 80));
    let listens = net
        .world
        .serve(net.contents[0], at, Stream::new(Role::Sink));
    listens.unwrap();
}

#[test]
fn refused_requests_change_nothing_for_users() {
    let config = with_guest();
    let mut guest = Guest::of(&config);
    let mut net = start(&config);
    let to = Destination::Address((content_addr(0), 80).into());
    listen_at_destination(&mut net);
    let once = guest.asks(net.world.now(), &to);
    attempt(&mut net, once.clone());
    let mut work = Work::begin(net);
    let before = server_counters(&work.net);
    let served = 2 + (SPANS * USERS) as u64;
    assert_eq!(before.connected, served, "guest, download, users");

    let (mut counts, mut n) = (BTreeMap::new(), 0);
    work.goes_on_during(|net| {
        let counter = refused(n, net, &mut guest, &once);
        *counts.entry(counter).or_default() += 1;
        n += 1;
    });
    work.net.run_for(secs(1));
    let failed: BTreeMap<_, u64> = counts
        .keys()
        .map(|name| (*name, work.counted(name)))
        .collect();
    assert_eq!(failed, counts);
    let served = work.counted("connected") - before.connected;
    assert_eq!(served, USERS as u64, "only users were connected");
    work.ends();
}

/// A name with only private addresses leads nowhere; otherwise the server takes an address that is not
/// private.
#[test]
fn names_of_private_addresses_change_nothing_for_users() {
    let config = with_guest();
    let mut guest = Guest::of(&config);
    let mut net = start(&config);
    listen_at_destination(&mut net);
    let mut work = Work::begin(net);
    let before = server_counters(&work.net);
    let mut asked = [0, 0];
    work.goes_on_during(|net| {
        let which = usize::from(asked[0] > asked[1]);
        let name = ["private.test", "mixed.test"][which];
        asked[which] += 1;
        let words = guest.asks(net.world.now(), &named(name));
        attempt(net, words);
    });
    work.net.run_for(secs(1));
    let counters = server_counters(&work.net);
    assert_eq!(counters.forbidden, asked[0]);
    let connected = counters.connected - before.connected;
    assert_eq!(connected, asked[1] + USERS as u64);
    work.ends();
}

/// Bytes that connections of the box send up to the server's first answer, by their port.
#[derive(Debug, Default)]
struct FirstFlights {
    flights: BTreeMap<u16, (Seq32, Vec<u8>)>,
    answered: Vec<u16>,
}

impl Tap for FirstFlights {
    fn on_packet(&mut self, _: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        let Some((segment, payload)) = segment(&packet.bytes) else {
            return;
        };
        if !matches!(what, PacketEvent::Sent) {
            return;
        }
        let opens = segment.flags == tcp::Flags::SYN && segment.options.join().is_none();
        if segment.src_port == DEFAULT_PORT {
            if !payload.is_empty() {
                self.answered.push(segment.dst_port);
            }
        } else if segment.dst_port == DEFAULT_PORT && opens {
            let flight = (segment.seq.add(1), Vec::new());
            self.flights.insert(segment.src_port, flight);
        } else if let Some((next, bytes)) = self.flights.get_mut(&segment.src_port)
            && segment.seq == *next
            && !self.answered.contains(&segment.src_port)
        {
            bytes.extend_from_slice(payload);
            *next = next.add(payload.len() as u32);
        }
    }
}

/// Returns the header and the payload of a TCP segment.
pub fn segment(packet: &[u8]) -> Option<(tcp::Repr, &[u8])> {
    let (_, segment) = ip::Repr::parse(packet).ok()?;
    tcp::Repr::parse(segment).ok()
}

/// Returns the first flight of a connection that carries a user's request.
fn recorded(net: &mut Aggregation) -> Vec<u8> {
    // The first connection brings a ticket, with which the next one's first flight has the request.
    net.open(0, 0, Load::Down(1_000)).unwrap();
    net.run_for(secs(2));
    let flights = Arc::new(Mutex::new(FirstFlights::default()));
    for (up, down) in net.access.clone() {
        for link in [up, down] {
            net.world.tap(link, Box::new(Arc::clone(&flights)));
        }
    }
    net.open(0, 0, Load::Down(SMALL)).unwrap();
    net.run_for(secs(2));
    let flights = core::mem::take(&mut flights.lock().unwrap().flights);
    let flights = flights.into_values().map(|(_, bytes)| bytes);
    flights.max_by_key(Vec::len).unwrap()
}

#[test]
fn recorded_first_flights_change_nothing_for_users() {
    let mut config = with_guest();
    // Without connections in the pool, a user's request leaves in the first flight.
    config.boxed.warm.max = 0;
    let mut net = start(&config);
    let flight = recorded(&mut net);
    let mut work = Work::begin(net);
    let before = server_counters(&work.net);
    let mut attempts = 0;
    work.goes_on_during(|net| {
        // Every second flight is sent twice on one connection.
        attempt(net, flight.repeat(1 + attempts % 2));
        attempts += 1;
    });
    work.net.run_for(secs(1));
    let counters = server_counters(&work.net);
    let unknown = counters.unknown_tickets - before.unknown_tickets;
    assert_eq!(unknown, attempts as u64);
    assert_eq!(counters.connected - before.connected, USERS as u64);
    work.ends();
}

/// Handshakes to hold open: nearly as many as the server lets one source begin.
const HALF_OPEN: usize = 2_000;

#[test]
fn half_open_handshakes_change_nothing_for_users() {
    let mut net = start(&with_guest());
    let hello = recorded(&mut net);
    let mut work = Work::begin(net);
    let before = server_counters(&work.net);
    let mut opened = 0;
    work.goes_on_during(|net| {
        // All attempts come in the first tenth of the span, and half of them send nothing at all.
        for _ in 0..(HALF_OPEN - opened).min(HALF_OPEN / 20) {
            attempt(net, hello[..(opened % 2) * hello.len() / 8].to_vec());
            opened += 1;
        }
    });
    let open = work.net.server_node(0).core().unwrap().connections();
    assert!(open > HALF_OPEN, "{open} are open");
    // The server waits for a handshake until its timeout.
    work.net.run_for(secs(9));
    let late = work.counted("handshake_timeout") - before.handshake_timeout;
    assert_eq!(late, HALF_OPEN as u64);
    work.ends();
}

/// Connections of the server's second user that carry nothing.
const IDLE: usize = 2_000;

#[test]
fn idle_connections_change_nothing_for_users() {
    let config = with_guest();
    let mut guest = Guest::of(&config);
    let mut net = start(&config);
    let sink = SocketAddr::from((content_addr(0), 80));
    net.world
        .serve(net.contents[0], sink, Stream::new(Role::Sink))
        .unwrap();
    let mut work = Work::begin(net);
    let before = server_counters(&work.net);
    for n in 0..IDLE {
        let words = guest.asks(work.net.world.now(), &Destination::Address(sink));
        attempt(&mut work.net, words);
        if n % 10 == 9 {
            work.net.run_for(millis(2));
        }
    }
    work.net.run_for(secs(1));
    let connected = work.counted("connected") - before.connected;
    assert_eq!(connected, IDLE as u64);
    work.goes_on_during(|_| {});
    let connected = work.counted("connected") - before.connected;
    assert_eq!(connected, (IDLE + USERS) as u64);
    give_up(&mut work.net);
    work.net.run_for(secs(1));
    let open = work.net.server_node(0).core().unwrap().connections();
    assert!(open < 100, "{open} are open");
    work.ends();
}
