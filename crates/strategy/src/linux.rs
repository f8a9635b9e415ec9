//! The scheduler of the Linux kernel.

use braid_engine::SubflowId;
use braid_engine::strategy::{Decision, Payload, SendView, Strategy, SubflowView};
use braid_wire::Rng;

use crate::parts::again;
use crate::parts::usable::{progressing, usable};

/// Maximum number of bytes that go to a subflow in one burst. The kernel's `MPTCP_SEND_BURST_SIZE` is smaller by
/// the headers of a packet.
const MAX_BURST_BYTES: u64 = 64 << 10;

/// The default scheduler of Linux since 5.7 (`net/mptcp/protocol.c`).
///
/// The scheduler chooses the subflow that, by its pacing rate, will have sent its queued data earliest. The choice
/// holds for a burst of 64 kB. If the chosen subflow is full, the scheduler waits instead of sending on another
/// one.
///
/// The kernel passes a subflow more data than its window takes; here the excess waits in the connection's send
/// queue. Only data that was lost with a failed path is sent again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Linux {
    /// The subflow of the current burst, and the burst's end as an offset in the stream.
    burst: Option<(SubflowId, u64)>,
}

impl Strategy for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let decision = again::lost(view).or_else(|| self.new_data(view));
        decision.unwrap_or(Decision::WAIT)
    }
}

impl Linux {
    fn new_data(&mut self, view: &SendView<'_>) -> Option<Decision> {
        if !view.may_send_new {
            return None;
        }
        let (current, end) = self.burst.filter(|(_, end)| view.sent < *end).unzip();
        // A burst ends early if its subflow is full or has failed.
        let same = usable(view).find(|s| s.ready && Some(s.id) == current);
        let (subflow, end) = match same.zip(end) {
            Some(burst) => burst,
            None => {
                let next = progressing(view)
                    .min_by_key(|s| time_to_send(s))
                    .filter(|s| s.ready)?;
                (next, view.sent + MAX_BURST_BYTES)
            }
        };
        self.burst = Some((subflow.id, end));
        Some(Decision::Send {
            subflow: subflow.id,
            data: Payload::New,
            // At least a segment, because a decision for less would wait for more data.
            max_bytes: subflow.mss.max((end - view.sent) as u32),
        })
    }
}

/// Returns how long a subflow takes to send its queued data, in the kernel's unit of 2^-32 s: the kernel shifts
/// the bytes by 32 bits before it divides by bytes/s. A subflow with queued data but without a rate ranks last.
fn time_to_send(subflow: &SubflowView) -> u64 {
    match subflow.queued {
        0 => 0,
        queued => (queued.min(u64::from(u32::MAX)) << 32)
            .checked_div(subflow.pacing_rate)
            .unwrap_or(u64::MAX),
    }
}
