//! Signals as descriptors.
#![expect(unsafe_code, reason = "signalfd has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Becomes readable when one of some signals has come.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Takes over those by which the process is asked to end, for good: SIGTERM, SIGINT, SIGHUP. To be
    /// called before any thread is started: threads that exist would still be interrupted by them.
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub fn take_over() -> io::Result<Signals> {
        Signals::of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
    }

    /// The same where SIGHUP asks for something else than the end: the wish to end, and SIGHUP.
    ///
    /// # Errors
    /// Where descriptors are wanting.
    pub fn take_over_apart() -> io::Result<(Signals, Signals)> {
        let end = Signals::of(&[libc::SIGTERM, libc::SIGINT])?;
        Ok((end, Signals::of(&[libc::SIGHUP])?))
    }

    fn of(signals: &[libc::c_int]) -> io::Result<Signals> {
        // SAFETY: `sigset_t` is plain data, initialised by `sigemptyset` before it is read; the
        // calls get valid pointers to it, and the descriptor that `signalfd` returns is new and
        // owned by nobody else.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, *signal);
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

/// Takes a signal off its descriptor, where one has come.
pub(super) fn take_signal(signal: BorrowedFd<'_>) {
    // Of `signalfd_siginfo` only that it came is of interest.
    let _ = rustix::io::read(signal, &mut [0u8; 128]);
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
