//! Stores records of paths and measurements of servers in a file that survives crashes and power cuts.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use braid_engine::PathRecord;
use braid_proxy::records::{RecordStore, SavedMeasurement, SavedRecord, SavedState, StoreError};
use braid_proxy::selection::Quality;
use redb::{
    Database, DatabaseError, Key, ReadOnlyTable, ReadTransaction, ReadableTable, StorageError,
    TableDefinition, TableError, Value,
};

/// The table of path records. The key is server and link. The value is the time of the record (ms since 1970),
/// the smoothed round-trip time, its variation and the round-trip time without queues (ns each), the rate of
/// delivery (bytes/s), 1 if that rate is a lower bound and otherwise 0, the rate of arrival (bytes/s), and the
/// numbers of bytes sent and lost. A table with another layout needs another name.
const RECORDS: TableDefinition<'_, (&str, &str), [u64; 9]> = TableDefinition::new("paths 2");

/// The time of a measurement (ms since 1970), the free bandwidth (bit/s) and the round-trip time (ms).
type MeasurementRow = (u64, Option<f64>, Option<f64>);

/// The table of measurements. The key is server and link; the link is empty for the path from the server to
/// destinations.
const MEASUREMENTS: TableDefinition<'_, (&str, &str), MeasurementRow> =
    TableDefinition::new("servers 1");

/// Size of the database's cache in bytes. The file has a few kilobytes, so the cache holds all of it. redb's
/// default is 1 GiB.
const CACHE_BYTES: usize = 1 << 20;

/// Maximum number of rows that are read from a table. The core keeps no more rows. The bound limits the memory
/// that a foreign file can take.
const MAX_ROWS: usize = 1_024;

/// A file of records, in the format of redb.
#[derive(Debug)]
pub struct RecordFile {
    database: Database,
}

/// A reason why a file of records cannot be opened.
enum OpenError {
    /// The file may be intact, but another process uses it, or the system does not allow access.
    System(StoreError),
    /// The file is damaged, or has another format.
    Damaged(StoreError),
}

impl RecordFile {
    /// Opens or creates the file at `path`, and reads it. A damaged file is renamed, with `.damaged` appended to
    /// its name, and replaced by a new one.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, created or renamed, or if another process uses it.
    pub fn open(path: &Path) -> Result<(RecordFile, SavedState), StoreError> {
        match open_and_read(path) {
            Ok(found) => Ok(found),
            Err(OpenError::System(error)) => Err(error),
            Err(OpenError::Damaged(error)) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(".damaged");
                let aside = PathBuf::from(aside);
                tracing::warn!(
                    path = %path.display(), %error, aside = %aside.display(),
                    "cannot read the file of measurements: it was renamed to the name in `aside`, and the box \
                     starts without earlier measurements"
                );
                std::fs::rename(path, aside)?;
                open_and_read(path).map_err(|(OpenError::System(e) | OpenError::Damaged(e))| e)
            }
        }
    }
}

/// Opens and reads the file. This happens on a thread of its own, because redb may panic at a damaged file, and
/// the panic must not end this process.
fn open_and_read(path: &Path) -> Result<(RecordFile, SavedState), OpenError> {
    let path = path.to_owned();
    let read = thread::Builder::new().spawn(move || {
        let mut database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(&path)?;
        // The file has a few kilobytes, so a full check costs next to nothing.
        database.check_integrity()?;
        let mut file = RecordFile { database };
        let saved = file.load().map_err(OpenError::Damaged)?;
        Ok((file, saved))
    });
    let read = read.map_err(|e| OpenError::System(e.into()))?;
    let panicked = |_| OpenError::Damaged("reading it failed with a panic".into());
    read.join().map_err(panicked)?
}

impl From<DatabaseError> for OpenError {
    fn from(error: DatabaseError) -> Self {
        let is_damaged = match &error {
            DatabaseError::DatabaseAlreadyOpen => false,
            DatabaseError::Storage(StorageError::Io(e)) => {
                matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
            }
            _ => true,
        };
        match is_damaged {
            true => OpenError::Damaged(error.into()),
            false => OpenError::System(error.into()),
        }
    }
}

impl RecordStore for RecordFile {
    fn load(&mut self) -> Result<SavedState, StoreError> {
        let transaction = self.database.begin_read()?;
        let mut saved = SavedState::default();
        if let Some(table) = open_if_exists(&transaction, RECORDS)? {
            for entry in table.iter()?.take(MAX_ROWS) {
                let (key, value) = entry?;
                let (server, link) = key.value();
                let record = from_row(server.parse()?, link, value.value());
                saved.records.push(record);
            }
        }
        if let Some(table) = open_if_exists(&transaction, MEASUREMENTS)? {
            for entry in table.iter()?.take(MAX_ROWS) {
                let (key, value) = entry?;
                let (server, link) = key.value();
                let (unix_ms, bandwidth, delay_ms) = value.value();
                saved.measurements.push(SavedMeasurement {
                    server: server.parse()?,
                    link: Some(link.to_owned()).filter(|link| !link.is_empty()),
                    unix_ms,
                    quality: Quality {
                        bandwidth,
                        delay_ms,
                    },
                });
            }
        }
        Ok(saved)
    }

    fn save(&mut self, saved: &SavedState) -> Result<(), StoreError> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(RECORDS)?;
            // The saved state replaces all rows of the table.
            table.retain(|_, _| false)?;
            for saved in &saved.records {
                let server = saved.server.to_string();
                table.insert((server.as_str(), saved.link.as_str()), to_row(saved))?;
            }
            let mut table = transaction.open_table(MEASUREMENTS)?;
            table.retain(|_, _| false)?;
            for saved in &saved.measurements {
                let server = saved.server.to_string();
                let key = (server.as_str(), saved.link.as_deref().unwrap_or(""));
                let quality = saved.quality;
                table.insert(key, (saved.unix_ms, quality.bandwidth, quality.delay_ms))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Returns a table; `None` if it does not exist, as in a new file.
fn open_if_exists<K: Key + 'static, V: Value + 'static>(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, StoreError> {
    match transaction.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn to_row(saved: &SavedRecord) -> [u64; 9] {
    let r = &saved.record;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [
        saved.unix_ms,
        ns(r.srtt),
        ns(r.rttvar),
        ns(r.base_rtt),
        r.delivery_rate,
        u64::from(r.is_lower_bound),
        r.arrival_rate,
        r.bytes_sent,
        r.bytes_lost,
    ]
}

fn from_row(server: IpAddr, link: &str, row: [u64; 9]) -> SavedRecord {
    let [
        unix_ms,
        srtt,
        rttvar,
        base_rtt,
        delivery_rate,
        is_lower_bound,
        arrival_rate,
        bytes_sent,
        bytes_lost,
    ] = row;
    SavedRecord {
        server,
        link: link.to_owned(),
        unix_ms,
        record: PathRecord {
            srtt: Duration::from_nanos(srtt),
            rttvar: Duration::from_nanos(rttvar),
            base_rtt: Duration::from_nanos(base_rtt),
            delivery_rate,
            is_lower_bound: is_lower_bound != 0,
            arrival_rate,
            bytes_sent,
            bytes_lost,
            ..PathRecord::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory that is removed when this value is dropped.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Directory {
            let name = format!("braid-store-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Directory(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("records")
        }

        fn aside(&self) -> PathBuf {
            self.0.join("records.damaged")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn record(server: &str, link: &str) -> SavedRecord {
        let server = server.parse().unwrap();
        let row = [1_800_000_000_000, 40, 3, 38, 500, 1, 900, 70, 6];
        from_row(server, link, row)
    }

    fn measurement(link: Option<&str>) -> SavedMeasurement {
        SavedMeasurement {
            server: "203.0.113.7:1080".parse().unwrap(),
            link: link.map(str::to_owned),
            unix_ms: 1_800_000_000_000,
            quality: Quality {
                bandwidth: Some(21.89e6),
                delay_ms: link.is_none().then_some(42.64),
            },
        }
    }

    fn saved() -> SavedState {
        SavedState {
            records: vec![record("2001:db8::7", "lte"), record("203.0.113.7", "dsl")],
            measurements: vec![measurement(None), measurement(Some("dsl"))],
        }
    }

    fn save(path: &Path, saved: &SavedState) {
        let (mut file, _) = RecordFile::open(path).unwrap();
        file.save(saved).unwrap();
    }

    fn load(path: &Path) -> SavedState {
        RecordFile::open(path).unwrap().1
    }

    #[test]
    fn saved_records_are_read_back() {
        let directory = Directory::new("again");
        let path = directory.file();
        assert_eq!(load(&path), SavedState::default());
        let mut saved = saved();
        let base_rtt = saved.records[0].record.base_rtt;
        assert_eq!(base_rtt, Duration::from_nanos(38));
        save(&path, &saved);
        assert_eq!(load(&path), saved);
        // A save removes the records that it leaves out.
        saved.records.pop();
        saved.measurements.pop();
        save(&path, &saved);
        assert_eq!(load(&path), saved);
    }

    #[test]
    fn a_file_of_another_format_is_renamed() {
        let directory = Directory::new("garbage");
        let path = directory.file();
        for garbage in [&b"garbage"[..], &[0; 100_000], &[0xff; 5_000]] {
            fs::write(&path, garbage).unwrap();
            assert_eq!(load(&path), SavedState::default());
            assert_eq!(fs::read(directory.aside()).unwrap(), garbage);
            save(&path, &saved());
            assert_eq!(load(&path), saved());
        }
    }

    /// The test damages a file at 16 places: it changes 64 bytes there, or cuts the file off. Opening the
    /// damaged file works, and reads all saved records or none.
    #[test]
    fn a_damaged_file_can_be_opened() {
        let directory = Directory::new("damaged");
        let path = directory.file();
        let (nothing, saved) = (SavedState::default(), saved());
        save(&path, &saved);
        let good = fs::read(&path).unwrap();
        let used = good.iter().rposition(|b| *b != 0).unwrap() + 1;
        for i in 0..16 {
            let mut bad = good.clone();
            let at = used * i / 16;
            bad[at..used.min(at + 64)].fill(0x5a);
            fs::write(&path, &bad).unwrap();
            let read = load(&path);
            assert!(read == nothing || read == saved, "at {at}: {read:?}");
            fs::write(&path, &good[..at]).unwrap();
            let read = load(&path);
            assert!(read == nothing || read == saved, "cut at {at}: {read:?}");
        }
    }

    #[test]
    fn a_file_in_use_is_left_alone() {
        let directory = Directory::new("use");
        let path = directory.file();
        let holder = RecordFile::open(&path).unwrap();
        let error = RecordFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("open"), "{error}");
        assert!(!directory.aside().exists());
        drop(holder);
        let missing = RecordFile::open(&directory.0.join("no/such/directory"));
        assert!(missing.is_err());
    }
}
