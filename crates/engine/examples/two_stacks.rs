//! Two stacks joined back to back, in virtual time: a client with two paths uploads to a server.
//!
//! `cargo run -p braid-engine --example two_stacks` prints what happens and how much each path
//! carried. The engine has no clock, no sockets and no threads; all that a driver does for it is in
//! `main`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_engine::{ApiError, Config, ConnId, ConnectOptions, Event, PathConfig, RxMeta, Stack};
use braid_wire::{Instant, Rng};

const SIZE: usize = 1 << 20;
/// How long a packet takes on each path, there; all come back as slowly as on the first.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(25)];

fn main() {
    // Both ends decide by the same strategy on which path a packet goes.
    let strategy = || braid_strategy::by_name("minrtt").expect("a strategy that exists");
    let stack = |n| {
        Stack::new(
            Config::default(),
            Rng::from_seed([n; 32]),
            Box::new(strategy),
        )
    };
    let [mut client, mut server] = [stack(1), stack(2)];

    // Commands: what a host has, and what it wants.
    for n in 0..2 {
        client.add_path(PathConfig::v4(Ipv4Addr::new(10, 0, n, 2)));
    }
    let address = Ipv4Addr::new(10, 0, 9, 1);
    server.add_path(PathConfig::v4(address));
    let remote = SocketAddr::from((address, 80));
    server.listen(remote).expect("nobody else listens there");
    let mut now = Instant::ZERO;
    let options = ConnectOptions::new(remote, strategy());
    client.connect(now, options).expect("a path that is up");

    // Packets under way, by the time of their arrival; the second number keeps their order.
    let mut wire = BTreeMap::new();
    let (mut sent, mut received, mut packets) = (0, 0, 0);
    let mut stacks = [("client", client), ("server", server)];
    loop {
        for (from, (name, stack)) in stacks.iter_mut().enumerate() {
            // After any call: first the events …
            while let Some(event) = stack.poll_event() {
                match event {
                    Event::Connected { conn } | Event::Writable { conn } => {
                        upload(now, stack, conn, &mut sent);
                    }
                    Event::Readable { conn } => received += download(now, stack, conn),
                    Event::Closed { conn, .. } => print_paths(now, name, stack, conn),
                    _ => {}
                }
                if !matches!(event, Event::Readable { .. } | Event::Writable { .. }) {
                    println!("{now} {name}: {event:?}");
                }
            }
            // … then the packets, of up to 64 kB, which the receiver takes as they are.
            while let Some(transmit) = stack.poll_transmit(now) {
                let packet = [transmit.header, &transmit.payload.concat()].concat();
                let arrives = now + DELAYS[usize::from(transmit.path.0)];
                packets += 1;
                wire.insert((arrives, packets), (1 - from, packet, transmit.gso_size));
            }
        }
        // Time goes on to whatever is next, a packet or a timer.
        let timers = stacks.iter().filter_map(|(_, stack)| stack.next_timeout());
        let Some(next) = timers.chain(wire.keys().map(|key| key.0)).min() else {
            break;
        };
        now = next;
        while let Some(first) = wire.first_entry().filter(|first| first.key().0 <= now) {
            let (to, packet, gso_size) = first.remove();
            let checksum_ok = true;
            let meta = RxMeta {
                checksum_ok,
                gso_size,
            };
            stacks[to].1.receive(now, &packet, meta);
        }
        stacks
            .iter_mut()
            .for_each(|(_, stack)| stack.handle_timeout(now));
    }
    println!("{received} of {SIZE} bytes in {packets} packets");
    assert_eq!(received, SIZE);
}

fn print_paths(now: Instant, name: &str, stack: &Stack, conn: ConnId) {
    let stats = stack.conn_stats(conn).expect("it closed just now");
    for path in stats.paths {
        let (bytes, path) = (path.traffic.bytes_sent, path.path.0);
        println!("{now} {name}: {bytes} bytes sent on path {path}");
    }
}

/// Writes what there is room for, and ends the direction after the last byte.
fn upload(now: Instant, stack: &mut Stack, conn: ConnId, sent: &mut usize) {
    while *sent < SIZE {
        match stack.write(now, conn, &[0; 4096][..(SIZE - *sent).min(4096)]) {
            // `Writable` follows.
            Ok(0) | Err(_) => return,
            Ok(n) => *sent += n,
        }
    }
    let _ = stack.shutdown(now, conn);
}

/// Reads what there is, and closes when the other end has.
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
