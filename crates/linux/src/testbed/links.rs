//! Links of a running testbed: changing them, and what they carried.

use std::{fs, io};

use braid_links::{Counters, Settings};

use super::Testbed;
use super::build::{model, resolve};
use super::error::Error;
use super::layout::namespace;
use super::spec::{LinkModel, Spec};
use super::status::{DirectionStatus, HostStatus, LatenessStatus, LinkStatus, Status};
use super::units::{LinkChange, QueueSize};
use crate::emulator::{Direction, Emulator};
use crate::netns;

/// One direction of a link as it should be now.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkState {
    pub model: LinkModel,
    pub up: bool,
}

/// All links as the file has them.
pub(super) fn initial(spec: &Spec) -> Vec<[LinkState; 2]> {
    let of = |link| {
        Direction::BOTH.map(|d| LinkState {
            model: model(link, d),
            up: true,
        })
    };
    spec.links.iter().map(of).collect()
}

impl LinkState {
    fn apply(&mut self, change: &LinkChange) {
        let model = &mut self.model;
        model.rate = change.rate.or(model.rate);
        model.delay = change.delay.or(model.delay);
        model.jitter = change.jitter.or(model.jitter);
        model.loss = change.loss.or(model.loss);
        model.queue = change.queue.or(model.queue);
        self.up = change.up.unwrap_or(self.up);
    }
}

impl Testbed {
    pub(super) fn change_link(
        &mut self,
        link: &str,
        direction: Option<Direction>,
        change: &LinkChange,
    ) -> Result<(), Error> {
        let index = self.link_index(link)?;
        for (state, at) in self.models[index].iter_mut().zip(Direction::BOTH) {
            if direction.is_none_or(|d| d == at) {
                state.apply(change);
            }
        }
        // Both, since a queue in BDP depends on the delay of the way back.
        let [forward, reverse] = self.models[index];
        let settings = [
            resolve(&forward.model, &reverse.model, forward.up),
            resolve(&reverse.model, &forward.model, reverse.up),
        ];
        let emulator = self.emulator()?;
        for (direction, settings) in Direction::BOTH.into_iter().zip(settings) {
            let set = emulator.set(index, direction, settings);
            set.map_err(|e| Error::system(format!("change {link}"), e))?;
        }
        Ok(())
    }

    pub(super) fn link_status(&self, link: &str) -> Result<LinkStatus, Error> {
        let index = self.link_index(link)?;
        let (spec, emulator) = (&self.spec.links[index], self.emulator()?);
        let direction = |direction, state: &LinkState| {
            let asked = || {
                let sender = match direction {
                    Direction::Forward => &spec.from,
                    Direction::Reverse => &spec.to,
                };
                let sender = namespace(&self.spec.name, sender);
                let drops = netns::run_inside(&sender, || device_drops(link))?;
                Ok((emulator.stats(index, direction)?, drops))
            };
            let (stats, drops) =
                asked().map_err(|e| Error::system(format!("ask about {link}"), e))?;
            Ok::<_, Error>(DirectionStatus {
                dropped_device: drops,
                ..direction_status(state, stats)
            })
        };
        let [forward, reverse] = &self.models[index];
        Ok(LinkStatus {
            name: spec.name.to_string(),
            from: spec.from.to_string(),
            to: spec.to.to_string(),
            forward: direction(Direction::Forward, forward)?,
            reverse: direction(Direction::Reverse, reverse)?,
        })
    }

    pub(super) fn collect_status(&mut self) -> Result<Status, Error> {
        let links: Result<Vec<_>, _> = self
            .spec
            .links
            .iter()
            .map(|l| self.link_status(&l.name))
            .collect();
        let hosts = self
            .layout
            .hosts
            .iter()
            .map(|host| HostStatus {
                name: host.name.clone(),
                role: host.role.name().to_owned(),
                namespace: host.namespace.clone(),
                addresses: host
                    .interfaces
                    .iter()
                    .flat_map(|i| {
                        [
                            (
                                i.name.clone(),
                                format!("{}/{}", i.address4, i.subnet4.prefix),
                            ),
                            (
                                i.name.clone(),
                                format!("{}/{}", i.address6, i.subnet6.prefix),
                            ),
                        ]
                    })
                    .collect(),
                process: self.processes.get_mut(&host.name).map(|p| p.status()),
            })
            .collect();
        let lateness = self.lateness()?;
        Ok(Status {
            name: self.spec.name.to_string(),
            pid: std::process::id(),
            hosts,
            links: links?,
            lateness,
        })
    }

    /// How late the emulator delivered since the start or the last reset.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    pub fn lateness(&self) -> Result<LatenessStatus, Error> {
        let emulator = self.emulator()?;
        let late = emulator
            .lateness()
            .map_err(|e| Error::system("ask for the emulator's lateness", e))?;
        let micros = |d: std::time::Duration| d.as_nanos() as f64 / 1e3;
        Ok(LatenessStatus {
            samples: late.samples,
            p50_us: micros(late.p50),
            p99_us: micros(late.p99),
            max_us: micros(late.max),
            realtime: emulator.realtime(),
        })
    }

    /// Forgets past lateness: a measurement begins.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the emulator has ended.
    pub fn reset_lateness(&self) -> Result<(), Error> {
        let reset = self.emulator()?.reset_lateness();
        reset.map_err(|e| Error::system("reset the emulator's lateness", e))
    }

    fn emulator(&self) -> Result<&Emulator, Error> {
        self.emulator
            .as_ref()
            .ok_or_else(|| Error::NotUp(self.spec.name.to_string()))
    }

    fn link_index(&self, name: &str) -> Result<usize, Error> {
        self.spec
            .links
            .iter()
            .position(|l| *l.name == *name)
            .ok_or_else(|| {
                let known = self.spec.links.iter().map(|l| l.name.to_string()).collect();
                Error::NoSuchLink(name.to_owned(), known)
            })
    }
}

fn direction_status(
    state: &LinkState,
    (settings, counters): (Settings, Counters),
) -> DirectionStatus {
    let milliseconds = |d: std::time::Duration| d.as_nanos() as f64 / 1e6;
    DirectionStatus {
        up: settings.up,
        rate: state.model.rate.and_then(|r| r.0),
        delay_ms: milliseconds(settings.delay),
        jitter_ms: milliseconds(settings.jitter),
        queue: match settings.queue {
            braid_links::QueueLimit::Packets(n) => QueueSize::Packets(n).to_string(),
            braid_links::QueueLimit::Bytes(n) => QueueSize::Bytes(n).to_string(),
        },
        loss: state.model.loss.map_or(0.0, |l| l.0),
        packets_offered: counters.offered.packets,
        bytes_offered: counters.offered.bytes,
        packets_delivered: counters.delivered.packets,
        bytes_delivered: counters.delivered.bytes,
        dropped_queue: counters.dropped_queue.packets,
        dropped_loss: counters.dropped_loss.packets,
        dropped_down: counters.dropped_down.packets,
        dropped_device: 0,
        queue_bytes: counters.queue.bytes,
        queue_bytes_max: counters.queue_max.bytes,
    }
}

/// Packets the device of this namespace dropped on their way out.
fn device_drops(device: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(parse_device_drops(&text, device).unwrap_or_default())
}

/// Finds the twelfth counter, "drop" under "Transmit", in the text of `/proc/net/dev`.
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
