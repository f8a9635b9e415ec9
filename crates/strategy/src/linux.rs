//! The scheduler of the Linux kernel.

use braid_engine::SubflowId;
use braid_engine::strategy::{Decision, Payload, SendView, Strategy, SubflowView};
use braid_wire::Rng;

use crate::parts::again;
use crate::parts::usable::{progressing, usable};

/// Most bytes that stay on a subflow once it is chosen: `MPTCP_SEND_BURST_SIZE` of the kernel, but for
/// headers.
const MAX_BURST_BYTES: u64 = 64 << 10;

/// The default scheduler of Linux since 5.7 (`net/mptcp/protocol.c`).
///
/// It takes the subflow that would be the first to have sent what it holds, by its pacing rate. Where
/// that subflow is full nothing goes elsewhere, and bursts of 64 kB stay together as far as the window
/// goes. The kernel lets a subflow hold more than its window; here the rest waits in the connection's
/// send queue. Only data that is lost with its path is sent again.
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
        let (under_way, end) = self.burst.filter(|(_, end)| view.sent < *end).unzip();
        let same = usable(view).find(|s| s.ready && Some(s.id) == under_way);
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
            // A decision for less than a segment would wait for more data.
            max_bytes: subflow.mss.max((end - view.sent) as u32),
        })
    }
}

/// Returns how long a subflow takes to send what it holds, in the kernel's unit of 2^-32 s. A subflow
/// that holds data and has no rate yet never finishes.
fn time_to_send(subflow: &SubflowView) -> u64 {
    match subflow.queued {
        0 => 0,
        queued => (queued.min(u64::from(u32::MAX)) << 32)
            .checked_div(subflow.pacing_rate)
            .unwrap_or(u64::MAX),
    }
}
