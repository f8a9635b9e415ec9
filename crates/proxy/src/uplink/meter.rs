//! Measurements of servers that are under way.

use braid_secure::channel::Channel;
use braid_wire::Instant;

use crate::config::Measuring;
use crate::protocol::probe::Arrivals;
use crate::select::selection::Quality;

/// Measurements of all servers: one at a time, so that they do not disturb each other.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) settings: Measuring,
    pub(super) ongoing: Option<Ongoing>,
    /// The connection of the last train, until its server has ended it.
    pub(super) parting: Option<Parting>,
    /// Nothing speaks against it: users send, and these are no quiet hours.
    pub(super) may: bool,
    /// The way beyond each server, and when it was told.
    pub(super) beyond: Vec<Option<(Instant, Quality)>>,
}

/// A train that is awaited.
#[derive(Debug)]
pub(super) struct Ongoing {
    pub(super) channel: Channel,
    pub(super) link: usize,
    pub(super) server: usize,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    /// What the link had received when it began, bytes.
    pub(super) received: u64,
    /// What the first train found, bit/s, if this is the second.
    pub(super) capacity: Option<f64>,
    pub(super) arrivals: Arrivals,
}

/// A connection whose train has arrived.
#[derive(Debug)]
pub(super) struct Parting {
    pub(super) channel: Channel,
    pub(super) link: usize,
    pub(super) deadline: Instant,
}

impl Meter {
    pub(super) fn new(settings: Measuring, servers: usize) -> Self {
        Meter {
            settings,
            ongoing: None,
            parting: None,
            may: false,
            beyond: vec![None; servers],
        }
    }
}
