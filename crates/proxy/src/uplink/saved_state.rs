//! Conversion of path records and measurements to and from the form that is saved across restarts.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::{PathRecord, Stack};
use braid_wire::Instant;

use super::Upstream;
use super::servers::Servers;
use crate::admin::records::{MAX_MEASUREMENT_AGE, MAX_RECORD_AGE, SavedMeasurement, SavedRecord};
use crate::config::{Select, ServerEntry};
use crate::select::selection::Quality;

/// The maximum time by which a saved time may be ahead of the clock, because the clock was set back. With a larger
/// lead the age is unknown. The value is a guess.
const MAX_CLOCK_LEAD: Duration = Duration::from_secs(300);

impl Servers {
    /// Returns the age of a saved time; `None` if it is too far in the future.
    fn age(&self, now: Instant, unix_ms: u64) -> Option<Duration> {
        let now = Duration::from_millis(self.clock.unix_ms(now));
        let at = Duration::from_millis(unix_ms);
        (at <= now + MAX_CLOCK_LEAD).then(|| now.saturating_sub(at))
    }
}

impl Upstream {
    /// Returns the engine's path records in their saved form, without outdated ones.
    pub(crate) fn saved_records(&self, now: Instant, stack: &Stack) -> Vec<SavedRecord> {
        let saved = stack.records().filter_map(|(server, path, record)| {
            Some(SavedRecord {
                server,
                link: self.links.find(path)?.name.clone(),
                unix_ms: self.servers.clock.unix_ms(record.at),
                // The process's clock means nothing after a restart; `unix_ms` has the time.
                record: PathRecord {
                    at: Instant::ZERO,
                    ..record
                },
            })
            .filter(|_| now.saturating_since(record.at) <= MAX_RECORD_AGE)
        });
        saved.collect()
    }

    /// Passes saved path records to the engine.
    pub(crate) fn restore_records(&self, now: Instant, stack: &mut Stack, saved: &[SavedRecord]) {
        for saved in saved.iter().filter(|saved| saved.is_plausible()) {
            if let Some(link) = self.links.all.iter().find(|l| l.name == saved.link)
                && let Some(age) = self.servers.age(now, saved.unix_ms)
                && age <= MAX_RECORD_AGE
            {
                let record = PathRecord {
                    at: now - age,
                    ..saved.record
                };
                stack.load_record(saved.server, link.path, record);
            }
        }
    }
}

impl Upstream {
    /// Returns the measurements of servers in their saved form, without outdated ones.
    pub(crate) fn saved_measurements(&self, now: Instant) -> Vec<SavedMeasurement> {
        let keep = |server, link, (at, quality): (Instant, Quality)| {
            let saved = SavedMeasurement {
                server: address(&self.servers.entries[server])?,
                link,
                unix_ms: self.servers.clock.unix_ms(at),
                quality,
            };
            Some(saved).filter(|_| now.saturating_since(at) <= MAX_MEASUREMENT_AGE)
        };
        let links = self.links.all.iter().flat_map(|link| {
            let health = link.health.iter().enumerate();
            health.filter_map(|(server, health)| {
                let result = (health.gauge.known_at()?, health.quality());
                keep(server, Some(link.name.clone()), result)
            })
        });
        // Destinations of users are not saved.
        let egress = self.meter.egress.over_all.iter().enumerate();
        let egress = egress.filter_map(|(server, report)| keep(server, None, (*report)?));
        links.chain(egress).collect()
    }

    /// Restores saved measurements, each of which is valid until the next measurement.
    pub(crate) fn restore_measurements(&mut self, now: Instant, saved: &[SavedMeasurement]) {
        for saved in saved.iter().filter(|saved| saved.is_plausible()) {
            let age = self.servers.age(now, saved.unix_ms);
            let Some(age) = age.filter(|age| *age <= MAX_MEASUREMENT_AGE) else {
                continue;
            };
            let same = |entry: &ServerEntry| {
                let addresses = [entry.endpoint_v4(), entry.endpoint_v6()];
                addresses.contains(&Some(saved.server))
            };
            let Some(server) = self.servers.entries.iter().position(same) else {
                continue;
            };
            let Some(name) = &saved.link else {
                self.meter.egress.over_all[server] = Some((now - age, saved.quality));
                continue;
            };
            if let Some(link) = self.links.all.iter_mut().find(|l| l.name == *name)
                && let Some(rate) = saved.quality.bandwidth
            {
                let health = &mut link.health[server];
                health.gauge.restore(now - age, rate);
                let delay = saved.quality.delay_ms;
                health.rtt = delay.map(|ms| Duration::from_secs_f64(ms / 1e3));
                // Saved measurements suffice for a choice, so the first measurements need not be awaited.
                self.servers.choice.settled |= self.servers.choice.select != Select::Order;
            }
        }
    }
}

/// Returns the address that identifies a server across restarts.
fn address(entry: &ServerEntry) -> Option<SocketAddr> {
    entry.endpoint_v4().or(entry.endpoint_v6())
}
