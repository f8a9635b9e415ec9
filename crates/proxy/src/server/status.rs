//! The status of a server.

use braid_engine::{ConnId, PathId, Stack};
use braid_wire::Instant;

use super::ServerCore;
use super::session::Stage;
use crate::admin::control::{Answer, Controlled, Request};
use crate::admin::judge;
use crate::admin::status::{self, PathStatus, Role, SessionInfo, Status};

impl ServerCore {
    /// Returns the status at `now`.
    pub fn status(&self, now: Instant, stack: &Stack) -> Status {
        let totals = stack.path_totals();
        // A server has one path for each listening address, in the same order.
        let paths = self.listen.iter().zip(&totals);
        let name = |path: PathId| match self.listen.get(usize::from(path.0)) {
            Some(address) => address.to_string(),
            None => path.0.to_string(),
        };
        let mut status = Status {
            paths: paths
                .map(|(address, totals)| PathStatus::new(address.to_string(), totals))
                .collect(),
            tunnel: Some(
                self.tunnel
                    .status(now, |user| self.user_names.get(user).cloned()),
            ),
            connections_total: self.sessions.len(),
            connections: status::connections(stack, |conn| self.session_info(now, conn), name),
            counters: status::counters(self.counters.iter(), stack.stats()),
            ..self.about.status(Role::Server)
        };
        status.verdict = judge::verdict(&status, &[]);
        status
    }

    /// Returns the part of the status that concerns the session of `conn`.
    fn session_info(&self, now: Instant, conn: ConnId) -> Option<SessionInfo> {
        let session = self.sessions.get(self.sessions.by_conn(conn)?)?;
        let user = session.user.and_then(|u| self.user_names.get(u));
        Some(SessionInfo {
            user: user.cloned(),
            destination: session.destination.as_ref().map(ToString::to_string),
            // Only a box reads names from users' first bytes.
            host: None,
            agreed: session.channel.agreed(),
            state: match &session.stage {
                Stage::Handshake(h) if h.is_waiting => "waiting",
                Stage::Handshake(_) => "handshake",
                Stage::Resolving => "resolving",
                Stage::Connecting { .. } => "connecting",
                Stage::Relaying(..) => "open",
                Stage::Departing(_) => "probe",
                Stage::Closing | Stage::Refused => "closing",
            },
            age: now.saturating_since(session.started),
            sends_up: false,
        })
    }
}

impl Controlled for ServerCore {
    fn control(&mut self, now: Instant, stack: &mut Stack, request: Request) -> Answer {
        match request {
            Request::Status => Answer::Status(Box::new(self.status(now, stack))),
            // The driver itself reloads a server that has a configuration file, so this server has none.
            Request::Reload => {
                let why = "this server was started without a configuration file and cannot reload; restart it \
                           with one";
                Answer::Error(why.to_owned())
            }
            _ => Answer::Wrong("this is a server; only a box accepts this command".to_owned()),
        }
    }
}
