//! What a box has learnt of the paths to its servers, kept beyond its process: so that the first
//! connection after a restart knows which path is the fastest.

use core::error::Error;
use core::net::IpAddr;
use core::time::Duration;

use braid_engine::PathRecord;

/// What is older is not kept: a path changes.
pub const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// A path to a server as it is kept, under names that mean the same after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRecord {
    /// Address of the server.
    pub server: IpAddr,
    /// Name of the link.
    pub link: String,
    /// When it was learnt, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// What was learnt. [`PathRecord::at`] means nothing here.
    pub record: PathRecord,
}

impl KeptRecord {
    /// Whether a path can be like this. What was kept comes from outside.
    pub(crate) fn is_plausible(&self) -> bool {
        let times = [self.record.srtt, self.record.rttvar, self.record.base_rtt];
        let minute = Duration::from_secs(60);
        let terabyte = 1_000_000_000_000;
        times.iter().all(|time| *time <= minute)
            && !self.record.srtt.is_zero()
            && self.record.delivery_rate <= terabyte
            && self.record.bytes_sent <= terabyte
            && self.record.bytes_lost <= self.record.bytes_sent
    }
}

/// Where records are kept; on a disk, for example. Calls may take their time.
pub trait RecordStore: Send {
    /// What was saved last.
    ///
    /// # Errors
    /// It cannot be read.
    fn load(&mut self) -> Result<Vec<KeptRecord>, StoreError>;

    /// Keeps these, in place of what was saved before: all of them or, on an error, none.
    ///
    /// # Errors
    /// They cannot be written.
    fn save(&mut self, records: &[KeptRecord]) -> Result<(), StoreError>;
}

/// Why records were not read or written.
pub type StoreError = Box<dyn Error + Send + Sync>;
