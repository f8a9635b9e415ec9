//! Name look-ups on a few threads, since the system's resolver blocks.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use braid_proxy::app::DownstreamId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Look-ups at a time. A name whose DNS servers are silent holds a thread for many seconds. A user of a
/// server has 8 of them by default (`ServerLimits::lookups`).
const MAX_THREADS: usize = 32;
/// Look-ups that wait or are under way.
const MAX_PENDING: usize = 1_024;
/// The file that names the DNS servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The operator was told that this file cannot be read.
static TOLD: Once = Once::new();
/// Stack of a thread, bytes: enough for the resolver's own buffers.
const STACK_LEN: usize = 256 * 1024;
/// Addresses of one name that are kept.
const MAX_ADDRESSES: usize = 8;
/// Set in the ids of look-ups, clear in streams' ids.
const LOOKUP_BIT: u64 = 1 << 63;

/// A bounded pool of threads for look-ups. Each is started when it is first needed.
#[derive(Debug)]
pub(super) struct Resolver {
    shared: Arc<Shared>,
    threads: usize,
    pending: usize,
    next_id: u64,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<(DownstreamId, String, u16)>,
    finished: Vec<(DownstreamId, Vec<SocketAddr>)>,
    idle: usize,
    closed: bool,
}

impl Shared {
    /// Locks the state. It is valid at every step, so the panic of another thread does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resolver {
    pub(super) fn new() -> Result<Resolver, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Resolver {
            shared: Arc::new(Shared {
                wake,
                state: Mutex::default(),
                work: Condvar::new(),
            }),
            threads: 0,
            pending: 0,
            next_id: 0,
        })
    }

    /// Returns the descriptor that is readable when look-ups have ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Starts a look-up; `None` if too many are pending.
    pub(super) fn submit(&mut self, name: &str, port: u16) -> Option<DownstreamId> {
        if self.pending >= MAX_PENDING {
            return None;
        }
        let mut state = self.shared.lock();
        if state.idle <= state.requests.len() && self.threads < MAX_THREADS {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name("resolver".to_owned())
                .stack_size(STACK_LEN)
                .spawn(move || work(&shared));
            match started {
                Ok(_) => self.threads += 1,
                Err(error) if self.threads == 0 => {
                    tracing::warn!(%error, "cannot start a thread for name look-ups: users' requests by name \
                                            are refused");
                    return None;
                }
                Err(_) => {}
            }
        }
        self.next_id += 1;
        let id = DownstreamId(LOOKUP_BIT | self.next_id);
        state.requests.push_back((id, name.to_owned(), port));
        self.pending += 1;
        self.shared.work.notify_one();
        Some(id)
    }

    /// Returns the look-ups that ended since the last call.
    pub(super) fn finished(&mut self) -> Vec<(DownstreamId, Vec<SocketAddr>)> {
        // Resets the counter; its value does not matter.
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        let finished = std::mem::take(&mut self.shared.lock().finished);
        self.pending -= finished.len();
        finished
    }
}

impl Drop for Resolver {
    /// Lets the threads end. A thread within a look-up ends after it; nothing waits for it.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

fn work(shared: &Shared) {
    loop {
        let mut state = shared.lock();
        state.idle += 1;
        let mut state = shared
            .work
            .wait_while(state, |s| s.requests.is_empty() && !s.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        if state.closed {
            return;
        }
        let Some((id, name, port)) = state.requests.pop_front() else {
            continue;
        };
        drop(state);
        let addresses = look_up(&name, port);
        shared.lock().finished.push((id, addresses));
        let _ = rustix::io::write(&shared.wake, &1u64.to_ne_bytes());
    }
}

/// Returns whether a file exists but may not be read, because it replaced one to which this process has
/// access.
pub(crate) fn is_out_of_reach(file: &Path) -> bool {
    File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    let Ok(found) = (name, port).to_socket_addrs() else {
        if is_out_of_reach(Path::new(RESOLV_CONF)) {
            TOLD.call_once(|| {
                tracing::error!(
                    "another program replaced {RESOLV_CONF}, which this process can no longer read: names are not \
                     resolved; restart the server"
                );
            });
        }
        return addresses;
    };
    for addr in found {
        if !addresses.contains(&addr) && addresses.len() < MAX_ADDRESSES {
            addresses.push(addr);
        }
    }
    addresses
}
