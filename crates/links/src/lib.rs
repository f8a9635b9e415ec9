//! Models of links, without a clock or an operating system. The simulator runs them in virtual time, the emulator
//! in wall-clock time. Both pass the time and a random generator.
//!
//! A [`Link`] is one direction of a link. A packet passes the following stages in order:
//!
//! 1. Random loss ([`Loss`]), of single packets or in bursts.
//! 2. Duplication. The copy follows the original, and passes the next stages like any packet.
//! 3. A queue, droptail ([`QueueLimit`]) and optionally with [`CoDel`]. The packet that is being serialised is not
//!    in the queue.
//! 4. Serialisation at the line's [`Rate`]: constant, without accumulating rounding errors, or recorded in a
//!    [`Trace`].
//! 5. Propagation: the delay and up to `jitter` more. Packets stay in order, except those that take the detour of
//!    [`Reorder`], and those on a link whose [jitter reorders](Settings::jitter_reorders). The link decides which bit
//!    is [corrupted](Settings::corrupt), and the driver flips it.
//!
//! Middleboxes, such as a NAT, are in [`middlebox`].
//!
//! A [`LinkModel`] has the settings under the keys, and in the [`text`] form, of files and command lines. A
//! [`Schedule`] lists changes of the settings over time. Disabled features draw no random numbers, so that they do
//! not change the numbers that other features get.
//!
//! ```
//! use braid_links::{Link, QueueLimit, Rate, Settings, Verdict};
//! use braid_wire::{Instant, Rng};
//! use std::time::Duration;
//!
//! let mut rng = Rng::for_component(1, 0);
//! let mut link = Link::new(Settings {
//!     rate: Rate::bits_per_second(8_000_000),
//!     delay: Duration::from_millis(10),
//!     queue: QueueLimit::Packets(50),
//!     ..Settings::default()
//! });
//! assert_eq!(link.enqueue(Instant::ZERO, "packet", 1000, &mut rng), Verdict::Queued);
//! let due = link.next_event().unwrap();
//! assert_eq!(due, Instant::from_millis(11));
//! assert_eq!(link.poll_deliver(due).unwrap().packet, "packet");
//! ```
#![forbid(unsafe_code)]

mod codel;
mod counters;
mod line;
mod link;
pub mod middlebox;
mod model;
mod queue;
mod random;
mod schedule;
mod settings;
pub mod text;
mod trace;

pub use codel::CoDel;
pub use counters::{Counters, Tally};
pub use link::{Delivery, DropCause, Dropped, Link, MAX_LINK_PACKETS, Verdict, flip_bit};
pub use model::{LinkModel, TraceFile};
pub use queue::QueueLimit;
pub use schedule::{Change, Schedule};
pub use settings::{GilbertElliott, Loss, Rate, Reorder, Settings};
pub use trace::Trace;
