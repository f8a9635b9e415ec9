//! The tunnels of boxes: requests for sessions, and what the driver passes in and out.

use core::net::SocketAddr;

use braid_engine::Stack;
use braid_secure::channel::Versions;
use braid_tunnel::{PathId, Transmit};
use braid_wire::Instant;

use super::session::{Refusal, Session, Stage};
use super::{CLOSE_TIMEOUT, ServerCore, send_all};
use crate::admin::tunnel_status::TunnelStatus;
use crate::app::Ctx;
use crate::config::ServerConfig;
use crate::config::policy::DestinationPolicy;
use crate::protocol::socks::ServerError;
use crate::protocol::tunnel::{self, Answer, Request};
use crate::relay::table::SessionId;
use crate::tunnel::of_server::{Requester, Sessions};

/// The sessions of the tunnel, if the server offers one.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// `None` if the configuration wants no tunnel.
    pub(super) sessions: Option<Sessions>,
    /// True once the driver has sockets and a packet device.
    is_enabled: bool,
    /// The reason why the driver cannot carry the tunnel, if it cannot.
    fault: Option<String>,
}

impl Tunnel {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let memory = config.limits.memory;
        let sessions = config
            .tunnel
            .map(|pools| Sessions::new(pools, config.port, memory));
        Tunnel {
            sessions,
            is_enabled: false,
            fault: None,
        }
    }

    /// Returns the sessions while the driver can carry them.
    fn enabled(&mut self) -> Option<&mut Sessions> {
        self.sessions.as_mut().filter(|_| self.is_enabled)
    }

    pub(super) fn on_datagram(
        &mut self,
        now: Instant,
        socket: PathId,
        remote: SocketAddr,
        datagram: &mut [u8],
    ) {
        if let Some(sessions) = self.enabled() {
            sessions.on_datagram(now, socket, remote, datagram);
        }
    }

    pub(super) fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        if let Some(sessions) = self.enabled() {
            sessions.on_packet(now, packet);
        }
    }

    pub(super) fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.enabled()?.poll_datagram(now, buf)
    }

    pub(super) fn poll_packet(&mut self, destinations: &DestinationPolicy) -> Option<&[u8]> {
        self.enabled()?.poll_packet(destinations)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.sessions.as_ref()?.next_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, stack: &mut Stack) {
        if let Some(sessions) = &mut self.sessions {
            sessions.handle_timeout(now, stack);
        }
    }

    /// Returns the state at `now`. `user` returns the name of a user.
    pub(super) fn status(
        &self,
        now: Instant,
        user: impl Fn(usize) -> Option<String>,
    ) -> TunnelStatus {
        match &self.sessions {
            Some(sessions) if self.is_enabled => sessions.status(now, user),
            _ => TunnelStatus {
                state: "off".to_owned(),
                reason: self.fault.clone(),
                ..TunnelStatus::default()
            },
        }
    }
}

impl ServerCore {
    /// Grants boxes tunnels, if the configuration wants that. The driver calls this once its sockets and its packet
    /// device for the tunnel are open.
    pub fn enable_tunnel(&mut self) {
        self.tunnel.is_enabled = true;
    }

    /// Sets the reason why the driver has no sockets or no packet device for the tunnel. The status shows it.
    pub fn set_tunnel_fault(&mut self, fault: String) {
        self.tunnel.fault = Some(fault);
    }

    /// Answers a request for a tunnel with the encoded `fields`, and ends the connection.
    pub(super) fn on_tunnel_request(&mut self, ctx: &mut Ctx<'_>, id: SessionId, fields: &[u8]) {
        let Some(request) = Request::decode(fields) else {
            return self.refuse(ctx, id, Refusal::Socks(ServerError::Garbage));
        };
        let answer = self.grant_tunnel(ctx.now, id, &request);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return;
        };
        self.handshakes.end(ctx.now, session.remote, handshake);
        // The connection was not added to the user's count, so its end must not subtract from that count.
        session.user = None;
        session.stage = Stage::Closing;
        let answer = tunnel::encode_answer(&answer);
        if send_all(ctx, &mut session.channel, &answer)
            && session.channel.shutdown(ctx.now, ctx.stack).is_ok()
        {
            self.sessions.arm(id, ctx.now + CLOSE_TIMEOUT);
        } else {
            self.drop_session(ctx, id);
        }
    }

    fn grant_tunnel(&mut self, now: Instant, id: SessionId, request: &Request) -> Answer {
        let not_offered = Err(tunnel::Refusal::NotOffered);
        let Some(Session {
            channel,
            user,
            remote,
            ..
        }) = self.sessions.get(id)
        else {
            return not_offered;
        };
        let is_agreed = channel.agreed().is_some_and(|a| a.has(Versions::TUNNEL));
        let (Some(user), Some(key), true) = (*user, channel.peer(), is_agreed) else {
            return not_offered;
        };
        let (Ok(seed), v6) = (self.tls.random_seed(), self.tls.reached.v6) else {
            return not_offered;
        };
        let Some(sessions) = self.tunnel.enabled().filter(|_| !self.ending) else {
            return not_offered;
        };
        let export = |session, epoch| tunnel::secrets(channel, session, epoch);
        let before = sessions.contended();
        let answer = sessions.open(now, Requester { user, key }, request, (seed, v6), export);
        if sessions.contended() > before
            && let Some(suppressed) = self.limiter.allow(now, "contended tunnel", *remote)
        {
            let user = self.user_names.get(user);
            tracing::warn!(
                %remote, user, suppressed,
                "a box has replaced a session of the tunnel that was in use: it restarts often, or two boxes have the same \
                 key and the same `name`"
            );
        }
        answer
    }
}
