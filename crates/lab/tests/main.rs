//! The laboratory and its command.

#[path = "common/outcomes.rs"]
mod outcomes;

mod adaptive;
mod backends;
mod command;
mod fct;
mod search;
mod tunnel;
