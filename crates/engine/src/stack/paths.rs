//! The paths of a stack: adding, changing and removing them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_wire::Instant;

use super::Stack;
use crate::path::Path;
use crate::stats::Moved;
use crate::{ApiError, CloseReason, PathConfig, PathId};

impl Stack {
    /// Adds a local path, which is up at first.
    ///
    /// # Errors
    /// [`ApiError::TooManyPaths`] if there are 256 paths, since a [`PathId`] has 8 bits.
    pub fn add_path(&mut self, path: PathConfig) -> Result<PathId, ApiError> {
        let id = u8::try_from(self.shared.paths.len());
        let id = id.map(PathId).map_err(|_| ApiError::TooManyPaths)?;
        self.shared.paths.push(Path::new(path));
        self.gone.push(Moved::default());
        self.renewed.push(Moved::default());
        Ok(id)
    }

    /// Sets whether `path` is up, after its link came up or went down. When a path goes down, its subflows are
    /// marked stale at once, the data that only they carry counts as lost, incomplete joins are given up, and
    /// opening connections move to another path if there is one. When a path comes up, its stale subflows are
    /// probed, and missing ones are opened at once.
    pub fn set_path_up(&mut self, now: Instant, path: PathId, up: bool) {
        if self.change_path(path, up) {
            self.with_all(now, |conn, ctx| conn.on_path_change(ctx, path, up));
        }
    }

    /// Validates the subflows of `path` at once, because the path carries packets again, or has a new public
    /// address. Subflows with data in flight retransmit that data. The other subflows probe their peers a few
    /// times, at growing intervals; idle connections begin one after the other. A subflow is opened anew if the
    /// peer resets it, or if the peer does not answer on it and the connection has another working subflow. If
    /// the path is down, nothing is probed until the path comes back.
    pub fn revalidate_path(&mut self, now: Instant, path: PathId) {
        let known = self.shared.path(path);
        if known.is_some_and(|path| path.up) {
            self.with_all(now, |conn, ctx| conn.revalidate_path(ctx, path));
        }
    }

    /// Forgets the observed behaviour of middleboxes on `path`, because its link leads through another network
    /// now.
    pub fn forget_middleboxes(&mut self, path: PathId) {
        self.shared.blackholes.forget_path(path);
        self.shared.stripped.forget_path(path);
    }

    /// Replaces the local addresses of `path`, for example when its link loses its IPv6 address and keeps the
    /// IPv4 address. Subflows from a lost address end, peers are told (REMOVE_ADDR), and other subflows open
    /// from the remaining addresses. A connection that cannot open another subflow, such as one of regular
    /// TCP, waits for the address to come back.
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
        let is_gone = |addr: IpAddr| before.owns(addr) && !config.owns(addr);
        // The withdrawal looks up the ids of the old addresses, so it precedes the change.
        self.with_all(now, |conn, ctx| conn.withdraw_addresses(ctx, path, is_gone));
        self.shared.paths[index].config = config;
        let is_present = |addr| config.owns(addr);
        self.with_all(now, |conn, ctx| {
            conn.on_readdressed(ctx, path, (is_gone, is_present))
        });
    }

    /// Takes `path` out of use although it works. No subflow is opened there any more, and the subflows of
    /// MPTCP connections are closed (FIN), so that peers send nothing there either. Regular TCP connections
    /// stay. [`set_path_up`](Self::set_path_up) brings the path back.
    pub fn leave_path(&mut self, now: Instant, path: PathId) {
        if self.change_path(path, false) {
            self.with_all(now, |conn, ctx| conn.leave_path(ctx, path));
        }
    }

    /// Ends all that remains on a path, because its link is about to go: [leaves](Self::leave_path) the path and
    /// forgets its subflows. A connection that needs these subflows, such as one of regular TCP, ends as
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

    /// Gives a path that was [removed](Self::remove_path) to another link: the path is up, and its counters
    /// start at zero. Returns whether the path exists.
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

    /// Announces `addr` to the peers of connections accepted from now on, as a further address at which they can
    /// join (ADD_ADDR, RFC 8684 section 3.4.1). `addr` has to lead to `path`: it is the path's own address, or a
    /// NAT translates it to the path's own address. The call replaces the earlier announcement of the same path
    /// and address family.
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

    /// Sets whether subflows on `path`, existing ones included, are backups. The peers are told (MP_PRIO, RFC
    /// 8684 section 3.3.8), and the strategies of this end see the change at once.
    pub fn set_path_backup(&mut self, now: Instant, path: PathId, backup: bool) {
        if let Some(known) = self.shared.paths.get_mut(usize::from(path.0)) {
            known.config.backup = backup;
            self.with_all(now, |conn, ctx| {
                conn.transport.set_backup(ctx, path, backup)
            });
        }
    }

    /// Sets whether `path` is up, and returns whether that changed.
    fn change_path(&mut self, path: PathId, up: bool) -> bool {
        let path = self.shared.paths.get_mut(usize::from(path.0));
        path.is_some_and(|p| core::mem::replace(&mut p.up, up) != up)
    }
}
