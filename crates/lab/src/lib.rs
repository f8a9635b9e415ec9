//! The lab: experiments, each a definition that runs on any [`arm`], in the deterministic simulator
//! or over real, emulated links; statistics, plots and the report; the [`swarm`] of random worlds.
#![forbid(unsafe_code)]

pub mod arm;
mod cell;
mod clip;
pub mod experiments;
pub mod fct;
pub mod paths;
pub mod plot;
pub mod report;
mod spread;
pub mod stats;
pub mod swarm;
mod watch;
