//! Stored results, and the report made from them.
//!
//! `DIR/ID/BACKEND/` contains `outcome.json`, `cells/NAME.json` with every run, and each figure as SVG.
//! The report reads only these files, so a directory can hold results of several experiments, backends
//! and machines.

mod html;
mod markdown;
mod store;
mod tables;

#[cfg(test)]
mod tests;

pub use html::html;
pub use markdown::{markdown, publish};
pub use store::{Stored, load, prepare, store, write};
