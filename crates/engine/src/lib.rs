//! Sans-IO Multipath TCP (RFC 8684): the protocol machine of Braid. [`Stack`] documents how to drive it.
#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! - `stack`: demultiplexing, listeners, timers, and the order in which connections send.
//! - `mptcp`: the connection, its subflows, and what its peer is told.
//! - `tcp`: one concern of a subflow in each file. Loss recovery decides what is lost.
//! - [`cc`]: congestion control. A controller owns the window of its subflow.
//! - `path`: the path manager of a connection, and what is remembered of paths beyond connections.
//! - [`buffer`]: payload in blocks of one bounded pool.
//! - [`strategy`]: the trait by which a strategy decides, and the plain data that it sees.
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
pub use stack::{RxMeta, SegmentKind, Stack, StrategyFactory, Transmit, TransmitInfo, TxChecksum};

/// The id of a connection of a [`Stack`]. Ids are not reused within 2^32 connections of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Returns a number that no other connection of the stack has; it stays small while few slots were
    /// reused.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// The id of a subflow of a connection, counted from 0 in order of creation; never reused within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubflowId(pub u32);

/// The id of a local path of a [`Stack`], in order of [`Stack::add_path`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u8);

/// The id of a listener of a [`Stack`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);
