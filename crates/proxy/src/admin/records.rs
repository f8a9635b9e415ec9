//! What a box has learnt of the paths to its servers, kept beyond its process: so that the first
//! connection after a restart knows which path is the fastest, and which server the best.

use core::error::Error;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::PathRecord;

use crate::select::selection::Quality;

/// What is older is not kept: a path changes.
pub const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The same of what was measured: what is free changes with the hours.
pub const LONGEST_MEASURED: Duration = Duration::from_secs(86_400);

/// All that is kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// What transfers told of paths.
    pub records: Vec<KeptRecord>,
    /// What was measured of servers, to choose among them.
    pub measurements: Vec<KeptMeasurement>,
}

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

/// What was measured of a server, under names that mean the same after a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptMeasurement {
    /// Where the server is reached.
    pub server: SocketAddr,
    /// Name of the link; `None` of the way from the server to destinations.
    pub link: Option<String>,
    /// When it was measured, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// What was measured.
    pub quality: Quality,
}

impl KeptMeasurement {
    /// Whether a way can be like this.
    pub(crate) fn is_plausible(&self) -> bool {
        let Quality {
            bandwidth,
            delay_ms,
        } = self.quality;
        bandwidth.is_none_or(|b| (0.0..=1e13).contains(&b))
            && delay_ms.is_none_or(|ms| (0.0..=60e3).contains(&ms))
    }
}

/// Where all that is kept; on a disk, for example. Calls may take their time.
pub trait RecordStore: Send {
    /// What was saved last.
    ///
    /// # Errors
    /// It cannot be read.
    fn load(&mut self) -> Result<Kept, StoreError>;

    /// Keeps this, in place of what was saved before: all of it or, on an error, nothing.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&mut self, kept: &Kept) -> Result<(), StoreError>;
}

/// Why records were not read or written.
pub type StoreError = Box<dyn Error + Send + Sync>;
