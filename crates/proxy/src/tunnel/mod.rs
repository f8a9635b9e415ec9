//! Both ends of the tunnel, which carries every packet that is not an intercepted TCP connection.
//!
//! The box's end requests a session and keeps it; the server's end has the sessions of all boxes, and checks what comes
//! out of them. The room opens no connection: the uplink of the box and the server's sign-in exchange the messages.

pub(crate) mod inner;
pub(crate) mod of_box;
pub(crate) mod of_server;
mod pool;
mod sharing;
