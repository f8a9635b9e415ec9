//! What strategies are put together from: each part answers one question.

pub mod again;
pub mod usable;
