//! One path of a session, with the state of both directions.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::{PathId, Urgency};
use braid_wire::{Instant, Rng};

use crate::address::Address;
use crate::arrivals::Arrivals;
use crate::config::{PathConfig, PathState};
use crate::control::{Control, bytes_in};
use crate::estimate::{Departure, Estimate};
use crate::frame::{Frame, HEAD_OVERHEAD, Report, TAIL_OVERHEAD};
use crate::header::Header;
use crate::others::{Claim, Others};
use crate::outgoing::PacketRef;
use crate::pmtu::PathMtu;
use crate::reassembly::Reassembly;
use crate::replay::ReplayWindow;
use crate::seal::TAG_LEN;

/// Bytes of the headers of IPv6 and UDP around a datagram.
const OUTER_V6: usize = 48;
/// Bytes of the headers of IPv4 and UDP around a datagram.
const OUTER_V4: usize = 28;
/// The reporting interval until a round trip is known, and the longest one.
const MAX_REPORT_INTERVAL: Duration = Duration::from_millis(25);
/// The shortest reporting interval: a report costs about a tenth of a full datagram.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(1);
/// The time by which the timers of two hosts may be late, together.
const TIMER_SLACK: Duration = Duration::from_millis(10);
/// The time for which a measured rate counts as the present one.
pub(crate) const RATE_AGE: Duration = Duration::from_secs(2);
/// The time for which the bottleneck of a path that more urgent data uses has work beyond a round trip. A guess, as for
/// connections.
const MAX_AHEAD: Duration = Duration::from_millis(5);
/// The queueing delay above which less urgent packets give way, as for connections.
const YIELD_QUEUE_DELAY: Duration = Duration::from_millis(7);
/// The report timeout of a path without a measured round trip (RFC 6298 section 2).
pub(crate) const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// The rest of a packet whose head ended the last datagram of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    pub packet: PacketRef,
    pub offset: usize,
    /// The time at which the tail leaves without other packets.
    pub due_at: Instant,
}

/// One path of a session.
#[derive(Debug)]
pub(crate) struct Path {
    pub id: PathId,
    pub state: PathState,
    pub address: Address,
    pub mtu: PathMtu,
    pub estimate: Estimate,
    pub control: Control,
    pub replay: ReplayWindow,
    pub arrivals: Arrivals,
    pub reassembly: Reassembly,
    pub tail: Option<Tail>,
    /// The data of other senders of this host on the path.
    pub others: Others,
    /// The urgency of packets on the path, for these.
    pub claim: Claim,
    /// The time since which datagrams are overdue, if they are.
    suspect_since: Option<Instant>,
    last_sent: Instant,
    /// The time of the peer's last report.
    reported_at: Instant,
    /// The last time at which a copy had the path's report.
    pub own_reported_at: Instant,
}

impl Path {
    pub fn new(id: PathId, address: Address, mtu: PathMtu) -> Self {
        Path {
            id,
            state: PathState::Active,
            address,
            estimate: Estimate::new(),
            control: Control::new(mtu.ceiling()),
            mtu,
            replay: ReplayWindow::default(),
            arrivals: Arrivals::new(),
            reassembly: Reassembly::default(),
            tail: None,
            others: Others::default(),
            claim: Claim::default(),
            suspect_since: None,
            last_sent: Instant::ZERO,
            reported_at: Instant::ZERO,
            own_reported_at: Instant::ZERO,
        }
    }

    /// Starts anew after the path was removed, on what may be another network.
    pub fn configure(&mut self, config: PathConfig) {
        self.state = PathState::Active;
        self.address = Address::configured(config.remote);
        self.mtu = PathMtu::new(self.mtu.floor(), config.mtu);
        self.restart();
    }

    /// Forgets all estimates of the network. Numbers go on, because a number never seals twice.
    pub fn restart(&mut self) {
        self.mtu = PathMtu::new(self.mtu.floor(), self.mtu.ceiling());
        self.estimate.restart();
        self.control = Control::new(self.mtu.ceiling());
        self.arrivals.restart();
        self.others = Others::default();
        self.claim = Claim::default();
        self.tail = None;
        self.suspect_since = None;
    }

    /// Returns the frame by which a box tells the server how to use the path.
    pub fn use_frame(&self) -> Frame<'static> {
        Frame::Use {
            path: self.id,
            state: self.state,
        }
    }

    /// Returns the bytes of headers and tag in the IP packet that carries a datagram.
    fn overhead(&self) -> usize {
        let outer = match self.address.remote() {
            SocketAddr::V4(_) => OUTER_V4,
            SocketAddr::V6(_) => OUTER_V6,
        };
        outer + Header::LEN + TAG_LEN
    }

    /// Returns the most bytes of frames in a datagram.
    pub fn capacity(&self) -> usize {
        self.mtu.size().saturating_sub(self.overhead())
    }

    /// Returns the bytes of frames that fill an IP packet of `size` bytes.
    pub fn frames_of(&self, size: usize) -> usize {
        size.saturating_sub(self.overhead())
    }

    /// Returns the size of the largest inner packet that goes into two datagrams, in bytes.
    pub fn largest_packet(&self) -> usize {
        (self.capacity() * 2).saturating_sub(HEAD_OVERHEAD + TAIL_OVERHEAD)
    }

    /// Returns true if a datagram of so many bytes is larger than every path is taken to carry.
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.frames_of(self.mtu.floor()) + Header::LEN + TAG_LEN
    }

    /// Returns true if the size of packets may be probed: the path answers.
    pub fn may_probe_size(&self) -> bool {
        self.is_usable() && self.estimate.rtt().is_some()
    }

    /// Returns true if inner packets may be sent.
    pub fn is_usable(&self) -> bool {
        self.state != PathState::Down && self.suspect_since.is_none() && self.address.is_proved()
    }

    /// Returns the time between reports to the peer: a quarter of a round trip.
    pub fn report_interval(&self) -> Duration {
        self.estimate
            .rtt()
            .map_or(MAX_REPORT_INTERVAL, |rtt| rtt.least() / 4)
            .clamp(MIN_REPORT_INTERVAL, MAX_REPORT_INTERVAL)
    }

    /// Returns the rate at which the path delivers the bytes in flight, bytes/s: the newest sample or, if that is old, at
    /// most as much as they are in a round trip. Others may have the rest of the path's rate.
    pub fn present_rate(&self, now: Instant) -> u64 {
        let (newest, at) = self.control.newest().unwrap_or_default();
        let Some(rtt) = self.estimate.rtt().filter(|_| now >= at + RATE_AGE) else {
            return newest;
        };
        // Bounds the rate as in `Control::rate`.
        let micros = rtt.smoothed.as_micros().max(100) as u64;
        newest.min(self.estimate.in_flight().saturating_mul(1_000_000) / micros)
    }

    /// Returns the bytes in flight, without those that have arrived since the peer's last report if the path delivers as
    /// before.
    pub fn present_in_flight(&self, now: Instant) -> u64 {
        let since = now.saturating_since(self.reported_at);
        let arrived = bytes_in(self.present_rate(now), since.min(self.report_interval()));
        self.estimate.in_flight().saturating_sub(arrived)
    }

    /// Returns the urgency of data to which less urgent packets give way once `more` bytes are in flight: it uses the path,
    /// and so much of this host is in flight that the path has a queue, or that its bottleneck has work beyond a round
    /// trip and [`MAX_AHEAD`].
    pub fn yields_to(&self, now: Instant, more: u64) -> Option<Urgency> {
        let urgency = self.others.most_urgent?;
        let own = self.present_in_flight(now) + more;
        // At the start, the rate shows how much there was to send. Two datagrams keep the measurements current.
        if self.control.is_starting() || own < 2 * self.mtu.size() as u64 {
            return None;
        }
        let round = self.estimate.rtt()?.least();
        let others = self.others.load;
        let present = self.present_rate(now).saturating_add(others.delivery_rate);
        // While packets give way, samples of the rate are limited by that, and the path is at least as fast as before.
        let known = self.control.delivery_rate();
        let in_flight = own.saturating_add(others.in_flight);
        let is_full = in_flight >= bytes_in(present.max(known), round + MAX_AHEAD);
        let has_queue = self.estimate.queue_delay() > YIELD_QUEUE_DELAY;
        // A queue of others does not go away, so half of the rate is kept.
        let is_queued = has_queue && in_flight >= bytes_in(present.max(known / 2), round);
        (is_full || is_queued).then_some(urgency)
    }

    /// Returns the mean one-way delay to the peer, with queue and jitter, in microseconds. All paths share the scale.
    pub fn delay(&self) -> Option<i64> {
        let (rate, _) = self.control.newest().unwrap_or_default();
        let rtt = self
            .estimate
            .rtt()
            .map_or(Duration::ZERO, |rtt| rtt.least());
        let others = self.others.queue(self.estimate.in_flight(), rate, rtt);
        // The bytes of others tell of a queue before a datagram has been through it.
        let queue = self.estimate.queue_delay().max(others).as_micros() as i64;
        // Uniform jitter adds half of its range on average, and the range is three times the mean difference.
        let jitter = self.estimate.jitter().as_micros() as i64 * 3 / 2;
        Some(self.estimate.base_delay()? + queue + jitter)
    }

    /// Returns the time from the sending of a datagram after which its report is overdue.
    pub fn report_timeout(&self) -> Duration {
        self.estimate.rtt().map_or(FIRST_TIMEOUT, |rtt| {
            rtt.smoothed + rtt.variation * 4 + self.report_interval() * 2 + TIMER_SLACK
        })
    }

    /// Returns the time at which the oldest datagram that is not reported is overdue.
    fn overdue_at(&self) -> Option<Instant> {
        Some(self.estimate.unreported_since()? + self.report_timeout())
    }

    /// Takes the peer's report. Returns true if it is news.
    pub fn on_report(&mut self, now: Instant, report: &Report) -> bool {
        let Some(update) = self.estimate.on_report(now, report) else {
            return false;
        };
        self.reported_at = now;
        if self.control.on_update(now, &update, &self.estimate) {
            self.estimate.rebase(now);
        }
        if update.is_black_hole {
            self.mtu.on_black_hole();
        }
        // A late report proves only that earlier datagrams arrived: while a later one is overdue, the path stays
        // silent.
        if self.overdue_at().is_none_or(|at| now < at) {
            self.suspect_since = None;
        }
        true
    }

    /// Notes that a datagram was sent.
    pub fn on_sent(&mut self, now: Instant, departure: Departure) {
        self.estimate.on_sent(now, departure);
        self.control.on_sent(now, departure.bytes, &self.estimate);
        self.last_sent = now;
    }

    /// Does what is due at `now`. Returns true if the path has just fallen silent.
    pub fn handle_timeout(&mut self, now: Instant, probe: Option<Duration>, rng: &mut Rng) -> bool {
        if self.state == PathState::Down {
            return false;
        }
        if self.probe_at(probe).is_some_and(|at| now >= at) {
            self.address.challenge(now, rng);
        }
        let silent = self.suspect_since.is_none() && self.overdue_at().is_some_and(|at| now >= at);
        if silent {
            self.suspect_since = Some(now);
            self.address.challenge(now, rng);
        }
        silent
    }

    /// Returns the time at which the path is probed if it carries nothing for the time `probe`.
    fn probe_at(&self, probe: Option<Duration>) -> Option<Instant> {
        Some(self.last_sent + probe?)
    }

    /// Returns whether a challenge or a response may be sent at `now`. A path that is down has no socket.
    pub fn is_validation_due(&self, now: Instant) -> bool {
        self.state != PathState::Down && self.address.is_due(now)
    }

    pub fn next_timeout(&self, probe: Option<Duration>) -> Option<Instant> {
        if self.state == PathState::Down {
            return None;
        }
        let overdue = self.overdue_at().filter(|_| self.suspect_since.is_none());
        let probe = self.address.next_timeout().or(self.probe_at(probe));
        let size = self.mtu.next_timeout().filter(|_| self.may_probe_size());
        Instant::earliest([overdue, probe, size])
    }
}
