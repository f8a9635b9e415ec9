//! Box and server in virtual time, with unmodified hosts at both ends.

mod attacks;
mod chaos;
mod faults;
mod floods;
mod forwarding;
mod hints;
mod links;
mod lossy;
mod outages;
mod refusals;
mod servers;
mod sockets;
mod speed;
mod states;
mod stolen;
mod streams;
mod support;
mod tunnel;
mod tunnel_load;
mod tunnel_modes;
mod tunnel_servers;
mod warm;
