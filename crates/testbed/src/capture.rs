//! Capture of the packets that a host, or one of its interfaces, sends and receives.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use braid_linux::sys;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Socket, Type};

use crate::error::Error;
use crate::netns;
use crate::testbed::Testbed;

/// The maximum size of a packet, bytes: GRO merges segments up to 64 KiB.
const MAX_PACKET_LEN: usize = 1 << 16;
/// The maximum number of packets of a capture, which bounds memory; more are an error. A guess.
const MAX_PACKETS: usize = 200_000;
/// The size of the socket's receive buffer, bytes. A guess: room for the packets that arrive while the thread does
/// not run.
const BUFFER_LEN: usize = 16 << 20;
/// The interval at which the thread checks the flag that ends the capture.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A packet that a host sent or received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The kernel's timestamp of the packet, which does not depend on the time of the read. A received packet
    /// has the time of its arrival, so packets are not sorted by time.
    pub at: SystemTime,
    /// The packet, from its IP header on.
    pub bytes: Vec<u8>,
}

/// A capture of the packets of one interface or of all interfaces of a host. It runs until it is finished or
/// dropped.
#[derive(Debug)]
pub struct Capture {
    /// Set to true to make the reader end.
    ending: Arc<AtomicBool>,
    reader: Option<JoinHandle<io::Result<Vec<Captured>>>>,
}

impl Capture {
    /// Starts a capture on all interfaces of `host`. A packet that the host forwards is captured twice: as it
    /// arrives and as it leaves.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`].
    pub fn start(testbed: &Testbed, host: &str) -> Result<Capture, Error> {
        Capture::start_where(testbed, host, None)
    }

    /// Starts a capture on one interface of `host`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::System`], for example if there is no such interface.
    pub fn start_on(testbed: &Testbed, host: &str, interface: &str) -> Result<Capture, Error> {
        Capture::start_where(testbed, host, Some(interface))
    }

    fn start_where(
        testbed: &Testbed,
        host: &str,
        interface: Option<&str>,
    ) -> Result<Capture, Error> {
        let namespace = &testbed.layout().host(host)?.namespace;
        let socket = netns::run_inside(namespace, || {
            // A socket without a protocol receives nothing until it is bound. With a protocol, it would queue
            // packets of all interfaces before `bind` selects one.
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
            let interface = interface.map(|name| name_to_index(&socket, name));
            // Only root of the initial user namespace may exceed `net.core.rmem_max`.
            if set_socket_recv_buffer_size_force(&socket, BUFFER_LEN).is_err() {
                socket.set_recv_buffer_size(BUFFER_LEN)?;
            }
            socket.set_read_timeout(Some(POLL_INTERVAL))?;
            let interface = interface.transpose()?.unwrap_or(0);
            // The kernel takes timestamps only after the first request for one. Without a packet, that request
            // fails with `NotFound`.
            let first_request = sys::packet_timestamp(socket.as_fd());
            if let Err(e) = first_request
                && e.kind() != io::ErrorKind::NotFound
            {
                return Err(e);
            }
            sys::bind_packet_socket(socket.as_fd(), libc::ETH_P_ALL, interface)?;
            Ok(socket)
        });
        let socket = socket.map_err(|e| Error::system(format!("capture packets of {host}"), e))?;
        let ending = Arc::new(AtomicBool::new(false));
        let reader_ending = Arc::clone(&ending);
        let reader = std::thread::spawn(move || read(&socket, &reader_ending));
        Ok(Capture {
            ending,
            reader: Some(reader),
        })
    }

    /// Ends the capture, and returns its packets in the order in which the kernel queued them.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if packets could not be read, if the receive buffer overflowed, or if there were more
    /// than 200,000 packets.
    pub fn finish(mut self) -> Result<Vec<Captured>, Error> {
        let packets = self.join();
        packets.map_err(|e| Error::system("capture packets", e))
    }

    fn join(&mut self) -> io::Result<Vec<Captured>> {
        self.ending.store(true, Ordering::Release);
        let Some(reader) = self.reader.take() else {
            return Ok(Vec::new());
        };
        let packets = reader.join();
        packets.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // The owner wants neither the packets nor an error.
        let _ = self.join();
    }
}

fn read(mut socket: &Socket, ending: &AtomicBool) -> io::Result<Vec<Captured>> {
    let mut packets = Vec::new();
    let mut buffer = vec![0; MAX_PACKET_LEN];
    let mut is_ending = false;
    loop {
        if !is_ending && ending.load(Ordering::Acquire) {
            // Packets in the receive buffer belong to the capture, so they are read before it ends.
            is_ending = true;
            socket.set_nonblocking(true)?;
        }
        match socket.read(&mut buffer) {
            Ok(_) if packets.len() >= MAX_PACKETS => {
                return Err(io::Error::other(format!(
                    "there are more than {MAX_PACKETS}"
                )));
            }
            Ok(len) => packets.push(Captured {
                at: sys::packet_timestamp(socket.as_fd())?,
                bytes: buffer[..len].to_vec(),
            }),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && is_ending => break,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    match dropped(socket)? {
        0 => Ok(packets),
        n => Err(io::Error::other(format!("{n} came too fast to be kept"))),
    }
}

/// Returns the number of packets that the full receive buffer dropped (`tp_drops` of `struct tpacket_stats`,
/// linux/if_packet.h).
fn dropped(socket: &Socket) -> io::Result<u32> {
    let mut stats = [[0; 4]; 2];
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    sys::socket_option(socket.as_fd(), level, option, stats.as_flattened_mut())?;
    Ok(u32::from_ne_bytes(stats[1]))
}
