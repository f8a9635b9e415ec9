//! Requests for a tunnel. Each has a connection of its own, so that the keys of an epoch come from a fresh handshake,
//! and are forgotten with it.

use core::time::Duration;

use braid_engine::{Event, PathId, Stack};
use braid_secure::Families;
use braid_secure::channel::Versions;
use braid_tunnel::PathState;
use braid_wire::Instant;

use super::checkout::Checkout;
use super::links::Links;
use super::{Context, Upstream};
use crate::config::ServerEntry;
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

/// The news for the tunnel.
#[derive(Debug)]
pub(crate) struct TunnelNews {
    /// The result of the last request, once.
    pub(crate) result: Option<Attempt>,
    /// The version of the links, which changes whenever they do.
    pub(crate) version: u64,
    /// The links to the server of the session, if they may have changed.
    pub(crate) links: Option<Vec<TunnelLink>>,
    /// True if some server can be used.
    pub(crate) is_reached: bool,
}

impl Keying {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }

    /// Ends a request that is late.
    pub(super) fn end_late(&mut self, now: Instant, stack: &mut Stack) {
        let is_late = |pending: &mut Pending| pending.deadline <= now;
        if let Some(late) = self.pending.take_if(is_late) {
            self.end(now, &late, Attempt::Failed, stack);
        }
    }

    /// Ends the request under way, because its server's index has another meaning from now on.
    pub(super) fn stop(&mut self, now: Instant, stack: &mut Stack) {
        if let Some(pending) = self.pending.take() {
            self.end(now, &pending, Attempt::Failed, stack);
        }
        self.tried.clear();
    }

    fn end(&mut self, now: Instant, pending: &Pending, result: Attempt, stack: &mut Stack) {
        let checkout = &pending.checkout;
        match result {
            Attempt::Failed => self.tried.push((checkout.server, checkout.path)),
            _ => self.tried.clear(),
        }
        // Both ends have sent everything, so a reset loses nothing.
        checkout.channel.abort(now, stack);
        self.result = Some(result);
    }

    /// Handles an event of a request's connection. Returns the server, and the families that it reports to reach, if the
    /// event was of such a connection.
    pub(super) fn on_event(
        &mut self,
        cx: &mut Context<'_>,
        event: &Event,
    ) -> Option<(usize, Option<Families>)> {
        let is_of_request = |p: &mut Pending| p.checkout.channel.conn == event.conn();
        let mut pending = self.pending.take_if(is_of_request)?;
        pending.checkout.history.on_event(event);
        let result = match event {
            Event::Connected { .. } | Event::Readable { .. } | Event::Writable { .. } => {
                pending.advance(cx)
            }
            Event::Closed { .. } => Some(Attempt::Failed),
            _ => None,
        };
        let reported = (
            pending.checkout.server,
            pending.checkout.channel.take_families(),
        );
        match result {
            Some(result) => self.end(cx.now, &pending, result, cx.stack),
            None => self.pending = Some(pending),
        }
        Some(reported)
    }
}

impl Links {
    /// Returns the links that lead to a server, for the tunnel.
    pub(super) fn to_server(&self, entry: &ServerEntry) -> Vec<TunnelLink> {
        let links = self.all.iter().filter_map(|link| {
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
}

impl Upstream {
    /// Returns the news for a tunnel that knows the version `known` of the links, and whose session is with `server`.
    pub(crate) fn tunnel_news(&mut self, server: Option<usize>, known: u64) -> TunnelNews {
        let result = self.keying.result.take();
        let server = match &result {
            Some(Attempt::Granted { server, .. }) => Some(*server),
            _ => server,
        };
        let version = self.links.version;
        let is_new = version != known || result.is_some();
        let entry = server.and_then(|server| self.servers.entries.get(server));
        TunnelNews {
            links: entry
                .filter(|_| is_new)
                .map(|entry| self.links.to_server(entry)),
            is_reached: self.notices.intercepts(),
            version,
            result,
        }
    }

    /// Begins a request for a tunnel: to the server with the session, if that may work, else to the one for most
    /// connections. [`Self::tunnel_news`] has the result.
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
        if !self.servers.may_offer_tunnel(server) {
            self.keying.result = Some(Attempt::Refused(Refusal::NotOffered));
            return;
        }
        request.session = request.session.filter(|_| Some(server) == of_session);
        let mtus = self.links.all.iter().map(|link| link.mtu);
        request.path_mtu = mtus.min().unwrap_or(request.path_mtu);
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
