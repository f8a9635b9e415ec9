//! Trials: a trial opens one connection to a server over one link, as a box does, and reports how far it gets.
//!
//! The caller sends and receives the packets. A trial therefore needs no TUN device and no listener, and can run
//! beside a box with the same link and server.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::IoSlice;

use braid_engine::{
    ApiError, CloseReason, Config, ConnId, ConnectOptions, Event, FallbackCause, PathConfig,
    RxMeta, Stack,
};
use braid_secure::auth::{SignIn, WallClock};
use braid_secure::channel::{Channel, ChannelError, Client, Versions};
use braid_secure::keys::PrivateKey;
use braid_wire::{Instant, Rng};

use crate::config::{Protection, ServerEntry};
use crate::protocol::socks::{self, ClientError, ClientHandshake, ClientStep};
use crate::relay::{StepError, read_step};

/// Memory limit of a trial's stack, bytes. One connection that carries a handshake needs far less.
const TRIAL_MEMORY_BYTES: usize = 8 << 20;
/// The number of first bytes of an answer that show a web page: the length of `HTTP/`, the longest prefix searched
/// for.
const WEB_PAGE_PREFIX_LEN: usize = 5;

/// The link, the server and the keys of a trial.
#[derive(Debug)]
pub struct TrialSetup<'a> {
    /// Local address of the link, and a port that nothing else on this machine uses.
    pub local: SocketAddr,
    /// The server's address of the same family.
    pub remote: SocketAddr,
    /// Size of the largest IP packet that the link carries, bytes.
    pub mtu: u16,
    /// The box's private key.
    pub key: &'a PrivateKey,
    /// The server's entry in the box's configuration.
    pub server: &'a ServerEntry,
    /// Versions of the protocol that the box speaks.
    pub versions: Versions,
    /// Random bytes that no other trial uses.
    pub seed: [u8; 32],
    /// The wall clock: the time since 1970-01-01 UTC.
    pub since_epoch: Duration,
}

/// The result of the path's test for Multipath TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multipath {
    /// Multipath TCP works.
    Intact,
    /// The path or the server answers without the options of Multipath TCP.
    Stripped,
    /// SYNs with the options of Multipath TCP are dropped, and SYNs without them are answered.
    Blocked,
    /// Multipath TCP was agreed on in the handshake, and the data that followed caused a fallback.
    Lost(FallbackCause),
}

/// The result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialEnd {
    /// No result yet: the SYN or the box's first message has no answer.
    Pending,
    /// The server has accepted the box and waits for its requests.
    SignedIn,
    /// A web server answers in place of a Braid server, as a captive portal does.
    WebPage,
    /// Something other than a Braid server answers.
    NoServer,
    /// The connection was established, and ended before the sign-in was complete.
    CutOff,
    /// The SYN was refused: nothing listens on the port.
    Refused,
    /// The network reports that there is no route.
    Unreachable,
    /// The TLS handshake failed.
    Broken(ChannelError),
    /// The server refuses the box's password, which authenticates plaintext connections.
    PasswordRefused,
}

/// The findings of a trial so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialReport {
    /// Time from the SYN to its answer; `None` without an answer.
    pub opened: Option<Duration>,
    /// The result for Multipath TCP; `None` while it is unknown.
    pub multipath: Option<Multipath>,
    /// The result.
    pub end: TrialEnd,
}

/// A trial under way.
#[derive(Debug)]
pub struct Trial {
    stack: Stack,
    channel: Channel,
    handshake: ClientHandshake,
    began: Instant,
    first_bytes_checked: bool,
    report: TrialReport,
}

impl Trial {
    /// Begins a trial; the SYN is ready to be sent.
    ///
    /// # Errors
    /// The addresses are of different families, or the TLS library reports an error.
    pub fn begin(now: Instant, setup: &TrialSetup<'_>) -> Result<Trial, ApiError> {
        let config = Config {
            max_transmit: usize::from(setup.mtu),
            // The packets leave by a socket of the caller, and no device adds checksums.
            checksum_offload: false,
            memory: TRIAL_MEMORY_BYTES,
            max_connections: 4,
            ..Config::default()
        };
        let mut rng = Rng::from_seed(setup.seed);
        let mut nonce = [0; 16];
        rng.fill(&mut nonce);
        let strategy = || -> Box<dyn braid_engine::strategy::Strategy> {
            // A trial sends no user data, so the strategy decides nothing.
            Box::new(braid_strategy::Waiting::default())
        };
        let mut stack = Stack::new(config, rng, Box::new(strategy));
        let (v4, v6) = match setup.local.ip() {
            IpAddr::V4(a) => (Some(a), None),
            IpAddr::V6(a) => (None, Some(a)),
        };
        let path = stack.add_path(PathConfig {
            v4,
            v6,
            mtu: setup.mtu,
            ..PathConfig::default()
        })?;
        stack.set_path_up(now, path, true);
        let options = ConnectOptions {
            local: Some(setup.local),
            path: Some(path),
            ..ConnectOptions::new(setup.remote, strategy())
        };
        let conn = stack.connect(now, options)?;
        let mut wall = WallClock::default();
        wall.set(now, setup.since_epoch);
        let (mut channel, first_message) = open(now, conn, setup, &wall, nonce, &mut stack)?;
        channel.write_all(now, &mut stack, &first_message)?;
        let handshake = ClientHandshake::new(channel.is_protected());
        Ok(Trial {
            stack,
            channel,
            handshake,
            began: now,
            first_bytes_checked: false,
            report: TrialReport {
                opened: None,
                multipath: None,
                end: TrialEnd::Pending,
            },
        })
    }

    /// Processes a packet that was received from the link. Packets of other connections are ignored.
    pub fn receive(&mut self, now: Instant, packet: &[u8]) {
        // The kernel has verified the checksum, or the packet never left this machine.
        let meta = RxMeta {
            checksum_ok: true,
            gso_size: 0,
        };
        self.stack.receive(now, packet, meta);
        self.follow(now);
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let transmit = self.stack.poll_transmit(now)?;
        Some([transmit.header, &transmit.payload.concat()].concat())
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.stack.next_timeout()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.stack.handle_timeout(now);
        self.follow(now);
    }

    /// Returns whether the trial has a result.
    pub fn is_over(&self) -> bool {
        self.report.end != TrialEnd::Pending
    }

    /// Aborts the connection; the reset for the server is ready to be sent.
    pub fn give_up(&mut self, now: Instant) {
        self.channel.abort(now, &mut self.stack);
    }

    /// Returns the findings so far.
    pub fn report(&self) -> TrialReport {
        self.report
    }

    /// Updates the report by the engine's events.
    fn follow(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Connected { .. } => {
                    self.report
                        .opened
                        .get_or_insert(now.saturating_since(self.began));
                    self.report.multipath.get_or_insert(Multipath::Intact);
                }
                Event::FellBack { cause, .. } => self.report.multipath = Some(after(cause)),
                Event::Readable { .. } | Event::Writable { .. } => self.read(now),
                Event::Closed { reason, .. } => self.closed(reason),
                _ => {}
            }
        }
    }

    /// Reads the server's answers, until they yield a result.
    fn read(&mut self, now: Instant) {
        if self.is_over() || !self.is_first_answer_ours(now) {
            return;
        }
        let handshake = &mut self.handshake;
        let input = |bytes: &[u8]| handshake.input(bytes);
        let step = read_step(
            now,
            &mut self.channel,
            &mut self.stack,
            ClientStep::More,
            input,
        );
        self.report.end = match step {
            Ok(ClientStep::More) if self.handshake.is_signed_in() => TrialEnd::SignedIn,
            Ok(ClientStep::More) if self.channel.read_finished(&self.stack) => TrialEnd::CutOff,
            Ok(ClientStep::More) | Err(StepError::Gone) => return,
            Ok(ClientStep::Failed(ClientError::AuthRefused | ClientError::MethodRefused)) => {
                TrialEnd::PasswordRefused
            }
            Ok(ClientStep::Failed(_) | ClientStep::Connected) => TrialEnd::NoServer,
            Err(StepError::Broken(broken)) => TrialEnd::Broken(broken),
        };
    }

    /// Checks whether the first received bytes are a web page, before the handshake consumes them. Returns false
    /// for a web page.
    fn is_first_answer_ours(&mut self, now: Instant) -> bool {
        if self.first_bytes_checked {
            return true;
        }
        let mut first = Vec::new();
        let look = |bufs: &[IoSlice<'_>]| {
            let bytes = bufs.iter().flat_map(|buf| buf.iter());
            first = bytes.take(WEB_PAGE_PREFIX_LEN).copied().collect();
            // Zero consumed bytes: the handshake will read them.
            Ok::<_, ApiError>(0)
        };
        // On an error `first` stays empty, and the `Closed` event gives the result.
        let _ = self.stack.read_with(now, self.channel.conn, look);
        self.first_bytes_checked = !first.is_empty();
        let is_page = first.starts_with(b"HTTP/") || first.starts_with(b"<");
        if is_page {
            self.report.end = TrialEnd::WebPage;
        }
        !is_page
    }

    /// Sets the result after the end of the connection.
    fn closed(&mut self, reason: CloseReason) {
        if self.is_over() {
            return;
        }
        self.report.end = match reason {
            CloseReason::Refused => TrialEnd::Refused,
            CloseReason::Unreachable => TrialEnd::Unreachable,
            // Without an answer the result stays `Pending`; the caller decides how long it waits.
            CloseReason::TimedOut | CloseReason::Aborted => return,
            _ if self.report.opened.is_none() => TrialEnd::Refused,
            _ => TrialEnd::CutOff,
        };
    }
}

/// Opens a channel on a new connection; also returns the box's first message.
fn open(
    now: Instant,
    conn: ConnId,
    setup: &TrialSetup<'_>,
    wall: &WallClock,
    nonce: [u8; 16],
    stack: &mut Stack,
) -> Result<(Channel, Vec<u8>), ApiError> {
    let TrialSetup {
        key,
        server,
        versions,
        ..
    } = setup;
    if server.protection == Protection::None {
        let sign_in = SignIn::new(wall.unix_ms(now), nonce);
        let user = key.public().to_string();
        let first_message = socks::sign_in(user.as_bytes(), &sign_in.password(key, server.key));
        return Ok((Channel::plaintext(conn), first_message));
    }
    let client = Client::new(key, server.key, *versions);
    client.set_clock(now, wall);
    let channel = Channel::open(now, conn, &client, stack)?;
    Ok((channel, socks::GREETING.to_vec()))
}

/// Returns the result for Multipath TCP after a fallback.
fn after(cause: FallbackCause) -> Multipath {
    match cause {
        FallbackCause::PeerSynAckPlain => Multipath::Stripped,
        FallbackCause::SynsDropped => Multipath::Blocked,
        cause => Multipath::Lost(cause),
    }
}
