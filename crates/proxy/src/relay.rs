//! Bytes between a connection of the stack and a local stream.
//!
//! Nothing is kept here: data goes from the socket straight into the engine's send buffer and from
//! its receive buffer straight into the socket, so that what one side does not take stops the
//! other (back-pressure end to end).

use std::io::{IoSlice, IoSliceMut};

use braid_engine::{ApiError, ConnId, Stack};
use braid_wire::Instant;

use crate::{LocalError, LocalId, LocalStreams};

/// Most bytes a relay moves in one direction before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// One pair of streams.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) conn: ConnId,
    pub(crate) local: LocalId,
    /// What was not found empty or full since it was last said to be ready.
    local_readable: bool,
    local_writable: bool,
    conn_readable: bool,
    conn_writable: bool,
    /// The end of the local stream was passed on to the connection.
    to_conn_done: bool,
    /// The end of the connection's stream was passed on to the local side.
    to_local_done: bool,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// An event will say when it goes on.
    Blocked,
    /// There is more to do than a turn may.
    Again,
    /// Both directions are closed.
    Finished,
    /// The local stream is broken.
    LocalBroken,
    /// The connection is no more.
    ConnGone,
}

/// Bytes moved in a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) to_conn: u64,
    pub(crate) to_local: u64,
}

enum PumpError {
    Api,
    Local(LocalError),
}

impl From<ApiError> for PumpError {
    fn from(_: ApiError) -> Self {
        PumpError::Api
    }
}

impl Relay {
    /// A relay between two streams of which nothing is known: all is tried.
    pub(crate) fn new(conn: ConnId, local: LocalId) -> Self {
        Relay {
            conn,
            local,
            local_readable: true,
            local_writable: true,
            conn_readable: true,
            conn_writable: true,
            to_conn_done: false,
            to_local_done: false,
        }
    }

    pub(crate) fn set_local_readable(&mut self) {
        self.local_readable = true;
    }

    pub(crate) fn set_local_writable(&mut self) {
        self.local_writable = true;
    }

    pub(crate) fn set_conn_readable(&mut self) {
        self.conn_readable = true;
    }

    pub(crate) fn set_conn_writable(&mut self) {
        self.conn_writable = true;
    }

    /// One of the directions is closed.
    pub(crate) fn half_closed(&self) -> bool {
        self.to_conn_done || self.to_local_done
    }

    /// Moves what can be moved, both ways.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
        moved: &mut Moved,
    ) -> Turn {
        let up = self.pump_to_conn(now, stack, local, &mut moved.to_conn);
        if matches!(up, Turn::LocalBroken | Turn::ConnGone) {
            return up;
        }
        let down = self.pump_to_local(now, stack, local, &mut moved.to_local);
        match (up, down) {
            (_, Turn::LocalBroken | Turn::ConnGone) => down,
            _ if self.to_conn_done && self.to_local_done => Turn::Finished,
            (Turn::Again, _) | (_, Turn::Again) => Turn::Again,
            _ => Turn::Blocked,
        }
    }

    /// Moves what the local side sent into the connection.
    pub(crate) fn pump_to_conn(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
        moved: &mut u64,
    ) -> Turn {
        let mut budget = TURN_BYTES;
        while !self.to_conn_done && self.local_readable && self.conn_writable {
            if budget == 0 {
                return Turn::Again;
            }
            let mut asked = false;
            let fill = |bufs: &mut [IoSliceMut<'_>]| {
                asked = true;
                local.read(self.local, bufs).map_err(PumpError::Local)
            };
            match stack.write_with(now, self.conn, budget, fill) {
                Ok(0) if !asked => self.conn_writable = false,
                Ok(0) => {
                    self.to_conn_done = true;
                    if let Err(ApiError::UnknownConnection) = stack.shutdown(now, self.conn) {
                        return Turn::ConnGone;
                    }
                }
                Ok(n) => {
                    budget -= n.min(budget);
                    *moved += n as u64;
                }
                Err(PumpError::Local(LocalError::WouldBlock)) => self.local_readable = false,
                Err(PumpError::Local(LocalError::Broken)) => return Turn::LocalBroken,
                Err(PumpError::Api) => return Turn::ConnGone,
            }
        }
        Turn::Blocked
    }

    /// Moves what the connection delivered to the local side.
    fn pump_to_local(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
        moved: &mut u64,
    ) -> Turn {
        let mut budget = TURN_BYTES;
        while !self.to_local_done && self.conn_readable && self.local_writable {
            if budget == 0 {
                return Turn::Again;
            }
            let mut asked = false;
            let drain = |bufs: &[IoSlice<'_>]| {
                asked = true;
                local.write(self.local, bufs).map_err(PumpError::Local)
            };
            match stack.read_with(now, self.conn, drain) {
                Ok(0) if !asked => {
                    self.conn_readable = false;
                    if stack.read_finished(self.conn) {
                        self.to_local_done = true;
                        local.shutdown(self.local);
                    }
                }
                // A stream that takes nothing and says so by a zero is as good as full.
                Ok(0) => self.local_writable = false,
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    *moved += n as u64;
                }
                Err(PumpError::Local(LocalError::WouldBlock)) => self.local_writable = false,
                Err(PumpError::Local(LocalError::Broken)) => return Turn::LocalBroken,
                Err(PumpError::Api) => return Turn::ConnGone,
            }
        }
        Turn::Blocked
    }
}
