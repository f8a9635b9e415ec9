//! What strategies are put together from: each part answers one question.

pub mod again;
pub mod estimate;
pub mod table;
pub mod usable;
