//! Payload buffers: blocks from a bounded pool, so that an idle connection holds none.
