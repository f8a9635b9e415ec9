//! Tests whether super-segments pass this machine, since some kernels, drivers and sandboxes accept the request
//! for offloads and then drop or damage the packets.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use braid_engine::{PathId, RxMeta, Transmit, TxChecksum};
use braid_wire::{Seq32, ip, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tun::PacketIo;

/// Length of the probe's payload in bytes: four segments. Any number above one shows whether the segments stay
/// together.
const PAYLOAD_LEN: usize = 4_000;
/// Segment size of the probe in bytes: below the MTU of every device here.
const GSO_SIZE: u16 = 1_000;
/// Maximum time to wait for the probe. The probe passes this machine within microseconds. The value is a guess
/// that leaves time on a loaded machine.
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);
/// Source and destination port of the probe: the service "discard" (RFC 863), which ignores what it gets.
const DISCARD_PORT: u16 = 9;

/// The result for a super-segment that was sent through this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The super-segment came back as one packet.
    Whole,
    /// The super-segment came back as several packets. Super-segments can be sent, but receiving costs more
    /// processor time.
    Cut,
    /// The super-segment did not come back.
    Lost,
}

impl Verdict {
    /// Returns whether super-segments can be sent.
    pub fn can_send(self) -> bool {
        self != Verdict::Lost
    }
}

/// Sends one super-segment from `src` to `dst`. This machine must route both to the device of `packets`, so
/// that the super-segment comes back.
///
/// # Errors
/// Fails if the device cannot be read.
pub fn probe(packets: &mut impl PacketIo, src: IpAddr, dst: IpAddr) -> io::Result<Verdict> {
    let payload: Vec<u8> = (0..PAYLOAD_LEN).map(|i| (i % 251) as u8).collect();
    let header = header(src, dst);
    let ip_len = if src.is_ipv6() { 40 } else { 20 };
    let transmit = Transmit {
        path: PathId(0),
        header: &header,
        payload: [&payload[..]].into_iter().collect(),
        gso_size: GSO_SIZE,
        checksum: TxChecksum::Partial {
            start: ip_len,
            offset: 16,
        },
        v6: src.is_ipv6(),
        info: None,
    };
    if let Err(error) = packets.send(&transmit) {
        tracing::debug!(%error, "the device refused the probe");
        return Ok(Verdict::Lost);
    }
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while let Some(time_left) = deadline.checked_duration_since(Instant::now()) {
        let timeout = Timespec::try_from(time_left).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(packets.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout))?;
        while let Some((packet, meta)) = packets.recv()? {
            if let Some(verdict) = judge(packet.head(), meta, (src, dst), &payload) {
                return Ok(verdict);
            }
        }
    }
    Ok(Verdict::Lost)
}

fn header(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let segment = tcp::Repr {
        src_port: DISCARD_PORT,
        dst_port: DISCARD_PORT,
        seq: Seq32(1),
        ack: Seq32(1),
        flags: tcp::Flags::ACK,
        window: 1_000,
        options: tcp::Options::default(),
    };
    let packet = ip::Repr {
        src,
        dst,
        protocol: ip::PROTO_TCP,
        payload_len: tcp::HEADER_LEN + PAYLOAD_LEN,
        hop_limit: 64,
        traffic_class: 0,
    };
    let ip_len = packet.header_len();
    let mut header = vec![0; ip_len + tcp::HEADER_LEN];
    packet.emit(&mut header);
    segment.emit(&mut header[ip_len..]);
    tcp::fill_partial_checksum(src, dst, &mut header[ip_len..], PAYLOAD_LEN);
    header
}

/// Returns the result that a received packet shows; `None` if the packet is not the probe but, for example, a
/// redirect or a neighbour solicitation.
fn judge(packet: &[u8], meta: RxMeta, ends: (IpAddr, IpAddr), payload: &[u8]) -> Option<Verdict> {
    let (ip, segment) = ip::Repr::parse(packet).ok()?;
    let (tcp, data) = tcp::Repr::parse(segment).ok()?;
    if (ip.src, ip.dst) != ends || tcp.dst_port != DISCARD_PORT || data.is_empty() {
        return None;
    }
    let is_intact = data == payload && meta.gso_size == GSO_SIZE && meta.checksum_ok;
    let is_first_part = payload.starts_with(data) && tcp::verify_checksum(ip.src, ip.dst, segment);
    match (is_intact, is_first_part) {
        (true, _) => Some(Verdict::Whole),
        (false, true) => Some(Verdict::Cut),
        (false, false) => None,
    }
}
