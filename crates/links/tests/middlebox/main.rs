//! Middleboxes, packet by packet.

mod meddle;
mod nat;
mod segment;
mod shape;
