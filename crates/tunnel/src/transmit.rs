//! The choice of the datagram that a tunnel sends next.

use core::net::SocketAddr;
use core::time::Duration;

use braid_wire::Instant;

use crate::address::CHALLENGE_FRAMES;
use crate::config::PathState;
use crate::datagram::Datagram;
use crate::estimate::Departure;
use crate::frame::{
    Frame, HEAD_OVERHEAD, Label, MAX_REPORT_LEN, PACKET_OVERHEAD, TAIL_OVERHEAD, USE_LEN,
};
use crate::header;
use crate::outgoing::{PacketRef, Resend, Ways};
use crate::path::Tail;
use crate::tunnel::{Transmit, Tunnel};

/// Maximum length in bytes of the frames of fixed length: re-request, statement (`Latest`), challenge.
const SMALL_FRAME: usize = 9;
/// Least room in bytes for which the queue is asked for a packet: an IPv4 packet with the header of UDP or ICMP has this
/// length. Hardly any packet is smaller; a smaller one waits for the next datagram.
const MIN_ROOM: usize = 28 + PACKET_OVERHEAD;
/// Least bytes of a packet that are worth a head. A guess.
const MIN_HEAD: usize = 64;
/// The time between statements on idle paths: an eighth of a round trip, within these. Guesses: a longer time delays
/// the proof that a packet is lost, and a shorter one costs more datagrams.
const MIN_STATEMENT_INTERVAL: Duration = Duration::from_millis(2);
const MAX_STATEMENT_INTERVAL: Duration = Duration::from_millis(5);

impl Tunnel {
    /// Appends the next datagram that may be sent at `now` to `buf`. Returns `None` if there is none.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.set_now(now);
        if !self.keys.can_seal() {
            return None;
        }
        for index in 0..self.paths.len() {
            if self.paths[index].is_validation_due(now)
                && let Some(transmit) = self.send_validation(now, index, buf)
            {
                return Some(transmit);
            }
        }
        let ways = self.ways(now)?;
        self.outgoing.set_max_level(ways.max_waiting);
        self.stats.packets_too_large += self.outgoing.drop_too_large(now, &ways);
        for index in self.order(&ways) {
            let path = &self.paths[index];
            let ready = path.control.next_send() <= now && path.control.has_window(&path.estimate);
            if ready && self.has_data(now, index, &ways) {
                return self.send_data(now, index, &ways, buf);
            }
        }
        if self.control_is_due(now) {
            let mut datagram = Datagram::new(buf, self.paths[ways.best].capacity());
            self.push_tail(ways.best, &mut datagram);
            self.push_control(now, Duration::ZERO, &mut datagram);
            return self.seal(now, ways.best, None, datagram, &ways);
        }
        self.send_statements(now, &ways, buf)
            .or_else(|| self.send_size_probe(now, buf))
    }

    /// Returns the usable paths, the one with the smallest delay first.
    fn order(&self, ways: &Ways) -> impl Iterator<Item = usize> + use<> {
        let best = ways.best;
        let usable = ways.paths.map(|way| way.is_some());
        let others = (0..usable.len()).filter(move |i| *i != best && usable[*i]);
        core::iter::once(best).chain(others)
    }

    /// Sends the pending challenge and response of a path. Both may go to an address that is not proved.
    fn send_validation(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if let Some(transmit) = self.flush_tail(now, index, buf) {
            return Some(transmit);
        }
        let longest = self.longest_retry(now);
        let is_box = self.is_box();
        let path = &mut self.paths[index];
        let round_trip = path.estimate.rtt().map(|rtt| rtt.smoothed);
        let challenge = path.address.take_challenge(now, round_trip, longest);
        let response = path.address.take_response();
        let remote = response.map(|r| r.remote).or(challenge.map(|c| c.1))?;
        let mut datagram = Datagram::new(buf, path.capacity());
        if let Some(response) = response {
            datagram.push(&Frame::Response(response.data));
        }
        // A challenge for another address waits for its next time.
        if let Some((data, _)) = challenge.filter(|c| c.1 == remote) {
            datagram.push(&Frame::Challenge(data));
            if is_box {
                datagram.push(&path.use_frame());
            }
        }
        // More frames would make the answer larger than the datagram that asked for it (amplification), so an unproved
        // address gets none.
        if path.address.is_proved() && remote == path.address.remote() {
            let early = self.paths[index].report_interval();
            self.push_control(now, early, &mut datagram);
        }
        if is_box {
            datagram.pad(CHALLENGE_FRAMES);
        }
        self.seal_to(now, index, remote, datagram, true)
    }

    /// Sends the waiting tail of a cut packet. The peer joins a tail only with a head in the datagram right before it,
    /// and the next datagram will have no room.
    fn flush_tail(&mut self, now: Instant, index: usize, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.paths[index].tail?;
        let mut datagram = Datagram::new(buf, self.paths[index].capacity());
        self.push_tail(index, &mut datagram);
        if datagram.is_empty() {
            datagram.cancel();
            return None;
        }
        let remote = self.paths[index].address.remote();
        self.seal_to(now, index, remote, datagram, true)
    }

    /// Sends a datagram that is padded to the size that is in question. It is neither waited for nor counted as under
    /// way: its loss says nothing but that it was too large (RFC 8899 section 3).
    fn send_size_probe(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        let due = |p: &crate::path::Path| p.may_probe_size() && p.mtu.is_due(now);
        let index = self.paths.iter().position(due)?;
        if let Some(transmit) = self.flush_tail(now, index, buf) {
            return Some(transmit);
        }
        let path = &mut self.paths[index];
        let timeout = path.report_timeout();
        let (size, data) = path.mtu.take_probe(now, timeout, &mut self.rng)?;
        let len = path.frames_of(size);
        let mut datagram = Datagram::new(buf, len);
        datagram.push(&Frame::Challenge(data));
        datagram.pad(len);
        datagram.is_probe = true;
        let remote = path.address.remote();
        self.seal_to(now, index, remote, datagram, true)
    }

    /// Returns true if the path has something of inner packets to send.
    fn has_data(&mut self, now: Instant, index: usize, ways: &Ways) -> bool {
        let tail = self.paths[index].tail;
        tail.is_some_and(|tail| now >= tail.due_at)
            || self.outgoing.next_again(index, ways).is_some()
            || self.outgoing.choose(index, ways).is_some()
    }

    fn send_data(
        &mut self,
        now: Instant,
        index: usize,
        ways: &Ways,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut datagram = Datagram::new(buf, self.paths[index].capacity());
        self.push_tail(index, &mut datagram);
        if index == ways.best {
            let early = self.paths[index].report_interval() / 2;
            self.push_control(now, early, &mut datagram);
        }
        let mut ends = false;
        let mut has_report = false;
        while !ends && let Some(resend) = self.outgoing.next_again(index, ways) {
            let Resend { packet, len, .. } = resend;
            if resend.is_copy && !has_report {
                has_report = true;
                self.push_own_report(now, index, len, &mut datagram);
            }
            let Some(fit) = self.fit(index, len, datagram.room()) else {
                return self.seal(now, index, Some(packet), datagram, ways);
            };
            self.outgoing.commit_again(now, packet, index);
            self.stats.packets_resent += 1;
            ends = self.push_packet((now, index), packet, (fit, true, false), &mut datagram);
        }
        while !ends
            && (datagram.is_empty() || datagram.room() >= MIN_ROOM)
            && let Some(choice) = self.outgoing.choose(index, ways)
        {
            let Some(fit) = self.fit(index, choice.len, datagram.room()) else {
                break;
            };
            let sole = self.outgoing.commit(now, choice, index, ways);
            let urgency = self.outgoing.urgency_for_others(choice.packet.flow);
            self.paths[index].claim.note(now, urgency);
            ends = self.push_packet(
                (now, index),
                choice.packet,
                (fit, !choice.is_ordered, sole),
                &mut datagram,
            );
        }
        self.seal(now, index, None, datagram, ways)
    }

    /// Returns how many bytes of a packet of `len` bytes go into `room`: all, or a head if the packet fits in no
    /// datagram. Returns `None` if the packet has to wait for the next datagram.
    fn fit(&self, index: usize, len: usize, room: usize) -> Option<usize> {
        let capacity = self.paths[index].capacity();
        if len + PACKET_OVERHEAD <= room {
            return Some(len);
        }
        // A head leaves at least a byte for the tail.
        let head = room.checked_sub(HEAD_OVERHEAD)?.min(len.checked_sub(1)?);
        let is_too_large = len + PACKET_OVERHEAD > capacity;
        let tail_fits = len.saturating_sub(head) + TAIL_OVERHEAD <= capacity;
        (is_too_large && tail_fits && head >= MIN_HEAD).then_some(head)
    }

    /// Appends a packet or its head. Returns true if nothing may follow.
    fn push_packet(
        &mut self,
        (now, index): (Instant, usize),
        packet: PacketRef,
        (fit, again, sole): (usize, bool, bool),
        datagram: &mut Datagram,
    ) -> bool {
        // A server's rules are the box's, so it states none.
        let (urgency, mode) = if self.is_box() {
            self.outgoing.policy(packet.flow)
        } else {
            Default::default()
        };
        let label = Label {
            flow: packet.flow,
            urgency,
            mode,
            sequence: header::truncate(packet.sequence),
            hides_losses: self.outgoing.hides_losses(packet.flow),
            sole,
            again,
        };
        let Some(bytes) = self.outgoing.bytes(packet) else {
            return false;
        };
        if fit == bytes.len() {
            datagram.push(&Frame::Packet(label, bytes));
            return false;
        }
        datagram.push(&Frame::Head(label, &bytes[..fit]));
        self.stats.packets_cut += 1;
        self.paths[index].tail = Some(Tail {
            packet,
            offset: fit,
            due_at: now + self.outgoing.tail_wait(packet.flow),
        });
        true
    }

    /// Appends the tail of the packet whose head ended the last datagram.
    fn push_tail(&mut self, index: usize, datagram: &mut Datagram) {
        if let Some(tail) = self.paths[index].tail.take()
            && let Some(bytes) = self.outgoing.bytes(tail.packet)
            && bytes.len() - tail.offset + TAIL_OVERHEAD <= datagram.room()
        {
            datagram.push(&Frame::Tail(&bytes[tail.offset..]));
        }
    }

    /// Returns true if reports or re-requests should wait no longer.
    fn control_is_due(&self, now: Instant) -> bool {
        self.incoming.has_requests() || self.next_report().is_some_and(|at| now >= at)
    }

    /// Returns the time of the next report.
    fn next_report(&self) -> Option<Instant> {
        let due = |p: &crate::path::Path| Some(p.arrivals.pending_since()? + p.report_interval());
        Instant::earliest(self.paths.iter().map(due))
    }

    /// Appends re-requests, and the reports that are due within `early`.
    fn push_control(&mut self, now: Instant, early: Duration, datagram: &mut Datagram) {
        while datagram.room() >= SMALL_FRAME
            && let Some(request) = self.incoming.pop_request()
        {
            datagram.push(&Frame::Rerequest {
                flow: request.flow,
                sequence: header::truncate(request.lost.sequence),
                count: request.lost.count,
            });
        }
        let is_box = self.is_box();
        for path in &mut self.paths {
            let due = |since: Instant| now + early >= since + path.report_interval();
            if datagram.room() >= MAX_REPORT_LEN + USE_LEN
                && path.arrivals.pending_since().is_some_and(due)
                && let Some(report) = path.arrivals.take_report(now, path.id)
            {
                datagram.push(&Frame::Report(report));
                // The server sends on a backup or downed path until it learns the state. A challenge carries the state,
                // but a path that goes down sends none, so reports carry it too.
                if is_box && path.state != PathState::Active {
                    datagram.push(&path.use_frame());
                }
            }
        }
    }

    /// Appends the report of the path itself to a copy of `len` bytes, if both have room. Reports leave on the best
    /// path. If that one goes dark, this one must not seem silent too, or the copies would end with it.
    ///
    /// At most one leaves in each interval of reports: the peer keeps few of them to measure the rate between.
    fn push_own_report(&mut self, now: Instant, index: usize, len: usize, datagram: &mut Datagram) {
        let path = &mut self.paths[index];
        let is_due = now >= path.own_reported_at + path.report_interval();
        if is_due
            && datagram.room() >= MAX_REPORT_LEN + PACKET_OVERHEAD + len
            && let Some(report) = path.arrivals.report(now, path.id)
        {
            path.own_reported_at = now;
            datagram.push(&Frame::Report(report));
        }
    }

    /// Returns the time between statements on idle paths.
    fn statement_interval(&self) -> Duration {
        let trips = self.paths.iter().filter_map(|p| p.estimate.rtt());
        let least = trips.map(|rtt| rtt.least()).min().unwrap_or_default();
        (least / 8).clamp(MIN_STATEMENT_INTERVAL, MAX_STATEMENT_INTERVAL)
    }

    /// Sends statements (`Latest`): on each path that a flow does not use now, the number below which no packet of the
    /// flow will come there, unless it is sent again.
    fn send_statements(
        &mut self,
        now: Instant,
        ways: &Ways,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let interval = self.statement_interval();
        if !self.outgoing.is_spread() || now < self.stated_at + interval {
            return None;
        }
        for index in self.order(ways) {
            let mut datagram = Datagram::new(buf, self.paths[index].capacity());
            self.push_tail(index, &mut datagram);
            let most = datagram.room() / SMALL_FRAME;
            self.outgoing
                .statements(most, now, (index, now - interval), |packet| {
                    datagram.push(&Frame::Latest {
                        flow: packet.flow,
                        sequence: header::truncate(packet.sequence),
                    });
                });
            if datagram.is_empty() {
                datagram.cancel();
                continue;
            }
            return self.seal(now, index, None, datagram, ways);
        }
        self.stated_at = now;
        self.outgoing.prune_spread(ways.horizon);
        None
    }

    /// Seals a datagram for the path's address. `waits` is a packet for this path that found no room.
    fn seal(
        &mut self,
        now: Instant,
        index: usize,
        waits: Option<PacketRef>,
        datagram: Datagram,
        ways: &Ways,
    ) -> Option<Transmit> {
        if datagram.is_empty() {
            datagram.cancel();
            return None;
        }
        let path = &self.paths[index];
        // A path that less urgent packets leave to others shows what they leave, and not its rate.
        let yields = path.yields_to(now, path.mtu.size() as u64).is_some();
        let limited = yields
            || waits.is_none()
                && path.tail.is_none()
                && self.outgoing.choose(index, ways).is_none();
        let remote = self.paths[index].address.remote();
        self.seal_to(now, index, remote, datagram, limited)
    }

    fn seal_to(
        &mut self,
        now: Instant,
        index: usize,
        remote: SocketAddr,
        datagram: Datagram,
        limited: bool,
    ) -> Option<Transmit> {
        let (header, number) = self.header(index);
        let (eliciting, is_probe) = (datagram.eliciting, datagram.is_probe);
        let bytes = datagram.finish();
        let len = bytes.len();
        // The caller has made sure that a key may seal.
        if !self.keys.seal(header, number, bytes) {
            return None;
        }
        let path = &mut self.paths[index];
        path.address.on_sent(remote, len);
        let departure = Departure {
            bytes: len,
            limited,
            eliciting: eliciting && !is_probe,
            is_large: path.is_large(len) && !is_probe,
        };
        path.on_sent(now, departure);
        Some(Transmit {
            path: path.id,
            remote,
            len,
        })
    }

    /// Returns the next time at which a datagram that is held back now (by pacing, by the interval of reports or
    /// statements, or as a tail) may be sent.
    pub(crate) fn next_transmit(&self) -> Option<Instant> {
        let now = self.now();
        let statements = self
            .outgoing
            .is_spread()
            .then(|| self.stated_at + self.statement_interval());
        let waits = self.outgoing.is_waiting();
        let paced = self.paths.iter().flat_map(|p| {
            let next = p.control.next_send();
            [
                waits.then_some(next),
                p.tail.map(|tail| next.max(tail.due_at)),
            ]
        });
        let paced = paced.flatten().filter(|at| *at > now).min();
        Instant::earliest([statements, self.next_report(), paced])
    }
}
