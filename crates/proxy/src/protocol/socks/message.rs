//! Messages and fields of SOCKS5 that both ends of the handshake use, with Braid's extension, the metadata.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use braid_secure::auth::SignedMetadata;
use braid_secure::keys::SIGNATURE_LEN;

use crate::app::ConnectFailure;

// The values are from RFC 1928 sections 3 to 5, and AUTH_VERSION is from RFC 1929 section 2.
pub(super) const VERSION: u8 = 5;
pub(super) const AUTH_VERSION: u8 = 1;
pub(super) const METHOD_NONE: u8 = 0;
pub(super) const METHOD_PASSWORD: u8 = 2;
pub(super) const NO_METHOD: u8 = 0xff;
pub(super) const CMD_CONNECT: u8 = 1;
pub(super) const ATYP_V4: u8 = 1;
pub(super) const ATYP_NAME: u8 = 3;
pub(super) const ATYP_V6: u8 = 4;

/// First byte of request metadata ([`RequestMetadata`]), version 3. A request begins with [`VERSION`], so that the
/// first byte distinguishes metadata from a request.
pub(super) const METADATA: u8 = 0xb5;
/// First byte of metadata that requests a probe instead of a destination, version 3.
pub(super) const PROBE: u8 = 0xb7;
/// First byte of metadata that requests a tunnel instead of a destination, version 1.
pub(super) const TUNNEL: u8 = 0xb9;
/// Number of bytes before the code and hints of the metadata: the first byte and a length of two bytes.
pub(super) const METADATA_HEAD_LEN: usize = 3;

/// Metadata of a request, sent right before it. RFC 1928 clients send none.
///
/// | bytes | content |
/// | --- | --- |
/// | 1 | 0xb5: metadata, version 3 |
/// | 2 | number of bytes after this field, big endian, at most 1024, or 64 to 1088 in plaintext |
/// | 0, or 64 in plaintext | code of the request: a signature over destination and hints |
/// | 0 to 1024 | hints |
///
/// If the first byte is 0xb7 or 0xb9, no request follows: the box requests a probe or a tunnel, and the hints are the
/// fields of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMetadata {
    /// A signature over destination and hints. `None` on a protected connection, where TLS authenticates
    /// destination and hints.
    pub code: Option<[u8; SIGNATURE_LEN]>,
    /// The encoded hints; [`FlowHints`](crate::FlowHints) decodes and checks them.
    pub hints: Vec<u8>,
}

impl<'a> From<&'a RequestMetadata> for SignedMetadata<'a> {
    fn from(metadata: &'a RequestMetadata) -> Self {
        SignedMetadata {
            code: metadata.code.as_ref(),
            bytes: &metadata.hints,
        }
    }
}

impl RequestMetadata {
    /// Maximum number of bytes of hints. This version needs at most 86; the rest is room for later versions.
    pub const MAX_HINTS: usize = 1024;

    pub(super) fn encode(&self, kind: u8, out: &mut Vec<u8>) {
        // The receiver refuses a message with more hints.
        let hints = &self.hints[..self.hints.len().min(Self::MAX_HINTS)];
        out.push(kind);
        let code = self.code.as_ref().map_or(&[][..], |code| code);
        let len = u16::try_from(code.len() + hints.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(code);
        out.extend_from_slice(hints);
    }

    /// Returns the number of bytes that follow the length field `field`. They include a code if `coded`. `None`
    /// if the number is out of range.
    pub(super) fn length(field: [u8; 2], coded: bool) -> Option<usize> {
        let len = usize::from(u16::from_be_bytes(field));
        let code = if coded { SIGNATURE_LEN } else { 0 };
        (code..=code + Self::MAX_HINTS)
            .contains(&len)
            .then_some(len)
    }

    /// Decodes the bytes after the length field. They include a code if `coded`.
    pub(super) fn decode(body: &[u8], coded: bool) -> Option<Self> {
        let (code, hints) = match coded {
            true => body
                .split_first_chunk()
                .map(|(code, rest)| (Some(*code), rest))?,
            false => (None, body),
        };
        let hints = hints.to_vec();
        Some(RequestMetadata { code, hints })
    }
}

/// The destination of a CONNECT request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An address.
    Address(SocketAddr),
    /// A name that the server resolves: 1 to 253 bytes of letters, digits, `-`, `_` and `.`.
    Name(String, u16),
}

impl Destination {
    /// Appends ATYP, DST.ADDR and DST.PORT of a request (RFC 1928 section 4).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let port = match self {
            Destination::Address(addr) => {
                match addr.ip() {
                    IpAddr::V4(a) => {
                        out.push(ATYP_V4);
                        out.extend_from_slice(&a.octets());
                    }
                    IpAddr::V6(a) => {
                        out.push(ATYP_V6);
                        out.extend_from_slice(&a.octets());
                    }
                }
                addr.port()
            }
            Destination::Name(name, port) => {
                out.push(ATYP_NAME);
                // `is_host_name` limits names to 253 bytes, so the fallback is never used.
                out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                out.extend_from_slice(name.as_bytes());
                *port
            }
        };
        out.extend_from_slice(&port.to_be_bytes());
    }

    /// Returns the bytes that [`encode`](Self::encode) appends.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes the bytes after ATYP that [`encode`](Self::encode) appends. `None` if they are malformed.
    pub(super) fn decode(atyp: u8, body: &[u8]) -> Option<Self> {
        let (addr, port) = body.split_at_checked(body.len().checked_sub(2)?)?;
        let port = u16::from_be_bytes(port.try_into().ok()?);
        match atyp {
            ATYP_V4 => {
                let octets: [u8; 4] = addr.try_into().ok()?;
                Some(Destination::Address((Ipv4Addr::from(octets), port).into()))
            }
            ATYP_V6 => {
                let octets: [u8; 16] = addr.try_into().ok()?;
                Some(Destination::Address((Ipv6Addr::from(octets), port).into()))
            }
            ATYP_NAME => {
                let name = core::str::from_utf8(addr.get(1..)?).ok()?;
                is_host_name(name).then(|| Destination::Name(name.to_owned(), port))
            }
            _ => None,
        }
    }
}

/// Returns whether `name` is valid in a [`Destination::Name`].
pub(crate) fn is_host_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    // The 255 octets of a DNS name on the wire (RFC 1035 section 2.3.4) are at most 253 characters of text.
    (1..=253).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Parses the text that [`Display`](fmt::Display) writes. The error says what is expected.
impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let destination = text.rsplit_once(':').and_then(|(name, port)| {
            // Rust's integer parser also accepts a leading `+`.
            let digits = port.bytes().all(|b| b.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port > 0)?;
            match text.parse::<SocketAddr>() {
                Ok(address) => Some(Destination::Address(address)),
                Err(_) => is_host_name(name).then(|| Destination::Name(name.to_owned(), port)),
            }
        });
        destination.ok_or_else(|| {
            format!(
                "{text:?} is not a destination; expected HOST:PORT, such as \"example.com:443\""
            )
        })
    }
}

impl Destination {
    /// Returns the IP address, unless the destination is a name.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Destination::Address(addr) => Some(addr.ip()),
            Destination::Name(..) => None,
        }
    }
}

impl From<SocketAddr> for Destination {
    fn from(addr: SocketAddr) -> Self {
        Destination::Address(addr)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Address(addr) => write!(f, "{addr}"),
            Destination::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// Reply codes (RFC 1928 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// 0
    Succeeded,
    /// 1
    GeneralFailure,
    /// 2
    NotAllowed,
    /// 3
    NetworkUnreachable,
    /// 4
    HostUnreachable,
    /// 5
    ConnectionRefused,
    /// 6; Braid uses it for a timeout, for which RFC 1928 has no code.
    TtlExpired,
    /// 7
    CommandNotSupported,
    /// 8; a server uses it also for an address family in which it reaches no destination.
    AddressTypeNotSupported,
    /// A code that RFC 1928 does not assign.
    Unassigned(u8),
}

impl Reply {
    /// Returns the code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Reply::Succeeded => 0,
            Reply::GeneralFailure => 1,
            Reply::NotAllowed => 2,
            Reply::NetworkUnreachable => 3,
            Reply::HostUnreachable => 4,
            Reply::ConnectionRefused => 5,
            Reply::TtlExpired => 6,
            Reply::CommandNotSupported => 7,
            Reply::AddressTypeNotSupported => 8,
            Reply::Unassigned(code) => code,
        }
    }

    /// Returns the reply for a code on the wire.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Reply::Succeeded,
            1 => Reply::GeneralFailure,
            2 => Reply::NotAllowed,
            3 => Reply::NetworkUnreachable,
            4 => Reply::HostUnreachable,
            5 => Reply::ConnectionRefused,
            6 => Reply::TtlExpired,
            7 => Reply::CommandNotSupported,
            8 => Reply::AddressTypeNotSupported,
            code => Reply::Unassigned(code),
        }
    }

    /// Encodes the reply with all its fields. BND.ADDR and BND.PORT are always 0.0.0.0:0, because clients do not
    /// need the address from which the server connects.
    pub fn encode(self) -> [u8; 10] {
        [VERSION, self.code(), 0, ATYP_V4, 0, 0, 0, 0, 0, 0]
    }
}

impl From<ConnectFailure> for Reply {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::Refused => Reply::ConnectionRefused,
            ConnectFailure::HostUnreachable | ConnectFailure::NameNotResolved => {
                Reply::HostUnreachable
            }
            ConnectFailure::NetworkUnreachable => Reply::NetworkUnreachable,
            ConnectFailure::FamilyUnreachable => Reply::AddressTypeNotSupported,
            ConnectFailure::TimedOut => Reply::TtlExpired,
            ConnectFailure::NoResources => Reply::GeneralFailure,
        }
    }
}

/// A buffer for one message whose first bytes determine its length.
#[derive(Debug, Default)]
pub(in crate::protocol) struct MessageBuffer {
    buf: Vec<u8>,
}

impl MessageBuffer {
    /// Takes at most the missing bytes of the message from `input`. Returns the number of bytes taken, and true
    /// if the message is complete.
    ///
    /// `length` gets the bytes so far and returns a lower bound of the message's length. With more bytes the bound
    /// must grow until it equals the length, so that no byte of the next message is taken.
    pub(in crate::protocol) fn take(
        &mut self,
        input: &[u8],
        length: impl Fn(&[u8]) -> usize,
    ) -> (usize, bool) {
        let mut taken = 0;
        loop {
            let min_len = length(&self.buf);
            if self.buf.len() >= min_len {
                return (taken, true);
            }
            let n = (min_len - self.buf.len()).min(input.len() - taken);
            if n == 0 {
                return (taken, false);
            }
            self.buf.extend_from_slice(&input[taken..taken + n]);
            taken += n;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Empties the buffer, and returns its content.
    pub(in crate::protocol) fn clear(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.buf)
    }
}

/// Returns the length of address and port, which follow ATYP. The first byte of `body` determines the length of a
/// name. For a name and an empty `body`, the result is a lower bound. `None` for an unknown address type.
pub(super) fn address_length(atyp: u8, body: &[u8]) -> Option<usize> {
    match atyp {
        // The length includes two bytes of the port, and the length byte of a name (RFC 1928 section 5).
        ATYP_V4 => Some(6),
        ATYP_V6 => Some(18),
        ATYP_NAME => Some(body.first().map_or(1, |n| usize::from(*n) + 3)),
        _ => None,
    }
}
