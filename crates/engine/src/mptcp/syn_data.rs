//! Payload of SYNs: TCP Fast Open (RFC 7413), also with Multipath TCP (RFC 8684 appendix B).
//!
//! Payload of a SYN is the start of the connection's stream and of the subflow's. It has no data sequence
//! numbers: no mapping and no checksum covers it. Only a SYN that opens a connection carries payload, and only
//! when that SYN is first sent. If it is not answered in time, the same bytes are sent after the handshake on
//! the next path, so the server may receive them twice.

use braid_wire::tcp::{self, FastOpenCookie, MAX_OPTIONS_LEN, Options};

use super::connection::Connection;
use super::ctx::Ctx;
use super::opening::Offer;
use super::output::Body;
use super::subflow::Subflow;
use super::transport::{Life, Transport};
use crate::Event;
use crate::buffer::Data;
use crate::path::Grant;

impl Connection {
    /// Handles the answer to our SYN on subflow `i`. Payload that the server did not accept becomes unsent
    /// again. Remembers how server and network treat the option, and returns the number of bytes accepted.
    // Conforms: 7413-4.1.3.1-1, 7413-4.2.2-8, 7413-4.1.3-2, 7413-4.1.3.1-2, 7413-4.2.2-3
    pub(super) fn on_offer_answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        answer: &tcp::Repr,
    ) -> u64 {
        let subflow = &mut self.transport.subflows[i];
        let link = subflow.link();
        let Some(offer) = subflow.handshake.offer.take() else {
            return 0;
        };
        let first = subflow.snd.iss.add(1);
        let taken = u64::try_from(answer.ack.diff(first)).unwrap_or(0);
        let cookie = answer.options.fast_open.as_ref();
        let cookie = cookie.filter(|cookie| !cookie.is_empty());
        // A server that no longer recognises its cookie grants another one. If the payload was neither accepted
        // nor answered by a cookie, a middlebox removed the cookie or the payload.
        let was_sent_once = subflow.handshake.tries == 1;
        let refused = offer.len > 0 && taken == 0 && cookie.is_none();
        // A repeated SYN has no option, so its answer does not show that the network passes the option.
        if taken > 0 || cookie.is_some() || (was_sent_once && !refused) {
            ctx.shared.fast_opens.on_passed(link);
        } else {
            ctx.shared.fast_opens.on_dropped(ctx.now, link);
        }
        match cookie {
            Some(cookie) => {
                let cookie = cookie.clone();
                let mss = answer.options.mss.unwrap_or(subflow.size.usual_mss());
                let grant = Grant { cookie, mss };
                ctx.shared.fast_opens.learn(ctx.now, link, grant);
            }
            None if refused && was_sent_once => ctx.shared.fast_opens.forget(link),
            None => {}
        }
        subflow.syn_data.sent = taken;
        subflow.snd.traffic.bytes_sent += taken;
        subflow.snd.traffic.packets_sent += u64::from(taken > 0);
        self.acknowledge(ctx, taken);
        self.transport.snd.take_back(taken, offer);
        taken
    }

    /// Accepts the payload of the SYN that opens this connection; the cookie of the SYN proves the sender's
    /// address. The application gets the payload at once, but its answer waits for the third ACK: a Linux
    /// opener falls back if data comes without a DATA_ACK, and a DATA_ACK needs the opener's key, which only
    /// the third ACK brings. Returns whether any payload was accepted.
    // Conforms: 8684-B.2-1
    pub fn accept_syn_data(&mut self, ctx: &mut Ctx<'_>, window: u16, payload: Data<'_>) -> bool {
        self.transport.rcv.size_window(ctx.shared);
        let len = payload.len();
        let stored = match self
            .transport
            .share
            .is_used_up(&ctx.shared.pool, self.transport.rcv.buf.readable())
        {
            true => 0,
            false => match self.transport.rcv.insert(0, payload, &mut ctx.shared.pool) {
                Ok(done) => len - done.refused,
                Err(_) => 0,
            },
        };
        if stored == 0 {
            return false;
        }
        let len = stored as u64;
        let subflow = &mut self.transport.subflows[0];
        subflow.syn_data.received = len;
        subflow.rcv.on_payload(ctx.now, 1..1 + len, len);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        self.transport.snd.wnd_end = window.into();
        self.transport.live.last_received = ctx.now;
        self.transport.live.last_payload = ctx.now;
        self.report_accepted(ctx);
        self.transport.signal_readable(ctx);
        true
    }

    /// Reports the accepted connection to the application, if that has not been done.
    pub(super) fn report_accepted(&mut self, ctx: &mut Ctx<'_>) {
        let opening = matches!(self.transport.life, Life::Opening { .. });
        let Some(listener) = self.transport.listener.filter(|_| opening) else {
            return;
        };
        self.transport.life = Life::Open;
        ctx.shared.events.push_back(Event::Accepted {
            conn: self.transport.id,
            listener,
            local: self.transport.subflows[0].tuple.local,
            remote: self.paths.remote(),
        });
    }
}

impl Transport {
    /// Adds TCP Fast Open to the SYN that opens the connection: a request for a cookie, or a cookie and written
    /// data. Repeated SYNs and SYNs on another path have no such option, because the network may have dropped
    /// the first SYN because of the option (RFC 7413 section 4.1.3). No second SYN is sent beside a SYN with
    /// payload, so only the timeout shows that the path has just become dark.
    // Conforms: 7413-4.1.3.1-1, 7413-4.2.2-8, 7413-4.2.1-1, 7413-4.2.2-1, 7413-4.2.2-2, 8684-B.1-1
    pub(super) fn open_fast(&mut self, ctx: &mut Ctx<'_>, i: usize, options: &mut Options) -> Body {
        let alone = self.subflows.opening().count() == 1;
        let subflow = &mut self.subflows[i];
        let is_first = subflow.handshake.tries == 1 && alone;
        let link = subflow.link();
        if !ctx.shared.config.fast_open || !is_first || !ctx.shared.fast_opens.pass(ctx.now, link) {
            return Body::None;
        }
        let urgency = self.snd.buf.most_urgent();
        let grant = ctx.shared.fast_opens.grant(link);
        let (cookie, mss) = match (grant, urgency) {
            // A cookie without data would be of no use.
            (Some(_), None) => return Body::None,
            (Some(grant), Some(_)) => (grant.cookie.clone(), Some(grant.mss)),
            // An empty cookie asks for one (RFC 7413 section 4.1.1).
            (None, _) => (FastOpenCookie::new(), None),
        };
        options.fast_open = Some(cookie);
        if options.len() > MAX_OPTIONS_LEN {
            options.fast_open = None;
            return Body::None;
        }
        let range = match mss {
            Some(mss) => {
                subflow.size.seed_mss(mss);
                // Less urgent bytes do not fill the SYN, because `Offer` has a single urgency.
                let max_len = u64::from(subflow.size.max_payload(options.len()));
                self.snd.map_next(max_len.min(self.snd.buf.next_run()))
            }
            None => 0..0,
        };
        subflow.handshake.offer = Some(Offer {
            len: range.end,
            urgency: urgency.unwrap_or_default(),
        });
        if range.is_empty() {
            return Body::None;
        }
        // A second SYN could open another connection, to which the same payload would then be sent.
        subflow.handshake.second_syn_at = None;
        Body::Data(range)
    }
}

impl Subflow {
    /// Adds the cookie for the peer to the first SYN/ACK. Repeats omit it, because the network may have dropped
    /// the first SYN/ACK for this option (RFC 7413 section 4.2.2).
    // Conforms: 7413-4.2.2-4
    pub(super) fn grant_cookie(&mut self, options: &mut Options) -> Body {
        options.fast_open = self.handshake.cookie.take();
        if options.len() > MAX_OPTIONS_LEN {
            options.fast_open = None;
        }
        Body::None
    }
}
