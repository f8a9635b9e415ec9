//! The measurements of servers that are under way, and the choice of the next one.

use core::time::Duration;

use braid_engine::{Event, Stack};
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::egress::Egress;
use super::health::{Reach, ServerHealth};
use super::links::Links;
use super::probe_pace::ProbePace;
use super::servers::Servers;
use crate::config::Measuring;
use crate::protocol::probe::{MEASUREMENT_BYTES, TrainReceiver};
use crate::relay::StepError;
use crate::select::gauge::pause_after;

/// Users count as sending for this time after their last bytes. The value is a guess: it bridges the pauses while
/// a user reads a page.
const RECENT_TRAFFIC: Duration = Duration::from_secs(30);
/// The minimum waiting time for a train. Its SYN may be lost once, and is sent again after 1 s (RFC 6298 section
/// 2.1); the rest is for the handshakes.
const SYN_RETRY_TIME: Duration = Duration::from_millis(1_500);
/// The number of expected durations after which a train is late. The value is a guess: cross-traffic may leave a
/// quarter of the capacity.
const LATE_FACTOR: f64 = 4.0;

/// The measurements of all servers; they run one at a time, so that they do not disturb each other.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) settings: Measuring,
    pub(super) pending: Option<PendingTrain>,
    /// The connection of the last train, until its server has closed it.
    pub(super) closing: Option<ClosingTrain>,
    /// True while measurements may run: there are servers to choose from, users send, and it is no quiet hour.
    pub(super) may_measure: bool,
    pub(super) egress: Egress,
}

/// A train that was requested and has not arrived completely.
#[derive(Debug)]
pub(super) struct PendingTrain {
    pub(super) channel: Channel,
    /// Index of the link.
    pub(super) link: usize,
    /// Index of the server.
    pub(super) server: usize,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    /// The number of bytes that the link had received when the train was requested.
    pub(super) received_at_start: u64,
    /// The capacity that the first train found, bit/s; `None` if this is the first train.
    pub(super) capacity: Option<f64>,
    pub(super) receiver: TrainReceiver,
}

/// The connection of a train that has arrived, while the server closes it.
#[derive(Debug)]
pub(super) struct ClosingTrain {
    pub(super) channel: Channel,
    pub(super) link: usize,
    pub(super) deadline: Instant,
}

impl Meter {
    pub(super) fn new(settings: Measuring, servers: usize) -> Self {
        Meter {
            settings,
            pending: None,
            closing: None,
            may_measure: false,
            egress: Egress::new(servers),
        }
    }

    /// Updates [`may_measure`](Self::may_measure).
    pub(super) fn update_permission(
        &mut self,
        now: Instant,
        servers: &Servers,
        probe_pace: &ProbePace,
    ) {
        let unix_ms = servers.clock.unix_ms(now);
        let quiet = self.settings.quiet.iter().any(|q| q.contains(unix_ms));
        self.may_measure =
            servers.has_choice() && !quiet && probe_pace.had_traffic(now, RECENT_TRAFFIC);
    }

    /// Returns time, link and server of the next measurement. If several measurements are due on a link, the
    /// measurement that has waited longest comes first.
    pub(super) fn next(&self, links: &Links) -> Option<(Instant, usize, usize)> {
        let links = links.all.iter().enumerate().filter(|(_, l)| l.open);
        let all = links.flat_map(|(at, link)| {
            let health = link.health.iter().enumerate();
            let due =
                health.filter(|(_, health)| health.reach == Reach::Up && !health.is_probing());
            let due = due.filter(|(_, health)| self.may_measure || health.gauge.requested);
            due.filter_map(move |(server, health)| {
                let since = health.gauge.next_at?;
                Some((since.max(link.measurable_at(health)), since, at, server))
            })
        });
        all.min().map(|(due, _, link, server)| (due, link, server))
    }

    /// Keeps a protected connection whose train has arrived until the server has closed it. Before it closes, the
    /// server sends new tickets, which replace the ticket that this connection used up.
    pub(super) fn keep_until_closed(
        &mut self,
        now: Instant,
        mut closing: ClosingTrain,
        stack: &mut Stack,
    ) {
        let channel = &mut closing.channel;
        let goes_on = channel.is_protected() && channel.drive::<StepError>(now, stack).is_ok();
        if !goes_on || channel.read_finished(stack) {
            return channel.abort(now, stack);
        }
        // The server has had the time of a whole train to close the earlier connection.
        if let Some(before) = self.closing.replace(closing) {
            before.channel.abort(now, stack);
        }
    }

    /// Handles an event of the connection whose train has arrived; returns whether the event was of this
    /// connection.
    pub(super) fn on_closing_event(
        &mut self,
        now: Instant,
        event: &Event,
        stack: &mut Stack,
    ) -> bool {
        let conn = event.conn();
        let Some(closing) = self.closing.take_if(|p| p.channel.conn == conn) else {
            return false;
        };
        if !matches!(event, Event::Closed { .. }) {
            self.keep_until_closed(now, closing, stack);
        }
        true
    }

    /// Ends the measurement under way, if it is over `link`; `None` stands for any link.
    pub(super) fn stop(&mut self, now: Instant, link: Option<usize>, stack: &mut Stack) {
        let affects = |at: usize| link.is_none_or(|link| link == at);
        if let Some(pending) = self.pending.take_if(|pending| affects(pending.link)) {
            pending.channel.abort(now, stack);
        }
        if let Some(closing) = self.closing.take_if(|closing| affects(closing.link)) {
            closing.channel.abort(now, stack);
        }
    }

    /// Returns the time at which the next measurement is due, or the measurement under way becomes overdue.
    pub(super) fn next_timeout(&self, links: &Links) -> Option<Instant> {
        let closing = self.closing.as_ref().map(|p| p.deadline);
        let next = match &self.pending {
            Some(pending) => Some(pending.deadline),
            None => self.next(links).map(|(at, ..)| at),
        };
        closing.into_iter().chain(next).min()
    }
}

impl PendingTrain {
    /// Returns the maximum waiting time for a train, at most `timeout`. If the capacity is known, the time depends
    /// on the expected duration of the train, so that a path that has become slower is noticed soon.
    pub(super) fn wait_limit(health: &ServerHealth, timeout: Duration) -> Duration {
        let capacity = health.gauge.capacity();
        // `MEASUREMENT_BYTES` are the bytes of two trains, so this is twice the time of one train.
        let expected_secs = capacity.map(|rate| MEASUREMENT_BYTES as f64 * 8.0 / rate.max(1.0));
        let late_after =
            expected_secs.and_then(|s| Duration::try_from_secs_f64(s * LATE_FACTOR).ok());
        late_after.map_or(timeout, |late_after| {
            (SYN_RETRY_TIME + late_after).min(timeout)
        })
    }

    /// Returns the rate at which users received over the link since the measurement began, bit/s.
    pub(super) fn users_rate(&self, now: Instant, links: &Links, stack: &Stack) -> f64 {
        let received = links.all[self.link].bytes_received(stack) - self.received_at_start;
        let time = now.saturating_since(self.began).as_secs_f64();
        // `MEASUREMENT_BYTES` are the bytes of two trains. This train has half of them, and the rest of `received`
        // went to users.
        received.saturating_sub(MEASUREMENT_BYTES / 2) as f64 * 8.0 / time.max(1e-3)
    }
}

impl Links {
    /// Records the free rate that a measurement found, bit/s; `None` if it found none.
    pub(super) fn on_measured(
        &mut self,
        now: Instant,
        (link, server): (usize, usize),
        result: Option<f64>,
        settings: &Measuring,
    ) {
        let gauge = &mut self.all[link].health[server].gauge;
        gauge.on_result(now, result, settings);
        self.pause_measurements(now, link);
    }

    /// Delays the next measurement over a link, so that measurements keep to their share of the link's rate.
    pub(super) fn pause_measurements(&mut self, now: Instant, link: usize) {
        let link = &mut self.all[link];
        let known = link
            .health
            .iter()
            .filter_map(|health| health.gauge.capacity());
        link.last_rest = pause_after(known.reduce(f64::max));
        link.rests_until = link.rests_until.max(now) + link.last_rest;
    }

    /// Requests one measurement of every server over every link. The measurements run also in quiet hours, but
    /// wait for the links' rests.
    pub(super) fn measure_all(&mut self) {
        for link in self.all.iter_mut().filter(|l| l.open) {
            for health in link
                .health
                .iter_mut()
                .filter(|health| health.reach == Reach::Up)
            {
                health.gauge.request();
            }
        }
    }

    /// Returns whether a requested measurement is outstanding.
    pub(super) fn is_measuring(&self) -> bool {
        let mut health = self.open().flat_map(|l| &l.health);
        health.any(|health| health.gauge.requested)
    }

    /// Returns whether a measurement of a server was tried over all links over which it answers.
    pub(super) fn is_tried(&self, server: usize) -> bool {
        let mut health = self.open_health(server);
        health.all(|health| health.gauge.attempted || health.reach != Reach::Up)
    }
}
