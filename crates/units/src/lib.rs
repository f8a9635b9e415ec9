//! Text that people write in configuration files and on command lines: [`value`] reads sizes, rates,
//! durations, probabilities and address ranges, and a [`ConfigError`] says where a file is wrong and what
//! to write instead.
#![forbid(unsafe_code)]

mod error;
pub mod value;

pub use error::ConfigError;
