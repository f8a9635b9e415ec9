//! The end of a subflow: why, and the RST that says so.

use braid_wire::Instant;
use braid_wire::mptcp::{MptcpOption, ResetReason};
use braid_wire::tcp;

use crate::event::SubflowCloseReason;

/// Why a RST is sent: decides its MPTCP option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetKind {
    /// The whole connection is aborted (MP_FASTCLOSE).
    FastClose,
    /// This subflow alone ends (MP_TCPRST).
    Subflow(ResetReason),
    /// The same because the checksum of the mapping that starts here is wrong (MP_FAIL).
    Fail(braid_wire::Dsn64),
}

/// When a segment is repeated next, and how often it was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Repeats {
    pub at: Option<Instant>,
    pub times: u32,
}

/// The end of a subflow: why it comes, and the RST that may tell of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub reason: SubflowCloseReason,
    /// The reason that the RST gives.
    pub reset: Option<ResetKind>,
    /// The RST that came in is one of Multipath TCP.
    pub by_mptcp: bool,
    /// Where the peer expects the RST; `None` before it said so.
    pub reset_at: Option<u64>,
    /// Its MP_FASTCLOSE is repeated until the peer answers.
    pub insists: bool,
    pub repeats: Repeats,
}

impl Default for Ending {
    fn default() -> Self {
        Ending {
            reason: SubflowCloseReason::Finished,
            reset: None,
            by_mptcp: false,
            reset_at: None,
            insists: false,
            repeats: Repeats::default(),
        }
    }
}

impl Ending {
    /// A RST has come in.
    pub fn note_reset(&mut self, rst: &tcp::Repr) {
        let mut options = rst.options.mptcp.iter();
        self.by_mptcp = options.any(|option| matches!(option, MptcpOption::Reset { .. }));
    }

    /// The peer has answered: nothing is repeated any more.
    pub fn settle(&mut self) {
        self.insists = false;
        self.repeats.at = None;
    }
}
