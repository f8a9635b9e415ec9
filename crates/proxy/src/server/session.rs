//! One connection of a box, from its acceptance to its end.

use core::net::{IpAddr, SocketAddr};

use braid_secure::auth::{AuthError, Grant};
use braid_secure::channel::{Broken, Channel};
use braid_wire::Instant;

use crate::admin::report::ServerCounters;
use crate::app::{ConnectFailure, LocalId};
use crate::protocol::socks::{Destination, Foreword, Reply, ServerError, ServerHandshake};
use crate::relay::Relay;

use super::beyond::Pace;
use super::train::Departures;

/// One connection of a box.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) remote: IpAddr,
    /// Position of the user in the configuration, once it has proved to be one.
    pub(super) user: Option<usize>,
    /// Where the user wants to go, once the request is complete.
    pub(super) destination: Option<Box<Destination>>,
    /// What the box says before the user's first byte, while it is awaited.
    pub(super) foreword: Option<Foreword>,
    pub(super) started: Instant,
    pub(super) stage: Stage,
    /// End of the stage, but for [`Stage::Relaying`], whose relay knows.
    pub(super) time: Instant,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The request is awaited.
    Handshake(Box<Handshake>),
    /// The destination's name is looked up.
    Resolving,
    /// One of the destination's addresses is connected to; the others wait.
    Connecting {
        local: LocalId,
        others: Vec<SocketAddr>,
        addr: IpAddr,
        since: Instant,
    },
    /// There.
    Relaying(Relay, Pace),
    /// A probe: the train is on its way.
    Departing(Departures),
    /// The peer was told of a failure and is to close.
    Closing,
    /// The same of one that got no further than its handshake, and still counts as one.
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// Whether it is protected is known.
    pub(super) met: bool,
    pub(super) socks: ServerHandshake,
    pub(super) grant: Option<Grant>,
    /// The peer said something.
    pub(super) spoken: bool,
    /// It signed in and may take its time with the request.
    pub(super) waits: bool,
    /// For so long, from the first time on, whatever it says that is no request.
    pub(super) waits_until: Option<Instant>,
    /// A user's connection went before, of which the box may still have something to pass on.
    pub(super) follows: bool,
}

impl Handshake {
    /// Of a box that is known to be `user`'s, and has made a request before.
    pub(super) fn again(user: usize) -> Self {
        Handshake {
            met: true,
            socks: ServerHandshake::signed_in(),
            grant: Some(Grant::proven(user)),
            spoken: true,
            follows: true,
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

/// What ends a handshake before there is a destination.
pub(super) enum Refusal {
    /// It has to be protected.
    Clear,
    Unprotected(Broken),
    /// Its key was taken out of the configuration since it got its ticket.
    UnknownKey,
    Socks(ServerError),
    Auth(AuthError),
    WrongDestination,
    Forbidden(SocketAddr),
    OverLimit,
    Failure(ConnectFailure),
}

impl Refusal {
    /// What the peer is told; nothing where it speaks another protocol.
    pub(super) fn reply(&self) -> Vec<u8> {
        let reply = match self {
            Refusal::Clear | Refusal::Unprotected(_) => return Vec::new(),
            // The box learns that it is its key, and tries another server.
            Refusal::UnknownKey => return ServerError::NoMethod.reply(),
            Refusal::Socks(e) => return e.reply(),
            Refusal::Auth(_) => return ServerHandshake::REFUSED.to_vec(),
            Refusal::WrongDestination | Refusal::Forbidden(_) => Reply::NotAllowed,
            Refusal::OverLimit => Reply::GeneralFailure,
            Refusal::Failure(failure) => Reply::from(*failure),
        };
        reply.encode().to_vec()
    }

    /// What counts it, and what the log calls it: nothing where a destination does not answer,
    /// which is no error of anyone here.
    pub(super) fn kind<'c>(
        &self,
        c: &'c mut ServerCounters,
    ) -> (&'c mut u64, Option<&'static str>) {
        let (counter, name) = match self {
            Refusal::Clear => (&mut c.clear, "not protected"),
            Refusal::UnknownKey => (&mut c.auth_wrong, "unknown key"),
            Refusal::Unprotected(Broken::Truncated) => (&mut c.handshake_aborted, "gone"),
            Refusal::Unprotected(why) => kind_of(*why, c),
            Refusal::Socks(e) => match e {
                ServerError::Garbage => (&mut c.garbage, "not SOCKS5"),
                ServerError::NoMethod => (&mut c.no_method, "no method that says who it is"),
                ServerError::Command => (&mut c.bad_command, "not CONNECT"),
                ServerError::AddressType => (&mut c.bad_address, "unknown address type"),
                ServerError::Name => (&mut c.bad_address, "invalid name"),
            },
            Refusal::Auth(e) => match e {
                AuthError::Malformed => (&mut c.auth_malformed, "password malformed"),
                AuthError::UnknownUser | AuthError::WrongSignature => {
                    (&mut c.auth_wrong, "wrong password")
                }
                AuthError::ClockSkew(_) => (&mut c.auth_time, "clock skew"),
                AuthError::BeforeStart => (&mut c.auth_time, "password before start"),
                AuthError::Replayed => (&mut c.auth_replayed, "password replayed"),
                AuthError::ReplayCacheFull => (&mut c.auth_cache_full, "password cache full"),
            },
            Refusal::WrongDestination => {
                (&mut c.auth_destination, "password for another destination")
            }
            Refusal::Forbidden(_) => (&mut c.forbidden, "destination forbidden"),
            Refusal::OverLimit => (&mut c.over_limit, "too many connections of one user"),
            Refusal::Failure(failure) => match failure {
                ConnectFailure::NoResources => (&mut c.over_limit, "out of resources"),
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

/// What counts that the protection of a connection is broken, and what the log calls it.
pub(super) fn kind_of(why: Broken, c: &mut ServerCounters) -> (&mut u64, &'static str) {
    match why {
        Broken::Refused => (
            &mut c.refused_by_box,
            "the box expects a server with another key",
        ),
        Broken::WrongKey => (&mut c.auth_wrong, "unknown key"),
        Broken::Incompatible => (&mut c.incompatible, "TLS, but not of this version of Braid"),
        Broken::OtherVersions { ours, theirs } if theirs.is_some_and(|t| t.is_older(ours)) => (
            &mut c.incompatible,
            "a box, as it says, whose release is too old: update it",
        ),
        Broken::OtherVersions { .. } => (
            &mut c.incompatible,
            "a box, as it says, whose release is too new: update this server",
        ),
        Broken::Alert(_) => (
            &mut c.damaged_at_box,
            "what this server sent was changed on the way, says the box",
        ),
        Broken::Damaged => (&mut c.damaged, "not as it was sent"),
        Broken::Truncated => (&mut c.damaged, "cut off"),
        Broken::Failed => (&mut c.tls_failed, "the cryptographic library failed"),
    }
}
