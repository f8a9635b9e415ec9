//! Measurements, and decisions by them.

pub mod plan;
pub mod selection;
