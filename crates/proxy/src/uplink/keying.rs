//! Requests for a tunnel. Each has a connection of its own, so that the keys of an epoch come from a fresh handshake,
//! and are forgotten with it.

use core::time::Duration;

use braid_engine::{Event, PathId, Stack};
use braid_secure::channel::Versions;
use braid_tunnel::PathState;
use braid_wire::Instant;

use super::checkout::Checkout;
use super::{Context, Upstream};
use crate::config::BoxConfig;
use crate::protocol::socks::{self, ClientHandshake, ClientStep};
use crate::protocol::tunnel::{AnswerReader, AnswerStep, Refusal, Request, secrets};
use crate::relay::{StepError, read_step};
use crate::tunnel::of_box::{Attempt, TunnelLink};

/// The time limit of a request. It covers a lost SYN (RFC 6298) and the round trips of three messages over a satellite.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request under way.
#[derive(Debug)]
struct Pending {
    checkout: Checkout,
    handshake: ClientHandshake,
    /// The request, until it was sent.
    request: Option<Request>,
    reader: AnswerReader,
    deadline: Instant,
}

/// The request under way, and failed attempts.
#[derive(Debug, Default)]
pub(super) struct Keying {
    pending: Option<Pending>,
    /// Server and path of each attempt that has failed since the last success.
    tried: Vec<(usize, PathId)>,
    /// The result of the last request, until the gateway takes it.
    result: Option<Attempt>,
}

impl Keying {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }
}

impl Upstream {
    /// Returns the links that lead to a server, for the tunnel.
    pub(crate) fn tunnel_links(&self, server: usize) -> Vec<TunnelLink> {
        let Some(entry) = self.servers.entries.get(server) else {
            return Vec::new();
        };
        let links = self.links.all.iter().filter_map(|link| {
            let v4 = entry.endpoint_v4().filter(|_| link.v4);
            let v6 = entry.endpoint_v6().filter(|_| link.v6);
            Some(TunnelLink {
                path: link.path,
                remote: v4.or(v6)?,
                mtu: link.mtu,
                state: match (link.open, link.backup) {
                    (false, _) => PathState::Down,
                    (true, true) => PathState::Backup,
                    (true, false) => PathState::Active,
                },
            })
        });
        links.collect()
    }

    /// Returns a number that changes whenever [`Self::tunnel_links`] may have changed.
    pub(crate) fn links_version(&self) -> u64 {
        self.links.version
    }

    /// Returns the name of a server; `None` if it was removed.
    pub(crate) fn server_name(&self, server: usize) -> Option<String> {
        Some(self.servers.entries.get(server)?.name.clone())
    }

    /// Returns the size of the largest IP packet that all links take, bytes.
    pub(crate) fn least_mtu(&self) -> u16 {
        let mtus = self.links.all.iter().map(|link| link.mtu);
        mtus.min().unwrap_or(1500)
    }

    /// Returns whether this box has the key of `other`, so that it is the same user.
    pub(crate) fn has_key_of(&self, other: &BoxConfig) -> bool {
        self.servers.key.public() == other.key.public()
    }

    /// Begins a request for a tunnel: to the server with the session, if that may work, else to the one for most
    /// connections. [`Self::take_tunnel_result`] returns the result.
    pub(crate) fn request_tunnel(
        &mut self,
        cx: &mut Context<'_>,
        mut request: Request,
        of_session: Option<usize>,
    ) {
        let usable = of_session.filter(|server| self.links.is_server_usable(*server));
        let wanted = usable.unwrap_or_else(|| {
            let need = self.servers.choice.default_need();
            self.servers.current(need)
        });
        let mut candidates = self.candidates(wanted, &self.keying.tried, None);
        if candidates.is_empty() {
            // All links were tried in vain, so begin again.
            self.keying.tried.clear();
            candidates = self.candidates(wanted, &[], None);
        }
        let best = candidates.into_iter().min_by_key(|(rank, ..)| *rank);
        let Some((_, server, path)) = best else {
            self.keying.result = Some(Attempt::Failed);
            return;
        };
        if !self.may_offer_tunnel(server) {
            self.keying.result = Some(Attempt::Refused(Refusal::NotOffered));
            return;
        }
        request.session = request.session.filter(|_| Some(server) == of_session);
        match self.open(cx.now, (server, path), None, cx.stack) {
            Ok(checkout) => {
                self.keying.pending = Some(Pending {
                    handshake: ClientHandshake::new(true),
                    request: Some(request),
                    reader: AnswerReader::default(),
                    deadline: cx.now + TIMEOUT,
                    checkout,
                });
            }
            Err(_) => {
                self.keying.tried.push((server, path));
                self.keying.result = Some(Attempt::Failed);
            }
        }
    }

    /// Returns whether a server may offer a tunnel, by what is known of it: the connection is protected, and the last
    /// handshake showed the feature.
    fn may_offer_tunnel(&self, server: usize) -> bool {
        let client = self.servers.clients.get(server).and_then(Option::as_ref);
        client.is_some_and(|client| {
            let agreed = client.agreed();
            agreed.is_none_or(|agreed| agreed.has(Versions::TUNNEL))
        })
    }

    /// Returns the result of a request once there is one.
    pub(crate) fn take_tunnel_result(&mut self) -> Option<Attempt> {
        self.keying.result.take()
    }

    /// Ends a request that is late.
    pub(super) fn end_late_request(&mut self, cx: &mut Context<'_>) {
        let is_late = |pending: &mut Pending| pending.deadline <= cx.now;
        if let Some(late) = self.keying.pending.take_if(is_late) {
            self.end_request(cx.now, late, Attempt::Failed, cx.stack);
        }
    }

    /// Ends the request under way: its server's index has another meaning now, or the links have changed.
    pub(super) fn stop_request(&mut self, now: Instant, stack: &mut Stack) {
        if let Some(pending) = self.keying.pending.take() {
            self.end_request(now, pending, Attempt::Failed, stack);
        }
        self.keying.tried.clear();
    }

    fn end_request(&mut self, now: Instant, pending: Pending, result: Attempt, stack: &mut Stack) {
        let Checkout {
            mut channel,
            server,
            path,
            ..
        } = pending.checkout;
        match result {
            Attempt::Failed => self.keying.tried.push((server, path)),
            _ => self.keying.tried.clear(),
        }
        self.on_families_reported(now, server, channel.take_families());
        // Both ends have sent everything, so a reset loses nothing.
        channel.abort(now, stack);
        self.keying.result = Some(result);
    }

    /// Handles an event of a request's connection; returns whether the event was of such a connection.
    pub(super) fn on_keying_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        let is_of_request = |p: &mut Pending| p.checkout.channel.conn == event.conn();
        let Some(mut pending) = self.keying.pending.take_if(is_of_request) else {
            return false;
        };
        pending.checkout.history.on_event(event);
        let result = match event {
            Event::Connected { .. } | Event::Readable { .. } | Event::Writable { .. } => {
                pending.advance(cx)
            }
            Event::Closed { .. } => Some(Attempt::Failed),
            _ => None,
        };
        match result {
            Some(result) => self.end_request(cx.now, pending, result, cx.stack),
            None => self.keying.pending = Some(pending),
        }
        true
    }
}

impl Pending {
    /// Goes on as far as possible; returns the result once there is one.
    fn advance(&mut self, cx: &mut Context<'_>) -> Option<Attempt> {
        let channel = &mut self.checkout.channel;
        if !self.handshake.is_signed_in() {
            let input = |bytes: &[u8]| self.handshake.input(bytes);
            match read_step(cx.now, channel, cx.stack, ClientStep::More, input) {
                Ok(ClientStep::More) => {}
                Err(StepError::Gone) => return None,
                _ => return Some(Attempt::Failed),
            }
        }
        if !self.handshake.is_signed_in() {
            return channel.read_finished(cx.stack).then_some(Attempt::Failed);
        }
        if let Some(request) = self.request.take() {
            if !channel.agreed()?.has(Versions::TUNNEL) {
                return Some(Attempt::Refused(Refusal::NotOffered));
            }
            let message = socks::tunnel(request.encode());
            if channel.write_all(cx.now, cx.stack, &message).is_err() {
                return Some(Attempt::Failed);
            }
        }
        let input = |bytes: &[u8]| self.reader.input(bytes);
        match read_step(cx.now, channel, cx.stack, AnswerStep::More, input) {
            Ok(AnswerStep::More) if channel.read_finished(cx.stack) => Some(Attempt::Failed),
            Ok(AnswerStep::More) | Err(StepError::Gone) => None,
            Ok(AnswerStep::Answer(Ok(grant))) => {
                let secrets = secrets(channel, grant.session, grant.epoch);
                Some(secrets.map_or(Attempt::Failed, |secrets| Attempt::Granted {
                    server: self.checkout.server,
                    grant,
                    secrets,
                }))
            }
            Ok(AnswerStep::Answer(Err(refusal))) => Some(Attempt::Refused(refusal)),
            Ok(AnswerStep::Malformed) | Err(StepError::Broken(_)) => Some(Attempt::Failed),
        }
    }
}
