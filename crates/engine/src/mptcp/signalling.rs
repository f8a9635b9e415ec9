//! The signals exchanged with the peer: addresses that come and go (RFC 8684 section 3.4), and the priorities
//! of subflows (section 3.3.8).

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{AddAddr, MptcpOption, RemoveAddr, ResetReason};
use braid_wire::tcp::{Flags, MAX_OPTIONS_LEN, Options};

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::keys::announcement_hmac;
use super::output::{Body, Outgoing};
use super::signal::{MAX_SIGNAL_PAUSE, Signal};
use super::subflow::{Phase, Subflow};
use super::transport::Transport;
use crate::PathId;
use crate::event::SubflowCloseReason;
use crate::path::{Path, PathManager};
use crate::tcp::receive::AckDue;

/// An address of a path.
struct OwnAddress {
    addr: IpAddr,
    id: u8,
    /// The address at which peers reach `addr`, which may differ behind a NAT; `None` if `addr` is not to be
    /// announced.
    announced: Option<SocketAddr>,
}

/// Returns the local addresses of a path: at most one of each family.
// Conforms: 8684-3.4.1-12
fn own_addresses(paths: &PathManager, id: PathId, path: &Path) -> ArrayVec<OwnAddress, 2> {
    let own = [
        path.config.v4.map(IpAddr::V4),
        path.config.v6.map(IpAddr::V6),
    ];
    let own = own.into_iter().zip(path.announced);
    let address = |(addr, announced): (Option<IpAddr>, _)| {
        let addr = addr?;
        Some(OwnAddress {
            addr,
            id: paths.own_id(id, addr),
            announced,
        })
    };
    own.filter_map(address).collect()
}

impl Connection {
    /// Announces the addresses at which the peer can join, except the initial one (id 0): the peer has connected to it.
    /// A path that is down is left to [`announce_return`](Self::announce_return).
    pub(super) fn announce_addresses(&mut self, ctx: &Ctx<'_>) {
        for (id, path) in (0..).map(PathId).zip(&ctx.shared.paths) {
            for own in own_addresses(&self.paths, id, path) {
                if path.up && own.id != 0 {
                    self.transport.announce(ctx, own.id, own.announced);
                }
            }
        }
    }

    /// Announces the addresses of a path that is in use again or has other addresses, and cancels their withdrawal. The
    /// initial address (id 0) is announced too, because its withdrawal made the peer forget it.
    pub(super) fn announce_return(&mut self, ctx: &Ctx<'_>, id: PathId) {
        let Some(path) = ctx.shared.path(id) else {
            return;
        };
        for own in own_addresses(&self.paths, id, path) {
            self.transport
                .signals
                .cancel(|s| *s == Signal::Withdraw(own.id));
            self.transport.announce(ctx, own.id, own.announced);
        }
    }

    /// Withdraws the addresses of a path that match `is_gone` (RFC 8684 section 3.4.2), as far as the peer may know
    /// them: a subflow uses them, or this side is a listener that announces them. A listener withdraws the initial
    /// address (id 0) only if the path has an address to announce for it. Without an announcement to follow, the
    /// withdrawal would be for ever: the peer would never join there again.
    // Conforms: 8684-3.4.2-9
    pub fn withdraw_addresses(
        &mut self,
        ctx: &Ctx<'_>,
        id: PathId,
        is_gone: impl Fn(IpAddr) -> bool,
    ) {
        let path = ctx.shared.path(id);
        let Some(path) = path.filter(|_| self.transport.may_signal()) else {
            return;
        };
        let is_listener = self.transport.listener.is_some();
        for address in own_addresses(&self.paths, id, path) {
            if !is_gone(address.addr) {
                continue;
            }
            let (own_id, announced) = (address.id, address.announced);
            self.transport
                .signals
                .cancel(|s| matches!(s, Signal::Announce { id, .. } if *id == own_id));
            // A join counts from its third ACK on: the peer may have accepted it, although no answer has arrived.
            let may_be_known = |s: &Subflow| s.is_alive() && !s.is_unaccepted_join();
            let mut subflows = self.transport.subflows.iter();
            let is_used = subflows.any(|s| may_be_known(s) && s.path == id && s.ids.own == own_id);
            let can_return = !is_listener || own_id != 0 || announced.is_some();
            // The announcement may not have left yet. To withdraw an unknown address does no harm. The initial address
            // (id 0) is not announced at first, so it counts only if a subflow uses it.
            let may_be_announced = is_listener && announced.is_some() && own_id != 0;
            if (is_used && can_return) || may_be_announced {
                self.transport
                    .signals
                    .add(ctx.now, Signal::Withdraw(own_id));
            }
        }
    }

    /// Handles the peer's ADD_ADDR, or the peer's echo of our ADD_ADDR, which has no HMAC. An ADD_ADDR whose
    /// HMAC is wrong does not come from the peer and is ignored (RFC 8684 section 3.4.1).
    // Conforms: 8684-3.4.1-3, 8684-3.4.1-5
    pub(super) fn on_add_addr(&mut self, ctx: &Ctx<'_>, i: usize, add: &AddAddr) {
        let Some(mptcp) = self.transport.mode.mptcp() else {
            return;
        };
        let Some(hmac) = add.hmac else {
            self.transport.signals.cancel(|s| {
                let Signal::Announce { id, addr } = s else {
                    return false;
                };
                // The port is not compared: an option without a port means the subflow's (see `signal_option`).
                *id == add.address_id && addr.ip() == add.addr
            });
            return;
        };
        let keys = (mptcp.remote.key, mptcp.local.key);
        if self.transport.joins.is_pending() {
            // The HMAC may depend on the secret of the application (see `joins`), so it cannot be verified yet.
            return self
                .transport
                .joins
                .hold(self.transport.subflows[i].id, *add);
        }
        // Conforms: 8684-3.4.1-1
        if hmac != announcement_hmac(keys, self.transport.joins.secret(), add) {
            return;
        }
        self.transport.signals.counts.add_addr_received += 1;
        // Only an opener can still be unsure. The peer needs the opener's key for the HMAC, and has it from the third
        // ACK.
        self.transport.set_fully_established(ctx.now);
        let port = add
            .port
            .unwrap_or(self.transport.subflows[i].tuple.remote.port());
        // Linux announces an IPv4 address of an IPv6 socket as an IPv4-mapped IPv6 address.
        let addr = SocketAddr::new(add.addr.to_canonical(), port);
        self.paths.on_announced(ctx.now, add.address_id, addr);
        self.transport
            .signals
            .add(ctx.now, Signal::Echo(add.echo()));
    }

    /// Handles REMOVE_ADDR. The option has no HMAC, so it may be forged. A subflow to a withdrawn address
    /// therefore ends only if the peer does not answer a probe on it (RFC 8684 section 3.4.2), but its data
    /// moves to another subflow at once, if there is one.
    // Conforms: 8684-3.4.2-1
    pub(super) fn on_remove_addr(&mut self, ctx: &Ctx<'_>, remove: &RemoveAddr) {
        if self.transport.mode.mptcp().is_none() {
            return;
        }
        self.transport.signals.counts.remove_addr_received += 1;
        for id in remove.ids() {
            let addr = self.paths.on_withdrawn(*id);
            // An id that is not known any more, as in a repeated REMOVE_ADDR, concerns no join.
            let is_join_there = |s: &&mut Subflow| match s.phase {
                // Only the SYN/ACK tells which id the peer gives its address.
                Phase::SynSent => addr.is_some_and(|addr| addr == s.tuple.remote),
                Phase::JoinAcked => addr.is_some() && s.ids.peer == *id,
                // A join that the peer opens (`SynReceived`) times out if the peer gives it up. Established subflows
                // follow below.
                _ => false,
            };
            // A join has carried nothing yet, so it is given up without a probe.
            for subflow in self.transport.subflows.iter_mut().filter(is_join_there) {
                subflow.close(SubflowCloseReason::PathRemoved);
            }
        }
        let is_withdrawn = |s: &Subflow| remove.ids().contains(&s.ids.peer);
        let mut others = self.transport.subflows.iter();
        let others = others.any(|s| s.can_carry() && !s.signs.stale && !is_withdrawn(s));
        for i in 0..self.transport.subflows.len() {
            let subflow = &self.transport.subflows[i];
            // A subflow that was closed here ends anyway.
            if !subflow.can_carry() || !is_withdrawn(subflow) {
                continue;
            }
            self.transport
                .signals
                .add(ctx.now, Signal::Validate(subflow.id));
            if others {
                self.declare_dead(ctx, i);
            }
        }
    }
}

impl Transport {
    /// Announces an address, if this side accepts joins: only a listener does. An opener announces nothing, because it
    /// opens the joins itself, from its own addresses.
    pub(super) fn announce(&mut self, ctx: &Ctx<'_>, id: u8, addr: Option<SocketAddr>) {
        let may_announce = self.listener.is_some() && self.may_signal();
        if let Some(addr) = addr.filter(|_| may_announce) {
            self.signals.add(ctx.now, Signal::Announce { id, addr });
        }
    }
}

impl Transport {
    /// Returns whether the state of the connection permits signals: it is open and fully established.
    fn may_signal(&self) -> bool {
        self.is_open() && self.mode.mptcp().is_some_and(|m| m.fully_established)
    }

    /// Returns the time of the next signal.
    pub(super) fn signals_at(&self) -> Option<Instant> {
        let next = self.signals.next_at(|signal| self.can_be_sent(signal));
        next.filter(|_| self.may_signal())
    }

    /// Returns whether a working subflow can carry the signal. Without a working subflow the signal stays
    /// pending. No timer is needed then, because the recovery of a subflow is an event that polls again.
    fn can_be_sent(&self, signal: &Signal) -> bool {
        // Rest is deliberately not tested here: it bars data only. It lasts as long as the connection is idle, so
        // MP_PRIO would wait that long.
        let works = |s: &Subflow| s.can_carry() && !s.signs.stale;
        match signal {
            // A probe is how a subflow shows that it works.
            Signal::Validate(_) => true,
            // The HMAC of ADD_ADDR needs the secret of the application, or the decision that there is none.
            Signal::Announce { .. } if self.joins.is_pending() => false,
            // A signal that belongs to a subflow that is gone counts as sendable, so that `poll_signal` cancels
            // it.
            Signal::Priority(id) => {
                let subflow = self.subflows.iter().find(|s| s.id == *id);
                subflow.is_none_or(|s| !s.can_carry() || works(s))
            }
            _ => self.subflows.iter().any(works),
        }
    }

    /// Sets whether the path's subflows are backups, and tells the peer (RFC 8684 section 3.3.8).
    // Conforms: 8684-3.3.8-3
    pub fn set_backup(&mut self, ctx: &Ctx<'_>, path: PathId, backup: bool) {
        let multipath = self.mode.mptcp().is_some();
        for subflow in self.subflows.iter_mut().filter(|s| s.path == path) {
            let changed = subflow.priority.own != backup;
            subflow.priority.own = backup;
            if changed && multipath && subflow.can_carry() {
                self.signals.add(ctx.now, Signal::Priority(subflow.id));
            } else if changed && subflow.is_alive() && !subflow.is_established() {
                // The SYN of a join may have left with the earlier priority. MP_PRIO follows the handshake.
                subflow.priority.unannounced = true;
            }
        }
    }

    /// Returns the next signal to be sent now.
    pub(super) fn poll_signal(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        if self.signals_at().is_none_or(|at| at > ctx.now) {
            return None;
        }
        // A repeat may take another subflow than the first try, and the answer may return on any. So the pause is the
        // longest timeout.
        let established = self.subflows.iter().filter(|s| s.is_established());
        let pause = established.map(|s| s.snd.rtt.rto()).max();
        let pause = pause.unwrap_or(MAX_SIGNAL_PAUSE);
        while let Some((signal, sent)) = self.signals.due(ctx.now, |s| self.can_be_sent(s)) {
            let validates = matches!(signal, Signal::Validate(_));
            let i = match signal.subflow() {
                Some(id) => self.subflows.index_of(id),
                None => self.subflows.subflow_for_signal(u32::from(sent)),
            };
            let i = i.filter(|i| self.subflows[*i].can_carry());
            // An answer would have cancelled the signal. So a probe that is due again was not answered.
            if let Some(i) = i.filter(|_| validates && sent > 0) {
                self.subflows[i].on_unanswered();
            }
            let Some(i) = i.filter(|_| sent < signal.tries()) else {
                self.signals.cancel(|s| *s == signal);
                // If no other subflow works, the subflow is kept, although it does not answer: it may still recover.
                let has_working_other = |i: &usize| {
                    let mut others = self.subflows.iter().enumerate();
                    others.any(|(n, s)| n != *i && s.can_carry() && !s.signs.stale)
                };
                match i.filter(|i| validates && has_working_other(i)) {
                    Some(i) => return self.reset_unvalidated(ctx, i),
                    None => continue,
                }
            };
            self.signals.on_signal_sent(ctx.now, signal, pause);
            return Some(match self.signal_option(ctx, i, signal, pause) {
                Some(option) => self.send_signal(ctx, i, option),
                None => self.send_probe(ctx, i),
            });
        }
        None
    }

    /// Returns the option that carries the signal on subflow `i`; `None` for a probe, which needs no option.
    /// The other signals always have one: `may_signal` has tested for MPTCP, and a withdrawal has at least one id.
    fn signal_option(
        &mut self,
        ctx: &Ctx<'_>,
        i: usize,
        signal: Signal,
        pause: Duration,
    ) -> Option<MptcpOption> {
        Some(match signal {
            Signal::Announce { id, addr } => {
                let mptcp = self.mode.mptcp()?;
                // An option without a port means the port of the subflow that carries it.
                let implied = self.subflows[i].tuple.local.port();
                let mut add = AddAddr {
                    address_id: id,
                    addr: addr.ip(),
                    port: Some(addr.port()).filter(|port| *port != implied),
                    hmac: None,
                };
                let keys = (mptcp.local.key, mptcp.remote.key);
                add.hmac = Some(announcement_hmac(keys, self.joins.secret(), &add));
                self.signals.counts.add_addr_sent += 1;
                MptcpOption::AddAddr(add)
            }
            Signal::Echo(add) => MptcpOption::AddAddr(add),
            Signal::Withdraw(id) => {
                let remove = self.signals.take_withdrawn(ctx.now, id, pause)?;
                self.signals.counts.remove_addr_sent += 1;
                MptcpOption::RemoveAddr(remove)
            }
            Signal::Priority(_) => MptcpOption::Prio {
                backup: self.subflows[i].priority.own,
            },
            Signal::Validate(_) => return None,
        })
    }

    /// Resets subflow `i`, because the peer answered no probe on it: its remote address may be gone.
    // Conforms: 8684-3.4.2-5
    fn reset_unvalidated(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        // RFC 8684 section 3.6 has no reason for a subflow that does not answer. This one is for a subflow that
        // performs much worse than the others.
        self.subflows[i].begin_reset(
            ResetKind::Subflow(ResetReason::UnacceptablePerformance),
            SubflowCloseReason::PathRemoved,
        );
        self.send_reset(ctx, i)
    }

    /// Sends an acknowledgement with `option`, and with a DATA_ACK if there is room for both.
    fn send_signal(&mut self, ctx: &mut Ctx<'_>, i: usize, option: MptcpOption) -> Outgoing {
        let subflow = &self.subflows[i];
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        options.mptcp.push(option);
        let dss = self
            .mode
            .mptcp()
            .map(|m| MptcpOption::Dss(m.dss(self.rcv.data_ack())));
        let dss = dss.filter(|dss| options.fits(dss));
        options.mptcp.extend(dss);
        // RFC 7323 section 3.2 wants timestamps in every segment, so the DSS gives way to them. Only an ADD_ADDR with
        // an IPv6 address and a port leaves no room for them: it takes 30 of the 40 bytes, and timestamps take 12.
        // RFC 7323 lets a peer drop a segment without timestamps; Linux accepts it.
        if options.len() > MAX_OPTIONS_LEN {
            options.timestamps = None;
        }
        let seq = subflow.snd.nxt;
        // `emit` marks the due acknowledgement as sent. But without DSS the peer still lacks the DATA_ACK, so another
        // acknowledgement has to follow.
        let owes_data_ack = subflow.rcv.due != AckDue::Never && dss.is_none();
        let out = self.emit(ctx, i, seq, Flags::ACK, options, Body::None);
        if owes_data_ack {
            self.subflows[i].rcv.ack_now();
        }
        out
    }
}
