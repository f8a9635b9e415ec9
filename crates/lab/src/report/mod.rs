//! Stored results, and the report made of them.
//!
//! `DIR/ID/ARM/` has `outcome.json`, `cells/NAME.json` with every run, and each figure as SVG. The
//! report reads nothing but these files, so results of several runs, arms and machines can stand in
//! one directory.

mod page;
mod store;

#[cfg(test)]
mod tests;

pub use page::{html, markdown};
pub use store::{Stored, load, prepare, store};
