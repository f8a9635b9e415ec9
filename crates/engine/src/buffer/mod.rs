//! Payload buffers: blocks from a bounded pool, so that an idle connection holds none.
//!
//! Written data waits in a queue by urgency until it is sent. Then it gets its offset in the stream, by
//! which it is addressed from there on.
//!
//! Received data stays in the block that it was read into, as long as that wastes little memory: a block of
//! the [`PacketBuffer`] and one of the pool change places.
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
