//! The server's side of probes, by which boxes measure.

use core::time::Duration;

use braid_engine::{ConnId, Stack};
use braid_secure::channel::RECORD_OVERHEAD;

use super::session::{Refusal, Session, Stage};
use super::train::Departures;
use super::{CLOSE_TIMEOUT, ServerCore, send_all};
use crate::app::Ctx;
use crate::protocol::probe::{self, Train};
use crate::protocol::socks::RequestMetadata;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Answers a probe with the egress metrics, and sends the train.
    pub(super) fn on_probe(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        metadata: &RequestMetadata,
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return;
        };
        let right = handshake
            .grant
            .as_ref()
            .filter(|g| self.verifier.check_probe(g, metadata.into()));
        let Some(user) = right.map(|g| g.user) else {
            return self.refuse(ctx, id, Refusal::WrongDestination);
        };
        // A probe does not count as a connection of the user.
        self.handshakes.end(ctx.now, session.remote, handshake);
        session.user = None;
        session.stage = Stage::Closing;
        let mut train = Train::decode(&metadata.hints);
        let allowance = &mut self.allowances[user];
        if train.records > 0 && !allowance.take(ctx.now, self.limits.trains) {
            self.counters.trains_refused += 1;
            train.records = 0;
        }
        self.counters.trains += u64::from(train.records > 0);
        let conn = session.channel.conn;
        self.egress.ask(ctx);
        let unpaced = train.records.min(unpaced(ctx.stack, conn));
        let answer = probe::answer(train.records, unpaced, self.egress.quality(ctx.now));
        let began = ctx.now;
        if let Some(session) = self.sessions.get_mut(id) {
            if !send_all(ctx, &mut session.channel, &answer) {
                return self.drop_session(ctx, id);
            }
            session.stage = Stage::Departing(Departures {
                train,
                sent: 0,
                began,
            });
        }
        self.depart(ctx, id);
    }

    /// Sends the records that are due.
    pub(super) fn depart(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Session {
            channel,
            stage: Stage::Departing(departures),
            ..
        } = session
        else {
            return;
        };
        while departures.sent < departures.train.records && departures.next() <= ctx.now {
            let after: Duration = ctx.now.saturating_since(departures.began);
            departures.sent += 1;
            if !send_all(ctx, channel, &probe::record(after)) {
                return self.drop_session(ctx, id);
            }
        }
        if departures.sent < departures.train.records {
            let next = departures.next();
            return self.sessions.arm(id, next);
        }
        session.stage = Stage::Closing;
        let told = session.channel.shutdown(ctx.now, ctx.stack).is_ok();
        match told {
            true => self.sessions.arm(id, ctx.now + CLOSE_TIMEOUT),
            false => self.drop_session(ctx, id),
        }
    }
}

/// Returns the number of records that pacing does not delay now: the rest of the initial window, and only its
/// first packets on a path unknown to the engine.
fn unpaced(stack: &Stack, conn: ConnId) -> u8 {
    let subflows = stack.subflows(conn);
    let bytes = subflows.first().map_or(0, |subflow| subflow.unpaced);
    u8::try_from(bytes / (probe::RECORD_LEN + RECORD_OVERHEAD) as u64).unwrap_or(u8::MAX)
}
