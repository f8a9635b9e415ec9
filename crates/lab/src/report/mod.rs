//! Stored results, and the report made from them.
//!
//! `DIR/ID/BACKEND/` has `outcome.json`, `cells/NAME.json` with every run, and each figure as SVG. The
//! report reads nothing but these files, so results of several runs, backends and machines can share a
//! directory.

mod html;
mod markdown;
mod overview;
mod parts;
mod store;

#[cfg(test)]
mod tests;

pub use html::html;
pub use markdown::{markdown, publish};
pub use store::{Stored, load, prepare, store};
