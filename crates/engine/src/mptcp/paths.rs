//! The subflows of a connection as its path manager and its strategy open and close them.

use core::net::IpAddr;

use braid_wire::Instant;
use braid_wire::mptcp::ResetReason;

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::mode::Mode;
use super::scoreboard::MAX_SUBFLOWS;
use super::signal::Signal;
use super::subflow::{Opens, Phase, Subflow};
use super::subflows::Subflows;
use super::transport::Transport;
use crate::event::SubflowCloseReason;
use crate::path::{Failure, Situation, Target, ThirdAck};
use crate::strategy::{FirstSubflow, OpenView, StrategyEvent, USUAL_MSS};
use crate::tcp::receive::AckDue;
use crate::{ApiError, CloseReason, Event, PathId, Protocol};

impl Connection {
    /// Prepares the first SYN.
    pub fn open(&mut self, ctx: &mut Ctx<'_>) -> Result<(), ApiError> {
        let path = self.choose_opening(ctx, None);
        self.open_initial(ctx, path.ok_or(ApiError::NoUsablePath)?)?;
        let situation = self.situation(ctx);
        if let Some(first) = self.transport.subflows.last_mut() {
            let attempt_delay = self
                .paths
                .attempt_delay(&*self.strategy, first.path, &situation);
            first.handshake.second_syn_at = attempt_delay.map(|delay| ctx.now + delay);
        }
        Ok(())
    }

    /// Sends a second SYN on another path, because the SYN on subflow `i` is not answered yet. Neither SYN
    /// carries a key (RFC 8684 section 3.1), so the first one answered opens the connection.
    pub(super) fn open_second(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        if !self.transport.subflows.has_room_for_a_subflow(ctx) {
            return;
        }
        let unanswered = Some(self.transport.subflows[i].path);
        let situation = self.situation(ctx);
        let opening = self
            .paths
            .open(&mut *self.strategy, unanswered, &situation)
            .filter(|opening| {
                self.transport
                    .subflows
                    .opening()
                    .all(|s| s.path != opening.path)
            });
        if let Some(opening) = opening {
            // If this fails, the first SYN is still under way.
            let _ = self.open_initial(ctx, opening.path);
        }
    }

    /// Moves the opening from subflow `i`, whose SYN was not answered and whose path may be dark, to
    /// another path. The new SYN has keys of its own, because the first SYN may have arrived after all.
    pub(super) fn try_next_path(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let Subflow {
            path, handshake, ..
        } = &self.transport.subflows[i];
        let (path, tries, unanswered) = (*path, handshake.tries, handshake.unanswered);
        let Some(next) = self.choose_opening(ctx, Some(path)) else {
            return;
        };
        if self.open_initial(ctx, next).is_ok() {
            // A late answer to the first SYN finds no subflow and is reset.
            self.transport.subflows[i].close(SubflowCloseReason::TimedOut);
            if let Some(new) = self.transport.subflows.last_mut() {
                new.handshake.tries = tries;
                new.handshake.unanswered = match ctx.shared.is_down(path) {
                    true => 0,
                    false => unanswered,
                };
            }
        }
    }

    /// Asks the strategy how to open, and adopts the protocol that it chooses.
    fn choose_opening(&mut self, ctx: &mut Ctx<'_>, unanswered: Option<PathId>) -> Option<PathId> {
        let situation = self.situation(ctx);
        let strategy = &mut *self.strategy;
        let opening = self.paths.open(strategy, unanswered, &situation)?;
        let plain = unanswered.is_some() && matches!(self.transport.mode, Mode::Tcp);
        self.transport.mode = match opening.protocol {
            Protocol::Mptcp if !plain => Mode::Opening {
                checksum: ctx.shared.config.checksum,
                local: ctx.shared.fresh_keys(),
            },
            _ => Mode::Tcp,
        };
        Some(opening.path)
    }

    fn situation<'a>(&self, ctx: &'a Ctx<'_>) -> Situation<'a> {
        let first = self.transport.subflows.iter().find(|s| s.is_established());
        let not_established = self
            .transport
            .mode
            .mptcp()
            .is_some_and(|m| !m.fully_established);
        let third_ack = first.filter(|_| not_established).map(|s| ThirdAck {
            sent_at: s.handshake.established_at,
            rtt: s.snd.rtt.srtt(),
        });
        Situation {
            third_ack,
            paths: &ctx.shared.paths,
            records: &ctx.shared.records,
            blackholes: &ctx.shared.blackholes,
            stripped: &ctx.shared.stripped,
            in_use: self.transport.targets().take(MAX_SUBFLOWS).collect(),
            view: OpenView {
                flow_size: self.flow.size,
                seen: self.flow.seen(&self.transport.snd, &self.transport.rcv),
                unsent: self.transport.snd.unsent(),
                initial_window: u64::from(ctx.shared.config.initial_window)
                    * u64::from(first.map_or(USUAL_MSS, |s| s.snd.mss())),
                first: first.map(|s| FirstSubflow {
                    since: s.handshake.established_at,
                    rtt: s.snd.rtt.srtt(),
                }),
                ..OpenView::new(ctx.now, &[])
            },
        }
    }

    /// Opens the subflows that are due, and plans the following ones. Returns whether any was opened.
    pub(super) fn join_paths(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mut opened = false;
        loop {
            let paths = &ctx.shared.paths;
            if !self.transport.can_join(ctx)
                || !self
                    .paths
                    .is_subflow_missing(paths, self.transport.targets())
            {
                self.paths.rest();
                return opened;
            }
            let situation = self.situation(ctx);
            let cut_off = !self.transport.subflows.iter().any(Subflow::is_established);
            if cut_off && self.paths.is_refused(&situation) {
                self.fail(ctx, CloseReason::Reset);
                return opened;
            }
            self.paths.plan(&mut *self.strategy, &situation);
            let Some(target) = self.paths.take_due(ctx.now) else {
                return opened;
            };
            match self.open_join(ctx, target) {
                Ok(()) => opened = true,
                Err(_) => {
                    self.paths.on_failure(ctx.now, target, Failure::Unanswered);
                }
            }
        }
    }

    /// Handles the removal of `subflow`.
    pub(super) fn on_subflow_gone(&mut self, ctx: &mut Ctx<'_>, subflow: &mut Subflow) {
        self.transport.snd.scoreboard.on_gone(subflow.place.slot);
        // The SYN may not have been answered, so its payload has to be sent again.
        if let Some(offer) = subflow.handshake.offer.take() {
            self.transport.snd.take_back(0, offer);
        }
        let answered = subflow.snd.una > 0;
        if answered && !subflow.signs.stale {
            subflow.remember(ctx.now, &mut ctx.shared.records);
        }
        let worked = subflow.handshake.established_at > subflow.handshake.opened_at;
        if worked {
            self.strategy.on_event(&StrategyEvent::SubflowDown {
                subflow: subflow.id,
            });
        }
        if self.transport.is_ended() {
            return;
        }
        // A subflow that another SYN outran, or that ended with its path, says nothing about the path.
        let unneeded = match subflow.ending.reason {
            SubflowCloseReason::Finished => true,
            SubflowCloseReason::PathRemoved => ctx.shared.is_down(subflow.path),
            _ => false,
        };
        if subflow.active && (worked || !unneeded) {
            let failure = match subflow.ending.reason {
                _ if worked => {
                    Failure::Broke(ctx.now.saturating_since(subflow.handshake.opened_at))
                }
                SubflowCloseReason::Reset if !subflow.ending.by_mptcp => Failure::Reset,
                SubflowCloseReason::Reset | SubflowCloseReason::PeerMisbehaved => Failure::Refused,
                _ => Failure::Unanswered,
            };
            let target = (subflow.path, subflow.tuple.remote);
            match self
                .transport
                .mode
                .mptcp()
                .is_some_and(|m| !m.fully_established)
            {
                true => self.paths.on_early_refusal(subflow.path),
                false => self.paths.on_failure(ctx.now, target, failure),
            }
        }
        if worked {
            ctx.shared.events.push_back(Event::SubflowClosed {
                conn: self.transport.id,
                subflow: subflow.id,
                path: subflow.path,
                reason: subflow.ending.reason,
            });
        }
    }

    /// Marks the data that only subflow `i` carried as lost, so that another subflow takes it.
    pub(super) fn on_subflow_failed(&mut self, i: usize) {
        let subflow = &self.transport.subflows[i];
        self.transport.snd.scoreboard.on_failed(subflow.place.slot);
        self.strategy.on_event(&StrategyEvent::TimedOut {
            subflow: subflow.id,
        });
    }

    /// Handles the path's link going down or coming back.
    pub fn on_path_change(&mut self, ctx: &mut Ctx<'_>, path: PathId, up: bool) {
        let offered = self.paths.was_offered(path);
        if !up {
            self.withdraw_addresses(ctx, path, |_| true);
        }
        for i in 0..self.transport.subflows.len() {
            let subflow = &mut self.transport.subflows[i];
            if subflow.path != path {
                continue;
            }
            let opens = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if opens && up => {
                    self.transport.subflows[i].repeat_opening(ctx.now, offered)
                }
                Phase::SynSent if opens => {}
                Phase::Established if up => subflow.snd.revive(ctx.now),
                Phase::Established => {
                    self.transport
                        .signals
                        .cancel(|s| *s == Signal::Validate(subflow.id));
                    self.declare_dead(ctx, i);
                }
                // With its timer alone it would delay the next join when the link is back.
                Phase::SynSent | Phase::JoinAcked if !up => {
                    subflow.close(SubflowCloseReason::PathRemoved);
                }
                _ => {}
            }
            self.transport.subflows[i].handshake.left &= !up;
        }
        if up {
            self.revalidate_path(ctx, path);
            self.announce_return(ctx, path);
        }
        self.leave_dark_openings(ctx);
    }

    /// Sends a SYN over another link if all links over which the connection is being opened are down.
    fn leave_dark_openings(&mut self, ctx: &mut Ctx<'_>) {
        let dark = self
            .transport
            .subflows
            .opening()
            .all(|s| ctx.shared.is_down(s.path));
        let first = self.transport.subflows.opening().next().map(|s| s.id);
        if let Some(i) = first
            .filter(|_| dark)
            .and_then(|id| self.transport.subflows.index_of(id))
        {
            self.try_next_path(ctx, i);
        }
    }

    /// Probes the subflows of a path for a sign of life: repeatedly, or by an early retransmission if data
    /// is in flight. Handshake segments on the path are repeated too.
    pub fn revalidate_path(&mut self, ctx: &Ctx<'_>, path: PathId) {
        let offered = self.paths.was_offered(path);
        for i in 0..self.transport.subflows.len() {
            let subflow = &self.transport.subflows[i];
            if subflow.path != path {
                continue;
            }
            let opens = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if opens && subflow.handshake.unanswered >= 2 => {
                    self.transport.subflows[i].repeat_opening(ctx.now, offered)
                }
                Phase::SynSent if opens => {}
                Phase::SynSent | Phase::JoinAcked => {
                    self.transport.subflows[i].repeat_join(ctx.now)
                }
                Phase::Established => self.transport.revalidate(ctx, i),
                _ => {}
            }
        }
        self.paths.retry_now(path);
    }

    /// Handles a change of the path's addresses: `gone` matches the lost ones, `here` the present ones.
    /// Subflows from lost addresses end, so that others replace them; a subflow that the connection depends on
    /// waits for its address to come back.
    pub fn on_readdressed(
        &mut self,
        ctx: &mut Ctx<'_>,
        path: PathId,
        (gone, here): (impl Fn(IpAddr) -> bool, impl Fn(IpAddr) -> bool),
    ) {
        let fully_established = self
            .transport
            .mode
            .mptcp()
            .is_some_and(|m| m.fully_established);
        let mut is_back = false;
        for i in 0..self.transport.subflows.len() {
            let subflow = &mut self.transport.subflows[i];
            let local = subflow.tuple.local.ip();
            if subflow.path != path {
                continue;
            }
            if here(local) && subflow.signs.stale && subflow.is_established() {
                subflow.snd.revive(ctx.now);
                is_back = true;
            }
            if !gone(local) {
                continue;
            }
            let opens = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if opens => self.open_elsewhere(ctx, i),
                Phase::SynSent | Phase::JoinAcked => {
                    subflow.close(SubflowCloseReason::PathRemoved);
                }
                Phase::Established if fully_established => subflow.begin_reset(
                    ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                    SubflowCloseReason::PathRemoved,
                ),
                Phase::Established => self.declare_dead(ctx, i),
                _ => {}
            }
        }
        if is_back {
            self.revalidate_path(ctx, path);
        }
        self.paths.retry_now(path);
        self.announce_return(ctx, path);
    }

    /// Opens the connection from another address than subflow `i`'s, which is gone.
    fn open_elsewhere(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let next = self.choose_opening(ctx, None);
        if next.is_some_and(|next| self.open_initial(ctx, next).is_ok()) {
            self.transport.subflows[i].close(SubflowCloseReason::PathRemoved);
        }
    }

    /// Declares subflow `i` failed without waiting for its timer.
    pub(super) fn declare_dead(&mut self, ctx: &Ctx<'_>, i: usize) {
        let subflow = &mut self.transport.subflows[i];
        let ts = subflow.timestamps(ctx.now).map(|ts| ts.value);
        subflow.signs.stale = true;
        subflow.snd.declare_dead(ctx.now, ts);
        self.on_subflow_failed(i);
    }

    /// Stops using the path, though it works.
    // Conforms: 8684-3.4.2-8
    pub fn leave_path(&mut self, ctx: &Ctx<'_>, path: PathId) {
        let fully_established = self
            .transport
            .mode
            .mptcp()
            .is_some_and(|m| m.fully_established);
        for subflow in self
            .transport
            .subflows
            .iter_mut()
            .filter(|s| s.path == path)
        {
            if subflow.is_unaccepted_join() && subflow.active {
                subflow.close(SubflowCloseReason::PathRemoved);
            } else if fully_established {
                subflow.closing.close();
            } else {
                // Before it is fully established, the connection depends on this subflow.
                subflow.handshake.left = true;
            }
        }
        self.withdraw_addresses(ctx, path, |_| true);
    }
}

impl Transport {
    /// Returns whether further subflows can be opened at all.
    pub(super) fn can_join(&self, ctx: &Ctx<'_>) -> bool {
        // The third ACK goes first, as it carries the keys.
        let owed = |s: &Subflow| s.rcv.due == AckDue::Now;
        let fully_established = self.mode.mptcp().is_some_and(|m| m.fully_established);
        if !fully_established && self.subflows.iter().any(owed) {
            return false;
        }
        self.listener.is_none()
            && self.subflows.has_room_for_a_subflow(ctx)
            && self.is_open()
            && !self.is_ending()
            && self.mode.mptcp().is_some()
    }
}

impl Transport {
    /// Returns the targets that need no further subflow. A subflow that the peer left in the middle of its
    /// stream is replaced while it is still of use; if the peer answers on none, all are replaced.
    fn targets(&self) -> impl Iterator<Item = Target> + Clone {
        let left = |s: &Subflow| s.rcv.finished() && self.rcv.fin.is_none();
        let unresponsive = self.subflows.is_unresponsive();
        let lasting = self.subflows.iter();
        let lasting = lasting
            .filter(move |s| s.is_alive() && !left(s) && !(unresponsive && s.is_established()));
        lasting.map(|s| (s.path, s.tuple.remote))
    }

    /// Closes the subflows of a path whose link is gone for good. Returns whether the connection cannot
    /// open any other.
    pub fn forget_path(&mut self, path: PathId) -> bool {
        let before = self.subflows.iter().filter(|s| s.path == path).count();
        for subflow in self.subflows.iter_mut().filter(|s| s.path == path) {
            subflow.close(SubflowCloseReason::PathRemoved);
        }
        let fully_established = self.mode.mptcp().is_some_and(|m| m.fully_established);
        let left = self.subflows.iter().any(Subflow::is_alive);
        before > 0 && !left && !fully_established
    }
}

impl Subflows {
    pub(super) fn has_room_for_a_subflow(&self, ctx: &Ctx<'_>) -> bool {
        self.len() < ctx.shared.config.max_subflows.min(MAX_SUBFLOWS)
    }

    /// Returns the subflows whose SYN may open the connection.
    pub(super) fn opening(&self) -> impl Iterator<Item = &Subflow> {
        let opening = |s: &&Subflow| s.phase == Phase::SynSent && s.opens == Opens::Connection;
        self.iter().filter(opening)
    }
}

impl Subflow {
    /// Repeats the SYN now that the link of this opening subflow is back; `offered` is set if MP_CAPABLE
    /// passed there before. Silence while the link was down does not show that the network drops
    /// MP_CAPABLE.
    fn repeat_opening(&mut self, now: Instant, offered: bool) {
        self.handshake.omits_capable &= !offered;
        self.handshake.unanswered = 0;
        self.handshake.at = Some(now);
    }
}

impl Subflows {
    /// Closes the other opening subflows once the SYN on subflow `i` was answered: they would open
    /// connections of their own. An answer to them finds no subflow and is reset.
    pub(super) fn close_other_openings(&mut self, i: usize) {
        let chosen = self[i].id;
        for subflow in self.iter_mut() {
            let beside = subflow.phase == Phase::SynSent && subflow.opens == Opens::Connection;
            if beside && subflow.id != chosen {
                subflow.close(SubflowCloseReason::Finished);
            }
        }
    }
}
