//! A scenario, and its connections: what users do with them, and how they end.

use std::fmt;
use std::time::Duration;

use braid_engine::{CloseReason, Protocol};
use braid_sim::aggregation::Load;
use braid_sim::traffic::Stream;
use braid_sim::transfer::REQUEST;

use super::figures::Figures;

/// Everything that is drawn from one seed.
pub trait Scenario: fmt::Debug {
    /// Runs the scenario and checks how its connections end.
    ///
    /// # Errors
    /// The first expectation that was not met.
    fn simulate(self: Box<Self>, seed: u64) -> Result<Figures, String>;
}

/// The host that opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opener {
    /// The client, or the user behind a box.
    Client,
    /// The host that shares this path.
    Neighbour(usize),
}

/// A connection.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The host that opens the connection.
    pub opener: Opener,
    /// The time of opening, from the start.
    pub at: Duration,
    /// Protocol.
    pub protocol: Protocol,
    /// Path of the first subflow; `None` leaves the choice to the engine.
    pub path: Option<u8>,
    /// The payload.
    pub load: Load,
    /// True if the application declares the size to the engine.
    pub declared: bool,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// The end that aborts the connection, and the time after its opening.
    pub abort: Option<(End, Duration)>,
    /// The end that stops reading for a while, the time after the opening, and the length of the pause.
    pub pause: Option<(End, Duration, Duration)>,
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end that opened the connection.
    Opener,
    /// The server, or the content host behind the servers.
    Server,
}

/// A notice to the client that a path is up or down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// The time of the notice.
    pub at: Duration,
    /// The path.
    pub path: u8,
    /// True if the path is up.
    pub up: bool,
}

/// A step of a scenario.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Opens the flow.
    Open(usize),
    /// Resets the flow from one end.
    Abort(usize, End),
    /// Makes an end stop reading (true) or resume it (false).
    Pause(usize, End, bool),
    /// Tells the client's engine about a path.
    Notice(Notice),
}

impl Flow {
    /// Creates a connection over TCP that is neither aborted nor paused.
    pub fn tcp(opener: Opener, at: Duration, load: Load) -> Self {
        Flow {
            opener,
            at,
            protocol: Protocol::Tcp,
            path: None,
            load,
            declared: false,
            strategy: braid_strategy::DEFAULT,
            abort: None,
            pause: None,
        }
    }

    /// Returns the states of the opener's end and of the server's end, which have these streams.
    pub fn ends<'a>(&self, [opener, server]: [Option<&'a Stream>; 2]) -> [FlowEnd<'a>; 2] {
        let (reads, writes) = match self.load {
            Load::Down(size) => (size, REQUEST),
            Load::Up(size) => (0, size),
            Load::Post { sends, answer } => (answer, sends),
        };
        let paused = self.pause.map(|(end, ..)| end);
        let ends = [
            (End::Opener, opener, (reads, writes)),
            (End::Server, server, (writes, reads)),
        ];
        ends.map(|(end, stream, bytes)| FlowEnd {
            stream,
            bytes,
            pauses: paused == Some(end),
        })
    }
}

/// Returns the steps of `flows` and the notices in order of time.
pub fn steps(flows: &[Flow], notices: &[Notice]) -> Vec<(Duration, Step)> {
    let mut steps = Vec::new();
    for (n, flow) in flows.iter().enumerate() {
        steps.push((flow.at, Step::Open(n)));
        if let Some((end, after)) = flow.abort {
            steps.push((flow.at + after, Step::Abort(n, end)));
        }
        if let Some((end, after, length)) = flow.pause {
            let from = flow.at + after;
            steps.push((from, Step::Pause(n, end, true)));
            steps.push((from + length, Step::Pause(n, end, false)));
        }
    }
    steps.extend(
        notices
            .iter()
            .map(|notice| (notice.at, Step::Notice(*notice))),
    );
    steps.sort_by_key(|(at, _)| *at);
    steps
}

/// The state of one end of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowEnd<'a> {
    /// The application; `None` if this end has no connection.
    pub stream: Option<&'a Stream>,
    /// The bytes that the end reads and writes if the flow is complete.
    bytes: (u64, u64),
    /// True if the end stops reading for a while.
    pauses: bool,
}

impl FlowEnd<'_> {
    /// Returns the reason for which the engine closed the connection, if it did.
    pub fn reason(&self) -> Option<CloseReason> {
        self.stream?.closed.map(|(_, reason)| reason)
    }

    /// Returns whether the connection closed in order.
    pub fn is_finished(&self) -> bool {
        self.reason() == Some(CloseReason::Finished)
    }

    /// Returns whether the end has read and written all bytes.
    pub fn is_complete(&self) -> bool {
        // An end that has paused reading does not see the end of the peer's stream. Only the close of the
        // connection tells it that the stream has ended.
        let is_told = self.pauses && self.is_finished();
        let saw_end = |s: &Stream| s.complete_at.is_some() || is_told;
        self.stream
            .is_some_and(|s| (s.received, s.sent) == self.bytes && saw_end(s))
    }
}

/// A description in one line.
impl fmt::Display for FlowEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(s) = self.stream else {
            return f.write_str("no connection");
        };
        write!(f, "wrote {}, read {}, ", s.sent, s.received)?;
        write!(f, "saw the end: {}, ", s.complete_at.is_some())?;
        write!(f, "fell back: {:?}, closed: {:?}", s.fell_back, s.closed)
    }
}
