//! Name look-ups. They run on threads of their own, since the system's resolver blocks.

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

/// Maximum number of threads, each of which does one look-up at a time. A look-up takes many seconds if the DNS
/// servers of the name do not answer. A user of a server may have 8 look-ups at a time by default
/// (`ServerLimits::lookups`), so four such users leave no thread to the others. The number is a guess.
const MAX_THREADS: usize = 32;
/// Maximum number of look-ups that wait or are in progress. It bounds the memory of the queue. The number is a
/// guess.
const MAX_PENDING: usize = 1_024;
/// The file that names the DNS servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Makes the log report only once that [`RESOLV_CONF`] cannot be read.
static WARNED: Once = Once::new();
/// Stack size of a thread in bytes. The buffers of the C library's resolver need less.
const STACK_LEN: usize = 256 * 1024;
/// Maximum number of addresses of a name that are used. The number is a guess.
const MAX_ADDRESSES: usize = 8;
/// The bit that tells the ids of look-ups from the ids of streams. It is set in the ids of look-ups only.
const LOOKUP_BIT: u64 = 1 << 63;

/// A bounded pool of threads for look-ups. Each thread is started when it is first needed.
#[derive(Debug)]
pub(super) struct Resolver {
    shared: Arc<Shared>,
    /// Number of threads that were started.
    threads: usize,
    /// Number of look-ups that were submitted and whose result was not fetched yet.
    pending: usize,
    /// The number of the last look-up.
    next_id: u64,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    state: Mutex<State>,
    work_available: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<(DownstreamId, String, u16)>,
    finished: Vec<(DownstreamId, Vec<SocketAddr>)>,
    idle_threads: usize,
    closed: bool,
}

impl Shared {
    /// Locks the state. Its value is consistent after every statement, so a panic of another thread, which
    /// poisons the lock, does no harm.
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
                work_available: Condvar::new(),
            }),
            threads: 0,
            pending: 0,
            next_id: 0,
        })
    }

    /// Returns the descriptor that is readable when a look-up has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Starts a look-up; `None` if too many are pending.
    pub(super) fn submit(&mut self, name: &str, port: u16) -> Option<DownstreamId> {
        if self.pending >= MAX_PENDING {
            return None;
        }
        let mut state = self.shared.lock();
        if state.idle_threads <= state.requests.len() && self.threads < MAX_THREADS {
            let shared = Arc::clone(&self.shared);
            let spawned = thread::Builder::new()
                .name("resolver".to_owned())
                .stack_size(STACK_LEN)
                .spawn(move || serve_requests(&shared));
            match spawned {
                Ok(_) => self.threads += 1,
                Err(error) if self.threads == 0 => {
                    tracing::warn!(%error, "cannot start a thread for name look-ups: users' requests by name \
                                            are refused");
                    return None;
                }
                // No further thread can be started, so an existing thread does the look-up later.
                Err(_) => {}
            }
        }
        self.next_id += 1;
        let id = DownstreamId(LOOKUP_BIT | self.next_id);
        state.requests.push_back((id, name.to_owned(), port));
        self.pending += 1;
        self.shared.work_available.notify_one();
        Some(id)
    }

    /// Returns the look-ups that ended since the last call.
    pub(super) fn finished(&mut self) -> Vec<(DownstreamId, Vec<SocketAddr>)> {
        // Resets the counter of the eventfd, so that it is no longer readable.
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        let finished = std::mem::take(&mut self.shared.lock().finished);
        self.pending -= finished.len();
        finished
    }
}

impl Drop for Resolver {
    /// Makes the threads end. A thread that is in a look-up ends after the look-up, and nothing waits for the
    /// thread.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work_available.notify_all();
    }
}

/// Does look-ups until the resolver is closed.
fn serve_requests(shared: &Shared) {
    loop {
        let mut state = shared.lock();
        state.idle_threads += 1;
        let mut state = shared
            .work_available
            .wait_while(state, |s| s.requests.is_empty() && !s.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.idle_threads -= 1;
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

/// Returns whether a file exists but may not be opened: the process gave up access to all files that it does not
/// need, and the file has replaced one that it needs.
pub(crate) fn is_out_of_reach(file: &Path) -> bool {
    File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Returns the addresses of a name; none if the look-up fails.
fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    let Ok(found) = (name, port).to_socket_addrs() else {
        if is_out_of_reach(Path::new(RESOLV_CONF)) {
            WARNED.call_once(|| {
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
