//! Measurements of servers. A measurement consists of two trains of packets over one link: a burst shows the
//! capacity, and a train at that rate shows the part that is free. Bytes that users receive meanwhile count as
//! free, because the users would take this traffic along to another server.

use braid_engine::{ApiError, ConnectOptions, Event, Protocol, Stack};
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::checkout;
use super::meter::{ClosingTrain, PendingTrain};
use super::{Context, Upstream};
use crate::protocol::probe::{Capacity, MalformedAnswer, Train, TrainReceiver, ask};
use crate::protocol::socks::{self, RequestMetadata};
use crate::relay::read_step;

impl Upstream {
    /// Requests one measurement of every server over every link, also in quiet hours.
    pub(crate) fn measure_all(&mut self) {
        self.links.measure_all();
    }

    /// Ends overdue measurements, and begins the next one if it is due.
    pub(super) fn measure(&mut self, cx: &mut Context<'_>) {
        self.meter
            .update_permission(cx.now, &self.servers, &self.probe_pace);
        if let Some(late) = self
            .meter
            .pending
            .take_if(|pending| pending.deadline <= cx.now)
        {
            self.measured_nothing(cx, late);
        }
        if let Some(late) = self
            .meter
            .closing
            .take_if(|closing| closing.deadline <= cx.now)
        {
            late.channel.abort(cx.now, cx.stack);
        }
        if self.meter.pending.is_none()
            && let Some((at, link, server)) = self.meter.next(&self.links)
            && at <= cx.now
        {
            self.request_train(cx, (link, server), None);
        }
    }

    /// Requests a train: a burst or, with `capacity`, a train at this rate, bit/s.
    fn request_train(
        &mut self,
        cx: &mut Context<'_>,
        (link, server): (usize, usize),
        capacity: Option<f64>,
    ) {
        let train = capacity.map_or(Train::BURST, Train::paced);
        cx.counters.trains += 1;
        match self.open_train_connection(cx.now, (link, server), train, cx.stack) {
            Ok(channel) => {
                let health = &self.links.all[link].health[server];
                self.meter.pending = Some(PendingTrain {
                    receiver: TrainReceiver::new(channel.is_protected()),
                    channel,
                    link,
                    server,
                    began: cx.now,
                    deadline: cx.now
                        + PendingTrain::wait_limit(health, self.probe_pace.settings.timeout),
                    received_at_start: self.links.all[link].bytes_received(cx.stack),
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

    /// Opens a connection and writes the request for `train`.
    fn open_train_connection(
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
        // Regular TCP, so that the whole train arrives over this link.
        let protocol = Protocol::Tcp;
        let options = ConnectOptions {
            protocol,
            ..options
        };
        let (mut channel, sign_in) = self.servers.channel((now, server), options, stack)?;
        let keys = (&self.servers.key, self.servers.entries[server].key);
        let mut hints = train.encode();
        // The server's answer to the train also reports the metrics of these prefixes.
        let prefixes = self.meter.egress.ask(now, server);
        prefixes.iter().for_each(|prefix| ask(&mut hints, *prefix));
        let sign_in = sign_in.as_ref();
        let code = sign_in.map(|sign_in| sign_in.probe(keys.0, keys.1, &hints));
        let messages = [
            checkout::greeting(keys, sign_in),
            socks::probe(&RequestMetadata { code, hints }),
        ];
        let written = channel.write_all(now, stack, &messages.concat());
        if written.is_err() {
            channel.abort(now, stack);
        }
        written.map(|()| channel)
    }

    /// Handles an event of a measurement's connection; returns whether the event was of such a connection.
    pub(super) fn on_measuring_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        if self.meter.on_closing_event(cx.now, event, cx.stack) {
            return true;
        }
        let Some(mut pending) = self
            .meter
            .pending
            .take_if(|pending| pending.channel.conn == event.conn())
        else {
            return false;
        };
        let is_complete = match event {
            Event::Readable { .. } | Event::Writable { .. } => {
                let PendingTrain {
                    receiver, channel, ..
                } = &mut pending;
                let input = |bytes: &[u8]| (bytes.len(), receiver.input(cx.now, bytes));
                match read_step(cx.now, channel, cx.stack, Ok(false), input) {
                    // A server that ends the stream early has sent all that it will.
                    Ok(Ok(false)) => Ok(channel.read_finished(cx.stack)),
                    Ok(step) => step,
                    Err(_) => Err(MalformedAnswer),
                }
            }
            Event::Closed { .. } => Err(MalformedAnswer),
            _ => Ok(false),
        };
        match is_complete {
            Ok(false) => self.meter.pending = Some(pending),
            Ok(true) => self.train_arrived(cx, pending),
            Err(MalformedAnswer) => self.measured_nothing(cx, pending),
        }
        true
    }

    /// Computes the result of a train that has arrived. After the burst, requests the second train at the capacity
    /// found. After the second train, records the free rate.
    fn train_arrived(&mut self, cx: &mut Context<'_>, pending: PendingTrain) {
        let (link, server) = (pending.link, pending.server);
        let users = pending.users_rate(cx.now, &self.links, cx.stack);
        let (over_all, prefixes) = (pending.receiver.egress(), pending.receiver.prefixes());
        self.meter
            .egress
            .on_report(cx.now, server, over_all, prefixes);
        let PendingTrain {
            channel,
            capacity,
            receiver,
            ..
        } = pending;
        let closing = ClosingTrain {
            channel,
            link,
            deadline: cx.now + self.probe_pace.settings.timeout,
        };
        self.meter.keep_until_closed(cx.now, closing, cx.stack);
        // A server sends trains only to boxes that it has accepted.
        self.pools.on_served(server);
        let gauge = &mut self.links.all[link].health[server].gauge;
        let was_requested = gauge.requested;
        let result = match capacity {
            None => match receiver.capacity() {
                Some(Capacity::Rate(rate)) => {
                    let rate = gauge.on_capacity(rate);
                    self.request_train(cx, (link, server), Some(rate));
                    return self.update(cx.now, cx.stack);
                }
                // `on_too_fast` plans the next measurement itself, also a requested one.
                Some(Capacity::TooFast) => {
                    gauge.on_too_fast(cx.now, &self.meter.settings);
                    self.links.pause_measurements(cx.now, link);
                    return self.update(cx.now, cx.stack);
                }
                Some(Capacity::Uneven(mean_rate)) => {
                    gauge.on_uneven(mean_rate);
                    None
                }
                None => None,
            },
            Some(capacity) => {
                let free = receiver.available(capacity);
                // No more than the capacity can be free.
                free.map(|free| (free + users).min(capacity))
            }
        };
        cx.counters.trains_failed += u64::from(result.is_none());
        let settings = &self.meter.settings;
        self.links
            .on_measured(cx.now, (link, server), result, settings);
        if was_requested && result.is_none() {
            self.links.all[link].health[server]
                .gauge
                .retry_request(cx.now);
        }
        self.update(cx.now, cx.stack);
    }

    /// Ends a measurement whose train is late, or whose connection failed.
    fn measured_nothing(&mut self, cx: &mut Context<'_>, pending: PendingTrain) {
        cx.counters.trains_failed += 1;
        pending.channel.abort(cx.now, cx.stack);
        // A late train counts as a result, because the losses or the slowness that delayed it affect users too. A
        // connection that the server ended (not `is_late`) shows nothing about the path. If not even the server's
        // answer has come, the server may be the cause. Then the free rate counts as zero only after an alarm, that
        // is, if other evidence shows that the path has changed.
        let is_late = pending.deadline <= cx.now;
        let partial_rate = pending
            .receiver
            .partial_rate(cx.now.saturating_since(pending.began));
        let (link, server) = (pending.link, pending.server);
        let is_alarmed = self.links.all[link].health[server].gauge.is_alarmed();
        let free = partial_rate
            .or(is_alarmed.then_some(0.0))
            .filter(|_| is_late);
        let users = pending.users_rate(cx.now, &self.links, cx.stack);
        let result = free.map(|free| free + users);
        let settings = &self.meter.settings;
        self.links
            .on_measured(cx.now, (link, server), result, settings);
        self.update(cx.now, cx.stack);
    }
}
