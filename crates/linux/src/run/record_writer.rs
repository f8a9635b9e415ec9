//! Saves the records of a box about paths and servers. A separate thread writes the file, so that a slow disk does
//! not delay the box.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_proxy::records::{RecordStore, SavedState, StoreError};

use crate::net::InstanceNames;
use crate::store::RecordFile;

/// Interval at which changed records are saved. If the process is killed, the changes since the last save are
/// lost. The value is a guess.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// The thread that saves records, and its queue.
#[derive(Debug)]
pub(super) struct RecordWriter {
    records: SyncSender<SavedState>,
    thread: JoinHandle<()>,
    /// The records that the thread got last.
    last_submitted: SavedState,
}

impl RecordWriter {
    /// Opens this instance's file of records in `directory`, and returns a writer and the saved records. If the file
    /// is not usable, there is no writer, and there are no records.
    pub fn open(
        directory: &Path,
        instance_names: &InstanceNames,
    ) -> (Option<RecordWriter>, SavedState) {
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
                tracing::warn!(%path, %error, "cannot open the file of path measurements: the box works without \
                                               this file, and loses its measurements when it ends");
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
        let save = move || {
            for records in to_save {
                if let Err(error) = store.save(&records) {
                    tracing::warn!(%error, "cannot save the path measurements: they are lost if the box ends now");
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
        })
    }

    /// Queues `records` for the thread if they changed. Does nothing if the disk is so slow that a set of
    /// records still waits: a later call queues newer records.
    pub fn submit(&mut self, records: SavedState) {
        if records != self.last_submitted && self.records.try_send(records.clone()).is_ok() {
            self.last_submitted = records;
        }
    }

    /// Saves `records`, and waits until they are written.
    pub fn finish(self, records: SavedState) {
        if records != self.last_submitted {
            // Sending fails only if the thread has ended. Nothing can be saved then.
            let _ = self.records.send(records);
        }
        drop(self.records);
        let _ = self.thread.join();
    }
}

/// Creates the directory if it is missing. Only its owner may look into it.
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
    use std::sync::{Arc, Mutex};

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
}
