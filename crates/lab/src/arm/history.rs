//! What earlier connections have told of the paths. They are made in the simulator, also for runs over
//! links.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::{PathId, PathRecord, Protocol, Stack};
use braid_sim::Transfer;
use braid_sim::transfer::TransferConfig;
use braid_wire::{Instant, Rng};

use super::error::Error;
use super::flow;
use crate::cell::{Cell, Records};

/// Streams of histories count from here, apart from those of runs and of a world's components.
const HISTORIES: u64 = 1 << 49;
/// Runs in a row that have the same history.
const RUNS: u64 = 30;
/// Payload of an earlier connection.
const SIZE: u64 = 256 << 10;
/// How long one may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What client and server remember.
#[derive(Debug)]
pub struct History {
    number: u64,
    ends: [Vec<(IpAddr, PathId, PathRecord)>; 2],
}

impl History {
    /// What transfers like that of `cell`, one by regular TCP over each path, leave behind; the
    /// same for all strategies. Each `number` stands for others of them.
    fn new(cell: &Cell, number: u64) -> Result<History, Error> {
        let mut rng = Rng::for_component(cell.seed, HISTORIES + number);
        let paths = flow::paths(cell, rng.u64());
        let mut ends = [Vec::new(), Vec::new()];
        for path in 0..paths.len() {
            let config = TransferConfig {
                engine: flow::engine(cell)?,
                protocol: Protocol::Tcp,
                initial_path: Some(PathId(path as u8)),
                ..TransferConfig::new(&paths, SIZE, cell.direction)
            };
            let mut transfer = Transfer::start(rng.u64(), &config)
                .map_err(|e| Error::Run(format!("an earlier connection does not open: {e}")))?;
            // One that takes too long leaves what it has found so far.
            transfer.run(LIMIT);
            for (end, records) in transfer.ends().into_iter().zip(&mut ends) {
                records.extend(transfer.world.host(end).stack().records());
            }
        }
        Ok(History { number, ends })
    }

    /// Gives the client (end 0) or the server (end 1) what it remembers, as of `now`.
    pub fn load(&self, end: usize, stack: &mut Stack, now: Instant) {
        for (peer, path, record) in &self.ends[end] {
            let record = PathRecord { at: now, ..*record };
            stack.load_record(*peer, *path, record);
        }
    }
}

/// The history of the runs that are being made.
#[derive(Debug, Default)]
pub struct Memory(Option<History>);

impl Memory {
    /// That of run `index` of `cell`; `None` where nothing is to be known of the paths.
    pub fn of(&mut self, cell: &Cell, index: u64) -> Result<Option<&History>, Error> {
        if cell.records == Records::Cold {
            return Ok(None);
        }
        let number = index / RUNS;
        let history = match self.0.take().filter(|history| history.number == number) {
            Some(history) => history,
            None => History::new(cell, number)?,
        };
        Ok(Some(self.0.insert(history)))
    }
}
