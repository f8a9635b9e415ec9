//! What may be asked of a running box or server from outside, and what it answers. Who carries
//! questions and answers is the driver's business; on the wire of its socket each is one line of
//! JSON.

use braid_engine::Stack;
use braid_wire::Instant;
use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::config::Changes;

/// The answer of a box that is being stopped to a request for a change.
pub const STOPPING: &str = "this box is stopping and changes nothing any more; start it again";

/// A question, or an order. What is switched stays so until it is switched again or the process
/// ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// What there is now.
    Status,
    /// Whether a box takes new connections in. Off, they are forwarded unjoined, and those taken in
    /// before keep being served.
    Proxy {
        /// The wish.
        on: bool,
    },
    /// Whether a box uses one of its links. Off, its subflows are closed and nothing new goes there.
    Link {
        /// Name of the link.
        name: String,
        /// The wish.
        on: bool,
    },
    /// Whether one of a box's links is a backup: used while no other works. So are the subflows that
    /// are there, of which the server is told (MP_PRIO, RFC 8684 section 3.3.8), and new ones.
    Backup {
        /// Name of the link.
        name: String,
        /// The wish.
        on: bool,
    },
    /// Which server a box uses for new connections.
    Server {
        /// Name of the server, which is used while it answers; `auto` leaves the choice to the box.
        name: String,
    },
    /// Measures all servers of a box now, whatever speaks against it.
    Measure,
    /// Has a box or a server read its configuration again. Whoever runs it does that, the core knows no
    /// files.
    Reload,
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// What there is now.
    Status(Box<Status>),
    /// It was done.
    Done,
    /// The configuration was read again.
    Reloaded(Changes),
    /// The order names what there is not: a link, a server, a switch of a server; and what is expected.
    Wrong(String),
    /// It was not done, and why.
    Error(String),
}

/// A core that can be asked.
pub trait Controlled {
    /// Answers a question or carries out an order.
    fn control(&mut self, now: Instant, stack: &mut Stack, request: Request) -> Answer;
}
