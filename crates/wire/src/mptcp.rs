//! The options of Multipath TCP v1 (RFC 8684), TCP option kind 30.

mod codec;

use core::net::IpAddr;

use crate::Dsn64;
use crate::checksum::{self, Sum};

/// Option kind of MPTCP.
pub const KIND: u8 = 30;
/// The protocol version that this crate speaks.
pub const VERSION: u8 = 1;

/// Option subtypes (section 8.2).
mod subtype {
    pub(super) const CAPABLE: u8 = 0;
    pub(super) const JOIN: u8 = 1;
    pub(super) const DSS: u8 = 2;
    pub(super) const ADD_ADDR: u8 = 3;
    pub(super) const REMOVE_ADDR: u8 = 4;
    pub(super) const PRIO: u8 = 5;
    pub(super) const FAIL: u8 = 6;
    pub(super) const FASTCLOSE: u8 = 7;
    pub(super) const TCPRST: u8 = 8;
}

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
    /// MP_PRIO (section 3.3.8): changes the priority of the subflow.
    Prio {
        /// The subflow is a backup from now on.
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
        /// The reason of the reset.
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

impl CapableFlags {
    /// The flags offered by default: HMAC-SHA256 and nothing else.
    pub const DEFAULT_OFFER: CapableFlags = CapableFlags {
        checksum_required: false,
        extensibility: false,
        deny_join_initial: false,
        hmac_sha256: true,
    };
}

impl From<u8> for CapableFlags {
    /// Reads the flags from the byte; D to G are reserved and ignored.
    fn from(byte: u8) -> CapableFlags {
        CapableFlags {
            checksum_required: byte & 0x80 != 0,
            extensibility: byte & 0x40 != 0,
            deny_join_initial: byte & 0x20 != 0,
            hmac_sha256: byte & 0x01 != 0,
        }
    }
}

impl From<CapableFlags> for u8 {
    fn from(flags: CapableFlags) -> u8 {
        u8::from(flags.checksum_required) << 7
            | u8::from(flags.extensibility) << 6
            | u8::from(flags.deny_join_initial) << 5
            | u8::from(flags.hmac_sha256)
    }
}

/// The forms of MP_CAPABLE, told apart by their length.
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

/// The forms of MP_JOIN, told apart by their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// On a SYN (length 12).
    Syn {
        /// The sender opens the subflow as a backup.
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
        /// The sender treats the subflow as a backup.
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

impl WireDsn {
    /// Makes the form of `dsn` with all 64 bits, or with the low 32 only.
    pub const fn new(dsn: Dsn64, eight: bool) -> WireDsn {
        if eight {
            WireDsn::Eight(dsn.0)
        } else {
            WireDsn::Four(dsn.low())
        }
    }

    /// Returns the full number: as carried, or the number nearest to `near` that has these low 32 bits
    /// (section 3.3.1).
    pub const fn expand(self, near: Dsn64) -> Dsn64 {
        match self {
            WireDsn::Four(low) => near.expand(low),
            WireDsn::Eight(full) => Dsn64(full),
        }
    }

    /// Returns whether all 64 bits are carried.
    pub const fn is_eight(self) -> bool {
        matches!(self, WireDsn::Eight(_))
    }

    /// Returns the length on the wire: 4 or 8 bytes.
    const fn len(self) -> usize {
        if self.is_eight() { 8 } else { 4 }
    }
}

/// Data sequence signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dss {
    /// Data-level cumulative acknowledgement.
    pub data_ack: Option<WireDsn>,
    /// Mapping of subflow bytes to data bytes.
    pub mapping: Option<DssMapping>,
    /// F: the mapping's last byte is DATA_FIN. Without a mapping the flag has no meaning.
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

impl DssMapping {
    /// Returns whether this is the infinite mapping, which falls back to TCP (section 3.7).
    pub const fn is_infinite(&self) -> bool {
        self.len == 0
    }
}

/// Returns the DSS checksum (section 3.3.1) of a mapping whose payload sums to `data`, for DSS and for
/// MP_CAPABLE with data. `len` is the length as carried, with DATA_FIN.
///
/// A received mapping is sound if its checksum equals this value.
// Conforms: 8684-3.3.1-8
pub fn dss_checksum(dsn: Dsn64, subflow_seq: u32, len: u16, data: Sum) -> u16 {
    let words = [
        (dsn.0 >> 48) as u16,
        (dsn.0 >> 32) as u16,
        (dsn.0 >> 16) as u16,
        dsn.0 as u16,
        (subflow_seq >> 16) as u16,
        subflow_seq as u16,
        len,
    ];
    let header: u64 = words.into_iter().map(u64::from).sum();
    checksum::finish(Sum(u64::from(checksum::fold(data)) + header))
}

/// ADD_ADDR, or its echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddr {
    /// Address ID.
    pub address_id: u8,
    /// The address.
    pub addr: IpAddr,
    /// Port, if it differs from the connection's port.
    pub port: Option<u16>,
    /// Truncated HMAC (rightmost 64 bits); `None` is an echo (E = 1).
    pub hmac: Option<u64>,
}

impl AddAddr {
    /// Returns the echo that acknowledges this ADD_ADDR.
    pub const fn echo(&self) -> AddAddr {
        AddAddr {
            hmac: None,
            ..*self
        }
    }
}

/// REMOVE_ADDR with its list of address IDs: at least one, and those past the 16th are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveAddr {
    /// Zero past `len`, so that equal lists compare equal.
    ids: [u8; RemoveAddr::MAX_IDS],
    len: u8,
}

impl RemoveAddr {
    /// Most address IDs kept.
    pub const MAX_IDS: usize = 16;

    /// Makes the option that removes `ids`; `None` if there are none.
    pub fn new(ids: &[u8]) -> Option<RemoveAddr> {
        let kept = &ids[..ids.len().min(Self::MAX_IDS)];
        let mut list = [0; Self::MAX_IDS];
        list[..kept.len()].copy_from_slice(kept);
        (!kept.is_empty()).then_some(RemoveAddr {
            ids: list,
            len: kept.len() as u8,
        })
    }

    /// Returns the address IDs, at least one.
    pub fn ids(&self) -> &[u8] {
        &self.ids[..usize::from(self.len)]
    }
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

impl From<u8> for ResetReason {
    fn from(code: u8) -> ResetReason {
        match code {
            0x00 => ResetReason::Unspecified,
            0x01 => ResetReason::MptcpSpecific,
            0x02 => ResetReason::LackOfResources,
            0x03 => ResetReason::AdministrativelyProhibited,
            0x04 => ResetReason::TooMuchOutstanding,
            0x05 => ResetReason::UnacceptablePerformance,
            0x06 => ResetReason::MiddleboxInterference,
            other => ResetReason::Other(other),
        }
    }
}

impl From<ResetReason> for u8 {
    fn from(reason: ResetReason) -> u8 {
        match reason {
            ResetReason::Unspecified => 0x00,
            ResetReason::MptcpSpecific => 0x01,
            ResetReason::LackOfResources => 0x02,
            ResetReason::AdministrativelyProhibited => 0x03,
            ResetReason::TooMuchOutstanding => 0x04,
            ResetReason::UnacceptablePerformance => 0x05,
            ResetReason::MiddleboxInterference => 0x06,
            ResetReason::Other(code) => code,
        }
    }
}
