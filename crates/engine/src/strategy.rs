//! The seam to the strategies: one trait, and the read-only views it decides on. No named strategy
//! lives in this crate.

use core::fmt;
use core::time::Duration;

use braid_wire::{Instant, Rng};

use crate::{PathId, PathRecord, Protocol, SubflowId, Urgency};

/// How a connection transmits: where it opens, where it joins, and what goes out next on which
/// subflow. One a connection.
///
/// Only [`next`](Self::next) has to be written; the rest does what stock MPTCP does.
pub trait Strategy: fmt::Debug + Send {
    /// The name a user picks it by.
    fn name(&self) -> &'static str;

    /// Where the first SYN leaves, and as what; `None` where no path will do. Asked once more each
    /// time that a SYN is not answered.
    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        first_in_order(view)
    }

    /// How long to wait for the answer to the first SYN, which leaves on `path`, before
    /// [`open`](Self::open) is asked for a path on which a second one leaves beside it; whichever is
    /// answered first opens the connection. `None` waits for as long as the SYN's timer runs, after
    /// which the next one takes the place of the first.
    fn patience(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        let _ = (view, path);
        None
    }

    /// When to open a further subflow on `path`, which has none; `None` where that is not wanted.
    /// Asked after every change, so a delay must count from something fixed, not from now; never
    /// before the peer's key is known.
    fn join(&mut self, view: &OpenView<'_>, path: &PathView) -> Option<Instant> {
        let _ = path;
        Some(view.now)
    }

    /// What goes out next. Asked again and again, until it waits, whenever a subflow is ready and
    /// something is unsent or outstanding.
    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision;

    /// Something happened that a strategy may learn from.
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
    let asked = |p: &&PathView| view.unanswered.is_none() && view.asked == Some(p.id);
    let path = view.paths.iter().find(asked);
    let path = path.or_else(|| behind.iter().chain(before).next())?;
    Some(Opening {
        path: path.id,
        protocol: Protocol::Mptcp,
    })
}

/// What a strategy sees of a connection that opens or may join.
#[derive(Debug, Clone, Copy)]
pub struct OpenView<'a> {
    /// Now.
    pub now: Instant,
    /// The paths that are up and lead to the peer, by id.
    pub paths: &'a [PathView],
    /// The path that the application named for the first subflow, if it did and the path is one of
    /// `paths`.
    pub asked: Option<PathId>,
    /// Where the last SYN left that was not answered.
    pub unanswered: Option<PathId>,
    /// How large the flow is.
    pub flow_size: FlowSize,
    /// Bytes the flow has had so far: written here or received in order, whichever is more.
    pub seen: u64,
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Bytes that a subflow sends before anything is acknowledged.
    pub initial_window: u64,
    /// The first subflow, once it is established.
    pub first: Option<FirstSubflow>,
}

/// What a strategy sees of the subflow beside which others may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstSubflow {
    /// When it was established.
    pub since: Instant,
    /// Its smoothed round-trip time.
    pub rtt: Duration,
}

/// What a strategy sees of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathView {
    /// The path.
    pub id: PathId,
    /// Subflows there are opened as backup.
    pub backup: bool,
    /// The connection has a subflow there, or one that is being opened.
    pub in_use: bool,
    /// What earlier subflows to this peer found there.
    pub record: Option<PathRecord>,
}

/// How a connection opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The path of the first subflow; one of those shown.
    pub path: PathId,
    /// What the SYN asks for. An application that asked for regular TCP gets that in any case.
    pub protocol: Protocol,
}

/// What a strategy sees of one subflow. Only established subflows are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowView {
    /// The subflow.
    pub id: SubflowId,
    /// Its local path.
    pub path: PathId,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Newest sample of the round-trip time.
    pub latest_rtt: Duration,
    /// Lowest sample of the last 10 to 20 s in which there were any: the round trip without queues.
    pub base_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// Retransmission timeouts in a row.
    pub timeouts: u32,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes put on it that it still has to keep: in flight, lost, or acknowledged out of order.
    pub queued: u64,
    /// Bytes ever put on it, copies included, what it repeated not.
    pub sent: u64,
    /// When the oldest of the bytes that were not acknowledged was sent.
    pub oldest_sent: Option<Instant>,
    /// Payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// Pacing rate, bytes/s.
    pub pacing_rate: u64,
    /// Rate at which the peer got what was sent, bytes/s, newest sample; 0 before the first.
    pub delivery_rate: u64,
    /// Highest rate, bytes/s, at which acknowledgements followed each other in the last 10 to 20
    /// round trips in which there were enough of them: what the path's bottleneck takes. Before, what
    /// earlier subflows there found, or 0.
    pub peak_rate: u64,
    /// When all that was sent will have passed the bottleneck at this rate, or has.
    pub passed_at: Instant,
    /// Share of sent bytes that were lost, over the subflow's life: `0.0..=1.0`.
    pub loss: f32,
    /// Bytes that were lost though the path's queue was short, over the subflow's life: by the path
    /// and not for want of room.
    pub strayed: u64,
    /// The subflow is a backup (its own or the peer's wish).
    pub backup: bool,
    /// A retransmission timeout is being recovered from, or nothing has been heard for longer
    /// than its timeout: potentially failed. Or the connection was idle for so long that a NAT may have
    /// forgotten this subflow, and the peer was not heard there since.
    pub stale: bool,
    /// Window, pacer and peer leave room for at least one segment now.
    pub ready: bool,
    /// The most urgent data that this host sends to the same address over the same path at present,
    /// of whichever connection; `None` where there is none, or all data is equally urgent.
    pub most_urgent: Option<Urgency>,
    /// Of the bytes in flight those that may be sent here too.
    pub copies: Copies,
}

/// Bytes in flight that a subflow may carry as well: not known to have arrived and never sent on
/// it. The oldest of each kind, which may be the same; none where the subflow is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    /// Every subflow that carried it timed out or is gone: it has to be sent again.
    pub lost: Option<InFlight>,
    /// Sent once.
    pub single: Option<InFlight>,
    /// However often it was sent.
    pub any: Option<InFlight>,
}

/// Bytes that were sent and are not known to have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Offset in the stream of the first byte.
    pub start: u64,
    /// Offset behind the last.
    pub end: u64,
    /// The subflow that carried it last; it may be gone.
    pub carrier: SubflowId,
    /// When that was.
    pub sent_at: Instant,
}

impl SubflowView {
    /// Bytes of congestion window not in flight: at least a segment, or none while anything is.
    pub fn window_room(&self) -> u64 {
        let room = self.cwnd.saturating_sub(self.in_flight);
        match room < u64::from(self.mss) && self.in_flight > 0 {
            true => 0,
            false => room,
        }
    }

    /// How long the newest acknowledged packet stood in queues.
    pub fn queueing_delay(&self) -> Duration {
        self.latest_rtt.saturating_sub(self.base_rtt)
    }
}

/// How many bytes a flow has, and how that is known: the further down, the more it is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSize {
    /// Nobody knows.
    #[default]
    Unknown,
    /// An estimate: of the application, or from flows of the past.
    Predicted(u64),
    /// Read from the protocol, such as HTTP's `Content-Length`.
    Read(u64),
    /// The application said so, and means it exactly.
    Declared(u64),
}

impl FlowSize {
    /// The size in bytes, where it is known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            FlowSize::Unknown => None,
            FlowSize::Predicted(bytes) | FlowSize::Read(bytes) | FlowSize::Declared(bytes) => {
                Some(bytes)
            }
        }
    }

    /// What is to be believed once `other` is heard too: what is trusted more, and the later of two
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

/// What a strategy sees of a connection.
#[derive(Debug, Clone, Copy)]
pub struct SendView<'a> {
    /// Now.
    pub now: Instant,
    /// Established subflows in order of creation.
    pub subflows: &'a [SubflowView],
    /// Bytes ever sent of the flow, each counted once.
    pub sent: u64,
    /// Bytes ever sent as copies since it began.
    pub copied: u64,
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Of these, by urgency from 0 on.
    pub unsent_by_urgency: [u64; Urgency::COUNT],
    /// Bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// Bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// New data may be sent now: there is some, and the peer has a window for it, of a segment if
    /// anything is outstanding.
    pub may_send_new: bool,
    /// Whether more comes behind what is unsent.
    pub writer: Writer,
    /// How large the flow is.
    pub flow_size: FlowSize,
    /// The oldest bytes in flight; none where there is nothing to copy and nowhere to copy it.
    pub oldest: Option<InFlight>,
}

/// What the application that writes is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// It has written all of the flow.
    Done,
    /// It may write more.
    Open,
    /// It has more, for which there was no room yet.
    Waiting,
}

impl SendView<'_> {
    /// A subflow by its id.
    pub fn subflow(&self, id: SubflowId) -> Option<&SubflowView> {
        self.subflows.iter().find(|s| s.id == id)
    }
}

/// What to send on the chosen subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The next bytes that were never sent.
    New,
    /// A copy of bytes that the view showed for this subflow.
    Copy {
        /// The bytes.
        data: InFlight,
        /// Who carries them kept the others waiting: its window is halved, at most once a round
        /// trip.
        penalise: bool,
    },
}

/// A strategy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send up to `max_bytes` on `subflow`, which was shown as ready.
    Send {
        /// Where.
        subflow: SubflowId,
        /// What.
        data: Payload,
        /// At most this much (the engine also bounds bursts). Of new data less than a segment waits
        /// until nothing is outstanding (RFC 9293 section 3.8.6.2.1).
        max_bytes: u32,
    },
    /// Send nothing until something changes, or until the time given.
    Wait {
        /// When to ask again.
        until: Option<Instant>,
    },
}

impl Decision {
    /// Nothing, until something changes.
    pub const WAIT: Decision = Decision::Wait { until: None };

    /// As much new data on `subflow` as it takes.
    pub const fn new_on(subflow: SubflowId) -> Decision {
        Decision::Send {
            subflow,
            data: Payload::New,
            max_bytes: u32::MAX,
        }
    }

    /// A copy of `data` on `subflow`.
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

/// What a strategy is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategyEvent {
    /// A subflow can carry data.
    SubflowUp {
        /// The subflow.
        subflow: SubflowId,
        /// What others to this address of the peer's have found on its path.
        record: Option<PathRecord>,
    },
    /// A subflow is gone.
    SubflowDown {
        /// The subflow.
        subflow: SubflowId,
    },
    /// The peer got data by a subflow.
    Acknowledged {
        /// The subflow.
        subflow: SubflowId,
        /// How much.
        bytes: u64,
    },
    /// A subflow lost data, and repeats it.
    Lost {
        /// The subflow.
        subflow: SubflowId,
        /// How much.
        bytes: u64,
    },
    /// A subflow timed out or its link went down: what only it carried is lost.
    TimedOut {
        /// The subflow.
        subflow: SubflowId,
    },
    /// New data waits for the peer's window.
    WindowBlocked,
}
