//! Traffic: models of the applications whose data the connections of a host carry.
//!
//! Each end of a connection has a [`Stream`] with a [`Role`]. Some roles carry one sequence of bytes. Others carry
//! [`Message`]s with headers, so that the reader can measure how long each message took; a session multiplexes
//! several streams of messages. In both cases the reader checks every byte.
//!
//! | model | one end | the other end |
//! | --- | --- | --- |
//! | download | [`Role::Fetch`] | [`Role::Answer`] |
//! | upload | [`Role::Upload`] | [`Role::Sink`] |
//! | greedy sender | [`Role::Greedy`] | [`Role::Sink`] |
//! | long-lived transfer at a limited rate | [`Role::Capped`] | [`Role::Sink`] |
//! | requests and answers | [`Role::Ask`] | [`Role::Serve`] |
//! | video, several streams of a session | [`Role::Send`] | [`Role::Collect`] |

mod message;
mod pace;
mod pattern;
mod preface;
mod role;
mod session;
mod stream;

pub use message::{HEADER, Kind, Message, Outbox, Received, jitter};
pub use pattern::{pattern, pattern_from};
pub use preface::Preface;
pub use role::{Exchange, Role};
pub use session::{Bulk, Frame, Progress, Session, Video};
pub use stream::Stream;
