//! Tests of middleboxes with single packets.

mod mtu_limit;
mod nat;
mod rewrite;
mod segment;
mod shape;
