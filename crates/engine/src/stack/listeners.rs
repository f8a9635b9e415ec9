//! The listeners of a stack.

use core::net::SocketAddr;

use crate::{ApiError, ListenerId, PathId};

/// A listener, by the connections that it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listener {
    /// Accepts connections to this address and port.
    At(SocketAddr),
    /// Accepts connections to any address and port. If no path owns the address, the connection belongs to this
    /// path.
    Any(PathId),
}

/// The listeners of a stack; the id of a listener is its index.
#[derive(Debug, Default)]
pub(super) struct Listeners(Vec<Listener>);

impl Listeners {
    /// Adds a listener, unless the same listener exists already.
    pub fn add(&mut self, listener: Listener) -> Result<ListenerId, ApiError> {
        if self.0.contains(&listener) {
            return Err(ApiError::AddressInUse);
        }
        self.0.push(listener);
        Ok(ListenerId(self.0.len() as u32 - 1))
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the path for connections to addresses that belong to no path; `None` if there is no
    /// [`Listener::Any`].
    pub fn any_path(&self) -> Option<PathId> {
        self.0.iter().find_map(|l| match l {
            Listener::Any(path) => Some(*path),
            Listener::At(_) => None,
        })
    }

    /// Returns the listener that accepts connections to `addr`. A listener at exactly `addr` takes precedence.
    pub fn find(&self, addr: SocketAddr) -> Option<ListenerId> {
        let exact = self.0.iter().position(|l| *l == Listener::At(addr));
        let any = |l: &Listener| matches!(l, Listener::Any(_));
        let n = exact.or_else(|| self.0.iter().position(any))?;
        Some(ListenerId(n as u32))
    }
}
