//! Box and server in virtual time, with unmodified hosts at both ends.

mod faults;
mod forwarding;
mod links;
mod refusals;
mod speed;
mod streams;
mod support;
