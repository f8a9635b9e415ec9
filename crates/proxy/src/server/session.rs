//! A connection of a box, from its acceptance to its end.

use core::net::{IpAddr, SocketAddr};

use braid_secure::auth::{AuthError, Grant};
use braid_secure::channel::{Channel, ChannelError};
use braid_wire::Instant;

use crate::admin::report::ServerCounters;
use crate::app::{ConnectFailure, DownstreamId};
use crate::protocol::socks::{Destination, EarlyHints, Reply, ServerError, ServerHandshake};
use crate::relay::Relay;

use super::egress::RelayRate;
use super::train::Departures;

/// A connection of a box.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) remote: IpAddr,
    /// Index of the user in the configuration, once authenticated. `None` also for a session that does not count
    /// towards its user: a probe, or a refused handshake.
    pub(super) user: Option<usize>,
    /// The destination, once the request is complete.
    pub(super) destination: Option<Box<Destination>>,
    /// The decoder of early hints, until these have come.
    pub(super) early_hints: Option<EarlyHints>,
    /// The start of the current handshake or request.
    pub(super) started: Instant,
    pub(super) stage: Stage,
    /// Deadline of the handshake or, after the request, of the connection to the destination with all its
    /// attempts. A relay has a deadline of its own.
    pub(super) deadline: Instant,
}

/// The current stage of a session.
#[derive(Debug)]
pub(super) enum Stage {
    /// Waits for the request.
    Handshake(Box<Handshake>),
    /// Looks up the destination's name.
    Resolving,
    /// Connects to an address of the destination.
    Connecting {
        downstream: DownstreamId,
        /// The addresses still to be tried, the next one last.
        others: Vec<SocketAddr>,
        /// The address of the current attempt.
        addr: IpAddr,
        /// The start of the current attempt.
        since: Instant,
    },
    /// Relays between box and destination.
    Relaying(Relay, RelayRate),
    /// Sends the train of a probe.
    Departing(Departures),
    /// Waits for the peer to close, after the server has sent its last message.
    Closing,
    /// Waits for the peer to close after a failed handshake. The session still counts as a handshake, so that
    /// failed handshakes cannot exceed the limits.
    Refused,
}

/// The state of a handshake, from acceptance or an earlier request to the next request.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// True once the first bytes show if the connection is protected.
    pub(super) protection_known: bool,
    pub(super) socks: ServerHandshake,
    pub(super) grant: Option<Grant>,
    /// True once the peer has sent something. A connection that closes before counts as a box's probe of a link.
    pub(super) peer_has_sent: bool,
    /// True while the box is signed in and the session waits idle for the request.
    pub(super) is_waiting: bool,
    /// The time until which the session may wait idle. It is set when the first wait begins, so that messages
    /// without a request do not extend this time.
    pub(super) waiting_until: Option<Instant>,
    /// True if the connection has served a user before. The box may still have bytes to deliver to this user.
    pub(super) had_user: bool,
}

impl Handshake {
    /// Creates the handshake that follows a request of `user` on the same connection. Only protected connections
    /// serve several requests, so TLS has proved the user's key.
    pub(super) fn after_user(user: usize) -> Self {
        Handshake {
            protection_known: true,
            socks: ServerHandshake::signed_in(),
            grant: Some(Grant::proven(user)),
            peer_has_sent: true,
            had_user: true,
            ..Handshake::default()
        }
    }
}

impl Session {
    pub(super) fn relay_mut(&mut self) -> Option<&mut Relay> {
        match &mut self.stage {
            Stage::Relaying(relay, _) => Some(relay),
            _ => None,
        }
    }
}

/// The reason why the server refuses a session that has no connected destination.
pub(super) enum Refusal {
    /// The connection is plaintext, but the server requires protection.
    Plaintext,
    /// The channel failed, so the connection has no protection.
    Unprotected(ChannelError),
    /// No user has the peer's key now: the user was removed after the box had received a session ticket.
    UnknownKey,
    /// The peer violates SOCKS5.
    Socks(ServerError),
    /// The password is not accepted.
    Auth(AuthError),
    /// The password is valid, but its signature is not for this request or probe.
    WrongDestination,
    /// The rules forbid the destination.
    Forbidden(SocketAddr),
    /// The user has too many connections.
    OverLimit,
    /// No address of the destination was reached.
    Failure(ConnectFailure),
}

impl Refusal {
    /// Returns the reply to the peer. It is empty if the peer could not read a SOCKS5 reply.
    pub(super) fn reply(&self) -> Vec<u8> {
        let reply = match self {
            Refusal::Plaintext | Refusal::Unprotected(_) => return Vec::new(),
            // Tell the box that its key is the cause, so that it tries another server.
            Refusal::UnknownKey => return ServerError::NoMethod.reply(),
            Refusal::Socks(e) => return e.reply(),
            Refusal::Auth(_) => return ServerHandshake::REFUSED.to_vec(),
            Refusal::WrongDestination | Refusal::Forbidden(_) => Reply::NotAllowed,
            Refusal::OverLimit => Reply::GeneralFailure,
            Refusal::Failure(failure) => Reply::from(*failure),
        };
        reply.encode().to_vec()
    }

    /// Returns the counter and the text for the log. The text is `None` if the destination failed: neither server
    /// nor peer is at fault, and users would fill the log.
    pub(super) fn kind<'c>(
        &self,
        c: &'c mut ServerCounters,
    ) -> (&'c mut u64, Option<&'static str>) {
        let (counter, text) = match self {
            Refusal::Plaintext => (
                &mut c.plaintext_refused,
                "it is plaintext, which this server does not accept",
            ),
            Refusal::UnknownKey => (&mut c.auth_wrong, UNKNOWN_KEY),
            // Truncation during the handshake loses no user's data. After the handshake, `kind_of` counts it as
            // damage.
            Refusal::Unprotected(ChannelError::Truncated) => (
                &mut c.handshake_aborted,
                "the peer closed it during the handshake",
            ),
            Refusal::Unprotected(why) => kind_of(*why, c),
            Refusal::Socks(e) => match e {
                ServerError::Garbage => (&mut c.garbage, "the request is not SOCKS5"),
                ServerError::NoMethod => (
                    &mut c.no_method,
                    "the SOCKS5 client offers no method that authenticates it",
                ),
                ServerError::Command => (&mut c.bad_command, "the SOCKS5 command is not CONNECT"),
                ServerError::AddressType => {
                    (&mut c.bad_address, "the SOCKS5 address type is unknown")
                }
                ServerError::Name => (&mut c.bad_address, "the requested name is invalid"),
            },
            Refusal::Auth(e) => match e {
                AuthError::Malformed => (&mut c.auth_malformed, "malformed password"),
                AuthError::UnknownUser | AuthError::WrongSignature => {
                    (&mut c.auth_wrong, "wrong password")
                }
                AuthError::ClockSkew(_) => (&mut c.auth_time, "clock skew"),
                AuthError::BeforeStart => (
                    &mut c.auth_time,
                    "the password is older than the server's start",
                ),
                AuthError::Replayed => (&mut c.auth_replayed, "the password was used before"),
                AuthError::ReplayCacheFull => (
                    &mut c.auth_cache_full,
                    "too many passwords to detect their replay",
                ),
            },
            Refusal::WrongDestination => (
                &mut c.auth_destination,
                "the password is for another destination",
            ),
            Refusal::Forbidden(_) => (
                &mut c.forbidden,
                "the server's rules do not allow the destination",
            ),
            Refusal::OverLimit => (
                &mut c.over_limit,
                "the user has too many connections; see max_connections_per_user in [expert] of server.toml",
            ),
            Refusal::Failure(failure) => match failure {
                ConnectFailure::NoResources => {
                    (&mut c.over_limit, "no memory or no descriptor is left")
                }
                ConnectFailure::Refused => return (&mut c.refused, None),
                ConnectFailure::HostUnreachable
                | ConnectFailure::NetworkUnreachable
                | ConnectFailure::FamilyUnreachable => return (&mut c.unreachable, None),
                ConnectFailure::TimedOut => return (&mut c.connect_timeout, None),
                ConnectFailure::NameNotResolved => return (&mut c.not_resolved, None),
            },
        };
        (counter, Some(text))
    }
}

/// The text for the log about a peer whose key belongs to no user.
const UNKNOWN_KEY: &str = "no [[user]] in server.toml has the peer's key";

/// Returns the counter and the text for the log of a channel error.
pub(super) fn kind_of(why: ChannelError, c: &mut ServerCounters) -> (&mut u64, &'static str) {
    match why {
        ChannelError::Refused => (
            &mut c.refused_by_box,
            "the box expects another key of this server; compare `braid key show` here with `key` in box.toml",
        ),
        ChannelError::WrongKey => (&mut c.auth_wrong, UNKNOWN_KEY),
        ChannelError::Incompatible => (
            &mut c.incompatible,
            "the peer speaks TLS, but not this version of Braid",
        ),
        ChannelError::OtherVersions { ours, theirs }
            if theirs.is_some_and(|t| t.is_older(ours)) =>
        {
            (
                &mut c.incompatible,
                "the peer claims to be a box of a release that is too old; update the box",
            )
        }
        ChannelError::OtherVersions { .. } => (
            &mut c.incompatible,
            "the peer claims to be a box of a release that is too new; update this server",
        ),
        ChannelError::Alert(_) => (
            &mut c.damaged_at_box,
            "the box reports that the server's data was changed on the path",
        ),
        ChannelError::Damaged => (
            &mut c.damaged,
            "the received data fails authentication: it was changed on the path, or is of another protocol",
        ),
        ChannelError::Truncated => (
            &mut c.damaged,
            "the connection ended before the peer's data did",
        ),
        ChannelError::Failed => (&mut c.tls_failed, "the cryptographic library failed"),
    }
}
