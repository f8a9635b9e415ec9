//! The farewell to Multipath TCP after a fallback: the peer is told that the rest of the stream follows in order
//! (RFC 8684 section 3.7).

use braid_wire::Dsn64;
use braid_wire::mptcp::{Dss, DssMapping, MptcpOption};

use super::mode::{Mptcp, carried};
use super::subflow::Subflow;

/// Acknowledgements that carry MP_FAIL, as long as none of the peer's answers it.
const MAX_FAILS: u32 = 8;

/// The infinite mapping: the path may drop options in one direction only.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// Number of the stream's first byte.
    first: Dsn64,
    wide: bool,
    checksum: bool,
    /// Told until the peer acknowledges more of the subflow than this, so something that told it.
    until: u64,
    /// What MP_FAIL says, and how often it still does unless it is answered (section 3.7).
    fail: Option<(Dsn64, u32)>,
}

/// The news of a fallback, as long as the peer is to be told.
#[derive(Debug, Default)]
pub(crate) struct Farewell(Option<Told>);

impl Farewell {
    /// The connection goes on as regular TCP on `subflow`.
    pub fn begin(&mut self, mptcp: &Mptcp, subflow: &Subflow) {
        self.0 = Some(Told {
            first: mptcp.dsn(0),
            wide: mptcp.wide_dsn,
            checksum: mptcp.checksum,
            until: subflow.snd.nxt,
            fail: None,
        });
    }

    /// The infinite mapping for a segment of `subflow` whose byte `sub` is byte `data` of the
    /// stream, as long as it is to be told.
    // Conforms: 8684-3.7-5
    pub fn infinite_mapping(&self, subflow: &Subflow, sub: u64, data: u64) -> Option<MptcpOption> {
        let told = self.0?;
        if subflow.snd.una > told.until {
            return None;
        }
        Some(MptcpOption::Dss(Dss {
            data_ack: None,
            mapping: Some(DssMapping {
                dsn: carried(told.first.add(data), told.wide),
                subflow_seq: sub.wrapping_sub(subflow.syn_data.sent) as u32,
                len: 0,
                checksum: told.checksum.then_some(0),
            }),
            data_fin: false,
        }))
    }

    /// The next acknowledgements on `subflow` carry MP_FAIL.
    pub fn say_fail(&mut self, subflow: &mut Subflow, dsn: Dsn64) {
        if let Some(told) = &mut self.0 {
            told.fail = Some((dsn, MAX_FAILS));
            subflow.rcv.ack_now();
        }
    }

    /// The peer knows that we fell back.
    pub fn on_fail_heard(&mut self) {
        if let Some(told) = &mut self.0 {
            told.fail = None;
        }
    }

    /// MP_FAIL for an acknowledgement that leaves now.
    pub fn take_fail(&mut self) -> Option<MptcpOption> {
        let told = self.0.as_mut()?;
        let (dsn, left) = told.fail?;
        told.fail = (left > 1).then_some((dsn, left - 1));
        Some(MptcpOption::Fail { dsn })
    }
}
