//! Requests to a running box or server, and the answers. The driver receives and sends them on its control
//! socket, each as one line of JSON.

use braid_engine::Stack;
use braid_wire::Instant;
use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::config::Changes;

/// The answer of a box that is being stopped to a request for a change.
pub const STOPPING: &str = "this box is stopping and accepts no more changes; start it again";

/// A request for the status, or for a change. A change applies until the next one or the end of the process; the
/// configuration file stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Returns the current status.
    Status,
    /// Sets whether a box intercepts new connections. While interception is off, new connections are forwarded
    /// without aggregation, and connections that are intercepted already continue.
    Proxy {
        /// The requested state.
        on: bool,
    },
    /// Sets whether a box uses a link. Switching a link off closes its subflows, and no subflow is opened on it.
    Link {
        /// Name of the link.
        name: String,
        /// The requested state.
        on: bool,
    },
    /// Sets whether a box's link is a backup, which carries data only while no other link works. Applies to new
    /// and to existing subflows. MP_PRIO (RFC 8684 section 3.3.8) tells the server about existing ones.
    Backup {
        /// Name of the link.
        name: String,
        /// The requested state.
        on: bool,
    },
    /// Sets the server for a box's new connections.
    Server {
        /// Name of the server. New connections use this server as long as it answers. With `auto`, the box
        /// chooses.
        name: String,
    },
    /// Measures all servers of a box now, regardless of traffic and quiet hours.
    Measure,
    /// Makes a box or a server read its configuration again. The driver handles this request, because the core
    /// cannot read files.
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
    /// The request names a link or a server that does not exist, is not for a process of this role, or asks for a
    /// change while the process stops. The text says what is expected.
    Wrong(String),
    /// The change was not made. The text says why.
    Error(String),
}

/// A core that answers requests.
pub trait Controlled {
    /// Answers a request, or carries it out.
    fn control(&mut self, now: Instant, stack: &mut Stack, request: Request) -> Answer;
}
