//! The paths of a stack: how they come, change and go.

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
    /// [`ApiError::TooManyPaths`] where there are 256.
    pub fn add_path(&mut self, path: PathConfig) -> Result<PathId, ApiError> {
        let id = u8::try_from(self.shared.paths.len());
        let id = id.map(PathId).map_err(|_| ApiError::TooManyPaths)?;
        self.shared.paths.push(Path::new(path));
        self.gone.push(Moved::default());
        self.renewed.push(Moved::default());
        Ok(id)
    }

    /// Says whether `path` can be used. Down: its subflows are marked stale at once, what only they carry
    /// counts as lost, joins that are not through are given up, and what opens a connection goes to
    /// another path where there is one. Up: stale subflows are probed, and missing ones opened at once.
    pub fn set_path_up(&mut self, now: Instant, path: PathId, up: bool) {
        if self.change_path(path, up) {
            self.with_all(now, |conn, ctx| conn.on_path_change(ctx, path, up));
        }
    }

    /// Validates the subflows of `path` at once, because it carries packets again, or from another address
    /// than before as after DHCP has given the link one. What was sent in vain is sent again. Subflows
    /// with nothing in flight ask whether their peers still know them, a few times, ever more seldom;
    /// those of idle connections do so one after the other. Those that are refused are opened anew, and so
    /// are those that are not answered where the connection has another subflow. Nothing is asked where
    /// the path is down: it is when the path comes back.
    pub fn doubt_path(&mut self, now: Instant, path: PathId) {
        let known = self.shared.path(path);
        if known.is_some_and(|path| path.up) {
            self.with_all(now, |conn, ctx| conn.doubt_path(ctx, path));
        }
    }

    /// Forgets what middleboxes on `path` did to options: its link leads through another network now.
    pub fn forget_middleboxes(&mut self, path: PathId) {
        self.shared.blackholes.forget_path(path);
        self.shared.stripped.forget_path(path);
    }

    /// Gives `path` these local addresses in place of those it has, as where its link loses one family and
    /// keeps the other. Subflows from an address that is gone end, and peers are told (REMOVE_ADDR); others
    /// open from what there is. A connection that hangs on such a subflow, as regular TCP does, waits for
    /// the address to come back.
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

    /// Takes `path` out of use though it works: no subflow is opened there, and those of MPTCP
    /// connections are closed (FIN), so that peers send nothing there either. What is regular TCP
    /// stays. [`set_path_up`](Self::set_path_up) brings it back.
    pub fn leave_path(&mut self, now: Instant, path: PathId) {
        if self.change_path(path, false) {
            self.with_all(now, |conn, ctx| conn.leave_path(ctx, path));
        }
    }

    /// Ends what is left on a path that was [left](Self::leave_path), and whose link is about to be gone:
    /// subflows are forgotten, and connections that have no other (regular TCP among them) end as
    /// unreachable. What was remembered of the path is forgotten too.
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

    /// Gives a path that was [removed](Self::remove_path) to another link: it starts up, and its
    /// counters start anew. Returns whether there is such a path.
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

    /// Tells peers of connections accepted from now on that they can join at `addr` too (ADD_ADDR, RFC
    /// 8684 section 3.4.1), which leads to `path`: its own address, or one that is translated to it.
    /// It replaces what was told of this path and family before.
    ///
    /// # Errors
    /// [`ApiError::NoUsablePath`] where the path has no address of that family.
    pub fn announce(&mut self, path: PathId, addr: SocketAddr) -> Result<(), ApiError> {
        let path = self.shared.paths.get_mut(usize::from(path.0));
        let path = path.ok_or(ApiError::NoUsablePath)?;
        let (_, addr) = path.config.towards([addr]).ok_or(ApiError::NoUsablePath)?;
        path.announced[usize::from(addr.is_ipv6())] = Some(addr);
        Ok(())
    }

    /// Says whether subflows on `path` are backups, those there are included: their peers are told
    /// (MP_PRIO, RFC 8684 section 3.3.8), and strategies of this end see it at once.
    pub fn set_path_backup(&mut self, now: Instant, path: PathId, backup: bool) {
        if let Some(known) = self.shared.paths.get_mut(usize::from(path.0)) {
            known.config.backup = backup;
            self.with_all(now, |conn, ctx| {
                conn.transport.set_backup(ctx, path, backup)
            });
        }
    }

    /// Notes whether `path` is up, and returns whether that changes anything.
    fn change_path(&mut self, path: PathId, up: bool) -> bool {
        let path = self.shared.paths.get_mut(usize::from(path.0));
        path.is_some_and(|p| core::mem::replace(&mut p.up, up) != up)
    }
}
