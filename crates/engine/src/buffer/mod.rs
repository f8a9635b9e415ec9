//! Payload buffers. Their memory consists of blocks from a bounded pool, so that an idle connection holds no
//! memory.
//!
//! Written data waits in a queue, sorted by urgency, until it is sent. When it is first sent it gets its offset
//! in the stream. Later calls address it by this offset.
//!
//! Received data is not copied if little memory is wasted that way: the block of the [`PacketBuffer`] that it
//! was read into becomes part of the receive buffer, and a block of the pool replaces it.
//!
//! A connection owns a [`SendBuffer`] and a [`RecvBuffer`]; both take their memory, in blocks of
//! [`BLOCK_SIZE`] bytes, from the one [`Pool`] of the stack, which is handed into every call that
//! may need it. A buffer that is dropped while it holds blocks would leave them accounted for:
//! call its `clear` first.

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
