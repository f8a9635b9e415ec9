//! Writing of packets to pcapng files (draft-ietf-opsawg-pcapng) for Wireshark, and reading them for tests.

use std::io::{self, Write};

use braid_wire::Instant;

/// The direction of a packet at the interface that captured it: inbound if the interface received the packet.
pub use braid_links::middlebox::Direction;

/// Types of blocks. All numbers are little-endian, so that the same run gives the same file on any machine.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// The number in a section header by which readers detect the byte order.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// The link type of IPv4 or IPv6 packets without a link-layer header.
const LINKTYPE_RAW: u16 = 101;

// Codes of options. The meaning of a code depends on the type of its block, so SHB, IF and EPB in the names stand
// for the type.
const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// The number of an interface in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// A pcapng file of one section. Timestamps count nanoseconds from the origin of [`Instant`].
pub struct Writer<W> {
    out: W,
    interfaces: u32,
    /// The first error of `out`. After an error nothing is written.
    error: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Writes the section header of a file to `out`.
    pub fn new(out: W) -> Self {
        let mut writer = Writer {
            out,
            interfaces: 0,
            error: None,
        };
        let body = [
            &BYTE_ORDER_MAGIC.to_le_bytes()[..],
            // Version 1.0 of the format.
            &1u16.to_le_bytes(),
            &0u16.to_le_bytes(),
            // All ones: the length of the section is unknown, because the file is written as a stream.
            &u64::MAX.to_le_bytes(),
        ];
        writer.block(SECTION_HEADER, &body, &[(SHB_USERAPPL, b"Braid")]);
        writer
    }

    /// Adds an interface that carries IP packets.
    pub fn interface(&mut self, name: &str) -> InterfaceId {
        // Two reserved bytes follow the link type. A snapshot length of 0: packets are captured in full.
        let body = [&LINKTYPE_RAW.to_le_bytes()[..], &[0; 2], &[0; 4]];
        // Times have a resolution of 10^-9 s.
        let options = [(IF_NAME, name.as_bytes()), (IF_TSRESOL, &[9])];
        self.block(INTERFACE_DESCRIPTION, &body, &options);
        let id = InterfaceId(self.interfaces);
        self.interfaces += 1;
        id
    }

    /// Writes an IP packet.
    pub fn packet(
        &mut self,
        interface: InterfaceId,
        at: Instant,
        direction: Direction,
        packet: &[u8],
    ) {
        let ns = at.as_nanos();
        let len = (packet.len() as u32).to_le_bytes();
        let body = [
            &interface.0.to_le_bytes()[..],
            &((ns >> 32) as u32).to_le_bytes(),
            &(ns as u32).to_le_bytes(),
            // The captured length and the original length.
            &len,
            &len,
            packet,
        ];
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.block(ENHANCED_PACKET, &body, &[(EPB_FLAGS, &flags.to_le_bytes())]);
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Fails with the first error of the output.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    /// Writes a block. Options begin and end at multiples of 32 bits. The block's length is before and after its
    /// body, so that files can be read backwards.
    fn block(&mut self, kind: u32, body: &[&[u8]], options: &[(u16, &[u8])]) {
        // The length follows at the end.
        let mut block = [&kind.to_le_bytes()[..], &[0; 4], &body.concat()].concat();
        pad(&mut block);
        for (code, value) in options.iter().chain(&[(OPT_END, &[][..])]) {
            let value = &value[..value.len().min(usize::from(u16::MAX))];
            block.extend_from_slice(&code.to_le_bytes());
            block.extend_from_slice(&(value.len() as u16).to_le_bytes());
            block.extend_from_slice(value);
            pad(&mut block);
        }
        let len = (block.len() as u32 + 4).to_le_bytes();
        block[4..8].copy_from_slice(&len);
        block.extend_from_slice(&len);
        if self.error.is_none() {
            self.error = self.out.write_all(&block).err();
        }
    }
}

/// Pads a block to a multiple of 32 bits.
fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}

/// A packet of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The time of the packet.
    pub at: Instant,
    /// The number of the interface.
    pub interface: u32,
    /// The direction at the interface.
    pub direction: Direction,
    /// The packet.
    pub bytes: &'a [u8],
}

/// Reads the packets of a file that [`Writer`] has written. If the file is truncated, the last item is `None`.
pub fn read(mut file: &[u8]) -> Vec<Option<Captured<'_>>> {
    let mut packets = Vec::new();
    while !file.is_empty() {
        // The smallest block has 12 bytes: type, length, length again. With a smaller length the reader might not
        // advance.
        let len = word(file, 4).map(|len| (len as usize).max(12));
        let Some((block, rest)) = len.and_then(|len| file.split_at_checked(len)) else {
            packets.push(None);
            break;
        };
        if word(block, 0) == Some(ENHANCED_PACKET) {
            packets.push(enhanced(block));
        }
        file = rest;
    }
    packets
}

/// Reads the packet in a block. The writer puts the direction into the first option after the packet.
fn enhanced(block: &[u8]) -> Option<Captured<'_>> {
    let (high, low) = (word(block, 12)?, word(block, 16)?);
    let end = 28 + word(block, 20)? as usize;
    Some(Captured {
        at: Instant::from_nanos(u64::from(high) << 32 | u64::from(low)),
        interface: word(block, 8)?,
        direction: match word(block, end.next_multiple_of(4) + 4)? {
            1 => Direction::Inbound,
            _ => Direction::Outbound,
        },
        bytes: block.get(28..end)?,
    })
}

/// Returns the four bytes at `at` as a number.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_bytes_of_the_draft() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file);
        writer.interface("wifi");
        let lte = writer.interface("lte up");
        let at = Instant::from_nanos(0x0000_0001_0203_0405);
        let packet = [0x45, 1, 2, 3, 4];
        writer.packet(lte, at, Direction::Outbound, &packet);
        writer.packet(lte, at, Direction::Inbound, &[]);
        writer.finish().unwrap();
        let blocks: [(u32, &[u8]); 5] = [
            (
                0x0a0d_0d0a,
                b"\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\
                  \x04\0\x05\0Braid\0\0\0\0\0\0\0",
            ),
            (
                1,
                b"\x65\0\0\0\0\0\0\0\x02\0\x04\0wifi\x09\0\x01\0\x09\0\0\0\0\0\0\0",
            ),
            (
                1,
                b"\x65\0\0\0\0\0\0\0\x02\0\x06\0lte up\0\0\x09\0\x01\0\x09\0\0\0\0\0\0\0",
            ),
            (
                6,
                b"\x01\0\0\0\x01\0\0\0\x05\x04\x03\x02\x05\0\0\0\x05\0\0\0\
                  \x45\x01\x02\x03\x04\0\0\0\x02\0\x04\0\x02\0\0\0\0\0\0\0",
            ),
            (
                6,
                b"\x01\0\0\0\x01\0\0\0\x05\x04\x03\x02\0\0\0\0\0\0\0\0\
                  \x02\0\x04\0\x01\0\0\0\0\0\0\0",
            ),
        ];
        let expected = blocks.map(|(kind, body)| {
            // The length stands before and after the body.
            let [kind, len] = [kind, body.len() as u32 + 12].map(u32::to_le_bytes);
            [&kind[..], &len, body, &len].concat()
        });
        assert_eq!(file, expected.concat());
        let sent = Captured {
            at,
            interface: 1,
            direction: Direction::Outbound,
            bytes: &packet,
        };
        let received = Captured {
            direction: Direction::Inbound,
            bytes: &[],
            ..sent
        };
        assert_eq!(read(&file), [Some(sent), Some(received)]);
        assert_eq!(read(&file[..file.len() - 4]), [Some(sent), None]);
    }
}
