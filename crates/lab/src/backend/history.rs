//! Records of the paths from earlier connections. The connections are made in the simulator, for runs
//! over links too.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::{PathId, PathRecord, Protocol, Stack};
use braid_sim::Transfer;
use braid_sim::transfer::TransferConfig;
use braid_wire::{Instant, Rng};

use super::error::Error;
use super::flow;
use crate::case::{Case, Records};

/// Base of the random streams of histories, apart from the streams of runs and of a world's components.
const HISTORY_STREAM: u64 = 1 << 49;
/// Consecutive runs that share a history.
const RUNS_PER_HISTORY: u64 = 30;
/// Payload of an earlier connection, bytes.
const TRANSFER_BYTES: u64 = 256 << 10;
/// Longest time of an earlier connection.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(120);

/// The records that client and server keep of earlier connections.
#[derive(Debug)]
pub struct History {
    number: u64,
    ends: [Vec<(IpAddr, PathId, PathRecord)>; 2],
}

impl History {
    /// Makes one transfer by regular TCP over each path of `case`, and returns the records that they
    /// leave. They do not depend on the strategy. Every `number` draws other transfers.
    fn new(case: &Case, number: u64) -> Result<History, Error> {
        let mut rng = Rng::for_component(case.seed, HISTORY_STREAM + number);
        let paths = flow::paths(case, rng.u64());
        let mut ends = [Vec::new(), Vec::new()];
        for path in 0..paths.len() {
            let config = TransferConfig {
                engine: flow::engine(case)?,
                protocol: Protocol::Tcp,
                initial_path: Some(PathId(path as u8)),
                ..TransferConfig::new(&paths, TRANSFER_BYTES, case.direction)
            };
            let mut transfer = Transfer::start(rng.u64(), &config)
                .map_err(|e| Error::Run(format!("an earlier connection does not open: {e}")))?;
            // A transfer beyond the limit still leaves the records that it has.
            transfer.run(TRANSFER_TIMEOUT);
            for (end, records) in transfer.ends().into_iter().zip(&mut ends) {
                records.extend(transfer.world.host(end).stack().records());
            }
        }
        Ok(History { number, ends })
    }

    /// Loads the records into the stack of the client (end 0) or the server (end 1), as if made `now`.
    pub fn load(&self, end: usize, stack: &mut Stack, now: Instant) {
        for (peer, path, record) in &self.ends[end] {
            let record = PathRecord { at: now, ..*record };
            stack.load_record(*peer, *path, record);
        }
    }
}

/// The history of the current runs.
#[derive(Debug, Default)]
pub struct Memory(Option<History>);

impl Memory {
    /// Returns the history of run `index` of `case`; `None` where runs start without records.
    pub fn of(&mut self, case: &Case, index: u64) -> Result<Option<&History>, Error> {
        if case.records == Records::Cold {
            return Ok(None);
        }
        let number = index / RUNS_PER_HISTORY;
        let history = match self.0.take().filter(|history| history.number == number) {
            Some(history) => history,
            None => History::new(case, number)?,
        };
        Ok(Some(self.0.insert(history)))
    }
}
