//! Stored results, and the report made of them.
//!
//! `DIR/ID/ARM/` has `outcome.json`, `cells/NAME.json` with every run, and each figure as SVG. The
//! report reads nothing but these files, so results of several runs, arms and machines can stand in
//! one directory.

mod html;
mod markdown;
mod parts;
mod store;

#[cfg(test)]
mod tests;

pub use html::html;
pub use markdown::{markdown, publish};
pub use store::{Stored, load, prepare, store};
