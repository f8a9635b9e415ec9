//! The payload that a segment takes: by the path, by the peer, and by the options it carries.

use super::FourTuple;
use super::path_mtu::PathMtu;

/// Bytes of options of a data segment before anything is agreed: timestamps and a DSS with
/// 4-byte numbers.
const TYPICAL_OPTIONS: usize = 12 + 20;
/// Smallest path MTU believed of IPv4 (RFC 791) and IPv6 (RFC 8200).
const MIN_PMTU: u32 = 576;
const MIN_PMTU_V6: u32 = 1280;
/// Bytes of a TCP header without options.
const TCP_HEADER: u32 = 20;

/// The size of a subflow's segments, and all that it follows from.
#[derive(Debug)]
pub(crate) struct SegmentSize {
    pub mtu: PathMtu,
    /// Bytes of headers without options.
    headers: u32,
    /// The MSS of a peer that does not say it.
    usual_mss: u32,
    peer_mss: u32,
    /// Bytes of options of a data segment.
    options: usize,
}

impl SegmentSize {
    pub fn new(pmtu: u32, tuple: &FourTuple) -> Self {
        SegmentSize {
            mtu: PathMtu::new(pmtu, min_pmtu(tuple)),
            headers: ip_header(tuple) + TCP_HEADER,
            usual_mss: usual_mss(tuple),
            peer_mss: usual_mss(tuple),
            options: TYPICAL_OPTIONS,
        }
    }

    /// The MSS option of our SYN (RFC 6691: options not counted).
    pub fn announced_mss(&self) -> u16 {
        let least = self.usual_mss + self.headers;
        mss_option(self.mtu.get().max(least) - self.headers)
    }

    /// The MSS of a peer that does not say it.
    pub fn usual_mss(&self) -> u16 {
        self.usual_mss as u16
    }

    /// Takes the MSS option of the peer's SYN in.
    pub fn on_peer_mss(&mut self, mss: Option<u16>) {
        self.peer_mss = mss.map_or(self.usual_mss, u32::from);
    }

    /// Before the peer has said it: its MSS as it was told earlier.
    pub fn expect_mss(&mut self, mss: u16) {
        self.peer_mss = u32::from(mss);
    }

    /// Sets the bytes of options of a data segment.
    pub fn set_options(&mut self, len: usize) {
        self.options = len;
    }

    /// Payload bytes of one packet with `options` bytes of options.
    pub fn max_payload(&self, options: usize) -> u32 {
        self.payload_of(self.mtu.get(), options)
    }

    /// Payload bytes of a data segment.
    pub fn mss(&self) -> u32 {
        self.max_payload(self.options)
    }

    /// Payload bytes of a data segment in a packet of `size` bytes, if the peer takes such.
    pub fn data_of(&self, size: u32) -> u64 {
        self.payload_of(size, self.options).into()
    }

    /// Bytes of the packet of a data segment with `len` bytes of payload.
    pub fn packet_of(&self, len: u64) -> u32 {
        len as u32 + self.options as u32 + self.headers
    }

    fn payload_of(&self, size: u32, options: usize) -> u32 {
        let segment = (size - self.headers).min(self.peer_mss.max(MIN_PMTU - self.headers));
        segment - options as u32
    }
}

/// The MSS option of a SYN where packets have up to `mtu` bytes (RFC 6691: options not counted).
pub(crate) fn announced_mss(mtu: u32, tuple: &FourTuple) -> u16 {
    mss_option(mtu.max(min_pmtu(tuple)) - ip_header(tuple) - TCP_HEADER)
}

fn mss_option(payload: u32) -> u16 {
    u16::try_from(payload).unwrap_or(u16::MAX)
}

/// The MSS of a peer that does not say it.
// Conforms: 9293-3.7.1-1
fn usual_mss(tuple: &FourTuple) -> u32 {
    min_pmtu(tuple) - ip_header(tuple) - TCP_HEADER
}

fn ip_header(tuple: &FourTuple) -> u32 {
    if tuple.local.is_ipv4() { 20 } else { 40 }
}

fn min_pmtu(tuple: &FourTuple) -> u32 {
    match tuple.local.is_ipv4() {
        true => MIN_PMTU,
        false => MIN_PMTU_V6,
    }
}
