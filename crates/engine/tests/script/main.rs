//! One stack against hand-made segments, with exact times.
//!
//! A script states the segments that the peer sends, the stack's answers, and their times in milliseconds
//! of virtual time. Sequence numbers are relative (the SYN is 0, the first byte 1), data sequence numbers
//! count from the first byte of the stream (0).

#[macro_use]
mod harness;
mod addresses;
mod capable;
mod checksum;
mod close;
mod dss;
mod early_joins;
mod ecn;
mod fast_close;
mod fast_open;
mod flood;
mod flows;
mod foreign_addresses;
mod frto;
mod ipv6;
mod join;
mod limits;
mod liveness;
mod mid_handshake;
mod misbehaviour;
mod no_sack;
mod proof;
mod recovery;
mod report;
mod reset;
mod second_syn;
mod segment;
mod sizes;
mod strategy;
mod strategy_events;
mod urgency;
mod window;
