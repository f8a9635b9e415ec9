//! UDP (RFC 768, RFC 8200 section 8.1).

use core::net::IpAddr;

use crate::bytes::{Reader, Writer};
use crate::checksum::{self, Sum};
use crate::{Error, Result, ip};

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// The bytes of a header that contain the checksum.
const CHECKSUM: core::ops::Range<usize> = 6..8;

/// A validated UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source port; 0 if the sender expects no answer.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes after the header.
    pub payload_len: usize,
}

impl Repr {
    /// Parses a datagram and returns its header and payload. The header's length field determines the end of the
    /// payload. The checksum is not verified: see [`verify_checksum`].
    pub fn parse(datagram: &[u8]) -> Result<(Repr, &[u8])> {
        let mut fields = Reader(datagram);
        let (src_port, dst_port) = (fields.u16()?, fields.u16()?);
        let (len, _checksum) = (usize::from(fields.u16()?), fields.u16()?);
        let payload_len = len.checked_sub(HEADER_LEN).ok_or(Error::BadLength)?;
        let payload = fields.0.get(..payload_len).ok_or(Error::Truncated)?;
        let repr = Repr {
            src_port,
            dst_port,
            payload_len,
        };
        Ok((repr, payload))
    }

    /// Writes the header to the start of `buf` without a checksum. Over IPv6 a checksum is required: see
    /// [`fill_checksum`].
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`HEADER_LEN`] or the datagram longer than 65,535 bytes.
    pub fn emit(&self, buf: &mut [u8]) {
        let len = u16::try_from(HEADER_LEN + self.payload_len)
            .expect("the datagram's length fits its length field");
        let mut w = Writer::new(buf);
        w.u16(self.src_port);
        w.u16(self.dst_port);
        w.u16(len);
        w.u16(0);
    }
}

/// Returns whether the checksum of `datagram` (header and payload) is right. Over IPv4 the value 0 means that
/// there is no checksum, and counts as right (RFC 768).
pub fn verify_checksum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    let absent = src.is_ipv4() && datagram.get(CHECKSUM) == Some(&[0, 0]);
    absent || checksum::fold(checksum::sum(pseudo_header(src, dst, datagram), datagram)) == 0xffff
}

/// Computes and writes the checksum of `datagram` (header and payload).
///
/// # Panics
/// Panics if `datagram` is shorter than [`HEADER_LEN`].
pub fn fill_checksum(src: IpAddr, dst: IpAddr, datagram: &mut [u8]) {
    datagram[CHECKSUM].fill(0);
    let sum = checksum::sum(pseudo_header(src, dst, datagram), datagram);
    // A field of zero means that there is no checksum, so a computed zero is sent as all ones (RFC 768).
    let value = match checksum::finish(sum) {
        0 => 0xffff,
        value => value,
    };
    datagram[CHECKSUM].copy_from_slice(&value.to_be_bytes());
}

fn pseudo_header(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Sum {
    checksum::pseudo_header(src, dst, ip::PROTO_UDP, datagram.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: [u8; 4] = [192, 168, 0, 2];
    const DST: [u8; 4] = [192, 168, 0, 1];

    #[test]
    fn a_datagram_round_trips_and_its_checksum_covers_all() {
        let (src, dst) = (SRC.into(), DST.into());
        let repr = Repr {
            src_port: 0x0400,
            dst_port: 53,
            payload_len: 3,
        };
        let mut bytes = *b"--------abc";
        repr.emit(&mut bytes);
        assert_eq!(bytes[..8], [4, 0, 0, 53, 0, 11, 0, 0]);
        assert!(verify_checksum(src, dst, &bytes), "absent");
        fill_checksum(src, dst, &mut bytes);
        // c0a8 + 2 + c0a8 + 1 + 11 + b + 400 + 35 + b + 6162 + 6300 is 24a11; 4a13 complemented.
        assert_eq!(bytes[6..8], [0xb5, 0xec]);
        assert!(verify_checksum(src, dst, &bytes));
        assert_eq!(Repr::parse(&bytes), Ok((repr, &b"abc"[..])));
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify_checksum(src, dst, &damaged), "bit {bit}");
        }
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_all_ones() {
        let (src, dst) = ([0; 4].into(), [0; 4].into());
        // The pseudo-header's 17 + 8, the length of 8 and the port add up to 0xffff.
        let port = 0xffff - 17 - 8 - 8;
        let repr = Repr {
            src_port: port,
            dst_port: 0,
            payload_len: 0,
        };
        let mut bytes = [0; 8];
        repr.emit(&mut bytes);
        fill_checksum(src, dst, &mut bytes);
        assert_eq!(bytes[6..], [0xff, 0xff]);
        assert!(verify_checksum(src, dst, &bytes));
    }

    #[test]
    fn lengths_must_agree() {
        let parse = |bytes: &[u8]| Repr::parse(bytes).map(|(_, payload)| payload.len());
        assert_eq!(parse(&[0, 1, 0, 2, 0, 8, 0, 0, 9, 9]), Ok(0));
        assert_eq!(parse(&[0, 1, 0, 2, 0, 7, 0, 0]), Err(Error::BadLength));
        assert_eq!(parse(&[0, 1, 0, 2, 0, 9, 0, 0]), Err(Error::Truncated));
        assert_eq!(parse(&[0, 1, 0, 2, 0, 8, 0]), Err(Error::Truncated));
    }
}
