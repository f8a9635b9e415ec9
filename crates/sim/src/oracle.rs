//! What must hold in every run, watched while it runs. A violation panics with the time and what
//! was seen: the run's seed replays it.

use std::collections::BTreeSet;

use braid_engine::{ConnId, Event};

/// Watches one host.
#[derive(Debug, Default)]
pub struct Oracle {
    closed: BTreeSet<ConnId>,
}

impl Oracle {
    /// An event of the engine.
    pub fn on_event(&mut self, event: Event) {
        let (Event::Accepted { conn, .. }
        | Event::Connected { conn }
        | Event::Readable { conn }
        | Event::Writable { conn }
        | Event::Closed { conn, .. }
        | Event::FellBack { conn, .. }
        | Event::SubflowEstablished { conn, .. }
        | Event::SubflowClosed { conn, .. }) = event;
        assert!(
            !self.closed.contains(&conn),
            "{event:?} after the connection's end"
        );
        if matches!(event, Event::Closed { .. }) {
            self.closed.insert(conn);
        }
    }

    /// A byte was delivered at `offset` of a stream.
    pub fn on_bytes(&mut self, offset: u64, bytes: &[u8], pattern: impl Fn(u64) -> u8) {
        for (at, byte) in (offset..).zip(bytes) {
            assert_eq!(
                *byte,
                pattern(at),
                "byte {at} of the stream is not what was sent"
            );
        }
    }
}
