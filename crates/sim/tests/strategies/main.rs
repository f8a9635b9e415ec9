//! Strategies on links that change, and beside other traffic.

mod maps;
mod priorities;
