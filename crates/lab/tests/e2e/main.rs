//! The demo and measurements over emulated links as a user runs them: `braid-lab`, which runs `braid`
//! for its boxes and servers. `cargo test --workspace` builds both programs.

mod demo;
mod lab;
#[path = "../common/outcomes.rs"]
mod outcomes;
