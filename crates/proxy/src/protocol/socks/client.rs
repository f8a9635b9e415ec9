//! The box's end of the SOCKS5 handshake.

use super::message::{
    AUTH_VERSION, CMD_CONNECT, Destination, METADATA, METHOD_NONE, METHOD_PASSWORD, MessageBuffer,
    PROBE, Reply, RequestMetadata, TUNNEL, VERSION, address_length,
};

/// Encodes greeting and password together, so that the server's choice of a method costs no round trip. User and
/// password are cut at 255 bytes, the limit of RFC 1929.
pub fn sign_in(user: &[u8], password: &[u8]) -> Vec<u8> {
    let mut out = vec![VERSION, 1, METHOD_PASSWORD, AUTH_VERSION];
    for field in [user, password] {
        let len = u8::try_from(field.len()).unwrap_or(u8::MAX);
        out.push(len);
        out.extend_from_slice(&field[..usize::from(len)]);
    }
    out
}

/// The greeting of a box that TLS has authenticated by its key.
pub const GREETING: [u8; 3] = [VERSION, 1, METHOD_NONE];

/// Encodes the request for `destination`, preceded by its metadata, if any. The user's first bytes may follow at
/// once. If there is metadata, the result of [`encode_early_hints`](super::encode_early_hints) must come before
/// these bytes.
pub fn request(metadata: Option<&RequestMetadata>, destination: &Destination) -> Vec<u8> {
    // Enough for most requests without another allocation.
    let mut out = Vec::with_capacity(64);
    if let Some(metadata) = metadata {
        metadata.encode(METADATA, &mut out);
    }
    out.extend_from_slice(&[VERSION, CMD_CONNECT, 0]);
    destination.encode(&mut out);
    out
}

/// Encodes the request for a probe, which a box sends instead of a request for a destination.
pub fn probe(metadata: &RequestMetadata) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    metadata.encode(PROBE, &mut out);
    out
}

/// Encodes the request for a tunnel with these fields, which a box sends instead of a request for a destination. Only
/// protected connections carry it.
pub(crate) fn tunnel(fields: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let metadata = RequestMetadata {
        code: None,
        hints: fields,
    };
    metadata.encode(TUNNEL, &mut out);
    out
}

/// Reads the server's answers to [`sign_in`] and [`request`].
#[derive(Debug, Default)]
pub struct ClientHandshake {
    stage: Stage,
    message: MessageBuffer,
    /// True if TLS has authenticated this box, so that it sends no password.
    authenticated: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Method,
    Auth,
    Reply,
}

/// The progress of a handshake after some input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStep {
    /// All input was consumed, and more is needed.
    More,
    /// The destination is connected. The following bytes of the stream are its data.
    Connected,
    /// The destination is not connected, for this reason.
    Failed(ClientError),
}

/// The reason why a destination is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientError {
    /// The server accepts none of the authentication methods that the box offers.
    MethodRefused,
    /// The server does not accept the password: unknown key, wrong signature or wrong time.
    AuthRefused,
    /// The server's reply to the request.
    Refused(Reply),
    /// The peer is not a SOCKS5 server.
    Garbage,
}

impl ClientHandshake {
    /// Creates the handshake of a box that TLS has `authenticated`, or that sends a password otherwise.
    pub fn new(authenticated: bool) -> Self {
        ClientHandshake {
            authenticated,
            ..ClientHandshake::default()
        }
    }

    /// Returns whether the box is signed in and no byte of the reply to the request was read.
    pub fn is_signed_in(&self) -> bool {
        self.stage == Stage::Reply && self.message.is_empty()
    }

    /// Processes bytes of the server. Returns the number of bytes consumed, and the progress. Bytes after the
    /// reply are not consumed, because they are the destination's.
    pub fn input(&mut self, input: &[u8]) -> (usize, ClientStep) {
        let mut taken = 0;
        loop {
            let stage = self.stage;
            let (n, complete) = self.message.take(&input[taken..], |m| match stage {
                Stage::Method | Stage::Auth => 2,
                Stage::Reply => match m {
                    [_, _, _, atyp, rest @ ..] => 4 + address_length(*atyp, rest).unwrap_or(0),
                    _ => 4,
                },
            });
            taken += n;
            if !complete {
                return (taken, ClientStep::More);
            }
            let message = self.message.clear();
            let failed = |e| (taken, ClientStep::Failed(e));
            self.stage = match (stage, message.as_slice()) {
                (Stage::Method, [VERSION, METHOD_PASSWORD]) if !self.authenticated => Stage::Auth,
                (Stage::Method, [VERSION, METHOD_NONE]) if self.authenticated => Stage::Reply,
                (Stage::Method, [VERSION, _]) => return failed(ClientError::MethodRefused),
                (Stage::Auth, [AUTH_VERSION, 0]) => Stage::Reply,
                (Stage::Auth, [AUTH_VERSION, _]) => return failed(ClientError::AuthRefused),
                // A message of 4 bytes has an unknown address type, so its end is unknown too.
                (Stage::Reply, [VERSION, 0, _, _, ..]) if message.len() > 4 => {
                    return (taken, ClientStep::Connected);
                }
                (Stage::Reply, [VERSION, code, ..]) if *code != 0 => {
                    return failed(ClientError::Refused(Reply::from_code(*code)));
                }
                _ => return failed(ClientError::Garbage),
            };
        }
    }
}
