//! Values in configuration files and on command lines, and errors about them. The module [`value`] reads sizes,
//! rates, durations, probabilities and address ranges. A [`ConfigError`] says where a file is wrong and what to
//! write instead.
#![forbid(unsafe_code)]

mod error;
pub mod value;

pub use error::ConfigError;
