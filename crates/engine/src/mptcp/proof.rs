//! The verification of joins, which may have to prove their origin by a secret of the application.

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
    /// Authenticates joins and announcements by `auth` from now on, including those that waited for the
    /// secret. If the keys alone no longer suffice, subflows that joined by the keys alone are reset.
    pub fn set_join_auth(&mut self, ctx: &mut Ctx<'_>, auth: JoinAuth) {
        let before = mem::replace(&mut self.transport.joins.auth, auth);
        if before == JoinAuth::Keys && auth != JoinAuth::Keys {
            let joined_by_keys = |s: &Subflow| s.opens != Opens::Connection && s.is_established();
            for subflow in self
                .transport
                .subflows
                .iter_mut()
                .filter(|s| joined_by_keys(s))
            {
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

    /// Returns whether the nonce of the peer's join proves the secret, or `None` if the join is refused. A
    /// connection has at most `max` subflows; if all places are taken, a join that proves the secret replaces
    /// a half-open join that does not. A listener also admits joins without proof, because the SYN may have
    /// left before the opener knew the secret; the third ACK needs the secret in any case. An opener with a
    /// secret refuses joins without proof: only the opener of a connection joins, so its peer sends no such SYN.
    pub fn admit_join(&mut self, ctx: &mut Ctx<'_>, nonce: u32, max: usize) -> Option<bool> {
        let keys = self
            .transport
            .mode
            .mptcp()
            .map(|m| (m.remote.key, m.local.key))?;
        let proves_secret = self.transport.joins.take_nonce(keys, nonce);
        let may_lack_proof =
            self.transport.joins.auth == JoinAuth::Keys || self.transport.listener.is_some();
        if !proves_secret && !may_lack_proof {
            return None;
        }
        if proves_secret && self.transport.subflows.len() >= max {
            let half_open =
                |s: &Subflow| s.opens != Opens::Connection && s.phase == Phase::SynReceived;
            let mut subflows = self.transport.subflows.iter_mut();
            let replaced =
                subflows.find(|s| half_open(s) && s.handshake.proof != JoinProof::Secret);
            if let Some(replaced) = replaced {
                replaced.close(SubflowCloseReason::LackOfResources);
                // Removes the closed subflow, so that its place is free below.
                self.reconcile(ctx);
            }
        }
        (self.transport.subflows.len() < max).then_some(proves_secret)
    }
}

impl Transport {
    /// Verifies the SYN/ACK of the join on subflow `i`, unless the application has not decided yet whether there
    /// is a secret. If our SYN left before the secret was known here, the peer may not have known the secret
    /// either, so an HMAC without the secret is accepted as well. That is safe enough: the SYN/ACK comes from
    /// the address that our SYN was sent to, and this is the peer's address, because announced addresses are
    /// authenticated. Our third ACK uses the secret in any case.
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
            .unverified_hmac
            .filter(|_| !self.joins.is_pending())
        else {
            return;
        };
        let theirs = (mptcp.remote.key, remote_nonce);
        let ours = (mptcp.local.key, local_nonce);
        let is_by = |secret| received == hmac64(&join_hmac(theirs, ours, secret));
        let genuine = is_by(self.joins.secret())
            || subflow.handshake.proof == JoinProof::OpenedEarly && is_by(None);
        let fully_established = mptcp.fully_established;
        self.subflows[i].handshake.unverified_hmac = None;
        if !genuine {
            return self.refuse_join(ctx, i);
        }
        // Until the connection is fully established it may still fall back to regular TCP on the initial
        // subflow. Bytes sent on this subflow would then be missing in the stream. So the third ACK waits,
        // because the peer may send here once it has the third ACK.
        self.subflows[i].handshake.at = fully_established.then_some(ctx.now);
    }

    /// Resets the join on subflow `i`, because its HMAC does not prove that the remote end is the peer.
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
