//! The interface to strategies: one trait, and the read-only views that it decides on. No named strategy is
//! in this crate.

use core::fmt;
use core::time::Duration;

use braid_wire::{Instant, Rng};

use crate::non_exhaustive::NonExhaustive;
use crate::{PathId, PathRecord, Protocol, SubflowId, Urgency};

/// The segment size assumed before the peer has announced its own: Ethernet's 1500 bytes less IP and TCP
/// headers and options.
pub(crate) const USUAL_MSS: u32 = 1428;

/// The transmission strategy of one connection: the path on which it opens, the paths on which it joins,
/// and the data that goes out next on which subflow.
///
/// Only [`next`](Self::next) is required; the defaults do what stock MPTCP does.
pub trait Strategy: fmt::Debug + Send {
    /// Returns the name by which a user chooses the strategy.
    fn name(&self) -> &'static str;

    /// Returns the path and protocol of the first SYN; `None` if no path will do. Called again each time
    /// that a SYN is not answered.
    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        first_in_order(view)
    }

    /// Returns the time to wait for the answer to the first SYN, which leaves on `path`, before
    /// [`open`](Self::open) is asked for a path of a second SYN beside it; the first SYN answered opens the
    /// connection. With `None` the first SYN's timer runs out, and the next SYN replaces the first.
    fn attempt_delay(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        let _ = (view, path);
        None
    }

    /// Returns the time at which to open a further subflow on `path`, which has none; `None` if it is not
    /// wanted. Called after every change, so a delay must count from a fixed time, not from now; never
    /// called before the peer's key is known.
    fn join(&mut self, view: &OpenView<'_>, path: &PathView) -> Option<Instant> {
        let _ = path;
        Some(view.now)
    }

    /// Decides on the next transmission. Called again and again, until it waits, whenever a subflow is
    /// ready and data is unsent or outstanding.
    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision;

    /// Notes an event that a strategy may learn from.
    fn on_event(&mut self, event: &StrategyEvent) {
        let _ = event;
    }
}

/// Opens on the path that was asked for or, after that one did not answer, on the next in order.
pub fn first_in_order(view: &OpenView<'_>) -> Option<Opening> {
    let after = view
        .unanswered
        .map_or(0, |tried| view.paths.partition_point(|p| p.id <= tried));
    let (before, behind) = view.paths.split_at(after);
    let requested = |p: &&PathView| view.unanswered.is_none() && view.requested == Some(p.id);
    let path = view.paths.iter().find(requested);
    let path = path.or_else(|| behind.iter().chain(before).next())?;
    Some(Opening {
        path: path.id,
        protocol: Protocol::Mptcp,
    })
}

/// A strategy's view of a connection that opens or may join.
#[derive(Debug, Clone, Copy)]
pub struct OpenView<'a> {
    /// The current time.
    pub now: Instant,
    /// The paths that are up and lead to the peer, by id.
    pub paths: &'a [PathView],
    /// The path that the application named for the first subflow, if it did and the path is one of `paths`.
    pub requested: Option<PathId>,
    /// The path of the last SYN that was not answered.
    pub unanswered: Option<PathId>,
    /// The size of the flow.
    pub flow_size: FlowSize,
    /// The bytes of the flow so far: written here or received in order, whichever is more.
    pub seen: u64,
    /// The bytes written and never sent.
    pub unsent: u64,
    /// The bytes that a subflow sends before anything is acknowledged.
    pub initial_window: u64,
    /// The first subflow, once it is established.
    pub first: Option<FirstSubflow>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl<'a> OpenView<'a> {
    /// Makes the view of a connection that has written and received nothing yet, with an initial window of ten
    /// segments: a beginning for tests.
    pub fn new(now: Instant, paths: &'a [PathView]) -> Self {
        OpenView {
            now,
            paths,
            requested: None,
            unanswered: None,
            flow_size: FlowSize::Unknown,
            seen: 0,
            unsent: 0,
            initial_window: 10 * u64::from(USUAL_MSS),
            first: None,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

/// A strategy's view of the subflow beside which others may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstSubflow {
    /// The time at which it was established.
    pub since: Instant,
    /// Its smoothed round-trip time.
    pub rtt: Duration,
}

/// A strategy's view of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathView {
    /// The path.
    pub id: PathId,
    /// Set if subflows there are opened as backup.
    pub backup: bool,
    /// Set if the connection has a subflow there, or is opening one.
    pub in_use: bool,
    /// The record that earlier subflows to this peer left there.
    pub record: Option<PathRecord>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl PathView {
    /// Makes the view of an unused path without a record: a beginning for tests.
    pub fn new(id: PathId) -> Self {
        PathView {
            id,
            backup: false,
            in_use: false,
            record: None,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

/// The path and protocol with which a connection opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The path of the first subflow; one of those shown.
    pub path: PathId,
    /// The protocol that the SYN asks for. If the application asked for regular TCP, that is used in any
    /// case.
    pub protocol: Protocol,
}

/// A strategy's view of a subflow. Only established subflows are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowView {
    /// The subflow.
    pub id: SubflowId,
    /// Its local path.
    pub path: PathId,
    /// The smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// The mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// The newest sample of the round-trip time.
    pub latest_rtt: Duration,
    /// The lowest sample of the last 10 to 20 s with samples: the round trip without queues.
    pub base_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// The retransmission timeouts in a row.
    pub timeouts: u32,
    /// The congestion window in bytes.
    pub cwnd: u64,
    /// The slow-start threshold in bytes.
    pub ssthresh: u64,
    /// The bytes in flight.
    pub in_flight: u64,
    /// The bytes that the subflow still has to keep: in flight, lost, or acknowledged out of order.
    pub queued: u64,
    /// The bytes ever sent on it, copies included, retransmissions excluded.
    pub sent: u64,
    /// The send time of the oldest unacknowledged bytes.
    pub oldest_sent: Option<Instant>,
    /// The payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// The pacing rate in bytes/s.
    pub pacing_rate: u64,
    /// The delivery rate in bytes/s, newest sample; 0 before the first.
    pub delivery_rate: u64,
    /// The peak rate of acknowledgements in bytes/s over the last 10 to 20 round trips with enough of them:
    /// the rate of the path's bottleneck. Before that, the rate that earlier subflows there found, or 0.
    pub peak_rate: u64,
    /// The time at which everything sent will have passed the bottleneck at this rate, or has.
    pub drained_at: Instant,
    /// The share of sent bytes that were lost, over the subflow's life: `0.0..=1.0`.
    pub loss: f32,
    /// The bytes of non-congestive loss over the subflow's life: lost though the path's queue was short.
    pub non_congestive_loss: u64,
    /// Set if either end wants the subflow to be a backup.
    pub backup: bool,
    /// Set if the subflow has potentially failed: it recovers from a retransmission timeout, or was silent
    /// for longer than its timeout. Also set if the connection was idle for so long that a NAT may have
    /// forgotten this subflow, and the peer was not heard there since.
    pub stale: bool,
    /// Set if window, pacer and peer leave room for at least one segment now.
    pub ready: bool,
    /// The most urgent data that this host currently sends to the same address over the same path, on any
    /// connection; `None` if there is none, or all data is equally urgent.
    pub most_urgent: Option<Urgency>,
    /// The bytes in flight that may be sent here too.
    pub copies: Copies,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

/// Bytes in flight that a subflow may carry as well: not known to have arrived, and never sent on it. Each
/// field has the oldest of its kind, which may be the same; `None` if the subflow is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    /// Bytes that have to be sent again, since every subflow that carried them timed out or is gone.
    pub lost: Option<InFlight>,
    /// Bytes that were sent once.
    pub single: Option<InFlight>,
    /// Bytes that were sent any number of times.
    pub any: Option<InFlight>,
}

/// Bytes that were sent and are not known to have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// The stream offset of the first byte.
    pub start: u64,
    /// The stream offset behind the last byte.
    pub end: u64,
    /// The last sender of the bytes, which may be gone.
    pub last_sender: SubflowId,
    /// The time of the last send.
    pub sent_at: Instant,
}

impl SubflowView {
    /// Makes the view of a subflow that has just opened with this round-trip time, and has room for ten
    /// segments: a beginning for tests.
    pub fn new(id: SubflowId, rtt: Duration) -> Self {
        let cwnd = 10 * u64::from(USUAL_MSS);
        SubflowView {
            id,
            path: PathId(id.0 as u8),
            srtt: rtt,
            rttvar: rtt / 2,
            latest_rtt: rtt,
            base_rtt: rtt,
            rto: rtt + Duration::from_millis(200),
            timeouts: 0,
            cwnd,
            ssthresh: u64::MAX,
            in_flight: 0,
            queued: 0,
            sent: 0,
            oldest_sent: None,
            mss: USUAL_MSS,
            pacing_rate: (cwnd as f64 / rtt.as_secs_f64()) as u64,
            delivery_rate: 0,
            peak_rate: 0,
            drained_at: Instant::ZERO,
            loss: 0.0,
            non_congestive_loss: 0,
            backup: false,
            stale: false,
            ready: true,
            most_urgent: None,
            copies: Copies::default(),
            _non_exhaustive: NonExhaustive::MARK,
        }
    }

    /// Returns the congestion window not in flight, in bytes: at least a segment, or none while anything is
    /// in flight.
    pub fn window_room(&self) -> u64 {
        let room = self.cwnd.saturating_sub(self.in_flight);
        match room < u64::from(self.mss) && self.in_flight > 0 {
            true => 0,
            false => room,
        }
    }

    /// Returns the time that the newest acknowledged packet spent in queues.
    pub fn queueing_delay(&self) -> Duration {
        self.latest_rtt.saturating_sub(self.base_rtt)
    }
}

/// The size of a flow in bytes, and its source: later variants are trusted more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSize {
    /// The size is not known.
    #[default]
    Unknown,
    /// The size is an estimate of the application, or from past flows.
    Predicted(u64),
    /// The size was read from the protocol, such as HTTP's `Content-Length`.
    Read(u64),
    /// The application declared the exact size.
    Declared(u64),
}

impl FlowSize {
    /// Returns the size in bytes, if it is known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            FlowSize::Unknown => None,
            FlowSize::Predicted(bytes) | FlowSize::Read(bytes) | FlowSize::Declared(bytes) => {
                Some(bytes)
            }
        }
    }

    /// Returns the size to believe in view of `other`: the one that is trusted more, and the later of two
    /// that are trusted alike.
    #[must_use]
    pub fn or_better(self, other: FlowSize) -> FlowSize {
        match other.trust() >= self.trust() {
            true => other,
            false => self,
        }
    }

    fn trust(self) -> u8 {
        match self {
            FlowSize::Unknown => 0,
            FlowSize::Predicted(_) => 1,
            FlowSize::Read(_) => 2,
            FlowSize::Declared(_) => 3,
        }
    }
}

/// A strategy's view of a connection that may send.
#[derive(Debug, Clone, Copy)]
pub struct SendView<'a> {
    /// The current time.
    pub now: Instant,
    /// The established subflows in order of creation.
    pub subflows: &'a [SubflowView],
    /// The bytes of the flow ever sent, each counted once.
    pub sent: u64,
    /// The bytes ever sent as copies since the flow began.
    pub copied: u64,
    /// The bytes written and never sent.
    pub unsent: u64,
    /// The bytes of `unsent`, by urgency from 0 on.
    pub unsent_by_urgency: [u64; Urgency::COUNT],
    /// The bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// The bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// Set if new data may be sent now: there is some, and the peer's window has room for it, of a segment
    /// if anything is outstanding.
    pub may_send_new: bool,
    /// The state of the writer, which tells whether more data will follow.
    pub writer: Writer,
    /// The size of the flow.
    pub flow_size: FlowSize,
    /// The oldest bytes in flight; `None` if there is nothing to copy, or nowhere to copy it.
    pub oldest: Option<InFlight>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl<'a> SendView<'a> {
    /// Makes the view of a connection whose application has written `unsent` bytes and may write more, and
    /// that has sent nothing yet: a beginning for tests.
    pub fn new(now: Instant, subflows: &'a [SubflowView], unsent: u64) -> Self {
        let mut unsent_by_urgency = [0; Urgency::COUNT];
        unsent_by_urgency[Urgency::default().index()] = unsent;
        SendView {
            now,
            subflows,
            sent: 0,
            copied: 0,
            unsent,
            unsent_by_urgency,
            peer_window: 1 << 20,
            outstanding: 0,
            may_send_new: unsent > 0,
            writer: Writer::Open,
            flow_size: FlowSize::Unknown,
            oldest: None,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

/// The state of the application that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The application has written all of the flow.
    Done,
    /// The application may write more.
    Open,
    /// The application has more data, for which there was no room yet.
    Waiting,
}

impl SendView<'_> {
    /// Returns a subflow by its id.
    pub fn subflow(&self, id: SubflowId) -> Option<&SubflowView> {
        self.subflows.iter().find(|s| s.id == id)
    }
}

/// The data to send on the chosen subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The next bytes that were never sent.
    New,
    /// A copy of bytes that the view showed for this subflow.
    Copy {
        /// The bytes.
        data: InFlight,
        /// Set to halve the window of the last sender, which kept others waiting; at most once a round
        /// trip.
        penalise: bool,
    },
}

/// A strategy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send up to `max_bytes` on `subflow`, which was shown as ready.
    Send {
        /// The subflow to send on.
        subflow: SubflowId,
        /// The data to send.
        data: Payload,
        /// The most bytes to send (the engine also bounds bursts). Less than a segment of new data waits
        /// until nothing is outstanding (RFC 9293 section 3.8.6.2.1).
        max_bytes: u32,
    },
    /// Send nothing until something changes, or until the time given.
    Wait {
        /// The time at which to ask again.
        until: Option<Instant>,
    },
}

impl Decision {
    /// Waits until something changes.
    pub const WAIT: Decision = Decision::Wait { until: None };

    /// Sends as much new data on `subflow` as it takes.
    pub const fn new_on(subflow: SubflowId) -> Decision {
        Decision::Send {
            subflow,
            data: Payload::New,
            max_bytes: u32::MAX,
        }
    }

    /// Sends a copy of `data` on `subflow`.
    pub const fn copy_on(subflow: SubflowId, data: InFlight) -> Decision {
        Decision::Send {
            subflow,
            data: Payload::Copy {
                data,
                penalise: false,
            },
            max_bytes: u32::MAX,
        }
    }
}

/// An event reported to a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrategyEvent {
    /// A subflow can carry data.
    SubflowUp {
        /// The subflow.
        subflow: SubflowId,
        /// The record that other subflows to this address of the peer left on its path.
        record: Option<PathRecord>,
    },
    /// A subflow is gone.
    SubflowDown {
        /// The subflow.
        subflow: SubflowId,
    },
    /// The peer acknowledged data on a subflow.
    Acknowledged {
        /// The subflow.
        subflow: SubflowId,
        /// The number of bytes.
        bytes: u64,
    },
    /// A subflow lost data, and retransmits it.
    Lost {
        /// The subflow.
        subflow: SubflowId,
        /// The number of bytes.
        bytes: u64,
    },
    /// A subflow timed out or its link went down: data that only it carried is lost.
    TimedOut {
        /// The subflow.
        subflow: SubflowId,
    },
    /// New data waits for the peer's window.
    WindowBlocked,
}
