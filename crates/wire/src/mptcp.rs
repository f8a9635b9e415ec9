//! The options of Multipath TCP v1 (RFC 8684): TCP option kind 30. Section numbers refer to that RFC.

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
        /// True if the subflow is a backup from now on, false if it is a regular one.
        backup: bool,
    },
    /// MP_FAIL (section 3.7): the checksum of a mapping was wrong.
    Fail {
        /// First data sequence number of the mapping with the wrong checksum.
        dsn: Dsn64,
    },
    /// MP_FASTCLOSE (section 3.5) with the receiver's key.
    FastClose {
        /// Key of the host that receives the option. It proves that the sender knows the connection.
        receiver_key: u64,
    },
    /// MP_TCPRST (section 3.6).
    Reset {
        /// T: true if the condition is transient. The peer may then try the subflow again.
        transient: bool,
        /// The reason of the reset.
        reason: ResetReason,
    },
}

/// Flags of MP_CAPABLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapableFlags {
    /// A: true if the sender requires DSS checksums.
    pub checksum_required: bool,
    /// B: true to announce an extension. A host of version 1 that receives this bit must not use MPTCP.
    pub extensibility: bool,
    /// C: true if the peer must not open further subflows to this address and port.
    pub deny_join_initial: bool,
    /// H: true for HMAC-SHA256. No other algorithm is defined, so the handshake fails without this bit.
    pub hmac_sha256: bool,
}

impl CapableFlags {
    /// The flags of a default offer: only HMAC-SHA256 is set.
    pub const DEFAULT_OFFER: CapableFlags = CapableFlags {
        checksum_required: false,
        extensibility: false,
        deny_join_initial: false,
        hmac_sha256: true,
    };
}

impl From<u8> for CapableFlags {
    /// Decodes the flags. The bits D to G are reserved and ignored.
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

/// The forms of MP_CAPABLE, which differ in length.
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
    /// On the first data segment (length 22 or 24).
    Data {
        /// Flags.
        flags: CapableFlags,
        /// The opener's key.
        sender_key: u64,
        /// The listener's key, echoed.
        receiver_key: u64,
        /// Length of the mapping, which starts at the first data byte.
        data_len: u16,
        /// DSS checksum, if checksums were negotiated.
        checksum: Option<u16>,
    },
}

/// The forms of MP_JOIN, which differ in length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// On a SYN (length 12).
    Syn {
        /// B: true if the sender asks for a backup subflow.
        backup: bool,
        /// Address ID of the sender's address.
        address_id: u8,
        /// Token of the receiver, which identifies the connection.
        token: u32,
        /// Random number.
        nonce: u32,
    },
    /// On a SYN/ACK (length 16).
    SynAck {
        /// B: true if the sender asks for a backup subflow.
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

/// A data sequence number as an option encodes it, in 4 or 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireDsn {
    /// Low 32 bits.
    Four(u32),
    /// All 64 bits.
    Eight(u64),
}

impl WireDsn {
    /// Encodes all 64 bits of `dsn` if `eight_bytes` is true, otherwise only the low 32.
    pub const fn new(dsn: Dsn64, eight_bytes: bool) -> WireDsn {
        if eight_bytes {
            WireDsn::Eight(dsn.0)
        } else {
            WireDsn::Four(dsn.low())
        }
    }

    /// Returns the full number. If only the low 32 bits are encoded, returns the number nearest to `near` with
    /// these low bits (section 3.3.1).
    pub const fn expand(self, near: Dsn64) -> Dsn64 {
        match self {
            WireDsn::Four(low) => near.expand(low),
            WireDsn::Eight(full) => Dsn64(full),
        }
    }

    /// Returns whether all 64 bits are encoded.
    pub const fn is_eight(self) -> bool {
        matches!(self, WireDsn::Eight(_))
    }

    /// Returns the length on the wire: 4 or 8 bytes.
    const fn len(self) -> usize {
        if self.is_eight() { 8 } else { 4 }
    }
}

/// Data sequence signal (section 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dss {
    /// Data-level cumulative acknowledgement.
    pub data_ack: Option<WireDsn>,
    /// Mapping of subflow bytes to data bytes.
    pub mapping: Option<DssMapping>,
    /// F: true if the mapping ends with DATA_FIN. DATA_FIN takes the last sequence number of the mapping. Without
    /// a mapping the flag has no meaning.
    pub data_fin: bool,
}

/// A mapping as the option encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DssMapping {
    /// First data sequence number.
    pub dsn: WireDsn,
    /// First subflow sequence number, relative to the initial one: the first byte of the subflow has the number 1.
    /// The number is 0 if the mapping contains DATA_FIN only.
    pub subflow_seq: u32,
    /// Number of mapped bytes; DATA_FIN counts as one byte. 0 means the infinite mapping.
    pub len: u16,
    /// Checksum, if checksums were negotiated.
    pub checksum: Option<u16>,
}

impl DssMapping {
    /// Returns whether this is the infinite mapping. It makes a connection fall back to TCP (section 3.7).
    pub const fn is_infinite(&self) -> bool {
        self.len == 0
    }
}

/// Returns the checksum of a mapping (section 3.3.1), for DSS and for MP_CAPABLE with data. `data` is the sum of
/// the mapped payload. `len` is the length in the option, DATA_FIN included.
///
/// A received mapping is intact if its checksum equals this value.
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
    /// Port, if the option contains one. Without a port in the option, the address has the port of the connection.
    pub port: Option<u16>,
    /// The rightmost 64 bits of the HMAC; `None` in an echo (E = 1).
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

/// REMOVE_ADDR with its list of 1 to 16 address IDs. Further IDs are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveAddr {
    /// The IDs, followed by zeros. Because of the zeros, the derived equality compares lists.
    ids: [u8; RemoveAddr::MAX_IDS],
    len: u8,
}

impl RemoveAddr {
    /// Maximum number of address IDs. 16 is a guess: the option could hold 37 IDs, but no host announces that many
    /// addresses.
    pub const MAX_IDS: usize = 16;

    /// Creates the option that removes `ids`. Returns `None` if `ids` is empty.
    pub fn new(ids: &[u8]) -> Option<RemoveAddr> {
        let used = &ids[..ids.len().min(Self::MAX_IDS)];
        let mut list = [0; Self::MAX_IDS];
        list[..used.len()].copy_from_slice(used);
        (!used.is_empty()).then_some(RemoveAddr {
            ids: list,
            len: used.len() as u8,
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
