//! Parsing and emitting of MPTCP options.
//!
//! Comments such as `Conforms: 8684-3.6-2` name demands of `docs/conformance.md`: the RFC, its section, and the
//! number that this page gives the demand within the section. RFCs do not number their demands.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    AddAddr, Capable, CapableFlags, Dss, DssMapping, Join, KIND, MptcpOption, RemoveAddr,
    ResetReason, VERSION, WireDsn, subtype,
};
use crate::bytes::{Reader, Writer};
use crate::{Dsn64, Error, Result};

/// Bytes before the body of an option: kind, length, and the byte with the subtype and four flags.
const PREFIX_LEN: usize = 3;

/// Flags of DSS (section 3.3).
mod dss_flag {
    pub(super) const DATA_FIN: u8 = 0x10;
    pub(super) const DSN_8: u8 = 0x08;
    pub(super) const MAPPING: u8 = 0x04;
    pub(super) const ACK_8: u8 = 0x02;
    pub(super) const ACK: u8 = 0x01;
}

/// The lowest bit of the byte with the subtype: the B flag of MP_JOIN and MP_PRIO, the E flag of ADD_ADDR, and the
/// T flag of MP_TCPRST.
const LOW_FLAG: u8 = 0x01;

impl MptcpOption {
    /// Parses one whole option, kind and length bytes included.
    ///
    /// Reserved bits are ignored.
    ///
    /// # Errors
    /// - `Truncated`: `option` has fewer than 3 bytes, or ends within a field.
    /// - `BadLength`: the length byte is not the length of `option`.
    /// - `BadOption`: the kind is not that of MPTCP, or the subtype has no form of this length.
    /// - `Unsupported`: RFC 8684 does not define the subtype, or the option is the MP_CAPABLE of a third ACK or of
    ///   data with another version. The MP_CAPABLE of a SYN or SYN/ACK may have any version.
    // Conforms: 8684-3.4.1-11, 8684-3.6-2
    pub fn parse(option: &[u8]) -> Result<MptcpOption> {
        let (&[kind, len, first], body) = option
            .split_first_chunk::<PREFIX_LEN>()
            .ok_or(Error::Truncated)?;
        if kind != KIND {
            return Err(Error::BadOption);
        }
        if usize::from(len) != option.len() {
            return Err(Error::BadLength);
        }
        let low = first & 0x0f;
        let backup = low & LOW_FLAG != 0;
        let mut body = Reader(body);
        match (first >> 4, len) {
            (subtype::CAPABLE, _) => capable(low, len, &mut body).map(MptcpOption::Capable),
            (subtype::JOIN, _) => join(backup, len, &mut body).map(MptcpOption::Join),
            (subtype::DSS, _) => dss(&mut body).map(MptcpOption::Dss),
            (subtype::ADD_ADDR, _) => {
                add_addr(low & LOW_FLAG != 0, len, &mut body).map(MptcpOption::AddAddr)
            }
            (subtype::REMOVE_ADDR, _) => RemoveAddr::new(body.0)
                .map(MptcpOption::RemoveAddr)
                .ok_or(Error::BadOption),
            (subtype::PRIO, 3) => Ok(MptcpOption::Prio { backup }),
            (subtype::FAIL, 12) => {
                // Reserved.
                body.u8()?;
                Ok(MptcpOption::Fail {
                    dsn: Dsn64(body.u64()?),
                })
            }
            (subtype::FASTCLOSE, 12) => {
                // Reserved.
                body.u8()?;
                Ok(MptcpOption::FastClose {
                    receiver_key: body.u64()?,
                })
            }
            (subtype::TCPRST, 4) => Ok(MptcpOption::Reset {
                transient: low & LOW_FLAG != 0,
                reason: ResetReason::from(body.u8()?),
            }),
            // A subtype of RFC 8684 whose only form has another length.
            (0..=subtype::TCPRST, _) => Err(Error::BadOption),
            _ => Err(Error::Unsupported),
        }
    }

    /// Returns the length of the option without padding, bytes.
    pub fn len(&self) -> usize {
        match self {
            MptcpOption::Capable(Capable::Syn { .. }) => 4,
            MptcpOption::Capable(Capable::SynAck { .. }) => 12,
            MptcpOption::Capable(Capable::Ack { .. }) => 20,
            MptcpOption::Capable(Capable::Data { checksum, .. }) => 22 + checksum_len(*checksum),
            MptcpOption::Join(Join::Syn { .. }) => 12,
            MptcpOption::Join(Join::SynAck { .. }) => 16,
            MptcpOption::Join(Join::Ack { .. }) => 24,
            MptcpOption::Dss(dss) => dss.len(),
            MptcpOption::AddAddr(add) => {
                let addr = if add.addr.is_ipv4() { 4 } else { 16 };
                let port = if add.port.is_some() { 2 } else { 0 };
                let hmac = if add.hmac.is_some() { 8 } else { 0 };
                4 + addr + port + hmac
            }
            MptcpOption::RemoveAddr(remove) => PREFIX_LEN + remove.ids().len(),
            MptcpOption::Prio { .. } => 3,
            MptcpOption::Fail { .. } | MptcpOption::FastClose { .. } => 12,
            MptcpOption::Reset { .. } => 4,
        }
    }

    /// Returns false, because an option has at least a kind and a length. Clippy demands the method beside `len`.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the option, [`Self::len`] bytes.
    // Conforms: 8684-3.6-1
    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.u8(KIND);
        // The longest form has 30 bytes, so the length is not cut.
        w.u8(self.len() as u8);
        match self {
            MptcpOption::Capable(capable) => emit_capable(capable, w),
            MptcpOption::Join(join) => emit_join(join, w),
            MptcpOption::Dss(dss) => emit_dss(dss, w),
            MptcpOption::AddAddr(add) => emit_add_addr(add, w),
            MptcpOption::RemoveAddr(remove) => {
                w.u8(subtype::REMOVE_ADDR << 4);
                w.put(remove.ids());
            }
            MptcpOption::Prio { backup } => w.u8(subtype::PRIO << 4 | u8::from(*backup)),
            MptcpOption::Fail { dsn } => {
                w.u16(u16::from(subtype::FAIL) << 12);
                w.u64(dsn.0);
            }
            MptcpOption::FastClose { receiver_key } => {
                w.u16(u16::from(subtype::FASTCLOSE) << 12);
                w.u64(*receiver_key);
            }
            MptcpOption::Reset { transient, reason } => {
                w.u8(subtype::TCPRST << 4 | u8::from(*transient));
                w.u8(u8::from(*reason));
            }
        }
    }
}

impl Dss {
    /// Returns the length of the option without padding: 4 to 28 bytes.
    pub fn len(&self) -> usize {
        let ack = self.data_ack.map_or(0, WireDsn::len);
        let mapping = self
            .mapping
            .map_or(0, |m| m.dsn.len() + 6 + checksum_len(m.checksum));
        4 + ack + mapping
    }

    /// Returns false, because an option has at least a kind and a length. Clippy demands the method beside `len`.
    pub fn is_empty(&self) -> bool {
        false
    }
}

fn checksum_len(checksum: Option<u16>) -> usize {
    if checksum.is_some() { 2 } else { 0 }
}

/// Parses MP_CAPABLE (section 3.1, figure 4). The forms on SYN and SYN/ACK negotiate the version, so they may have
/// any version. The later forms must have [`VERSION`], the only version that this crate can have negotiated: other
/// versions may give later forms of the same length another meaning.
///
/// The length alone determines the form. The SYN of version 0 (RFC 6824) has 12 bytes too, so it parses as
/// [`Capable::SynAck`]. The caller knows whether the segment is a SYN. On a SYN, the caller does not accept this
/// form and falls back to regular TCP.
fn capable(version: u8, len: u8, body: &mut Reader<'_>) -> Result<Capable> {
    let flags = CapableFlags::from(body.u8()?);
    match len {
        4 => Ok(Capable::Syn { version, flags }),
        12 => Ok(Capable::SynAck {
            version,
            flags,
            sender_key: body.u64()?,
        }),
        20 | 22 | 24 if version != VERSION => Err(Error::Unsupported),
        20 => Ok(Capable::Ack {
            flags,
            sender_key: body.u64()?,
            receiver_key: body.u64()?,
        }),
        22 | 24 => Ok(Capable::Data {
            flags,
            sender_key: body.u64()?,
            receiver_key: body.u64()?,
            data_len: body.u16()?,
            checksum: if len == 24 { Some(body.u16()?) } else { None },
        }),
        _ => Err(Error::BadOption),
    }
}

fn emit_capable(capable: &Capable, w: &mut Writer<'_>) {
    let (version, flags) = match *capable {
        Capable::Syn { version, flags } | Capable::SynAck { version, flags, .. } => {
            // The field has 4 bits. A larger number must not change the subtype beside it.
            (version & 0x0f, flags)
        }
        Capable::Ack { flags, .. } | Capable::Data { flags, .. } => (VERSION, flags),
    };
    w.u8(subtype::CAPABLE << 4 | version);
    w.u8(u8::from(flags));
    match *capable {
        Capable::Syn { .. } => {}
        Capable::SynAck { sender_key, .. } => w.u64(sender_key),
        Capable::Ack {
            sender_key,
            receiver_key,
            ..
        } => {
            w.u64(sender_key);
            w.u64(receiver_key);
        }
        Capable::Data {
            sender_key,
            receiver_key,
            data_len,
            checksum,
            ..
        } => {
            w.u64(sender_key);
            w.u64(receiver_key);
            w.u16(data_len);
            if let Some(checksum) = checksum {
                w.u16(checksum);
            }
        }
    }
}

/// Parses MP_JOIN (section 3.2, figures 5 to 7).
fn join(backup: bool, len: u8, body: &mut Reader<'_>) -> Result<Join> {
    // The third ACK has no address ID: this byte is reserved there, and its value is ignored.
    let address_id = body.u8()?;
    match len {
        12 => Ok(Join::Syn {
            backup,
            address_id,
            token: body.u32()?,
            nonce: body.u32()?,
        }),
        16 => Ok(Join::SynAck {
            backup,
            address_id,
            hmac: body.u64()?,
            nonce: body.u32()?,
        }),
        24 => Ok(Join::Ack {
            hmac: body.array()?,
        }),
        _ => Err(Error::BadOption),
    }
}

// Conforms: 8684-3.2-14
fn emit_join(join: &Join, w: &mut Writer<'_>) {
    match *join {
        Join::Syn {
            backup,
            address_id,
            token,
            nonce,
        } => {
            w.u8(subtype::JOIN << 4 | u8::from(backup));
            w.u8(address_id);
            w.u32(token);
            w.u32(nonce);
        }
        Join::SynAck {
            backup,
            address_id,
            hmac,
            nonce,
        } => {
            w.u8(subtype::JOIN << 4 | u8::from(backup));
            w.u8(address_id);
            w.u64(hmac);
            w.u32(nonce);
        }
        Join::Ack { ref hmac } => {
            // The 12 bits after the subtype are reserved and sent as 0.
            w.u16(u16::from(subtype::JOIN) << 12);
            w.put(hmac);
        }
    }
}

/// Parses DSS (section 3.3, figure 9). No flag announces a checksum: the option has one if bytes are left after
/// the other fields.
fn dss(body: &mut Reader<'_>) -> Result<Dss> {
    let flags = body.u8()?;
    let data_ack = match flags & (dss_flag::ACK | dss_flag::ACK_8) {
        dss_flag::ACK => Some(WireDsn::Four(body.u32()?)),
        // If there is no acknowledgement, the flag for its width has no meaning.
        0 | dss_flag::ACK_8 => None,
        _ => Some(WireDsn::Eight(body.u64()?)),
    };
    let mapping = if flags & dss_flag::MAPPING != 0 {
        let has_eight_bytes = flags & dss_flag::DSN_8 != 0;
        let dsn = if has_eight_bytes {
            WireDsn::Eight(body.u64()?)
        } else {
            WireDsn::Four(body.u32()?)
        };
        Some(DssMapping {
            dsn,
            subflow_seq: body.u32()?,
            len: body.u16()?,
            checksum: if body.0.is_empty() {
                None
            } else {
                Some(body.u16()?)
            },
        })
    } else {
        None
    };
    if !body.0.is_empty() {
        return Err(Error::BadOption);
    }
    Ok(Dss {
        data_ack,
        mapping,
        // A flag without a mapping is no error. It has no meaning, and callers ignore it.
        data_fin: flags & dss_flag::DATA_FIN != 0,
    })
}

// Conforms: 8684-3.3-1
fn emit_dss(dss: &Dss, w: &mut Writer<'_>) {
    let mut flags = if dss.data_fin { dss_flag::DATA_FIN } else { 0 };
    flags |= match dss.data_ack {
        None => 0,
        Some(WireDsn::Four(_)) => dss_flag::ACK,
        Some(WireDsn::Eight(_)) => dss_flag::ACK | dss_flag::ACK_8,
    };
    flags |= match dss.mapping.map(|m| m.dsn) {
        None => 0,
        Some(WireDsn::Four(_)) => dss_flag::MAPPING,
        Some(WireDsn::Eight(_)) => dss_flag::MAPPING | dss_flag::DSN_8,
    };
    w.u8(subtype::DSS << 4);
    w.u8(flags);
    if let Some(ack) = dss.data_ack {
        emit_dsn(ack, w);
    }
    if let Some(mapping) = dss.mapping {
        emit_dsn(mapping.dsn, w);
        w.u32(mapping.subflow_seq);
        w.u16(mapping.len);
        if let Some(checksum) = mapping.checksum {
            w.u16(checksum);
        }
    }
}

fn emit_dsn(dsn: WireDsn, w: &mut Writer<'_>) {
    match dsn {
        WireDsn::Four(low) => w.u32(low),
        WireDsn::Eight(full) => w.u64(full),
    }
}

/// Parses ADD_ADDR (section 3.4.1, figure 12). The length determines the address family and whether there is a
/// port. `echo` is the E flag: an echo has no HMAC, and every other ADD_ADDR has one. So [`AddAddr`] has no field
/// for the flag: it is set exactly if `hmac` is `None`.
fn add_addr(echo: bool, len: u8, body: &mut Reader<'_>) -> Result<AddAddr> {
    let without_hmac = if echo {
        len
    } else {
        len.checked_sub(8).ok_or(Error::BadOption)?
    };
    let (v6, has_port) = match without_hmac {
        8 => (false, false),
        10 => (false, true),
        20 => (true, false),
        22 => (true, true),
        _ => return Err(Error::BadOption),
    };
    let address_id = body.u8()?;
    let addr: IpAddr = if v6 {
        Ipv6Addr::from(body.array::<16>()?).into()
    } else {
        Ipv4Addr::from(body.array::<4>()?).into()
    };
    let port = if has_port { Some(body.u16()?) } else { None };
    let hmac = if echo { None } else { Some(body.u64()?) };
    Ok(AddAddr {
        address_id,
        addr,
        port,
        hmac,
    })
}

// Conforms: 8684-3.4.1-10
fn emit_add_addr(add: &AddAddr, w: &mut Writer<'_>) {
    // The E flag is set if there is no HMAC, see `add_addr`.
    w.u8(subtype::ADD_ADDR << 4 | u8::from(add.hmac.is_none()));
    w.u8(add.address_id);
    match add.addr {
        IpAddr::V4(addr) => w.put(&addr.octets()),
        IpAddr::V6(addr) => w.put(&addr.octets()),
    }
    if let Some(port) = add.port {
        w.u16(port);
    }
    if let Some(hmac) = add.hmac {
        w.u64(hmac);
    }
}
