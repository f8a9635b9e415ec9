//! Incoming packets, and the way of their payload into a receive buffer.

use std::io::IoSliceMut;
use std::ops::Range;

use super::pool::{BLOCK_SIZE, Block};

/// The memory that a driver receives packets into, one after the other. It consists of two blocks, which the pool
/// does not count as used.
///
/// A receive buffer may adopt a block that is filled well with payload: the block moves into the receive buffer
/// together with the payload, and a free block of the pool takes its place here. The pool then counts the adopted
/// block instead of the free one. Other payload is copied.
#[derive(Debug)]
pub struct PacketBuffer {
    blocks: [Block; 2],
    len: usize,
}

impl PacketBuffer {
    /// The size of the memory in bytes. An IPv4 packet has at most 65,535 bytes, so it fits. An IPv6 packet may have
    /// 65,575 bytes. A packet that does not fit arrives cut, and the stack drops it as malformed. Linux builds none so
    /// large by default, because its limits `gso_max_size` and `gro_max_size` are 65,536 bytes.
    pub const CAPACITY: usize = 2 * BLOCK_SIZE;

    /// Creates an empty buffer.
    #[expect(
        clippy::new_without_default,
        reason = "a default must not allocate 64 KiB unnoticed"
    )]
    pub fn new() -> Self {
        PacketBuffer {
            blocks: [Block::new(), Block::new()],
            len: 0,
        }
    }

    /// Returns memory for a packet of up to [`CAPACITY`](Self::CAPACITY) bytes. The caller fills the memory from
    /// its start and then calls [`set_len`](Self::set_len). Until it is filled, the memory holds bytes of earlier
    /// packets.
    pub fn slices_mut(&mut self) -> [IoSliceMut<'_>; 2] {
        self.len = 0;
        let whole = |block| IoSliceMut::new(Block::bytes_mut(block, 0..BLOCK_SIZE));
        self.blocks.each_mut().map(whole)
    }

    /// Sets the length of the packet: the first `len` bytes of the slices.
    pub fn set_len(&mut self, len: usize) {
        debug_assert!(len <= Self::CAPACITY, "a packet of {len} bytes");
        self.len = len.min(Self::CAPACITY);
    }

    /// Stores a copy of `packet`, cut to [`CAPACITY`](Self::CAPACITY) bytes.
    pub fn fill(&mut self, packet: &[u8]) {
        let mut rest = packet;
        for mut slice in self.slices_mut() {
            let (part, remainder) = rest.split_at(rest.len().min(slice.len()));
            slice[..part.len()].copy_from_slice(part);
            rest = remainder;
        }
        self.set_len(packet.len() - rest.len());
    }

    /// Returns the length of the packet in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first [`BLOCK_SIZE`] bytes of the packet, or all of a shorter packet. The stack parses the headers
    /// from these bytes alone. A packet with so many IPv6 extension headers that they need more counts as malformed.
    pub fn head(&self) -> &[u8] {
        self.parts()[0]
    }

    /// Returns the bytes of the packet; the second part may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        let first = self.len.min(BLOCK_SIZE);
        let [head, rest] = &self.blocks;
        [&head.bytes()[..first], &rest.bytes()[..self.len - first]]
    }
}

/// An incoming packet.
#[derive(Debug)]
pub(crate) enum Packet<'a> {
    /// A packet in borrowed memory: its payload is copied.
    Lent(&'a [u8]),
    /// A packet in blocks, which a receive buffer may adopt.
    Buffered(&'a mut PacketBuffer),
}

impl Packet<'_> {
    /// Returns the bytes in two parts. Headers are parsed from the first part alone; the second may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        match self {
            Packet::Lent(bytes) => [bytes, &[]],
            Packet::Buffered(buffer) => buffer.parts(),
        }
    }

    /// Returns the bytes of `range` in two parts, either of which may be empty.
    pub fn parts_of(&self, range: Range<usize>) -> [&[u8]; 2] {
        let [head, rest] = self.parts();
        let within = |at: usize| (at.min(head.len()), at.saturating_sub(head.len()));
        let (start, end) = (within(range.start), within(range.end));
        [&head[start.0..end.0], &rest[start.1..end.1]]
    }
}

/// The payload of a packet, from which slices go into a receive buffer. The slices must ascend and not overlap: once
/// the last payload of a block is stored, a receive buffer may have adopted the block, and another block with stale
/// bytes is in its place.
#[derive(Debug)]
pub(crate) struct Payload<'a> {
    packet: Packet<'a>,
    range: Range<usize>,
}

impl<'a> Payload<'a> {
    /// Creates the payload from the bytes `range` of `packet`. The range must lie within the packet.
    pub fn new(packet: Packet<'a>, range: Range<usize>) -> Self {
        Payload { packet, range }
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the bytes of the payload from position `from` on: at most `max` bytes, and none beyond the end of the
    /// block in which they begin.
    ///
    /// # Panics
    /// Panics if `from` exceeds the length of the payload.
    pub fn slice(&mut self, from: usize, max: usize) -> Data<'_> {
        let start = self.range.start + from;
        let end = self.range.end.min(start + max);
        let buffer = match &mut self.packet {
            Packet::Lent(bytes) => return Data::Bytes(&bytes[start..end]),
            Packet::Buffered(buffer) => buffer,
        };
        let n = start / BLOCK_SIZE;
        // A start at the very end of the memory is in no block. Nothing is left to store then.
        let Some(block) = buffer.blocks.get_mut(n) else {
            return Data::Bytes(&[]);
        };
        let within = |at: usize| (at - n * BLOCK_SIZE).min(BLOCK_SIZE);
        let range = within(start)..within(end);
        // If this block holds more payload behind the slice, the caller requests it next, so the block must stay. Only
        // the slice that ends with the block's payload may give the block away.
        if range.end == within(self.range.end) {
            Data::Block(block, range)
        } else {
            Data::Bytes(&block.bytes()[range])
        }
    }
}

/// Bytes to be stored in a receive buffer.
#[derive(Debug)]
pub enum Data<'a> {
    /// Bytes to be copied.
    Bytes(&'a [u8]),
    /// The bytes of this range of a block. The receive buffer either copies them, or adopts the block and puts
    /// another one in its place.
    Block(&'a mut Block, Range<usize>),
}

impl Data<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Block(_, range) => range.len(),
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first `n` bytes, or all if there are fewer. A block can still be adopted after the cut, so the
    /// caller must not request the bytes behind it: it drops them, and the peer sends them again.
    pub fn first(self, n: usize) -> Self {
        let n = n.min(self.len());
        match self {
            Data::Bytes(bytes) => Data::Bytes(&bytes[..n]),
            Data::Block(block, range) => Data::Block(block, range.start..range.start + n),
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Data<'a> {
    fn from(bytes: &'a T) -> Self {
        Data::Bytes(bytes.as_ref())
    }
}
