//! Records about the paths to a box's servers that outlive its process, so that the first connection after a
//! restart knows the fastest path and the best server.

use core::error::Error;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::PathRecord;

use crate::select::selection::Quality;

/// Longest age of a kept record; paths change.
pub const MAX_RECORD_AGE: Duration = Duration::from_secs(7 * 86_400);

/// Longest age of a kept measurement; free bandwidth changes with the hour.
pub const MAX_MEASUREMENT_AGE: Duration = Duration::from_secs(86_400);

/// All kept records and measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedState {
    /// Path records from transfers.
    pub records: Vec<SavedRecord>,
    /// Measurements of servers, for the choice among them.
    pub measurements: Vec<SavedMeasurement>,
}

/// A path to a server, identified by names that are valid after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedRecord {
    /// Address of the server.
    pub server: IpAddr,
    /// Name of the link.
    pub link: String,
    /// Time of the record, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// The record. [`PathRecord::at`] has no meaning here.
    pub record: PathRecord,
}

impl SavedRecord {
    /// Returns whether the values are possible; kept data comes from outside.
    pub(crate) fn is_plausible(&self) -> bool {
        // Limits beyond any real path, so that a damaged file cannot mislead the engine.
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

/// A measurement of a server, identified by names that are valid after a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedMeasurement {
    /// Address and port of the server.
    pub server: SocketAddr,
    /// Name of the link; `None` for egress metrics of the server.
    pub link: Option<String>,
    /// Time of the measurement, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// The measured values.
    pub quality: Quality,
}

impl SavedMeasurement {
    /// Returns whether the values are possible.
    pub(crate) fn is_plausible(&self) -> bool {
        let Quality {
            bandwidth,
            delay_ms,
        } = self.quality;
        bandwidth.is_none_or(|b| (0.0..=1e13).contains(&b))
            && delay_ms.is_none_or(|ms| (0.0..=60e3).contains(&ms))
    }
}

/// The storage of records, such as a disk. Calls may block.
pub trait RecordStore: Send {
    /// Loads the data saved last.
    ///
    /// # Errors
    /// The data cannot be read.
    fn load(&mut self) -> Result<SavedState, StoreError>;

    /// Saves the data, replacing all earlier data: entirely or, on an error, not at all.
    ///
    /// # Errors
    /// The data cannot be written.
    fn save(&mut self, saved: &SavedState) -> Result<(), StoreError>;
}

/// The reason why records were not read or written.
pub type StoreError = Box<dyn Error + Send + Sync>;
