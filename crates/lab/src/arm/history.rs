//! What earlier connections have told of the paths.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::{PathId, PathRecord, Protocol};
use braid_sim::transfer::TransferConfig;
use braid_sim::{Host, Transfer};
use braid_wire::Rng;

use super::error::Error;
use super::flow;
use crate::cell::Cell;

/// Streams of histories count from here, apart from those of runs and of a world's components.
const HISTORIES: u64 = 1 << 49;
/// Runs in a row that have the same history.
pub(super) const RUNS: u64 = 30;
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
    pub fn new(cell: &Cell, number: u64) -> Result<History, Error> {
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

    /// Whether this is the history of run `index`.
    pub fn is_of(&self, index: u64) -> bool {
        self.number == index / RUNS
    }

    /// Gives both ends what they remember, as of now.
    pub fn load(&self, transfer: &mut Transfer) {
        for (end, records) in transfer.ends().into_iter().zip(&self.ends) {
            transfer.world.with_node(end, |host: &mut Host, now| {
                for (peer, path, record) in records {
                    let record = PathRecord { at: now, ..*record };
                    host.stack_mut().load_record(*peer, *path, record);
                }
            });
        }
    }
}
