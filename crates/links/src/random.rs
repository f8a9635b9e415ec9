//! The random events of each packet.

use std::time::Duration;

use braid_wire::Rng;

use crate::queue::PacketDraw;
use crate::settings::{Loss, Reorder, Settings};

/// The state of random loss.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LossState {
    /// True while a link with [`Loss::GilbertElliott`] is in its bad state.
    bad: bool,
}

impl LossState {
    /// Returns whether the next packet is lost.
    pub fn loses_next(&mut self, loss: Loss, rng: &mut Rng) -> bool {
        match loss {
            Loss::None => false,
            Loss::Uniform(p) => rng.chance(p),
            Loss::GilbertElliott(p) => {
                // The state changes before the loss is drawn, as `GilbertElliott` defines.
                let changes = rng.chance(if self.bad { p.to_good } else { p.to_bad });
                self.bad ^= changes;
                rng.chance(if self.bad { p.loss_bad } else { p.loss_good })
            }
        }
    }
}

impl PacketDraw {
    /// Draws the events of a packet. Disabled features draw no random numbers, so that they do not change the
    /// numbers that other features get.
    pub fn draw(settings: &Settings, len: u32, rng: &mut Rng) -> PacketDraw {
        let jitter = draw_jitter(settings.jitter, rng);
        let detour = draw_detour(settings.reorder, rng);
        // Jitter that reorders is a detour of every packet, each of its own length.
        let (jitter, detour) = if settings.jitter_reorders {
            (Duration::ZERO, detour.saturating_add(jitter))
        } else {
            (jitter, detour)
        };
        PacketDraw {
            jitter,
            detour,
            flip: draw_flip(settings.corrupt, len, rng),
        }
    }
}

fn draw_jitter(jitter: Duration, rng: &mut Rng) -> Duration {
    if jitter.is_zero() {
        return Duration::ZERO;
    }
    // `below` excludes its bound, but the jitter may equal the setting.
    let max_nanos = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX - 1);
    Duration::from_nanos(rng.below(max_nanos + 1))
}

fn draw_detour(reorder: Reorder, rng: &mut Rng) -> Duration {
    if rng.chance(reorder.share) {
        reorder.detour
    } else {
        Duration::ZERO
    }
}

fn draw_flip(corrupt: f64, len: u32, rng: &mut Rng) -> Option<u32> {
    let corrupted = rng.chance(corrupt) && len > 0;
    corrupted.then(|| rng.below((u64::from(len) * 8).min(u32::MAX.into())) as u32)
}
