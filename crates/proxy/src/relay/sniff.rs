//! Examination of the first bytes of a connection. From a user's bytes it reads the name in a TLS ClientHello, or
//! host and length of a plaintext HTTP/1.1 request. From a destination's bytes it reads the length of an HTTP/1.1
//! response.
//!
//! No byte is delayed for this purpose. The module reads the bytes that have come, and a name that comes later
//! stays unknown.

use core::net::IpAddr;

use crate::protocol::socks::is_host_name;

/// Maximum number of bytes that are examined: enough for a ClientHello with a post-quantum key share (about 1,800
/// bytes), or for the head of a request with few cookies.
pub const MAX_SNIFFED_BYTES: usize = 4096;

/// Maximum number of headers in a message. A message with more counts as unknown. The value is a guess.
const MAX_HEADERS: usize = 64;

/// The results from a user's first bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sniffed {
    /// The name of the destination, in lower case.
    pub host: Option<String>,
    /// The number of bytes that follow the head of the request.
    pub upload: Option<u64>,
}

/// Examines the `first` bytes of a user. The result is empty for an unknown protocol.
pub fn examine(first: &[u8]) -> Sniffed {
    if let Some(hello) = client_hello(first) {
        let host = server_name(hello).and_then(host_name);
        return Sniffed { host, upload: None };
    }
    request(first).unwrap_or_default()
}

/// The length of a response, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The head of the response is incomplete, so more bytes may show the length.
    Incomplete,
    /// The response does not announce its length, or is not HTTP/1.1.
    Unknown,
    /// The number of bytes, including the head.
    Bytes(u64),
}

/// Reads the length of an HTTP/1.1 response from the `first` bytes of a destination: `Content-Length` or
/// `Content-Range`, or zero if the response has no body (RFC 9112 section 6.3). The request is not known here, so
/// the response to a HEAD request is taken to have a body. An error only misleads the strategy about the length.
pub fn response(first: &[u8]) -> Length {
    let mut heads_len = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&first[heads_len..]) {
            Ok(httparse::Status::Complete(head)) => heads_len += head,
            Ok(httparse::Status::Partial) => return Length::Incomplete,
            Err(_) => return Length::Unknown,
        }
        let body = match response.code {
            // After a switch of protocols (RFC 9110 section 15.2.2) any number of bytes may follow.
            Some(101) => None,
            // An interim response; another one follows (RFC 9110 section 15.2).
            Some(100..200) => continue,
            // No Content and Not Modified have no body, even if they have a Content-Length.
            Some(204 | 304) => Some(0),
            _ => body_length(response.headers),
        };
        return match body {
            Some(body) => Length::Bytes(body.saturating_add(heads_len as u64)),
            None => Length::Unknown,
        };
    }
}

/// Returns the part of a ClientHello (RFC 8446 section 4.1.2) that the first record contains, without the
/// message's type and length. The rest may come in later records or segments.
fn client_hello(first: &[u8]) -> Option<Bytes<'_>> {
    let mut record = Bytes(first);
    let &[content_type, major, _minor] = record.array()?;
    // Content type 22 is a handshake record. Clients send any legacy version 3.x (RFC 8446 section 5.1).
    if (content_type, major) != (22, 3) {
        return None;
    }
    let len = record.u16()?;
    let mut message = record.up_to(len);
    // Handshake type 1 is client_hello (RFC 8446 section 4).
    (message.u8()? == 1).then_some(())?;
    let _length = message.array::<3>()?;
    Some(message)
}

/// Returns the name in the extension `server_name` (RFC 6066 section 3).
fn server_name(mut hello: Bytes<'_>) -> Option<&[u8]> {
    let _version_and_random = hello.array::<34>()?;
    let session_id = hello.u8()?;
    hello.take(session_id.into())?;
    let cipher_suites = hello.u16()?;
    hello.take(cipher_suites)?;
    let compression_methods = hello.u8()?;
    hello.take(compression_methods.into())?;
    let len = hello.u16()?;
    let mut extensions = hello.up_to(len);
    loop {
        let (kind, len) = (extensions.u16()?, extensions.u16()?);
        let mut body = Bytes(extensions.take(len)?);
        // Extension type 0 is server_name (RFC 6066 section 1.1).
        if kind != 0 {
            continue;
        }
        let _list = body.u16()?;
        // Only one type of name is defined (host_name, 0), and a list has at most one name of each type.
        (body.u8()? == 0).then_some(())?;
        let len = body.u16()?;
        return body.take(len);
    }
}

/// Reads the head of an HTTP/1.1 request, which may be incomplete.
fn request(first: &[u8]) -> Option<Sniffed> {
    // The host is often in the first lines, so an incomplete head is parsed as if it ended with the last complete
    // line.
    let end = first.windows(2).rposition(|w| w == b"\r\n")? + 2;
    let head = [&first[..end], b"\r\n"].concat();
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(&head).ok()?;
    let host = values(request.headers, "host").next().and_then(|host| {
        let name = host.split(|b| *b == b':').next()?;
        host_name(name)
    });
    let upload = body_length(request.headers);
    Some(Sniffed { host, upload })
}

/// Returns the announced length of a message's body; `None` if it is missing or ambiguous. Several equal
/// `Content-Length` headers count as one (RFC 9112 section 6.3), and `Transfer-Encoding` overrides all of them.
fn body_length(headers: &[httparse::Header<'_>]) -> Option<u64> {
    let mut lengths = values(headers, "content-length").map(content_length);
    let length = match lengths.next() {
        Some(length) => length,
        None => values(headers, "content-range")
            .next()
            .and_then(range_length),
    };
    let is_unambiguous = lengths.all(|other| other == length)
        && values(headers, "transfer-encoding").next().is_none();
    length.filter(|_| is_unambiguous)
}

/// Returns the length of the part that a `Content-Range` describes: `bytes 0-99/1000` (RFC 9110 section 14.4).
fn range_length(value: &[u8]) -> Option<u64> {
    let range = core::str::from_utf8(value).ok()?.strip_prefix("bytes ")?;
    let (first, last) = range.split('/').next()?.split_once('-')?;
    let [first, last] = [first, last].map(|n| content_length(n.as_bytes()));
    last?.checked_sub(first?)?.checked_add(1)
}

fn values<'h>(
    headers: &'h [httparse::Header<'h>],
    name: &'static str,
) -> impl Iterator<Item = &'h [u8]> {
    let has_name = move |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case(name);
    headers.iter().filter(has_name).map(|h| h.value)
}

/// Parses a length, which consists of digits alone (RFC 9110 section 8.6). Rust's parser also accepts a sign.
fn content_length(value: &[u8]) -> Option<u64> {
    let has_digits_only = value.iter().all(u8::is_ascii_digit);
    core::str::from_utf8(value)
        .ok()?
        .parse()
        .ok()
        .filter(|_| has_digits_only)
}

/// Normalizes a name, so that rules and history can compare it: lower case, no final dot. Returns `None` for an IP
/// address.
fn host_name(bytes: &[u8]) -> Option<String> {
    let name = core::str::from_utf8(bytes).ok()?.trim_end_matches('.');
    let is_name = is_host_name(name) && name.parse::<IpAddr>().is_err();
    is_name.then(|| name.to_ascii_lowercase())
}

/// The unread rest of the input.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: u16) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns the next `len` bytes, or all remaining bytes if these are fewer.
    fn up_to(&self, len: u16) -> Bytes<'a> {
        Bytes(&self.0[..self.0.len().min(len.into())])
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|&[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }
}
