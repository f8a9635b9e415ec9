//! The interface to strategies: one trait, and the read-only views on which a strategy decides. The strategies
//! themselves are in other crates.

use core::fmt;
use core::time::Duration;

use braid_wire::{Instant, Rng};

use crate::non_exhaustive::NonExhaustive;
use crate::{PathId, PathRecord, Protocol, SubflowId, Urgency};

/// The payload bytes assumed for a segment as long as the peer has not announced its segment size: Ethernet's
/// 1500 bytes less 40 of IPv4 and TCP headers, 12 of timestamps, and 20 of DSS with a 4-byte DATA_ACK and DSN.
pub(crate) const USUAL_MSS: u32 = 1428;

/// The transmission strategy of one connection. It decides on which path the connection opens, on which paths it
/// adds subflows and when, and which data is sent next on which subflow.
///
/// A strategy has to have a name and to implement [`next`](Self::next); the default methods do what MPTCP stacks
/// usually do.
pub trait Strategy: fmt::Debug + Send {
    /// Returns the name by which users choose the strategy.
    fn name(&self) -> &'static str;

    /// Returns the path and protocol of the first SYN; `None` if no path is suitable. The method is called again
    /// each time that a SYN is not answered.
    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        first_in_order(view)
    }

    /// Returns the time to wait for an answer to the first SYN, which is sent on `path`. After that time, a
    /// second SYN is sent on the path that another call of [`open`](Self::open) returns. Whichever SYN is
    /// answered first opens the connection. With `None` the second SYN waits until the timer of the first one
    /// expires, and then replaces the first one.
    fn attempt_delay(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        let _ = (view, path);
        None
    }

    /// Returns the time at which to open a further subflow on `path`, which has none; `None` if no subflow is
    /// wanted there. The method is called after every change, so a delay has to be counted from a fixed time,
    /// not from now. It is not called before the peer's key is known, since no subflow can be opened then.
    fn join(&mut self, view: &OpenView<'_>, path: &PathView) -> Option<Instant> {
        let _ = path;
        Some(view.now)
    }

    /// Decides on the next transmission. The method is called whenever a subflow is ready and data is unsent or
    /// outstanding, and called again until the decision is to wait.
    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision;

    /// Returns when the first packet of the latest [`Decision::Send`] is expected to arrive, if the strategy has
    /// estimated the time. The value is only logged, so that estimates can be compared with arrivals.
    fn expected_arrival(&self) -> Option<Instant> {
        None
    }

    /// Notes an event that a strategy may learn from.
    fn on_event(&mut self, event: &StrategyEvent) {
        let _ = event;
    }
}

/// Opens on the path that the application requested, or else on the first path. After a SYN that was not
/// answered, opens on the next path in the order of ids; after the last path comes the first again.
pub fn first_in_order(view: &OpenView<'_>) -> Option<Opening> {
    let next = view
        .unanswered
        .map_or(0, |tried| view.paths.partition_point(|p| p.id <= tried));
    let (before, behind) = view.paths.split_at(next);
    let is_requested = |p: &&PathView| view.unanswered.is_none() && view.requested == Some(p.id);
    let path = view.paths.iter().find(is_requested);
    let path = path.or_else(|| behind.iter().chain(before).next())?;
    Some(Opening {
        path: path.id,
        protocol: Protocol::Mptcp,
    })
}

/// A strategy's view of a connection that opens or may add subflows.
#[derive(Debug, Clone, Copy)]
pub struct OpenView<'a> {
    /// The current time.
    pub now: Instant,
    /// The paths that are up and lead to the peer, in the order of their ids.
    pub paths: &'a [PathView],
    /// The path that the application named for the first subflow; `None` if it named none, or if the path is
    /// not one of `paths`.
    pub requested: Option<PathId>,
    /// The path of the last SYN, if it was not answered; `None` for the first SYN.
    pub unanswered: Option<PathId>,
    /// The size of the flow.
    pub flow_size: FlowSize,
    /// The number of bytes of the flow so far: written here or received in order, whichever is more.
    pub seen: u64,
    /// The number of bytes written and never sent.
    pub unsent: u64,
    /// The number of bytes that a new subflow can send before the first acknowledgement.
    pub initial_window: u64,
    /// The first subflow, once it is established.
    pub first: Option<FirstSubflow>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl<'a> OpenView<'a> {
    /// Makes the view of a connection that has written and received nothing yet, with an initial window of ten
    /// segments (RFC 6928). Tests of strategies change fields of it.
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

/// A strategy's view of a connection's first established subflow, to which others may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstSubflow {
    /// The time at which the subflow was established.
    pub since: Instant,
    /// The smoothed round-trip time of the subflow.
    pub rtt: Duration,
}

/// A strategy's view of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathView {
    /// The path.
    pub id: PathId,
    /// Set if subflows on the path are opened as backups.
    pub backup: bool,
    /// Set if the connection has a subflow on the path, or is opening one.
    pub in_use: bool,
    /// The record of earlier subflows to this peer on the path.
    pub record: Option<PathRecord>,
    /// The number of connections whose first SYN to this peer went out on the path and is not answered yet.
    pub openings: u32,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl PathView {
    /// Makes the view of an unused path without a record. Tests of strategies change fields of it.
    pub fn new(id: PathId) -> Self {
        PathView {
            id,
            backup: false,
            in_use: false,
            record: None,
            openings: 0,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}

/// The path and protocol with which a connection opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The path of the SYN; one of the paths of the view.
    pub path: PathId,
    /// The protocol that the SYN asks for. If the application asked for regular TCP, regular TCP is used in any
    /// case.
    pub protocol: Protocol,
}

/// A strategy's view of a subflow. Only established subflows are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowView {
    /// The subflow.
    pub id: SubflowId,
    /// The local path of the subflow.
    pub path: PathId,
    /// The smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// The mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// The newest sample of the round-trip time.
    pub latest_rtt: Duration,
    /// The lowest round-trip sample of the last 10 to 20 s in which there were samples: an estimate of the
    /// round trip without queues.
    pub base_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// The number of retransmission timeouts in a row.
    pub timeouts: u32,
    /// The congestion window in bytes.
    pub cwnd: u64,
    /// The slow-start threshold in bytes.
    pub ssthresh: u64,
    /// The bytes in flight.
    pub in_flight: u64,
    /// The bytes sent and not acknowledged in order: in flight, lost, or acknowledged selectively.
    pub queued: u64,
    /// The payload bytes sent on the subflow so far, copies included, retransmissions excluded.
    pub sent: u64,
    /// The time at which the oldest unacknowledged bytes were sent.
    pub oldest_sent: Option<Instant>,
    /// The payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// The pacing rate in bytes/s.
    pub pacing_rate: u64,
    /// The newest sample of the delivery rate in bytes/s; 0 before the first sample.
    pub delivery_rate: u64,
    /// The highest rate of acknowledgements in bytes/s over the last 10 to 20 round trips that had enough
    /// acknowledgements. It estimates the rate of the bottleneck. As long as there is no such estimate, this is
    /// the rate in the record of the path, or else 0.
    pub peak_rate: u64,
    /// The estimated time at which the last sent byte passes the bottleneck at `peak_rate`; possibly a past
    /// time.
    pub drained_at: Instant,
    /// The share of the sent bytes that were deemed lost over the subflow's life, from 0.0 to 1.0.
    pub loss: f32,
    /// The bytes of non-congestive loss over the subflow's life: lost although the path's queue was short.
    pub non_congestive_loss: u64,
    /// Set if either end wants the subflow to be a backup.
    pub backup: bool,
    /// Set if the subflow has potentially failed: it timed out and no data was acknowledged since, its probes
    /// were not answered, or its link is down. Also set if the connection was idle for so long that a NAT may
    /// have forgotten this subflow, and no segment was received on it since.
    pub stale: bool,
    /// Set if congestion window, pacer and the peer's window allow sending now.
    pub ready: bool,
    /// The urgency of the most urgent data that this host currently sends to the same address over the same
    /// path, on any connection; `None` if there is no such data, or all data is equally urgent.
    pub most_urgent: Option<Urgency>,
    /// The time at which this host last sent data more urgent than background data (urgency 7) to the same
    /// address over the same path, on any connection; `None` if it never did, or all data is equally urgent.
    pub foreground_at: Option<Instant>,
    /// The bytes that other subflows of this host, on any connection, have in flight to the same address over the
    /// same path.
    pub others_in_flight: u64,
    /// The sum of the newest delivery rates of these subflows, bytes/s.
    pub others_rate: u64,
    /// The sent data that may be sent on this subflow as well.
    pub copies: Copies,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

/// Data that a subflow may carry as a copy: it was sent on other subflows but never on this one, and is not
/// known to have arrived. Each field has the oldest range of its kind, so several fields may have the same
/// range. A field is `None` if there is no such range, or if the subflow is not ready.
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
    /// The subflow that sent the bytes last. It may be gone.
    pub last_sender: SubflowId,
    /// The time of the last send.
    pub sent_at: Instant,
}

impl SubflowView {
    /// Makes the view of a subflow that has just opened with this round-trip time, and has room for ten
    /// segments (RFC 6928). Tests of strategies change fields of it.
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
            foreground_at: None,
            others_in_flight: 0,
            others_rate: 0,
            copies: Copies::default(),
            _non_exhaustive: NonExhaustive::MARK,
        }
    }

    /// Returns the number of bytes by which the congestion window exceeds the bytes in flight; 0 if less than
    /// a segment fits while data is in flight, because acknowledgements will make room for a full segment.
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

/// The size of a flow in bytes, and its source. Later variants are trusted more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSize {
    /// The size is not known.
    #[default]
    Unknown,
    /// The size is an estimate, by the application or from past flows.
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

    /// Returns the size that is trusted more, `self` or `other`; if both are trusted alike, `other`, because it
    /// is newer.
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
    /// The number of bytes of the flow that were sent; copies and retransmissions do not count.
    pub sent: u64,
    /// The number of bytes sent as copies since the flow began.
    pub copied: u64,
    /// The number of bytes written and never sent.
    pub unsent: u64,
    /// The bytes of `unsent` by urgency; index 0 is the most urgent.
    pub unsent_by_urgency: [u64; Urgency::COUNT],
    /// The number of bytes that the peer's window still allows beyond the sent data.
    pub peer_window: u64,
    /// The number of bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// Set if new data may be sent now: there is unsent data, and the peer's window has room for it. While data
    /// is outstanding, the window must have room for a whole segment (RFC 9293 section 3.8.6.2.1).
    pub may_send_new: bool,
    /// The state of the writer, which tells whether more data will follow.
    pub writer: Writer,
    /// The size of the flow.
    pub flow_size: FlowSize,
    /// The oldest bytes that are not known to have arrived; `None` if there are none, or if no subflow could
    /// copy them.
    pub oldest: Option<InFlight>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl<'a> SendView<'a> {
    /// Makes the view of a connection whose application has written `unsent` bytes and may write more, and
    /// that has sent nothing yet. Tests of strategies change fields of it.
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
    /// The application has more data to write, for which there was no room.
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
        /// Set if the congestion window of the last sender is to be halved, because that subflow delays the
        /// whole connection. The engine halves a window at most once a round trip.
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
        /// The maximum number of bytes to send; the engine bounds bursts in addition. If the number is less than
        /// a segment, new data waits until no data is outstanding (RFC 9293 section 3.8.6.2.1). New bytes of one
        /// decision have the same urgency; only the last packet is filled with less urgent bytes, beyond
        /// `max_bytes` if need be.
        max_bytes: u32,
    },
    /// Send nothing until the view changes, or until the given time.
    Wait {
        /// The time at which the strategy wants to be asked again at the latest.
        until: Option<Instant>,
    },
}

impl Decision {
    /// Waits until the view changes.
    pub const WAIT: Decision = Decision::Wait { until: None };

    /// Sends as much new data on `subflow` as it has room for.
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
        /// The record of other subflows between the same path and the same address of the peer.
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
    /// A subflow deems data lost, and retransmits it.
    Lost {
        /// The subflow.
        subflow: SubflowId,
        /// The number of bytes.
        bytes: u64,
    },
    /// A subflow timed out, or its link went down. Data that only this subflow carried counts as lost.
    TimedOut {
        /// The subflow.
        subflow: SubflowId,
    },
    /// The peer's window began to hold new data back.
    WindowBlocked,
}
