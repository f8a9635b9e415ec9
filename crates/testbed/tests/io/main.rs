//! Packets, rules, routes and sockets on this machine's kernel, in network namespaces.

mod engine;
mod example;
mod intake;
mod leftovers;
mod offload;
mod shortcut;
mod support;
mod whole;
