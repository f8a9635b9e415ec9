//! TUN devices with segmentation and receive offload.
//!
//! Every packet has a `virtio_net_hdr` in front of it. This header has the payload length of the packets that a
//! super-segment stands for, and the place of their checksum. So process and kernel exchange a super-segment of up
//! to 64 kB as one buffer, in both directions, and the kernel's stack handles it as one packet.
//!
//! No library is used for the engine's device. Libraries with TUN offload split and merge super-segments in user space.
//! Their callers copy the payload and handle each packet, which is the work that offload saves the engine. The tunnel
//! has to handle each packet: [`PacketTun`] splits and merges for it.

#[cfg(test)]
mod examples;
mod headers;
mod join;
mod split;
mod vnet;

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use braid_engine::buffer::PacketBuffer;
use braid_engine::{RxMeta, Transmit};

use crate::net::{Result, SystemError};
use crate::sys;
use join::{Joinable, Joiner};
pub use split::Packets;
use vnet::VnetHdr;
pub use vnet::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VNET_HDR_LEN};

/// Maximum length in bytes of a packet that the kernel delivers. It is the maximum length of an IPv4 packet and
/// the largest MTU of a TUN device. Super-segments over IPv6 can be longer, but the defaults of `gso_max_size` and
/// `gro_max_size`, 65,536 bytes, keep them within this length.
const MAX_PACKET_LEN: usize = 65_535;
const _: () = assert!(MAX_PACKET_LEN <= PacketBuffer::CAPACITY);

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
    /// As [`Offload::Segmentation`], and segmentation of UDP (since Linux 6.2).
    WithUdp,
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
            Offload::WithUdp => Offload::Segmentation.flags() | libc::TUN_F_USO4 | libc::TUN_F_USO6,
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
        let (fd, offload) = open_with(name, &[Offload::Segmentation])?;
        Ok(Tun {
            fd: Arc::new(fd),
            offload,
            buffer: PacketBuffer::new(),
        })
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

/// A TUN device for programs that look at each packet. The kernel exchanges super-segments with this process, which
/// cuts and joins them, so that a system call moves many packets of a flow.
#[derive(Debug)]
pub struct PacketTun {
    /// The only lasting reference to the file, as in [`Tun`].
    fd: Arc<OwnedFd>,
    offload: Offload,
    /// A `virtio_net_hdr` and the packet or super-segment that was read last.
    buffer: Box<[u8]>,
    joiner: Joiner,
    writer: Writer,
}

/// The writes to a [`PacketTun`].
#[derive(Debug)]
struct Writer {
    /// The protocols of which the kernel takes super-segments.
    joinable: Joinable,
    written: Written,
}

/// The outcome of writes to a [`PacketTun`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Packets that the device took.
    pub packets: u64,
    /// System calls that the device took, each with a packet or a super-segment.
    pub writes: u64,
    /// Packets that the device refused, for example because it is down.
    pub refused: u64,
}

impl PacketTun {
    /// Creates the device `name` as [`Tun::create`] does.
    ///
    /// # Errors
    /// Fails as [`Tun::create`] does.
    pub fn create(name: &str) -> Result<PacketTun> {
        let (fd, offload) = open_with(name, &[Offload::WithUdp, Offload::Segmentation])?;
        Ok(PacketTun {
            fd: Arc::new(fd),
            offload,
            buffer: vec![0; VNET_HDR_LEN + MAX_PACKET_LEN].into(),
            joiner: Joiner::default(),
            writer: Writer {
                joinable: Joinable {
                    tcp: offload != Offload::None,
                    udp: offload == Offload::WithUdp,
                },
                written: Written::default(),
            },
        })
    }

    /// Returns a handle that creates the device again after another program removed it.
    pub fn handle(&self) -> TunHandle {
        TunHandle {
            fd: Arc::downgrade(&self.fd),
            offload: self.offload,
        }
    }

    /// Returns the descriptor that is readable while packets wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads once, and returns the packets of what was read: one, or those of a super-segment. `None` if none waits.
    ///
    /// # Errors
    /// Fails if the read fails, for example because the device was removed. Fails with `InvalidData` if what was read
    /// has a malformed offload header; it is then lost.
    pub fn recv(&mut self) -> io::Result<Option<Packets<'_>>> {
        let len = match rustix::io::read(&self.fd, &mut self.buffer[..]) {
            Ok(len) => len,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let bytes = &mut self.buffer[..len];
        let (vnet, packet) = bytes.split_first_chunk_mut().ok_or_else(invalid)?;
        let packets = Packets::new(&VnetHdr::parse(vnet), packet);
        packets.map(Some).ok_or_else(invalid)
    }

    /// Sends a packet at the next [`Self::flush`] or before it. Packets of a flow stay in order.
    pub fn send(&mut self, packet: &[u8]) {
        let (fd, writer) = (&self.fd, &mut self.writer);
        let joinable = writer.joinable;
        let mut put = |bytes: &[u8]| rustix::io::write(fd, bytes);
        let mut write = |bytes: &mut [u8], count| writer.write(bytes, count, &mut put);
        self.joiner.push(packet, joinable, &mut write);
    }

    /// Sends what waits to be joined with later packets. Returns the outcome of all writes since the last call.
    pub fn flush(&mut self) -> Written {
        let (fd, writer) = (&self.fd, &mut self.writer);
        let mut put = |bytes: &[u8]| rustix::io::write(fd, bytes);
        let mut write = |bytes: &mut [u8], count| writer.write(bytes, count, &mut put);
        self.joiner.flush(&mut write);
        std::mem::take(&mut self.writer.written)
    }
}

/// Writes bytes to the device by one system call.
type Put<'a> = &'a mut dyn FnMut(&[u8]) -> rustix::io::Result<usize>;

impl Writer {
    /// Writes a `virtio_net_hdr` and the packet or super-segment of `count` packets behind it.
    ///
    /// Some kernels refuse super-segments although they granted the offload: 6.6.44 and others refuse those whose last
    /// packet is shorter. The packets are then written one by one, and no more are joined.
    fn write(&mut self, bytes: &mut [u8], count: usize, put: Put<'_>) {
        match put(bytes) {
            Ok(_) => {
                self.written.packets += count as u64;
                self.written.writes += 1;
            }
            Err(rustix::io::Errno::INVAL) if count > 1 => self.write_cut(bytes, count, put),
            Err(_) => self.written.refused += count as u64,
        }
    }

    fn write_cut(&mut self, bytes: &mut [u8], count: usize, put: Put<'_>) {
        let parts = bytes.split_first_chunk_mut();
        let packets = parts.and_then(|(vnet, packet)| {
            let vnet = VnetHdr::parse(vnet);
            let is_udp = vnet.kind() == vnet::VIRTIO_NET_HDR_GSO_UDP_L4;
            Some((is_udp, Packets::new(&vnet, packet)?))
        });
        let Some((is_udp, mut packets)) = packets else {
            self.written.refused += count as u64;
            return;
        };
        let before = self.written.packets;
        while let Some(packet) = packets.next() {
            self.write(&mut [&[0; VNET_HDR_LEN], packet].concat(), 1, put);
        }
        // If the kernel refuses these too, the packets were at fault.
        if self.written.packets == before {
            return;
        }
        let (joinable, protocol) = if is_udp {
            (&mut self.joinable.udp, "UDP")
        } else {
            (&mut self.joinable.tcp, "TCP")
        };
        if std::mem::take(joinable) {
            tracing::warn!(
                protocol,
                "the kernel refuses super-segments for the packet device of the tunnel, although it granted the \
                 offload; packets of this protocol go to it one by one, which takes more processor time"
            );
        }
    }
}

/// Creates the TUN device `name` in the calling thread's network namespace, with the first of `offloads` that the
/// kernel has, or with none.
fn open_with(name: &str, offloads: &[Offload]) -> Result<(OwnedFd, Offload)> {
    let fd = open_device(name)?;
    for offload in offloads {
        if sys::set_tun_offload(&fd, offload.flags()).is_ok() {
            return Ok((fd, *offload));
        }
    }
    // An error with another cause than a missing offload also fails this call.
    sys::set_tun_offload(&fd, Offload::None.flags())
        .map_err(SystemError::cannot(format!("set offloads of TUN {name}")))?;
    Ok((fd, Offload::None))
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

#[cfg(test)]
mod tests;
