//! The wish to end, as a descriptor.
#![expect(unsafe_code, reason = "signalfd has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Becomes readable when the process is asked to end: SIGTERM, SIGINT, SIGHUP.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Takes the signals over, for good. To be called before any thread is started: threads that
    /// exist would still be interrupted by them.
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub fn take_over() -> io::Result<Signals> {
        // SAFETY: `sigset_t` is plain data, initialised by `sigemptyset` before it is read; the
        // calls get valid pointers to it, and the descriptor that `signalfd` returns is new and
        // owned by nobody else.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            let result =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if result != 0 {
                return Err(io::Error::from_raw_os_error(result));
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Signals { fd })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
