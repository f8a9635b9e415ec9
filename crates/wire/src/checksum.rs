//! The Internet checksum (RFC 1071).

use core::net::IpAddr;

/// A running, unfolded one's complement sum.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(pub u64);

/// Adds `data` (padded with a zero byte if odd; only the last part of a message may be odd).
pub fn sum(start: Sum, data: &[u8]) -> Sum {
    let _ = (start, data);
    todo!()
}

/// The sum of the TCP/UDP/ICMPv6 pseudo-header. `src` and `dst` are of one family.
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Sum {
    let _ = (src, dst, protocol, len);
    todo!()
}

/// Folds to 16 bits, NOT complemented: what a checksum-offloading sender writes for the
/// pseudo-header (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub fn fold(sum: Sum) -> u16 {
    let _ = sum;
    todo!()
}
