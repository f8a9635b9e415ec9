//! TCP, with one file for each concern. Sequence numbers are 64-bit offsets from the initial sequence number:
//! offset 0 is the SYN, offset 1 the first byte of payload. Only the 32-bit numbers in packets wrap around.

pub(crate) mod arriving;
pub(crate) mod closing;
pub(crate) mod dup_acks;
pub(crate) mod ecn;
pub(crate) mod numbers;
pub(crate) mod pacing;
pub(crate) mod path_mtu;
pub(crate) mod prr;
pub(crate) mod rate;
pub(crate) mod receive;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod segment_size;
pub(crate) mod send;

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

/// The addresses and ports that identify a subflow on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FourTuple {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Hashes whole integers instead of single fields. This is faster, and every packet is looked up by its 4-tuple.
impl Hash for FourTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in [self.local, self.remote] {
            match end.ip() {
                IpAddr::V4(ip) => {
                    state.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(end.port()))
                }
                IpAddr::V6(ip) => {
                    state.write_u128(ip.to_bits());
                    state.write_u16(end.port());
                }
            }
        }
    }
}
