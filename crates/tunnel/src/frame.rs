//! The frames in a datagram. Numbers are big-endian.
//!
//! | type | frame | fields |
//! | --- | --- | --- |
//! | 0 | padding | none; ends the datagram |
//! | 1 | packet | policy and flow (2), sequence (3), length (2), packet |
//! | 2 | head of a cut packet | policy and flow (2), sequence (3), first bytes of the packet, up to the datagram's end |
//! | 3 | tail of a cut packet | length (2), last bytes of the packet whose head the previous datagram of the path has |
//! | 4 | report | see [`Report`] |
//! | 5 | latest | flow (2), sequence (3) |
//! | 6 | re-request | flow (2), first sequence (3), count (1) |
//! | 7 | challenge | data (8) |
//! | 8 | response | data (8) |
//! | 9 | use of a path | path (1), state (1): 0 active, 1 backup, 2 down |
//!
//! Types 1 and 2 have flags in the high bits: 0x20 if lost packets of the flow should be asked for, 0x40 if the flow
//! uses only this path, 0x80 if the packet is sent once more and says nothing about the order of its path.
//!
//! The ten lowest bits of policy and flow are the number of the flow. The policy is 0x8000 if the urgency is known,
//! three bits of urgency, and two bits of the mode: 0 aggregate, 1 fastest, 2 redundant, 3 single. All these bits are 0
//! in packets of a server.

use arrayvec::ArrayVec;
use braid_engine::{PathId, Urgency};

use crate::DatagramError;
use crate::config::{MAX_FLOWS, Mode, PathState};

const PADDING: u8 = 0;
const PACKET: u8 = 1;
const HEAD: u8 = 2;
const TAIL: u8 = 3;
const REPORT: u8 = 4;
const LATEST: u8 = 5;
const REREQUEST: u8 = 6;
const CHALLENGE: u8 = 7;
const RESPONSE: u8 = 8;
const USE: u8 = 9;

const HIDE: u8 = 0x20;
const SOLE: u8 = 0x40;
const AGAIN: u8 = 0x80;

/// The flag of a policy whose urgency is known, and the places of urgency and mode.
const URGENCY_KNOWN: u16 = 0x8000;
const URGENCY_SHIFT: u32 = 12;
const MODE_SHIFT: u32 = 10;

/// Bytes of a packet's frame before the packet.
pub const PACKET_OVERHEAD: usize = 8;
/// Bytes of a head's frame before the head.
pub const HEAD_OVERHEAD: usize = 6;
/// Bytes of a tail's frame before the tail.
pub const TAIL_OVERHEAD: usize = 3;
/// Most samples in a report.
pub const MAX_SAMPLES: usize = 8;
/// Bytes of a frame on the use of a path.
pub const USE_LEN: usize = 3;
/// Most bytes of a report.
pub const MAX_REPORT_LEN: usize = 21 + 5 * MAX_SAMPLES;

/// The place of an inner packet in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The number of the flow, below [`MAX_FLOWS`].
    pub flow: u16,
    /// The urgency of the flow, if the box knows one. A server says none.
    pub urgency: Option<Urgency>,
    /// The mode of the flow, from a box. A server says the default.
    pub mode: Mode,
    /// The lowest 24 bits of the number of the packet in its flow.
    pub sequence: u32,
    /// Every earlier packet of the flow was sent on this path, or arrived long ago.
    pub sole: bool,
    /// The peer should ask for lost packets of the flow and wait for them.
    pub hides_losses: bool,
    /// The packet is sent once more, so it says nothing about the order of its path.
    pub again: bool,
}

/// The arrival of one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The number of the datagram, as the distance below [`Report::highest`].
    pub below: u16,
    /// The time of arrival, in microseconds before [`Report::received_at`]. Below 2^24.
    pub before: u32,
}

/// The datagrams that the peer received on one path: type (1), path (1), highest (3), datagrams (4), bytes (4),
/// received at (4), delay (3), number of samples (1), then for each
/// sample below (2) and before (3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The path on which the datagrams were received.
    pub path: PathId,
    /// The lowest 24 bits of the highest number received.
    pub highest: u32,
    /// The number of datagrams received so far, modulo 2^32.
    pub datagrams: u32,
    /// The bytes of datagrams received so far, modulo 2^32.
    pub bytes: u32,
    /// The time at which the datagram with the highest number arrived, in microseconds modulo 2^32 of the peer's
    /// clock.
    pub received_at: u32,
    /// The time from that arrival to the sending of the report, in microseconds. Saturates below 2^24.
    pub delay: u32,
    /// Arrivals since the previous report.
    pub samples: ArrayVec<Sample, MAX_SAMPLES>,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole packet.
    Packet(Label, &'a [u8]),
    /// The first bytes of a packet that is cut in two.
    Head(Label, &'a [u8]),
    /// The last bytes of the packet whose head ends the previous datagram of this path.
    Tail(&'a [u8]),
    /// The datagrams received on a path.
    Report(Report),
    /// No later datagram of this path has a packet of this flow below this number, unless it is sent again.
    Latest {
        /// The number of the flow.
        flow: u16,
        /// The lowest 24 bits of the number.
        sequence: u32,
    },
    /// Packets of a flow are lost, and should be sent once more.
    Rerequest {
        /// The number of the flow.
        flow: u16,
        /// The lowest 24 bits of the number of the first packet.
        sequence: u32,
        /// The number of packets.
        count: u8,
    },
    /// The peer should return the data on this path.
    Challenge([u8; 8]),
    /// The data of a challenge.
    Response([u8; 8]),
    /// The box wants a path to be used in this way.
    Use {
        /// The path.
        path: PathId,
        /// The state that the path has at the box.
        state: PathState,
    },
}

/// Reads fields from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DatagramError> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(DatagramError::BadFrame)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DatagramError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, DatagramError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u24(&mut self) -> Result<u32, DatagramError> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    fn u32(&mut self) -> Result<u32, DatagramError> {
        self.array().map(u32::from_be_bytes)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], DatagramError> {
        let (bytes, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(DatagramError::BadFrame)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    fn label(&mut self, kind: u8) -> Result<Label, DatagramError> {
        let flow = self.u16()?;
        Ok(Label {
            flow: flow % MAX_FLOWS,
            urgency: urgency(flow),
            mode: Mode::ALL[usize::from(flow >> MODE_SHIFT) % Mode::ALL.len()],
            sequence: self.u24()?,
            hides_losses: kind & HIDE != 0,
            sole: kind & SOLE != 0,
            again: kind & AGAIN != 0,
        })
    }

    fn report(&mut self) -> Result<Report, DatagramError> {
        let mut report = Report {
            path: PathId(self.u8()?),
            highest: self.u24()?,
            datagrams: self.u32()?,
            bytes: self.u32()?,
            received_at: self.u32()?,
            delay: self.u24()?,
            samples: ArrayVec::new(),
        };
        for _ in 0..self.u8()? {
            let sample = Sample {
                below: self.u16()?,
                before: self.u24()?,
            };
            report
                .samples
                .try_push(sample)
                .map_err(|_| DatagramError::BadFrame)?;
        }
        Ok(report)
    }

    fn frame(&mut self, kind: u8) -> Result<Frame<'a>, DatagramError> {
        // Only packets have flags.
        let kind_of = match kind & !(HIDE | SOLE | AGAIN) {
            packet @ (PACKET | HEAD) => packet,
            _ => kind,
        };
        Ok(match kind_of {
            PACKET => {
                let label = self.label(kind)?;
                let len = self.u16()?;
                Frame::Packet(label, self.bytes(len.into())?)
            }
            HEAD => Frame::Head(self.label(kind)?, self.rest()),
            TAIL => {
                let len = self.u16()?;
                Frame::Tail(self.bytes(len.into())?)
            }
            REPORT => Frame::Report(self.report()?),
            LATEST => Frame::Latest {
                flow: self.u16()?,
                sequence: self.u24()?,
            },
            REREQUEST => Frame::Rerequest {
                flow: self.u16()?,
                sequence: self.u24()?,
                count: self.u8()?,
            },
            CHALLENGE => Frame::Challenge(self.array()?),
            RESPONSE => Frame::Response(self.array()?),
            USE => Frame::Use {
                path: PathId(self.u8()?),
                state: match self.u8()? {
                    0 => PathState::Active,
                    1 => PathState::Backup,
                    2 => PathState::Down,
                    _ => return Err(DatagramError::BadFrame),
                },
            },
            _ => return Err(DatagramError::BadFrame),
        })
    }
}

/// The frames of an opened datagram.
pub struct Frames<'a>(Reader<'a>);

impl<'a> Frames<'a> {
    /// Creates an iterator over the frames. It ends at the first one that is malformed.
    pub fn new(frames: &'a [u8]) -> Self {
        Frames(Reader(frames))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DatagramError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.0.u8() {
            // The end, or padding up to it.
            Err(_) | Ok(PADDING) => {
                self.0.rest();
                None
            }
            Ok(kind) => {
                let frame = self.0.frame(kind);
                if frame.is_err() {
                    self.0.rest();
                }
                Some(frame)
            }
        }
    }
}

impl Frame<'_> {
    /// Appends the frame. A head has to be the last frame of a datagram.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Packet(label, packet) => {
                emit_label(PACKET, label, out);
                emit_sized(packet, out);
            }
            Frame::Head(label, head) => {
                emit_label(HEAD, label, out);
                out.extend_from_slice(head);
            }
            Frame::Tail(tail) => {
                out.push(TAIL);
                emit_sized(tail, out);
            }
            Frame::Report(report) => emit_report(report, out),
            Frame::Latest { flow, sequence } => {
                out.push(LATEST);
                out.extend_from_slice(&flow.to_be_bytes());
                emit_u24(*sequence, out);
            }
            Frame::Rerequest {
                flow,
                sequence,
                count,
            } => {
                out.push(REREQUEST);
                out.extend_from_slice(&flow.to_be_bytes());
                emit_u24(*sequence, out);
                out.push(*count);
            }
            Frame::Challenge(data) => {
                out.push(CHALLENGE);
                out.extend_from_slice(data);
            }
            Frame::Response(data) => {
                out.push(RESPONSE);
                out.extend_from_slice(data);
            }
            Frame::Use { path, state } => {
                let state = match state {
                    PathState::Active => 0,
                    PathState::Backup => 1,
                    PathState::Down => 2,
                };
                out.extend_from_slice(&[USE, path.0, state]);
            }
        }
    }
}

/// Returns the urgency in policy and flow.
fn urgency(bits: u16) -> Option<Urgency> {
    let level = (bits >> URGENCY_SHIFT) as u8 & 7;
    Urgency::new(level).filter(|_| bits & URGENCY_KNOWN != 0)
}

fn emit_policy_and_flow(label: &Label, out: &mut Vec<u8>) {
    let of_urgency = |u: Urgency| URGENCY_KNOWN | (u16::from(u.level()) << URGENCY_SHIFT);
    let urgency = label.urgency.map_or(0, of_urgency);
    let mode = (label.mode as u16) << MODE_SHIFT;
    let flow = label.flow % MAX_FLOWS;
    out.extend_from_slice(&(urgency | mode | flow).to_be_bytes());
}

fn emit_u24(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes()[1..]);
}

/// Appends a length and the bytes. Packets have at most 65,535 bytes.
fn emit_sized(bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn emit_label(kind: u8, label: &Label, out: &mut Vec<u8>) {
    let hide = if label.hides_losses { HIDE } else { 0 };
    let sole = if label.sole { SOLE } else { 0 };
    let again = if label.again { AGAIN } else { 0 };
    out.push(kind | hide | sole | again);
    emit_policy_and_flow(label, out);
    emit_u24(label.sequence, out);
}

fn emit_report(report: &Report, out: &mut Vec<u8>) {
    out.extend_from_slice(&[REPORT, report.path.0]);
    emit_u24(report.highest, out);
    out.extend_from_slice(&report.datagrams.to_be_bytes());
    out.extend_from_slice(&report.bytes.to_be_bytes());
    out.extend_from_slice(&report.received_at.to_be_bytes());
    emit_u24(report.delay, out);
    out.push(report.samples.len() as u8);
    for sample in &report.samples {
        out.extend_from_slice(&sample.below.to_be_bytes());
        emit_u24(sample.before, out);
    }
}
