//! The options of Multipath TCP v1 (RFC 8684), TCP option kind 30.

use core::net::IpAddr;

use crate::Dsn64;

/// Option kind of MPTCP.
pub const KIND: u8 = 30;
/// The protocol version this crate speaks.
pub const VERSION: u8 = 1;

/// One MPTCP option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MptcpOption {
    /// MP_CAPABLE (section 3.1).
    Capable(Capable),
    /// MP_JOIN (section 3.2).
    Join(Join),
    /// Data sequence signal (section 3.3).
    Dss(Dss),
    /// ADD_ADDR (section 3.4.1).
    AddAddr(AddAddr),
    /// REMOVE_ADDR (section 3.4.2).
    RemoveAddr(RemoveAddr),
    /// MP_PRIO (section 3.3.8): whether the subflow becomes a backup.
    Prio {
        /// Backup from now on.
        backup: bool,
    },
    /// MP_FAIL (section 3.7): the data sequence number where the checksum failed.
    Fail {
        /// Start of the bad mapping.
        dsn: Dsn64,
    },
    /// MP_FASTCLOSE (section 3.5) with the receiver's key.
    FastClose {
        /// Key of the host that receives the option.
        receiver_key: u64,
    },
    /// MP_TCPRST (section 3.6).
    Reset {
        /// The condition is transient.
        transient: bool,
        /// Why.
        reason: ResetReason,
    },
}

/// Flags of MP_CAPABLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapableFlags {
    /// A: checksums required.
    pub checksum_required: bool,
    /// B: extensibility; a set bit means "do not use MPTCP" to version 1.
    pub extensibility: bool,
    /// C: do not open subflows to this address and port.
    pub deny_join_initial: bool,
    /// H: HMAC-SHA256; must be set for the handshake to succeed.
    pub hmac_sha256: bool,
}

/// MP_CAPABLE, told apart by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capable {
    /// On a SYN (length 4).
    Syn {
        /// Version offered, 0..=15.
        version: u8,
        /// Flags.
        flags: CapableFlags,
    },
    /// On a SYN/ACK (length 12).
    SynAck {
        /// Version chosen.
        version: u8,
        /// Flags.
        flags: CapableFlags,
        /// The listener's key.
        sender_key: u64,
    },
    /// On the third ACK (length 20).
    Ack {
        /// Flags.
        flags: CapableFlags,
        /// The opener's key.
        sender_key: u64,
        /// The listener's key, echoed.
        receiver_key: u64,
    },
    /// On first data (length 22 or 24).
    Data {
        /// Flags.
        flags: CapableFlags,
        /// The opener's key.
        sender_key: u64,
        /// The listener's key, echoed.
        receiver_key: u64,
        /// Length of the mapping that starts at the first data byte.
        data_len: u16,
        /// DSS checksum where negotiated.
        checksum: Option<u16>,
    },
}

/// MP_JOIN, told apart by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// On a SYN (length 12).
    Syn {
        /// Open as a backup.
        backup: bool,
        /// Address ID of the sender's address.
        address_id: u8,
        /// Token of the receiver.
        token: u32,
        /// Random number.
        nonce: u32,
    },
    /// On a SYN/ACK (length 16).
    SynAck {
        /// Open as a backup.
        backup: bool,
        /// Address ID of the sender's address.
        address_id: u8,
        /// Leftmost 64 bits of the HMAC.
        hmac: u64,
        /// Random number.
        nonce: u32,
    },
    /// On the third ACK (length 24).
    Ack {
        /// Leftmost 160 bits of the HMAC.
        hmac: [u8; 20],
    },
}

/// A data sequence number as carried: 4 or 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireDsn {
    /// Low 32 bits.
    Four(u32),
    /// All 64 bits.
    Eight(u64),
}

/// Data sequence signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dss {
    /// Data-level cumulative acknowledgement.
    pub data_ack: Option<WireDsn>,
    /// Mapping of subflow bytes to data bytes.
    pub mapping: Option<DssMapping>,
    /// F: the mapping's last byte is DATA_FIN. Meaningless without a mapping.
    pub data_fin: bool,
}

/// A mapping as carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DssMapping {
    /// First data sequence number.
    pub dsn: WireDsn,
    /// First subflow sequence number, relative to the initial one (first byte = 1); 0 where the
    /// mapping carries DATA_FIN only.
    pub subflow_seq: u32,
    /// Bytes mapped, DATA_FIN counted as one; 0 is the infinite mapping.
    pub len: u16,
    /// Checksum where negotiated.
    pub checksum: Option<u16>,
}

/// ADD_ADDR, or its echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddr {
    /// Address ID.
    pub address_id: u8,
    /// The address.
    pub addr: IpAddr,
    /// Port, where it differs from that of the connection.
    pub port: Option<u16>,
    /// Truncated HMAC (rightmost 64 bits); `None` is an echo (E = 1).
    pub hmac: Option<u64>,
}

/// REMOVE_ADDR with its list of address IDs (at least one; those past the 16th are dropped).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveAddr {
    ids: [u8; 16],
    len: u8,
}

/// Reasons of MP_TCPRST (section 3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// 0x00
    Unspecified,
    /// 0x01
    MptcpSpecific,
    /// 0x02
    LackOfResources,
    /// 0x03
    AdministrativelyProhibited,
    /// 0x04
    TooMuchOutstanding,
    /// 0x05
    UnacceptablePerformance,
    /// 0x06
    MiddleboxInterference,
    /// Any other code.
    Other(u8),
}
