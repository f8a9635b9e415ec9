//! The emulator's thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::Instant as WallClock;

use braid_links::{Counters, Link, Schedule, Settings};
use braid_linux::sys::become_realtime;
use braid_linux::tun::VNET_HDR_LEN;
use braid_wire::{Instant, Rng, ip};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};

use super::tun_end::{self, TunEnd};
use super::{EMULATOR_PRIORITY, ScheduledSettings, Task};
use crate::status::DeliveryLagStatus;

/// Maximum number of packets that are read from one device before the other devices get their turn. 64 is a guess:
/// enough to save system calls, and few enough not to delay other links.
const MAX_BATCH: usize = 64;

/// Maximum length of a packet with its `virtio_net_hdr`, bytes: devices have an MTU of at most 16 bits.
const MAX_READ_LEN: usize = VNET_HDR_LEN + u16::MAX as usize;

/// `epoll` data of the wake-up descriptor. The `epoll` data of a device is its index.
const WAKE: u64 = u64::MAX;

/// Maximum recorded delivery lag, ns: 10 s. A longer lag is recorded as this value.
const MAX_RECORDED_LAG_NS: u64 = 10_000_000_000;

/// One direction of a link.
struct Lane {
    /// The link. Its packets begin with their `virtio_net_hdr`.
    link: Link<Vec<u8>>,
    rng: Rng,
    /// The start of the lane, from which the schedule counts.
    origin: Instant,
    schedule: Schedule,
}

impl Lane {
    fn start(now: Instant, index: usize, scheduled: ScheduledSettings, seed: u64) -> Lane {
        let mut link = Link::starting_at(now, scheduled.settings);
        // The mark of a super-segment applies to all its segments.
        link.mark_by(|packet: &mut Vec<u8>| {
            ip::Packet::new(&mut packet[VNET_HDR_LEN..]).is_ok_and(|mut packet| packet.mark())
        });
        Lane {
            link,
            rng: Rng::for_component(seed, index as u64),
            origin: now,
            schedule: scheduled.schedule,
        }
    }

    /// Returns the time of the next delivery or change of settings.
    fn next_event(&self) -> Option<Instant> {
        let change = self.schedule.next_change().map(|at| self.origin + at);
        self.link.next_event().into_iter().chain(change).min()
    }

    /// Changes the settings and the schedule. The new settings already include the past changes of the new
    /// schedule, so these changes are skipped.
    fn set(&mut self, now: Instant, scheduled: ScheduledSettings) {
        self.apply_due_changes(now);
        self.link.set(now, scheduled.settings);
        self.schedule = scheduled.schedule;
        let elapsed = now.saturating_since(self.origin);
        while self.schedule.poll(elapsed).is_some() {}
    }

    /// Applies the changes of the schedule that are due, each at its exact time.
    fn apply_due_changes(&mut self, now: Instant) {
        while let Some(change) = self.schedule.poll(now.saturating_since(self.origin)) {
            self.link.set(self.origin + change.at, change.settings);
        }
    }
}

/// The state of the emulator's thread. Link `i` has device `2 i` at its `from` end, and device `2 i + 1` at its
/// `to` end. A lane is one direction of a link, and has the index of the device from which it reads.
pub(super) struct Engine {
    ends: Vec<TunEnd>,
    lanes: Vec<Lane>,
    epoll: OwnedFd,
    origin: WallClock,
    /// The buffer into which packets are read.
    buffer: Vec<u8>,
    delivery_lag: Histogram<u64>,
    /// True if the thread runs under SCHED_FIFO.
    realtime: bool,
    stopped: bool,
}

impl Engine {
    /// Starts the lanes on the calling thread. For each lane `plans` has the device from which the lane reads, the
    /// settings, and the seed of the link.
    pub fn start(plans: Vec<(TunEnd, ScheduledSettings, u64)>) -> io::Result<Engine> {
        let realtime = become_realtime(EMULATOR_PRIORITY);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut engine = Engine {
            ends: Vec::new(),
            lanes: Vec::new(),
            epoll,
            origin: WallClock::now(),
            buffer: vec![0; MAX_READ_LEN],
            // Two significant digits are enough for microseconds of lag.
            delivery_lag: Histogram::new_with_bounds(1, MAX_RECORDED_LAG_NS, 2)
                .map_err(io::Error::other)?,
            realtime,
            stopped: false,
        };
        for (index, (end, scheduled, seed)) in plans.into_iter().enumerate() {
            engine.watch(&end, index as u64)?;
            engine.ends.push(end);
            let lane = Lane::start(Instant::ZERO, index, scheduled, seed);
            engine.lanes.push(lane);
        }
        Ok(engine)
    }

    fn watch(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(data);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Carries packets, and runs the tasks that come while `wake` is ready, until one of them stops the engine.
    pub fn run(mut self, inbox: &Receiver<Task>, wake: &OwnedFd) -> io::Result<()> {
        self.watch(wake, WAKE)?;
        let mut events = Vec::with_capacity(64);
        while !self.stopped {
            events.clear();
            let timeout = self.until_next();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        // The eventfd is reset before the inbox is read, so that a task that comes between these
                        // two steps wakes the thread again.
                        let _ = rustix::io::read(wake, &mut [0u8; 8]);
                        inbox.try_iter().for_each(|task| task(&mut self));
                    }
                    index => self.read(index as usize),
                }
            }
            self.deliver();
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }

    /// Returns the time until the next event of any lane, as a timeout of `epoll`.
    fn until_next(&self) -> Option<Timespec> {
        let next = self.lanes.iter().filter_map(Lane::next_event).min()?;
        let wait = next.saturating_since(self.now());
        Some(Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    /// Reads the packets that wait at device `index`.
    fn read(&mut self, index: usize) {
        for _ in 0..MAX_BATCH {
            match self.ends[index].read(&mut self.buffer) {
                Ok(Some(len)) if len > VNET_HDR_LEN => {
                    let (now, lane) = (self.now(), &mut self.lanes[index]);
                    lane.apply_due_changes(now);
                    let packet = self.buffer[..len].to_vec();
                    let len = (len - VNET_HDR_LEN) as u32;
                    lane.link.enqueue(now, packet, len, &mut lane.rng);
                }
                // This is a header without a packet: nothing to carry.
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    // The device has vanished with its namespace. Without the removal, its descriptor would wake
                    // the thread for ever.
                    tracing::debug!(%error, "end {index} of an emulated link is gone");
                    let _ = epoll::delete(&self.epoll, &self.ends[index]);
                    return;
                }
            }
        }
    }

    /// Writes all packets that are due.
    fn deliver(&mut self) {
        for index in 0..self.lanes.len() {
            let mut now = self.now();
            self.lanes[index].apply_due_changes(now);
            while let Some(mut delivery) = self.lanes[index].link.poll_deliver(now) {
                if let Some(bit) = delivery.flip {
                    tun_end::corrupt(&mut delivery.packet, bit);
                }
                // The index of the link's other end differs in the lowest bit. A device that is down drops the
                // packet, as a real device would.
                self.ends[index ^ 1].write(&delivery.packet);
                now = self.now();
                let lag = now.saturating_since(delivery.at).as_nanos() as u64;
                self.delivery_lag
                    .saturating_record(lag.clamp(1, MAX_RECORDED_LAG_NS));
            }
        }
    }

    pub fn set(&mut self, link: usize, directions: [ScheduledSettings; 2]) {
        let now = self.now();
        for (index, scheduled) in (2 * link..).zip(directions) {
            self.lanes[index].set(now, scheduled);
        }
    }

    pub fn restart(&mut self, link: usize, directions: [ScheduledSettings; 2], seed: u64) {
        let now = self.now();
        for (index, scheduled) in (2 * link..).zip(directions) {
            self.lanes[index] = Lane::start(now, index, scheduled, seed);
        }
    }

    pub fn stats(&self, link: usize) -> [(Settings, Counters); 2] {
        let links = [2 * link, 2 * link + 1].map(|lane| &self.lanes[lane].link);
        links.map(|link| (link.settings().clone(), link.counters()))
    }

    pub fn delivery_lag(&self) -> DeliveryLagStatus {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |q| micros(self.delivery_lag.value_at_quantile(q));
        DeliveryLagStatus {
            samples: self.delivery_lag.len(),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: micros(self.delivery_lag.max()),
            realtime: self.realtime,
        }
    }

    pub fn reset_delivery_lag(&mut self) {
        self.delivery_lag.reset();
    }

    pub fn stop(&mut self) {
        self.stopped = true;
    }
}
