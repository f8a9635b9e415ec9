//! Incoming packets, and the transfer of their payload into a receive buffer.

use std::io::IoSliceMut;
use std::ops::Range;

use super::pool::{BLOCK_SIZE, Block};

/// The memory that a packet is read into: two consecutive blocks, which do not count as blocks of the pool. Two
/// blocks hold the largest IP packet, which has less than 64 KiB.
///
/// Payload that fills at least half of a block is not copied: the block becomes part of a receive buffer, and a
/// block of the pool replaces it here.
#[derive(Debug)]
pub struct PacketBuffer {
    blocks: [Block; 2],
    len: usize,
}

impl PacketBuffer {
    /// The size of the largest packet in bytes.
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
    /// its start and then calls [`set_len`](Self::set_len). The memory holds stale bytes.
    pub fn slices_mut(&mut self) -> [IoSliceMut<'_>; 2] {
        self.len = 0;
        let whole = |block| IoSliceMut::new(Block::bytes_mut(block, 0..BLOCK_SIZE));
        self.blocks.each_mut().map(whole)
    }

    /// Sets the packet to the first `len` bytes that were written to the slices.
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

    /// Returns the first [`BLOCK_SIZE`] bytes of the packet, or all of a shorter packet. These bytes contain all
    /// headers.
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
    /// A packet that was read into blocks, which a receive buffer may adopt.
    Read(&'a mut PacketBuffer),
}

impl Packet<'_> {
    /// Returns the bytes in two parts. All headers are in the first part; the second may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        match self {
            Packet::Lent(bytes) => [bytes, &[]],
            Packet::Read(buffer) => buffer.parts(),
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

/// The payload of a packet. Each byte may be stored only once, because its block may be adopted.
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

    /// Returns at most `max` bytes of the payload, beginning at position `from`. The result is shorter if the
    /// bytes are not contiguous in memory.
    pub fn slice(&mut self, from: usize, max: usize) -> Data<'_> {
        let start = self.range.start + from;
        let end = self.range.end.min(start + max);
        let buffer = match &mut self.packet {
            Packet::Lent(bytes) => return Data::Bytes(&bytes[start..end]),
            Packet::Read(buffer) => buffer,
        };
        let n = start / BLOCK_SIZE;
        let Some(block) = buffer.blocks.get_mut(n) else {
            return Data::Bytes(&[]);
        };
        let within = |at: usize| (at - n * BLOCK_SIZE).min(BLOCK_SIZE);
        let range = within(start)..within(end);
        match range.end == within(self.range.end) {
            true => Data::Block(block, range),
            // The block has further payload, which the caller will request later. So the block must not be
            // adopted.
            false => Data::Bytes(&block.bytes()[range]),
        }
    }
}

/// Bytes to be stored in a receive buffer.
#[derive(Debug)]
pub enum Data<'a> {
    /// Bytes to be copied.
    Bytes(&'a [u8]),
    /// The bytes of this range of a block. The receive buffer may adopt the block if it puts another one in its
    /// place.
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

    /// Returns the first `n` bytes, or all if there are fewer.
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
