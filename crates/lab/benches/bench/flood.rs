//! Datagrams from one namespace to another, as fast as they arrive. The receiver reports what came, and the sender has
//! a fixed number of datagrams on their way, as transports have: without that, what is lost on the way would cost the
//! processors as much as what arrives.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::failure::Failure;
use braid_linux::sys;
use braid_testbed::netns;

/// Bytes of an inner IPv4 packet.
pub const PACKET: usize = 1_400;
/// Bytes of a datagram in such a packet.
const DATAGRAM: usize = PACKET - 28;
/// Datagrams on their way, less than the 500 packets that the queue of a TUN device holds by default.
const WINDOW: u64 = 400;
/// Datagrams after which the receiver reports.
const REPORT_AFTER: u64 = 32;
/// The time without a report after which what is on its way counts as lost.
const REPORT_TIMEOUT: Duration = Duration::from_millis(50);
/// Windows in a row that may be lost.
const MAX_LOST_WINDOWS: u32 = 40;
/// The port of the receiver.
const PORT: u16 = 7_006;

/// The ends of a flood.
pub struct Flood {
    sender: UdpSocket,
    receiver: UdpSocket,
}

/// Figures of one flood.
#[derive(Debug, Clone, Copy)]
pub struct Flooded {
    /// Gbit of inner packets that arrived.
    pub gbit: f64,
    /// From the first datagram to the last report.
    pub seconds: f64,
    /// Share of the datagrams that did not arrive.
    pub lost: f64,
}

impl Flood {
    /// Opens the sockets in the namespaces of both ends, of which the receiver has the address `to`.
    pub fn open(from: &str, (to, address): (&str, IpAddr)) -> io::Result<Flood> {
        let address = SocketAddr::new(address, PORT);
        let receiver = netns::run_inside(to, || UdpSocket::bind(address))?;
        let sender = netns::run_inside(from, || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(address)?;
            Ok(socket)
        })?;
        for socket in [&sender, &receiver] {
            socket.set_read_timeout(Some(REPORT_TIMEOUT))?;
        }
        sys::receive_joined_datagrams(receiver.as_fd())?;
        Ok(Flood { sender, receiver })
    }

    /// Sends a datagram. Returns by which address the receiver sees the sender, if it arrives.
    pub fn seen_by(&self) -> io::Result<Option<IpAddr>> {
        self.sender.send(b"hello")?;
        match self.receiver.recv_from(&mut [0; 16]) {
            Ok((_, from)) => Ok(Some(from.ip())),
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends `datagrams` datagrams, `burst` (1 to 40) of them with each call.
    pub fn run(&self, datagrams: u64, burst: usize) -> Result<Flooded, Failure> {
        let is_over = AtomicBool::new(false);
        // Earlier floods may have left something behind.
        drain(&self.sender)?;
        drain(&self.receiver)?;
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&self.receiver, &is_over));
            let sent = self.send(datagrams, burst);
            is_over.store(true, Ordering::Relaxed);
            let panicked = |_| Failure::Run("the receiver panicked".to_owned());
            let received = receiving.join().map_err(panicked)??;
            Ok(Flooded {
                gbit: (received * PACKET as u64 * 8) as f64 / 1e9,
                seconds: sent?.as_secs_f64(),
                lost: 1.0 - received as f64 / datagrams as f64,
            })
        })
    }

    /// Sends all datagrams. Returns the time from the first datagram to the last report.
    fn send(&self, datagrams: u64, burst: usize) -> Result<Duration, Failure> {
        sys::cut_sent_datagrams(self.sender.as_fd(), DATAGRAM as u16)?;
        let mut bytes = vec![0; DATAGRAM * burst];
        let (mut next, mut reported, mut lost_windows) = (0, 0, 0);
        let since = Instant::now();
        let mut reported_at = since;
        while reported < datagrams {
            while next < datagrams && next < reported + WINDOW {
                let count = burst.min((datagrams - next) as usize);
                for datagram in bytes.chunks_mut(DATAGRAM).take(count) {
                    datagram[..8].copy_from_slice(&u64::to_be_bytes(next));
                    next += 1;
                }
                self.sender.send(&bytes[..count * DATAGRAM])?;
            }
            match read_number(&self.sender)? {
                Some(number) => {
                    // The report says which datagram came last; others before it may be lost.
                    reported = reported.max(number + 1);
                    (reported_at, lost_windows) = (Instant::now(), 0);
                }
                None if lost_windows == MAX_LOST_WINDOWS => {
                    return Err(Failure::Run("no datagram arrives".to_owned()));
                }
                None => (reported, lost_windows) = (next, lost_windows + 1),
            }
        }
        sys::cut_sent_datagrams(self.sender.as_fd(), 0)?;
        Ok(reported_at - since)
    }
}

/// Counts datagrams and reports their numbers until nothing comes after `is_over`.
fn receive(socket: &UdpSocket, is_over: &AtomicBool) -> io::Result<u64> {
    let mut bytes = vec![0; 1 << 16];
    let (mut count, mut reported) = (0, 0);
    loop {
        let (len, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) if is_timeout(&error) && is_over.load(Ordering::Relaxed) => {
                return Ok(count);
            }
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        };
        // Several datagrams that the kernel has joined.
        let mut last = None;
        for datagram in bytes[..len].chunks_exact(DATAGRAM) {
            count += 1;
            last = datagram.first_chunk::<8>();
        }
        // Without the timeout, the sender would wait for the report of the last ones.
        let Some(number) = last else { continue };
        if count >= reported + REPORT_AFTER || u64::from_be_bytes(*number) % REPORT_AFTER == 0 {
            reported = count;
            socket.send_to(number, from)?;
        }
    }
}

fn drain(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0; 16]).is_ok() {}
    socket.set_nonblocking(false)
}

fn read_number(socket: &UdpSocket) -> io::Result<Option<u64>> {
    let mut number = [0; 8];
    match socket.recv(&mut number) {
        Ok(_) => Ok(Some(u64::from_be_bytes(number))),
        Err(error) if is_timeout(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
