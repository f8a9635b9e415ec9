//! Receives signals by descriptors.
#![expect(unsafe_code, reason = "signalfd has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor that is readable when one of its signals was received.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Receives the signals that ask the process to end: SIGTERM, SIGINT and SIGHUP. The signals stay blocked
    /// after the value is dropped. Must be called before any other thread is started: a thread that does not
    /// block the signals would still get them.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn take_over() -> io::Result<Signals> {
        Signals::of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
    }

    /// Works like [`Self::take_over`], for programs that reload at SIGHUP. Returns one value for SIGTERM and
    /// SIGINT, and another one for SIGHUP.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
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

/// Reads a signal from its descriptor, if one was received.
pub(super) fn take_signal(signal: BorrowedFd<'_>) {
    // The contents of `signalfd_siginfo` do not matter. Its size is 128 bytes.
    let _ = rustix::io::read(signal, &mut [0u8; 128]);
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
