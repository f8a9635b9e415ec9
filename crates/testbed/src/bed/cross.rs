//! Cross traffic on a link.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Bed;
use crate::error::Error;
use crate::netns;

/// Destination port: the discard service.
const PORT: u16 = 9;
/// Payload of a packet in bytes. The packet has 28 more: 20 of IPv4's header, 8 of UDP's.
const PAYLOAD: usize = 1200;
const PACKET: u64 = PAYLOAD as u64 + 28;
/// Interval between two looks at the bytes that are due.
const TICK: Duration = Duration::from_millis(1);

/// UDP traffic at a constant rate, until it is dropped.
#[derive(Debug)]
pub struct Cross {
    ending: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
    /// Receives the packets, so that the host sends no ICMP errors.
    _sink: UdpSocket,
}

impl Bed {
    /// Starts to send `rate` bit/s, headers included, over a link to the host at its `from` end.
    ///
    /// # Errors
    /// Fails if there is no such link, or if the system refuses.
    pub fn cross_traffic(&self, link: &str, rate: u64) -> Result<Cross, Error> {
        let status = self.testbed.link_status(link)?;
        let refused = |e| Error::system(format!("send traffic over {link}"), e);
        let to = self.interface(&status.from, |i| i.name == link)?.address4;
        let namespace = |host: &str| Ok::<_, Error>(&self.testbed.layout().host(host)?.namespace);
        let sink = netns::run_inside(namespace(&status.from)?, || UdpSocket::bind((to, PORT)));
        let source = netns::run_inside(namespace(&status.to)?, || {
            let source = UdpSocket::bind(("0.0.0.0", 0))?;
            source.connect((to, PORT))?;
            Ok(source)
        });
        let (sink, source) = (sink.map_err(refused)?, source.map_err(refused)?);
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        Ok(Cross {
            ending,
            sender: Some(thread::spawn(move || send(&source, rate, &told))),
            _sink: sink,
        })
    }
}

impl Drop for Cross {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Some(sender) = self.sender.take() {
            // The thread returns nothing.
            let _ = sender.join();
        }
    }
}

fn send(socket: &UdpSocket, rate: u64, ending: &AtomicBool) {
    let begun = Instant::now();
    let mut sent = 0u64;
    while !ending.load(Ordering::Acquire) {
        let due = (begun.elapsed().as_secs_f64() * rate as f64 / 8.0) as u64;
        while sent + PACKET <= due {
            // A packet that the device has no room for is lost, as one that the link has no room for.
            let _ = socket.send(&[0; PAYLOAD]);
            sent += PACKET;
        }
        thread::sleep(TICK);
    }
}
