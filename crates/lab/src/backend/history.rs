//! Records of the paths that earlier connections left. The earlier connections run in the simulator, even
//! for runs over links. The simulation takes no wall-clock time, and both backends start from the same
//! records.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::{PathId, PathRecord, Protocol, Stack};
use braid_sim::Transfer;
use braid_sim::transfer::TransferConfig;
use braid_wire::{Instant, Rng};

use super::error::Error;
use super::{flow, setup};
use crate::case::{Case, Records};

/// First of the random streams of histories. The number is far above the streams of a world's components
/// and of runs, so that no two draw the same numbers.
const HISTORY_STREAM: u64 = 1 << 49;
/// Number of consecutive runs that share a history. A history for each run would multiply the time of a
/// case by the number of its paths. 30 is a guess: it is the default number of runs of many experiments.
const RUNS_PER_HISTORY: u64 = 30;
/// Payload of an earlier connection, bytes. A guess: enough to leave slow start on the paths of the
/// experiments.
const TRANSFER_BYTES: u64 = 256 << 10;
/// Maximum time of an earlier connection. A guess, far above the time that the transfer needs.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(120);

/// The records that client and server have of earlier connections.
#[derive(Debug)]
pub struct History {
    number: u64,
    /// The records of the client, and of the server.
    ends: [Vec<(IpAddr, PathId, PathRecord)>; 2],
}

impl History {
    /// Makes a transfer by regular TCP over each path of `case`, and returns the records that the
    /// transfers leave. Regular TCP uses one path and no strategy, so all strategies get the same records.
    /// Each `number` draws other random numbers.
    fn new(case: &Case, number: u64) -> Result<History, Error> {
        let mut rng = Rng::for_component(case.seed, HISTORY_STREAM + number);
        let paths = setup::case_paths(case, rng.u64());
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
            // A transfer that exceeds the limit leaves records too, so its timeout is no error.
            transfer.run(TRANSFER_TIMEOUT);
            for (end, records) in transfer.ends().into_iter().zip(&mut ends) {
                records.extend(transfer.world.host(end).stack().records());
            }
        }
        Ok(History { number, ends })
    }

    /// Loads the records into the stack of the client (end 0) or the server (end 1), as if they were made
    /// at `now`.
    pub fn load(&self, end: usize, stack: &mut Stack, now: Instant) {
        for (peer, path, record) in &self.ends[end] {
            let record = PathRecord { at: now, ..*record };
            stack.load_record(*peer, *path, record);
        }
    }
}

/// The history that the current runs share, made when the first of them needs it.
#[derive(Debug, Default)]
pub struct Memory(Option<History>);

impl Memory {
    /// Returns the history of run `index` of `case`; `None` if the case's runs start without records.
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
