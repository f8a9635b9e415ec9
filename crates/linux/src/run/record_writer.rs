//! Saves the records of a box: what it has measured about paths and servers. Messages to operators call them
//! measurements. A separate thread writes the file, so that a slow disk does not delay the box.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_proxy::records::{RecordStore, SavedState, StoreError};

use crate::net::InstanceNames;
use crate::store::RecordFile;

/// Interval at which records are saved if they have changed. If the process is killed, the changes since the last save
/// are lost. The value is a guess.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// The thread that saves records, and its queue.
#[derive(Debug)]
pub(super) struct RecordWriter {
    records: SyncSender<SavedState>,
    thread: JoinHandle<()>,
    /// The records that were queued last; at first, those in the file.
    last_submitted: SavedState,
    /// True if the thread's last save failed.
    has_failed: Arc<AtomicBool>,
}

impl RecordWriter {
    /// Opens this instance's file of records in `directory`, and returns a writer and the saved records. If the file
    /// is not usable, there is no writer, and there are no records.
    pub fn open(
        directory: &Path,
        instance_names: &InstanceNames,
    ) -> (Option<RecordWriter>, SavedState) {
        // Each instance has a TUN device of its own, so instances with one directory have different files.
        let path = directory.join(format!("box-{}.redb", instance_names.tun()));
        let opened = make(directory)
            .and_then(|()| RecordFile::open(&path))
            .and_then(|(file, records)| {
                Ok((RecordWriter::start(Box::new(file), &records)?, records))
            });
        match opened {
            Ok((record_writer, records)) => (Some(record_writer), records),
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot open the file of measurements: the box works without this \
                                               file, and loses its measurements when it ends");
                (None, SavedState::default())
            }
        }
    }

    fn start(
        mut store: Box<dyn RecordStore>,
        saved: &SavedState,
    ) -> Result<RecordWriter, StoreError> {
        // One set of records may wait while another is saved.
        let (records, to_save) = sync_channel::<SavedState>(1);
        let has_failed = Arc::new(AtomicBool::new(false));
        let failed = Arc::clone(&has_failed);
        let save = move || {
            for records in to_save {
                let saved = store.save(&records);
                // The flag orders no other memory, so `Relaxed` suffices.
                failed.store(saved.is_err(), Ordering::Relaxed);
                if let Err(error) = saved {
                    tracing::warn!(%error, "cannot save the measurements: they are lost if the box ends now; the \
                                            next attempt follows within a minute");
                }
            }
        };
        let thread = thread::Builder::new()
            .name("records".to_owned())
            .spawn(save)?;
        Ok(RecordWriter {
            records,
            thread,
            last_submitted: saved.clone(),
            has_failed,
        })
    }

    /// Queues `records` for the thread if they changed or the last save failed. Does nothing if the disk is so slow
    /// that a set of records still waits: a later call queues newer records.
    pub fn submit(&mut self, records: SavedState) {
        if self.needs_save(&records) && self.records.try_send(records.clone()).is_ok() {
            self.last_submitted = records;
        }
    }

    /// Saves `records` unless they are saved already, and waits until the thread has ended. If this save fails, it is
    /// not tried again. A set that is still being saved counts as saved. If that save fails now, its changes are lost.
    ///
    /// A disk that hangs delays the end of the box, and with it the removal of its rules, until the service manager
    /// kills the process.
    pub fn finish(self, records: SavedState) {
        if self.needs_save(&records) {
            // Sending fails only if the thread has ended. Nothing can be saved then.
            let _ = self.records.send(records);
        }
        drop(self.records);
        // Joining fails only if the thread has panicked, which the panic has reported already.
        let _ = self.thread.join();
    }

    fn needs_save(&self, records: &SavedState) -> bool {
        *records != self.last_submitted || self.has_failed.load(Ordering::Relaxed)
    }
}

/// Creates the directory if it is missing. Only its owner may look into it: the records name the servers and links of
/// the box. An existing directory keeps its mode, which is the operator's choice.
///
/// # Errors
/// Fails if the parent of the directory is missing, or if this process may not write there.
pub(super) fn make(directory: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Sender;

    use braid_engine::PathRecord;
    use braid_proxy::records::SavedRecord;

    use super::*;

    /// A store that remembers every save.
    #[derive(Default, Clone)]
    struct Memory(Arc<Mutex<Vec<SavedState>>>);

    impl RecordStore for Memory {
        fn load(&mut self) -> Result<SavedState, StoreError> {
            Ok(self.0.lock().unwrap().last().cloned().unwrap_or_default())
        }

        fn save(&mut self, saved: &SavedState) -> Result<(), StoreError> {
            self.0.lock().unwrap().push(saved.clone());
            Ok(())
        }
    }

    /// A disk that fails once. It reports each attempt.
    struct FailsOnce {
        attempts: Sender<SavedState>,
        has_failed: bool,
    }

    impl RecordStore for FailsOnce {
        fn load(&mut self) -> Result<SavedState, StoreError> {
            Ok(SavedState::default())
        }

        fn save(&mut self, saved: &SavedState) -> Result<(), StoreError> {
            self.attempts.send(saved.clone())?;
            if std::mem::replace(&mut self.has_failed, true) {
                Ok(())
            } else {
                Err("the disk is full".into())
            }
        }
    }

    fn records(unix_ms: u64) -> SavedState {
        let record = SavedRecord {
            server: [203, 0, 113, 7].into(),
            link: "dsl".to_owned(),
            unix_ms,
            record: PathRecord::default(),
        };
        SavedState {
            records: vec![record],
            ..SavedState::default()
        }
    }

    #[test]
    fn only_changed_records_are_saved_and_the_last_ones_in_any_case() {
        let memory = Memory::default();
        let mut record_writer = RecordWriter::start(Box::new(memory.clone()), &records(1)).unwrap();
        record_writer.submit(records(1));
        record_writer.submit(records(2));
        record_writer.submit(records(2));
        record_writer.finish(records(3));
        assert_eq!(*memory.0.lock().unwrap(), [records(2), records(3)]);
        let record_writer = RecordWriter::start(Box::new(memory.clone()), &records(3)).unwrap();
        record_writer.finish(records(3));
        assert_eq!(memory.0.lock().unwrap().len(), 2);
    }

    /// Waits until the writer's thread has set `flag` to `value`, for 10 s at most.
    fn wait_for(flag: &AtomicBool, value: bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while flag.load(Ordering::Relaxed) != value {
            assert!(std::time::Instant::now() < deadline, "not {value} in time");
            thread::yield_now();
        }
    }

    #[test]
    fn a_failed_save_is_repeated_although_the_records_are_the_same() {
        let (attempts, attempted) = std::sync::mpsc::channel();
        let store = FailsOnce {
            attempts,
            has_failed: false,
        };
        let mut record_writer = RecordWriter::start(Box::new(store), &records(1)).unwrap();
        record_writer.submit(records(2));
        assert_eq!(attempted.recv().unwrap(), records(2));
        // The thread sets the flag after the attempt.
        wait_for(&record_writer.has_failed, true);
        record_writer.submit(records(2));
        assert_eq!(attempted.recv().unwrap(), records(2));
        wait_for(&record_writer.has_failed, false);
        record_writer.finish(records(2));
        assert_eq!(attempted.recv().ok(), None, "saved already");
    }
}
