//! The lab: experiments, each a definition that runs on a [`backend`], in the deterministic simulator or
//! over real, emulated links; statistics, plots and the report; the [`swarm`] of random worlds; the [`search`]
//! for losses of `adaptive`; and the program `braid-lab` ([`command`]), with peers for tests and benchmarks.
#![forbid(unsafe_code)]

pub mod backend;
mod case;
pub mod cli;
pub mod command;
pub mod content;
pub mod engine_peer;
pub mod experiments;
pub mod fct;
pub mod kernel_peer;
mod parallel_runs;
pub mod paths;
pub mod plot;
pub mod report;
pub mod search;
mod session_trace;
pub mod stats;
pub mod swarm;
pub mod tunnel;
mod video;
