//! Two stacks connected back to back, in virtual time: a client with two paths uploads to a server.
//!
//! `cargo run -p braid-mptcp-engine --example two_stacks` prints the events and the bytes that each path carried.
//! The engine has no clock, no sockets and no threads; `main` does everything that a driver does for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use braid_engine::{ApiError, Config, ConnId, ConnectOptions, Event, PathConfig, RxMeta, Stack};
use braid_wire::{Instant, Rng};

static UPLOAD: [u8; 1 << 20] = [0; 1 << 20];
/// The one-way delay to the server on each path; all packets back take as long as on the first path.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(25)];

fn main() {
    // Both ends use the same strategy to choose the path of a packet.
    let strategy = || braid_strategy::by_name("minrtt").expect("a strategy that exists");
    let mut stacks = [[1; 32], [2; 32]]
        .map(|seed| Stack::new(Config::default(), Rng::from_seed(seed), Box::new(strategy)));

    // Commands: the resources of each host, and its requests.
    let [client, server] = &mut stacks;
    client
        .add_path(PathConfig::v4([10, 0, 0, 2].into()))
        .expect("few paths");
    client
        .add_path(PathConfig::v4([10, 0, 1, 2].into()))
        .expect("few paths");
    server
        .add_path(PathConfig::v4([10, 0, 9, 1].into()))
        .expect("few paths");
    let remote = SocketAddr::from(([10, 0, 9, 1], 80));
    server.listen(remote).expect("nobody else listens there");
    let mut now = Instant::ZERO;
    let options = ConnectOptions::new(remote, strategy());
    client.connect(now, options).expect("a path that is up");

    // The packets under way, by their arrival time; the second number keeps their order.
    let mut wire = BTreeMap::new();
    let (mut written, mut received, mut packets, mut carried) = (0, 0, 0, [0, 0]);
    loop {
        for (from, stack) in stacks.iter_mut().enumerate() {
            // After any call: first the events …
            while let Some(event) = stack.poll_event() {
                if !matches!(event, Event::Readable { .. } | Event::Writable { .. }) {
                    println!("{now} {}: {event:?}", ["client", "server"][from]);
                }
                match event {
                    Event::Connected { conn } | Event::Writable { conn } => {
                        upload(now, stack, conn, &mut written);
                    }
                    Event::Readable { conn } => received += download(now, stack, conn),
                    _ => {}
                }
            }
            // … then the packets, of up to 64 kB, which the receiver accepts as they are.
            while let Some(transmit) = stack.poll_transmit(now) {
                let path = usize::from(transmit.path.0);
                let payload = transmit.payload.concat();
                carried[path] += payload.len();
                packets += 1;
                let packet = [transmit.header, &payload].concat();
                let meta = RxMeta {
                    checksum_ok: true,
                    gso_size: transmit.gso_size,
                };
                wire.insert((now + DELAYS[path], packets), (1 - from, packet, meta));
            }
        }
        // Time moves on to the next event, a packet or a timer.
        let timers = stacks.iter().filter_map(Stack::next_timeout);
        let Some(next) = timers.chain(wire.keys().map(|key| key.0)).min() else {
            break;
        };
        now = next;
        while let Some(first) = wire.first_entry().filter(|first| first.key().0 <= now) {
            let (to, packet, meta) = first.remove();
            stacks[to].receive(now, &packet, meta);
        }
        for stack in &mut stacks {
            stack.handle_timeout(now);
        }
    }
    println!("{received} bytes in {packets} packets, by path: {carried:?}");
    assert_eq!(received, UPLOAD.len());
}

/// Writes as much as there is room for, and ends the direction after the last byte; otherwise `Writable`
/// follows.
fn upload(now: Instant, stack: &mut Stack, conn: ConnId, written: &mut usize) {
    while let Ok(n @ 1..) = stack.write(now, conn, &UPLOAD[*written..]) {
        *written += n;
    }
    if *written == UPLOAD.len() {
        let _ = stack.shutdown(now, conn);
    }
}

/// Reads all available data, and ends the other direction too once everything is read.
fn download(now: Instant, stack: &mut Stack, conn: ConnId) -> usize {
    let mut total = 0;
    let all = |slices: &[std::io::IoSlice<'_>]| {
        Ok::<_, ApiError>(slices.iter().map(|slice| slice.len()).sum())
    };
    while let Ok(n @ 1..) = stack.read_with(now, conn, all) {
        total += n;
    }
    if stack.read_finished(conn) {
        let _ = stack.shutdown(now, conn);
    }
    total
}

#[test]
fn runs() {
    main();
}
