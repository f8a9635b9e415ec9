//! Incoming packets, and the transfer of their payload into a receive buffer.

use std::io::IoSliceMut;
use std::ops::Range;

use super::pool::{BLOCK_SIZE, Block};

/// The memory that a packet is read into: two consecutive blocks, which do not belong to the pool.
///
/// A block that payload fills well is not copied: it becomes a block of a receive buffer, and one from the
/// pool takes its place here.
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
        reason = "64 KiB are not to be made in passing"
    )]
    pub fn new() -> Self {
        PacketBuffer {
            blocks: [Block::new(), Block::new()],
            len: 0,
        }
    }

    /// Returns memory for a packet of up to [`CAPACITY`](Self::CAPACITY) bytes, to be filled from its start
    /// and then announced by [`set_len`](Self::set_len). It holds stale bytes.
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

    /// Copies `packet` in, as far as there is room.
    pub fn fill(&mut self, packet: &[u8]) {
        let mut rest = packet;
        for mut slice in self.slices_mut() {
            let (now, later) = rest.split_at(rest.len().min(slice.len()));
            slice[..now.len()].copy_from_slice(now);
            rest = later;
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

    /// Returns the first [`BLOCK_SIZE`] bytes of the packet, or all.
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
    /// A packet in memory that belongs to somebody else.
    Lent(&'a [u8]),
    /// A packet whose blocks may be taken.
    Read(&'a mut PacketBuffer),
}

impl Packet<'_> {
    /// Returns the bytes: all headers are in the first part, and the second may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        match self {
            Packet::Lent(bytes) => [bytes, &[]],
            Packet::Read(buffer) => buffer.parts(),
        }
    }

    /// Returns the bytes `range` in two parts, either of which may be empty.
    pub fn parts_of(&self, range: Range<usize>) -> [&[u8]; 2] {
        let [head, rest] = self.parts();
        let within = |at: usize| (at.min(head.len()), at.saturating_sub(head.len()));
        let (start, end) = (within(range.start), within(range.end));
        [&head[start.0..end.0], &rest[start.1..end.1]]
    }
}

/// The payload of a packet. Each byte can be taken once.
#[derive(Debug)]
pub(crate) struct Payload<'a> {
    packet: Packet<'a>,
    range: Range<usize>,
}

impl<'a> Payload<'a> {
    /// Creates the payload from the bytes `range` of `packet`, which has them.
    pub fn new(packet: Packet<'a>, range: Range<usize>) -> Self {
        Payload { packet, range }
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the bytes from `from` on, up to `max` and as far as they are contiguous in memory.
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
            // The rest of the block will be asked for later, so the block must stay.
            false => Data::Bytes(&block.bytes()[range]),
        }
    }
}

/// Bytes to be stored.
#[derive(Debug)]
pub enum Data<'a> {
    /// Bytes to be copied.
    Bytes(&'a [u8]),
    /// The bytes of this range of a block. The block may be taken if another one is left in its place.
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

    /// Returns the first `n` bytes, or all.
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
