//! What was learnt of paths, from and to the form in which it is kept.

use core::time::Duration;

use braid_engine::{PathRecord, Stack};
use braid_wire::Instant;

use super::Upstream;
use crate::records::{KeptRecord, LONGEST};

impl Upstream {
    /// As [`BoxCore::kept_records`](crate::BoxCore::kept_records).
    pub(crate) fn kept_records(&self, now: Instant, stack: &Stack) -> Vec<KeptRecord> {
        let now_ms = self.clock.unix_ms(now);
        let kept = stack.records().filter_map(|(server, path, record)| {
            let age = now.saturating_since(record.at);
            Some(KeptRecord {
                server,
                link: self.links.iter().find(|l| l.path == path)?.name.clone(),
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

    /// As [`BoxCore::load_records`](crate::BoxCore::load_records).
    pub(crate) fn load_records(&self, now: Instant, stack: &mut Stack, kept: &[KeptRecord]) {
        let now_ms = self.clock.unix_ms(now);
        for kept in kept.iter().filter(|kept| kept.is_plausible()) {
            // From the future where the clock was set back.
            let age = Duration::from_millis(now_ms.saturating_sub(kept.unix_ms));
            if let Some(link) = self.links.iter().find(|l| l.name == kept.link)
                && age <= LONGEST
            {
                let record = PathRecord {
                    at: now - age,
                    ..kept.record
                };
                stack.load_record(kept.server, link.path, record);
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
