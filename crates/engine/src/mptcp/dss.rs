//! Data sequence numbers on the wire and inside (RFC 8684 section 3.3): the stream's first byte
//! is IDSN + 1 there and offset 0 here. What a SYN carried has no number there: the first byte behind
//! it is IDSN + 1 (appendix B.2).

use braid_wire::mptcp::{Capable, CapableFlags, Dss, DssMapping, MptcpOption, WireDsn};
use braid_wire::tcp::Options;
use braid_wire::{Dsn64, Instant};

use super::keys::Keys;
use super::mode::Mptcp;
use super::opening::SynData;
use super::transport::Transport;
use crate::tcp::scoreboard::Mapping;

/// Rate in bytes/s from which 4-byte DSNs could wrap within a segment's lifetime of two minutes,
/// with a margin of two (RFC 8684 section 3.3.1).
const WIDE_RATE: u64 = (1 << 32) / 240;

pub(super) fn carried(dsn: Dsn64, wide: bool) -> WireDsn {
    if wide {
        WireDsn::Eight(dsn.0)
    } else {
        WireDsn::Four(dsn.low())
    }
}

impl Mptcp {
    /// Data sequence number of an offset in our stream.
    // Conforms: 8684-B.2-1
    pub fn dsn(&self, offset: u64) -> Dsn64 {
        numbered(self.local.idsn, self.syn_data.sent, offset)
    }

    /// Data sequence number of an offset in the peer's stream.
    pub fn remote_dsn(&self, offset: u64) -> Dsn64 {
        numbered(self.remote.idsn, self.syn_data.received, offset)
    }

    /// Offset in our stream of a DATA_ACK near `una`; `None` if it lies before the stream.
    pub fn ack_offset(&self, ack: WireDsn, una: u64) -> Option<u64> {
        offset_of(self.dsn(una), ack, una)
    }

    /// Offset in the peer's stream of a DSN near `rcv_nxt`.
    pub fn data_offset(&self, dsn: WireDsn, rcv_nxt: u64) -> Option<u64> {
        offset_of(self.remote_dsn(rcv_nxt), dsn, rcv_nxt)
    }
}

/// The number of the byte at `offset` of a stream whose first `in_syn` bytes have none.
fn numbered(idsn: Dsn64, in_syn: u64, offset: u64) -> Dsn64 {
    idsn.add(1).add(offset.wrapping_sub(in_syn))
}

/// The offset of `dsn`, where `expected` is the number of the one `near`.
// Conforms: 8684-3.3.1-4, 8684-3.3.2-6
fn offset_of(expected: Dsn64, dsn: WireDsn, near: u64) -> Option<u64> {
    let dsn = match dsn {
        WireDsn::Four(low) => expected.expand(low),
        WireDsn::Eight(full) => Dsn64(full),
    };
    near.checked_add_signed(dsn.diff(expected))
}

impl Mptcp {
    /// The keys are known; nothing is confirmed yet.
    pub fn new(local: Keys, remote: Keys, flags: CapableFlags) -> Self {
        Mptcp {
            local,
            remote,
            flags,
            confirmed: false,
            checksum: flags.checksum_required,
            wide_ack: false,
            wide_dsn: false,
            joined: false,
            syn_data: SynData::default(),
        }
    }

    /// MP_CAPABLE of the opener's first mapping.
    pub fn capable_data(&self, map: &Mapping) -> MptcpOption {
        MptcpOption::Capable(Capable::Data {
            flags: self.flags,
            sender_key: self.local.key,
            receiver_key: self.remote.key,
            data_len: map.len as u16,
            checksum: map.checksum,
        })
    }
}

impl Transport {
    /// The DATA_ACK value as an offset: DATA_FIN counts as one.
    // Conforms: 8684-3.3.3-3
    fn data_ack_offset(&self) -> u64 {
        self.rcv.buf.rcv_nxt() + u64::from(self.rcv.complete())
    }

    /// The DSS of an outgoing segment without data.
    pub fn dss(&self, mptcp: &Mptcp) -> Dss {
        let ack = mptcp.remote_dsn(self.data_ack_offset());
        Dss {
            data_ack: Some(carried(ack, mptcp.wide_ack)),
            mapping: None,
            data_fin: false,
        }
    }

    /// The same of one that carries `map`, on a subflow whose SYN carried `in_syn` bytes.
    pub fn mapped_dss(&self, mptcp: &Mptcp, map: &Mapping, in_syn: u64) -> Dss {
        Dss {
            mapping: Some(DssMapping {
                dsn: carried(mptcp.dsn(map.data), mptcp.wide_dsn),
                subflow_seq: map.wire_seq(in_syn),
                len: map.wire_len(),
                checksum: map.checksum,
            }),
            data_fin: map.fin,
            ..self.dss(mptcp)
        }
    }

    /// Switches to 8-byte DSNs for good once the connection is fast enough to owe them.
    // Conforms: 8684-3.3.1-7
    pub fn widen_dsn(&mut self) {
        let rate = self
            .subflows
            .iter()
            .map(|s| s.snd.pacer.rate())
            .fold(0, u64::saturating_add);
        match self.mptcp_mut() {
            Some(mptcp) if rate > WIDE_RATE && !mptcp.wide_dsn => mptcp.wide_dsn = true,
            _ => return,
        }
        self.size_segments();
    }

    /// Fits the segment size of every subflow to the options a data segment carries now.
    pub fn size_segments(&mut self) {
        let map = Mapping {
            data: 0,
            sub: 1,
            len: 1,
            fin: false,
            checksum: self.mptcp().filter(|m| m.checksum).map(|_| 0),
        };
        // The first mapping carries the keys (RFC 8684 section 3.1).
        let option = self.mptcp().map(|m| match m.confirmed {
            true => MptcpOption::Dss(self.mapped_dss(m, &map, 0)),
            false => m.capable_data(&map),
        });
        for subflow in &mut self.subflows {
            let mut options = Options {
                timestamps: subflow.timestamps(Instant::ZERO),
                ..Options::default()
            };
            options.mptcp.extend(option);
            subflow.set_data_options(options.len());
        }
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
        let far = 5u64 << 32;
        let wire = WireDsn::Four(m.remote.idsn.add(1).add(far + 1000).low());
        assert_eq!(m.data_offset(wire, far), Some(far + 1000));
    }
}
