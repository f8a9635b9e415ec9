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
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use braid_links::{Counters, Schedule, Settings};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::netns;
use crate::status::DeliveryLagStatus;
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
    /// Name of the TUN device at both ends; at most 15 bytes (`IFNAMSIZ` without the terminating zero).
    pub name: String,
    /// Namespace of the `from` end.
    pub from: String,
    /// Namespace of the `to` end.
    pub to: String,
    /// Settings of the direction from `from` to `to`, and of the direction from `to` to `from`.
    pub directions: [ScheduledSettings; 2],
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
        let schedule = Schedule::default();
        ScheduledSettings { settings, schedule }
    }
}

/// A task for the emulator's thread.
type Task = Box<dyn FnOnce(&mut Engine) + Send>;

/// A running emulator of links between network namespaces. Dropping it stops the links and removes their devices.
pub struct Emulator {
    tasks: Sender<Task>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Makes the devices in existing namespaces and starts the links. The other methods identify links by their
    /// index in `links`. The caller gives the devices their addresses and brings them up. Each direction has a
    /// random stream of its own from the link's seed: direction `d` (0 forward, 1 reverse) of link `n` has
    /// [`Rng::for_component`](braid_wire::Rng::for_component) of component `2 n + d`. The simulator does the same,
    /// so the i-th packet of a direction has the same fate in both.
    ///
    /// # Errors
    ///
    /// Fails if a namespace cannot be entered, or a device or the thread cannot be made.
    pub fn start(links: Vec<LinkPlan>) -> io::Result<Emulator> {
        let mut lanes = Vec::new();
        for plan in links {
            for (sender, scheduled) in [&plan.from, &plan.to].into_iter().zip(plan.directions) {
                let end = netns::run_inside(sender, || TunEnd::open(&plan.name))?;
                lanes.push((end, scheduled, plan.seed));
            }
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (tasks, inbox) = mpsc::channel();
        let woken = Arc::clone(&wake);
        let thread = std::thread::Builder::new()
            .name("braid-emulator".to_owned())
            .spawn(move || {
                let carried = Engine::start(lanes).and_then(|engine| engine.run(&inbox, &woken));
                if let Err(error) = carried {
                    tracing::error!(%error, "the link emulator stopped");
                }
            })?;
        Ok(Emulator {
            tasks,
            wake,
            thread: Some(thread),
        })
    }

    /// Changes a link from now on, forward and reverse. The new schedules replace the old ones. The times of the
    /// new schedules count from the start of the link; changes in the past are skipped. An index without a link
    /// ends the emulator's thread.
    ///
    /// # Errors
    ///
    /// Fails if the emulator's thread has ended.
    pub fn set(&self, link: usize, directions: [ScheduledSettings; 2]) -> io::Result<()> {
        self.tell(move |engine| engine.set(link, directions))
    }

    /// Restarts both directions of a link: packets in the link are dropped and not counted, counters return to
    /// zero, and traces, schedules and random streams start again. An index without a link ends the emulator's
    /// thread.
    ///
    /// # Errors
    ///
    /// Fails if the emulator's thread has ended.
    pub fn restart(
        &self,
        link: usize,
        directions: [ScheduledSettings; 2],
        seed: u64,
    ) -> io::Result<()> {
        self.tell(move |engine| engine.restart(link, directions, seed))
    }

    /// Returns settings and counters of a link, forward and reverse. An index without a link ends the emulator's
    /// thread.
    ///
    /// # Errors
    ///
    /// Fails if the emulator's thread has ended, also because of this index.
    pub fn stats(&self, link: usize) -> io::Result<[(Settings, Counters); 2]> {
        self.ask(move |engine| engine.stats(link))
    }

    /// Returns the delivery lag since the start or the last reset.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    pub fn delivery_lag(&self) -> io::Result<DeliveryLagStatus> {
        self.ask(|engine| engine.delivery_lag())
    }

    /// Resets the delivery lag, at the start of a measurement.
    ///
    /// # Errors
    ///
    /// The emulator's thread has ended.
    pub fn reset_delivery_lag(&self) -> io::Result<()> {
        self.tell(Engine::reset_delivery_lag)
    }

    /// Runs `question` on the emulator's thread, and returns its result.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (reply, answer) = mpsc::channel();
        self.tell(move |engine| {
            let _ = reply.send(question(engine));
        })?;
        answer.recv().map_err(|_| ended())
    }

    /// Makes the emulator's thread run `task`, after all earlier tasks.
    fn tell(&self, task: impl FnOnce(&mut Engine) + Send + 'static) -> io::Result<()> {
        self.tasks.send(Box::new(task)).map_err(|_| ended())?;
        // The thread waits in epoll for packets, and a channel has no descriptor that epoll could watch.
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.tell(Engine::stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the emulator's thread has ended")
}
