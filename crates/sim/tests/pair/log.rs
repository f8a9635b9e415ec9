//! Logs: the same in every run, and equal to the counters of engines and links.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use braid_engine::Protocol;
use braid_engine::stats::Traffic;
use braid_links::middlebox::{Chain, Keep, Merge, Nat, NatConfig, SequenceShift, Split};
use braid_links::{Change, CoDel, Counters, Reorder, Schedule, Settings};
use braid_sim::tap::PacketEvent;
use braid_sim::transfer::{Direction, PathSettings, REQUEST, TransferConfig, external_addr};
use braid_sim::{Host, LinkId, Packet, Tap, Transfer};
use braid_wire::Instant;
use serde_json::Value;

use crate::support::{link, path};

const SIZE: u64 = 400_000;
const MBIT: u64 = 1_000_000;

fn two_paths(loss: f64) -> [PathSettings; 2] {
    [path(5, 20, loss), path(5, 50, loss)]
}

/// Returns a transfer by a strategy that lets slow start overrun the queues.
fn config(paths: &[PathSettings], direction: Direction) -> TransferConfig<'_> {
    TransferConfig {
        strategy: "minrtt",
        ..TransferConfig::new(paths, SIZE, direction)
    }
}

/// A file in memory.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn take(&self) -> Vec<u8> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The lines of a log, by type.
struct Lines(BTreeMap<String, Vec<Value>>);

impl Lines {
    fn parse(log: &[u8]) -> Lines {
        let mut lines = BTreeMap::<String, Vec<Value>>::new();
        for line in log.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            let value: Value = serde_json::from_slice(line).unwrap();
            let kind = value["type"].as_str().unwrap().to_owned();
            lines.entry(kind).or_default().push(value);
        }
        Lines(lines)
    }

    fn of(&self, kind: &str) -> &[Value] {
        self.0.get(kind).map_or(&[], |lines| lines)
    }
}

fn number(line: &Value, field: &str) -> u64 {
    line[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field} of {line}"))
}

/// Runs a transfer to its end and returns its log.
fn logged(seed: u64, config: &TransferConfig<'_>) -> Vec<u8> {
    let mut transfer = Transfer::build(seed, config);
    let file = Memory::default();
    let log = transfer.log(Box::new(file.clone()));
    transfer.open(config).unwrap();
    assert!(transfer.run(Duration::from_secs(120)), "{transfer:?}");
    log.finish().unwrap();
    file.take()
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let paths = two_paths(0.02);
    let config = config(&paths, Direction::Down);
    let log = logged(7, &config);
    assert!(log.len() > 100_000, "{} bytes", log.len());
    assert_eq!(log, logged(7, &config));
    assert_ne!(log, logged(8, &config));
}

#[test]
fn a_log_does_not_disturb_the_run() {
    let mut paths = two_paths(0.02);
    paths[1].down.codel = Some(CoDel::default());
    let config = config(&paths, Direction::Down);
    let run = |log: bool| {
        let mut transfer = Transfer::build(7, &config);
        if log {
            transfer.log(Box::new(io::sink()));
            let sink = Box::new(io::sink());
            transfer.capture(transfer.client, sink);
        }
        transfer.open(&config).unwrap();
        assert!(transfer.run(Duration::from_secs(120)));
        let links = transfer.world.links();
        let counters: Vec<_> = links.map(|link| transfer.world.counters(link)).collect();
        (transfer.world.now(), counters)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn every_delivered_byte_appears_once() {
    let mut harsh = two_paths(0.01);
    for path in &mut harsh {
        // Duplicates are so frequent that the queue takes one copy and drops another.
        path.down.duplicate = 0.3;
        path.down.corrupt = 0.01;
        path.down.reorder = Reorder {
            share: 0.02,
            detour: Duration::from_millis(5),
        };
    }
    for paths in [two_paths(0.0), two_paths(0.02), harsh] {
        for protocol in [Protocol::Mptcp, Protocol::Tcp] {
            for (direction, from, sizes) in [
                (Direction::Down, "server", [REQUEST, SIZE]),
                (Direction::Up, "client", [SIZE, 0]),
            ] {
                let config = TransferConfig {
                    protocol,
                    ..config(&paths, direction)
                };
                let log = Lines::parse(&logged(3, &config));
                let context = format!("{protocol:?} {from} {:?}", paths[0].down.loss);
                for (host, size) in ["client", "server"].into_iter().zip(sizes) {
                    let sent = log.of("segment").iter().filter(|s| s["host"] == host);
                    assert_delivered_once(sent, size, &context);
                }
            }
        }
    }
}

fn assert_delivered_once<'a>(sent: impl Iterator<Item = &'a Value>, size: u64, context: &str) {
    let mut delivered = BTreeMap::new();
    for segment in sent {
        let sent_at = number(segment, "sent_ns");
        let (arrived, ready) = (&segment["arrived_ns"], &segment["delivered_ns"]);
        assert_eq!(ready.is_null(), number(segment, "fresh") == 0, "{segment}");
        if let Some(arrived) = arrived.as_u64() {
            assert!(sent_at < arrived, "{segment}");
            assert!(segment["dropped_ns"].is_null(), "{segment}");
            assert!(ready.as_u64().is_none_or(|ready| arrived <= ready));
        }
        // Each path has a link in each direction, and subflows are opened in the order of paths.
        let link = number(segment, "subflow") * 2 + u64::from(segment["host"] == "server");
        assert_eq!(number(segment, "link"), link, "{segment}");
        if let Some(ready) = ready.as_u64() {
            assert_eq!(
                number(segment, "fresh"),
                number(segment, "len"),
                "{segment}"
            );
            let range = (number(segment, "len"), ready);
            let other = delivered.insert(number(segment, "dsn"), range);
            assert_eq!(other, None, "{context}: {segment}");
        }
    }
    let (mut next, mut latest) = (0, 0);
    for (dsn, (len, at)) in delivered {
        assert_eq!(dsn, next, "{context}");
        assert!(
            at >= latest,
            "{context}: {dsn} delivered before what precedes it"
        );
        (next, latest) = (dsn + len, at);
    }
    assert_eq!(next, size, "{context}");
}

/// Returns the log of an upload through middleboxes, with losses on both sides of them.
fn logged_through(chain: Chain, loss: f64) -> Lines {
    let paths = [path(5, 10, loss)];
    let config = config(&paths, Direction::Up);
    let mut transfer = Transfer::through(1, &config, [chain]);
    let (near, back) = transfer.world.interfaces(transfer.client)[0];
    for near in [near, back] {
        transfer.world.set_link(near, link(5, 10, loss));
    }
    let file = Memory::default();
    let log = transfer.log(Box::new(file.clone()));
    transfer.open(&config).unwrap();
    assert!(transfer.run(Duration::from_secs(60)));
    log.finish().unwrap();
    Lines::parse(&file.take())
}

#[test]
fn segments_are_followed_through_middleboxes() {
    let rewriting = || {
        Chain::new()
            .and(Nat::new(NatConfig::new(external_addr(0))))
            .and(SequenceShift::new(1))
    };
    for loss in [0.0, 0.02] {
        let log = logged_through(rewriting(), loss);
        assert_delivered_once(log.of("segment").iter(), SIZE, "rewritten");
        let cut = logged_through(rewriting().and(Split::new(700)), loss);
        let hold = Duration::from_millis(2);
        let joined = rewriting().and(Merge::new(10_000, hold, Keep::First));
        let joined = logged_through(joined, loss);
        for log in [log, cut, joined] {
            let segments = log.of("segment");
            let fresh = segments.iter().map(|s| number(s, "fresh")).sum::<u64>();
            assert_eq!(fresh, SIZE);
            let lost = segments.iter().filter(|s| s["dropped_for"] == "loss");
            assert_eq!(lost.count() > 0, loss > 0.0);
        }
    }
}

/// Returns three quarters of a download, while the engines still have their counters. The first path has
/// gone dark on the way.
fn interrupted() -> (Transfer, Lines) {
    let paths = two_paths(0.01);
    let config = config(&paths, Direction::Down);
    let mut transfer = Transfer::build(5, &config);
    let file = Memory::default();
    let log = transfer.log(Box::new(file.clone()));
    let (_, down) = transfer.links[0];
    let dark = Change {
        at: Duration::from_millis(200),
        settings: Settings {
            up: false,
            ..paths[0].down.clone()
        },
    };
    transfer.world.schedule(down, Schedule::new([dark]));
    transfer.open(&config).unwrap();
    let client = transfer.client;
    let received = |host: &Host| host.open_streams().map(|(_, s)| s.received).sum::<u64>();
    let limit = Duration::from_secs(120);
    let world = &mut transfer.world;
    assert!(world.run(limit, |w| received(w.node(client)) > SIZE * 3 / 4));
    log.finish().unwrap();
    (transfer, Lines::parse(&file.take()))
}

#[test]
fn totals_are_those_of_the_engines() {
    let (transfer, log) = interrupted();
    let segments = || log.of("segment").iter().filter(|s| s["host"] == "server");
    let host: &Host = transfer.world.node(transfer.server);
    let (conn, _) = host.open_streams().next().unwrap();
    let stats = host.stack().conn_stats(conn).unwrap();
    let mut traffic = Traffic::default();
    stats
        .paths
        .iter()
        .for_each(|path| traffic.add(&path.moved.traffic));
    let count = |kind| segments().filter(|s| s["kind"] == kind).count() as u64;
    let bytes = |kind| {
        let counted = segments().filter(|s| s["kind"] == kind);
        counted.map(|s| number(s, "len")).sum::<u64>()
    };
    assert_eq!(bytes("new"), stats.snd_nxt);
    assert_eq!(bytes("new") + bytes("copy"), traffic.bytes_sent);
    assert_eq!(bytes("copy"), traffic.bytes_copied);
    assert_eq!(bytes("retransmission"), traffic.bytes_retransmitted);
    assert!(traffic.bytes_copied > 0 && traffic.bytes_retransmitted > 0);
    assert_eq!(count("new") + count("copy"), traffic.packets_sent);
    assert_eq!(count("retransmission"), traffic.packets_retransmitted);
    for subflow in host.stack().subflows(conn) {
        let sent = segments().filter(|s| number(s, "subflow") == u64::from(subflow.id.0));
        let first = sent.filter(|s| s["kind"] != "retransmission");
        let bytes = first.map(|s| number(s, "len")).sum::<u64>();
        assert_eq!(bytes, subflow.traffic.bytes_sent, "{subflow:?}");
    }
    let arrived = segments().map(|s| number(s, "fresh")).sum::<u64>();
    let peer: &Host = transfer.world.node(transfer.client);
    let (conn, _) = peer.open_streams().next().unwrap();
    let stats = peer.stack().conn_stats(conn).unwrap();
    assert_eq!(arrived, stats.rcv_nxt + stats.out_of_order);
}

#[test]
fn drops_are_those_of_the_links() {
    let (transfer, log) = interrupted();
    for why in ["loss", "queue", "down"] {
        let tally = |counters: Counters| match why {
            "loss" => counters.dropped_loss,
            "queue" => counters.dropped_queue,
            _ => counters.dropped_down,
        };
        let segments = log.of("segment").iter().filter(|s| s["host"] == "server");
        let logged = segments.filter(|s| s["dropped_for"] == why).count() as u64;
        let links = transfer.links.iter().map(|(_, down)| *down);
        let counters = links.map(|link| tally(transfer.world.counters(link)));
        let counted = counters.map(|tally| tally.packets).sum::<u64>();
        // Few of the server's packets have no payload.
        assert!(logged <= counted, "{why}: {logged} of {counted}");
        assert!(counted - logged <= 4, "{why}: {logged} of {counted}");
        assert!(logged > 0, "{why}");
    }
}

#[test]
fn acknowledgements_show_the_window() {
    let paths = two_paths(0.0);
    let log = Lines::parse(&logged(1, &config(&paths, Direction::Down)));
    let acks: Vec<_> = log
        .of("ack")
        .iter()
        .filter(|a| a["host"] == "server")
        .collect();
    assert!(acks.len() > 100, "{}", acks.len());
    let mut una = BTreeMap::new();
    for ack in &acks {
        let subflow = number(ack, "subflow");
        let delay = [20, 50][subflow as usize];
        assert!(number(ack, "srtt_ns") >= 2 * delay * 1_000_000, "{ack}");
        assert!(number(ack, "rto_ns") >= 200_000_000, "{ack}");
        let before = una.insert(subflow, number(ack, "una"));
        assert!(before.unwrap_or(0) <= una[&subflow], "{ack}");
    }
    assert!(acks[0]["ssthresh"].is_null(), "slow start at first");
    // Slow start ends when it overruns the queues.
    assert!(acks.iter().any(|a| a["ssthresh"].is_u64()));
    assert_eq!(una.len(), 2);
    // All sent bytes are acknowledged, and at most a FIN besides.
    let sent = log.of("segment").iter().filter(|s| s["host"] == "server");
    for segment in sent {
        let end = number(segment, "ssn") + number(segment, "len");
        assert!(end <= una[&number(segment, "subflow")], "{segment}");
    }
}

/// The packets that passed a link: (sent, delivered, bytes).
#[derive(Debug, Default)]
struct Passed(Vec<(Instant, Instant, u64)>);

impl Tap for Passed {
    fn on_packet(&mut self, at: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        if let PacketEvent::Delivered { sent_at } = what {
            self.0.push((sent_at, at, packet.bytes.len() as u64));
        }
    }
}

#[test]
fn samples_show_the_queues() {
    const DELAY: Duration = Duration::from_millis(20);
    let paths = [path(5, 20, 0.0)];
    let config = config(&paths, Direction::Down);
    let mut transfer = Transfer::build(1, &config);
    let file = Memory::default();
    let log = transfer.log(Box::new(file.clone()));
    let (_, down) = transfer.links[0];
    let passed = Arc::new(Mutex::new(Passed::default()));
    transfer.world.tap(down, Box::new(passed.clone()));
    transfer.open(&config).unwrap();
    assert!(transfer.run(Duration::from_secs(60)));
    log.finish().unwrap();
    let log = Lines::parse(&file.take());
    let samples = log.of("link").iter();
    let samples: Vec<_> = samples
        .filter(|s| number(s, "link") == u64::from(down.0))
        .collect();
    let passed = &passed.lock().unwrap().0;
    let mut most = 0;
    for (n, sample) in samples.iter().enumerate() {
        let at = 1_000_000_000 + n as u64 * 10_000_000;
        assert_eq!(number(sample, "at_ns"), at);
        // A packet waits from its sending until the line begins to serialise it.
        let at = Instant::from_nanos(at);
        let waiting = passed.iter().filter(|(sent, arrived, bytes)| {
            let serialised = Duration::from_nanos(bytes * 8 * 1_000_000_000 / (5 * MBIT));
            let begun = *arrived - DELAY - serialised;
            *sent < at && begun >= at
        });
        let bytes: Vec<_> = waiting.map(|(_, _, bytes)| *bytes).collect();
        let expected = (bytes.len() as u64, bytes.iter().sum::<u64>());
        let seen = (
            number(sample, "queue_packets"),
            number(sample, "queue_bytes"),
        );
        assert_eq!(seen, expected, "at {at}");
        most = most.max(seen.0);
    }
    let counters = transfer.world.counters(down);
    assert!(most > 20 && most <= counters.queue_max.packets, "{most}");
    assert_eq!(samples.len() as u64, last_sample(&transfer));
}

/// Returns the number of samples that fit into a run.
fn last_sample(transfer: &Transfer) -> u64 {
    (transfer.world.now().as_nanos() - 1_000_000_000) / 10_000_000 + 1
}

#[test]
fn samples_show_what_is_out_of_order() {
    let paths = two_paths(0.02);
    let log = Lines::parse(&logged(2, &config(&paths, Direction::Down)));
    let client = || log.of("conn").iter().filter(|s| s["host"] == "client");
    let most = |field: &str| client().map(|s| number(s, field)).max().unwrap();
    assert!(most("out_of_order") > 10_000, "holes in the stream");
    let subflows = client().flat_map(|s| s["subflows"].as_array().unwrap());
    let holes = subflows.map(|s| number(s, "out_of_order")).max().unwrap();
    assert!(holes > 1_000, "holes in a subflow");
    assert_eq!(most("unread"), 0, "the client reads at once");
    let windows = log.of("conn").iter().map(|s| number(s, "recv_window"));
    assert!(windows.min() > Some(100_000));
    let events: Vec<_> = log.of("event").iter().collect();
    for host in ["client", "server"] {
        let seen = events.iter().filter(|e| e["host"] == host);
        let names: Vec<_> = seen.map(|e| e["event"].as_str().unwrap()).collect();
        assert_eq!(
            names
                .iter()
                .filter(|n| **n == "subflow_established")
                .count(),
            2
        );
        assert_eq!(names.last(), Some(&"closed"));
    }
}
