//! The kernel's information about its own Multipath TCP sockets (`MPTCP_INFO`) and their subflows
//! (`MPTCP_TCPINFO`, `MPTCP_SUBFLOW_ADDRS`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use braid_linux::sys;

/// `SOL_MPTCP` of linux/mptcp.h.
const SOL_MPTCP: libc::c_int = 284;
/// `MPTCP_INFO` of linux/mptcp.h.
const MPTCP_INFO: libc::c_int = 1;
/// `MPTCP_TCPINFO` of linux/mptcp.h.
const MPTCP_TCPINFO: libc::c_int = 2;
/// `MPTCP_SUBFLOW_ADDRS` of linux/mptcp.h.
const MPTCP_SUBFLOW_ADDRS: libc::c_int = 3;
/// `sizeof(struct mptcp_subflow_data)`, which precedes the array of the two options above.
const SUBFLOW_DATA_LEN: usize = 16;
/// Bytes of `struct tcp_info` up to the end of `tcpi_bytes_retrans` (Linux 4.19).
const TCP_INFO_LEN: usize = 216;
/// `sizeof(struct mptcp_subflow_addrs)`: two `sockaddr_storage`.
const ADDRS_LEN: usize = 256;
/// Maximum number of subflows that are read. The kernel allows 8 besides the first.
const MAX_SUBFLOWS: usize = 16;
/// `sizeof(struct mptcp_info)` of Linux 6.18. Older kernels fill only a part of the structure.
const INFO_LEN: usize = 96;
/// `MPTCP_INFO_FLAG_FALLBACK`.
const FLAG_FALLBACK: u32 = 1;

/// State of one kernel MPTCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MptcpInfo {
    /// Number of subflows, including the first one. Always 1 with a kernel older than 6.6, which does not report
    /// the number.
    pub subflows: u8,
    /// True if the connection has fallen back to TCP (RFC 8684, section 3.7).
    pub fallback: bool,
}

/// A subflow of a kernel MPTCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowInfo {
    /// Address at this end.
    pub local: IpAddr,
    /// Address at the other end.
    pub remote: IpAddr,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes retransmitted on this subflow. They are a part of `bytes_sent`.
    pub bytes_retransmitted: u64,
    /// Segments retransmitted on this subflow.
    pub retransmissions: u32,
}

/// Returns the present subflows of `socket`. Returns none if the socket uses plain TCP, by request or by fallback.
/// A subflow that opens or closes during the call may be missing.
///
/// # Errors
/// Fails if `getsockopt` fails for any reason but plain TCP.
pub fn subflows(socket: BorrowedFd<'_>) -> io::Result<Vec<SubflowInfo>> {
    let addresses = subflow_array::<ADDRS_LEN>(socket, MPTCP_SUBFLOW_ADDRS)?;
    let counters = subflow_array::<TCP_INFO_LEN>(socket, MPTCP_TCPINFO)?;
    let subflows = addresses.iter().zip(&counters);
    Ok(subflows
        .filter_map(|(addresses, counters)| {
            let (local, remote) = addresses.split_at(ADDRS_LEN / 2);
            Some(SubflowInfo {
                local: socket_address(local)?,
                remote: socket_address(remote)?,
                // Offsets in `struct tcp_info` (linux/tcp.h).
                bytes_sent: u64_at(counters, 200),
                bytes_retransmitted: u64_at(counters, 208),
                retransmissions: u32_at(counters, 100),
            })
        })
        .collect())
}

/// Reads an array with one element of `LEN` bytes for each subflow.
fn subflow_array<const LEN: usize>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
) -> io::Result<Vec<[u8; LEN]>> {
    let mut raw = vec![0u8; SUBFLOW_DATA_LEN + MAX_SUBFLOWS * LEN];
    // The fields are size_subflow_data, num_subflows, size_kernel and size_user. The caller sets the first and the
    // last field, the kernel sets the others.
    raw[..4].copy_from_slice(&(SUBFLOW_DATA_LEN as u32).to_ne_bytes());
    raw[12..16].copy_from_slice(&(LEN as u32).to_ne_bytes());
    if !get(socket, option, &mut raw)? {
        return Ok(Vec::new());
    }
    let subflows = (u32_at(&raw, 4) as usize).min(MAX_SUBFLOWS);
    let (elements, _) = raw[SUBFLOW_DATA_LEN..].as_chunks();
    Ok(elements[..subflows].to_vec())
}

/// Reads the address of a `sockaddr_in` or `sockaddr_in6`.
fn socket_address(raw: &[u8]) -> Option<IpAddr> {
    match i32::from(u16::from_ne_bytes([raw[0], raw[1]])) {
        libc::AF_INET => Some(Ipv4Addr::from(*raw[4..].first_chunk()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*raw[8..].first_chunk()?).into()),
        _ => None,
    }
}

/// Returns the state of `socket`, or `None` if the socket uses plain TCP. A connection that fell back after its
/// handshake still has a state.
///
/// # Errors
/// Fails if `getsockopt` fails for any reason but plain TCP.
pub fn mptcp_info(socket: BorrowedFd<'_>) -> io::Result<Option<MptcpInfo>> {
    let mut raw = [0u8; INFO_LEN];
    let known = get(socket, MPTCP_INFO, &mut raw)?;
    Ok(known.then(|| MptcpInfo {
        // Offsets in `struct mptcp_info` (linux/mptcp.h).
        subflows: raw[80].max(1),
        fallback: u32_at(&raw, 8) & FLAG_FALLBACK != 0,
    }))
}

/// Reads an option of Multipath TCP into `raw`; returns false if the socket is not Multipath TCP.
fn get(socket: BorrowedFd<'_>, option: libc::c_int, raw: &mut [u8]) -> io::Result<bool> {
    match sys::socket_option(socket, SOL_MPTCP, option, raw) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    let word = raw[at..].first_chunk();
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    let word = raw[at..].first_chunk();
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}
