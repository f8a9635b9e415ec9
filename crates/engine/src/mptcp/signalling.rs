//! The exchange of addresses that come and go (RFC 8684 section 3.4) and of priorities of subflows (section
//! 3.3.8) with the peer.

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
    /// The address at which peers reach it, if it is to be announced.
    announced: Option<SocketAddr>,
}

/// Returns a path's own addresses.
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
    /// Announces the addresses at which the peer can join, except the one that it connected to.
    pub(super) fn announce_addresses(&mut self, ctx: &Ctx<'_>) {
        for (id, path) in (0..).map(PathId).zip(&ctx.shared.paths) {
            for own in own_addresses(&self.paths, id, path) {
                if path.up && own.id != 0 {
                    self.transport.announce(ctx, own.id, own.announced);
                }
            }
        }
    }

    /// Announces the addresses of a path that is in use again, and cancels their withdrawal.
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

    /// Withdraws the addresses of a path that match `gone`: those that were announced, and those of
    /// subflows that do not end by themselves (RFC 8684 section 3.4.2). For a peer that is to join us, only
    /// an announcement can revoke the withdrawal of the initial address, so that address is withdrawn only
    /// if it is announced as well.
    // Conforms: 8684-3.4.2-9
    pub fn withdraw_addresses(&mut self, ctx: &Ctx<'_>, id: PathId, gone: impl Fn(IpAddr) -> bool) {
        let path = ctx.shared.path(id);
        let Some(path) = path.filter(|_| self.transport.may_signal()) else {
            return;
        };
        let announces = self.transport.listener.is_some();
        for address in own_addresses(&self.paths, id, path) {
            if !gone(address.addr) {
                continue;
            }
            let (own, addr) = (address.id, address.announced);
            self.transport
                .signals
                .cancel(|s| matches!(s, Signal::Announce { id, .. } if *id == own));
            // Our third ACK may have joined the subflow without an answer so far.
            let known = |s: &Subflow| s.is_alive() && !s.is_unaccepted_join();
            let mut subflows = self.transport.subflows.iter();
            let used = subflows.any(|s| known(s) && s.path == id && s.ids.own == own);
            let recalled = !announces || own != 0 || addr.is_some();
            if (used && recalled) || (announces && addr.is_some() && own != 0) {
                self.transport.signals.add(ctx.now, Signal::Withdraw(own));
            }
        }
    }

    /// Handles ADD_ADDR, or the echo of ours. An ADD_ADDR whose HMAC does not prove the peer's origin is
    /// ignored (RFC 8684 section 3.4.1).
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
                *id == add.address_id && addr.ip() == add.addr
            });
            return;
        };
        let keys = (mptcp.remote.key, mptcp.local.key);
        if self.transport.joins.is_pending() {
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
        // The peer needs our key for the HMAC, which it got by the third ACK.
        self.transport.set_fully_established(ctx.now);
        let port = add
            .port
            .unwrap_or(self.transport.subflows[i].tuple.remote.port());
        // Linux writes an IPv4-mapped endpoint as IPv6.
        let addr = SocketAddr::new(add.addr.to_canonical(), port);
        self.paths.on_announced(ctx.now, add.address_id, addr);
        self.transport
            .signals
            .add(ctx.now, Signal::Echo(add.echo()));
    }

    /// Handles REMOVE_ADDR. Its sender may not be the peer, so data moves off the subflow at once if there
    /// is another, but the subflow ends only if the peer does not answer on it (RFC 8684 section 3.4.2).
    // Conforms: 8684-3.4.2-1
    pub(super) fn on_remove_addr(&mut self, ctx: &Ctx<'_>, remove: &RemoveAddr) {
        if self.transport.mode.mptcp().is_none() {
            return;
        }
        self.transport.signals.counts.remove_addr_received += 1;
        for id in remove.ids() {
            let addr = self.paths.on_withdrawn(*id);
            let opens = |s: &&mut Subflow| match s.phase {
                Phase::SynSent => addr.is_some_and(|addr| addr == s.tuple.remote),
                Phase::JoinAcked => addr.is_some() && s.ids.peer == *id,
                _ => false,
            };
            for subflow in self.transport.subflows.iter_mut().filter(opens) {
                subflow.close(SubflowCloseReason::PathRemoved);
            }
        }
        let gone = |s: &Subflow| remove.ids().contains(&s.ids.peer);
        let mut others = self.transport.subflows.iter();
        let others = others.any(|s| s.can_carry() && !s.signs.stale && !gone(s));
        for i in 0..self.transport.subflows.len() {
            let subflow = &self.transport.subflows[i];
            if !subflow.can_carry() || !gone(subflow) {
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
    /// Announces an address, if this is the side that accepts joins.
    pub(super) fn announce(&mut self, ctx: &Ctx<'_>, id: u8, addr: Option<SocketAddr>) {
        let wanted = self.listener.is_some() && self.may_signal();
        if let Some(addr) = addr.filter(|_| wanted) {
            self.signals.add(ctx.now, Signal::Announce { id, addr });
        }
    }
}

impl Transport {
    /// Returns whether signals can be sent at all.
    fn may_signal(&self) -> bool {
        self.is_open() && self.mode.mptcp().is_some_and(|m| m.fully_established)
    }

    /// Returns the time of the next signal.
    pub(super) fn signals_at(&self) -> Option<Instant> {
        let next = self.signals.next_at(|signal| self.can_be_sent(signal));
        next.filter(|_| self.may_signal())
    }

    /// Returns whether a working subflow can carry the signal. Without one it stays pending until a subflow
    /// recovers; no timer runs for that, since a recovery is an event of its own.
    fn can_be_sent(&self, signal: &Signal) -> bool {
        let works = |s: &Subflow| s.can_carry() && !s.signs.stale;
        match signal {
            Signal::Validate(_) => true,
            // Without the secret its HMAC cannot be computed.
            Signal::Announce { .. } if self.joins.is_pending() => false,
            // If the subflow is gone, the signal is taken up only to be cancelled.
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
                subflow.priority.unannounced = true;
            }
        }
    }

    /// Returns the next signal to be sent now.
    pub(super) fn poll_signal(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        if self.signals_at().is_none_or(|at| at > ctx.now) {
            return None;
        }
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
            if let Some(i) = i.filter(|_| validates && sent > 0) {
                self.subflows[i].on_unanswered();
            }
            let Some(i) = i.filter(|_| sent < signal.tries()) else {
                self.signals.cancel(|s| *s == signal);
                let alone = |i: &usize| {
                    let mut others = self.subflows.iter().enumerate();
                    !others.any(|(n, s)| n != *i && s.can_carry() && !s.signs.stale)
                };
                match i.filter(|i| validates && !alone(i)) {
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

    /// Returns the option that carries the signal on subflow `i`; a probe needs none.
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
                // Without a port the option means the port of the subflow that carries it.
                let usual = self.subflows[i].tuple.local.port();
                let mut add = AddAddr {
                    address_id: id,
                    addr: addr.ip(),
                    port: Some(addr.port()).filter(|port| *port != usual),
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

    /// Ends subflow `i`, on which the peer does not answer and whose address may be gone.
    // Conforms: 8684-3.4.2-5
    fn reset_unvalidated(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
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
        if options.len() > MAX_OPTIONS_LEN {
            // ADD_ADDR of IPv6 with a port fills the options alone.
            options.timestamps = None;
        }
        let seq = subflow.snd.nxt;
        let owed = subflow.rcv.due != AckDue::Never && dss.is_none();
        let out = self.emit(ctx, i, seq, Flags::ACK, options, Body::None);
        if owed {
            self.subflows[i].rcv.ack_now();
        }
        out
    }
}
