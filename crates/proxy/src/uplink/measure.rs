//! How servers are measured: by two trains of packets each, over one link at a time. What users
//! receive meanwhile counts as free, since it would move with them.

use core::time::Duration;

use braid_engine::{ApiError, ConnectOptions, Event, Protocol, Stack};
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::health::Reach;
use super::lease;
use super::meter::{Ongoing, Parting};
use super::{Context, Upstream};
use crate::config::Select;
use crate::protocol::probe::{Arrivals, COST, Capacity, Garbled, Train};
use crate::protocol::socks::{self, Note};
use crate::relay::{StepError, read_step};
use crate::select::gauge::rest;
use crate::select::selection::Quality;

/// Users send if they did so within this time.
const LATELY: Duration = Duration::from_secs(30);
/// The least that a train is waited for: its SYN may be lost once (RFC 6298: sent again after 1 s).
const RESENT: Duration = Duration::from_millis(1_500);
/// It is late when it takes so many times what it used to.
const LATE_FACTOR: f64 = 4.0;

impl Upstream {
    /// Measures every server over every link once, as soon as that does not take too much of a
    /// link, whatever the time of the day.
    pub(crate) fn measure_all(&mut self) {
        for link in self.links.all.iter_mut().filter(|l| l.open) {
            for cell in link.cells.iter_mut().filter(|c| c.reach == Reach::Up) {
                cell.gauge.ask();
            }
        }
    }

    /// What was asked for is not through.
    pub(super) fn is_measuring(&self) -> bool {
        let mut open = self.links.all.iter().filter(|l| l.open);
        open.any(|l| l.cells.iter().any(|c| c.gauge.asked))
    }

    /// There is a choice to make, and nothing speaks against measuring.
    pub(super) fn may_measure(&self, now: Instant) -> bool {
        let settings = &self.meter.settings;
        let unix_ms = self.servers.clock.unix_ms(now);
        let quiet = settings.quiet.iter().any(|q| q.contains(unix_ms));
        let lately = |at: Instant| now.saturating_since(at) < LATELY;
        let choice = self.servers.entries.len() > 1 && self.servers.choice.select != Select::Order;
        choice && !quiet && self.last_traffic.is_some_and(lately)
    }

    /// All servers that answer were measured, as far as they can be.
    pub(super) fn all_tried(&self) -> bool {
        let usable = (0..self.servers.entries.len()).filter(|s| self.is_usable(*s));
        let mut cells = usable.flat_map(|s| self.open_cells(s));
        cells.all(|c| c.gauge.tried || c.reach != Reach::Up)
    }

    /// What is to be measured next, and when. On a link that was left alone so long that more than
    /// one is due, the one that has waited longest.
    fn next_measurement(&self) -> Option<(Instant, usize, usize)> {
        let links = self.links.all.iter().enumerate().filter(|(_, l)| l.open);
        let all = links.flat_map(|(at, link)| {
            let cells = link.cells.iter().enumerate();
            let due = cells.filter(|(_, c)| c.reach == Reach::Up && !c.is_asked());
            let due = due.filter(|(_, c)| self.meter.may || c.gauge.asked);
            due.filter_map(move |(server, cell)| {
                let since = cell.gauge.at?;
                Some((since.max(link.rests_until(cell)), since, at, server))
            })
        });
        all.min().map(|(due, _, link, server)| (due, link, server))
    }

    pub(super) fn measuring_timeout(&self) -> Option<Instant> {
        let parting = self.meter.parting.as_ref().map(|p| p.deadline);
        let next = match &self.meter.ongoing {
            Some(ongoing) => Some(ongoing.deadline),
            None => self.next_measurement().map(|(at, ..)| at),
        };
        parting.into_iter().chain(next).min()
    }

    /// Gives up what takes too long, and begins what is due.
    pub(super) fn measure(&mut self, cx: &mut Context<'_>) {
        self.meter.may = self.may_measure(cx.now);
        if let Some(late) = self.meter.ongoing.take_if(|o| o.deadline <= cx.now) {
            self.measured_nothing(cx, late);
        }
        if let Some(late) = self.meter.parting.take_if(|p| p.deadline <= cx.now) {
            late.channel.abort(cx.now, cx.stack);
        }
        if self.meter.ongoing.is_none()
            && let Some((at, link, server)) = self.next_measurement()
            && at <= cx.now
        {
            self.send_for(cx, (link, server), None);
        }
    }

    /// Asks for a train: a burst, or at the rate that a burst came at.
    fn send_for(
        &mut self,
        cx: &mut Context<'_>,
        (link, server): (usize, usize),
        capacity: Option<f64>,
    ) {
        let train = capacity.map_or(Train::BURST, Train::paced);
        cx.counters.trains += 1;
        match self.ask_for_train(cx.now, (link, server), train, cx.stack) {
            Ok(channel) => {
                self.meter.ongoing = Some(Ongoing {
                    arrivals: Arrivals::new(channel.is_protected()),
                    channel,
                    link,
                    server,
                    began: cx.now,
                    deadline: cx.now + self.longest((link, server)),
                    received: self.received(link, cx.stack),
                    capacity,
                });
            }
            Err(_) => {
                cx.counters.trains_failed += 1;
                self.conclude(cx.now, (link, server), None);
            }
        }
    }

    /// How long a train is waited for: where it is known how long the last ones took, not much
    /// longer, so that a server whose way has got worse is soon left.
    fn longest(&self, (link, server): (usize, usize)) -> Duration {
        let capacity = self.links.all[link].cells[server].gauge.capacity();
        let usual = capacity.map(|rate| COST as f64 * 8.0 / rate.max(1.0));
        let late = usual.and_then(|s| Duration::try_from_secs_f64(s * LATE_FACTOR).ok());
        late.map_or(self.probing.timeout, |late| {
            (RESENT + late).min(self.probing.timeout)
        })
    }

    fn ask_for_train(
        &mut self,
        now: Instant,
        (link, server): (usize, usize),
        train: Train,
        stack: &mut Stack,
    ) -> Result<Channel, ApiError> {
        let path = self.links.all[link].path;
        let strategy = (self.strategy)();
        let options = self.options(server, path, strategy)?;
        let protocol = Protocol::Tcp;
        let options = ConnectOptions {
            protocol,
            ..options
        };
        let (mut channel, sign_in) = self.servers.channel((now, server), options, stack)?;
        let keys = (&self.servers.key, self.servers.entries[server].key);
        let hints = train.encode();
        let sign_in = sign_in.as_ref();
        let code = sign_in.map(|sign_in| sign_in.probe(keys.0, keys.1, &hints));
        let words = [
            lease::greeting(keys, sign_in),
            socks::probe(&Note { code, hints }),
        ];
        let written = channel.write_all(now, stack, &words.concat());
        if written.is_err() {
            channel.abort(now, stack);
        }
        written.map(|()| channel)
    }

    /// Bytes that came over a link so far.
    fn received(&self, link: usize, stack: &Stack) -> u64 {
        let path = usize::from(self.links.all[link].path.0);
        stack
            .path_totals()
            .get(path)
            .map_or(0, |t| t.moved.bytes_received)
    }

    /// What users received over the link since a measurement began, bit/s.
    fn users_rate(&self, now: Instant, ongoing: &Ongoing, stack: &Stack) -> f64 {
        let came = self.received(ongoing.link, stack) - ongoing.received;
        let time = now.saturating_since(ongoing.began).as_secs_f64();
        came.saturating_sub(COST / 2) as f64 * 8.0 / time.max(1e-3)
    }

    /// Whether an event is of a measurement; if so it is dealt with here.
    pub(super) fn on_measuring_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        if self.on_parting_event(cx.now, event, cx.stack) {
            return true;
        }
        let Some(mut ongoing) = self
            .meter
            .ongoing
            .take_if(|o| o.channel.conn == event.conn())
        else {
            return false;
        };
        let all_here = match event {
            Event::Readable { .. } | Event::Writable { .. } => {
                let Ongoing {
                    arrivals, channel, ..
                } = &mut ongoing;
                let input = |bytes: &[u8]| (bytes.len(), arrivals.input(cx.now, bytes));
                match read_step(cx.now, channel, cx.stack, Ok(false), input) {
                    Ok(Ok(false)) => Ok(channel.read_finished(cx.stack)),
                    Ok(step) => step,
                    Err(_) => Err(Garbled),
                }
            }
            Event::Closed { .. } => Err(Garbled),
            _ => Ok(false),
        };
        match all_here {
            Ok(false) => self.meter.ongoing = Some(ongoing),
            Ok(true) => self.train_arrived(cx, ongoing),
            Err(Garbled) => self.measured_nothing(cx, ongoing),
        }
        true
    }

    /// A protected connection whose train has arrived is kept until its server has ended it too, and so
    /// given tickets in place of the one it took.
    fn part(&mut self, now: Instant, mut parting: Parting, stack: &mut Stack) {
        let channel = &mut parting.channel;
        let goes_on = channel.is_protected() && channel.drive::<StepError>(now, stack).is_ok();
        if !goes_on || channel.read_finished(stack) {
            return channel.abort(now, stack);
        }
        if let Some(before) = self.meter.parting.replace(parting) {
            before.channel.abort(now, stack);
        }
    }

    fn on_parting_event(&mut self, now: Instant, event: &Event, stack: &mut Stack) -> bool {
        let conn = event.conn();
        let Some(parting) = self.meter.parting.take_if(|p| p.channel.conn == conn) else {
            return false;
        };
        if !matches!(event, Event::Closed { .. }) {
            self.part(now, parting, stack);
        }
        true
    }

    fn train_arrived(&mut self, cx: &mut Context<'_>, ongoing: Ongoing) {
        let (link, server) = (ongoing.link, ongoing.server);
        let users = self.users_rate(cx.now, &ongoing, cx.stack);
        let told = ongoing.arrivals.beyond();
        let before = self.meter.beyond[server].and_then(|(_, before)| before.delay_ms);
        let beyond = Quality {
            bandwidth: told.bandwidth,
            delay_ms: told.delay_ms.or(before),
        };
        self.meter.beyond[server] = Some((cx.now, beyond));
        let Ongoing {
            channel,
            capacity,
            arrivals,
            ..
        } = ongoing;
        let parting = Parting {
            channel,
            link,
            deadline: cx.now + self.probing.timeout,
        };
        self.part(cx.now, parting, cx.stack);
        // It takes this box for one of its users.
        self.pools.on_served(server);
        let gauge = &mut self.links.all[link].cells[server].gauge;
        let asked = gauge.asked;
        let result = match capacity {
            None => match arrivals.capacity() {
                Some(Capacity::Rate(rate)) => {
                    let rate = gauge.on_capacity(rate);
                    self.send_for(cx, (link, server), Some(rate));
                    return self.update(cx.now, cx.stack);
                }
                Some(Capacity::TooFast) => {
                    gauge.on_too_fast(cx.now, &self.meter.settings);
                    self.leave_alone(cx.now, link);
                    return self.update(cx.now, cx.stack);
                }
                Some(Capacity::Uneven(at_least)) => {
                    gauge.on_uneven(at_least);
                    None
                }
                None => None,
            },
            Some(capacity) => {
                let free = arrivals.available(capacity);
                free.map(|free| (free + users).min(capacity))
            }
        };
        cx.counters.trains_failed += u64::from(result.is_none());
        self.conclude(cx.now, (link, server), result);
        if asked && result.is_none() {
            self.links.all[link].cells[server].gauge.ask_again(cx.now);
        }
        self.update(cx.now, cx.stack);
    }

    fn measured_nothing(&mut self, cx: &mut Context<'_>, ongoing: Ongoing) {
        cx.counters.trains_failed += 1;
        ongoing.channel.abort(cx.now, cx.stack);
        let cell = (ongoing.link, ongoing.server);
        // What is lost again and again is lost to others. A server that refuses tells nothing of the
        // way to it.
        let late = ongoing.deadline <= cx.now;
        let trickle = ongoing
            .arrivals
            .trickle(cx.now.saturating_since(ongoing.began));
        let alarmed = self.links.all[cell.0].cells[cell.1].gauge.is_alarmed();
        let free = trickle.or(alarmed.then_some(0.0)).filter(|_| late);
        let users = self.users_rate(cx.now, &ongoing, cx.stack);
        self.conclude(cx.now, cell, free.map(|free| free + users));
        self.update(cx.now, cx.stack);
    }

    /// A measurement is over.
    fn conclude(&mut self, now: Instant, (link, server): (usize, usize), result: Option<f64>) {
        let gauge = &mut self.links.all[link].cells[server].gauge;
        gauge.on_result(now, result, &self.meter.settings);
        self.leave_alone(now, link);
    }

    /// Says when a link that was measured is to be used for the next measurement.
    fn leave_alone(&mut self, now: Instant, link: usize) {
        let link = &mut self.links.all[link];
        let known = link.cells.iter().filter_map(|c| c.gauge.capacity());
        link.rest = rest(known.reduce(f64::max));
        link.rests_until = link.rests_until.max(now) + link.rest;
    }
}
