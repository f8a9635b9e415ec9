//! The end of a subflow: its cause, and the RST that reports it.

use braid_wire::Instant;
use braid_wire::mptcp::{MptcpOption, ResetReason};
use braid_wire::tcp;

use crate::event::SubflowCloseReason;

/// The kind of a RST, which decides its MPTCP option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetKind {
    /// The whole connection is aborted (MP_FASTCLOSE).
    FastClose,
    /// Only this subflow ends, for this reason (MP_TCPRST).
    Subflow(ResetReason),
    /// Only this subflow ends, because the mapping that starts at this number has a wrong checksum (MP_FAIL).
    Fail(braid_wire::Dsn64),
}

/// The next repeat of a segment, and the number of repeats so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Repeats {
    pub at: Option<Instant>,
    pub times: u32,
}

/// The end of a subflow: its cause, and the RST that may report it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub reason: SubflowCloseReason,
    /// The kind of RST to send; `None` if no RST is sent.
    pub reset: Option<ResetKind>,
    /// Set if a RST with MP_TCPRST was received, which only a peer that runs MPTCP sends.
    pub by_mptcp: bool,
    /// The offset at which the peer expects the RST; `None` until the peer has shown it.
    pub reset_at: Option<u64>,
    /// Set as long as MP_FASTCLOSE is to be repeated.
    pub repeats_abort: bool,
    /// The repeats of MP_FASTCLOSE.
    pub repeats: Repeats,
}

impl Default for Ending {
    fn default() -> Self {
        Ending {
            reason: SubflowCloseReason::Finished,
            reset: None,
            by_mptcp: false,
            reset_at: None,
            repeats_abort: false,
            repeats: Repeats::default(),
        }
    }
}

impl Ending {
    /// Notes the options of a received RST.
    pub fn note_reset(&mut self, rst: &tcp::Repr) {
        let mut options = rst.options.mptcp.iter();
        self.by_mptcp = options.any(|option| matches!(option, MptcpOption::Reset { .. }));
    }

    /// Stops the repeats, because the peer has answered.
    pub fn stop_repeats(&mut self) {
        self.repeats_abort = false;
        self.repeats.at = None;
    }
}
