//! Conversion of measurements of paths and servers to and from the form kept across restarts.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::{PathRecord, Stack};
use braid_wire::Instant;

use super::Upstream;
use super::servers::Servers;
use crate::admin::records::{KeptMeasurement, KeptRecord, LONGEST, LONGEST_MEASURED};
use crate::config::{Select, ServerEntry};
use crate::select::selection::Quality;

/// Largest lead of a kept time over the clock, which may have been set back. Beyond it the age is unknown.
const AHEAD: Duration = Duration::from_secs(300);

impl Servers {
    /// Returns the age of a kept time; `None` where it is too far in the future.
    fn age(&self, now: Instant, unix_ms: u64) -> Option<Duration> {
        let now = Duration::from_millis(self.clock.unix_ms(now));
        let at = Duration::from_millis(unix_ms);
        (at <= now + AHEAD).then(|| now.saturating_sub(at))
    }
}

impl Upstream {
    /// Returns the engine's path records, for keeping.
    pub(crate) fn kept_records(&self, now: Instant, stack: &Stack) -> Vec<KeptRecord> {
        let kept = stack.records().filter_map(|(server, path, record)| {
            Some(KeptRecord {
                server,
                link: self.links.find(path)?.name.clone(),
                unix_ms: self.servers.clock.unix_ms(record.at),
                record: PathRecord {
                    at: Instant::ZERO,
                    ..record
                },
            })
            .filter(|_| now.saturating_since(record.at) <= LONGEST)
        });
        kept.collect()
    }

    /// Passes kept path records to the engine.
    pub(crate) fn load_records(&self, now: Instant, stack: &mut Stack, kept: &[KeptRecord]) {
        for kept in kept.iter().filter(|kept| kept.is_plausible()) {
            if let Some(link) = self.links.all.iter().find(|l| l.name == kept.link)
                && let Some(age) = self.servers.age(now, kept.unix_ms)
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

impl Upstream {
    /// Returns the measurements of servers, for keeping.
    pub(crate) fn kept_measurements(&self, now: Instant) -> Vec<KeptMeasurement> {
        let keep = |server, link, (at, quality): (Instant, Quality)| {
            let kept = KeptMeasurement {
                server: address(&self.servers.entries[server])?,
                link,
                unix_ms: self.servers.clock.unix_ms(at),
                quality,
            };
            Some(kept).filter(|_| now.saturating_since(at) <= LONGEST_MEASURED)
        };
        let links = self.links.all.iter().flat_map(|link| {
            let cells = link.cells.iter().enumerate();
            cells.filter_map(|(server, cell)| {
                let known = (cell.gauge.known_at()?, cell.quality());
                keep(server, Some(link.name.clone()), known)
            })
        });
        let egress = self.meter.egress.iter().enumerate();
        let egress = egress.filter_map(|(server, told)| keep(server, None, (*told)?));
        links.chain(egress).collect()
    }

    /// Restores kept measurements, which hold until the next one.
    pub(crate) fn load_measurements(&mut self, now: Instant, kept: &[KeptMeasurement]) {
        for kept in kept.iter().filter(|kept| kept.is_plausible()) {
            let age = self.servers.age(now, kept.unix_ms);
            let Some(age) = age.filter(|age| *age <= LONGEST_MEASURED) else {
                continue;
            };
            let same = |entry: &ServerEntry| {
                let addresses = [entry.endpoint_v4(), entry.endpoint_v6()];
                addresses.contains(&Some(kept.server))
            };
            let Some(server) = self.servers.entries.iter().position(same) else {
                continue;
            };
            let Some(name) = &kept.link else {
                self.meter.egress[server] = Some((now - age, kept.quality));
                continue;
            };
            if let Some(link) = self.links.all.iter_mut().find(|l| l.name == *name)
                && let Some(rate) = kept.quality.bandwidth
            {
                let cell = &mut link.cells[server];
                cell.gauge.restore(now - age, rate);
                let delay = kept.quality.delay_ms;
                cell.rtt = delay.map(|ms| Duration::from_secs_f64(ms / 1e3));
                // The kept measurements suffice for a choice.
                self.servers.choice.settled |= self.servers.choice.select != Select::Order;
            }
        }
    }
}

/// Returns the address that identifies a server across restarts.
fn address(entry: &ServerEntry) -> Option<SocketAddr> {
    entry.endpoint_v4().or(entry.endpoint_v6())
}
