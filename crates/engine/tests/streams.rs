//! Streams of one session over one connection between two stacks, 10 ms apart.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::streams::{
    BadFrame, HEADER_LEN, MAX_FRAME_LEN, MAX_STREAMS, MAX_UNREAD_BYTES, Read, StreamError, Streams,
};
use braid_engine::{Config, ConnId, ConnectOptions, Event, PathConfig, RxMeta, Stack, Urgency};
use braid_wire::{Instant, Rng};
use proptest::prelude::*;

const ONE_WAY: Duration = Duration::from_millis(10);

struct Pair {
    now: Instant,
    stacks: [Stack; 2],
    conns: [Option<ConnId>; 2],
    /// Packets in flight, by time of arrival.
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>, RxMeta)>,
    packets: u64,
}

impl Pair {
    /// Connects two stacks; returns the streams of both ends, the writer's and the reader's.
    fn new() -> (Pair, Streams, Streams) {
        let stack = |n: u8| {
            let strategy = || braid_strategy::by_name("minrtt").unwrap();
            let rng = Rng::for_component(7, n.into());
            let mut stack = Stack::new(Config::default(), rng, Box::new(strategy));
            let path = PathConfig::v4(Ipv4Addr::new(192, 0, 2, n));
            let path = stack.add_path(path).unwrap();
            stack.set_path_up(Instant::ZERO, path, true);
            stack
        };
        let mut pair = Pair {
            now: Instant::from_millis(1),
            stacks: [stack(1), stack(2)],
            conns: [None, None],
            wire: BTreeMap::new(),
            packets: 0,
        };
        let server = (Ipv4Addr::new(192, 0, 2, 2), 80).into();
        pair.stacks[1].listen(server).unwrap();
        let strategy = braid_strategy::by_name("minrtt").unwrap();
        let options = ConnectOptions::new(server, strategy);
        pair.conns[0] = pair.stacks[0].connect(pair.now, options).ok();
        pair.run_for(Duration::from_millis(100));
        let [writer, reader] = pair
            .conns
            .map(|c| Streams::new(c.expect("it is connected")));
        (pair, writer, reader)
    }

    fn at(&mut self, end: usize) -> (Instant, &mut Stack) {
        (self.now, &mut self.stacks[end])
    }

    fn flush(&mut self) {
        for (from, stack) in self.stacks.iter_mut().enumerate() {
            while let Some(event) = stack.poll_event() {
                if let Event::Accepted { conn, .. } = event {
                    self.conns[from] = Some(conn);
                }
            }
            while let Some(transmit) = stack.poll_transmit(self.now) {
                self.packets += 1;
                let packet = [transmit.header, &transmit.payload.concat()].concat();
                let meta = RxMeta {
                    checksum_ok: true,
                    gso_size: transmit.gso_size,
                };
                let key = (self.now + ONE_WAY, self.packets);
                self.wire.insert(key, (1 - from, packet, meta));
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.flush();
            let timers = self.stacks.iter().filter_map(Stack::next_timeout);
            let next = timers.chain(self.wire.keys().map(|key| key.0)).min();
            let Some(next) = next.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(first) = self.wire.first_entry().filter(|f| f.key().0 <= self.now) {
                let (to, packet, meta) = first.remove();
                self.stacks[to].receive(self.now, &packet, meta);
            }
            for stack in &mut self.stacks {
                stack.handle_timeout(self.now);
            }
        }
        self.now = end;
    }
}

/// Returns bytes whose values depend on stream and position, so that mixed-up bytes are noticed.
fn pattern(stream: u32, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(167).wrapping_add(stream * 13) as u8;
    (0..len).map(byte).collect()
}

/// Reads all available bytes of a stream into `into`; returns whether the stream has ended.
fn drain(streams: &mut Streams, stream: u32, into: &mut Vec<u8>) -> bool {
    let mut buf = [0; 5_000];
    loop {
        match streams.read(stream, &mut buf).unwrap() {
            Read::Bytes(n) => into.extend_from_slice(&buf[..n]),
            Read::Missed(n) => panic!("{n} bytes are missing"),
            Read::End => return true,
            Read::Nothing => return false,
        }
    }
}

fn urgency(level: u8) -> Urgency {
    Urgency::new(level).unwrap()
}

/// The stream written last arrives first, because it is more urgent, and each stream is complete.
#[test]
fn the_most_urgent_stream_comes_first_and_each_in_order() {
    let (mut pair, mut w, mut r) = Pair::new();
    let sizes = [200_000, 50_000];
    let streams = [7, 0].map(|level| w.open(urgency(level)).unwrap());
    for (stream, size) in streams.into_iter().zip(sizes) {
        let data = pattern(stream, size);
        assert_eq!(w.write(pair.at(0), stream, &data, None), Ok(size));
        assert_eq!(w.finish(pair.at(0), stream), Ok(true));
    }
    let (mut got, mut ended) = ([Vec::new(), Vec::new()], Vec::new());
    while ended.len() < 2 {
        pair.run_for(Duration::from_millis(1));
        r.receive(pair.at(1)).unwrap();
        let there: Vec<u32> = r.incoming().collect();
        for stream in there {
            if drain(&mut r, stream, &mut got[stream as usize]) {
                ended.push(stream);
            }
        }
    }
    assert_eq!(ended, [1, 0]);
    for (stream, size) in streams.into_iter().zip(sizes) {
        assert!(got[stream as usize] == pattern(stream, size));
    }
    assert_eq!(r.read(0, &mut [0]), Err(StreamError::NotOpen));
    assert_eq!(
        w.write(pair.at(0), 0, b"x", None),
        Err(StreamError::NotOpen)
    );
}

#[test]
fn late_frames_are_dropped_and_reported() {
    let (mut pair, mut w, mut r) = Pair::new();
    let bulk = w.open(urgency(0)).unwrap();
    let live = w.open(urgency(5)).unwrap();
    // The round trip is 20 ms, so the send window does not let all of these bytes leave before the deadline of 5
    // ms.
    w.write(pair.at(0), bulk, &[1; 200_000], None).unwrap();
    let late = pair.now + Duration::from_millis(5);
    let frames = [
        (b"first", Some(late)),
        (b"again", Some(late)),
        (b"third", None),
    ];
    for (text, deadline) in frames {
        assert_eq!(w.write(pair.at(0), live, text, deadline), Ok(5));
    }
    pair.run_for(Duration::from_secs(2));
    r.receive(pair.at(1)).unwrap();
    let mut buf = [0; 10];
    assert_eq!(r.read(live, &mut buf), Ok(Read::Missed(10)));
    assert_eq!(r.read(live, &mut buf), Ok(Read::Bytes(5)));
    assert_eq!(&buf[..5], b"third");
    assert_eq!(r.read(live, &mut buf), Ok(Read::Nothing));
}

#[test]
fn an_unread_stream_stops_the_writer_and_loses_nothing() {
    let (mut pair, mut w, mut r) = Pair::new();
    let stream = w.open(Urgency::default()).unwrap();
    let data = pattern(stream, 30 << 20);
    let (mut written, mut got) = (0, Vec::new());
    loop {
        let n = w.write(pair.at(0), stream, &data[written..], None).unwrap();
        pair.run_for(Duration::from_secs(5));
        r.receive(pair.at(1)).unwrap();
        if n == 0 {
            break;
        }
        written += n;
    }
    assert!(written < 20 << 20, "{written} bytes are on the way");
    while got.len() < data.len() {
        drain(&mut r, stream, &mut got);
        r.receive(pair.at(1)).unwrap();
        assert!(got.len() < written || r.incoming().count() == 1);
        written += w.write(pair.at(0), stream, &data[written..], None).unwrap();
        pair.run_for(Duration::from_millis(50));
        r.receive(pair.at(1)).unwrap();
    }
    assert!(got == data);
}

#[test]
fn streams_beyond_the_limit_wait_until_others_are_read() {
    let (mut pair, mut w, mut r) = Pair::new();
    let open: Vec<u32> = (0..MAX_STREAMS)
        .map(|_| w.open(Urgency::default()).unwrap())
        .collect();
    assert_eq!(
        w.open(Urgency::MOST_URGENT),
        Err(StreamError::TooManyStreams)
    );
    for stream in open {
        assert_eq!(w.finish(pair.at(0), stream), Ok(true));
    }
    for _ in 0..3 {
        let stream = w.open(Urgency::default()).unwrap();
        w.write(pair.at(0), stream, &[stream as u8; 3], None)
            .unwrap();
        assert_eq!(w.finish(pair.at(0), stream), Ok(true));
    }
    pair.stacks[0]
        .shutdown(pair.now, pair.conns[0].unwrap())
        .unwrap();
    pair.run_for(Duration::from_secs(1));
    r.receive(pair.at(1)).unwrap();
    assert_eq!(r.incoming().count(), MAX_STREAMS);
    for stream in 0..MAX_STREAMS as u32 {
        assert_eq!(r.read(stream, &mut []), Ok(Read::End));
        r.receive(pair.at(1)).unwrap();
    }
    for stream in (MAX_STREAMS as u32..).take(3) {
        let mut got = Vec::new();
        assert!(drain(&mut r, stream, &mut got));
        assert_eq!(got, [stream as u8; 3]);
    }
}

#[test]
fn a_stream_without_its_end_is_cut() {
    let (mut pair, mut w, mut r) = Pair::new();
    let stream = w.open(Urgency::default()).unwrap();
    w.write(pair.at(0), stream, b"half", None).unwrap();
    pair.stacks[0]
        .shutdown(pair.now, pair.conns[0].unwrap())
        .unwrap();
    pair.run_for(Duration::from_secs(1));
    r.receive(pair.at(1)).unwrap();
    let mut buf = [0; 10];
    assert_eq!(r.read(stream, &mut buf), Ok(Read::Bytes(4)));
    assert_eq!(r.read(stream, &mut buf), Err(StreamError::Cut));
}

#[test]
fn malformed_frames_are_reported() {
    let frame = |flags: u8, len: u32, at: u64| {
        let len = len.to_be_bytes();
        [&[0, 0, 0, 9, flags][..], &len[1..], &at.to_be_bytes()].concat()
    };
    let most = MAX_FRAME_LEN as u32;
    let ended = [frame(1, 0, 0), frame(0, 1, 0)].concat();
    let back = [frame(0, 2, 0), b"ab".to_vec(), frame(0, 2, 1)].concat();
    for (bytes, bad) in [
        (frame(0, 0, 0), BadFrame::Empty),
        (frame(2, 5, 0), BadFrame::Flags(2)),
        (frame(0, most + 1, 0), BadFrame::Length(MAX_FRAME_LEN + 1)),
        (frame(0, 9, u64::MAX), BadFrame::Place(u64::MAX)),
        (ended, BadFrame::Place(0)),
        (back, BadFrame::Place(1)),
    ] {
        let (mut pair, _, mut r) = Pair::new();
        let conn = pair.conns[0].unwrap();
        let (now, stack) = pair.at(0);
        stack.write(now, conn, &bytes).unwrap();
        pair.run_for(Duration::from_millis(100));
        let error = StreamError::BadFrame(bad);
        assert_eq!(r.receive(pair.at(1)), Err(error), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any writes arrive, in order within each stream.
    #[test]
    fn any_writes_arrive(
        writes in prop::collection::vec((0u32..5, 0usize..5_000, 0u8..8), 1..40),
    ) {
        let (mut pair, mut w, mut r) = Pair::new();
        let mut sent = vec![Vec::new(); 5];
        for stream in 0..5 {
            prop_assert_eq!(w.open(Urgency::default()), Ok(stream));
        }
        for (stream, len, level) in writes {
            w.set_urgency(stream, urgency(level)).unwrap();
            let sent = &mut sent[stream as usize];
            let data = pattern(stream, sent.len() + len);
            prop_assert_eq!(w.write(pair.at(0), stream, &data[sent.len()..], None), Ok(len));
            *sent = data;
            pair.run_for(Duration::from_millis(u64::from(level)));
        }
        for stream in 0..5 {
            prop_assert_eq!(w.finish(pair.at(0), stream), Ok(true));
        }
        let (mut got, mut ended) = (vec![Vec::new(); 5], 0);
        while ended < 5 {
            pair.run_for(Duration::from_millis(10));
            r.receive(pair.at(1)).unwrap();
            let there: Vec<u32> = r.incoming().collect();
            for stream in there {
                ended += u32::from(drain(&mut r, stream, &mut got[stream as usize]));
            }
        }
        prop_assert!(got == sent);
    }

    /// Any bytes are decoded as frames or refused, within bounded memory.
    #[test]
    fn any_bytes_are_read(
        bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..4_000),
    ) {
        let (mut pair, _, mut r) = Pair::new();
        let conn = pair.conns[0].unwrap();
        let (now, stack) = pair.at(0);
        stack.write(now, conn, &bytes).unwrap();
        pair.run_for(Duration::from_millis(200));
        let _ = r.receive(pair.at(1));
        prop_assert!(r.incoming().count() <= bytes.len() / HEADER_LEN);
        let there: Vec<u32> = r.incoming().collect();
        let mut read = 0;
        for stream in there {
            let mut buf = [0; 4_000];
            while let Ok(Read::Bytes(n)) = r.read(stream, &mut buf) {
                read += n;
            }
        }
        prop_assert!(read <= bytes.len() && read <= MAX_UNREAD_BYTES);
    }
}
