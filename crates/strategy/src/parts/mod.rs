//! The parts that strategies are put together from; each part answers one question.

pub mod again;
pub mod attempt;
pub mod estimate;
pub mod flow;
pub mod quality;
pub mod rank;
pub mod table;
pub mod urgency;
pub mod usable;
