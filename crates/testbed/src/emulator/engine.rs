//! The emulator's thread.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant as WallClock};

use braid_links::{Link, Schedule};
use braid_linux::tun::VNET_HDR_LEN;
use braid_wire::{Instant, Rng, ip};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};

use super::tun_end::{self, TunEnd};
use super::{DeliveryLag, Direction, LinkPlan, Request, ScheduledSettings};

/// Maximum number of packets that are read from one device before the other devices get their turn. 64 is a guess:
/// enough to save system calls, and few enough not to delay other links.
const MAX_BATCH: usize = 64;

/// `epoll` data of the wake-up descriptor. The `epoll` data of a device is its index.
const WAKE: u64 = u64::MAX;

/// Maximum number of empty buffers that are kept for reuse. 4096 is a guess that bounds memory.
const MAX_POOLED_BUFFERS: usize = 4096;

/// Maximum recorded delivery lag, ns: 10 s. A longer lag is recorded as this value.
const MAX_RECORDED_LAG_NS: u64 = 10_000_000_000;

/// The devices and settings of the emulator until its thread runs. Link `i` has device `2 i` at its `from` end,
/// and device `2 i + 1` at its `to` end. A lane is one direction of a link, and has the index of the device from
/// which it reads.
#[derive(Default)]
pub(super) struct Engine {
    ends: Vec<TunEnd>,
    /// The settings of each lane, and the seed of its link.
    lane_settings: Vec<(ScheduledSettings, u64)>,
    buffer_len: usize,
}

impl Engine {
    /// Adds the link of `plan` between its devices.
    pub fn add_link(&mut self, plan: &LinkPlan, from: TunEnd, to: TunEnd) {
        self.ends.extend([from, to]);
        let lane_settings = [&plan.forward, &plan.reverse];
        self.lane_settings
            .extend(lane_settings.map(|scheduled| (scheduled.clone(), plan.seed)));
        self.buffer_len = self.buffer_len.max(VNET_HDR_LEN + usize::from(plan.mtu));
    }

    /// Carries packets until a request to stop comes.
    pub fn run(self, inbox: &Receiver<Request>, wake: &OwnedFd) -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )?;
        for (index, end) in self.ends.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, end, data, epoll::EventFlags::IN)?;
        }
        let lanes = (self.lane_settings.into_iter().enumerate())
            .map(|(index, (scheduled, seed))| Lane::start(Instant::ZERO, index, scheduled, seed));
        // Two significant digits are enough for microseconds of lag.
        let histogram = Histogram::new_with_bounds(1, MAX_RECORDED_LAG_NS, 2);
        Running {
            lanes: lanes.collect(),
            ends: self.ends,
            epoll,
            origin: WallClock::now(),
            pool: Pool {
                buffers: RefCell::default(),
                buffer_len: self.buffer_len,
            }
            .into(),
            delivery_lag: histogram.map_err(io::Error::other)?,
        }
        .run(inbox, wake)
    }
}

/// One direction of a link.
struct Lane {
    link: Link<Packet>,
    rng: Rng,
    /// The start of the lane, from which the schedule counts.
    origin: Instant,
    schedule: Schedule,
}

impl Lane {
    fn start(now: Instant, index: usize, scheduled: ScheduledSettings, seed: u64) -> Lane {
        let mut link = Link::starting_at(now, scheduled.settings);
        link.mark_by(Packet::mark);
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
        while self
            .schedule
            .poll(now.saturating_since(self.origin))
            .is_some()
        {}
    }

    /// Applies the changes of the schedule that are due, each at its exact time.
    fn apply_due_changes(&mut self, now: Instant) {
        while let Some(change) = self.schedule.poll(now.saturating_since(self.origin)) {
            self.link.set(self.origin + change.at, change.settings);
        }
    }
}

/// The state of the emulator's thread.
struct Running {
    ends: Vec<TunEnd>,
    lanes: Vec<Lane>,
    epoll: OwnedFd,
    origin: WallClock,
    pool: Rc<Pool>,
    delivery_lag: Histogram<u64>,
}

impl Running {
    fn run(mut self, inbox: &Receiver<Request>, wake: &OwnedFd) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.until_next();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        // The eventfd is reset before the inbox is read, so that a request that comes between
                        // these two steps wakes the thread again.
                        let _ = rustix::io::read(wake, &mut [0u8; 8]);
                        if !self.answer_requests(inbox) {
                            return Ok(());
                        }
                    }
                    index => self.read(index as usize),
                }
            }
            self.deliver();
        }
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
            let mut packet = Pool::packet(&self.pool);
            match self.ends[index].read(&mut packet.buffer) {
                Ok(Some(len)) if len > VNET_HDR_LEN => {
                    packet.len = len;
                    let now = self.now();
                    let lane = &mut self.lanes[index];
                    lane.apply_due_changes(now);
                    lane.link
                        .enqueue(now, packet, (len - VNET_HDR_LEN) as u32, &mut lane.rng);
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
                let bytes = &mut delivery.packet.buffer[..delivery.packet.len];
                if let Some(bit) = delivery.flip {
                    tun_end::corrupt(bytes, bit);
                }
                // The index of the link's other end differs in the lowest bit. A device that is down drops the
                // packet, as a real device would.
                self.ends[index ^ 1].write(bytes);
                now = self.now();
                let lag = now.saturating_since(delivery.at).as_nanos() as u64;
                self.delivery_lag
                    .saturating_record(lag.clamp(1, MAX_RECORDED_LAG_NS));
            }
        }
    }

    /// Handles requests; returns false for a request to stop.
    fn answer_requests(&mut self, inbox: &Receiver<Request>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(Request::Set(link, direction, scheduled)) => {
                    let now = self.now();
                    self.lanes[lane(link, direction)].set(now, *scheduled);
                }
                Ok(Request::Restart(link, lane_settings, seed)) => {
                    let now = self.now();
                    for (direction, scheduled) in Direction::BOTH.into_iter().zip(*lane_settings) {
                        let index = lane(link, direction);
                        self.lanes[index] = Lane::start(now, index, scheduled, seed);
                    }
                }
                Ok(Request::Stats(link, direction, reply)) => {
                    let link = &self.lanes[lane(link, direction)].link;
                    let _ = reply.send((link.settings().clone(), link.counters()));
                }
                Ok(Request::DeliveryLag(reply)) => {
                    let _ = reply.send(self.summarise());
                }
                Ok(Request::ResetDeliveryLag) => self.delivery_lag.reset(),
                Err(TryRecvError::Empty) => return true,
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn summarise(&self) -> DeliveryLag {
        let quantile = |q| Duration::from_nanos(self.delivery_lag.value_at_quantile(q));
        DeliveryLag {
            samples: self.delivery_lag.len(),
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: Duration::from_nanos(self.delivery_lag.max()),
        }
    }
}

fn lane(link: usize, direction: Direction) -> usize {
    2 * link + usize::from(direction == Direction::Reverse)
}

/// A packet behind its `virtio_net_hdr`. Dropping the packet returns its buffer to the pool.
struct Packet {
    buffer: Vec<u8>,
    len: usize,
    pool: Rc<Pool>,
}

impl Packet {
    /// Marks congestion if the packet is ECN-capable (RFC 3168). Returns whether the packet is ECN-capable. The
    /// mark of a super-segment applies to all its segments.
    fn mark(&mut self) -> bool {
        let packet = &mut self.buffer[VNET_HDR_LEN..self.len];
        ip::Packet::new(packet).is_ok_and(|mut packet| packet.mark())
    }
}

/// A pool of buffers, so that packets need no allocation.
struct Pool {
    buffers: RefCell<Vec<Vec<u8>>>,
    buffer_len: usize,
}

impl Pool {
    fn packet(pool: &Rc<Pool>) -> Packet {
        let buffer = pool.buffers.borrow_mut().pop();
        let buffer = buffer.unwrap_or_else(|| vec![0; pool.buffer_len]);
        Packet {
            buffer,
            len: 0,
            pool: Rc::clone(pool),
        }
    }
}

/// Copies the packet into another buffer of the pool, for a link that duplicates packets.
impl Clone for Packet {
    fn clone(&self) -> Self {
        let mut copy = Pool::packet(&self.pool);
        copy.len = self.len;
        copy.buffer[..self.len].copy_from_slice(&self.buffer[..self.len]);
        copy
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        let mut buffers = self.pool.buffers.borrow_mut();
        if buffers.len() < MAX_POOLED_BUFFERS {
            buffers.push(std::mem::take(&mut self.buffer));
        }
    }
}
