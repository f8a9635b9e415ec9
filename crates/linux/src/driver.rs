//! The event loop, which runs core and engine on one thread with one epoll instance. It also reads the clock for
//! them.

use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use braid_engine::Stack;
use braid_proxy::app::{self, Core, Ctx};
use braid_wire::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::net::{Result, SystemError};
use crate::rate_limit::RateLimit;
use crate::sockets::{self, FOREIGN_TOKEN, Sockets};
use crate::tun::PacketIo;
use crate::tunnel::{TUNNEL_TOKENS, TunnelIo};

// The batches bound the work of one kind in a turn of the loop, so that other work does not wait long. Their
// sizes are guesses: large enough that the other steps of a turn cost little per packet or event.
/// Maximum number of packets or super-segments that are read from the device, or sent to it, in a turn of the
/// loop.
const PACKET_BATCH: usize = 64;
/// If one batch of reads finds at least this many bytes, the loop waits for [`GATHER_DELAY`] before the next
/// batch. Larger batches save processor time, since each batch costs some, and so does each acknowledgement at
/// both ends. Network adapters coalesce interrupts for the same reason. Each time this number of bytes was read,
/// the core also gets the engine's events, so that the core reads the data while the data is in the processor's
/// cache. The value is a choice.
const GATHER_AFTER_BYTES: u64 = 128 << 10;
/// Time during which packets gather. At 5 Gbit/s, [`GATHER_AFTER_BYTES`] arrive in this time. At lower rates
/// fewer bytes arrive, so the loop does not wait twice in a row.
const GATHER_DELAY: Duration = Duration::from_micros(200);
/// Pause before the loop watches a removed packet device again. It is a guess between the processor time of the
/// attempts and the delay after the device is back.
const REMOVED_DEVICE_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of events of one kind that the core gets at a time.
const EVENT_BATCH: usize = 256;
/// Maximum number of ready descriptors that are handled in a turn of the loop.
const READY_BATCH: usize = 256;

const STOP_TOKEN: u64 = FOREIGN_TOKEN;
const PACKETS_TOKEN: u64 = FOREIGN_TOKEN | 1;
/// The bits of every token of a [`Host`]. The low 32 bits are the number that the host gave to the descriptor. Tokens of
/// the tunnel do not have all of these bits.
const HOST_TOKENS: u64 = FOREIGN_TOKEN | 1 << 32;

/// A monotonic clock, which shows the time since its creation plus its start value.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    created_at_nanos: u64,
    start: Instant,
}

impl Clock {
    /// Returns a clock that shows zero now.
    #[expect(clippy::new_without_default, reason = "no two clocks are equal")]
    pub fn new() -> Clock {
        Clock::starting_at(Instant::ZERO)
    }

    /// Returns a clock that shows `start` now. With a `start` above zero, the clock can express the times of
    /// events from before its creation.
    pub fn starting_at(start: Instant) -> Clock {
        Clock {
            created_at_nanos: monotonic_nanos(),
            start,
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.start + Duration::from_nanos(monotonic_nanos() - self.created_at_nanos)
    }
}

fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Counters of the packet device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received. A super-segment, which the kernel merged from several, counts once.
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

/// The parts that the loop drives, for use by a [`Host`].
pub struct Context<'a, C> {
    /// The time.
    pub now: Instant,
    /// The core.
    pub core: &'a mut C,
    /// The engine.
    pub stack: &'a mut Stack,
    /// Kernel sockets.
    pub sockets: &'a mut Sockets,
    /// The sockets and the packet device of the tunnel.
    pub tunnel: &'a mut TunnelIo,
}

/// The machine around a core: its links, the wall clock, the control socket, … `()` is a host that does nothing.
pub trait Host<C> {
    /// Returns descriptors whose input the loop waits for. Each has a number, which [`Self::on_ready`] gets.
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        Vec::new()
    }

    /// Handles input at the descriptor with the number `source`. Descriptors are level-triggered: the call repeats
    /// until all input was read.
    fn on_ready(&mut self, source: u32, context: &mut Context<'_, C>) {
        let _ = (source, context);
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Handles the timers that are due.
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
/// An application that uses the engine without a proxy is a [`Core`] that ignores the downstream sockets.
#[derive(Debug)]
pub struct Driver<P, C, H> {
    clock: Clock,
    epoll: OwnedFd,
    /// The machine around the core. It is dropped before the device, for which it may have made rules.
    pub host: H,
    packets: P,
    /// The engine.
    pub stack: Stack,
    /// The core.
    pub core: C,
    /// Kernel sockets.
    pub sockets: Sockets,
    /// The sockets and the packet device of the tunnel.
    pub tunnel: TunnelIo,
    counters: Counters,
    /// True if the last batch of reads emptied the device and found at least [`GATHER_AFTER_BYTES`].
    should_gather: bool,
    /// The time at which the current run ends at the latest.
    end: Option<Instant>,
    tx_log: RateLimit,
    rx_log: RateLimit,
    /// Set after another program removed the packet device: the time at which the loop watches it again.
    unwatched_until: Option<Instant>,
}

impl<P: PacketIo, C: Core, H: Host<C>> Driver<P, C, H> {
    /// Returns a driver, which works while [`run`](Self::run) is called.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
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
        sockets::watch_input(&epoll, packets.fd(), PACKETS_TOKEN).map_err(cannot())?;
        for (fd, number) in host.sources() {
            sockets::watch_input(&epoll, fd, HOST_TOKENS | u64::from(number)).map_err(cannot())?;
        }
        let shared = || rustix::io::fcntl_dupfd_cloexec(&epoll, 0).map_err(cannot());
        Ok(Driver {
            clock,
            sockets: Sockets::new(shared()?, limits)?,
            tunnel: TunnelIo::new(shared()?),
            epoll,
            packets,
            stack,
            core,
            host,
            counters: Counters::default(),
            should_gather: false,
            end: None,
            tx_log: RateLimit::default(),
            rx_log: RateLimit::default(),
            unwatched_until: None,
        })
    }

    /// Runs until there is input at `stop`, or until `finished` returns true after a turn of the loop.
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
        sockets::watch_input(&self.epoll, stop, STOP_TOKEN)
            .map_err(SystemError::cannot("wait for events"))?;
        let outcome = self.run_until(end, finished);
        let _ = epoll::delete(&self.epoll, stop);
        outcome
    }

    /// Runs until `finished` returns true after a turn of the loop, and at most until `end`.
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
        // The kernel may delay a timer by the timer slack. The default slack of 50 µs is longer than the time
        // between two packets of a fast path, so the slack is set to 1 ns, the minimum.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut ready = Vec::with_capacity(READY_BATCH);
        let mut is_over = false;
        loop {
            let is_idle = self.run_turn();
            if is_over || finished(self) {
                return Ok(());
            }
            // Input that is waiting is read even if the end has passed, so that a caller with a series of short runs
            // does not starve the engine.
            is_over = end.is_some_and(|end| end <= self.clock.now());
            let should_gather = mem::take(&mut self.should_gather);
            if (self.tunnel.take_should_gather() || should_gather) && is_idle {
                let next = self.timeout().unwrap_or(GATHER_DELAY);
                thread::sleep(next.min(GATHER_DELAY));
            }
            let timeout = if is_idle {
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

    /// Handles timers, passes events to the core and sends the engine's packets. Returns whether nothing is left
    /// to do before the next input or timeout.
    fn run_turn(&mut self) -> bool {
        let now = self.clock.now();
        self.sockets.set_now(now);
        self.handle_timers(now);
        let mut is_idle = self.pass_engine_events(now);
        is_idle &= self.pass_downstream_events(now);
        // The core's reaction to events of the downstream sockets may have caused events of the engine.
        is_idle &= self.pass_engine_events(now);
        is_idle &= self.transmit(now);
        let clock = self.clock;
        is_idle &= self.tunnel.exchange(|| clock.now(), &mut self.core);
        // Sending may have caused further events, for example the end of a connection. One event is handled
        // here. The other events follow in the next turn, which starts at once, since the loop is not idle.
        if let Some(event) = self.stack.poll_event() {
            let (core, mut ctx) = self.core(now);
            core.on_engine_event(&mut ctx, event);
            is_idle = false;
        }
        let (host, mut context) = self.host(now);
        host.after_turn(&mut context);
        is_idle && !self.sockets.has_events()
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
            tunnel: &mut self.tunnel,
        };
        (&mut self.host, context)
    }

    /// Handles the timers of core, sockets and host that are due.
    fn handle_timers(&mut self, now: Instant) {
        if self.unwatched_until.take_if(|at| *at <= now).is_some() {
            let watched = sockets::watch_input(&self.epoll, self.packets.fd(), PACKETS_TOKEN);
            self.unwatched_until = watched.is_err().then(|| now + REMOVED_DEVICE_PAUSE);
        }
        let (core, mut ctx) = self.core(now);
        app::serve_timers(core, &mut ctx);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.sockets.next_timeout()) {
            self.sockets.handle_timeout(now);
        }
        if due(self.tunnel.next_timeout()) {
            self.tunnel.handle_timeout(now);
        }
        if due(self.host.next_timeout()) {
            let (host, mut context) = self.host(now);
            host.handle_timeout(&mut context);
        }
    }

    /// Passes a batch of the engine's events to the core, and returns whether none is left.
    fn pass_engine_events(&mut self, now: Instant) -> bool {
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.stack.poll_event() else {
                return true;
            };
            let (core, mut ctx) = self.core(now);
            core.on_engine_event(&mut ctx, event);
        }
        false
    }

    /// Passes a batch of the downstream sockets' events to the core, and returns whether none is left.
    fn pass_downstream_events(&mut self, now: Instant) -> bool {
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.sockets.next_event() else {
                return true;
            };
            let (core, mut ctx) = self.core(now);
            core.on_downstream_event(&mut ctx, event);
        }
        false
    }

    /// Sends a batch of the engine's packets, and returns whether none is left.
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
                // The engine treats the packet as lost on the link and retransmits it.
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

    /// Returns the time until the next timer; `None` if no timer is set.
    fn timeout(&self) -> Option<Duration> {
        let deadlines = [
            self.stack.next_timeout(),
            self.core.next_timeout(),
            self.sockets.next_timeout(),
            self.host.next_timeout(),
            self.tunnel.next_timeout(),
            self.unwatched_until,
            self.end,
        ];
        let next = deadlines.into_iter().flatten().min()?;
        if next == Instant::FAR_FUTURE {
            return None;
        }
        Some(next.saturating_since(self.clock.now()))
    }

    /// Handles ready descriptors. Returns false if the loop has to stop.
    fn dispatch(&mut self, ready: &[epoll::Event]) -> bool {
        let mut now = self.clock.now();
        self.sockets.set_now(now);
        for event in ready {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                STOP_TOKEN => return false,
                PACKETS_TOKEN => now = self.receive(now),
                token if token & HOST_TOKENS == HOST_TOKENS => {
                    let (host, mut context) = self.host(now);
                    host.on_ready((token & 0xffff_ffff) as u32, &mut context);
                }
                token if token & TUNNEL_TOKENS == TUNNEL_TOKENS => {
                    let clock = self.clock;
                    self.tunnel.on_ready(token, || clock.now(), &mut self.core);
                    now = self.clock.now();
                    self.sockets.set_now(now);
                }
                token => self.sockets.on_ready(token, flags),
            }
        }
        true
    }

    /// Reads a batch of packets. Returns the current time. The clock is read again whenever the core has handled
    /// events, since handling takes a while.
    fn receive(&mut self, mut now: Instant) -> Instant {
        let before = self.counters.rx_bytes;
        let mut reported_bytes = before;
        for _ in 0..PACKET_BATCH {
            match self.packets.recv() {
                Ok(Some((packet, meta))) => {
                    self.counters.rx_packets += 1;
                    self.counters.rx_bytes += packet.len() as u64;
                    self.stack.receive_from(now, packet, meta);
                    if self.counters.rx_bytes - reported_bytes >= GATHER_AFTER_BYTES {
                        reported_bytes = self.counters.rx_bytes;
                        self.pass_engine_events(now);
                        now = self.clock.now();
                        self.sockets.set_now(now);
                    }
                }
                Ok(None) => {
                    self.should_gather = self.counters.rx_bytes - before >= GATHER_AFTER_BYTES;
                    break;
                }
                // A removed device is always ready, and each read fails until the device is created again.
                Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => {
                    if let Some(suppressed) = self.rx_log.admit(now) {
                        tracing::warn!(suppressed, "another program removed the TUN device");
                    }
                    let _ = epoll::delete(&self.epoll, self.packets.fd());
                    self.unwatched_until = Some(now + REMOVED_DEVICE_PAUSE);
                    break;
                }
                Err(error) => {
                    self.counters.rx_errors += 1;
                    if let Some(suppressed) = self.rx_log.admit(now) {
                        tracing::warn!(%error, suppressed, "a packet from the TUN device could not be read and \
                                                            is lost");
                    }
                    // `InvalidData` means that only this packet is malformed, so the next packet may be read.
                    // After another error the next read would probably fail too.
                    if error.kind() != io::ErrorKind::InvalidData {
                        break;
                    }
                }
            }
        }
        now
    }
}

#[cfg(test)]
mod tests;
