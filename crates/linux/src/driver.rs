//! The event loop: one thread, one epoll instance, the only clock.

use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use braid_engine::Stack;
use braid_proxy::app::{self, Core, Ctx};
use braid_wire::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::net::{Result, SystemError};
use crate::sockets::{self, FOREIGN_TOKEN, Sockets};
use crate::tun::PacketIo;

/// Packets or super-segments taken from, and handed to, the device before other work gets its turn.
const PACKET_BATCH: usize = 64;
/// If one look at the device finds so many bytes, the next look waits for [`GATHER_DELAY`], as network
/// adapters coalesce interrupts: each look costs processor time, and so does each acknowledgement at both
/// ends. After so many bytes, the core is told of them, while the processor's cache still holds the memory.
const GATHER_AFTER_BYTES: u64 = 128 << 10;
/// Time to let packets gather. With [`GATHER_AFTER_BYTES`] it takes a rate of 5 Gb/s to keep the loop gathering.
const GATHER_DELAY: Duration = Duration::from_micros(200);
/// Events given to the core before other work gets its turn.
const EVENT_BATCH: usize = 256;
/// Descriptors looked at before other work gets its turn.
const READY_BATCH: usize = 256;

const STOP: u64 = FOREIGN_TOKEN;
const PACKETS: u64 = FOREIGN_TOKEN | 1;
/// Base of the tokens of a [`Host`], which are this and the number that the host chose.
const HOST: u64 = FOREIGN_TOKEN | 1 << 32;

/// The monotonic clock, counted from its creation.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    made: u64,
    start: Instant,
}

impl Clock {
    /// Returns a clock that shows zero now.
    #[expect(clippy::new_without_default, reason = "no two clocks are equal")]
    pub fn new() -> Clock {
        Clock::starting_at(Instant::ZERO)
    }

    /// Returns a clock that shows `start` now. A `start` above zero leaves room for times of earlier events.
    pub fn starting_at(start: Instant) -> Clock {
        Clock {
            made: monotonic_nanos(),
            start,
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.start + Duration::from_nanos(monotonic_nanos() - self.made)
    }
}

fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lets one message a second through, and counts the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct RateLimit {
    next: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// Returns the number of messages suppressed since the last one if a message may be written now.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.suppressed += 1;
            return None;
        }
        self.next = Some(now + Duration::from_secs(1));
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Counters of the packet device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received; a merged one counts once.
    pub rx_packets: u64,
    /// Bytes received, headers included.
    pub rx_bytes: u64,
    /// Packets that could not be read.
    pub rx_errors: u64,
    /// Packets sent; a super-segment counts once.
    pub tx_packets: u64,
    /// Bytes sent, headers included.
    pub tx_bytes: u64,
    /// Packets that the device refused.
    pub tx_errors: u64,
}

/// Everything that the loop drives, for use by a [`Host`].
pub struct Context<'a, C> {
    /// The time.
    pub now: Instant,
    /// The core.
    pub core: &'a mut C,
    /// The engine.
    pub stack: &'a mut Stack,
    /// Kernel sockets.
    pub sockets: &'a mut Sockets,
}

/// The surroundings of a core on this machine: links that come and go, the wall clock, …
///
/// `()` is a host that does nothing.
pub trait Host<C> {
    /// Returns descriptors to wait on for input, each with a number that comes back with [`Self::on_ready`].
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        Vec::new()
    }

    /// Handles input at a source. Sources are level-triggered.
    fn on_ready(&mut self, source: u32, context: &mut Context<'_, C>) {
        let _ = (source, context);
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Serves expired timers.
    fn handle_timeout(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }

    /// Runs after each turn of the loop, when core and engine have nothing left to do.
    fn after_turn(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }
}

impl<C> Host<C> for () {}

/// Runs a core and an engine on a packet device and kernel sockets.
///
/// An application that uses the engine without a proxy is a [`Core`] too, which ignores the downstream
/// sockets.
#[derive(Debug)]
pub struct Driver<P, C, H> {
    clock: Clock,
    epoll: OwnedFd,
    packets: P,
    /// The engine.
    pub stack: Stack,
    /// The core.
    pub core: C,
    /// The surroundings of the core.
    pub host: H,
    /// Kernel sockets.
    pub sockets: Sockets,
    counters: Counters,
    /// The last look at the device found at least [`GATHER_AFTER_BYTES`], and took them all.
    gathers: bool,
    /// The latest end of the run that is under way.
    end: Option<Instant>,
    tx_log: RateLimit,
    rx_log: RateLimit,
}

impl<P: PacketIo, C: Core, H: Host<C>> Driver<P, C, H> {
    /// Returns a driver that is ready to [`run`](Self::run).
    ///
    /// # Errors
    /// Fails if descriptors run out.
    pub fn new(
        clock: Clock,
        packets: P,
        stack: Stack,
        core: C,
        host: H,
        limits: sockets::Limits,
    ) -> Result<Self> {
        let cannot = || SystemError::cannot("set up the event loop");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot())?;
        watch(&epoll, packets.fd(), PACKETS).map_err(cannot())?;
        for (fd, number) in host.sources() {
            watch(&epoll, fd, HOST | u64::from(number)).map_err(cannot())?;
        }
        let shared = rustix::io::fcntl_dupfd_cloexec(&epoll, 0).map_err(cannot())?;
        Ok(Driver {
            clock,
            sockets: Sockets::new(shared, limits)?,
            epoll,
            packets,
            stack,
            core,
            host,
            counters: Counters::default(),
            gathers: false,
            end: None,
            tx_log: RateLimit::default(),
            rx_log: RateLimit::default(),
        })
    }

    /// Runs until there is input at `stop`, or until `finished` returns true after a turn.
    ///
    /// # Errors
    /// Fails if waiting fails, which is a bug of this program.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        self.run_for(stop, None, finished)
    }

    /// Runs as [`run`](Self::run) does, until `end` at the latest.
    ///
    /// # Errors
    /// Fails if waiting fails, which is a bug of this program.
    pub fn run_for(
        &mut self,
        stop: BorrowedFd<'_>,
        end: Option<Instant>,
        finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        watch(&self.epoll, stop, STOP).map_err(SystemError::cannot("wait for events"))?;
        let outcome = self.run_until(end, finished);
        let _ = epoll::delete(&self.epoll, stop);
        outcome
    }

    /// Runs until `finished` returns true after a turn, or until `end` if that comes first.
    ///
    /// # Errors
    /// Fails if waiting fails, which is a bug of this program.
    pub fn run_until(
        &mut self,
        end: Option<Instant>,
        mut finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        let cannot = || SystemError::cannot("wait for events");
        self.end = end;
        // The kernel's default of 50 µs is longer than the time between two packets of a fast path.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut ready = Vec::with_capacity(READY_BATCH);
        loop {
            let idle = self.run_turn();
            let over = end.is_some_and(|end| end <= self.clock.now());
            if over || finished(self) {
                return Ok(());
            }
            if mem::take(&mut self.gathers) && idle {
                let next = self.timeout().unwrap_or(GATHER_DELAY);
                thread::sleep(next.min(GATHER_DELAY));
            }
            let timeout = if idle {
                self.timeout()
            } else {
                Some(Duration::ZERO)
            };
            let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
            ready.clear();
            let room = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(cannot()(error)),
            }
            if !self.dispatch(&ready) {
                return Ok(());
            }
        }
    }

    /// Returns the counters of the packet device.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Serves timers, gives the core its events and sends the engine's packets. Returns whether nothing is
    /// left to do before the next input or timeout.
    fn run_turn(&mut self) -> bool {
        let now = self.clock.now();
        self.sockets.set_now(now);
        self.expire(now);
        let mut idle = self.tell_engine_events(now);
        idle &= self.tell_downstream_events(now);
        // The core's reaction to local events may have caused events of the engine.
        idle &= self.tell_engine_events(now);
        idle &= self.transmit(now);
        // The last packets may have ended a connection. The rest follows in the next turn.
        if let Some(event) = self.stack.poll_event() {
            let (core, mut ctx) = self.core(now);
            core.on_engine_event(&mut ctx, event);
            idle = false;
        }
        let (host, mut context) = self.host(now);
        host.after_turn(&mut context);
        idle && !self.sockets.has_events()
    }

    /// Returns the core and its context.
    pub fn core(&mut self, now: Instant) -> (&mut C, Ctx<'_>) {
        let ctx = Ctx {
            now,
            stack: &mut self.stack,
            downstream: &mut self.sockets,
        };
        (&mut self.core, ctx)
    }

    /// Returns the host and its context.
    fn host(&mut self, now: Instant) -> (&mut H, Context<'_, C>) {
        let context = Context {
            now,
            core: &mut self.core,
            stack: &mut self.stack,
            sockets: &mut self.sockets,
        };
        (&mut self.host, context)
    }

    fn expire(&mut self, now: Instant) {
        let (core, mut ctx) = self.core(now);
        app::serve_timers(core, &mut ctx);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.sockets.next_timeout()) {
            self.sockets.handle_timeout(now);
        }
        if due(self.host.next_timeout()) {
            let (host, mut context) = self.host(now);
            host.handle_timeout(&mut context);
        }
    }

    fn tell_engine_events(&mut self, now: Instant) -> bool {
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.stack.poll_event() else {
                return true;
            };
            let (core, mut ctx) = self.core(now);
            core.on_engine_event(&mut ctx, event);
        }
        false
    }

    fn tell_downstream_events(&mut self, now: Instant) -> bool {
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.sockets.next_event() else {
                return true;
            };
            let (core, mut ctx) = self.core(now);
            core.on_downstream_event(&mut ctx, event);
        }
        false
    }

    fn transmit(&mut self, now: Instant) -> bool {
        for _ in 0..PACKET_BATCH {
            let Some(transmit) = self.stack.poll_transmit(now) else {
                return true;
            };
            match self.packets.send(&transmit) {
                Ok(()) => {
                    let payload: usize = transmit.payload.iter().map(|p| p.len()).sum();
                    self.counters.tx_packets += 1;
                    self.counters.tx_bytes += (transmit.header.len() + payload) as u64;
                }
                // The packet is lost, as on any link: the engine retransmits it.
                Err(error) => {
                    self.counters.tx_errors += 1;
                    if let Some(suppressed) = self.tx_log.admit(now) {
                        tracing::warn!(%error, suppressed, "the system did not send a packet of the engine, \
                                                            which retransmits it");
                    }
                }
            }
        }
        false
    }

    fn timeout(&self) -> Option<Duration> {
        let deadlines = [
            self.stack.next_timeout(),
            self.core.next_timeout(),
            self.sockets.next_timeout(),
            self.host.next_timeout(),
            self.end,
        ];
        let next = deadlines.into_iter().flatten().min()?;
        if next == Instant::FAR_FUTURE {
            return None;
        }
        Some(next.saturating_since(self.clock.now()))
    }

    /// Handles ready descriptors; returns false if the loop is to stop.
    fn dispatch(&mut self, ready: &[epoll::Event]) -> bool {
        let mut now = self.clock.now();
        self.sockets.set_now(now);
        for event in ready {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                STOP => return false,
                PACKETS => now = self.receive(now),
                token if token & HOST == HOST => {
                    let (host, mut context) = self.host(now);
                    host.on_ready((token & 0xffff_ffff) as u32, &mut context);
                }
                token => self.sockets.on_ready(token, flags),
            }
        }
        true
    }

    /// Reads packets. Returns the time, which advances whenever the core is told of events.
    fn receive(&mut self, mut now: Instant) -> Instant {
        let before = self.counters.rx_bytes;
        let mut told = before;
        for _ in 0..PACKET_BATCH {
            match self.packets.recv() {
                Ok(Some((packet, meta))) => {
                    self.counters.rx_packets += 1;
                    self.counters.rx_bytes += packet.len() as u64;
                    self.stack.receive_from(now, packet, meta);
                    if self.counters.rx_bytes - told >= GATHER_AFTER_BYTES {
                        told = self.counters.rx_bytes;
                        self.tell_engine_events(now);
                        now = self.clock.now();
                        self.sockets.set_now(now);
                    }
                }
                Ok(None) => {
                    self.gathers = self.counters.rx_bytes - before >= GATHER_AFTER_BYTES;
                    break;
                }
                Err(error) => {
                    self.counters.rx_errors += 1;
                    if let Some(suppressed) = self.rx_log.admit(now) {
                        tracing::warn!(%error, suppressed, "a packet from the TUN device could not be read and \
                                                            is lost");
                    }
                    // `InvalidData` is one bad packet; after any other error the device may give nothing.
                    if error.kind() != io::ErrorKind::InvalidData {
                        break;
                    }
                }
            }
        }
        now
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, token: u64) -> std::result::Result<(), Errno> {
    epoll::add(
        epoll,
        fd,
        epoll::EventData::new_u64(token),
        epoll::EventFlags::IN,
    )
}

#[cfg(test)]
mod tests;
