//! Link models as plain code: no clock, no operating system. The simulator runs them in virtual
//! time, the emulator in wall-clock time; both hand in the time and the random stream.
//!
//! A [`Link`] is one direction. A packet passes, in this order,
//!
//! 1. random loss ([`Loss`]): of single packets or in bursts,
//! 2. duplication: the copy goes on behind the original as a packet of its own,
//! 3. a queue, droptail ([`QueueLimit`]) or with [`CoDel`] as well; the packet being serialised does not
//!    count,
//! 4. serialisation at the line's [`Rate`]: constant, exact to the nanosecond however many packets
//!    follow each other, or as recorded in a [`Trace`],
//! 5. propagation: the delay plus up to `jitter` more, without overtaking, except for packets that
//!    take the detour of [`Reorder`]; [corruption](Settings::corrupt) of a bit, which the driver
//!    carries out.
//!
//! Boxes that do more than forward packets, such as a NAT, are in [`middlebox`].
//!
//! A [`LinkModel`] has the settings by the keys and in the [`text`] of files and command lines. A
//! [`Schedule`] says how the settings change over time. Features that are switched off draw nothing from
//! the random stream.
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
pub use settings::{Loss, Rate, Reorder, Settings};
pub use trace::{Trace, TraceError};
