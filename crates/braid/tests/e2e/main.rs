//! Box and server as a user meets them: an ordinary curl, an ordinary nginx, real processes in network
//! namespaces, emulated links; and the engine against the kernel's Multipath TCP. Run by `make test` and, in
//! modules `soak`, by `make soak`; or some of them by `scripts/with-net.sh cargo test --workspace --test e2e
//! -- --ignored NAME`.

mod aborts;
mod addresses;
mod attacks;
mod bad_input;
mod bed;
mod box_reload;
mod browser;
mod captures;
mod check;
mod compat;
mod control;
mod crash;
mod downloads;
mod families;
mod far_side;
mod floods;
mod heal;
mod idle;
mod interop;
mod left_over;
mod links;
mod meddling;
mod mptcp_connect;
mod names;
mod privileges;
mod reload;
mod servers;
mod siege;
mod socks;
mod states;
mod stock;
mod stolen;
mod stop;
