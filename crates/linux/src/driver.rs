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

/// Packets or super-segments taken from, and handed to, the device before other work gets its
/// turn.
const PACKET_BATCH: usize = 64;
/// Where so many bytes of packets were there at once, more are let gather, as network adapters hold back
/// interrupts: each look at the device costs, and so does each acknowledgement, for both ends. So many are
/// told of at once too: what they were read into is used again while the processor's cache has it.
const MANY_BYTES: u64 = 128 << 10;
/// For so long, so that it goes on only where paths bring 5 Gb/s and more.
const GATHERING_TIME: Duration = Duration::from_micros(200);
/// Events given to the core before other work gets its turn.
const EVENT_BATCH: usize = 256;
/// Descriptors looked at before other work gets its turn.
const READY_BATCH: usize = 256;

const STOP: u64 = FOREIGN_TOKEN;
const PACKETS: u64 = FOREIGN_TOKEN | 1;
/// Tokens of a [`Host`] are this and what it chose.
const HOST: u64 = FOREIGN_TOKEN | 1 << 32;

/// The monotonic clock, counted from its making.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    made: u64,
    start: Instant,
}

impl Clock {
    /// A clock that shows zero now.
    #[expect(clippy::new_without_default, reason = "no two clocks are equal")]
    pub fn new() -> Clock {
        Clock::showing(Instant::ZERO)
    }

    /// A clock that shows `start` now: later than zero, it has a time for what happened before.
    pub fn showing(start: Instant) -> Clock {
        Clock {
            made: monotonic_nanos(),
            start,
        }
    }

    /// The time.
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
    /// `Some` with the number of messages suppressed since the last one if one may be written.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.suppressed += 1;
            return None;
        }
        self.next = Some(now + Duration::from_secs(1));
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// What went through the device.
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

/// What a [`Host`] may use: everything the loop drives.
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

/// What surrounds a core on this machine: links that come and go, the wall clock, …
///
/// `()` is one that does nothing.
pub trait Host<C> {
    /// Descriptors to wait on for input, and a number for each that comes back with
    /// [`Self::on_ready`].
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        Vec::new()
    }

    /// There is input at a source; level-triggered.
    fn on_ready(&mut self, source: u32, context: &mut Context<'_, C>) {
        let _ = (source, context);
    }

    /// When [`Self::handle_timeout`] is due, if ever.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Serves expired timers.
    fn handle_timeout(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }

    /// Called after each turn of the loop, when core and engine have nothing left to do.
    fn after_turn(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }
}

impl<C> Host<C> for () {}

/// Runs a core and an engine on a packet device and kernel sockets.
///
/// An application that uses the engine without a proxy is a [`Core`] too, one that leaves its
/// local side alone.
#[derive(Debug)]
pub struct Driver<P, C, H> {
    clock: Clock,
    epoll: OwnedFd,
    packets: P,
    /// The engine.
    pub stack: Stack,
    /// The core.
    pub core: C,
    /// What surrounds the core.
    pub host: H,
    /// Kernel sockets.
    pub sockets: Sockets,
    counters: Counters,
    /// The last look at the device took all there was, and that was much.
    gathers: bool,
    /// When the run that is under way ends at the latest.
    end: Option<Instant>,
    tx_log: RateLimit,
    rx_log: RateLimit,
}

impl<P: PacketIo, C: Core, H: Host<C>> Driver<P, C, H> {
    /// A driver that is ready to [`run`](Self::run).
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub fn new(
        clock: Clock,
        packets: P,
        stack: Stack,
        core: C,
        host: H,
        limits: sockets::Limits,
    ) -> Result<Self> {
        let doing = || SystemError::doing("set up the event loop");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(doing())?;
        watch(&epoll, packets.fd(), PACKETS).map_err(doing())?;
        for (fd, number) in host.sources() {
            watch(&epoll, fd, HOST | u64::from(number)).map_err(doing())?;
        }
        let shared = rustix::io::fcntl_dupfd_cloexec(&epoll, 0).map_err(doing())?;
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

    /// Runs until there is input at `stop`, or `finished` says so after a turn.
    ///
    /// # Errors
    /// Where waiting fails, which is this program's mistake.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        self.run_for(stop, None, finished)
    }

    /// As [`run`](Self::run), until `end` at the latest, if there is one.
    ///
    /// # Errors
    /// Where waiting fails, which is this program's mistake.
    pub fn run_for(
        &mut self,
        stop: BorrowedFd<'_>,
        end: Option<Instant>,
        finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        watch(&self.epoll, stop, STOP).map_err(SystemError::doing("wait for events"))?;
        let outcome = self.run_until(end, finished);
        let _ = epoll::delete(&self.epoll, stop);
        outcome
    }

    /// Runs until `finished` says so after a turn, or until `end` if that comes first.
    ///
    /// # Errors
    /// Where waiting fails, which is this program's mistake.
    pub fn run_until(
        &mut self,
        end: Option<Instant>,
        mut finished: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        let doing = || SystemError::doing("wait for events");
        self.end = end;
        // The default of 50 us is more than the time between two packets of a fast path.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut ready = Vec::with_capacity(READY_BATCH);
        loop {
            let idle = self.settle();
            let over = end.is_some_and(|end| end <= self.clock.now());
            if over || finished(self) {
                return Ok(());
            }
            if mem::take(&mut self.gathers) && idle {
                let next = self.timeout().unwrap_or(GATHERING_TIME);
                thread::sleep(next.min(GATHERING_TIME));
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
                Err(error) => return Err(doing()(error)),
            }
            if !self.dispatch(&ready) {
                return Ok(());
            }
        }
    }

    /// What went through the device.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Serves timers, gives the core its events and sends what the engine has. Returns whether
    /// nothing is left to do before the next input or timeout.
    fn settle(&mut self) -> bool {
        let now = self.clock.now();
        self.sockets.set_now(now);
        self.expire(now);
        let mut idle = self.tell_engine_events(now);
        idle &= self.tell_local_events(now);
        // What the core did with the local events may have made events of the engine.
        idle &= self.tell_engine_events(now);
        idle &= self.transmit(now);
        // A connection may end by what was sent last. What follows from that is the next turn's.
        if let Some(event) = self.stack.poll_event() {
            let (core, mut ctx) = self.core(now);
            core.on_engine_event(&mut ctx, event);
            idle = false;
        }
        let (host, mut context) = self.host(now);
        host.after_turn(&mut context);
        idle && !self.sockets.has_events()
    }

    /// The core, and what it works with.
    pub fn core(&mut self, now: Instant) -> (&mut C, Ctx<'_>) {
        let ctx = Ctx {
            now,
            stack: &mut self.stack,
            local: &mut self.sockets,
        };
        (&mut self.core, ctx)
    }

    /// The host, and what it may use.
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

    fn tell_local_events(&mut self, now: Instant) -> bool {
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.sockets.next_event() else {
                return true;
            };
            let (core, mut ctx) = self.core(now);
            core.on_local_event(&mut ctx, event);
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
                // Lost, as on any link: the engine sends it again.
                Err(error) => {
                    self.counters.tx_errors += 1;
                    if let Some(suppressed) = self.tx_log.admit(now) {
                        tracing::warn!(%error, suppressed, "packet not sent");
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

    /// Takes in what is ready; false where the loop is to stop.
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

    /// Takes in packets, and returns the time, which goes on where the core is told of them.
    fn receive(&mut self, mut now: Instant) -> Instant {
        let before = self.counters.rx_bytes;
        let mut told = before;
        for _ in 0..PACKET_BATCH {
            match self.packets.recv() {
                Ok(Some((packet, meta))) => {
                    self.counters.rx_packets += 1;
                    self.counters.rx_bytes += packet.len() as u64;
                    self.stack.receive_from(now, packet, meta);
                    if self.counters.rx_bytes - told >= MANY_BYTES {
                        told = self.counters.rx_bytes;
                        self.tell_engine_events(now);
                        now = self.clock.now();
                        self.sockets.set_now(now);
                    }
                }
                Ok(None) => {
                    self.gathers = self.counters.rx_bytes - before >= MANY_BYTES;
                    break;
                }
                Err(error) => {
                    self.counters.rx_errors += 1;
                    if let Some(suppressed) = self.rx_log.admit(now) {
                        tracing::warn!(%error, suppressed, "packet not read");
                    }
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
