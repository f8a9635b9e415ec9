//! Box and server in virtual time, with unmodified hosts at both ends.

mod speed;
mod support;
