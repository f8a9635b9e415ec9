//! TCP options (RFC 9293 section 3.2).

use arrayvec::ArrayVec;

use super::MAX_OPTIONS_LEN;
use crate::bytes::{Reader, Writer};
use crate::mptcp::{self, Capable, Dss, Join, MptcpOption};
use crate::{Error, Result, Seq32};

/// Option kinds (IANA, TCP parameters).
pub mod kind {
    /// End of option list.
    pub const END: u8 = 0;
    /// No operation.
    pub const NOP: u8 = 1;
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale (RFC 7323).
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted (RFC 2018).
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK (RFC 2018).
    pub const SACK: u8 = 5;
    /// Timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 8;
    /// Multipath TCP (RFC 8684).
    pub const MPTCP: u8 = crate::mptcp::KIND;
    /// Fast open (RFC 7413).
    pub const FAST_OPEN: u8 = 34;
}

/// Maximum window scale (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// RFC 7323 timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

impl Timestamps {
    fn of([v0, v1, v2, v3, e0, e1, e2, e3]: [u8; 8]) -> Timestamps {
        Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        }
    }
}

/// A fast-open cookie (RFC 7413): empty for a request, otherwise of even length from 4 to 16.
pub type FastOpenCookie = ArrayVec<u8, 16>;
/// SACK blocks as (left edge, right edge), newest first. More than four do not fit a header (RFC 2018 section 3).
pub type SackBlocks = ArrayVec<(Seq32, Seq32), 4>;
/// The MPTCP options of one segment, in order. No sender needs more than four in 40 bytes.
pub type MptcpOptions = ArrayVec<mptcp::MptcpOption, 4>;

/// The options of one segment, of all kinds that the engine uses.
///
/// Options are emitted in a fixed order: MSS, SACK permitted, timestamps, window scale, fast open, MPTCP, SACK.
/// NOPs pad each of them to a multiple of 4 bytes.
///
/// Not every combination of options fits a header: [`Options::len`] may exceed [`MAX_OPTIONS_LEN`]. For example,
/// timestamps (12 bytes) do not fit beside an ADD_ADDR of an IPv6 address with port and HMAC (30 bytes, padded to
/// 32). Callers check [`Options::room`] before they add an option.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size, SYN only.
    pub mss: Option<u16>,
    /// Window scale (shift count), SYN only. Received values above 14 become 14 (RFC 7323 section 2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted, SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Fast-open cookie, SYN only.
    pub fast_open: Option<FastOpenCookie>,
    /// MPTCP options.
    pub mptcp: MptcpOptions,
}

impl Options {
    /// Creates an empty set of options.
    pub const fn new() -> Options {
        Options {
            mss: None,
            window_scale: None,
            sack_permitted: false,
            timestamps: None,
            sack: ArrayVec::new_const(),
            fast_open: None,
            mptcp: ArrayVec::new_const(),
        }
    }

    /// Returns the number of bytes that these options take in a header, padding included.
    pub fn len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        // If there are timestamps, SACK permitted takes no further room: it replaces the two NOPs before the
        // timestamps.
        let sack_permitted = if self.sack_permitted { 4 } else { 0 };
        let timestamps = if self.timestamps.is_some() {
            12
        } else {
            sack_permitted
        };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let fast_open = self.fast_open.as_ref().map_or(0, |c| padded(2 + c.len()));
        let mptcp: usize = self.mptcp.iter().map(padded_len).sum();
        mss + timestamps + window_scale + fast_open + mptcp + sack_len(self.sack.len())
    }

    /// Returns whether there is no option at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes left of [`MAX_OPTIONS_LEN`], or 0 if the options exceed it.
    pub fn room(&self) -> usize {
        MAX_OPTIONS_LEN.saturating_sub(self.len())
    }

    /// Returns whether `option` fits beside the other options: in the header, and in the list of MPTCP options.
    pub fn fits(&self, option: &MptcpOption) -> bool {
        !self.mptcp.is_full() && padded_len(option) <= self.room()
    }

    /// Returns the number of further SACK blocks that fit.
    pub fn sack_room(&self) -> usize {
        let others = self.len() - sack_len(self.sack.len());
        // Two NOPs, kind and length take 4 bytes, and each block 8 (RFC 2018 section 3).
        let blocks = (MAX_OPTIONS_LEN.saturating_sub(others + 4)) / 8;
        blocks
            .min(self.sack.capacity())
            .saturating_sub(self.sack.len())
    }

    /// Returns the first DSS option, if there is one.
    pub fn dss(&self) -> Option<&Dss> {
        self.mptcp.iter().find_map(|option| match option {
            MptcpOption::Dss(dss) => Some(dss),
            _ => None,
        })
    }

    /// Returns the first MP_CAPABLE option, if there is one.
    pub fn capable(&self) -> Option<&Capable> {
        self.mptcp.iter().find_map(|option| match option {
            MptcpOption::Capable(capable) => Some(capable),
            _ => None,
        })
    }

    /// Returns the first MP_JOIN option, if there is one.
    pub fn join(&self) -> Option<&Join> {
        self.mptcp.iter().find_map(|option| match option {
            MptcpOption::Join(join) => Some(join),
            _ => None,
        })
    }

    /// Parses the option bytes of a header. `syn` is true if the segment has SYN. If `syn` is false, options that
    /// belong on a SYN are ignored.
    ///
    /// Skips unknown options, malformed MPTCP options, MPTCP options after the fourth, and fast-open cookies of a
    /// length that RFC 7413 does not allow. If an option other than MPTCP occurs twice, the last one counts.
    ///
    /// Returns `BadOption` if a length exceeds the list, or does not suit the option's kind.
    // Conforms: 9293-3.1-2
    pub fn parse(bytes: &[u8], syn: bool) -> Result<Options> {
        let mut options = Options::new();
        options.take_all(bytes, syn)?;
        Ok(options)
    }

    /// Parses as [`parse`](Self::parse) does, and adds the options to this set.
    pub(super) fn take_all(&mut self, bytes: &[u8], syn: bool) -> Result<()> {
        let mut rest = bytes;
        // Nearly every segment begins with timestamps in this layout (RFC 7323 appendix A), which is read at once.
        if let Some((&[kind::NOP, kind::NOP, kind::TIMESTAMPS, 10], tail)) =
            rest.split_first_chunk()
            && let Some((fields, tail)) = tail.split_first_chunk()
        {
            self.timestamps = Some(Timestamps::of(*fields));
            rest = tail;
        }
        for raw in raw_options(rest) {
            self.take(raw?, syn)?;
        }
        Ok(())
    }

    fn take(&mut self, raw: RawOption<'_>, syn: bool) -> Result<()> {
        match (raw.kind(), raw.body()) {
            (kind::TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                self.timestamps = Some(Timestamps::of([v0, v1, v2, v3, e0, e1, e2, e3]));
            }
            (kind::MPTCP, _) => {
                if let Ok(option) = MptcpOption::parse(raw.bytes()) {
                    // If the list is full, the option is dropped.
                    let _ = self.mptcp.try_push(option);
                }
            }
            (kind::SACK, blocks) => self.sack = sack_blocks(blocks)?,
            (kind::MSS, &[high, low]) => {
                self.mss = syn.then_some(u16::from_be_bytes([high, low]));
            }
            (kind::WINDOW_SCALE, &[shift]) => {
                self.window_scale = syn.then_some(shift.min(MAX_WINDOW_SCALE));
            }
            (kind::SACK_PERMITTED, []) => self.sack_permitted = syn,
            // Conforms: 7413-4.1.1-1
            (kind::FAST_OPEN, cookie) if syn && is_cookie(cookie) => {
                self.fast_open = FastOpenCookie::try_from(cookie).ok();
            }
            (kind::TIMESTAMPS | kind::MSS | kind::WINDOW_SCALE | kind::SACK_PERMITTED, _) => {
                return Err(Error::BadOption);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the options to the start of `buf` and returns their length, [`Self::len`].
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`Self::len`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let mut w = Writer::new(buf);
        if let Some(mss) = self.mss {
            w.put_array([kind::MSS, 4]);
            w.u16(mss);
        }
        // SACK permitted or two NOPs come first, timestamps or two NOPs follow: 12 bytes, or 4 bytes without
        // timestamps.
        if self.sack_permitted || self.timestamps.is_some() {
            let sack_permitted = [kind::SACK_PERMITTED, 2];
            w.put_array(if self.sack_permitted {
                sack_permitted
            } else {
                [kind::NOP; 2]
            });
        }
        if let Some(timestamps) = self.timestamps {
            w.put_array([kind::TIMESTAMPS, 10]);
            w.u32(timestamps.value);
            w.u32(timestamps.echo);
        } else if self.sack_permitted {
            w.put_array([kind::NOP; 2]);
        }
        if let Some(shift) = self.window_scale {
            w.put_array([kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        if let Some(cookie) = &self.fast_open {
            w.put_array([kind::FAST_OPEN, 2 + cookie.len() as u8]);
            w.put(cookie);
            pad(&mut w);
        }
        for option in &self.mptcp {
            option.emit(&mut w);
            pad(&mut w);
        }
        if !self.sack.is_empty() {
            w.put_array([
                kind::NOP,
                kind::NOP,
                kind::SACK,
                2 + 8 * self.sack.len() as u8,
            ]);
            for (left, right) in &self.sack {
                w.u32(left.0);
                w.u32(right.0);
            }
        }
        w.position()
    }
}

/// One option as its bytes in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawOption<'a>(&'a [u8]);

impl<'a> RawOption<'a> {
    /// Returns the kind.
    pub fn kind(self) -> u8 {
        self.0[0]
    }

    /// Returns the whole option, kind and length included.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the bytes after kind and length.
    pub fn body(self) -> &'a [u8] {
        self.0.get(2..).unwrap_or_default()
    }
}

/// Returns an iterator over the options in the option bytes of a header, NOPs excluded. The iterator ends at END
/// or at the end of the bytes. It also ends after an error (a length below 2 or past the end), because the start
/// of the next option is then unknown.
pub fn raw_options(bytes: &[u8]) -> impl Iterator<Item = Result<RawOption<'_>>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        while let [kind::NOP, tail @ ..] = rest {
            rest = tail;
        }
        let option = match *rest {
            [] | [kind::END, ..] => return None,
            [_, len, ..] if len >= 2 => rest.split_at_checked(usize::from(len)),
            _ => None,
        };
        let Some((option, tail)) = option else {
            rest = &[];
            return Some(Err(Error::BadOption));
        };
        rest = tail;
        Some(Ok(RawOption(option)))
    })
}

fn sack_blocks(bytes: &[u8]) -> Result<SackBlocks> {
    let mut blocks = SackBlocks::new();
    let mut reader = Reader(bytes);
    while !reader.0.is_empty() {
        let left = reader.u32().map_err(|_| Error::BadOption)?;
        let right = reader.u32().map_err(|_| Error::BadOption)?;
        blocks
            .try_push((Seq32(left), Seq32(right)))
            .map_err(|_| Error::BadOption)?;
    }
    if blocks.is_empty() {
        Err(Error::BadOption)
    } else {
        Ok(blocks)
    }
}

/// Returns whether `bytes` have a valid length for a cookie (RFC 7413 section 2): 0 for a request, or an even
/// length from 4 to 16.
fn is_cookie(bytes: &[u8]) -> bool {
    bytes.is_empty() || (4..=16).contains(&bytes.len()) && bytes.len().is_multiple_of(2)
}

fn sack_len(blocks: usize) -> usize {
    if blocks == 0 { 0 } else { 4 + 8 * blocks }
}

fn padded_len(option: &MptcpOption) -> usize {
    padded(option.len())
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn pad(w: &mut Writer<'_>) {
    while !w.position().is_multiple_of(4) {
        w.u8(kind::NOP);
    }
}
