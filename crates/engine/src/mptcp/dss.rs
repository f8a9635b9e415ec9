//! The size of data sequence numbers (4 or 8 bytes), and the segment size that the options leave for payload (RFC
//! 8684 section 3.3).

use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Options;

use super::transport::Transport;
use crate::tcp::scoreboard::Mapping;

/// The minimum rate in bytes/s at which 8-byte DSNs are used. At lower rates, 4-byte DSNs do not wrap within a
/// segment's lifetime of two minutes (RFC 8684 section 3.3.1, RFC 9293 section 3.4.1), with a safety factor of
/// two.
const WIDE_DSN_RATE: u64 = (1 << 32) / 240;

impl Transport {
    /// Switches to 8-byte DSNs for good once the connection is fast enough to need them.
    // Conforms: 8684-3.3.1-7
    pub fn widen_dsn(&mut self) {
        let rate = self
            .subflows
            .iter()
            .map(|s| s.snd.pacer.rate())
            .fold(0, u64::saturating_add);
        match self.mode.mptcp_mut() {
            Some(mptcp) if rate > WIDE_DSN_RATE && !mptcp.wide_dsn => mptcp.wide_dsn = true,
            _ => return,
        }
        self.size_segments();
    }

    /// Fits the segment size of every subflow to the options that a data segment carries now.
    pub fn size_segments(&mut self) {
        let map = Mapping {
            data: 0,
            sub: 1,
            len: 1,
            fin: false,
            checksum: self.mode.mptcp().filter(|m| m.checksum).map(|_| 0),
        };
        // Until the connection is fully established, MP_CAPABLE with the keys takes the place of DSS (RFC 8684
        // section 3.1). Only the lengths of the options matter here.
        let option = self.mode.mptcp().map(|m| match m.fully_established {
            true => MptcpOption::Dss(m.mapped_dss(self.rcv.data_ack(), &map, 0)),
            false => m.capable_data(&map),
        });
        for subflow in self.subflows.iter_mut() {
            let mut options = Options {
                timestamps: subflow.timestamps(Instant::ZERO),
                ..Options::default()
            };
            options.mptcp.extend(option);
            subflow.set_data_options(options.len());
        }
    }
}
