//! Box and server as a user meets them: an ordinary curl, an ordinary nginx, real processes in network
//! namespaces, emulated links; and the engine against the kernel's Multipath TCP. Run by `make test` and, in
//! modules `soak`, by `make soak`; or some of them by `scripts/with-net.sh cargo test --workspace --test e2e
//! -- --ignored NAME`.

mod aborts;
mod addresses;
mod attacks;
mod bad_input;
mod box_reload;
mod browser;
mod call;
mod captures;
mod check;
mod compat;
mod control;
mod crash;
mod downloads;
mod families;
mod fixture;
mod floods;
mod forgeries;
mod heal;
mod http3;
mod idle;
mod interop;
mod links;
mod load;
mod middlebox;
mod mptcp_connect;
mod names;
mod packets;
mod peer;
mod privileges;
mod reload;
mod servers;
mod socks;
mod stale_resources;
mod states;
mod stock;
mod stolen;
mod stop;
mod wireguard;
