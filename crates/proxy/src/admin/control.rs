//! Requests to a running box or server, and the answers. The driver carries both; on its socket each is one line
//! of JSON.

use braid_engine::Stack;
use braid_wire::Instant;
use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::config::Changes;

/// The answer of a box that is being stopped to a request for a change.
pub const STOPPING: &str = "this box is stopping and accepts no more changes; start it again";

/// A request for the status, or for a change. A switch keeps its state until it is switched again or the process
/// ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Returns the current status.
    Status,
    /// Sets whether a box intercepts new connections. When off, they are forwarded without aggregation;
    /// intercepted ones continue.
    Proxy {
        /// The requested state.
        on: bool,
    },
    /// Sets whether a box uses a link. When off, its subflows are closed and none is opened.
    Link {
        /// Name of the link.
        name: String,
        /// The requested state.
        on: bool,
    },
    /// Sets whether a box's link is a backup, which is used while no other link works. Applies to existing
    /// subflows, of which the server is told (MP_PRIO, RFC 8684 section 3.3.8), and to new ones.
    Backup {
        /// Name of the link.
        name: String,
        /// The requested state.
        on: bool,
    },
    /// Sets the server for a box's new connections.
    Server {
        /// Name of the server, which is used while it answers; with `auto` the box chooses.
        name: String,
    },
    /// Measures all servers of a box now, regardless of traffic and quiet hours.
    Measure,
    /// Makes a box or a server read its configuration again. The driver does so, because the core knows no files.
    Reload,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The current status.
    Status(Box<Status>),
    /// The change was made.
    Done,
    /// The configuration was read again.
    Reloaded(Changes),
    /// The request names something that does not exist (a link, a server, a switch of a server); the text says
    /// what is expected.
    Wrong(String),
    /// The change was not made; the text says why.
    Error(String),
}

/// A core that answers requests.
pub trait Controlled {
    /// Answers a request, or carries it out.
    fn control(&mut self, now: Instant, stack: &mut Stack, request: Request) -> Answer;
}
