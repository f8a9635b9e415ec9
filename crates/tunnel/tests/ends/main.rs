//! Two ends of a session in virtual time: delivery and keys, paths that change, and peers that mean ill.

mod calls;
mod hostile;
mod net;
mod paths;
mod session;
