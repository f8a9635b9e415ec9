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
    /// Index of the user in the configuration, once authenticated.
    pub(super) user: Option<usize>,
    /// The destination, once the request is complete.
    pub(super) destination: Option<Box<Destination>>,
    /// The decoder of early hints, while they are awaited.
    pub(super) early_hints: Option<EarlyHints>,
    pub(super) started: Instant,
    pub(super) stage: Stage,
    /// End of the current stage, except for [`Stage::Relaying`], whose relay has a timer of its own.
    pub(super) time: Instant,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Waits for the request.
    Handshake(Box<Handshake>),
    /// Looks up the destination's name.
    Resolving,
    /// Connects to an address of the destination; `others` are still to be tried.
    Connecting {
        downstream: DownstreamId,
        others: Vec<SocketAddr>,
        addr: IpAddr,
        since: Instant,
    },
    /// Relays between box and destination.
    Relaying(Relay, RelayRate),
    /// Sends the train of a probe.
    Departing(Departures),
    /// Waits for the peer to close, after it was told of a failure.
    Closing,
    /// The same after a failed handshake, which still counts as a handshake.
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The server knows whether the connection is protected.
    pub(super) protection_known: bool,
    pub(super) socks: ServerHandshake,
    pub(super) grant: Option<Grant>,
    /// The peer has sent something.
    pub(super) peer_has_sent: bool,
    /// The box is signed in, and the session waits idle for the request.
    pub(super) is_waiting: bool,
    /// The end of that wait, set at its first begin; further messages without a request do not extend it.
    pub(super) waiting_until: Option<Instant>,
    /// A user was served before on the connection, for whom the box may still have bytes to deliver.
    pub(super) had_user: bool,
}

impl Handshake {
    /// Creates the handshake of `user`'s box after a first request.
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

/// The reason for which a session without a connected destination is refused.
pub(super) enum Refusal {
    /// The connection is plaintext, but protection is required.
    Plaintext,
    Unprotected(ChannelError),
    /// The user's key was removed after the ticket was given.
    UnknownKey,
    Socks(ServerError),
    Auth(AuthError),
    WrongDestination,
    Forbidden(SocketAddr),
    OverLimit,
    Failure(ConnectFailure),
}

impl Refusal {
    /// Returns the reply to the peer; empty where it speaks another protocol.
    pub(super) fn reply(&self) -> Vec<u8> {
        let reply = match self {
            Refusal::Plaintext | Refusal::Unprotected(_) => return Vec::new(),
            // The box learns that its key is the cause, and tries another server.
            Refusal::UnknownKey => return ServerError::NoMethod.reply(),
            Refusal::Socks(e) => return e.reply(),
            Refusal::Auth(_) => return ServerHandshake::REFUSED.to_vec(),
            Refusal::WrongDestination | Refusal::Forbidden(_) => Reply::NotAllowed,
            Refusal::OverLimit => Reply::GeneralFailure,
            Refusal::Failure(failure) => Reply::from(*failure),
        };
        reply.encode().to_vec()
    }

    /// Returns the counter, and the text for the log: `None` where a destination does not answer, which is
    /// no fault of server or peer.
    pub(super) fn kind<'c>(
        &self,
        c: &'c mut ServerCounters,
    ) -> (&'c mut u64, Option<&'static str>) {
        let (counter, name) = match self {
            Refusal::Plaintext => (
                &mut c.plaintext_refused,
                "it is plaintext, which this server does not accept",
            ),
            Refusal::UnknownKey => (&mut c.auth_wrong, UNKNOWN_KEY),
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
                "the user has too many connections; see [limits] in server.toml",
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
        (counter, Some(name))
    }
}

/// The text for a peer whose key no user has.
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
        ChannelError::Truncated => (&mut c.damaged, "its data ended without the peer's end"),
        ChannelError::Failed => (&mut c.tls_failed, "the cryptographic library failed"),
    }
}
