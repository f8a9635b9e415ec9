//! Profiles: sets of settings of hosts and links, such as those of the simulations in papers.

use core::net::Ipv4Addr;
use core::time::Duration;

use braid_engine::cc::NEWRENO;
use braid_engine::{Config, DelayedAck, PathConfig};
use braid_links::{QueueLimit, Rate, Settings};

/// A set of settings of hosts and links.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The settings of the engine.
    pub engine: Config,
    /// The maximum size of an IP packet, bytes.
    pub mtu: u16,
    /// The queue of every link.
    pub queue: QueueLimit,
}

impl Default for Profile {
    /// Returns the profile of today's networks: the engine's defaults, packets of 1500 bytes, queues of 50
    /// packets.
    fn default() -> Self {
        Profile {
            engine: Config::default(),
            mtu: 1500,
            queue: QueueLimit::Packets(50),
        }
    }
}

impl Profile {
    /// Returns the defaults of NS-2 for `Agent/TCP/Newreno` and `Agent/TCPSink/DelAck`, which many papers use.
    ///
    /// These are a maximum window of 20 packets (`window_`), an initial window of 2 packets (`windowInit_`),
    /// packets of 1000 bytes (`packetSize_`), acknowledgements delayed by 100 ms (`interval_`) or until the
    /// second packet, a minimum retransmission timeout of 0.2 s (`minrto_`), and queues of 50 packets
    /// (`queue-limit`).
    ///
    /// The engine differs from NS-2 in other respects: it has SACK, RACK and PRR, paces packets beyond the initial
    /// window, counts bytes instead of acknowledgements in slow start (RFC 3465), and adds the minimum timeout to
    /// the round-trip time instead of taking the larger of the two. Here the 1000 bytes include the IP and TCP
    /// headers; NS-2 adds 40 bytes for these headers.
    pub fn ns2() -> Self {
        Profile {
            engine: Config {
                initial_window: 2,
                max_cwnd: Some(20),
                delayed_ack: DelayedAck {
                    timeout: Duration::from_millis(100),
                    every: 2,
                    quick: 0,
                },
                min_rto: Duration::from_millis(200),
                // The maximum window without window scaling. It holds three windows of 20 packets. The SYN
                // announces all of it, so the receiver never sends an acknowledgement only to announce a larger
                // window.
                recv_buffer: 65_535,
                congestion: NEWRENO,
                ..Config::default()
            },
            mtu: 1000,
            queue: QueueLimit::Packets(50),
        }
    }

    /// Returns a path of a host with the address `addr`.
    pub fn path(&self, addr: Ipv4Addr) -> PathConfig {
        PathConfig {
            mtu: self.mtu,
            ..PathConfig::v4(addr)
        }
    }

    /// Returns a link without loss.
    pub fn link(&self, rate: Rate, delay: Duration) -> Settings {
        Settings {
            rate,
            delay,
            queue: self.queue,
            ..Settings::default()
        }
    }
}
