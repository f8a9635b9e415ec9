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
use crate::app::TunnelDown;
use crate::config::ServerEntry;
use crate::protocol::socks::{self, ClientHandshake, ClientStep};
use crate::protocol::tunnel::{AnswerReader, AnswerStep, Refusal, Request, secrets};
use crate::relay::{StepError, read_step};
use crate::tunnel::of_box::{Attempt, SessionServer, TunnelLink};

/// The time limit of a request. It covers a lost SYN (RFC 6298) and the round trips of three messages over a satellite.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The result of a request that got no answer, or none that makes sense.
const NO_SERVER: Attempt = Attempt::Failed(TunnelDown::NoServer);

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
    /// Server and path of each attempt of this round that has failed. A round ends with a grant, or once nothing is
    /// left to try.
    tried: Vec<(usize, PathId)>,
    /// The servers that have refused in this round.
    refused: Vec<usize>,
    /// The reason of the last of them.
    refusal: Option<TunnelDown>,
    /// The only server of this round, if the session with it works.
    only: Option<usize>,
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
    /// True if some server can be used.
    pub(crate) is_reached: bool,
}

/// The requests for a tunnel, over the links and servers of an uplink.
pub(crate) struct TunnelRequests<'a> {
    upstream: &'a mut Upstream,
}

impl Keying {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }

    /// Ends a request that is late.
    pub(super) fn end_late(&mut self, now: Instant, stack: &mut Stack) {
        let is_late = |pending: &mut Pending| pending.deadline <= now;
        if let Some(late) = self.pending.take_if(is_late) {
            self.end(now, &late, NO_SERVER, stack);
        }
    }

    /// Ends the request under way, because its server's index has another meaning from now on.
    pub(super) fn stop(&mut self, now: Instant, stack: &mut Stack) {
        if let Some(pending) = self.pending.take() {
            self.end(now, &pending, NO_SERVER, stack);
        }
        self.end_round();
    }

    fn end_round(&mut self) {
        self.tried.clear();
        self.refused.clear();
        self.refusal = None;
    }

    fn end(&mut self, now: Instant, pending: &Pending, result: Attempt, stack: &mut Stack) {
        let checkout = &pending.checkout;
        match result {
            Attempt::Failed(_) => self.tried.push((checkout.server, checkout.path)),
            Attempt::Refused { server, reason } => {
                self.refused.push(server);
                self.refusal = Some(reason);
            }
            Attempt::Granted { .. } => self.end_round(),
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
            Event::Closed { .. } => Some(NO_SERVER),
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
    /// Returns access to the requests for a tunnel.
    pub(crate) fn tunnel_requests(&mut self) -> TunnelRequests<'_> {
        TunnelRequests { upstream: self }
    }

    /// Returns whether [`TunnelRequests::news`] has something new for a tunnel that knows the version `known` of the
    /// links, and `is_reached`.
    pub(crate) fn has_tunnel_news(&self, known: u64, is_reached: bool) -> bool {
        let is_new = self.links.version != known || self.notices.intercepts() != is_reached;
        is_new || self.keying.result.is_some()
    }
}

impl TunnelRequests<'_> {
    /// Returns the news for the tunnel.
    pub(crate) fn news(&mut self) -> TunnelNews {
        TunnelNews {
            is_reached: self.upstream.notices.intercepts(),
            version: self.upstream.links.version,
            result: self.upstream.keying.result.take(),
        }
    }

    /// Returns the links to a server; none if it was removed.
    pub(crate) fn links(&self, server: usize) -> Vec<TunnelLink> {
        let entry = self.upstream.servers.entries.get(server);
        entry.map_or(Vec::new(), |entry| self.upstream.links.to_server(entry))
    }

    /// Begins a request for a tunnel: to the server with the session, if that may work, else to the one for most
    /// connections. While a session works, only its server is asked. [`Self::news`] has the result.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        mut request: Request,
        of_session: Option<SessionServer>,
    ) {
        let (server, path) = match self.next(of_session) {
            Ok(next) => next,
            Err(reason) => {
                self.upstream.keying.end_round();
                self.upstream.keying.result = Some(Attempt::Failed(reason));
                return;
            }
        };
        let is_known = of_session.is_some_and(|session| session.server == server);
        request.session = request.session.filter(|_| is_known);
        let mtus = self.upstream.links.all.iter().map(|link| link.mtu);
        request.path_mtu = mtus.min().unwrap_or(request.path_mtu);
        match self.upstream.open(cx.now, (server, path), None, cx.stack) {
            Ok(checkout) => {
                self.upstream.keying.pending = Some(Pending {
                    handshake: ClientHandshake::new(true),
                    request: Some(request),
                    reader: AnswerReader::default(),
                    deadline: cx.now + TIMEOUT,
                    checkout,
                });
            }
            Err(_) => {
                self.upstream.keying.tried.push((server, path));
                self.upstream.keying.result = Some(NO_SERVER);
            }
        }
    }

    /// Returns the server and the path of the next request. A server that has refused in this round, or offers no
    /// tunnel as far as known, is not asked.
    ///
    /// # Errors
    /// The reason for which there is none.
    fn next(&mut self, of_session: Option<SessionServer>) -> Result<(usize, PathId), TunnelDown> {
        let only = of_session.filter(|session| session.works);
        let only = only.map(|session| session.server);
        if core::mem::replace(&mut self.upstream.keying.only, only) != only {
            // What failed while the session worked says nothing of the servers now, and the reverse.
            self.upstream.keying.end_round();
        }
        let usable = of_session.map(|session| session.server);
        let usable = usable.filter(|server| self.upstream.links.is_server_usable(*server));
        let wanted = only.or(usable).unwrap_or_else(|| {
            let need = self.upstream.servers.choice.default_need();
            self.upstream.servers.current(need)
        });
        let is_asked = |server: usize| only.is_none_or(|only| server == only);
        let grants = |server: usize| {
            let refuses = self.upstream.keying.refused.contains(&server);
            !refuses && self.upstream.servers.may_offer_tunnel(server)
        };
        let best = |tried: &[(usize, PathId)]| {
            let all = self.upstream.candidates(wanted, tried, None).into_iter();
            let all = all.filter(|(_, server, _)| is_asked(*server) && grants(*server));
            let best = all.min_by_key(|(rank, ..)| *rank)?;
            Some((best.1, best.2))
        };
        if let Some(next) = best(&self.upstream.keying.tried) {
            return Ok(next);
        }
        if let Some(reason) = self.upstream.keying.refusal {
            return Err(reason);
        }
        // If all links were tried in vain, begin again.
        let next = best(&[]);
        let has_link = self.upstream.links.open().next().is_some();
        let offers = (0..self.upstream.servers.entries.len()).any(grants);
        self.upstream.keying.tried.clear();
        next.ok_or(match (has_link, offers) {
            (false, _) => TunnelDown::NoLink,
            (true, false) => TunnelDown::NotOffered,
            (true, true) => TunnelDown::NoServer,
        })
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
                _ => return Some(NO_SERVER),
            }
        }
        if !self.handshake.is_signed_in() {
            return channel.read_finished(cx.stack).then_some(NO_SERVER);
        }
        if let Some(request) = self.request.take() {
            if !channel.agreed()?.has(Versions::TUNNEL) {
                return Some(self.refused(Refusal::NotOffered));
            }
            let message = socks::tunnel(request.encode());
            if channel.write_all(cx.now, cx.stack, &message).is_err() {
                return Some(NO_SERVER);
            }
        }
        let input = |bytes: &[u8]| self.reader.input(bytes);
        match read_step(cx.now, channel, cx.stack, AnswerStep::More, input) {
            Ok(AnswerStep::More) if channel.read_finished(cx.stack) => Some(NO_SERVER),
            Ok(AnswerStep::More) | Err(StepError::Gone) => None,
            Ok(AnswerStep::Answer(Ok(grant))) => {
                let secrets = secrets(channel, grant.session, grant.epoch);
                Some(secrets.map_or(NO_SERVER, |secrets| Attempt::Granted {
                    server: self.checkout.server,
                    grant,
                    secrets,
                }))
            }
            Ok(AnswerStep::Answer(Err(refusal))) => Some(self.refused(refusal)),
            Ok(AnswerStep::Malformed) | Err(StepError::Broken(_)) => Some(NO_SERVER),
        }
    }

    fn refused(&self, refusal: Refusal) -> Attempt {
        Attempt::Refused {
            server: self.checkout.server,
            reason: match refusal {
                Refusal::NotOffered => TunnelDown::NotOffered,
                _ => TunnelDown::Refused,
            },
        }
    }
}
