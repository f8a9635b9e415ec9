//! Which protocol a connection speaks.

use braid_wire::mptcp::CapableFlags;

use super::keys::Keys;
use super::opening::SynData;

/// Which protocol the connection speaks, with what each state knows.
#[derive(Debug)]
pub(crate) enum Mode {
    /// SYN with MP_CAPABLE sent; `checksum` says that it requires checksums.
    Opening { local: Keys, checksum: bool },
    /// SYN/ACK with MP_CAPABLE sent; one of the two SYNs requires checksums if `checksum` says so.
    Accepting { local: Keys, checksum: bool },
    /// MPTCP.
    Mptcp(Mptcp),
    /// Regular TCP: by choice, or fallen back.
    Tcp,
}

/// An MPTCP connection whose keys are known.
#[derive(Debug)]
pub(crate) struct Mptcp {
    pub local: Keys,
    pub remote: Keys,
    /// Ours.
    pub flags: CapableFlags,
    /// The opener has seen a DATA_ACK, or the listener the third ACK: fully established.
    pub confirmed: bool,
    /// Mappings carry checksums both ways (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// The peer sends 8-byte DSNs and so is owed 8-byte DATA_ACKs (RFC 8684 section 3.3.1).
    pub wide_ack: bool,
    /// This side is fast enough to owe 8-byte DSNs.
    pub wide_dsn: bool,
    /// The peer may have sent on a further subflow.
    pub joined: bool,
    /// What stands before the numbered part of either stream.
    pub syn_data: SynData,
}
