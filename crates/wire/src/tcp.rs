//! TCP segments and options (RFC 9293, 7323, 2018, 7413).

use core::net::IpAddr;

use arrayvec::ArrayVec;

use crate::{Result, Seq32, mptcp};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Most bytes of options a header can carry.
pub const MAX_OPTIONS_LEN: usize = 40;

/// Control bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// Urgent.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// RFC 7323 timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// A fast-open cookie (RFC 7413); empty is a request.
pub type FastOpenCookie = ArrayVec<u8, 16>;
/// SACK blocks as (left edge, right edge), newest first.
pub type SackBlocks = ArrayVec<(Seq32, Seq32), 4>;
/// The MPTCP options of one segment, in order.
pub type MptcpOptions = ArrayVec<mptcp::MptcpOption, 4>;

/// Every option in use. Emitted in a fixed order (MSS, SACK permitted, timestamps, window scale,
/// fast open, MPTCP, SACK), padded with NOPs so that each option group starts on 4 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size, SYN only.
    pub mss: Option<u16>,
    /// Shift count, SYN only; values over 14 are read as 14 (RFC 7323 section 2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted, SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Fast-open cookie.
    pub fast_open: Option<FastOpenCookie>,
    /// MPTCP options.
    pub mptcp: MptcpOptions,
}

impl Options {
    /// Bytes these options take in a header, padding included.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether there is no option at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A validated TCP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repr {
    /// Source port, not 0.
    pub src_port: u16,
    /// Destination port, not 0.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: Seq32,
    /// Acknowledgement number; meaningful if `flags` has ACK.
    pub ack: Seq32,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Repr {
    /// Parses a segment and returns header and payload. Unknown options are skipped; a malformed
    /// length in the option list refuses the segment; a malformed MPTCP option is skipped (RFC
    /// 8684 has no rule; Linux ignores it). The checksum is not looked at: see [`verify_checksum`].
    pub fn parse(segment: &[u8]) -> Result<(Repr, &[u8])> {
        let _ = segment;
        todo!()
    }

    /// Bytes of the header with options and padding.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes the header to the start of `buf` with a checksum field of zero.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::header_len`] or the options exceed [`MAX_OPTIONS_LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let _ = buf;
        todo!()
    }
}

/// Whether the checksum of `segment` (header and payload) is right.
pub fn verify_checksum(src: IpAddr, dst: IpAddr, segment: &[u8]) -> bool {
    let _ = (src, dst, segment);
    todo!()
}

/// Fills in the checksum of an emitted `header` whose payload is `payload` in parts (only the last
/// may be of odd length… parts of any length are handled).
pub fn fill_checksum(src: IpAddr, dst: IpAddr, header: &mut [u8], payload: &[&[u8]]) {
    let _ = (src, dst, header, payload);
    todo!()
}

/// Fills in the folded pseudo-header sum only, for a checksum-offloading device.
pub fn fill_partial_checksum(src: IpAddr, dst: IpAddr, header: &mut [u8], payload_len: usize) {
    let _ = (src, dst, header, payload_len);
    todo!()
}
