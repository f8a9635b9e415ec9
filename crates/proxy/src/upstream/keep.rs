//! What was learnt of paths and servers, from and to the form in which it is kept.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::{PathRecord, Stack};
use braid_wire::Instant;

use super::Upstream;
use crate::config::{Select, ServerEntry};
use crate::records::{KeptMeasurement, KeptRecord, LONGEST, LONGEST_MEASURED};
use crate::selection::Quality;

impl Upstream {
    /// What transfers told of paths.
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

    /// Hands the engine what was kept.
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

impl Upstream {
    /// What was measured of servers.
    pub(crate) fn kept_measurements(&self, now: Instant) -> Vec<KeptMeasurement> {
        let now_ms = self.clock.unix_ms(now);
        let keep = |server, link, (at, quality): (Instant, Quality)| {
            let age = now.saturating_since(at);
            let kept = KeptMeasurement {
                server: address(&self.servers[server])?,
                link,
                unix_ms: now_ms.saturating_sub(millis(age)),
                quality,
            };
            Some(kept).filter(|_| age <= LONGEST_MEASURED)
        };
        let links = self.links.iter().flat_map(|link| {
            let cells = link.cells.iter().enumerate();
            cells.filter_map(|(server, cell)| {
                let known = (cell.gauge.known_at?, cell.quality());
                keep(server, Some(link.name.clone()), known)
            })
        });
        let beyond = self.meter.beyond.iter().enumerate();
        let beyond = beyond.filter_map(|(server, told)| keep(server, None, (*told)?));
        links.chain(beyond).collect()
    }

    /// Takes what was kept for known, until it is measured again.
    pub(crate) fn load_measurements(&mut self, now: Instant, kept: &[KeptMeasurement]) {
        let now_ms = self.clock.unix_ms(now);
        for kept in kept.iter().filter(|kept| kept.is_plausible()) {
            let age = Duration::from_millis(now_ms.saturating_sub(kept.unix_ms));
            let same = |entry: &ServerEntry| {
                let addresses = [entry.endpoint_v4(), entry.endpoint_v6()];
                addresses.contains(&Some(kept.server))
            };
            let Some(server) = self.servers.iter().position(same) else {
                continue;
            };
            if age > LONGEST_MEASURED {
                continue;
            }
            let Some(name) = &kept.link else {
                self.meter.beyond[server] = Some((now - age, kept.quality));
                continue;
            };
            if let Some(link) = self.links.iter_mut().find(|l| l.name == *name)
                && let Some(rate) = kept.quality.bandwidth
            {
                let cell = &mut link.cells[server];
                cell.gauge.restore(now - age, rate);
                let delay = kept.quality.delay_ms;
                cell.rtt = delay.map(|ms| Duration::from_secs_f64(ms / 1e3));
                // There is something to choose by.
                self.choice.settled |= self.choice.select != Select::Order;
            }
        }
    }
}

/// By which a server is known again.
fn address(entry: &ServerEntry) -> Option<SocketAddr> {
    entry.endpoint_v4().or(entry.endpoint_v6())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
