//! The protocol of a connection (MPTCP or regular TCP), and its data sequence numbers (RFC 8684 section 3.3).
//!
//! The engine counts the bytes of a stream from offset 0. The first byte has the data sequence number IDSN + 1,
//! unless the SYN carried payload: that payload has no data sequence numbers, and the first byte behind it has
//! the number IDSN + 1 (appendix B.2).

use braid_wire::Dsn64;
use braid_wire::mptcp::{Capable, CapableFlags, Dss, DssMapping, Join, MptcpOption, WireDsn};
use braid_wire::tcp;

use super::keys::{Keys, hmac64, hmac160, join_hmac};
use super::opening::SynData;
use super::subflow::Subflow;
use crate::tcp::scoreboard::Mapping;

/// The protocol of a connection, with the state that each phase needs.
#[derive(Debug)]
pub(crate) enum Mode {
    /// A SYN with MP_CAPABLE was sent; `checksum` is set if it requires checksums.
    Opening { local: Keys, checksum: bool },
    /// A SYN/ACK with MP_CAPABLE was sent; `checksum` is set if either end requires checksums.
    Accepting { local: Keys, checksum: bool },
    /// MPTCP is in use.
    Mptcp(Mptcp),
    /// Regular TCP is in use, by choice or after a fallback.
    Tcp,
}

/// An MPTCP connection whose keys are known.
#[derive(Debug)]
pub(crate) struct Mptcp {
    pub local: Keys,
    pub remote: Keys,
    /// Our MP_CAPABLE flags.
    pub flags: CapableFlags,
    /// Set once the connection is fully established: the opener has received a DATA_ACK, or the listener the
    /// third ACK (RFC 8684 section 3.1).
    pub fully_established: bool,
    /// Set if the mappings of both directions carry checksums (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// Set once the peer sends 8-byte DSNs, which are answered by 8-byte DATA_ACKs (RFC 8684 section
    /// 3.3.1).
    pub wide_ack: bool,
    /// Set once this side has sent fast enough to need 8-byte DSNs.
    pub wide_dsn: bool,
    /// Set once the peer may have sent on a further subflow. A fallback is no longer safe then.
    pub joined: bool,
    /// The payload of SYNs in each stream. It has no data sequence numbers.
    pub syn_data: SynData,
}

impl Mptcp {
    /// Returns the data sequence number of an offset in our stream.
    // Conforms: 8684-B.2-1
    pub fn dsn(&self, offset: u64) -> Dsn64 {
        numbered(self.local.idsn, self.syn_data.sent, offset)
    }

    /// Returns the data sequence number of an offset in the peer's stream.
    pub fn remote_dsn(&self, offset: u64) -> Dsn64 {
        numbered(self.remote.idsn, self.syn_data.received, offset)
    }

    /// Returns the offset in our stream that a DATA_ACK near `una` names; `None` if it lies before the stream.
    pub fn ack_offset(&self, ack: WireDsn, una: u64) -> Option<u64> {
        offset_of(self.dsn(una), ack, una)
    }

    /// Returns the offset in the peer's stream of a DSN near `rcv_nxt`; `None` if it lies before the stream.
    pub fn data_offset(&self, dsn: WireDsn, rcv_nxt: u64) -> Option<u64> {
        offset_of(self.remote_dsn(rcv_nxt), dsn, rcv_nxt)
    }
}

/// Returns the data sequence number of the byte at `offset` of a stream whose first `in_syn` bytes, the payload
/// of the SYN, have no numbers.
fn numbered(idsn: Dsn64, in_syn: u64, offset: u64) -> Dsn64 {
    idsn.add(1).add(offset.wrapping_sub(in_syn))
}

/// Returns the stream offset of `dsn`, given that offset `near` has the number `expected`. A 4-byte `dsn` stands
/// for the number nearest to `expected` that has these low bytes.
// Conforms: 8684-3.3.1-4, 8684-3.3.2-6
fn offset_of(expected: Dsn64, dsn: WireDsn, near: u64) -> Option<u64> {
    let dsn = match dsn {
        WireDsn::Four(low) => expected.expand(low),
        WireDsn::Eight(full) => Dsn64(full),
    };
    near.checked_add_signed(dsn.diff(expected))
}

impl Mptcp {
    /// Creates the state of a connection that has both keys but is not fully established yet.
    pub fn new(local: Keys, remote: Keys, flags: CapableFlags) -> Self {
        Mptcp {
            local,
            remote,
            flags,
            fully_established: false,
            checksum: flags.checksum_required,
            wide_ack: false,
            wide_dsn: false,
            joined: false,
            syn_data: SynData::default(),
        }
    }

    /// Returns the MP_CAPABLE of the opener's first mapping.
    pub fn capable_data(&self, map: &Mapping) -> MptcpOption {
        MptcpOption::Capable(Capable::Data {
            flags: self.flags,
            sender_key: self.local.key,
            receiver_key: self.remote.key,
            data_len: map.len as u16,
            checksum: map.checksum,
        })
    }

    /// Returns the DSS of a segment without data; `ack` is the DATA_ACK as an offset of the peer's stream.
    pub fn dss(&self, ack: u64) -> Dss {
        let ack = self.remote_dsn(ack);
        Dss {
            data_ack: Some(carried(ack, self.wide_ack)),
            mapping: None,
            data_fin: false,
        }
    }

    /// Returns the DSS of a segment with the mapping `map`, on a subflow whose SYN carried `in_syn` bytes of
    /// payload.
    pub fn mapped_dss(&self, ack: u64, map: &Mapping, in_syn: u64) -> Dss {
        Dss {
            mapping: Some(DssMapping {
                dsn: carried(self.dsn(map.data), self.wide_dsn),
                subflow_seq: map.wire_seq(in_syn),
                len: map.wire_len(),
                checksum: map.checksum,
            }),
            data_fin: map.fin,
            ..self.dss(ack)
        }
    }

    /// Returns whether a segment acknowledges data beyond `una` at the data level. The peer may have sent the
    /// segment for its DATA_ACK alone, so it is no duplicate acknowledgement of the subflow.
    pub fn moves_data_ack(&self, tcp: &tcp::Repr, una: u64) -> bool {
        let newer = |option: &MptcpOption| match option {
            MptcpOption::Dss(dss) => {
                let ack = dss.data_ack.and_then(|ack| self.ack_offset(ack, una));
                ack.is_some_and(|ack| ack > una)
            }
            _ => false,
        };
        tcp.options.mptcp.iter().any(newer)
    }

    /// Returns our third ACK for a join with these nonces, ours and the peer's.
    pub fn join_ack(&self, (local, remote): (u32, u32), secret: Option<&[u8; 32]>) -> MptcpOption {
        let ours = (self.local.key, local);
        let hmac = join_hmac(ours, (self.remote.key, remote), secret);
        MptcpOption::Join(Join::Ack {
            hmac: hmac160(&hmac),
        })
    }

    /// Returns the answer to a join that `subflow` accepts.
    // Conforms: 8684-3.2-16
    pub fn join_syn_ack(
        &self,
        subflow: &Subflow,
        secret: Option<&[u8; 32]>,
    ) -> Option<MptcpOption> {
        let (local, remote) = subflow.nonces()?;
        let ours = (self.local.key, local);
        let hmac = join_hmac(ours, (self.remote.key, remote), secret);
        Some(MptcpOption::Join(Join::SynAck {
            backup: subflow.priority.own,
            address_id: subflow.ids.own,
            hmac: hmac64(&hmac),
            nonce: local,
        }))
    }
}

/// Returns the form of a data sequence number on the wire: 8 bytes if `is_wide` is set, otherwise the low 4.
pub(super) fn carried(dsn: Dsn64, is_wide: bool) -> WireDsn {
    if is_wide {
        WireDsn::Eight(dsn.0)
    } else {
        WireDsn::Four(dsn.low())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mptcp() -> Mptcp {
        Mptcp::new(
            Keys::from_key(1),
            Keys::from_key(2),
            CapableFlags::DEFAULT_OFFER,
        )
    }

    #[test]
    fn first_byte_is_idsn_plus_one() {
        let m = mptcp();
        assert_eq!(
            m.ack_offset(WireDsn::Eight(m.local.idsn.add(1).0), 0),
            Some(0)
        );
        assert_eq!(
            m.data_offset(WireDsn::Four(m.remote.idsn.add(1).low()), 0),
            Some(0)
        );
        assert_eq!(m.ack_offset(WireDsn::Eight(m.local.idsn.0), 0), None);
    }

    // Conforms: 8684-3.3.1-4
    #[test]
    fn four_bytes_expand_near_what_is_expected() {
        let m = mptcp();
        // 4-byte numbers repeat every 2^32 bytes.
        let expected = 5u64 << 32;
        let wire = WireDsn::Four(m.remote.idsn.add(1).add(expected + 1000).low());
        assert_eq!(m.data_offset(wire, expected), Some(expected + 1000));
    }
}
