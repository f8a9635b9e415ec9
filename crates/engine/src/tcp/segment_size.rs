//! The payload of a segment. The path, the peer and the options limit it.

use super::FourTuple;
use super::path_mtu::PathMtu;

/// The number of option bytes to assume for a data segment before the handshake: timestamps (12) and a DSS with
/// 4-byte numbers (20).
const TYPICAL_OPTIONS_LEN: usize = 12 + 20;
/// The lowest path MTU that Braid accepts for IPv4: every host must accept packets of this size (RFC 791). A lower
/// value, which a forged ICMP message or MSS may contain, would leave little room for payload.
const MIN_PMTU_V4: u32 = 576;
/// The minimum MTU of IPv6 (RFC 8200 section 5).
const MIN_PMTU_V6: u32 = 1280;
/// The length of a TCP header without options.
const TCP_HEADER_LEN: u32 = 20;

/// The size of a subflow's segments, and the values that determine this size.
#[derive(Debug)]
pub(crate) struct SegmentSize {
    pub mtu: PathMtu,
    /// The length of the IP and TCP headers without options.
    headers: u32,
    /// The MSS of a peer that announces no MSS.
    default_mss: u32,
    /// The MSS of the peer.
    peer_mss: u32,
    /// The number of option bytes of a data segment.
    options: usize,
}

impl SegmentSize {
    pub fn new(pmtu: u32, tuple: &FourTuple) -> Self {
        SegmentSize {
            mtu: PathMtu::new(pmtu, min_pmtu(tuple)),
            headers: ip_header(tuple) + TCP_HEADER_LEN,
            default_mss: default_mss(tuple),
            peer_mss: default_mss(tuple),
            options: TYPICAL_OPTIONS_LEN,
        }
    }

    /// Returns the MSS option of our SYN, which does not count options (RFC 6691). The option is never lower than
    /// the default MSS.
    pub fn announced_mss(&self) -> u16 {
        let min_packet = self.default_mss + self.headers;
        mss_option(self.mtu.get().max(min_packet) - self.headers)
    }

    /// Returns the MSS of a peer that announces no MSS.
    pub fn usual_mss(&self) -> u16 {
        self.default_mss as u16
    }

    /// Adopts the MSS option of the peer's SYN.
    pub fn on_peer_mss(&mut self, mss: Option<u16>) {
        self.peer_mss = mss.map_or(self.default_mss, u32::from);
    }

    /// Adopts the MSS that the peer announced on an earlier connection.
    pub fn seed_mss(&mut self, mss: u16) {
        self.peer_mss = u32::from(mss);
    }

    /// Sets the number of option bytes of a data segment.
    pub fn set_options(&mut self, len: usize) {
        self.options = len;
    }

    /// Returns the maximum payload of a packet with `options` bytes of options.
    pub fn max_payload(&self, options: usize) -> u32 {
        self.payload_of(self.mtu.get(), options)
    }

    /// Returns the maximum payload of a data segment.
    pub fn mss(&self) -> u32 {
        self.max_payload(self.options)
    }

    /// Returns the payload of a data segment in a packet of `size` bytes, limited by the peer's MSS.
    pub fn data_of(&self, size: u32) -> u64 {
        self.payload_of(size, self.options).into()
    }

    /// Returns the packet size of a data segment with `len` bytes of payload.
    pub fn packet_of(&self, len: u64) -> u32 {
        len as u32 + self.options as u32 + self.headers
    }

    /// Returns the payload of a packet of `size` bytes, limited by the peer's MSS. If the peer's MSS is too low
    /// even for the lowest path MTU, the MSS of that MTU counts instead, since options alone could fill a smaller
    /// segment.
    fn payload_of(&self, size: u32, options: usize) -> u32 {
        let segment = (size - self.headers).min(self.peer_mss.max(MIN_PMTU_V4 - self.headers));
        segment - options as u32
    }
}

/// Returns the MSS option of a SYN if packets have up to `mtu` bytes. The MSS does not count options (RFC 6691).
pub(crate) fn announced_mss(mtu: u32, tuple: &FourTuple) -> u16 {
    mss_option(mtu.max(min_pmtu(tuple)) - ip_header(tuple) - TCP_HEADER_LEN)
}

/// Returns `payload` as the 16-bit value of an MSS option.
fn mss_option(payload: u32) -> u16 {
    u16::try_from(payload).unwrap_or(u16::MAX)
}

/// Returns the MSS of a peer that announces no MSS.
// Conforms: 9293-3.7.1-1
fn default_mss(tuple: &FourTuple) -> u32 {
    min_pmtu(tuple) - ip_header(tuple) - TCP_HEADER_LEN
}

/// Returns the length of the IP header without options.
fn ip_header(tuple: &FourTuple) -> u32 {
    if tuple.local.is_ipv4() { 20 } else { 40 }
}

fn min_pmtu(tuple: &FourTuple) -> u32 {
    match tuple.local.is_ipv4() {
        true => MIN_PMTU_V4,
        false => MIN_PMTU_V6,
    }
}
