//! The command `braid`: its messages, its refusals, and the settings that it reads.

mod examples;
mod moved;
mod settings;
mod usage;
