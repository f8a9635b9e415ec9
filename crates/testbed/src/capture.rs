//! Captures of the packets that pass a host, or one of its interfaces.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use braid_linux::sys;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Socket, Type};

use crate::error::Error;
use crate::netns;
use crate::testbed::Testbed;
use crate::worker::Worker;

/// Maximum length of a packet, bytes: GRO makes super-segments of at most 64 KiB.
const MAX_PACKET_LEN: usize = 1 << 16;
/// Maximum number of packets in a capture. A capture of more packets fails. 200,000 is a guess that bounds the
/// memory.
const MAX_PACKETS: usize = 200_000;
/// Size of the socket's receive buffer, bytes. 16 MiB is a guess: room for bursts while the reader does not run.
const BUFFER_LEN: usize = 16 << 20;
/// Interval at which the reader checks the flag that ends the capture.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A packet that passed a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The time at which the packet passed the kernel, not the later time at which this program read it. For a
    /// received packet this is the time of arrival, so it may be earlier than the time of the previous packet in
    /// the list.
    pub at: SystemTime,
    /// The bytes of the packet, which begin with its IP header.
    pub bytes: Vec<u8>,
}

/// A running capture of all packets that a host, or one of its interfaces, sends and receives. It ends when it
/// is finished or dropped.
#[derive(Debug)]
pub struct Capture(Worker<io::Result<Vec<Captured>>>);

impl Capture {
    /// Starts a capture on all interfaces of `host`. Packets that the host forwards appear twice.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`].
    pub fn start(testbed: &Testbed, host: &str) -> Result<Capture, Error> {
        Capture::start_on(testbed, host, None)
    }

    /// Starts a capture on one interface of `host`, or on all interfaces for `None`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::System`], also if there is no such interface.
    pub fn start_on<'a>(
        testbed: &Testbed,
        host: &str,
        interface: impl Into<Option<&'a str>>,
    ) -> Result<Capture, Error> {
        let interface = interface.into();
        let namespace = &testbed.layout().host(host)?.namespace;
        let socket = netns::run_inside(namespace, || {
            // The socket has no protocol, so it gets no packets until it is bound. With a protocol it would queue
            // packets of other interfaces until it is bound.
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
            let interface = interface.map(|name| name_to_index(&socket, name));
            // Only root of the initial user namespace may exceed `net.core.rmem_max`.
            if set_socket_recv_buffer_size_force(&socket, BUFFER_LEN).is_err() {
                socket.set_recv_buffer_size(BUFFER_LEN)?;
            }
            socket.set_read_timeout(Some(POLL_INTERVAL))?;
            let interface = interface.transpose()?.unwrap_or(0);
            // The call finds no timestamp, because no packet has come. But the first call makes the kernel take
            // timestamps from now on.
            match sys::packet_timestamp(socket.as_fd()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            sys::bind_packet_socket(socket.as_fd(), libc::ETH_P_ALL, interface)?;
            Ok(socket)
        });
        let socket = socket.map_err(|e| Error::system(format!("capture packets of {host}"), e))?;
        Ok(Capture(Worker::start(move |stop| read(&socket, stop))))
    }

    /// Ends the capture, and returns all packets that have passed, in the order in which they were seen.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if packets could not be read, came too fast, or were more than 200,000.
    pub fn finish(mut self) -> Result<Vec<Captured>, Error> {
        let packets = self.0.stop().unwrap_or_else(|| Ok(Vec::new()));
        packets.map_err(|e| Error::system("capture packets", e))
    }
}

fn read(mut socket: &Socket, stop: &AtomicBool) -> io::Result<Vec<Captured>> {
    let mut packets = Vec::new();
    let mut buffer = vec![0; MAX_PACKET_LEN];
    let mut draining = false;
    loop {
        if !draining && stop.load(Ordering::Acquire) {
            // Packets that passed before the end are still read; the first empty read ends the loop.
            draining = true;
            socket.set_nonblocking(true)?;
        }
        match socket.read(&mut buffer) {
            Ok(_) if packets.len() >= MAX_PACKETS => {
                let message = format!("there are more than {MAX_PACKETS} packets");
                return Err(io::Error::other(message));
            }
            Ok(len) => packets.push(Captured {
                at: sys::packet_timestamp(socket.as_fd())?,
                bytes: buffer[..len].to_vec(),
            }),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && draining => break,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    match dropped(socket)? {
        0 => Ok(packets),
        n => {
            let message = format!("{n} packets came too fast to be read");
            Err(io::Error::other(message))
        }
    }
}

/// Returns the number of packets that found no room in the buffer: `tp_drops`, the second field of `struct
/// tpacket_stats` (linux/if_packet.h).
fn dropped(socket: &Socket) -> io::Result<u32> {
    let mut stats = [[0; 4]; 2];
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    sys::socket_option(socket.as_fd(), level, option, stats.as_flattened_mut())?;
    Ok(u32::from_ne_bytes(stats[1]))
}
