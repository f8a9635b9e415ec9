//! Settings of a tunnel and of its paths.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::Urgency;

/// Most paths of a session, as many as a box may have links. Flows keep a record for each.
pub const MAX_PATHS: usize = 16;
/// Most flows in each direction: frames have 10 bits for the number of a flow.
pub const MAX_FLOWS: u16 = 1 << 10;

/// The cipher of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Suite {
    /// AES-256-GCM, for processors with instructions for AES.
    #[default]
    Aes256Gcm,
    /// ChaCha20-Poly1305, for other processors.
    ChaCha20Poly1305,
}

/// An end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The box: it adds the paths, and proves its addresses.
    Box,
    /// The server: it learns paths and addresses from the box's datagrams.
    Server,
}

/// The rule by which packets are given to paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Each packet goes where it arrives first, so that large flows use all paths.
    #[default]
    Aggregate,
    /// All packets go on the path with the smallest delay.
    Fastest,
    /// Urgent flows (0 to 2) of low rate are sent on two paths, and other flows as in [`Mode::Aggregate`].
    Redundant,
    /// All packets go on the path with the lowest id that works.
    Single,
}

impl Mode {
    /// The least urgent level of which [`Mode::Redundant`] sends copies: above the default, which is 3 (RFC 9218).
    pub const LEAST_URGENT_COPIED: Urgency = Urgency::new(2).expect("a level");

    /// All modes. The place of a mode is its number in frames.
    pub const ALL: [Mode; 4] = [
        Mode::Aggregate,
        Mode::Fastest,
        Mode::Redundant,
        Mode::Single,
    ];

    /// Returns the name of the mode, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Aggregate => "aggregate",
            Mode::Fastest => "fastest",
            Mode::Redundant => "redundant",
            Mode::Single => "single",
        }
    }
}

/// The settings of a tunnel, among them the bounds of its resources.
#[derive(Debug, Clone)]
pub struct Config {
    /// The mode of flows for which nobody wants another ([`crate::FlowPolicy`]).
    pub mode: Mode,
    /// The cipher of all datagrams.
    pub suite: Suite,
    /// The largest inner packet, in bytes. At most 9,000.
    pub inner_mtu: usize,
    /// The size of the largest IP packet on a path that the box has added, in bytes. Only a server uses it.
    pub learned_mtu: usize,
    /// The size of an IP packet that every path is taken to carry, in bytes. Larger ones are probed for (RFC 8899).
    pub least_mtu: usize,
    /// Most paths, at most [`MAX_PATHS`].
    pub max_paths: usize,
    /// Most flows in each direction, at most [`MAX_FLOWS`]. A flow beyond it takes the place of another one.
    pub max_flows: u16,
    /// Most bytes of inner packets that wait to be sent.
    pub send_queue: usize,
    /// Most bytes of sent packets that are kept in case they are lost.
    pub sent_buffer: usize,
    /// Most bytes of inner packets that wait for earlier ones of their flow.
    pub reorder_buffer: usize,
    /// The time for which datagrams under the previous epoch are accepted after the first of the next one.
    pub old_epoch_lifetime: Duration,
    /// The time after which the keys of an epoch are dropped, from the first inner packet under it on. Keys that carry
    /// nothing stay.
    pub max_epoch_use: Duration,
    /// The highest rate of a flow, in bytes per second, at which [`Mode::Redundant`] sends copies.
    pub redundant_rate: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::default(),
            suite: Suite::default(),
            inner_mtu: 1500,
            learned_mtu: 1500,
            // The least MTU of IPv6 (RFC 8200). Links of IPv4 with less are hardly known.
            least_mtu: 1280,
            max_paths: MAX_PATHS,
            // The sizes are guesses. At 1 Gbit/s, 8 MiB take 67 ms.
            max_flows: 512,
            send_queue: 8 << 20,
            sent_buffer: 16 << 20,
            reorder_buffer: 16 << 20,
            // Paths reorder by far less. After this time a leaked old key opens no new datagram.
            old_epoch_lifetime: Duration::from_secs(10),
            // Twice the interval at which a box asks for new keys while it uses the tunnel.
            max_epoch_use: Duration::from_secs(600),
            // A video call with sound takes about that.
            redundant_rate: 250_000,
        }
    }
}

/// The settings of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// The peer's address on this path.
    pub remote: SocketAddr,
    /// The size of the largest IP packet that the link takes, in bytes. At least 576, at most 9,216. What the path
    /// takes beyond [`Config::least_mtu`] is found by probing, so no router may cut its packets (DF of IPv4).
    pub mtu: usize,
}

/// The administrative state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathState {
    /// The path is used like any other.
    #[default]
    Active,
    /// The path is used only while no active path works.
    Backup,
    /// The path is not used: the link is known to be down.
    Down,
}
