//! The opening, moving and closing of a connection's subflows, as its path manager and its strategy decide and
//! as paths come and go.

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
    /// carries a key (RFC 8684 section 3.1), so the peer cannot relate them, and whichever is answered first
    /// opens the connection.
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
            // A failure is no error of the connection, because the first SYN is still under way.
            let _ = self.open_initial(ctx, opening.path);
        }
    }

    /// Moves the opening from subflow `i`, whose SYN was not answered, to another path. The new SYN uses new
    /// keys, because the peer may have accepted the first SYN.
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
                // The backoff continues. But if the link was down, its silence does not show that the network
                // drops MP_CAPABLE.
                new.handshake.tries = tries;
                new.handshake.unanswered = match ctx.shared.is_down(path) {
                    true => 0,
                    false => unanswered,
                };
            }
        }
    }

    /// Asks the strategy how to open, and adopts the protocol that the strategy chooses.
    fn choose_opening(&mut self, ctx: &mut Ctx<'_>, unanswered: Option<PathId>) -> Option<PathId> {
        let situation = self.situation(ctx);
        let strategy = &mut *self.strategy;
        let opening = self.paths.open(strategy, unanswered, &situation)?;
        // A connection that began as regular TCP stays so on its next path.
        let began_as_tcp = unanswered.is_some() && matches!(self.transport.mode, Mode::Tcp);
        self.transport.mode = match opening.protocol {
            Protocol::Mptcp if !began_as_tcp => Mode::Opening {
                checksum: ctx.shared.config.checksum,
                local: ctx.shared.fresh_keys(),
            },
            _ => Mode::Tcp,
        };
        Some(opening.path)
    }

    /// Returns the state on which path manager and strategy decide.
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
            loads: &ctx.shared.loads,
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

    /// Opens the subflows that are due, and plans the following ones. Returns whether a subflow was opened.
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
            let has_no_subflow = !self.transport.subflows.iter().any(Subflow::is_established);
            if has_no_subflow && self.paths.is_refused(&situation) {
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
        // If the SYN was not answered, its payload has to be sent again.
        if let Some(offer) = subflow.handshake.offer.take() {
            self.transport.snd.take_back(0, offer);
        }
        // The round trips of a stale subflow reflect an outage, so they are not recorded.
        let was_answered = subflow.snd.una > 0;
        if was_answered && !subflow.signs.stale {
            subflow.remember(ctx.now, &mut ctx.shared.records);
        }
        let was_established = subflow.handshake.established_at > subflow.handshake.opened_at;
        if was_established {
            self.strategy.on_event(&StrategyEvent::SubflowDown {
                subflow: subflow.id,
            });
        }
        if self.transport.is_ended() {
            return;
        }
        // The end of a subflow says nothing about the path if another SYN was answered first, or if the link
        // went down.
        let says_nothing = match subflow.ending.reason {
            SubflowCloseReason::Finished => true,
            SubflowCloseReason::PathRemoved => ctx.shared.is_down(subflow.path),
            _ => false,
        };
        if subflow.active && (was_established || !says_nothing) {
            let failure = match subflow.ending.reason {
                _ if was_established => {
                    Failure::Broke(ctx.now.saturating_since(subflow.handshake.opened_at))
                }
                // A RST without MP_TCPRST may come from a middlebox.
                SubflowCloseReason::Reset if !subflow.ending.by_mptcp => Failure::Reset,
                SubflowCloseReason::Reset | SubflowCloseReason::PeerMisbehaved => Failure::Refused,
                _ => Failure::Unanswered,
            };
            let target = (subflow.path, subflow.tuple.remote);
            // As long as the peer may lack the keys, it may refuse joins for that reason alone.
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
        if was_established {
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
            let is_initial = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if is_initial && up => {
                    self.transport.subflows[i].repeat_opening(ctx.now, offered)
                }
                // `leave_dark_openings` moves the opening, if another path is up.
                Phase::SynSent if is_initial => {}
                Phase::Established if up => subflow.snd.revive(ctx.now),
                Phase::Established => {
                    self.transport
                        .signals
                        .cancel(|s| *s == Signal::Validate(subflow.id));
                    self.declare_dead(ctx, i);
                }
                // As long as an unanswered join waits for its backed-off timer, no other join is tried on its
                // path. So the join is given up, and a new one starts when the link is back.
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
        let all_down = self
            .transport
            .subflows
            .opening()
            .all(|s| ctx.shared.is_down(s.path));
        let first = self.transport.subflows.opening().next().map(|s| s.id);
        if let Some(i) = first
            .filter(|_| all_down)
            .and_then(|id| self.transport.subflows.index_of(id))
        {
            self.try_next_path(ctx, i);
        }
    }

    /// Probes the established subflows of a path for a sign of life. A subflow with data in flight
    /// retransmits it early instead. Handshake segments on the path are repeated if at least two were not
    /// answered: the timer of a single one is not backed off yet.
    pub fn revalidate_path(&mut self, ctx: &Ctx<'_>, path: PathId) {
        let offered = self.paths.was_offered(path);
        for i in 0..self.transport.subflows.len() {
            let subflow = &self.transport.subflows[i];
            if subflow.path != path {
                continue;
            }
            let is_initial = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if is_initial && subflow.handshake.unanswered >= 2 => {
                    self.transport.subflows[i].repeat_opening(ctx.now, offered)
                }
                Phase::SynSent if is_initial => {}
                Phase::SynSent | Phase::JoinAcked => {
                    self.transport.subflows[i].repeat_join(ctx.now)
                }
                Phase::Established => self.transport.revalidate(ctx, i),
                _ => {}
            }
        }
        self.paths.retry_now(path);
    }

    /// Handles a change of the path's addresses: `is_gone` matches the lost addresses, `is_present` those that
    /// the path has now. Subflows from lost addresses end, and others replace them. But if the connection cannot
    /// continue without a subflow, that subflow stays and waits for its address to come back.
    pub fn on_readdressed(
        &mut self,
        ctx: &mut Ctx<'_>,
        path: PathId,
        (is_gone, is_present): (impl Fn(IpAddr) -> bool, impl Fn(IpAddr) -> bool),
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
            if is_present(local) && subflow.signs.stale && subflow.is_established() {
                subflow.snd.revive(ctx.now);
                is_back = true;
            }
            if !is_gone(local) {
                continue;
            }
            let is_initial = subflow.opens == Opens::Connection;
            match subflow.phase {
                Phase::SynSent if is_initial => self.open_elsewhere(ctx, i),
                Phase::SynSent | Phase::JoinAcked => {
                    subflow.close(SubflowCloseReason::PathRemoved);
                }
                Phase::Established if fully_established => subflow.begin_reset(
                    ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                    SubflowCloseReason::PathRemoved,
                ),
                // Without full establishment, or with regular TCP, no other subflow can replace this one.
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

    /// Opens the connection from another address, because the address of subflow `i` is gone.
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

    /// Stops using the path, because the user took it out of use.
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
                // The connection needs this subflow until full establishment. Then the subflow is closed.
                subflow.handshake.left = true;
            }
        }
        self.withdraw_addresses(ctx, path, |_| true);
    }
}

impl Transport {
    /// Returns whether further subflows can be opened at all.
    pub(super) fn can_join(&self, ctx: &Ctx<'_>) -> bool {
        // The third ACK of the initial subflow leaves first: the peer accepts no join before it has the keys.
        let owes_ack = |s: &Subflow| s.rcv.due == AckDue::Now;
        let fully_established = self.mode.mptcp().is_some_and(|m| m.fully_established);
        if !fully_established && self.subflows.iter().any(owes_ack) {
            return false;
        }
        // Only the opener joins: NATs stand on its side, so a listener could seldom reach it.
        self.listener.is_none()
            && self.subflows.has_room_for_a_subflow(ctx)
            && self.is_open()
            && !self.is_ending()
            && self.mode.mptcp().is_some()
    }
}

impl Transport {
    /// Returns the targets that need no further subflow. Two kinds of subflows do not count, so that others
    /// replace them while they still exist: those that the peer closed before the end of its stream, and, if
    /// the peer answers on no subflow, all established ones.
    fn targets(&self) -> impl Iterator<Item = Target> + Clone {
        let left_by_peer = |s: &Subflow| s.rcv.finished() && self.rcv.fin.is_none();
        let unresponsive = self.subflows.is_unresponsive();
        let lasting = self.subflows.iter();
        let lasting = lasting.filter(move |s| {
            s.is_alive() && !left_by_peer(s) && !(unresponsive && s.is_established())
        });
        lasting.map(|s| (s.path, s.tuple.remote))
    }

    /// Closes the subflows of a path whose link is gone for good. Returns whether this leaves the connection
    /// without a subflow and unable to open another one.
    pub fn forget_path(&mut self, path: PathId) -> bool {
        let closed = self.subflows.iter().filter(|s| s.path == path).count();
        for subflow in self.subflows.iter_mut().filter(|s| s.path == path) {
            subflow.close(SubflowCloseReason::PathRemoved);
        }
        let fully_established = self.mode.mptcp().is_some_and(|m| m.fully_established);
        let has_others = self.subflows.iter().any(Subflow::is_alive);
        closed > 0 && !has_others && !fully_established
    }
}

impl Subflows {
    pub(super) fn has_room_for_a_subflow(&self, ctx: &Ctx<'_>) -> bool {
        self.len() < ctx.shared.config.max_subflows.min(MAX_SUBFLOWS)
    }

    /// Returns the subflows whose SYN is under way to open the connection.
    pub(super) fn opening(&self) -> impl Iterator<Item = &Subflow> {
        self.iter().filter(|s| s.is_opening())
    }
}

impl Subflow {
    /// Repeats the SYN of an opening subflow now, because its link is back. `was_offered` is set if a SYN with
    /// MP_CAPABLE left on the path before; then MP_CAPABLE is offered again, because silence while the link
    /// was down does not show that the network drops it.
    fn repeat_opening(&mut self, now: Instant, was_offered: bool) {
        self.handshake.omits_capable &= !was_offered;
        self.handshake.unanswered = 0;
        self.handshake.at = Some(now);
    }
}

impl Subflows {
    /// Closes the other opening subflows once the SYN on subflow `i` was answered, because they would open
    /// connections of their own. A later answer to one of them finds no subflow and is reset.
    pub(super) fn close_other_openings(&mut self, i: usize) {
        let answered = self[i].id;
        for subflow in self.iter_mut() {
            if subflow.is_opening() && subflow.id != answered {
                subflow.close(SubflowCloseReason::Finished);
            }
        }
    }
}
