//! Link models as plain code: no clock, no operating system. The simulator runs them in virtual
//! time, the emulator in wall-clock time; both hand in the time and the random stream.
//!
//! A [`Link`] is one direction. A packet passes, in this order,
//!
//! 1. random loss ([`Loss`]),
//! 2. a droptail queue ([`QueueLimit`]), which the packet being serialised is not counted in,
//! 3. serialisation at the line's [`Rate`], exact to the nanosecond however many packets follow
//!    each other,
//! 4. propagation: the delay plus up to `jitter` more, without overtaking.
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

mod counters;
mod line;
mod link;
mod queue;
mod settings;

pub use counters::{Counters, Tally};
pub use link::{Delivery, Link, MAX_HELD, Verdict};
pub use settings::{Loss, QueueLimit, Rate, Settings};
