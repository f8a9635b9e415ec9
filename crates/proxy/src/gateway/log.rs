//! Log lines about users' connections. [`LogLimiter`](crate::admin::report::LogLimiter) allows at most one line a
//! minute for each kind and source.

use core::net::IpAddr;

use braid_engine::ApiError;
use braid_wire::Instant;

use super::BoxCore;
use super::session::{Outcome, Session};
use super::socks_clients::SocksClient;
use crate::protocol::socks::{ClientError, Reply};
use crate::relay::End;

impl BoxCore {
    /// Counts the invalid hints of a client, and logs the first one.
    pub(super) fn log_bad_hints(&mut self, now: Instant, client: &SocksClient) {
        let Some(mistake) = client.mistakes.first() else {
            return;
        };
        self.counters.bad_hints += client.mistakes.len() as u64;
        let host = client.host;
        if let Some(suppressed) = self.limiter.allow(now, "hints", host) {
            // `?what` quotes the text, because a program chose this text and may have put control characters into
            // it.
            let (what, expected) = (&mistake.what, &mistake.expected);
            tracing::warn!(
                %host, suppressed, ?what, expected,
                "ignored a hint that a program gave with its connection"
            );
        }
    }

    /// Logs the end of a session, if it shows a problem that the operator can solve.
    pub(super) fn log_end(&mut self, now: Instant, session: &Session, outcome: Outcome) {
        let (host, destination) = (session.host, &session.flow.destination);
        tracing::debug!(%host, %destination, ?outcome, "connection ended");
        // `None` if the server was removed from the configuration while the session continued.
        let entry = self.upstream.server(session.server);
        let address = entry.and_then(|entry| entry.endpoint_v4().or(entry.endpoint_v6()));
        let Some(server) = address else {
            return;
        };
        match outcome {
            Outcome::NoServer => self.warn_no_server(now, server.ip(), None),
            Outcome::Refused(ClientError::AuthRefused | ClientError::MethodRefused) => {
                if let Some(suppressed) = self.limiter.allow(now, "auth", server.ip()) {
                    tracing::error!(
                        %server, suppressed,
                        "the server refuses this box: compare the public keys and the clocks of both"
                    );
                }
            }
            Outcome::Unprotected(why) | Outcome::Relayed(End::Broken(why)) => {
                let (kind, text) = why.at_box();
                if let Some(suppressed) = self.limiter.allow(now, kind, server.ip()) {
                    tracing::error!(%server, suppressed, ?why, "{text}");
                }
            }
            Outcome::Refused(ClientError::Garbage) | Outcome::ServerFailed => {
                if let Some(suppressed) = self.limiter.allow(now, "server", server.ip()) {
                    tracing::warn!(
                        %server, suppressed,
                        "the server at {server} is not a Braid server, or has a different version, or is \
                         stopping; a user's connection was reset; check address, port and versions"
                    );
                }
            }
            Outcome::Refused(ClientError::Refused(Reply::NotAllowed)) => {
                if let Some(suppressed) = self.limiter.allow(now, "rules", host) {
                    tracing::warn!(
                        %destination, suppressed,
                        "the rules of the server do not allow this destination; the connection was refused"
                    );
                }
            }
            _ => {}
        }
    }

    /// Logs that no server could be reached for a user.
    pub(super) fn warn_no_server(&mut self, now: Instant, source: IpAddr, error: Option<ApiError>) {
        if self.is_ending {
            return;
        }
        if let Some(suppressed) = self.limiter.allow(now, "no server", source) {
            let error = error.map_or_else(|| "no answer".to_owned(), |e| e.to_string());
            tracing::warn!(
                error,
                suppressed,
                "no server can be reached: a user's connection was refused; check the links by `braid box status`"
            );
        }
    }
}
