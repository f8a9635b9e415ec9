//! What strategies make of links that change.

mod maps;
mod priorities;
