//! The server's side of probes. A box sends a probe to measure its link from the server.

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
        let grant = handshake
            .grant
            .as_ref()
            .filter(|g| self.verifier.check_probe(g, metadata.into()));
        let Some(user) = grant.map(|g| g.user) else {
            // As for a request, the password is valid, but its signature is not for this probe.
            return self.refuse(ctx, id, Refusal::WrongDestination);
        };
        self.handshakes.end(ctx.now, session.remote, handshake);
        // The session was not added to the user's count, so its end must not subtract from that count.
        session.user = None;
        // `Departing` needs the answer below. If the answer fails, `drop_session` must not find a handshake, which
        // it would end a second time.
        session.stage = Stage::Closing;
        let mut train = Train::decode(&metadata.hints);
        let allowance = &mut self.allowances[user];
        // Over the limit, the train becomes empty, but the probe is not refused. So the box still gets the egress
        // metrics, which cost only a few bytes.
        if train.records > 0 && !allowance.take(ctx.now, self.limits.trains) {
            self.counters.trains_refused += 1;
            train.records = 0;
        }
        self.counters.trains += u64::from(train.records > 0);
        let conn = session.channel.conn;
        // This attempt to a target serves later probes. The answer to this probe does not wait for the attempt's
        // result.
        self.egress.connect_to_target(ctx);
        let unpaced = train.records.min(unpaced_records(ctx.stack, conn));
        let asked = probe::asked(&metadata.hints).into_iter();
        let known = asked.filter_map(|p| Some((p, self.egress.quality_of(ctx.now, user, p)?)));
        let known: Vec<_> = known.collect();
        let answer = probe::answer(train.records, unpaced, self.egress.quality(ctx.now), &known);
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
        self.send_due_records(ctx, id);
    }

    /// Sends the records that are due, and ends the connection after the last one.
    pub(super) fn send_due_records(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
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
            // The record has the actual time and not the planned time, because the box compares the departure with
            // the arrival.
            let since_answer: Duration = ctx.now.saturating_since(departures.began);
            departures.sent += 1;
            if !send_all(ctx, channel, &probe::record(since_answer)) {
                return self.drop_session(ctx, id);
            }
        }
        if departures.sent < departures.train.records {
            let next = departures.next();
            return self.sessions.arm(id, next);
        }
        session.stage = Stage::Closing;
        if session.channel.shutdown(ctx.now, ctx.stack).is_ok() {
            self.sessions.arm(id, ctx.now + CLOSE_TIMEOUT);
        } else {
            self.drop_session(ctx, id);
        }
    }
}

/// Returns the number of records that pacing does not delay now: as many as fit the unused part of the initial
/// window. If the engine has no measurements of the path, only the first few packets of that window count. The box
/// ignores the spacing of the other records, which the server's pacing determines.
fn unpaced_records(stack: &Stack, conn: ConnId) -> u8 {
    let subflows = stack.subflows(conn);
    // A box probes over regular TCP, so the connection has one subflow.
    let bytes = subflows.first().map_or(0, |subflow| subflow.unpaced);
    // The answer has one byte for the number, and a train is shorter than 255 records.
    u8::try_from(bytes / (probe::RECORD_LEN + RECORD_OVERHEAD) as u64).unwrap_or(u8::MAX)
}
