//! Joins that have to prove by a secret of the application that they are the peer's.

use core::mem;

use braid_wire::mptcp::ResetReason;

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::keys::{hmac64, join_hmac};
use super::opening::JoinProof;
use super::subflow::{Opens, Phase, Subflow};
use super::transport::Transport;
use crate::event::SubflowCloseReason;
use crate::{Event, JoinAuth};

impl Connection {
    /// Judges joins and announcements by `auth` from now on, those that wait for it included. Subflows that
    /// the keys alone let in before end, where that is not enough any more.
    pub fn set_join_auth(&mut self, ctx: &mut Ctx<'_>, auth: JoinAuth) {
        let before = mem::replace(&mut self.transport.joins.auth, auth);
        if before == JoinAuth::Keys && auth != JoinAuth::Keys {
            let joined = |s: &Subflow| s.opens != Opens::Connection && s.is_established();
            for subflow in self.transport.subflows.iter_mut().filter(|s| joined(s)) {
                subflow.begin_reset(
                    ResetKind::Subflow(ResetReason::MptcpSpecific),
                    SubflowCloseReason::PeerMisbehaved,
                );
            }
        }
        if self.transport.joins.is_pending() {
            return;
        }
        for (subflow, add) in self.transport.joins.take_held() {
            if let Some(i) = self.transport.subflows.index_of(subflow) {
                self.on_add_addr(ctx, i, &add);
            }
        }
        for i in 0..self.transport.subflows.len() {
            self.transport.check_syn_ack(ctx, i);
        }
    }

    /// Returns whether the peer's join with this nonce is taken up, as one of `max` subflows, and then
    /// whether its nonce shows the secret. Such a join takes the place of one that shows nothing. An opener
    /// whose peer has a secret takes up no others: its peer joins nothing.
    pub fn admit_join(&mut self, ctx: &mut Ctx<'_>, nonce: u32, max: usize) -> Option<bool> {
        let keys = self
            .transport
            .mode
            .mptcp()
            .map(|m| (m.remote.key, m.local.key))?;
        let shows_secret = self.transport.joins.take_nonce(keys, nonce);
        let may_be_early =
            self.transport.joins.auth == JoinAuth::Keys || self.transport.listener.is_some();
        if !shows_secret && !may_be_early {
            return None;
        }
        if shows_secret && self.transport.subflows.len() >= max {
            let half_open =
                |s: &Subflow| s.opens != Opens::Connection && s.phase == Phase::SynReceived;
            let mut subflows = self.transport.subflows.iter_mut();
            let replaced =
                subflows.find(|s| half_open(s) && s.handshake.proof != JoinProof::Secret);
            if let Some(replaced) = replaced {
                replaced.close(SubflowCloseReason::LackOfResources);
                self.settle(ctx);
            }
        }
        (self.transport.subflows.len() < max).then_some(shows_secret)
    }
}

impl Transport {
    /// Answers the SYN/ACK of subflow `i`, which joins, once its HMAC can be judged. One whose SYN left
    /// before the secret was known here may have met a peer that did not know it either. Such an answer
    /// comes from the address that the SYN went to, which is the peer's: announced addresses are
    /// authenticated, too. Our third ACK has the secret in any case.
    // Conforms: 8684-3.2-6
    pub(super) fn check_syn_ack(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let Some(mptcp) = self.mode.mptcp() else {
            return;
        };
        let subflow = &self.subflows[i];
        let Opens::Join {
            local_nonce,
            remote_nonce,
        } = subflow.opens
        else {
            return;
        };
        let Some(received) = subflow
            .handshake
            .unjudged
            .filter(|_| !self.joins.is_pending())
        else {
            return;
        };
        let theirs = (mptcp.remote.key, remote_nonce);
        let ours = (mptcp.local.key, local_nonce);
        let is_by = |secret| received == hmac64(&join_hmac(theirs, ours, secret));
        let genuine = is_by(self.joins.secret())
            || subflow.handshake.proof == JoinProof::AskedEarly && is_by(None);
        let confirmed = mptcp.confirmed;
        self.subflows[i].handshake.unjudged = None;
        if !genuine {
            return self.refuse_join(ctx, i);
        }
        // The peer must not use it as long as the connection may have to fall back: bytes that
        // travelled here would be missing there.
        self.subflows[i].handshake.at = confirmed.then_some(ctx.now);
    }

    /// Ends subflow `i`, whose far end has not proved that it is the peer.
    // Conforms: 8684-3.2-10
    pub(super) fn refuse_join(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &mut self.subflows[i];
        subflow.begin_reset(
            ResetKind::Subflow(ResetReason::MptcpSpecific),
            SubflowCloseReason::PeerMisbehaved,
        );
        let remote = subflow.tuple.remote;
        ctx.shared.stats.joins_forged += 1;
        if !self.is_ended() {
            let conn = self.id;
            let event = Event::JoinForged { conn, remote };
            ctx.shared.events.push_back(event);
        }
    }
}
