//! Payload buffers. Their memory consists of blocks from a bounded pool, so that an idle connection holds no
//! memory.
//!
//! Written data waits in a queue, sorted by urgency, until it is sent. When data is first sent, it gets its offset
//! in the stream. Later calls address the data by this offset.
//!
//! A driver receives packets into the blocks of a [`PacketBuffer`]. If this wastes little memory, the receive buffer
//! adopts such a block: the block becomes part of the receive buffer, and a block of the pool replaces it. Other
//! received data is copied.
//!
//! A connection owns a [`SendBuffer`] and a [`RecvBuffer`]. Both take their memory, in blocks of [`BLOCK_SIZE`]
//! bytes, from the one [`Pool`] of the stack. Every call that may need memory gets the pool as an argument. Call
//! `clear` before a buffer is dropped: otherwise its blocks would count as used for ever.

mod blocks;
mod packet;
mod pool;
mod queue;
mod ranges;
mod recv;
mod send;

pub use packet::{Data, PacketBuffer};
pub(crate) use packet::{Packet, Payload};
pub use pool::{BLOCK_SIZE, Block, Pool};
pub use ranges::RangeSet;
pub use recv::{InsertError, Inserted, MAX_HOLES, READ_SLICES, RecvBuffer};
pub use send::{SEND_SLICES, SendBuffer, WRITE_SLICES};
