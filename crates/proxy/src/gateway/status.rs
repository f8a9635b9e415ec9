//! The status of a box, and the operator's requests.

use braid_engine::{ConnId, PathId, Stack};
use braid_wire::Instant;

use super::BoxCore;
use super::session::Stage;
use crate::admin::control::{Answer, Controlled, Request, STOPPING};
use crate::admin::judge;
use crate::admin::status::{self, Role, SessionInfo, Status};
use crate::admin::verdict::{NEWS_TARGET, Reason};

impl BoxCore {
    /// Sets the problems of this machine, and logs those that are new.
    pub fn set_machine_faults(&mut self, faults: Vec<Reason>) {
        for fault in faults
            .iter()
            .filter(|fault| !self.machine_faults.contains(fault))
        {
            tracing::warn!(target: NEWS_TARGET, "{fault}");
        }
        self.machine_faults = faults;
    }

    /// Returns the name of a path's link; empty if the link was removed from the configuration.
    pub fn link_name(&self, path: PathId) -> &str {
        self.upstream.link_name(path).unwrap_or_default()
    }

    /// Returns the status at `now`.
    pub fn status(&self, now: Instant, stack: &Stack) -> Status {
        let paths = self.upstream.link_status(stack);
        let name = |path: PathId| match self.upstream.link_name(path) {
            Some(name) => name.to_owned(),
            // The path stays for a moment, until its last packets were sent.
            None => "(removed)".to_owned(),
        };
        let mut status = Status {
            proxy: Some(self.upstream.proxy_status()),
            servers: self.upstream.server_status(),
            select: Some(self.upstream.select_status()),
            idle_pool: Some(self.upstream.idle_pool_status()),
            tunnel: Some(self.tunnel.end.status(now, name, |server| {
                Some(self.upstream.server(server)?.name.clone())
            })),
            connections_total: self.sessions.len(),
            connections: status::connections(stack, |conn| self.session_info(now, conn), name),
            counters: status::counters(self.counters.iter(), stack.stats()),
            paths,
            ..self.about.status(Role::Box)
        };
        if let (Some(tunnel), Some(fault)) = (&mut status.tunnel, &self.tunnel.fault) {
            tunnel.fail(fault);
        }
        status.verdict = judge::verdict(&status, &self.machine_faults);
        status
    }

    /// Returns the status of the session on connection `conn`; `None` for probes and idle connections.
    fn session_info(&self, now: Instant, conn: ConnId) -> Option<SessionInfo> {
        let session = self.sessions.get(self.sessions.by_conn(conn)?)?;
        Some(SessionInfo {
            user: Some(session.host.to_string()),
            destination: Some(session.flow.destination.to_string()),
            host: session.flow.host().map(str::to_owned),
            agreed: session.channel.agreed(),
            state: match session.stage {
                Stage::Connecting(_) => "connecting",
                Stage::Negotiating(_) => "handshake",
                Stage::Relaying => "open",
                Stage::Leaving(_) | Stage::Unreached => "closing",
            },
            age: now.saturating_since(session.started),
            // This end sends towards the destination.
            sends_up: true,
        })
    }
}

impl Controlled for BoxCore {
    fn control(&mut self, now: Instant, stack: &mut Stack, request: Request) -> Answer {
        if self.is_stopping() && request != Request::Status {
            return Answer::Wrong(STOPPING.to_owned());
        }
        match request {
            Request::Status => Answer::Status(Box::new(self.status(now, stack))),
            Request::Proxy { on } => {
                self.upstream.switch_proxy(on);
                Answer::Done
            }
            Request::Link { name, on } => done(self.upstream.switch_link(now, &name, on, stack)),
            Request::Backup { name, on } => done(self.upstream.set_backup(now, &name, on, stack)),
            Request::Measure => {
                self.upstream.measure_all();
                Answer::Done
            }
            Request::Server { name } => done(self.upstream.switch_server(now, &name, stack)),
            Request::Reload => {
                let why = "this box was started without a configuration file and cannot reload; restart it \
                           with one";
                Answer::Wrong(why.to_owned())
            }
        }
    }
}

/// Converts the result of a request to the answer for the operator.
fn done(order: Result<(), String>) -> Answer {
    match order {
        Ok(()) => Answer::Done,
        Err(why) => Answer::Wrong(why),
    }
}
