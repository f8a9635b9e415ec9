//! Measurements of servers: two trains of packets each, over one link at a time. Bytes that users receive
//! meanwhile count as free, since they would move with the users.

use braid_engine::{ApiError, ConnectOptions, Event, Protocol, Stack};
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::lease;
use super::meter::{Ongoing, Parting};
use super::{Context, Upstream};
use crate::protocol::probe::{Arrivals, Capacity, Garbled, Train};
use crate::protocol::socks::{self, RequestMetadata};
use crate::relay::read_step;
use crate::select::selection::Quality;

impl Upstream {
    /// Has every server measured over every link once, also in quiet hours.
    pub(crate) fn measure_all(&mut self) {
        self.links.measure_all();
    }

    /// Gives up overdue measurements, and begins the one that is due.
    pub(super) fn measure(&mut self, cx: &mut Context<'_>) {
        self.meter.reconsider(cx.now, &self.servers, &self.watch);
        if let Some(late) = self.meter.ongoing.take_if(|o| o.deadline <= cx.now) {
            self.measured_nothing(cx, late);
        }
        if let Some(late) = self.meter.parting.take_if(|p| p.deadline <= cx.now) {
            late.channel.abort(cx.now, cx.stack);
        }
        if self.meter.ongoing.is_none()
            && let Some((at, link, server)) = self.meter.next(&self.links)
            && at <= cx.now
        {
            self.send_for(cx, (link, server), None);
        }
    }

    /// Asks for a train: a burst or, with `capacity`, one at this rate.
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
                let cell = &self.links.all[link].cells[server];
                self.meter.ongoing = Some(Ongoing {
                    arrivals: Arrivals::new(channel.is_protected()),
                    channel,
                    link,
                    server,
                    began: cx.now,
                    deadline: cx.now + Ongoing::longest(cell, self.watch.settings.timeout),
                    received: self.links.all[link].received(cx.stack),
                    capacity,
                });
            }
            Err(_) => {
                cx.counters.trains_failed += 1;
                let settings = &self.meter.settings;
                self.links
                    .on_measured(cx.now, (link, server), None, settings);
            }
        }
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
        let entry = &self.servers.entries[server];
        let options = self.links.options((entry, path), strategy)?;
        // Regular TCP, so that the train comes over this link alone.
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
            socks::probe(&RequestMetadata { code, hints }),
        ];
        let written = channel.write_all(now, stack, &words.concat());
        if written.is_err() {
            channel.abort(now, stack);
        }
        written.map(|()| channel)
    }

    /// Handles an event of a measurement; returns whether it was one.
    pub(super) fn on_measuring_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        if self.meter.on_parting_event(cx.now, event, cx.stack) {
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

    fn train_arrived(&mut self, cx: &mut Context<'_>, ongoing: Ongoing) {
        let (link, server) = (ongoing.link, ongoing.server);
        let users = ongoing.users_rate(cx.now, &self.links, cx.stack);
        let told = ongoing.arrivals.egress();
        let before = self.meter.egress[server].and_then(|(_, before)| before.delay_ms);
        let egress = Quality {
            bandwidth: told.bandwidth,
            delay_ms: told.delay_ms.or(before),
        };
        self.meter.egress[server] = Some((cx.now, egress));
        let Ongoing {
            channel,
            capacity,
            arrivals,
            ..
        } = ongoing;
        let parting = Parting {
            channel,
            link,
            deadline: cx.now + self.watch.settings.timeout,
        };
        self.meter.part(cx.now, parting, cx.stack);
        // A server that sends a train has accepted this box.
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
                    self.links.leave_alone(cx.now, link);
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
        let settings = &self.meter.settings;
        self.links
            .on_measured(cx.now, (link, server), result, settings);
        if asked && result.is_none() {
            self.links.all[link].cells[server].gauge.ask_again(cx.now);
        }
        self.update(cx.now, cx.stack);
    }

    fn measured_nothing(&mut self, cx: &mut Context<'_>, ongoing: Ongoing) {
        cx.counters.trains_failed += 1;
        ongoing.channel.abort(cx.now, cx.stack);
        // Repeated loss would affect users too, so a late train counts as a result. A server that refuses says
        // nothing about the path.
        let late = ongoing.deadline <= cx.now;
        let trickle = ongoing
            .arrivals
            .trickle(cx.now.saturating_since(ongoing.began));
        let (link, server) = (ongoing.link, ongoing.server);
        let alarmed = self.links.all[link].cells[server].gauge.is_alarmed();
        let free = trickle.or(alarmed.then_some(0.0)).filter(|_| late);
        let users = ongoing.users_rate(cx.now, &self.links, cx.stack);
        let result = free.map(|free| free + users);
        let settings = &self.meter.settings;
        self.links
            .on_measured(cx.now, (link, server), result, settings);
        self.update(cx.now, cx.stack);
    }
}
