//! What packets pass a host, or one of its interfaces.

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

/// Largest packet: one that GRO has joined.
const LARGEST: usize = 1 << 16;
/// Packets kept at most; one more is an error.
const MOST: usize = 200_000;
/// Bytes of packets that may wait to be read.
const WAITING: usize = 16 << 20;
/// How often it is looked whether to end.
const PATIENCE: Duration = Duration::from_millis(50);

/// A packet that passed a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When it passed the kernel, however much later it was read here: for one that was received, when it
    /// came, so that it may be before that of the one sent before it.
    pub at: SystemTime,
    /// The packet, from its IP header on.
    pub bytes: Vec<u8>,
}

/// Takes down every packet that an interface of a host, or any of them, sends or receives, until it is
/// finished or dropped.
#[derive(Debug)]
pub struct Capture {
    ending: Arc<AtomicBool>,
    reader: Option<JoinHandle<io::Result<Vec<Captured>>>>,
}

impl Capture {
    /// Begins on all interfaces of `host`: what it forwards is there twice.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`].
    pub fn start(testbed: &Testbed, host: &str) -> Result<Capture, Error> {
        Capture::start_where(testbed, host, None)
    }

    /// Begins on one interface of `host`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`], also where there is no such interface.
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
            // Of no protocol until it is bound: else it had packets of other interfaces by then.
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
            let interface = interface.map(|name| name_to_index(&socket, name));
            // Only root of the whole system may have more than everybody may.
            if set_socket_recv_buffer_size_force(&socket, WAITING).is_err() {
                socket.set_recv_buffer_size(WAITING)?;
            }
            socket.set_read_timeout(Some(PATIENCE))?;
            let interface = interface.transpose()?.unwrap_or(0);
            // There is none yet, but the kernel is to note it from now on.
            let asked = sys::packet_timestamp(socket.as_fd());
            if let Err(e) = asked
                && e.kind() != io::ErrorKind::NotFound
            {
                return Err(e);
            }
            sys::bind_packet_socket(socket.as_fd(), libc::ETH_P_ALL, interface)?;
            Ok(socket)
        });
        let socket = socket.map_err(|e| Error::system(format!("capture packets of {host}"), e))?;
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        let reader = std::thread::spawn(move || read(&socket, &told));
        Ok(Capture {
            ending,
            reader: Some(reader),
        })
    }

    /// Ends it, and returns the packets in the order in which they were seen: all that have passed.
    ///
    /// # Errors
    ///
    /// [`Error::System`] where packets could not be read, or came faster or were more than are kept.
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
        // Nobody wants the packets any more, nor what was wrong with them.
        let _ = self.join();
    }
}

fn read(mut socket: &Socket, ending: &AtomicBool) -> io::Result<Vec<Captured>> {
    let mut packets = Vec::new();
    let mut buffer = vec![0; LARGEST];
    let mut ends = false;
    loop {
        if !ends && ending.load(Ordering::Acquire) {
            // What waits is still read.
            ends = true;
            socket.set_nonblocking(true)?;
        }
        match socket.read(&mut buffer) {
            Ok(_) if packets.len() >= MOST => {
                return Err(io::Error::other(format!("there are more than {MOST}")));
            }
            Ok(len) => packets.push(Captured {
                at: sys::packet_timestamp(socket.as_fd())?,
                bytes: buffer[..len].to_vec(),
            }),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && ends => break,
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

/// How many packets found no room (`tp_drops` of `struct tpacket_stats`, linux/if_packet.h).
fn dropped(socket: &Socket) -> io::Result<u32> {
    let mut stats = [[0; 4]; 2];
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    sys::socket_option(socket.as_fd(), level, option, stats.as_flattened_mut())?;
    Ok(u32::from_ne_bytes(stats[1]))
}
