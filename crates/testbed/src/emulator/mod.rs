//! The link emulator: the models of `braid_links` between network namespaces, in wall-clock time.
//!
//! Each end of a link is a TUN device in its host's namespace. The emulator reads the packets that the host sends
//! into the device and hands them to the model. It writes each packet to the TUN device at the other end at the
//! time that the model computes. One thread does all this, under SCHED_FIFO if the system permits. The thread
//! records how late it delivers packets: the delivery lag. The model computes with the intended times, so the lag
//! falsifies delays, but not rates.

mod engine;
mod tun_end;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use braid_links::{Counters, Schedule, Settings};
use braid_linux::sys::become_realtime;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::netns;
use engine::Engine;
use tun_end::TunEnd;

/// Priority of the link emulator under SCHED_FIFO: above all ordinary processes, below the kernel's own threads
/// (priority 50).
pub const EMULATOR_PRIORITY: i32 = 10;

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the link's `from` end to its `to` end.
    Forward,
    /// From the link's `to` end to its `from` end.
    Reverse,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Direction; 2] = [Direction::Forward, Direction::Reverse];
}

/// A link to emulate.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    /// Name of the TUN device at both ends; at most 15 bytes.
    pub name: String,
    /// Namespace of the `from` end.
    pub from: String,
    /// Namespace of the `to` end.
    pub to: String,
    /// Maximum length of an IP packet, bytes. The caller has to set the devices' MTU to this value.
    pub mtu: u16,
    /// Settings of the direction from `from` to `to`.
    pub forward: ScheduledSettings,
    /// Settings of the direction from `to` to `from`.
    pub reverse: ScheduledSettings,
    /// Seed of this link's random streams.
    pub seed: u64,
}

/// The settings of one direction of a link, over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduledSettings {
    /// Settings at the start.
    pub settings: Settings,
    /// Changes after the start of the link.
    pub schedule: Schedule,
}

impl From<Settings> for ScheduledSettings {
    fn from(settings: Settings) -> Self {
        ScheduledSettings {
            settings,
            schedule: Schedule::default(),
        }
    }
}

/// Delays of packets beyond the delivery times of the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryLag {
    /// Packets counted.
    pub samples: u64,
    /// Median.
    pub p50: Duration,
    /// 99th percentile. A measurement is invalid if this exceeds 1 ms, because the lag falsifies the measured
    /// delays.
    pub p99: Duration,
    /// Largest.
    pub max: Duration,
}

/// A running emulator of links between network namespaces. Dropping it stops the links and removes their devices.
pub struct Emulator {
    names: Vec<String>,
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// True if the thread runs under SCHED_FIFO.
    realtime: bool,
}

/// A request to the emulator's thread. The number in a request is the index of a link.
enum Request {
    Set(usize, Direction, Box<ScheduledSettings>),
    Restart(usize, Box<[ScheduledSettings; 2]>, u64),
    Stats(usize, Direction, Sender<(Settings, Counters)>),
    DeliveryLag(Sender<DeliveryLag>),
    ResetDeliveryLag,
    Stop,
}

impl Emulator {
    /// Makes the devices in existing namespaces and starts the links. The caller gives the devices their addresses
    /// and brings them up. Each direction has a random stream of its own from the link's seed: direction `d` (0
    /// forward, 1 reverse) of link `n` has [`Rng::for_component`](braid_wire::Rng::for_component) of component `2
    /// n + d`. The simulator does the same, so the i-th packet of a direction has the same fate in both.
    ///
    /// # Errors
    ///
    /// Fails if a namespace cannot be entered, or a device or the thread cannot be made.
    pub fn start(links: &[LinkPlan]) -> io::Result<Emulator> {
        let mut engine = Engine::default();
        for plan in links {
            let from = netns::run_inside(&plan.from, || TunEnd::open(&plan.name))?;
            let to = netns::run_inside(&plan.to, || TunEnd::open(&plan.name))?;
            engine.add_link(plan, from, to);
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let thread = {
            let wake = Arc::clone(&wake);
            std::thread::Builder::new()
                .name("braid-emulator".to_owned())
                .spawn(move || run(engine, &inbox, &wake, &ready))?
        };
        let realtime = started.recv().map_err(|_| ended())?;
        let names = links.iter().map(|l| l.name.clone()).collect();
        Ok(Emulator {
            names,
            requests,
            wake,
            thread: Some(thread),
            realtime,
        })
    }

    /// Returns whether the emulator's thread runs under SCHED_FIFO.
    pub fn realtime(&self) -> bool {
        self.realtime
    }

    /// Returns the index of the link named `name`. The other methods identify links by their index.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Changes one direction of a link from now on. The new schedule replaces the old one. The times of the new
    /// schedule count from the start of the link; changes in the past are skipped.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    ///
    /// # Panics
    ///
    /// If there is no link of this index.
    pub fn set(
        &self,
        link: usize,
        direction: Direction,
        scheduled: ScheduledSettings,
    ) -> io::Result<()> {
        assert!(link < self.names.len(), "link index out of range");
        self.request(Request::Set(link, direction, Box::new(scheduled)))
    }

    /// Restarts both directions of a link: packets in the link are dropped and not counted, counters return to
    /// zero, and traces, schedules and random streams start again.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    ///
    /// # Panics
    ///
    /// If there is no link of this index.
    pub fn restart(
        &self,
        link: usize,
        scheduled_settings: [ScheduledSettings; 2],
        seed: u64,
    ) -> io::Result<()> {
        assert!(link < self.names.len(), "link index out of range");
        self.request(Request::Restart(link, Box::new(scheduled_settings), seed))
    }

    /// Returns settings and counters of a link in one direction.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    ///
    /// # Panics
    ///
    /// If there is no link of this index.
    pub fn stats(&self, link: usize, direction: Direction) -> io::Result<(Settings, Counters)> {
        assert!(link < self.names.len(), "link index out of range");
        self.ask(|reply| Request::Stats(link, direction, reply))
    }

    /// Returns the delivery lag since the start or the last reset.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    pub fn delivery_lag(&self) -> io::Result<DeliveryLag> {
        self.ask(Request::DeliveryLag)
    }

    /// Resets the delivery lag, at the start of a measurement.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    pub fn reset_delivery_lag(&self) -> io::Result<()> {
        self.request(Request::ResetDeliveryLag)
    }

    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = mpsc::channel();
        self.request(request(reply))?;
        answer.recv().map_err(|_| ended())
    }

    fn request(&self, request: Request) -> io::Result<()> {
        self.requests.send(request).map_err(|_| ended())?;
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.request(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the emulator's thread has ended")
}

fn run(engine: Engine, inbox: &Receiver<Request>, wake: &OwnedFd, ready: &Sender<bool>) {
    let realtime = become_realtime(EMULATOR_PRIORITY);
    let _ = ready.send(realtime);
    if let Err(error) = engine.run(inbox, wake) {
        tracing::error!(%error, "the link emulator stopped");
    }
}
