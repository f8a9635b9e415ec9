//! Links of a running testbed: their changes and counters.

use std::time::{Duration, Instant};
use std::{fs, io};

use braid_links::{Change, Counters, LinkModel, Loss, Rate, Schedule, Settings};

use super::Testbed;
use crate::change::{LinkChange, ScheduledChange};
use crate::emulator::{Direction, Emulator, ScheduledSettings};
use crate::error::Error;
use crate::layout::{InterfaceLayout, namespace};
use crate::netns;
use crate::spec::LinkSpec;
use crate::status::{DeliveryLagStatus, DirectionStatus, HostStatus, LinkStatus, Status};

/// The present settings of a link, and its pending changes.
#[derive(Debug, Clone)]
pub(super) struct LinkState {
    /// The start of the link.
    start: Instant,
    /// For each direction its settings, and true if the direction is up. Both come from the file, and include all
    /// changes by the schedule and by `set`.
    directions: [(LinkModel, bool); 2],
    /// The pending changes of the schedule.
    schedule: Vec<ScheduledChange>,
}

impl LinkState {
    /// Returns the state as the file describes it.
    pub fn of(link: &LinkSpec) -> LinkState {
        LinkState {
            start: Instant::now(),
            directions: link.models().map(|model| (model, true)),
            schedule: link.changes.clone(),
        }
    }

    fn apply(&mut self, direction: Option<Direction>, change: &LinkChange) {
        for ((model, up), at) in self.directions.iter_mut().zip(Direction::BOTH) {
            if direction.is_none_or(|d| d == at) {
                *model = change.model.or(model);
                *up = change.up.unwrap_or(*up);
            }
        }
    }

    /// Applies the changes of the schedule that are due.
    fn apply_due_changes(&mut self) {
        let elapsed = self.start.elapsed();
        let due = self.schedule.partition_point(|entry| entry.at <= elapsed);
        for entry in self.schedule.drain(..due).collect::<Vec<_>>() {
            self.apply(entry.direction, &entry.change);
        }
    }

    /// Returns the settings for the emulator, forward and reverse, from now on.
    pub fn scheduled_settings(&self) -> [ScheduledSettings; 2] {
        let mut later = self.clone();
        let mut changes = [Vec::new(), Vec::new()];
        for entry in &self.schedule {
            later.apply(entry.direction, &entry.change);
            // A change of one direction may change the other: a queue whose length is given in BDP depends on the
            // delays of both directions.
            for (changes, settings) in changes.iter_mut().zip(later.settings()) {
                let at = entry.at;
                changes.push(Change { at, settings });
            }
        }
        let ([forward, reverse], [later_forward, later_reverse]) = (self.settings(), changes);
        [(forward, later_forward), (reverse, later_reverse)].map(|(settings, changes)| {
            let schedule = Schedule::new(changes);
            ScheduledSettings { settings, schedule }
        })
    }

    fn settings(&self) -> [Settings; 2] {
        let [(forward, forward_up), (reverse, reverse_up)] = &self.directions;
        [
            forward.settings(reverse, *forward_up),
            reverse.settings(forward, *reverse_up),
        ]
    }
}

impl Testbed {
    /// Changes a running link in one direction, or in both if `direction` is `None`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchLink`].
    pub fn set(
        &mut self,
        link: &str,
        direction: Option<Direction>,
        change: &LinkChange,
    ) -> Result<(), Error> {
        let index = self.link_index(link)?;
        let refused = |e| Error::system(format!("change {link}"), e);
        if change.restart {
            let spec = &self.spec.links[index];
            let seed = spec.seed.unwrap_or(self.spec.seed);
            let state = LinkState::of(spec);
            let settings = state.scheduled_settings();
            let restarted = self.emulator()?.restart(index, settings, seed);
            restarted.map_err(refused)?;
            self.link_states[index] = state;
        }
        let state = &mut self.link_states[index];
        state.apply_due_changes();
        state.apply(direction, change);
        let settings = state.scheduled_settings();
        let set = self.emulator()?.set(index, settings);
        set.map_err(refused)
    }

    /// Restarts all links for the next run of a measurement. `links` has the settings of each link, forward and
    /// reverse. They replace the settings of the file. `seed` is the seed of all random streams.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    ///
    /// # Panics
    ///
    /// If there are fewer links than settings.
    pub fn restart_links(
        &self,
        links: Vec<[ScheduledSettings; 2]>,
        seed: u64,
    ) -> Result<(), Error> {
        assert!(links.len() <= self.spec.links.len());
        let emulator = self.emulator()?;
        for (index, directions) in links.into_iter().enumerate() {
            let restarted = emulator.restart(index, directions, seed);
            restarted.map_err(|e| Error::system("restart the links", e))?;
        }
        // The emulator handles requests in order, so its answer to this request shows that the restarts are done.
        self.delivery_lag().map(drop)
    }

    /// Returns settings and counters of a link.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchLink`].
    pub fn link_status(&self, link: &str) -> Result<LinkStatus, Error> {
        let index = self.link_index(link)?;
        let (spec, emulator) = (&self.spec.links[index], self.emulator()?);
        let drops_at = |host| {
            let namespace = namespace(&self.spec.name, host);
            netns::run_inside(&namespace, || device_drops(link))
        };
        let ask = || {
            let drops = [drops_at(&spec.from)?, drops_at(&spec.to)?];
            let [forward, reverse] = emulator.stats(index)?;
            Ok(LinkStatus {
                name: spec.name.to_string(),
                from: spec.from.to_string(),
                to: spec.to.to_string(),
                forward: direction_status(forward, drops[0]),
                reverse: direction_status(reverse, drops[1]),
            })
        };
        ask().map_err(|e| Error::system(format!("ask about {link}"), e))
    }

    /// Returns the status of all hosts and links, for people (`Display`) and for machines (serde).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    pub fn status(&mut self) -> Result<Status, Error> {
        let links = self.spec.links.iter();
        let links: Result<_, _> = links.map(|l| self.link_status(&l.name)).collect();
        let (links, delivery_lag) = (links?, self.delivery_lag()?);
        let addresses =
            |i: &InterfaceLayout| i.addresses().map(|a| (i.name.clone(), a.with_prefix()));
        let hosts = self.layout.hosts.iter().map(|host| HostStatus {
            name: host.name.clone(),
            role: host.role.name().to_owned(),
            namespace: host.namespace.clone(),
            addresses: host.interfaces.iter().flat_map(addresses).collect(),
            process: self.processes.get_mut(&host.name).map(|p| p.status()),
        });
        Ok(Status {
            name: self.spec.name.to_string(),
            pid: std::process::id(),
            hosts: hosts.collect(),
            links,
            delivery_lag,
        })
    }

    /// Returns the emulator's delivery lag since the start or the last reset.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    pub fn delivery_lag(&self) -> Result<DeliveryLagStatus, Error> {
        let lag = self.emulator()?.delivery_lag();
        lag.map_err(|e| Error::system("ask for the emulator's lateness", e))
    }

    /// Resets the delivery lag, at the start of a measurement.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    pub fn reset_delivery_lag(&self) -> Result<(), Error> {
        let reset = self.emulator()?.reset_delivery_lag();
        reset.map_err(|e| Error::system("reset the emulator's lateness", e))
    }

    fn emulator(&self) -> Result<&Emulator, Error> {
        let emulator = self.emulator.as_ref();
        emulator.ok_or_else(|| Error::NotUp(self.spec.name.to_string()))
    }

    fn link_index(&self, name: &str) -> Result<usize, Error> {
        let names = || self.spec.links.iter().map(|link| link.name.to_string());
        let index = names().position(|known| known == name);
        index.ok_or_else(|| Error::NoSuchLink(name.to_owned(), names().collect()))
    }
}

/// Returns the status of a direction. `dropped_device` is the number of packets that its device dropped.
fn direction_status(
    (settings, counters): (Settings, Counters),
    dropped_device: u64,
) -> DirectionStatus {
    let milliseconds = |d: Duration| d.as_nanos() as f64 / 1e6;
    let percent = |p: f64| format!("{:.3}%", p * 100.0);
    DirectionStatus {
        up: settings.up,
        rate: settings.rate.mean().map(|rate| rate as u64),
        trace_ms: match &settings.rate {
            Rate::Trace(trace) => Some(milliseconds(trace.duration())),
            _ => None,
        },
        delay_ms: milliseconds(settings.delay),
        jitter_ms: milliseconds(settings.jitter),
        jitter_reorders: settings.jitter_reorders,
        queue: settings.queue.to_string(),
        codel: settings.codel.map(|codel| codel.to_string()),
        loss: settings.loss.mean(),
        bursts: match settings.loss {
            Loss::GilbertElliott(p) => {
                let parameters = [p.to_bad, p.to_good, p.loss_good, p.loss_bad];
                Some(parameters.map(percent).join("/"))
            }
            _ => None,
        },
        reorder: settings.reorder.share,
        duplicate: settings.duplicate,
        corrupt: settings.corrupt,
        packets_offered: counters.offered.packets,
        bytes_offered: counters.offered.bytes,
        packets_delivered: counters.delivered.packets,
        bytes_delivered: counters.delivered.bytes,
        packets_duplicated: counters.duplicated.packets,
        packets_corrupted: counters.corrupted.packets,
        packets_detoured: counters.detoured.packets,
        dropped_queue: counters.dropped_queue.packets,
        dropped_codel: counters.dropped_codel.packets,
        dropped_loss: counters.dropped_loss.packets,
        dropped_down: counters.dropped_down.packets,
        dropped_device,
        queue_bytes: counters.queue.bytes,
        queue_bytes_max: counters.queue_max.bytes,
    }
}

/// Returns the number of packets that `device`, in the thread's namespace, dropped before the emulator read them.
fn device_drops(device: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(parse_device_drops(&text, device).unwrap_or_default())
}

/// Finds the counter "drop" under "Transmit", the twelfth, in the text of `/proc/net/dev`.
fn parse_device_drops(text: &str, device: &str) -> Option<u64> {
    let counters = text
        .lines()
        .filter_map(|line| line.trim().split_once(':'))
        .find_map(|(name, counters)| (name == device).then_some(counters))?;
    counters.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_drops_of_a_device_are_found_in_its_line() {
        let text = "Inter-|   Receive                         |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets \
                    errs drop fifo colls carrier compressed\n    \
                    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n link1: 0 0 0 0 0 0 0 0 700 7 0 42 \
                    0 0 0 0\n";
        assert_eq!(super::parse_device_drops(text, "link1"), Some(42));
        assert_eq!(super::parse_device_drops(text, "link"), None);
    }
}
