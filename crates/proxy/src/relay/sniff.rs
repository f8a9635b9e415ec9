//! What the first bytes of a user say of its connection: the name in a TLS ClientHello, host and
//! length of an HTTP/1.1 request in clear. And what those of a destination say: the length of its
//! response.
//!
//! Nothing is waited for: what is there is read as far as it goes, and a name that stands further
//! behind stays unknown.

use core::net::IpAddr;

use crate::protocol::socks::is_host_name;

/// Bytes that are worth looking at: a ClientHello with a post-quantum key share, or the head of a
/// request without its cookies.
pub const MOST: usize = 4096;

/// Headers of a request that are looked at.
const MAX_HEADERS: usize = 64;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// The name of the destination, in lower case.
    pub host: Option<String>,
    /// How many bytes follow the head of the request.
    pub upload: Option<u64>,
}

/// Looks at the `first` bytes of a connection.
pub fn look(first: &[u8]) -> Seen {
    if let Some(hello) = client_hello(first) {
        let host = server_name(hello).and_then(host_name);
        return Seen { host, upload: None };
    }
    request(first).unwrap_or_default()
}

/// What the first bytes of a destination say of how many it is going to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Nothing yet: the head of a response is not whole.
    Open,
    /// Nothing.
    Untold,
    /// So many with the head.
    Bytes(u64),
}

/// Looks at the `first` bytes of a destination for the length of an HTTP/1.1 response: what its
/// `Content-Length` or `Content-Range` says, or nothing where it has no body (RFC 9112 section 6.3).
/// What answers a HEAD is taken for a response with a body.
pub fn response(first: &[u8]) -> Length {
    let mut at = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&first[at..]) {
            Ok(httparse::Status::Complete(head)) => at += head,
            Ok(httparse::Status::Partial) => return Length::Open,
            Err(_) => return Length::Untold,
        }
        let body = match response.code {
            Some(101) => None,
            // An interim response: another one follows.
            Some(100..200) => continue,
            Some(204 | 304) => Some(0),
            _ => body_length(response.headers),
        };
        return match body {
            Some(body) => Length::Bytes(body.saturating_add(at as u64)),
            None => Length::Untold,
        };
    }
}

/// The body of a ClientHello (RFC 8446 section 4.1.2), as much of it as the first record has.
fn client_hello(first: &[u8]) -> Option<Bytes<'_>> {
    let mut record = Bytes(first);
    let &[content_type, major, _minor] = record.array()?;
    if (content_type, major) != (22, 3) {
        return None;
    }
    let len = record.u16()?;
    let mut message = record.up_to(len);
    (message.u8()? == 1).then_some(())?;
    let _length = message.array::<3>()?;
    Some(message)
}

/// The name in the extension `server_name` (RFC 6066 section 3).
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
        if kind != 0 {
            continue;
        }
        let _list = body.u16()?;
        // There is one kind of name, and one name of each kind.
        (body.u8()? == 0).then_some(())?;
        let len = body.u16()?;
        return body.take(len);
    }
}

/// What the head of an HTTP/1.1 request says, of which the end may be missing.
fn request(first: &[u8]) -> Option<Seen> {
    // As if the head ended with the last line that is whole.
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
    Some(Seen { host, upload })
}

/// How long a message says that its body is; `None` where it does not, or in several ways.
fn body_length(headers: &[httparse::Header<'_>]) -> Option<u64> {
    let mut lengths = values(headers, "content-length").map(content_length);
    let length = match lengths.next() {
        Some(length) => length,
        None => values(headers, "content-range")
            .next()
            .and_then(range_length),
    };
    let sure = lengths.all(|other| other == length)
        && values(headers, "transfer-encoding").next().is_none();
    length.filter(|_| sure)
}

/// How long the part is of which a `Content-Range` tells: `bytes 0-99/1000` (RFC 9110 section 14.4).
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
    let of_name = move |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case(name);
    headers.iter().filter(of_name).map(|h| h.value)
}

/// A length is digits and nothing else (RFC 9110 section 8.6).
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    core::str::from_utf8(value)
        .ok()?
        .parse()
        .ok()
        .filter(|_| digits)
}

/// A name as rules and history know it; an address is none.
fn host_name(bytes: &[u8]) -> Option<String> {
    let name = core::str::from_utf8(bytes).ok()?.trim_end_matches('.');
    let ok = is_host_name(name) && name.parse::<IpAddr>().is_err();
    ok.then(|| name.to_ascii_lowercase())
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: u16) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(taken)
    }

    /// The next `len` bytes, or those that are there.
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
