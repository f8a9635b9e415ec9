//! Measurements of servers: those under way, and which is next.

use core::time::Duration;

use braid_engine::{Event, Stack};
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::health::{Cell, Reach};
use super::links::Links;
use super::servers::Servers;
use super::watch::Watch;
use crate::config::{Measuring, Select};
use crate::protocol::probe::{Arrivals, COST};
use crate::relay::StepError;
use crate::select::gauge::rest;
use crate::select::selection::Quality;

/// Users send if they did so within this time.
const LATELY: Duration = Duration::from_secs(30);
/// The least that a train is waited for: its SYN may be lost once (RFC 6298: sent again after 1 s).
const RESENT: Duration = Duration::from_millis(1_500);
/// It is late when it takes so many times what it used to.
const LATE_FACTOR: f64 = 4.0;

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

    /// Finds out whether there is a choice to make, and nothing speaks against measuring.
    pub(super) fn reconsider(&mut self, now: Instant, servers: &Servers, watch: &Watch) {
        let unix_ms = servers.clock.unix_ms(now);
        let quiet = self.settings.quiet.iter().any(|q| q.contains(unix_ms));
        let choice = servers.entries.len() > 1 && servers.choice.select != Select::Order;
        self.may = choice && !quiet && watch.had_traffic(now, LATELY);
    }

    /// Returns what is to be measured next, and when: the link and the server. On a link that was left alone so
    /// long that more than one is due, the one that has waited longest.
    pub(super) fn next(&self, links: &Links) -> Option<(Instant, usize, usize)> {
        let links = links.all.iter().enumerate().filter(|(_, l)| l.open);
        let all = links.flat_map(|(at, link)| {
            let cells = link.cells.iter().enumerate();
            let due = cells.filter(|(_, c)| c.reach == Reach::Up && !c.is_asked());
            let due = due.filter(|(_, c)| self.may || c.gauge.asked);
            due.filter_map(move |(server, cell)| {
                let since = cell.gauge.at?;
                Some((since.max(link.rests_until(cell)), since, at, server))
            })
        });
        all.min().map(|(due, _, link, server)| (due, link, server))
    }

    /// Keeps a protected connection whose train has arrived until its server has ended it too, and so given
    /// tickets in place of the one it took.
    pub(super) fn part(&mut self, now: Instant, mut parting: Parting, stack: &mut Stack) {
        let channel = &mut parting.channel;
        let goes_on = channel.is_protected() && channel.drive::<StepError>(now, stack).is_ok();
        if !goes_on || channel.read_finished(stack) {
            return channel.abort(now, stack);
        }
        if let Some(before) = self.parting.replace(parting) {
            before.channel.abort(now, stack);
        }
    }

    /// Returns whether an event is of a connection whose train has arrived; if so it is dealt with here.
    pub(super) fn on_parting_event(
        &mut self,
        now: Instant,
        event: &Event,
        stack: &mut Stack,
    ) -> bool {
        let conn = event.conn();
        let Some(parting) = self.parting.take_if(|p| p.channel.conn == conn) else {
            return false;
        };
        if !matches!(event, Event::Closed { .. }) {
            self.part(now, parting, stack);
        }
        true
    }

    /// Ends what is under way over one link, or all.
    pub(super) fn stop(&mut self, now: Instant, link: Option<usize>, stack: &mut Stack) {
        let is_there = |at: usize| link.is_none_or(|link| link == at);
        if let Some(ongoing) = self.ongoing.take_if(|o| is_there(o.link)) {
            ongoing.channel.abort(now, stack);
        }
        if let Some(parting) = self.parting.take_if(|p| is_there(p.link)) {
            parting.channel.abort(now, stack);
        }
    }

    /// When there is something to do.
    pub(super) fn next_timeout(&self, links: &Links) -> Option<Instant> {
        let parting = self.parting.as_ref().map(|p| p.deadline);
        let next = match &self.ongoing {
            Some(ongoing) => Some(ongoing.deadline),
            None => self.next(links).map(|(at, ..)| at),
        };
        parting.into_iter().chain(next).min()
    }
}

impl Ongoing {
    /// Returns how long a train is waited for, at most `timeout`: where it is known how long the last ones took,
    /// not much longer, so that a server whose way has got worse is soon left.
    pub(super) fn longest(cell: &Cell, timeout: Duration) -> Duration {
        let capacity = cell.gauge.capacity();
        let usual = capacity.map(|rate| COST as f64 * 8.0 / rate.max(1.0));
        let late = usual.and_then(|s| Duration::try_from_secs_f64(s * LATE_FACTOR).ok());
        late.map_or(timeout, |late| (RESENT + late).min(timeout))
    }

    /// Returns what users received over the link since the measurement began, bit/s.
    pub(super) fn users_rate(&self, now: Instant, links: &Links, stack: &Stack) -> f64 {
        let came = links.all[self.link].received(stack) - self.received;
        let time = now.saturating_since(self.began).as_secs_f64();
        came.saturating_sub(COST / 2) as f64 * 8.0 / time.max(1e-3)
    }
}

impl Links {
    /// Takes in the result of a measurement that is over; `None` where there was none.
    pub(super) fn on_measured(
        &mut self,
        now: Instant,
        (link, server): (usize, usize),
        result: Option<f64>,
        settings: &Measuring,
    ) {
        let gauge = &mut self.all[link].cells[server].gauge;
        gauge.on_result(now, result, settings);
        self.leave_alone(now, link);
    }

    /// Lets a link rest after a measurement, as long as its rate demands.
    pub(super) fn leave_alone(&mut self, now: Instant, link: usize) {
        let link = &mut self.all[link];
        let known = link.cells.iter().filter_map(|c| c.gauge.capacity());
        link.rest = rest(known.reduce(f64::max));
        link.rests_until = link.rests_until.max(now) + link.rest;
    }

    /// Has every server measured over every link once, as soon as that does not take too much of a link,
    /// whatever the time of the day.
    pub(super) fn measure_all(&mut self) {
        for link in self.all.iter_mut().filter(|l| l.open) {
            for cell in link.cells.iter_mut().filter(|c| c.reach == Reach::Up) {
                cell.gauge.ask();
            }
        }
    }

    /// Returns whether something that was asked for is still to be measured.
    pub(super) fn is_measuring(&self) -> bool {
        let mut cells = self.open().flat_map(|l| &l.cells);
        cells.any(|c| c.gauge.asked)
    }

    /// Returns whether a server was measured over all links, as far as it can be.
    pub(super) fn is_tried(&self, server: usize) -> bool {
        let mut cells = self.open_cells(server);
        cells.all(|c| c.gauge.tried || c.reach != Reach::Up)
    }
}
