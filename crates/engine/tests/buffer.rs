//! The buffers against simple models, and their bounds.

use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;

use braid_engine::Class;
use braid_engine::buffer::{
    BLOCK_SIZE, Block, Data, InsertError, Inserted, MAX_HOLES, Pool, RangeSet, RecvBuffer,
    SendBuffer,
};

/// The byte that every test stream has at `offset`; it differs between neighbouring blocks.
fn byte_at(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 15).wrapping_mul(37)) as u8
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

fn concat(slices: &[&[u8]]) -> Vec<u8> {
    slices.concat()
}

// --- RangeSet -----------------------------------------------------------------------------

const SPACE: u64 = 96;

#[derive(Debug, Clone)]
enum RangeOp {
    Insert(Range<u64>),
    Remove(Range<u64>),
    RemoveBelow(u64),
    PopFront(u64),
}

fn range_op() -> impl Strategy<Value = RangeOp> {
    let range = (0..SPACE, 0..12u64).prop_map(|(s, l)| s..(s + l).min(SPACE));
    prop_oneof![
        5 => range.clone().prop_map(RangeOp::Insert),
        3 => range.prop_map(RangeOp::Remove),
        1 => (0..SPACE / 2).prop_map(RangeOp::RemoveBelow),
        1 => (0..SPACE / 2).prop_map(RangeOp::PopFront),
    ]
}

fn model_ranges(model: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for &x in model {
        match out.last_mut() {
            Some(r) if r.end == x => r.end = x + 1,
            _ => out.push(x..x + 1),
        }
    }
    out
}

proptest! {
    #[test]
    fn range_set_behaves_as_a_set_of_offsets(ops in prop::collection::vec(range_op(), 1..60)) {
        let mut set = RangeSet::new();
        let mut model = BTreeSet::new();
        for op in ops {
            match op {
                RangeOp::Insert(r) => {
                    let added = r.clone().filter(|&x| model.insert(x)).count() as u64;
                    prop_assert_eq!(set.insert(r), added);
                }
                RangeOp::Remove(r) => {
                    set.remove(r.clone());
                    model.retain(|x| !r.contains(x));
                }
                RangeOp::RemoveBelow(x) => {
                    set.remove_below(x);
                    model.retain(|&y| y >= x);
                }
                RangeOp::PopFront(x) => {
                    let expected = model_ranges(&model).into_iter().next().filter(|r| r.start <= x);
                    prop_assert_eq!(set.pop_front_up_to(x), expected.clone());
                    if let Some(r) = expected {
                        model.retain(|x| !r.contains(x));
                    }
                }
            }
            let ranges = model_ranges(&model);
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), ranges.clone());
            prop_assert_eq!(set.len(), ranges.len());
            prop_assert_eq!(set.is_empty(), ranges.is_empty());
            prop_assert_eq!(set.bytes(), model.len() as u64);
            prop_assert_eq!(set.first(), ranges.first().cloned());
            prop_assert_eq!(set.max_end(), ranges.last().map(|r| r.end));
            for x in 0..SPACE {
                prop_assert_eq!(set.contains(x), model.contains(&x));
                let expected = ranges.iter().find(|r| r.contains(&x)).cloned();
                prop_assert_eq!(set.range_containing(x), expected);
            }
            for query in [0..SPACE, 7..31, 40..41, 50..50] {
                let covered = query.clone().all(|x| model.contains(&x));
                prop_assert_eq!(set.covered(&query), covered);
                let missing: BTreeSet<u64> = query.clone().filter(|x| !model.contains(x)).collect();
                prop_assert_eq!(set.gaps(query).collect::<Vec<_>>(), model_ranges(&missing));
            }
        }
    }
}

#[test]
fn range_set_reaches_the_ends_of_the_offset_space() {
    let mut set = RangeSet::new();
    assert_eq!(set.insert(u64::MAX - 1..u64::MAX), 1);
    assert_eq!(set.insert(0..2), 2);
    assert!(set.gaps(0..u64::MAX).eq(std::iter::once(2..u64::MAX - 1)));
    set.remove(1..u64::MAX);
    assert!(set.iter().eq(std::iter::once(0..1)));
    set.clear();
    assert!(set.is_empty() && set.bytes() == 0);
}

// --- Pool ---------------------------------------------------------------------------------

#[test]
fn pool_stops_at_its_limit_and_keeps_a_reserve() {
    let mut pool = Pool::new(16 * BLOCK_SIZE + 5);
    assert_eq!(pool.limit(), 16 * BLOCK_SIZE);
    let mut blocks: Vec<_> = std::iter::from_fn(|| pool.alloc_within(0)).collect();
    assert_eq!(blocks.len(), 14);
    blocks.extend(std::iter::from_fn(|| pool.alloc()));
    assert_eq!(blocks.len(), 16);
    assert_eq!(pool.used_bytes(), 16 * BLOCK_SIZE);
    assert_eq!(pool.available(), 0);
    blocks.into_iter().for_each(|b| pool.free(b));
    assert_eq!(pool.used_bytes(), 0);
    assert_eq!(pool.available(), 16);
}

/// The share of a lone holder counts as used memory too: the limit of an eighth is reached at a
/// twenty-fourth of the pool, 42.7 MiB of 1 GiB.
#[test]
fn pool_gives_no_one_more_than_a_twenty_fourth() {
    let mut pool = Pool::new(1 << 30);
    assert_eq!(pool.fair_share() * BLOCK_SIZE, 48 << 20);
    let mut held = Vec::new();
    while let Some(block) = pool.alloc_within(held.len()) {
        held.push(block);
    }
    assert_eq!(held.len(), 1365);
    assert_eq!(
        format!("{:.1}", pool.used_bytes() as f64 / 1048576.0),
        "42.7"
    );
    held.into_iter().for_each(|b| pool.free(b));
}

/// However many holders have taken their limit, the next one finds a small share.
#[test]
fn pool_keeps_shares_for_those_who_come_later() {
    let mut pool = Pool::new(1024 * BLOCK_SIZE);
    let mut held = Vec::new();
    for _ in 0..128 {
        let mut own = Vec::new();
        while let Some(block) = pool.alloc_within(own.len()) {
            own.push(block);
        }
        held.push(own);
    }
    let sizes: Vec<usize> = held.iter().map(Vec::len).collect();
    // 384 blocks are held in common: at most an eighth of the free ones.
    assert_eq!(sizes[0], 42);
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert_eq!(sizes.last(), Some(&4));
    assert!(pool.unreserved() > 0);
    held.into_iter().flatten().for_each(|b| pool.free(b));
    assert_eq!((pool.used_bytes(), pool.fair_share()), (0, 48));
}

#[test]
fn send_buffer_takes_what_the_pool_has() {
    let mut pool = Pool::new(2 * BLOCK_SIZE);
    let mut buffer = SendBuffer::new(0);
    assert_eq!(
        buffer.write(&mut pool, Class::default(), &vec![1; 3 * BLOCK_SIZE]),
        2 * BLOCK_SIZE
    );
    assert!(
        buffer
            .write_slices(&mut pool, Class::default(), 1)
            .is_empty()
    );
    buffer.map_next(BLOCK_SIZE as u64);
    buffer.release_to(BLOCK_SIZE as u64, RangeSet::new, &mut pool);
    assert_eq!(pool.used_bytes(), BLOCK_SIZE);
    assert_eq!(buffer.write(&mut pool, Class::default(), &[2; 10]), 10);
    assert_eq!(buffer.len(), BLOCK_SIZE + 10);
}

#[test]
fn send_buffer_offers_no_more_than_asked_and_returns_unused_blocks() {
    let mut pool = Pool::new(64 * BLOCK_SIZE);
    let mut buffer = SendBuffer::new(5);
    let offered: usize = buffer
        .write_slices(&mut pool, Class::default(), BLOCK_SIZE + 1)
        .iter()
        .map(|s| s.len())
        .sum();
    assert_eq!(offered, BLOCK_SIZE + 1);
    assert_eq!(pool.used_bytes(), 2 * BLOCK_SIZE);
    buffer.commit(7, &mut pool);
    assert_eq!(
        (buffer.start(), buffer.end(), pool.used_bytes()),
        (5, 12, BLOCK_SIZE)
    );
    buffer.write_slices(&mut pool, Class::default(), 8 * BLOCK_SIZE);
    buffer.commit(0, &mut pool);
    assert_eq!(pool.used_bytes(), BLOCK_SIZE);
    assert_eq!(buffer.map_next(100), 5..12);
    buffer.release_to(12, RangeSet::new, &mut pool);
    assert_eq!(pool.used_bytes(), 0);
    buffer.write_slices(&mut pool, Class::default(), 1);
    buffer.commit(0, &mut pool);
    assert_eq!(pool.used_bytes(), 0);
}

#[derive(Debug, Clone)]
enum SendOp {
    Write(usize),
    Fill {
        offer: usize,
        share: u8,
    },
    Map(u64),
    Ack(u64),
    AckAll,
    /// A range of unacknowledged bytes, to be kept.
    Need {
        at: u64,
        len: u64,
    },
    LetGo,
}

fn send_op() -> impl Strategy<Value = SendOp> {
    let size = prop_oneof![1..2000usize, 0..5 * BLOCK_SIZE];
    prop_oneof![
        1 => size.clone().prop_map(SendOp::Write),
        1 => (size, any::<u8>()).prop_map(|(offer, share)| SendOp::Fill { offer, share }),
        2 => (0..3 * BLOCK_SIZE as u64).prop_map(SendOp::Map),
        1 => (0..3 * BLOCK_SIZE as u64).prop_map(SendOp::Ack),
        1 => Just(SendOp::AckAll),
        1 => (0..3 * BLOCK_SIZE as u64, 1..3000u64).prop_map(|(at, len)| SendOp::Need { at, len }),
        1 => Just(SendOp::LetGo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn send_buffer_keeps_what_is_not_acknowledged_or_needed(
        origin in prop_oneof![Just(0u64), any::<u32>().prop_map(u64::from)],
        ops in prop::collection::vec(send_op(), 1..40),
        looks in prop::collection::vec((0..200_000u64, 0..65_536u64), 4),
    ) {
        let mut pool = Pool::new(1 << 30);
        let mut buffer = SendBuffer::new(origin);
        let (mut start, mut nxt, mut end) = (origin, origin, origin);
        let mut needed = RangeSet::new();
        for op in ops {
            match op {
                SendOp::Write(n) => {
                    prop_assert_eq!(buffer.write(&mut pool, Class::default(), &bytes(end..end + n as u64)), n);
                    end += n as u64;
                }
                SendOp::Fill { offer, share } => {
                    let mut slices = buffer.write_slices(&mut pool, Class::default(), offer);
                    let offered: usize = slices.iter().map(|s| s.len()).sum();
                    prop_assert_eq!(offered, offer.min(offered));
                    let n = offered * usize::from(share) / 255;
                    let room = slices.iter_mut().flat_map(|s| s.iter_mut());
                    for (at, b) in (end..end + n as u64).zip(room) {
                        *b = byte_at(at);
                    }
                    drop(slices);
                    buffer.commit(n, &mut pool);
                    end += n as u64;
                }
                SendOp::Map(n) => {
                    let next = (nxt + n).min(end);
                    prop_assert_eq!(buffer.next_run(), end - nxt);
                    prop_assert_eq!(buffer.map_next(n), nxt..next);
                    nxt = next;
                }
                SendOp::Ack(n) => {
                    start = (start + n).min(nxt);
                    buffer.release_to(start, || needed.clone(), &mut pool);
                }
                SendOp::AckAll => {
                    start = nxt;
                    buffer.release_to(u64::MAX, || needed.clone(), &mut pool);
                }
                SendOp::Need { at, len } => {
                    needed.insert((start + at).min(nxt)..(start + at + len).min(nxt));
                }
                SendOp::LetGo => {
                    needed.clear();
                    buffer.forget(&needed, &mut pool);
                    prop_assert_eq!(buffer.retained(), 0);
                }
            }
            prop_assert_eq!((buffer.start(), buffer.nxt(), buffer.end()), (start, nxt, end));
            prop_assert_eq!(buffer.len() as u64, end - start);
            // A span is kept whole, and holds its block.
            let retained: u64 = needed.iter().map(|r| r.end - r.start + 2 * BLOCK_SIZE as u64).sum();
            let used = pool.used_bytes() as u64;
            prop_assert!(used <= end - start + retained + 2 * BLOCK_SIZE as u64);
            prop_assert_eq!(buffer.is_empty() && buffer.retained() == 0, used == 0);
            for range in needed.iter() {
                prop_assert_eq!(concat(&buffer.slices(range.clone())), bytes(range.clone()));
            }
            for &(at, len) in &looks {
                let range = origin + at..origin + at + len;
                let visible = range.start.max(start)..range.end.min(nxt).max(range.start.max(start));
                prop_assert_eq!(buffer.reach(range.clone()), range.clone());
                let range = visible.start..range.end.max(visible.start);
                prop_assert_eq!(concat(&buffer.slices(range)), bytes(visible));
            }
        }
        buffer.clear(&mut pool);
        prop_assert_eq!(pool.used_bytes(), 0);
    }
}

// --- RecvBuffer ---------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum RecvOp {
    /// An offset relative to the read offset.
    Insert {
        at: i64,
        len: usize,
    },
    /// The same data in a block, from this byte on.
    Block {
        at: i64,
        len: usize,
        from: usize,
    },
    /// Data that continues the stream.
    Next(usize),
    /// The same data in a block.
    NextBlock(usize),
    Read(usize),
}

const WINDOW: u64 = 6 * BLOCK_SIZE as u64;

fn recv_op() -> impl Strategy<Value = RecvOp> {
    let len = prop_oneof![1..1500usize, 0..3 * BLOCK_SIZE];
    prop_oneof![
        4 => (-(BLOCK_SIZE as i64)..WINDOW as i64 + 1000, len.clone())
            .prop_map(|(at, len)| RecvOp::Insert { at, len }),
        3 => (-(BLOCK_SIZE as i64)..WINDOW as i64 + 1000, 1..=BLOCK_SIZE, 0..200usize)
            .prop_map(|(at, len, from)| RecvOp::Block { at, len, from }),
        2 => len.prop_map(RecvOp::Next),
        3 => (1..=BLOCK_SIZE).prop_map(RecvOp::NextBlock),
        2 => (0..4 * BLOCK_SIZE).prop_map(RecvOp::Read),
        1 => Just(RecvOp::Read(usize::MAX)),
    ]
}

/// Inserts `data` as it lies in a block from byte `from` on. Returns whether the block was taken as well.
fn insert_block(
    buffer: &mut RecvBuffer,
    offset: u64,
    (data, from): (&[u8], usize),
    pool: &mut Pool,
) -> (Result<Inserted, InsertError>, bool) {
    let mut own = Pool::new(BLOCK_SIZE);
    let mut block: Block = own.alloc().unwrap();
    block.put(from, data);
    let before = block.bytes().as_ptr();
    let inserted = buffer.insert(
        offset,
        Data::Block(&mut block, from..from + data.len()),
        pool,
    );
    (inserted, block.bytes().as_ptr() != before)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn recv_buffer_puts_the_stream_together(
        origin in prop_oneof![Just(0u64), any::<u32>().prop_map(u64::from)],
        ops in prop::collection::vec(recv_op(), 1..60),
    ) {
        let mut pool = Pool::new(1 << 30);
        let mut buffer = RecvBuffer::new(origin, WINDOW);
        let mut read = origin;
        let mut received = RangeSet::new();
        received.insert(0..origin);
        for op in ops {
            let (offset, len, block) = match op {
                RecvOp::Insert { at, len } => (read.saturating_add_signed(at), len, None),
                RecvOp::Block { at, len, from } => {
                    let len = len.min(BLOCK_SIZE - from);
                    (read.saturating_add_signed(at), len, Some(from))
                }
                RecvOp::Next(len) => (buffer.rcv_nxt(), len, None),
                RecvOp::NextBlock(len) => (buffer.rcv_nxt(), len, Some(0)),
                RecvOp::Read(n) => {
                    let seen = concat(&buffer.slices());
                    prop_assert_eq!(&seen, &bytes(read..read + seen.len() as u64));
                    let n = n.min(seen.len());
                    buffer.consume(n, &mut pool);
                    read += n as u64;
                    (read, 0, None)
                }
            };
            let end = offset + len as u64;
            let limit = read + WINDOW;
            let before = buffer.rcv_nxt();
            let data = bytes(offset..end);
            let inserted = match block {
                Some(from) => insert_block(&mut buffer, offset, (&data, from), &mut pool).0,
                None => buffer.insert(offset, &data, &mut pool),
            };
            let new_bytes = received.insert(offset..end.min(limit));
            let rcv_nxt = received.first().map_or(0, |r| if r.start == 0 { r.end } else { 0 });
            prop_assert_eq!(inserted, Ok(Inserted {
                new_bytes,
                in_order_advanced: rcv_nxt > before,
                refused: (end - end.min(limit.max(offset))) as usize,
            }));
            prop_assert_eq!((buffer.next(), buffer.rcv_nxt()), (read, rcv_nxt));
            prop_assert_eq!(buffer.readable() as u64, rcv_nxt - read);
            prop_assert_eq!(buffer.out_of_order_bytes(), received.bytes() - rcv_nxt);
            let seen = concat(&buffer.slices());
            prop_assert!(seen.len() as u64 >= (rcv_nxt - read).min(64 * 1024));
            prop_assert_eq!(&seen, &bytes(read..read + seen.len() as u64));
            let held = buffer.readable() as u64 + buffer.out_of_order_bytes();
            prop_assert_eq!(held == 0, pool.used_bytes() == 0);
            prop_assert_eq!(buffer.memory(), pool.used_bytes());
            prop_assert!(pool.used_bytes() as u64 <= 2 * WINDOW + 2 * BLOCK_SIZE as u64);
        }
        buffer.clear(&mut pool);
        prop_assert_eq!(pool.used_bytes(), 0);
    }
}

/// Data that a peer sends in order is read in order. Nothing of a well filled block is copied; the data of
/// a poorly filled one is.
#[test]
fn a_block_is_taken_where_little_memory_is_wasted() {
    let mut pool = Pool::new(1 << 20);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let mut end = 0;
    let mut next = |buffer: &mut RecvBuffer, pool: &mut Pool, len: usize, from: usize| {
        let data = bytes(end..end + len as u64);
        let (inserted, taken) = insert_block(buffer, end, (&data, from), pool);
        assert_eq!(inserted.map(|i| i.new_bytes), Ok(len as u64));
        end += len as u64;
        taken
    };
    assert!(next(&mut buffer, &mut pool, BLOCK_SIZE - 72, 72));
    assert!(next(&mut buffer, &mut pool, BLOCK_SIZE - 500, 0));
    assert!(!next(&mut buffer, &mut pool, 1400, 72), "few bytes");
    // 500 of these bytes went to the rest of the block before.
    assert_eq!(pool.used_bytes(), 3 * BLOCK_SIZE);
    let half = BLOCK_SIZE / 2;
    assert!(
        !next(&mut buffer, &mut pool, half, 72),
        "the last block has more room"
    );
    assert!(next(&mut buffer, &mut pool, half, 72), "it has less");
    assert_eq!(pool.used_bytes(), 4 * BLOCK_SIZE);
    assert!(!next(&mut buffer, &mut pool, 1400, 72));
    assert_eq!(
        pool.used_bytes(),
        4 * BLOCK_SIZE,
        "the rest of a taken block is used"
    );
    assert_eq!(concat(&buffer.slices()), bytes(0..end));
}

#[test]
fn what_is_here_in_part_is_copied() {
    let mut pool = Pool::new(1 << 20);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let middle = BLOCK_SIZE as u64 / 2;
    buffer.insert(middle, b"X", &mut pool).unwrap();
    let data = bytes(0..BLOCK_SIZE as u64);
    let (inserted, taken) = insert_block(&mut buffer, 0, (&data, 0), &mut pool);
    assert_eq!(inserted.map(|i| i.new_bytes), Ok(BLOCK_SIZE as u64 - 1));
    assert!(!taken);
    let mut wanted = data;
    wanted[middle as usize] = b'X';
    assert_eq!(concat(&buffer.slices()), wanted);
}

#[test]
fn a_block_is_taken_for_another_one_or_not_at_all() {
    let mut pool = Pool::new(8 * BLOCK_SIZE);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let block = vec![7; BLOCK_SIZE];
    let mut insert = |n: u64, pool: &mut Pool| {
        insert_block(&mut buffer, n * BLOCK_SIZE as u64, (&block, 0), pool)
    };
    let behind = (1..20).filter(|n| insert(*n, &mut pool).1).count();
    assert_eq!(behind, 7, "the reserve is for what fills the hole");
    let (inserted, taken) = insert(0, &mut pool);
    assert!(inserted.unwrap().in_order_advanced && taken);
    let (inserted, taken) = insert(8, &mut pool);
    assert_eq!((inserted, taken), (Err(InsertError::PoolExhausted), false));
    assert_eq!(pool.used_bytes(), 8 * BLOCK_SIZE);
}

/// Data that would be taken with another block in exchange still fits if a block has room.
#[test]
fn a_block_is_copied_where_no_other_one_is_left() {
    let mut pool = Pool::new(BLOCK_SIZE);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let half = BLOCK_SIZE as u64 / 2;
    for (offset, wanted) in [(0, true), (half, false)] {
        let data = bytes(offset..offset + half);
        let (inserted, taken) = insert_block(&mut buffer, offset, (&data, 0), &mut pool);
        assert_eq!(inserted.map(|i| i.new_bytes), Ok(half));
        assert_eq!(taken, wanted);
    }
    assert_eq!(concat(&buffer.slices()), bytes(0..2 * half));
}

#[test]
fn recv_buffer_never_overwrites_what_it_has() {
    let mut pool = Pool::new(1 << 20);
    let mut buffer = RecvBuffer::new(0, 1000);
    buffer.insert(2, b"cd", &mut pool).unwrap();
    buffer.insert(0, b"XXXXXX", &mut pool).unwrap();
    assert_eq!(concat(&buffer.slices()), b"XXcdXX");
    assert_eq!(buffer.insert(3, b"zzz", &mut pool), Ok(Inserted::default()));
    assert_eq!(concat(&buffer.slices()), b"XXcdXX");
}

#[test]
fn recv_buffer_refuses_past_its_limit() {
    let mut pool = Pool::new(1 << 20);
    let mut buffer = RecvBuffer::new(100, 4);
    let first = buffer.insert(102, b"cdef", &mut pool);
    assert_eq!(
        first,
        Ok(Inserted {
            new_bytes: 2,
            in_order_advanced: false,
            refused: 2
        })
    );
    let past = buffer.insert(u64::MAX - 1, b"zzzz", &mut pool);
    assert_eq!(past.map(|i| i.new_bytes), Ok(0));
    let rest = buffer.insert(100, b"abc", &mut pool);
    assert_eq!(
        rest,
        Ok(Inserted {
            new_bytes: 2,
            in_order_advanced: true,
            refused: 0
        })
    );
    assert_eq!(concat(&buffer.slices()), b"abcd");
    buffer.consume(2, &mut pool);
    assert_eq!(
        buffer.insert(104, b"efgh", &mut pool).map(|i| i.refused),
        Ok(2)
    );
    assert_eq!(concat(&buffer.slices()), b"cdef");
}

#[test]
fn recv_buffer_stores_nothing_where_the_pool_is_exhausted() {
    let mut pool = Pool::new(2 * BLOCK_SIZE);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let three = vec![7; 3 * BLOCK_SIZE];
    assert_eq!(
        buffer.insert(0, &three, &mut pool),
        Err(InsertError::PoolExhausted)
    );
    assert_eq!((buffer.rcv_nxt(), pool.used_bytes()), (0, 0));
    assert_eq!(
        buffer.insert(9, &three, &mut pool),
        Err(InsertError::PoolExhausted)
    );
    assert_eq!((buffer.out_of_order_bytes(), pool.used_bytes()), (0, 0));
    assert!(
        buffer
            .insert(0, &three[..2 * BLOCK_SIZE], &mut pool)
            .is_ok()
    );
}

#[test]
fn data_behind_a_hole_leaves_room_for_what_fills_it() {
    let mut pool = Pool::new(8 * BLOCK_SIZE);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    let block = vec![7; BLOCK_SIZE];
    let stored = (1..20)
        .filter(|i| {
            buffer
                .insert(i * BLOCK_SIZE as u64, &block, &mut pool)
                .is_ok()
        })
        .count();
    assert_eq!(stored, 7);
    assert!(
        buffer
            .insert(0, &block, &mut pool)
            .unwrap()
            .in_order_advanced
    );
    assert_eq!(buffer.readable(), 8 * BLOCK_SIZE);
}

#[test]
fn holes_are_bounded_but_can_always_be_filled() {
    let mut pool = Pool::new(1 << 20);
    let mut buffer = RecvBuffer::new(0, 1 << 20);
    for i in 0..MAX_HOLES as u64 {
        buffer.insert(2 * i + 1, b"x", &mut pool).unwrap();
    }
    let end = 2 * MAX_HOLES as u64;
    assert_eq!(
        buffer.insert(end + 1, b"x", &mut pool),
        Err(InsertError::TooFragmented)
    );
    assert!(
        buffer.insert(end, b"x", &mut pool).is_ok(),
        "touches the last range"
    );
    assert_eq!(
        buffer
            .insert(0, b"x", &mut pool)
            .map(|i| i.in_order_advanced),
        Ok(true)
    );
    assert_eq!(
        buffer.insert(2, b"xxx", &mut pool).map(|i| i.new_bytes),
        Ok(2)
    );
    assert_eq!(buffer.rcv_nxt(), 6);
}
