//! Models of links.

mod link;
mod models;
mod properties;
