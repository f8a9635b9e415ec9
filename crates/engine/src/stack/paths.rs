//! The paths of a stack: adding, changing and removing them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_wire::Instant;

use super::Stack;
use crate::path::Path;
use crate::stats::Moved;
use crate::{ApiError, CloseReason, PathConfig, PathId};

impl Stack {
    /// Adds a local path, up at first.
    ///
    /// # Errors
    /// [`ApiError::TooManyPaths`] if there are 256.
    pub fn add_path(&mut self, path: PathConfig) -> Result<PathId, ApiError> {
        let id = u8::try_from(self.shared.paths.len());
        let id = id.map(PathId).map_err(|_| ApiError::TooManyPaths)?;
        self.shared.paths.push(Path::new(path));
        self.gone.push(Moved::default());
        self.renewed.push(Moved::default());
        Ok(id)
    }

    /// Sets whether `path` can be used. Down: its subflows are marked stale at once, data that only they
    /// carry counts as lost, incomplete joins are given up, and opening connections move to another path if
    /// there is one. Up: stale subflows are probed, and missing ones are opened at once.
    pub fn set_path_up(&mut self, now: Instant, path: PathId, up: bool) {
        if self.change_path(path, up) {
            self.with_all(now, |conn, ctx| conn.on_path_change(ctx, path, up));
        }
    }

    /// Validates the subflows of `path` at once, because it carries packets again, or from a new address,
    /// as after a DHCP change. Data in flight is retransmitted. Subflows without data in flight probe their
    /// peers a few times, at growing intervals; those of idle connections do so one after the other.
    /// Refused subflows are opened anew, and so are unanswered ones if the connection has another subflow.
    /// If the path is down, nothing is probed until it comes back.
    pub fn revalidate_path(&mut self, now: Instant, path: PathId) {
        let known = self.shared.path(path);
        if known.is_some_and(|path| path.up) {
            self.with_all(now, |conn, ctx| conn.revalidate_path(ctx, path));
        }
    }

    /// Forgets the observed behaviour of middleboxes on `path`: its link leads through another network now.
    pub fn forget_middleboxes(&mut self, path: PathId) {
        self.shared.blackholes.forget_path(path);
        self.shared.stripped.forget_path(path);
    }

    /// Replaces the local addresses of `path`, for example when its link loses one family and keeps the
    /// other. Subflows from a lost address end, and peers are told (REMOVE_ADDR); others open from the
    /// remaining addresses. A connection that depends on such a subflow, as regular TCP does, waits for the
    /// address to come back.
    pub fn set_path_addresses(
        &mut self,
        now: Instant,
        path: PathId,
        (v4, v6): (Option<Ipv4Addr>, Option<Ipv6Addr>),
    ) {
        let index = usize::from(path.0);
        let Some(before) = self.shared.paths.get(index).map(|path| path.config) else {
            return;
        };
        let config = PathConfig { v4, v6, ..before };
        if config == before {
            return;
        }
        let gone = |addr: IpAddr| before.owns(addr) && !config.owns(addr);
        self.with_all(now, |conn, ctx| conn.withdraw_addresses(ctx, path, gone));
        self.shared.paths[index].config = config;
        let here = |addr| config.owns(addr);
        self.with_all(now, |conn, ctx| {
            conn.on_readdressed(ctx, path, (gone, here))
        });
    }

    /// Takes `path` out of use though it works: no subflow is opened there, and those of MPTCP connections
    /// are closed (FIN), so that peers send nothing there either. Regular TCP connections stay.
    /// [`set_path_up`](Self::set_path_up) brings the path back.
    pub fn leave_path(&mut self, now: Instant, path: PathId) {
        if self.change_path(path, false) {
            self.with_all(now, |conn, ctx| conn.leave_path(ctx, path));
        }
    }

    /// Ends everything left on a path that was [left](Self::leave_path) and whose link is about to go:
    /// subflows are forgotten, and connections without another one (regular TCP among them) end as
    /// unreachable. The records of the path are forgotten too.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.leave_path(now, path);
        self.with_all(now, |conn, ctx| {
            if conn.transport.forget_path(path) {
                conn.fail(ctx, CloseReason::Unreachable);
            }
        });
        self.shared.records.forget_path(path);
        self.forget_middleboxes(path);
    }

    /// Gives a path that was [removed](Self::remove_path) to another link: it starts up, with counters at
    /// zero. Returns whether the path exists.
    pub fn reuse_path(&mut self, path: PathId, config: PathConfig) -> bool {
        let at = usize::from(path.0);
        let totals = self.path_totals();
        let Some((known, total)) = self.shared.paths.get_mut(at).zip(totals.get(at)) else {
            return false;
        };
        *known = Path::new(config);
        self.renewed[at].add(&total.moved);
        true
    }

    /// Announces to peers of connections accepted from now on that they can join at `addr` too (ADD_ADDR,
    /// RFC 8684 section 3.4.1). `addr` leads to `path`: it is the path's own address, or one that is
    /// translated to it. It replaces the earlier announcement of this path and family.
    ///
    /// # Errors
    /// [`ApiError::NoUsablePath`] if the path has no address of that family.
    pub fn announce(&mut self, path: PathId, addr: SocketAddr) -> Result<(), ApiError> {
        let path = self.shared.paths.get_mut(usize::from(path.0));
        let path = path.ok_or(ApiError::NoUsablePath)?;
        let (_, addr) = path.config.towards([addr]).ok_or(ApiError::NoUsablePath)?;
        path.announced[usize::from(addr.is_ipv6())] = Some(addr);
        Ok(())
    }

    /// Sets whether subflows on `path`, existing ones included, are backups: their peers are told (MP_PRIO,
    /// RFC 8684 section 3.3.8), and strategies of this end see it at once.
    pub fn set_path_backup(&mut self, now: Instant, path: PathId, backup: bool) {
        if let Some(known) = self.shared.paths.get_mut(usize::from(path.0)) {
            known.config.backup = backup;
            self.with_all(now, |conn, ctx| {
                conn.transport.set_backup(ctx, path, backup)
            });
        }
    }

    /// Sets whether `path` is up, and returns whether that is a change.
    fn change_path(&mut self, path: PathId, up: bool) -> bool {
        let path = self.shared.paths.get_mut(usize::from(path.0));
        path.is_some_and(|p| core::mem::replace(&mut p.up, up) != up)
    }
}
