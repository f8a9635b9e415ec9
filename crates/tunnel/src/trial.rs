//! Decides for each flow whether its losses are hidden from it (by re-requests) or shown.
//!
//! A lost packet can be sent once more while the receiver holds back what follows. A flow whose congestion control
//! takes loss for congestion (CUBIC) gains by it many times on a lossy link; a flow that measures rate and delay (BBR)
//! loses by it, because packets come later and in bursts. Nothing in a packet tells which one it is, so the sender
//! tries: it shows a flow its losses, and hides them again if the flow slows down.

use core::time::Duration;

use braid_wire::Instant;

/// Lost packets of a flow after which showing them is tried. A guess.
const LOSSES: u32 = 4;
/// The least time over which a rate is measured, and its least number of round trips. Guesses.
const MIN_WINDOW: Duration = Duration::from_millis(100);
const WINDOW_ROUNDS: u32 = 3;
/// Bytes in a window below which a flow is not tried: it sends what it has, whatever is lost. The value is a guess.
const MIN_BYTES: u64 = 64 * 1024;
/// The time after a trial that failed until the next one. Doubles with each one, up to the longest. Both are guesses.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    /// Lost packets are sent once more, and waited for.
    #[default]
    Hide,
    /// The flow sees its losses. The greatest rate since, in bytes per second.
    Show { reference: u64 },
}

/// The trial of one flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    mode: Mode,
    started: Instant,
    bytes: u64,
    losses: u32,
    pause: Duration,
    paused_until: Instant,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            mode: Mode::default(),
            started: Instant::ZERO,
            bytes: 0,
            losses: 0,
            pause: FIRST_PAUSE,
            paused_until: Instant::ZERO,
        }
    }
}

impl Trial {
    /// Returns true if the peer should ask for lost packets of the flow.
    pub fn hides_losses(&self) -> bool {
        self.mode == Mode::Hide
    }

    /// Notes that the peer asked for lost packets.
    pub fn on_losses(&mut self, count: u8) {
        self.losses = self.losses.saturating_add(count.into());
    }

    /// Notes that the flow sent a packet.
    pub fn on_sent(&mut self, now: Instant, bytes: usize, round_trip: Duration) {
        let window = (round_trip * WINDOW_ROUNDS).max(MIN_WINDOW);
        let passed = now.saturating_since(self.started);
        if passed >= window {
            // A window in which the flow paused is not measured. While losses are shown, a window with few bytes is:
            // the losses may have slowed the flow down.
            let is_large = self.bytes >= MIN_BYTES || self.mode != Mode::Hide;
            if passed < window * 2 && is_large {
                let micros = passed.as_micros().max(1) as u64;
                self.on_window(now, self.bytes * 1_000_000 / micros);
            }
            self.started = now;
            self.bytes = 0;
        }
        self.bytes += bytes as u64;
    }

    fn on_window(&mut self, now: Instant, rate: u64) {
        match self.mode {
            Mode::Hide => {
                if self.losses >= LOSSES && now >= self.paused_until {
                    self.mode = Mode::Show { reference: rate };
                }
            }
            // The rate of a flow varies, so only a loss of a quarter ends the trial. A guess.
            Mode::Show { reference } if rate < reference - reference / 4 => {
                self.mode = Mode::Hide;
                self.losses = 0;
                self.paused_until = now + self.pause;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
            Mode::Show { reference } => {
                // Links change, so an old rate counts less and less. The value is a guess.
                let reference = rate.max(reference - reference / 32);
                self.mode = Mode::Show { reference };
            }
        }
    }
}
