//! Many connections to a host with little memory.

use core::time::Duration;

use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, Transfer};

use crate::support::{Exchange, at, deep, ms, secs};

/// Bytes of each answer.
const ANSWER: u64 = 4_000_000;
/// The label of the connection whose time is measured.
const HONEST: u32 = 1;

/// Returns a client's stream that asks for an answer, and reads it or nothing at all.
fn asks(label: u32, paused: bool) -> Stream {
    let mut stream = Stream::new(Role::Upload { size: 1 });
    stream.label = label;
    stream.paused = paused;
    stream
}

/// Returns how long an answer takes that is requested now.
fn time_of_one(exchange: &Exchange, transfer: &mut Transfer) -> Duration {
    let begun = transfer.world.now();
    let options = exchange.config(&[]).options();
    let opened = transfer
        .world
        .open(transfer.client, options, asks(HONEST, false));
    opened.unwrap();
    let client = transfer.client;
    transfer.world.run(secs(60), move |world| {
        let stream = world.host(client).labelled(HONEST);
        stream.is_some_and(|s| s.received == ANSWER)
    });
    transfer.world.now().saturating_since(begun)
}

/// Clients that read nothing leave the server's memory filled with data written for them. A client that
/// reads gets its answer as fast as with buffers of 64 KiB, which is what a small share comes to. After
/// the others are gone all memory is free again.
#[test]
fn clients_that_read_nothing_do_not_slow_down_others() {
    let paths = [deep(20, 10, 0.0)];
    let mut exchange = Exchange::new(1, ANSWER);
    exchange.engine.send_buffer = 64 << 10;
    exchange.engine.recv_buffer = 64 << 10;
    let mut alone = exchange.build(7, &paths);
    let answers = Stream::new(Role::Upload { size: ANSWER });
    alone
        .open_with(
            exchange.config(&[]).options(),
            asks(0, false),
            answers.clone(),
        )
        .unwrap();
    alone.world.advance(secs(20));
    let share = time_of_one(&exchange, &mut alone);

    let mut exchange = Exchange::new(1, ANSWER);
    exchange.engine.memory = 8 << 20;
    let mut transfer = exchange.build(7, &paths);
    transfer
        .open_with(exchange.config(&[]).options(), asks(0, true), answers)
        .unwrap();
    for _ in 1..30 {
        transfer.world.advance(ms(300));
        let opened = transfer.world.open(
            transfer.client,
            exchange.config(&[]).options(),
            asks(0, true),
        );
        opened.unwrap();
    }
    transfer.world.advance(secs(10));
    let [client, server] = transfer.ends();
    let held = transfer.world.host(server).stack().buffered();
    assert!(held > 4 << 20, "{held}");
    let beside = time_of_one(&exchange, &mut transfer);
    assert!(
        beside.as_secs_f64() <= share.as_secs_f64() / 0.9,
        "{beside:?}, {share:?} with a share and nobody else"
    );
    assert_eq!(at(&transfer, client).received, 0);
    for end in [client, server] {
        transfer
            .world
            .with_node(end, |host: &mut Host, now| host.abort_labelled(now, 0));
    }
    transfer.world.advance(secs(5));
    for end in [client, server] {
        assert_eq!(transfer.world.host(end).stack().buffered(), 0);
    }
}
