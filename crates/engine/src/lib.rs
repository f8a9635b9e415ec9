//! Sans-IO Multipath TCP (RFC 8684): the protocol machine of Braid. [`Stack`] documents how to drive it.
#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! - `stack`: demultiplexing, listeners, timers, and the order in which connections send.
//! - `mptcp`: connections, their subflows, and the signals to their peers.
//! - `tcp`: the parts of a subflow's TCP, one in each file. Only loss recovery decides which data is lost.
//! - [`cc`]: congestion control. Only the controller changes the congestion window of its subflow.
//! - `path`: the path manager of a connection, and the records of paths that outlive connections.
//! - [`buffer`]: buffers of payload, in blocks of one bounded pool.
//! - [`strategy`]: the trait by which a strategy decides, and the plain data on which it decides.
//! - [`streams`]: several streams over one connection, each with an urgency, for programs that use the engine.
//!
//! **Architecture Invariant:** the same calls with the same seed give the same packets. Nothing iterates over a
//! hash table, and no strategy is known by name.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod cc;
mod class;
pub mod config;
mod connect;
pub mod error;
pub mod event;
mod join_auth;
mod mptcp;
mod non_exhaustive;
mod path;
mod stack;
pub mod stats;
pub mod strategy;
pub mod streams;
mod tcp;

pub use class::{Class, Urgency};
pub use config::{Config, DelayedAck, Ecn, PathConfig, Protocol};
pub use connect::ConnectOptions;
pub use error::ApiError;
pub use event::{CloseReason, Event, FallbackCause, SubflowCloseReason};
pub use join_auth::JoinAuth;
#[doc(hidden)]
pub use non_exhaustive::NonExhaustive;
pub use path::PathRecord;
pub use stack::{
    ForeignTraffic, PathLoad, RxMeta, SegmentKind, Stack, StrategyFactory, Transmit, TransmitInfo,
    TxChecksum,
};

/// The id of a connection of a [`Stack`]. An id is not used again before 2^32 later connections had the same
/// slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Returns a number that no other connection of the stack has. It is small as long as the slots were seldom
    /// reused.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// The id of a subflow of a connection: a number counted from 0 in order of creation, never used again within the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubflowId(pub u32);

/// The id of a local path of a [`Stack`], in order of [`Stack::add_path`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u8);

/// The id of a listener of a [`Stack`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);
