//! Multipath TCP v1 (RFC 8684): connections made of subflows.

mod busy;
mod checksum;
mod choice;
mod close;
mod connection;
mod dss;
mod ending;
mod fallback;
mod fast_close;
mod flight;
mod flow;
mod handshake;
mod icmp;
mod input;
mod joins;
pub(crate) mod keys;
mod liveness;
pub(crate) mod opening;
mod output;
mod paths;
mod proof;
mod report;
mod signal;
pub(crate) mod subflow;
mod syn_data;
mod tell;
mod timers;
mod window;

pub(crate) use connection::{Connection, Ctx, Demux, Mode};
pub(crate) use flight::MAX_SUBFLOWS;
pub(crate) use handshake::{capable, flags, is_plain_data, join, usable, window_shift};
pub(crate) use output::{Body, Outgoing};
