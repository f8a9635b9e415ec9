//! Traffic: the data that the connections of a host carry.
//!
//! Each end of a connection has a [`Stream`], which acts by its [`Role`]. The plain roles carry one
//! sequence of bytes. Others carry [`Message`]s, such as several streams of a session, so that the reader
//! can tell which bytes belong to which message and how long it took. In both cases the reader checks
//! every byte.
//!
//! | model | one end | the other |
//! | --- | --- | --- |
//! | file transfer | [`Role::Fetch`] | [`Role::Answer`] |
//! | the same, the other way | [`Role::Upload`] | [`Role::Sink`] |
//! | greedy sender | [`Role::Greedy`] | [`Role::Sink`] |
//! | long-lived transfer at a limited rate | [`Role::Capped`] | [`Role::Sink`] |
//! | requests and answers | [`Role::Ask`] | [`Role::Serve`] |
//! | video, several streams of a session | [`Role::Send`] | [`Role::Collect`] |
//! | Poisson arrivals | [`Arrivals`] of any of these | |

mod arrivals;
mod message;
mod message_state;
mod pace;
mod pattern;
mod preface;
mod role;
mod session;
mod sizes;
mod stream;

pub use arrivals::{Arrivals, MakeFlow};
pub use message::{HEADER, Kind, Message, Received, jitter};
pub use pattern::{pattern, pattern_from};
pub use preface::Preface;
pub use role::{Exchange, Role};
pub use session::{Bulk, Frame, Session, Video};
pub(crate) use sizes::exponential;
pub use sizes::{Sizes, SizesError};
pub use stream::Stream;
