//! What the kernel tells about one of its own Multipath TCP sockets (`MPTCP_INFO`).

#![expect(unsafe_code, reason = "no safe wrapper knows this socket option")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SOL_MPTCP` of linux/mptcp.h.
const SOL_MPTCP: libc::c_int = 284;
/// `MPTCP_INFO` of linux/mptcp.h.
const MPTCP_INFO: libc::c_int = 1;
/// `sizeof(struct mptcp_info)` of Linux 6.18; older kernels fill less of it.
const INFO_LEN: usize = 96;
/// `MPTCP_INFO_FLAG_FALLBACK`.
const FLAG_FALLBACK: u32 = 1;

/// State of one kernel MPTCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MptcpInfo {
    /// Subflows now, the first included. 1 where the kernel is too old to tell (before 6.6).
    pub subflows: u8,
    /// The connection has fallen back to TCP (RFC 8684, section 3.7).
    pub fallback: bool,
    /// The local token.
    pub token: u32,
    /// Bytes sent, retransmissions excluded.
    pub bytes_sent: u64,
    /// Bytes received, duplicates excluded.
    pub bytes_received: u64,
    /// Bytes sent again at the connection level.
    pub bytes_retransmitted: u64,
}

/// Reads the state of `socket`. `None` where it is not, or no longer, a Multipath TCP connection:
/// a plain TCP socket, or one that fell back before it was established.
///
/// # Errors
/// What `getsockopt` answers otherwise.
pub fn mptcp_info(socket: BorrowedFd<'_>) -> io::Result<Option<MptcpInfo>> {
    let mut raw = [0u8; INFO_LEN];
    let mut len = INFO_LEN as libc::socklen_t;
    // SAFETY: `raw` and `len` are live and writable for the call, `len` holds the size of `raw`,
    // and the kernel writes at most that many bytes; any byte pattern is a valid `raw`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            SOL_MPTCP,
            MPTCP_INFO,
            raw.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        return Ok(Some(parse(&raw)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Ok(None),
        _ => Err(error),
    }
}

fn parse(raw: &[u8; INFO_LEN]) -> MptcpInfo {
    let u32_at = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let u64_at = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    MptcpInfo {
        subflows: raw[80].max(1),
        fallback: u32_at(8) & FLAG_FALLBACK != 0,
        token: u32_at(12),
        bytes_sent: u64_at(56),
        bytes_received: u64_at(64),
        bytes_retransmitted: u64_at(48),
    }
}
