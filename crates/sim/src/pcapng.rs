//! Writing of packets to pcapng files (draft-ietf-opsawg-pcapng) for Wireshark, and reading them for tests.

use std::io::{self, Write};

use braid_wire::Instant;

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

/// The direction of a packet at the interface that captured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The packet was received.
    Inbound,
    /// The packet was sent.
    Outbound,
}

/// The number of an interface in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// A pcapng file of one section. Timestamps count nanoseconds from the origin of [`Instant`].
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    interfaces: u32,
    /// The block under construction.
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes the section header of a file to `out`.
    ///
    /// # Errors
    /// Fails with the error of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Writer {
            out,
            interfaces: 0,
            block: Vec::new(),
        };
        writer.begin(SECTION_HEADER);
        writer.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0 of the format.
        writer.put(&1u16.to_le_bytes());
        writer.put(&0u16.to_le_bytes());
        // All ones: the length of the section is unknown, because the file is written as a stream.
        writer.put(&u64::MAX.to_le_bytes());
        writer.option(SHB_USERAPPL, b"Braid");
        writer.option(OPT_END, &[]);
        writer.end()?;
        Ok(writer)
    }

    /// Adds an interface that carries IP packets.
    ///
    /// # Errors
    /// Fails with the error of the output.
    pub fn interface(&mut self, name: &str) -> io::Result<InterfaceId> {
        self.begin(INTERFACE_DESCRIPTION);
        self.put(&LINKTYPE_RAW.to_le_bytes());
        // Reserved.
        self.put(&0u16.to_le_bytes());
        // A snapshot length of 0: packets are captured in full.
        self.put(&0u32.to_le_bytes());
        self.option(IF_NAME, name.as_bytes());
        // Times have a resolution of 10^-9 s.
        self.option(IF_TSRESOL, &[9]);
        self.option(OPT_END, &[]);
        self.end()?;
        let id = InterfaceId(self.interfaces);
        self.interfaces += 1;
        Ok(id)
    }

    /// Writes an IP packet.
    ///
    /// # Errors
    /// Fails with the error of the output.
    pub fn packet(
        &mut self,
        interface: InterfaceId,
        at: Instant,
        direction: Direction,
        packet: &[u8],
    ) -> io::Result<()> {
        self.begin(ENHANCED_PACKET);
        self.put(&interface.0.to_le_bytes());
        let ns = at.as_nanos();
        self.put(&((ns >> 32) as u32).to_le_bytes());
        self.put(&(ns as u32).to_le_bytes());
        // The captured length and the original length.
        let len = (packet.len() as u32).to_le_bytes();
        self.put(&len);
        self.put(&len);
        self.put(packet);
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(EPB_FLAGS, &flags.to_le_bytes());
        self.option(OPT_END, &[]);
        self.end()
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Fails with the error of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Begins a block of this type.
    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.block.extend_from_slice(&block_type.to_le_bytes());
        // `end` fills in the length.
        self.block.extend_from_slice(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    /// Pads the block to a multiple of 32 bits.
    fn pad(&mut self) {
        let len = self.block.len().next_multiple_of(4);
        self.block.resize(len, 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.pad();
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    /// Writes the block. The block's length is before and after its body, so that files can be read backwards.
    fn end(&mut self) -> io::Result<()> {
        let len = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&len);
        self.put(&len);
        self.out.write_all(&self.block)
    }
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
pub fn read(file: &[u8]) -> impl Iterator<Item = Option<Captured<'_>>> {
    let mut rest = Some(file);
    core::iter::from_fn(move || {
        while let Some(blocks) = rest.filter(|blocks| !blocks.is_empty()) {
            // The smallest block has 12 bytes: type, length, length again. With a smaller length the reader might
            // not advance.
            let block = word(blocks, 4).and_then(|len| blocks.get(..(len as usize).max(12)));
            rest = block.map(|block| &blocks[block.len()..]);
            match block {
                None => return Some(None),
                Some(block) if word(block, 0) == Some(ENHANCED_PACKET) => {
                    return Some(enhanced(block));
                }
                Some(_) => {}
            }
        }
        None
    })
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

    /// Returns the blocks of a file as (type, body).
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |at: &[u8]| u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (kind, len) = (word(file), word(&file[4..]) as usize);
            assert_eq!(len % 4, 0, "blocks end on 32 bits");
            assert_eq!(
                word(&file[len - 4..]) as usize,
                len,
                "the length stands twice"
            );
            blocks.push((kind, file[8..len - 4].to_vec()));
            file = &file[len..];
        }
        blocks
    }

    #[test]
    fn a_file_has_the_bytes_of_the_draft() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        writer.interface("wifi").unwrap();
        let lte = writer.interface("lte up").unwrap();
        let at = Instant::from_nanos(0x0000_0001_0203_0405);
        let packet = [0x45, 1, 2, 3, 4];
        writer
            .packet(lte, at, Direction::Outbound, &packet)
            .unwrap();
        writer.packet(lte, at, Direction::Inbound, &[]).unwrap();
        let blocks = blocks(&file);
        let expected: [(u32, &[u8]); 5] = [
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
        assert_eq!(blocks.len(), expected.len());
        for (block, (kind, body)) in blocks.iter().zip(expected) {
            assert_eq!((block.0, &block.1[..]), (kind, body));
        }
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
        let seen: Vec<_> = read(&file).collect();
        assert_eq!(seen, [Some(sent), Some(received)]);
        let cut: Vec<_> = read(&file[..file.len() - 4]).collect();
        assert_eq!(cut, [Some(sent), None]);
    }
}
