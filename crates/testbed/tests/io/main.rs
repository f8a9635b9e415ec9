//! Packets, rules, routes and sockets on this machine's kernel, in network namespaces.

mod carried;
mod engine;
mod example;
mod interception;
mod offload;
mod packets;
mod session;
mod shortcut;
mod stale_resources;
mod support;
mod tunnel;
mod whole;
