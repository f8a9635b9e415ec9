//! The fallback notice: tells the peer, by the infinite mapping and MP_FAIL, that this side has fallen back and
//! that the rest of its stream follows in order as regular TCP (RFC 8684 section 3.7).

use braid_wire::Dsn64;
use braid_wire::mptcp::{Dss, DssMapping, MptcpOption};

use super::mode::{Mptcp, carried};
use super::subflow::Subflow;

/// The maximum number of acknowledgements with MP_FAIL, if the peer does not answer. The value is a guess. Some
/// of them may be lost, and a peer whose options are stripped never answers.
const MAX_MP_FAILS: u32 = 8;

/// The content of a fallback notice. This side sends it even if it fell back because the peer's options were
/// missing: a path may drop options in one direction only, so the peer may still run MPTCP.
#[derive(Debug, Clone, Copy)]
struct Notice {
    /// The data sequence number of the stream's first byte.
    first: Dsn64,
    /// Set if data sequence numbers are sent with 8 bytes.
    wide: bool,
    /// Set if mappings carry checksums.
    checksum: bool,
    /// The subflow offset from which all segments carry the notice. An acknowledgement above this offset shows
    /// that the peer has received such a segment.
    from: u64,
    /// The data sequence number in MP_FAIL, and the number of acknowledgements that are still to carry it
    /// unless the peer answers (section 3.7).
    fail: Option<(Dsn64, u32)>,
}

/// The fallback notice; `None` as long as the connection has not fallen back from MPTCP.
#[derive(Debug, Default)]
pub(crate) struct FallbackNotice(Option<Notice>);

impl FallbackNotice {
    /// Begins the notice: the connection goes on as regular TCP on `subflow`.
    pub fn begin(&mut self, mptcp: &Mptcp, subflow: &Subflow) {
        self.0 = Some(Notice {
            first: mptcp.dsn(0),
            wide: mptcp.wide_dsn,
            checksum: mptcp.checksum,
            from: subflow.snd.nxt,
            fail: None,
        });
    }

    /// Returns the infinite mapping for a segment of `subflow` that starts at subflow offset `sub` with byte
    /// `data` of the stream; `None` once the peer has acknowledged a segment with it.
    // Conforms: 8684-3.7-5
    pub fn infinite_mapping(&self, subflow: &Subflow, sub: u64, data: u64) -> Option<MptcpOption> {
        let notice = self.0?;
        if subflow.snd.una > notice.from {
            return None;
        }
        Some(MptcpOption::Dss(Dss {
            data_ack: None,
            mapping: Some(DssMapping {
                dsn: carried(notice.first.add(data), notice.wide),
                subflow_seq: sub.wrapping_sub(subflow.syn_data.sent) as u32,
                // Length 0 marks the infinite mapping, and its checksum is 0 (section 3.7).
                len: 0,
                checksum: notice.checksum.then_some(0),
            }),
            data_fin: false,
        }))
    }

    /// Puts MP_FAIL on the next acknowledgements of `subflow`.
    pub fn send_mp_fail(&mut self, subflow: &mut Subflow, dsn: Dsn64) {
        if let Some(notice) = &mut self.0 {
            notice.fail = Some((dsn, MAX_MP_FAILS));
            subflow.rcv.ack_now();
        }
    }

    /// Stops MP_FAIL, because the peer knows of the fallback.
    pub fn on_peer_knows(&mut self) {
        if let Some(notice) = &mut self.0 {
            notice.fail = None;
        }
    }

    /// Returns MP_FAIL for an acknowledgement that is sent now, and counts it; `None` if none is to be sent.
    pub fn take_mp_fail(&mut self) -> Option<MptcpOption> {
        let notice = self.0.as_mut()?;
        let (dsn, left) = notice.fail?;
        notice.fail = (left > 1).then_some((dsn, left - 1));
        Some(MptcpOption::Fail { dsn })
    }
}
