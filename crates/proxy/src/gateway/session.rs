//! A user's connection, from its acceptance to its end.

use core::net::IpAddr;
use core::time::Duration;

use braid_engine::{PathId, Stack};
use braid_secure::auth::SignIn;
use braid_secure::channel::{Channel, ChannelError};
use braid_wire::Instant;

use super::classifier::Flow;
use crate::admin::report::BoxCounters;
use crate::app::Ctx;
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{self, ClientError, ClientHandshake, Reply};
use crate::relay::{End, Moved, Relay};
use crate::uplink::{Checkout, ConnHistory, Trouble};

use super::socks_clients;

/// A user's connection.
#[derive(Debug)]
pub(super) struct Session {
    /// The connection to the server.
    pub(super) channel: Channel,
    pub(super) relay: Relay,
    pub(super) stage: Stage,
    /// Index of the server in the configuration; `usize::MAX` once the server was removed.
    pub(super) server: usize,
    /// Path of the initial subflow.
    pub(super) path: PathId,
    pub(super) history: ConnHistory,
    /// The user's LAN host.
    pub(super) host: IpAddr,
    /// True if the user is a SOCKS client, to which the box replies.
    pub(super) awaits_reply: bool,
    pub(super) flow: Flow,
    pub(super) hints: FlowHints,
    /// True once the user's first bytes were examined for hints.
    pub(super) is_sniffed: bool,
    /// Hints that neither the request nor the early hints have carried.
    pub(super) unsent_hints: FlowHints,
    /// The part of the encoded early hints that the connection has had no room for yet. Nearly all sessions have
    /// an empty vector, which takes no heap memory.
    pub(super) unsent_early_hints: Vec<u8>,
    /// The user's bytes relayed so far.
    pub(super) moved: Moved,
    pub(super) started: Instant,
    /// The offset of the request in the send stream of an idle connection. An acknowledgement beyond this offset
    /// shows that the server has received a part of the request.
    pub(super) request_offset: u64,
    /// Server and path of each failed attempt. Nearly all sessions have an empty vector, which takes no heap
    /// memory.
    pub(super) failed_attempts: Vec<(usize, PathId)>,
}

impl Session {
    /// Returns whether a connection from the idle pool can be replaced: the server has neither answered nor
    /// acknowledged the request, so most likely it has not received the request.
    pub(super) fn may_fall_back(&self, stack: &Stack) -> bool {
        let Stage::Negotiating(handshake) = &self.stage else {
            return false;
        };
        let stats = stack.conn_stats(self.channel.conn);
        let is_unacknowledged = stats.is_some_and(|s| s.snd_una <= self.request_offset);
        self.relay.first_bytes().is_some() && handshake.is_signed_in() && is_unacknowledged
    }

    /// Returns whether the server has proved that it has its key. Without such a proof, a captive portal or an
    /// attacker may have answered in the server's place.
    pub(super) fn server_proved_key(&self) -> bool {
        match &self.stage {
            Stage::Connecting(_) => false,
            // A plaintext server proves no key, so a server that accepts the password is trusted.
            Stage::Negotiating(handshake) if !self.channel.is_protected() => {
                handshake.is_signed_in()
            }
            Stage::Negotiating(_) => self.channel.peer().is_some(),
            Stage::Relaying | Stage::Leaving(_) | Stage::Unreached => true,
        }
    }

    /// Returns whether bytes of the user, or the end of the user's stream, were sent. The server may have passed
    /// them on to the destination, which must not get them twice.
    pub(super) fn has_sent_user_bytes(&self) -> bool {
        self.moved.to_conn > 0 || self.relay.has_sent_end()
    }

    /// Returns whether request and bytes may be sent to another server, after this server ended the attempt with
    /// `outcome`. A server that refuses the box, or the destination's address family, has passed on none of the
    /// user's bytes. The refusal counts only if the server has proved its key. Otherwise an attacker on the path
    /// could pass early data on to the server and forge the refusal, and the destination would get the data twice.
    pub(super) fn may_resend(&self, outcome: Outcome) -> bool {
        let refuses = outcome.is_refusal() || outcome.is_family_refusal();
        let refused = refuses && self.server_proved_key();
        !self.has_sent_user_bytes() || refused && self.relay.first_bytes().is_some()
    }

    /// Returns the time limit of this attempt: `attempt`, doubled after each failed attempt, because the links may
    /// merely be slow.
    pub(super) fn attempt_timeout(&self, attempt: Duration) -> Duration {
        // The bound of 8 only keeps the shift from overflowing; a session has at most `MAX_ATTEMPTS` failed
        // attempts.
        attempt * (1 << self.failed_attempts.len().min(8))
    }

    /// Adds further hints, applies them to the connection, and marks them as unsent. Earlier hints stay if the new
    /// ones lack them.
    pub(super) fn add_hints(&mut self, ctx: &mut Ctx<'_>, hints: FlowHints) {
        let before = core::mem::take(&mut self.hints);
        let unsent_hints = FlowHints {
            // A strategy that is in use already is left out, because it would start anew and lose its state.
            strategy: hints
                .strategy
                .filter(|s| before.strategy.as_ref() != Some(s)),
            ..hints
        };
        unsent_hints.apply(ctx.now, self.channel.conn, ctx.stack);
        self.hints = FlowHints {
            size: before.size.or_better(unsent_hints.size),
            urgency: unsent_hints.urgency.or(before.urgency),
            deadline: unsent_hints.deadline.or(before.deadline),
            strategy: unsent_hints.strategy.clone().or(before.strategy),
        };
        self.unsent_hints = unsent_hints;
    }

    /// Sends early hints, which are the hints found in the user's first bytes after the request was sent. The
    /// user's bytes are held back until the early hints were written, because the server expects them first.
    /// Returns false if the connection is gone.
    pub(super) fn send_early_hints(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.relay.hold(true);
        // The user's first bytes may still yield hints.
        if !self.is_sniffed {
            return true;
        }
        if self.unsent_early_hints.is_empty() {
            self.unsent_early_hints =
                socks::encode_early_hints(&core::mem::take(&mut self.unsent_hints).encode());
        }
        while !self.unsent_early_hints.is_empty() {
            match self
                .channel
                .write(ctx.now, ctx.stack, &self.unsent_early_hints)
            {
                // A `Writable` event will follow.
                Ok(0) => return true,
                Ok(n) => drop(self.unsent_early_hints.drain(..n)),
                Err(_) => return false,
            }
        }
        self.unsent_early_hints = Vec::new();
        self.relay.hold(false);
        true
    }

    /// Returns the connection for another user, if the server is ready for another user.
    pub(super) fn into_checkout(self) -> Option<Checkout> {
        let Stage::Leaving(handshake) = self.stage else {
            return None;
        };
        handshake.is_signed_in().then_some(Checkout {
            channel: self.channel,
            server: self.server,
            path: self.path,
            sign_in: None,
            handshake: Some(handshake),
            history: self.history,
        })
    }

    /// Ends the user's stream and the stream to the server.
    pub(super) fn end(&self, ctx: &mut Ctx<'_>, outcome: Outcome) {
        if self.awaits_reply && !self.stage.is_served() {
            self.channel.abort(ctx.now, ctx.stack);
            return socks_clients::close_after(
                ctx,
                self.relay.downstream,
                &outcome.reply().encode(),
            );
        }
        let end = match outcome {
            Outcome::Relayed(end) => end,
            // Without a box, the user would get an RST, or no answer for minutes. `End::Conn` resets the user's
            // stream, so that programs can react at once.
            _ => End::Conn,
        };
        self.relay.end(ctx, &self.channel, end);
    }
}

/// The progress of a session.
#[derive(Debug)]
pub(super) enum Stage {
    /// A connection to a server is being opened. None of the user's bytes were read yet, or a copy is kept, so
    /// another attempt is possible. The password is present on plaintext connections.
    Connecting(Option<SignIn>),
    /// The request was sent, and the server's answer is awaited. Meanwhile the user's first bytes are sent.
    Negotiating(Box<ClientHandshake>),
    /// The server has connected to the destination, and bytes are relayed both ways.
    Relaying,
    /// No server reaches destinations in the address family. The user gets the refusal in the next turn, when the
    /// driver knows that it must refuse the family. So the driver refuses a retry of the user's program at once,
    /// and the program tries the other family.
    Unreached,
    /// The user has finished, and the server is not ready for another user yet.
    Leaving(Box<ClientHandshake>),
}

impl Stage {
    /// Returns whether the server has connected to the destination.
    pub(super) fn is_served(&self) -> bool {
        matches!(self, Stage::Relaying | Stage::Leaving(_))
    }
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// The session ended after the destination was connected, or because the user left.
    Relayed(End),
    /// The server refused the box or the destination, or sent an invalid answer.
    Refused(ClientError),
    /// The TLS handshake failed: the server has the wrong key, or something on the path interferes.
    Unprotected(ChannelError),
    /// The connection to the server ended before the server's answer.
    ServerFailed,
    /// No server could be reached.
    NoServer,
    /// The server did not answer the request in time.
    NoAnswer,
}

impl Outcome {
    /// Returns the reply to a SOCKS client.
    pub(super) fn reply(self) -> Reply {
        match self {
            Outcome::Refused(ClientError::Refused(reply)) => reply,
            Outcome::NoServer => Reply::NetworkUnreachable,
            Outcome::NoAnswer => Reply::TtlExpired,
            _ => Reply::GeneralFailure,
        }
    }

    /// Returns whether the server refused because it reaches no destination in the address family.
    pub(super) fn is_family_refusal(self) -> bool {
        let reply = Reply::AddressTypeNotSupported;
        matches!(self, Outcome::Refused(ClientError::Refused(r)) if r == reply)
    }

    /// Returns whether the server refused the box's key. A refused password (`AuthRefused`) is not included: it
    /// occurs on plaintext connections, where no key is proved.
    fn is_refusal(self) -> bool {
        matches!(
            self,
            Outcome::Refused(ClientError::MethodRefused)
                | Outcome::Unprotected(ChannelError::Refused)
        )
    }

    /// Returns the problem of server or link that the outcome shows, if the server has not proved its key. `plain`
    /// is true if the connection has fallen back to regular TCP.
    pub(super) fn trouble(self, plain: bool) -> Option<Trouble> {
        match self {
            Outcome::Unprotected(why) => Trouble::of_broken(why, plain),
            Outcome::Refused(error) => Trouble::of_answer(error, plain),
            // A portal speaks regular TCP. Over MPTCP the outcome shows no problem: a server that has just
            // started, or is busy, closes connections too.
            Outcome::ServerFailed if plain => Some(Trouble::Portal),
            _ => None,
        }
    }

    /// Returns the counter that counts the outcome.
    pub(super) fn counter(self, c: &mut BoxCounters) -> &mut u64 {
        match self {
            Outcome::Relayed(End::Finished) => &mut c.finished,
            Outcome::Relayed(End::Downstream) => &mut c.reset_by_user,
            Outcome::Relayed(End::Conn) => &mut c.reset_by_server,
            Outcome::Relayed(End::Broken(_)) => &mut c.unprotected,
            Outcome::Relayed(End::Idle) => &mut c.idle_timeout,
            Outcome::NoServer => &mut c.no_server,
            Outcome::NoAnswer => &mut c.destination_timeout,
            Outcome::ServerFailed => &mut c.server_failed,
            Outcome::Unprotected(ChannelError::Refused) => &mut c.auth_refused,
            Outcome::Unprotected(_) => &mut c.unprotected,
            Outcome::Refused(error) => match error {
                ClientError::AuthRefused | ClientError::MethodRefused => &mut c.auth_refused,
                ClientError::Garbage => &mut c.server_failed,
                ClientError::Refused(reply) => match reply {
                    Reply::ConnectionRefused => &mut c.destination_refused,
                    Reply::NetworkUnreachable
                    | Reply::HostUnreachable
                    | Reply::AddressTypeNotSupported => &mut c.destination_unreachable,
                    Reply::TtlExpired => &mut c.destination_timeout,
                    Reply::NotAllowed => &mut c.destination_forbidden,
                    _ => &mut c.server_failed,
                },
            },
        }
    }
}
