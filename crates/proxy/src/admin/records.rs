//! Records of the paths to a box's servers. They are saved, so that after a restart the first connection already
//! uses the fastest path and the best server.

use core::error::Error;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::PathRecord;

use crate::select::selection::Quality;

/// Maximum age of a saved record. The properties of a path (round-trip time, capacity) change rarely. A guess.
pub const MAX_RECORD_AGE: Duration = Duration::from_secs(7 * 86_400);

/// Maximum age of a saved measurement. Its value, the available bandwidth, changes with the hour. A guess.
pub const MAX_MEASUREMENT_AGE: Duration = Duration::from_secs(86_400);

/// All saved records and measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedState {
    /// The engine's records of paths, from users' transfers.
    pub records: Vec<SavedRecord>,
    /// Measurements of servers, by which the box chooses a server.
    pub measurements: Vec<SavedMeasurement>,
}

/// The record of a path to a server. Address and name identify the path, because its number may change at a
/// restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedRecord {
    /// Address of the server.
    pub server: IpAddr,
    /// Name of the link.
    pub link: String,
    /// Time of the record, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// The record. Its [`PathRecord::at`] has no meaning, because the engine's clock restarts with the process;
    /// `unix_ms` replaces it.
    pub record: PathRecord,
}

impl SavedRecord {
    /// Returns whether the values are possible. The values come from a file. A damaged file must not mislead the
    /// engine.
    pub(crate) fn is_plausible(&self) -> bool {
        // Limits beyond any real path: 1 min, 1 TB sent, 1 TB/s.
        let times = [self.record.srtt, self.record.rttvar, self.record.base_rtt];
        let minute = Duration::from_secs(60);
        let terabyte = 1_000_000_000_000;
        times.iter().all(|time| *time <= minute)
            && !self.record.srtt.is_zero()
            && self.record.delivery_rate <= terabyte
            && self.record.arrival_rate <= terabyte
            && self.record.bytes_sent <= terabyte
            && self.record.bytes_lost <= self.record.bytes_sent
    }
}

/// A measurement of a server. Address and name identify it, because numbers may change at a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedMeasurement {
    /// Address and port of the server.
    pub server: SocketAddr,
    /// Name of the link. `None` for the server's egress metrics, because these do not depend on a link.
    pub link: Option<String>,
    /// Time of the measurement, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// The measured values.
    pub quality: Quality,
}

impl SavedMeasurement {
    /// Returns whether the values are possible, as [`SavedRecord::is_plausible`] does.
    pub(crate) fn is_plausible(&self) -> bool {
        let Quality {
            bandwidth,
            delay_ms,
        } = self.quality;
        // At most 10 Tbit/s and 1 min.
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

    /// Saves the data in place of all earlier data. On an error, the earlier data must remain complete.
    ///
    /// # Errors
    /// The data cannot be written.
    fn save(&mut self, saved: &SavedState) -> Result<(), StoreError>;
}

/// The reason why records were not read or written.
pub type StoreError = Box<dyn Error + Send + Sync>;
