//! The send buffer with several classes: the order of sending, the unity of writes, and the memory it
//! takes.

use std::collections::VecDeque;

use proptest::prelude::*;

use braid_engine::buffer::{BLOCK_SIZE, Pool, RangeSet, SEND_SLICES, SendBuffer};
use braid_engine::{Class, Urgency};
use braid_wire::Instant;

fn class(stream: u32, level: u8) -> Class {
    Class {
        stream,
        urgency: Urgency::new(level).expect("a level from 0 to 7"),
        ..Class::default()
    }
}

fn roomy() -> (Pool, SendBuffer) {
    (Pool::new(1 << 30), SendBuffer::new(0))
}

fn mapped(buffer: &mut SendBuffer, max: u64) -> String {
    let range = buffer.map_next(max);
    let bytes = buffer.slices(range.clone()).concat();
    assert_eq!(bytes.len() as u64, range.end - range.start);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn what_is_more_urgent_goes_first() {
    let (mut pool, mut buffer) = roomy();
    buffer.write(&mut pool, class(1, 7), b"background");
    buffer.write(&mut pool, class(2, 3), b"page");
    buffer.write(&mut pool, class(3, 0), b"voice");
    buffer.write(&mut pool, class(2, 3), b"more");
    assert_eq!(buffer.unmapped(), [5, 0, 0, 8, 0, 0, 0, 10]);
    assert_eq!(buffer.most_urgent(), Urgency::new(0));
    assert_eq!((buffer.start(), buffer.nxt(), buffer.end()), (0, 0, 23));
    assert_eq!(buffer.next_run(), 5);
    assert_eq!(mapped(&mut buffer, 5), "voice");
    assert_eq!(buffer.next_run(), 8);
    // What is less urgent follows in the same mapping.
    assert_eq!(mapped(&mut buffer, 12), "pagemoreback");
    assert_eq!(mapped(&mut buffer, 100), "ground");
    assert_eq!(mapped(&mut buffer, 100), "");
    assert_eq!(buffer.unmapped(), [0; 8]);
    assert_eq!(buffer.most_urgent(), None);
    assert_eq!(buffer.slices(0..23).concat(), b"voicepagemorebackground");
    buffer.release_to(23, RangeSet::new, &mut pool);
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn a_write_that_has_begun_is_finished_first() {
    let (mut pool, mut buffer) = roomy();
    buffer.write(&mut pool, class(1, 5), b"background");
    assert_eq!(mapped(&mut buffer, 4), "back");
    buffer.write(&mut pool, class(1, 5), b" again");
    buffer.write(&mut pool, class(2, 1), b"now");
    assert_eq!(buffer.most_urgent(), Urgency::new(1));
    assert_eq!(buffer.next_run(), 6);
    assert_eq!(mapped(&mut buffer, 4), "grou");
    assert_eq!(mapped(&mut buffer, 100), "ndnow again");
}

/// The rest of a write in further blocks belongs to it.
#[test]
fn a_long_write_that_has_begun_is_finished_first() {
    let (mut pool, mut buffer) = roomy();
    let long = vec![b'l'; 3 * BLOCK_SIZE];
    assert_eq!(buffer.write(&mut pool, class(1, 5), &long), long.len());
    buffer.map_next(10);
    buffer.write(&mut pool, class(2, 0), b"now");
    buffer.write(&mut pool, class(1, 5), &long);
    assert_eq!(buffer.next_run(), long.len() as u64 - 10);
    let rest = buffer.map_next(long.len() as u64 - 10);
    assert_eq!(rest, 10..long.len() as u64);
    assert_eq!(mapped(&mut buffer, 3), "now");
    assert_eq!(buffer.next_run(), long.len() as u64);
}

#[test]
fn a_stream_that_becomes_more_urgent_takes_what_waits_along() {
    let (mut pool, mut buffer) = roomy();
    buffer.write(&mut pool, class(1, 6), b"a1 ");
    buffer.write(&mut pool, class(2, 6), b"b1 ");
    buffer.write(&mut pool, class(1, 7), b"a2 ");
    buffer.write(&mut pool, class(3, 2), b"c1 ");
    buffer.write(&mut pool, class(1, 2), b"a3 ");
    assert_eq!(buffer.unmapped(), [0, 0, 12, 0, 0, 0, 3, 0]);
    assert_eq!(buffer.next_run(), 12);
    assert_eq!(mapped(&mut buffer, 100), "c1 a1 a2 a3 b1 ");
}

#[test]
fn a_stream_that_becomes_less_urgent_keeps_its_order() {
    let (mut pool, mut buffer) = roomy();
    buffer.write(&mut pool, class(1, 2), b"a1 ");
    buffer.write(&mut pool, class(1, 6), b"a2 ");
    buffer.write(&mut pool, class(2, 4), b"b1 ");
    assert_eq!(mapped(&mut buffer, 100), "a1 b1 a2 ");
}

/// A partly sent write is not raised with its stream, since it is next anyway.
#[test]
fn a_write_that_has_begun_is_not_raised() {
    let (mut pool, mut buffer) = roomy();
    buffer.write(&mut pool, class(1, 6), b"a1 ");
    buffer.write(&mut pool, class(2, 4), b"b1 ");
    assert_eq!(mapped(&mut buffer, 1), "b");
    buffer.write(&mut pool, class(2, 1), b"b2 ");
    assert_eq!(buffer.unmapped(), [0, 3, 0, 0, 2, 0, 3, 0]);
    assert_eq!(mapped(&mut buffer, 100), "1 b2 a1 ");
}

/// Streams that were raised out of turn leave gaps in the blocks; a packet has so many slices only.
#[test]
fn one_packet_carries_what_its_slices_reach() {
    let (mut pool, mut buffer) = roomy();
    for n in 0..20 {
        buffer.write(&mut pool, class(1, 6), &[b'a'; 10]);
        buffer.write(&mut pool, class(2 + n, 6), &[b'b'; 10]);
    }
    buffer.write(&mut pool, class(1, 0), b"");
    assert_eq!(buffer.unmapped()[0], 0, "nothing was written");
    buffer.write(&mut pool, class(1, 0), b"a");
    let part = 10 * SEND_SLICES as u64;
    assert_eq!(buffer.map_next(1000), 0..part);
    assert_eq!(buffer.map_next(1000), part..2 * part);
    assert_eq!(buffer.slices(0..part).concat(), vec![b'a'; part as usize]);
    assert_eq!(buffer.reach(5..2 * part), 5..part);
    assert_eq!(buffer.reach(10..2 * part), 10..part + 10);
    assert_eq!(buffer.slices(10..part + 10).len(), SEND_SLICES);
}

/// One class fills its blocks one after the other, however small the writes and whatever is acknowledged.
#[test]
fn small_writes_of_one_class_share_blocks() {
    let (mut pool, mut buffer) = roomy();
    for n in 1..=2 * BLOCK_SIZE {
        assert_eq!(buffer.write(&mut pool, Class::default(), b"x"), 1);
        assert_eq!(pool.used_bytes(), n.next_multiple_of(BLOCK_SIZE));
    }
    let lists = buffer.memory() - pool.used_bytes();
    assert!(lists <= 2 * BLOCK_SIZE / 100, "{lists} bytes of lists");
    assert_eq!(buffer.map_next(u64::MAX), 0..2 * BLOCK_SIZE as u64);
    assert_eq!(buffer.slices(0..u64::MAX).len(), 2);
    let lists = buffer.memory() - pool.used_bytes();
    assert!(lists <= 64, "{lists} bytes of lists");
    buffer.release_to(BLOCK_SIZE as u64, RangeSet::new, &mut pool);
    assert_eq!(pool.used_bytes(), BLOCK_SIZE);
    buffer.write(&mut pool, Class::default(), b"x");
    assert_eq!(pool.used_bytes(), 2 * BLOCK_SIZE);
    buffer.map_next(1);
    buffer.release_to(u64::MAX, RangeSet::new, &mut pool);
    assert_eq!((pool.used_bytes(), buffer.memory()), (0, 0));
}

/// Each urgency has one partly filled block; a block is freed with its last byte.
#[test]
fn every_urgency_has_its_own_blocks() {
    let (mut pool, mut buffer) = roomy();
    for round in 0..4 {
        for level in 0..8 {
            buffer.write(&mut pool, class(round, level), b"few");
        }
    }
    assert_eq!(pool.used_bytes(), 8 * BLOCK_SIZE);
    for level in 1..=7 {
        let urgent = buffer.map_next(buffer.next_run());
        buffer.release_to(urgent.end, RangeSet::new, &mut pool);
        assert_eq!(pool.used_bytes(), (8 - level) * BLOCK_SIZE);
    }
    buffer.write(&mut pool, class(9, 0), b"few");
    assert_eq!(pool.used_bytes(), 2 * BLOCK_SIZE);
    buffer.clear(&mut pool);
    assert_eq!((pool.used_bytes(), buffer.memory()), (0, 0));
    assert_eq!((buffer.start(), buffer.nxt(), buffer.end()), (99, 99, 99));
    assert_eq!((buffer.unmapped(), buffer.next_run()), ([0; 8], 0));
    buffer.write(&mut pool, class(1, 1), b"on");
    assert_eq!(buffer.map_next(9), 99..101);
}

#[test]
fn an_exhausted_pool_stops_each_class_where_its_block_ends() {
    let mut pool = Pool::new(2 * BLOCK_SIZE);
    let mut buffer = SendBuffer::new(0);
    let much = vec![1; 3 * BLOCK_SIZE];
    assert_eq!(buffer.write(&mut pool, class(1, 5), b"x"), 1);
    assert_eq!(buffer.write(&mut pool, class(2, 0), &much), BLOCK_SIZE);
    assert_eq!(buffer.write(&mut pool, class(3, 2), &much), 0);
    assert!(buffer.write_slices(&mut pool, class(3, 2), 1).is_empty());
    buffer.commit(0, &mut pool);
    // The block with room belongs to its urgency.
    assert_eq!(buffer.write(&mut pool, class(4, 5), &much), BLOCK_SIZE - 1);
    let urgent = buffer.map_next(u64::MAX);
    buffer.release_to(urgent.end, RangeSet::new, &mut pool);
    assert_eq!(buffer.write(&mut pool, class(3, 2), b"y"), 1);
    buffer.clear(&mut pool);
    assert_eq!(pool.used_bytes(), 0);
}

// --- against a model ----------------------------------------------------------------------

/// Streams as their readers see them: whole frames, each with its stream and length in front.
#[derive(Debug, Default)]
struct Reader {
    /// The header of the frame being read.
    head: Vec<u8>,
    stream: usize,
    left: usize,
    /// The bytes of frames, by stream.
    seen: [usize; STREAMS],
}

const STREAMS: usize = 4;
const HEAD: usize = 4;

/// Returns byte `n` of a stream.
fn byte_at(stream: usize, n: usize) -> u8 {
    (n ^ (n >> 8) ^ (stream * 85)) as u8
}

fn frame(stream: usize, at: usize, len: usize) -> Vec<u8> {
    let head = [stream as u8, (len >> 16) as u8, (len >> 8) as u8, len as u8];
    let body = (at..at + len).map(|n| byte_at(stream, n));
    head.into_iter().chain(body).collect()
}

impl Reader {
    /// Reads `byte`; returns the stream of a frame that begins with it.
    fn read(&mut self, byte: u8) -> Option<usize> {
        if self.left > 0 {
            let n = self.seen[self.stream];
            assert_eq!(byte, byte_at(self.stream, n));
            self.seen[self.stream] += 1;
            self.left -= 1;
            return None;
        }
        self.head.push(byte);
        if let [stream, len @ ..] = self.head.as_slice()
            && len.len() == HEAD - 1
        {
            self.stream = usize::from(*stream);
            self.left = len.iter().fold(0, |n, b| n << 8 | usize::from(*b));
            self.head.clear();
            return None;
        }
        (self.head.len() == 1).then_some(byte.into())
    }
}

/// The waiting frames by stream: urgency and bytes of each.
#[derive(Debug, Default)]
struct Waiting {
    frames: [VecDeque<(usize, u64)>; STREAMS],
    /// The frame that is partly sent.
    begun: (usize, u64),
}

impl Waiting {
    fn write(&mut self, stream: usize, level: usize, bytes: u64) {
        for frame in &mut self.frames[stream] {
            frame.0 = frame.0.min(level);
        }
        self.frames[stream].push_back((level, bytes));
    }

    fn by_urgency(&self) -> [u64; 8] {
        let mut sums = [0; 8];
        for (level, bytes) in self.frames.iter().flatten().chain([&self.begun]) {
            sums[*level] += bytes;
        }
        sums
    }

    /// Takes `n` bytes of the next frames, whose streams are in `next`.
    fn take(&mut self, mut n: u64, mut next: impl Iterator<Item = usize>) {
        while n > 0 {
            if self.begun.1 == 0 {
                let stream = next.next().expect("bytes of no frame");
                let first = self.by_urgency().iter().position(|b| *b > 0);
                self.begun = self.frames[stream].pop_front().expect("a frame");
                assert_eq!(first, Some(self.begun.0), "another one is more urgent");
            }
            let taken = n.min(self.begun.1);
            self.begun.1 -= taken;
            n -= taken;
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write {
        stream: usize,
        level: u8,
        len: usize,
    },
    Map(u64),
    Ack(u64),
}

/// Returns operations on frames too long to be joined.
fn op() -> impl Strategy<Value = Op> {
    let write = (0..STREAMS, 0..8u8, 4096..40_000usize);
    prop_oneof![
        2 => write.prop_map(|(stream, level, len)| Op::Write { stream, level, len }),
        2 => (1..100_000u64).prop_map(Op::Map),
        1 => (0..100_000u64).prop_map(Op::Ack),
    ]
}

/// Returns operations on small frames, which are joined.
fn small_op() -> impl Strategy<Value = Op> {
    let write = (0..STREAMS, 0..3u8, 0..500usize);
    prop_oneof![
        4 => write.prop_map(|(stream, level, len)| Op::Write { stream, level, len }),
        1 => (1..3000u64).prop_map(Op::Map),
        1 => (0..3000u64).prop_map(Op::Ack),
    ]
}

struct Run {
    pool: Pool,
    buffer: SendBuffer,
    reader: Reader,
    /// The stream as far as it is mapped.
    sent: Vec<u8>,
    written: [usize; STREAMS],
}

impl Run {
    fn new() -> Run {
        let (pool, buffer) = roomy();
        Run {
            pool,
            buffer,
            reader: Reader::default(),
            sent: Vec::new(),
            written: [0; STREAMS],
        }
    }

    fn write(&mut self, stream: usize, level: u8, len: usize) {
        let bytes = frame(stream, self.written[stream], len);
        self.written[stream] += len;
        let class = class(stream as u32, level);
        assert_eq!(
            self.buffer.write(&mut self.pool, class, &bytes),
            bytes.len()
        );
    }

    /// Maps up to `max` bytes; returns the number, and the frames that begin in them.
    fn map(&mut self, max: u64) -> (u64, Vec<usize>) {
        let most = max.min(self.buffer.unmapped().iter().sum());
        let range = self.buffer.map_next(max);
        assert_eq!(range.start, self.sent.len() as u64);
        assert_eq!(self.buffer.reach(range.clone()), range);
        let bytes = self.buffer.slices(range.clone()).concat();
        let n = range.end - range.start;
        assert_eq!(n, bytes.len() as u64);
        assert!(n <= most && (n > 0 || most == 0));
        self.sent.extend_from_slice(&bytes);
        let streams = bytes.iter().filter_map(|b| self.reader.read(*b));
        (n, streams.collect())
    }

    fn ack(&mut self, n: u64) {
        let una = (self.buffer.start() + n).min(self.buffer.nxt());
        self.buffer.release_to(una, RangeSet::new, &mut self.pool);
        assert_eq!(self.buffer.start(), una);
    }

    fn check(&self) {
        let buffer = &self.buffer;
        let waiting: u64 = buffer.unmapped().iter().sum();
        assert_eq!(waiting, buffer.end() - buffer.nxt());
        assert_eq!(buffer.is_empty(), self.pool.used_bytes() == 0);
        assert!(buffer.memory() >= buffer.len());
        let mut at = buffer.start();
        while at < buffer.nxt() {
            let range = buffer.reach(at..buffer.nxt());
            let bytes = buffer.slices(range.clone()).concat();
            let place = range.start as usize..range.end as usize;
            assert!(bytes == self.sent[place], "other bytes at {at}");
            at = range.end;
        }
    }

    /// Maps and releases the rest: every frame is whole, and nothing is left.
    fn finish(mut self) {
        while self.map(60_000).0 > 0 {}
        self.check();
        assert_eq!(self.reader.seen, self.written);
        assert_eq!((self.reader.left, self.reader.head.len()), (0, 0));
        self.ack(u64::MAX / 2);
        assert_eq!(self.pool.used_bytes(), 0);
    }
}

/// Writes past their deadline are dropped whole, but not a partly sent one.
#[test]
fn what_is_late_is_dropped() {
    let (mut pool, mut buffer) = roomy();
    let at = |ms| Class {
        deadline: Some(Instant::from_millis(ms)),
        ..class(1, 3)
    };
    for (ms, frame) in [
        (10, "begun"),
        (20, "late"),
        (40, "timely"),
        (30, "late too"),
    ] {
        buffer.write(&mut pool, at(ms), frame.as_bytes());
    }
    buffer.write(&mut pool, class(1, 3), b" and for ever");
    assert_eq!(mapped(&mut buffer, 2), "be");
    assert_eq!(buffer.drop_late(Instant::from_millis(19), &mut pool), 0);
    assert_eq!(buffer.drop_late(Instant::from_millis(30), &mut pool), 12);
    assert_eq!(buffer.end(), 24);
    assert_eq!(mapped(&mut buffer, 100), "guntimely and for ever");
    assert_eq!(buffer.drop_late(Instant::from_millis(50), &mut pool), 0);
    buffer.release_to(24, RangeSet::new, &mut pool);
    // Dropped data frees its memory.
    let large = vec![0; 3 * BLOCK_SIZE];
    buffer.write(&mut pool, at(60), &large);
    assert_eq!(
        buffer.drop_late(Instant::from_millis(60), &mut pool),
        large.len() as u64
    );
    assert_eq!((buffer.len(), pool.used_bytes()), (0, 0));
    buffer.write(&mut pool, class(1, 3), b"more");
    assert_eq!(mapped(&mut buffer, 100), "more");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_go_by_urgency(ops in prop::collection::vec(op(), 1..60)) {
        let mut run = Run::new();
        let mut waiting = Waiting::default();
        for op in ops {
            match op {
                Op::Write { stream, level, len } => {
                    run.write(stream, level, len);
                    waiting.write(stream, level.into(), (HEAD + len) as u64);
                }
                Op::Map(max) => {
                    let (n, streams) = run.map(max);
                    waiting.take(n, streams.into_iter());
                }
                Op::Ack(n) => run.ack(n),
            }
            prop_assert_eq!(run.buffer.unmapped(), waiting.by_urgency());
            run.check();
        }
        run.finish();
    }

    #[test]
    fn small_frames_stay_whole_and_in_order(ops in prop::collection::vec(small_op(), 1..300)) {
        let mut run = Run::new();
        for op in ops {
            match op {
                Op::Write { stream, level, len } => run.write(stream, level, len),
                Op::Map(max) => drop(run.map(max)),
                Op::Ack(n) => run.ack(n),
            }
            run.check();
        }
        run.finish();
    }
}
