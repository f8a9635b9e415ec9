//! What a box has learnt of paths, from and to the form in which it is kept.

use core::time::Duration;

use braid_engine::{PathRecord, Stack};
use braid_wire::Instant;

use super::BoxCore;
use crate::records::{KeptRecord, LONGEST};

impl BoxCore {
    /// What is known of the paths to servers and is to be kept; nothing that is too old.
    pub fn kept_records(&self, now: Instant, stack: &Stack) -> Vec<KeptRecord> {
        let now_ms = self.clock.unix_ms(now);
        let kept = stack.records().filter_map(|(server, path, record)| {
            let age = now.saturating_since(record.at);
            Some(KeptRecord {
                server,
                link: self.upstream.link_name(path)?.to_owned(),
                unix_ms: now_ms.saturating_sub(millis(age)),
                record: PathRecord {
                    at: Instant::ZERO,
                    ..record
                },
            })
            .filter(|_| age <= LONGEST)
        });
        kept.collect()
    }

    /// Remembers what was kept of the links there are, after they were added and the wall clock was
    /// set. What is too old or makes no sense is left out. Where `now` is less than
    /// [`LONGEST`] after the origin of time, some of it looks younger than it is.
    pub fn load_records(&self, now: Instant, stack: &mut Stack, kept: &[KeptRecord]) {
        let now_ms = self.clock.unix_ms(now);
        for kept in kept.iter().filter(|kept| kept.is_plausible()) {
            // From the future where the clock was set back.
            let age = Duration::from_millis(now_ms.saturating_sub(kept.unix_ms));
            if let Some(path) = self.upstream.link_path(&kept.link)
                && age <= LONGEST
            {
                let record = PathRecord {
                    at: now - age,
                    ..kept.record
                };
                stack.load_record(kept.server, path, record);
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
