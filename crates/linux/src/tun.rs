//! TUN devices with segmentation and receive offload.
//!
//! Every packet has a `virtio_net_hdr` in front of it. This header has the payload length of the packets that a
//! super-segment stands for, and the place of their checksum. So process and kernel exchange a super-segment of up
//! to 64 kB as one buffer, in both directions, and the kernel's stack handles it as one packet.
//!
//! No library is used for the device. Libraries with TUN offload split and merge super-segments in user space.
//! Their callers copy the payload and handle each packet, which is the work that offload saves.

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use braid_engine::buffer::PacketBuffer;
use braid_engine::{RxMeta, Transmit, TxChecksum};

use crate::net::{Result, SystemError};
use crate::sys;

/// Length of the `virtio_net_hdr` in front of each packet in bytes. This is the device's default: the length of
/// a header without the field `num_buffers`.
pub const VNET_HDR_LEN: usize = 10;
/// Maximum length in bytes of a packet that the kernel delivers. It is the maximum length of an IPv4 packet and
/// the largest MTU of a TUN device. Super-segments over IPv6 can be longer, but the defaults of `gso_max_size` and
/// `gro_max_size`, 65,536 bytes, keep them within this length.
const MAX_PACKET_LEN: usize = 65_535;
const _: () = assert!(MAX_PACKET_LEN <= PacketBuffer::CAPACITY);

/// Flag of the header's first byte: the checksum of the packet is not complete. The field of the checksum has
/// only the sum over the pseudo-header.
pub const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
// The other values of the header's first two bytes (linux/virtio_net.h): a flag that says that the checksum was
// verified, the kinds of segmentation, and a bit that marks the kind of a super-segment with CWR (ECN).
const VIRTIO_NET_HDR_F_DATA_VALID: u8 = 2;
const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

/// A device that sends and receives IP packets with their offload state.
pub trait PacketIo {
    /// Returns the descriptor that is readable while packets wait.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Sends one packet or super-segment. The payload is not copied in user space.
    ///
    /// # Errors
    /// Fails if the device refuses the packet. The packet is then lost, as it may be on any link.
    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()>;

    /// Returns the next packet; `None` if there is none now.
    ///
    /// # Errors
    /// Fails if the read from the device fails. Fails with `InvalidData` if the packet has a malformed offload
    /// header; the packet is then lost.
    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>>;
}

/// A borrowed device: a driver that only borrows it leaves the device open when the driver ends.
impl<P: PacketIo> PacketIo for &mut P {
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        (**self).send(transmit)
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        (**self).recv()
    }
}

/// The offloads of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Checksums, and TCP segmentation over IPv4 and IPv6, in both directions.
    Segmentation,
    /// No offload: packets fit the MTU, and their checksums are complete.
    None,
}

impl Offload {
    /// Returns the flags of `TUNSETOFFLOAD`.
    ///
    /// `TUN_F_TSO_ECN` is not among them, so the kernel itself cuts a super-segment with CWR. Such super-segments
    /// are rare: a sender sets CWR at most once a round trip (RFC 3168 section 6.1.2).
    fn flags(self) -> libc::c_uint {
        match self {
            Offload::Segmentation => libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6,
            Offload::None => 0,
        }
    }
}

/// A TUN device of this process. The kernel removes the device when this value is dropped or the process ends.
#[derive(Debug)]
pub struct Tun {
    /// The only lasting reference to the file. A [`TunHandle`] has a weak one, so that dropping this value closes
    /// the file and thus removes the device.
    fd: Arc<OwnedFd>,
    offload: Offload,
    buffer: PacketBuffer,
}

impl Tun {
    /// Creates the device `name` (1 to 15 bytes) in the network namespace of the calling thread. The device
    /// is down and has no address.
    ///
    /// # Errors
    /// Fails if `/dev/net/tun` is missing or may not be opened, or if the name is taken.
    pub fn create(name: &str) -> Result<Tun> {
        let fd = open_device(name)?;
        let mut tun = Tun {
            fd: Arc::new(fd),
            offload: Offload::None,
            buffer: PacketBuffer::new(),
        };
        // A kernel may lack the offloads; the engine then works without them. Any error selects this fallback: an
        // error with another cause also fails the second call, which reports it.
        if tun.set_offload(Offload::Segmentation).is_err() {
            tun.set_offload(Offload::None)
                .map_err(SystemError::cannot(format!("set offloads of TUN {name}")))?;
        }
        Ok(tun)
    }

    /// Tells the kernel which offloads this process can handle. Packets from the device may then use them.
    ///
    /// # Errors
    /// Fails with `InvalidInput` if the kernel does not know an offload.
    pub fn set_offload(&mut self, offload: Offload) -> io::Result<()> {
        sys::set_tun_offload(&self.fd, offload.flags())?;
        self.offload = offload;
        Ok(())
    }

    /// Returns a handle that creates the device again after another program removed it.
    pub fn handle(&self) -> TunHandle {
        TunHandle {
            fd: Arc::downgrade(&self.fd),
            offload: self.offload,
        }
    }

    /// Returns the offloads that packets from the kernel to this process may use.
    pub fn offload(&self) -> Offload {
        self.offload
    }
}

/// A weak reference to the file of a [`Tun`]. The file is closed when the [`Tun`] is dropped, even if this value
/// still exists.
#[derive(Debug)]
pub struct TunHandle {
    fd: Weak<OwnedFd>,
    offload: Offload,
}

impl TunHandle {
    /// Returns the name of the device; `None` if the device was removed.
    ///
    /// # Errors
    /// Fails if the kernel does not answer, or if the [`Tun`] was dropped.
    pub fn name(&self) -> io::Result<Option<String>> {
        let fd = self.fd()?;
        sys::tun_name(&fd)
    }

    /// Creates the device `name` again after it was removed. The new device is down and has no address. The
    /// [`Tun`] then reads from it and writes to it.
    ///
    /// # Errors
    /// Fails if the old device still exists, if another device has the name, or if the [`Tun`] was dropped.
    pub fn recreate(&self, name: &str) -> io::Result<()> {
        let fd = self.fd()?;
        sys::attach_tun(&fd, name)?;
        sys::set_tun_offload(&fd, self.offload.flags())
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        let fd = self.fd.upgrade();
        fd.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl PacketIo for Tun {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        let vnet = VnetHdr::of(transmit).emit();
        // The slices are the `virtio_net_hdr`, the packet's headers and the payload. The payload's type limits the
        // payload to 8 slices (`SEND_SLICES` of the engine), so 10 slices always suffice.
        let mut parts = ArrayVec::<IoSlice<'_>, 10>::new();
        parts.push(IoSlice::new(&vnet));
        parts.push(IoSlice::new(transmit.header));
        parts.extend(transmit.payload.iter().map(|p| IoSlice::new(p)));
        // There are no short writes: a TUN device accepts a whole packet or fails. EINTR is an error like others,
        // after which the packet counts as lost. A non-blocking write does not sleep, so EINTR is not expected.
        rustix::io::writev(&self.fd, &parts)?;
        Ok(())
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        let mut vnet = [0; VNET_HDR_LEN];
        // The memory of a `PacketBuffer` is two blocks.
        let [head, rest] = self.buffer.slices_mut();
        let mut parts = [IoSliceMut::new(&mut vnet), head, rest];
        let read = match rustix::io::readv(&self.fd, &mut parts) {
            Ok(read) => read,
            // After EINTR the packet is still in the device's queue. The descriptor stays readable, so the packet
            // is read by a later call.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = read.checked_sub(VNET_HDR_LEN);
        self.buffer.set_len(len.ok_or(io::ErrorKind::InvalidData)?);
        let meta = VnetHdr::parse(&vnet)
            .meta()
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some((&mut self.buffer, meta)))
    }
}

/// A TUN device without offload, for programs that look at each packet. Packets fit the MTU and have complete
/// checksums, in both directions. Each call of the system moves one packet.
#[derive(Debug)]
pub struct PlainTun {
    /// The only lasting reference to the file, as in [`Tun`].
    fd: Arc<OwnedFd>,
    /// A `virtio_net_hdr` and the packet that was read last.
    buffer: Box<[u8]>,
}

impl PlainTun {
    /// Creates the device `name` as [`Tun::create`] does.
    ///
    /// # Errors
    /// Fails as [`Tun::create`] does.
    pub fn create(name: &str) -> Result<PlainTun> {
        let fd = open_device(name)?;
        let was_set = sys::set_tun_offload(&fd, Offload::None.flags());
        was_set.map_err(SystemError::cannot(format!("set offloads of TUN {name}")))?;
        Ok(PlainTun {
            fd: Arc::new(fd),
            buffer: vec![0; VNET_HDR_LEN + MAX_PACKET_LEN].into(),
        })
    }

    /// Returns a handle that creates the device again after another program removed it.
    pub fn handle(&self) -> TunHandle {
        TunHandle {
            fd: Arc::downgrade(&self.fd),
            offload: Offload::None,
        }
    }

    /// Returns the descriptor that is readable while packets wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the next packet; `None` if there is none now.
    ///
    /// # Errors
    /// Fails if the read fails, for example because the device was removed.
    pub fn recv(&mut self) -> io::Result<Option<&[u8]>> {
        match rustix::io::read(&self.fd, &mut self.buffer[..]) {
            // The header is zero, as no offload is on.
            Ok(len) => Ok(self.buffer.get(VNET_HDR_LEN..len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Fails if the device refuses the packet, for example because the device is down.
    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let vnet = VnetHdr::default().emit();
        let parts = [IoSlice::new(&vnet), IoSlice::new(packet)];
        rustix::io::writev(&self.fd, &parts)?;
        Ok(())
    }
}

/// Creates the TUN device `name` in the calling thread's network namespace.
fn open_device(name: &str) -> Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(SystemError::cannot("open /dev/net/tun"))?;
    let fd = OwnedFd::from(file);
    let created = sys::attach_tun(&fd, name);
    created.map_err(SystemError::cannot(format!("create TUN {name}")))?;
    Ok(fd)
}

/// Creates the TUN device `name` in the calling thread's network namespace without segmentation offload, for
/// programs that only pass packets on. Each read or write is one packet, at most as long as the MTU. A header of
/// [`VNET_HDR_LEN`] bytes in front of the packet tells whether the packet's checksum is complete.
///
/// # Errors
/// Fails as [`Tun::create`] does.
pub fn open_plain(name: &str) -> Result<OwnedFd> {
    let fd = open_device(name)?;
    let was_set = sys::set_tun_offload(&fd, libc::TUN_F_CSUM);
    was_set.map_err(SystemError::cannot(format!("set offloads of TUN {name}")))?;
    Ok(fd)
}

/// `struct virtio_net_hdr`, in the byte order of the machine (the TUN default).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct VnetHdr {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VnetHdr {
    fn of(transmit: &Transmit<'_>) -> VnetHdr {
        let mut hdr = VnetHdr {
            // The number of bytes that the kernel stores contiguously. The kernel parses and rewrites headers, so
            // these must be contiguous, and the payload need not be. Headers have at most 100 bytes, so the
            // conversion does not fail. 0 would be valid too: the kernel then chooses the number itself.
            hdr_len: u16::try_from(transmit.header.len()).unwrap_or(0),
            ..VnetHdr::default()
        };
        if let TxChecksum::Partial { start, offset } = transmit.checksum {
            hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
            hdr.csum_start = start;
            hdr.csum_offset = offset;
        }
        // A super-segment always has a partial checksum, since only the device that cuts it can compute the
        // checksums of its packets. If the device's self-test fails, the engine makes neither super-segments nor
        // partial checksums.
        if transmit.gso_size > 0 {
            hdr.gso_size = transmit.gso_size;
            hdr.gso_type = if transmit.v6 {
                VIRTIO_NET_HDR_GSO_TCPV6
            } else {
                VIRTIO_NET_HDR_GSO_TCPV4
            };
        }
        hdr
    }

    fn emit(&self) -> [u8; VNET_HDR_LEN] {
        let mut out = [0; VNET_HDR_LEN];
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        out
    }

    fn parse(bytes: &[u8; VNET_HDR_LEN]) -> VnetHdr {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHdr {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Returns the offload state of a received packet; `None` for a kind of segmentation that no [`Offload`]
    /// requests. Super-segments of TCP are accepted with any [`Offload`], because packets that are in the device's
    /// queue when the offloads change were made with the earlier ones.
    fn meta(&self) -> Option<RxMeta> {
        let gso_size = match self.gso_type & !VIRTIO_NET_HDR_GSO_ECN {
            VIRTIO_NET_HDR_GSO_NONE => 0,
            VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 => self.gso_size,
            _ => return None,
        };
        // NEEDS_CSUM means that the checksum was never completed. So the packet has not left this machine, and
        // no link can have damaged it.
        let trusted = VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID;
        Some(RxMeta {
            checksum_ok: self.flags & trusted != 0,
            gso_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vnet_header_round_trips_and_names_the_gso_type() {
        let payload = [0u8; 3000];
        let transmit = Transmit {
            path: braid_engine::PathId(0),
            header: &[0; 52],
            payload: [&payload[..]].into_iter().collect(),
            gso_size: 1400,
            checksum: TxChecksum::Partial {
                start: 20,
                offset: 16,
            },
            v6: false,
            info: None,
        };
        let hdr = VnetHdr::of(&transmit);
        assert_eq!(VnetHdr::parse(&hdr.emit()), hdr);
        assert_eq!(hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
        assert_eq!((hdr.hdr_len, hdr.csum_start, hdr.csum_offset), (52, 20, 16));
        assert_eq!(
            hdr.meta(),
            Some(RxMeta {
                checksum_ok: true,
                gso_size: 1400
            })
        );
    }

    #[test]
    fn a_packet_without_flags_has_no_verified_checksum() {
        let hdr = VnetHdr::default();
        assert_eq!(hdr.meta(), Some(RxMeta::default()));
        let udp_gso = VnetHdr {
            // `VIRTIO_NET_HDR_GSO_UDP_L4`: a kind of segmentation that is never requested.
            gso_type: 5,
            ..VnetHdr::default()
        };
        assert_eq!(udp_gso.meta(), None);
    }
}
