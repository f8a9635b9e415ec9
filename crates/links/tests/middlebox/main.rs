//! Middleboxes, packet by packet.

mod meddle;
mod narrow;
mod nat;
mod segment;
mod shape;
