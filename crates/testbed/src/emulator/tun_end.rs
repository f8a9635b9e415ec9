//! The TUN device at one end of an emulated link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use braid_links::flip_bit;
use braid_linux::tun::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VNET_HDR_LEN, open_plain};
use braid_wire::checksum;

/// A TUN device. Each call reads or writes one packet, never larger than the MTU, behind a `virtio_net_hdr`. The
/// header only serves to save checksums: the kernel does not complete the checksum of a packet that it sends, and
/// says so in the header. The other end gets the packet with this header, and the kernel there trusts the header.
/// So packets on emulated links have no complete checksum, and captures show the checksum as wrong.
pub(super) struct TunEnd {
    fd: OwnedFd,
}

impl TunEnd {
    /// Makes the device in the namespace of the calling thread.
    pub fn open(name: &str) -> io::Result<TunEnd> {
        let fd = open_plain(name).map_err(io::Error::other)?;
        Ok(TunEnd { fd })
    }

    /// Reads a header and packet. Returns their length, or `None` if no packet waits.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(n) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            // EIO means that the device is down, or was down until now.
            Err(rustix::io::Errno::IO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes a header and packet. Returns false if the device did not accept them, for example when down.
    pub fn write(&self, bytes: &[u8]) -> bool {
        rustix::io::write(&self.fd, bytes).is_ok()
    }
}

impl AsFd for TunEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Flips a bit of the packet behind the `virtio_net_hdr`. Before that, completes the checksum and clears the
/// header, so that the receiver checks the checksum and notices the damage.
pub(super) fn corrupt(bytes: &mut [u8], bit: u32) {
    let Some((header, packet)) = bytes.split_first_chunk_mut::<VNET_HDR_LEN>() else {
        return;
    };
    if header[0] & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
        let field = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, offset) = (field(6), field(8));
        if let Some(segment) = packet.get_mut(start..)
            && offset + 2 <= segment.len()
        {
            // The kernel has put the sum over the pseudo-header into the field, so this sum covers the
            // pseudo-header too.
            let sum = checksum::finish(checksum::sum(checksum::Sum::default(), segment));
            segment[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
    header.fill(0);
    flip_bit(packet, bit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_checksum_is_completed_before_a_bit_is_flipped() {
        // Four bytes stand for the IP header. The checksum is at offset 2 behind them, and holds the sum over
        // the pseudo-header. Bit 39 is the lowest bit of the first byte behind the IP header: 0x12 becomes 0x13.
        let mut bytes = [0u8; VNET_HDR_LEN + 4 + 6];
        bytes[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        bytes[6..8].copy_from_slice(&4u16.to_ne_bytes());
        bytes[8..10].copy_from_slice(&2u16.to_ne_bytes());
        bytes[VNET_HDR_LEN + 4..].copy_from_slice(&[0x12, 0x34, 0x00, 0x05, 0x80, 0x01]);
        corrupt(&mut bytes, 4 * 8 + 7);
        // 0x1234 + 0x0005 + 0x8001 = 0x923a, whose complement is 0x6dc5.
        assert_eq!(bytes[..VNET_HDR_LEN], [0; VNET_HDR_LEN]);
        assert_eq!(
            bytes[VNET_HDR_LEN + 4..],
            [0x13, 0x34, 0x6d, 0xc5, 0x80, 0x01]
        );
    }
}
