//! One stack against hand-made segments, with exact times.
//!
//! A script states the segments that the peer sends, the stack's answers, and their times in milliseconds
//! of virtual time. Sequence numbers are relative (the SYN is 0, the first byte 1), data sequence numbers
//! count from the first byte of the stream (0).

#[macro_use]
mod harness;
mod addresses;
mod beside;
mod capable;
mod checksum;
mod close;
mod dss;
mod early;
mod ecn;
mod fast_close;
mod fast_open;
mod flood;
mod flows;
mod frto;
mod intake;
mod ipv6;
mod join;
mod limits;
mod liveness;
mod midst;
mod misbehaviour;
mod no_sack;
mod proof;
mod recovery;
mod report;
mod reset;
mod segment;
mod sizes;
mod strategy;
mod told;
mod urgency;
mod window;
