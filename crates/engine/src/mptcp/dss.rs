//! The size of data sequence numbers, and the segment size beside the options (RFC 8684 section 3.3).

use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Options;

use super::transport::Transport;
use crate::tcp::scoreboard::Mapping;

/// Rate in bytes/s from which 4-byte DSNs could wrap within a segment's lifetime of two minutes,
/// with a margin of two (RFC 8684 section 3.3.1).
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
        // The first mapping carries the keys (RFC 8684 section 3.1).
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
