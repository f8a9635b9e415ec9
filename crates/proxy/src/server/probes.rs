//! The server's side of probes. A box requests a probe to measure the bandwidth of one of its links in the direction
//! from the server: the server sends a train of packets over the link.

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
    /// Answers the request for a probe with the egress metrics (the server's own bandwidth and delay to the Internet),
    /// and sends the train.
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
            // The password was accepted, but the signature does not cover this probe. A request for a destination
            // with a wrong signature is refused in the same way.
            return self.refuse(ctx, id, Refusal::WrongDestination);
        };
        self.handshakes.end(ctx.now, session.remote, handshake);
        // The session was not added to the user's count, so its end must not subtract from that count.
        session.user = None;
        // The handshake has ended, so the stage must change before `drop_session`, which would end the handshake a
        // second time. The next stage, `Departing`, begins with the answer.
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
        // A probe also makes the server measure its way to one of its targets, addresses on the Internet. So the server
        // measures only while boxes ask for the metrics. A box cannot choose the target, and `egress` bounds the rate.
        // The result counts in the answers to later probes; this answer does not wait for it.
        self.egress.connect_to_target(ctx);
        // The answer has this number, so it is computed before the answer is sent.
        let unpaced = train.records.min(unpaced_records(ctx.stack, conn));
        let asked = probe::asked(&metadata.hints).into_iter();
        let known = asked.filter_map(|p| Some((p, self.egress.quality_of(ctx.now, user, p)?)));
        let known: Vec<_> = known.collect();
        let answer = probe::answer(train.records, unpaced, self.egress.quality(ctx.now), &known);
        if !send_all(ctx, &mut session.channel, &answer) {
            return self.drop_session(ctx, id);
        }
        session.stage = Stage::Departing(Departures {
            train,
            sent: 0,
            began: ctx.now,
        });
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
            // The record carries the actual time and not the planned one, because the box compares the times between
            // departures with those between arrivals.
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

/// Returns the number of records behind the answer that the engine's pacing will not delay. The engine sends an initial
/// window unpaced; if it has no measurements of the path, only four segments. Pacing delays what follows. The delayed
/// records arrive as the server's pacing spaced them, so the box computes nothing from them. With gaps in the train,
/// pacing may delay even fewer records; the number disregards that, and so never contains a delayed record.
fn unpaced_records(stack: &Stack, conn: ConnId) -> u8 {
    let subflows = stack.subflows(conn);
    // A box probes over regular TCP, so the connection has one subflow.
    let unpaced = subflows.first().map_or(0, |subflow| subflow.unpaced);
    let unsent = stack.conn_stats(conn);
    let unsent = unsent.map_or(0, |stats| stats.unsent.iter().sum());
    records_within(unpaced, unsent)
}

/// Returns the number of records that fit `unpaced` bytes behind the answer and `unsent` earlier bytes.
fn records_within(unpaced: u64, unsent: u64) -> u8 {
    let room = unpaced.saturating_sub(unsent + probe::ANSWER_RECORD_LEN as u64);
    // The answer has one byte for the number, and a train is shorter than 255 records.
    u8::try_from(room / (probe::RECORD_LEN + RECORD_OVERHEAD) as u64).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_that_fit_behind_the_answer_are_unpaced() {
        // Four segments of 1,448 bytes (IPv4 with timestamps) hold an answer and four records: 149 + 5,600 bytes.
        // Those of 1,428 bytes (IPv6) hold three.
        assert_eq!(records_within(4 * 1448, 0), 4);
        assert_eq!(records_within(4 * 1428, 0), 3);
        // The greeting has not left yet.
        assert_eq!(records_within(149 + 149 + 2 * 1400, 149), 2);
        assert_eq!(records_within(149 + 149 + 2 * 1400 - 1, 149), 1);
        assert_eq!(records_within(100, 0), 0);
    }
}
