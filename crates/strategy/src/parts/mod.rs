//! The rules that strategies combine. Each module answers one question, such as which subflows are usable.

pub mod again;
pub mod attempt;
pub mod estimate;
pub mod flow;
pub mod quality;
pub mod rank;
pub mod table;
pub mod urgency;
pub mod usable;
