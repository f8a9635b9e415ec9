//! The box's end.

use super::message::{
    AUTH_VERSION, CMD_CONNECT, Destination, Gather, METHOD_NONE, METHOD_PASSWORD, NOTE, Note,
    PROBE, Reply, VERSION, address_length,
};

/// Greeting and password in one piece. `user` and `password` are cut at 255 bytes (RFC 1929 has no
/// room for more).
pub fn sign_in(user: &[u8], password: &[u8]) -> Vec<u8> {
    let mut out = vec![VERSION, 1, METHOD_PASSWORD, AUTH_VERSION];
    for field in [user, password] {
        let len = u8::try_from(field.len()).unwrap_or(u8::MAX);
        out.push(len);
        out.extend_from_slice(&field[..usize::from(len)]);
    }
    out
}

/// Greeting of a box that has proved who it is.
pub const GREETING: [u8; 3] = [VERSION, 1, METHOD_NONE];

/// The request for `destination`, behind its note if it has one; the user's first bytes may follow
/// at once, with a note behind a [`foreword`](super::foreword).
pub fn request(note: Option<&Note>, destination: &Destination) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    if let Some(note) = note {
        note.encode(NOTE, &mut out);
    }
    out.extend_from_slice(&[VERSION, CMD_CONNECT, 0]);
    destination.encode(&mut out);
    out
}

/// Asks for a probe in place of a destination.
pub fn probe(note: &Note) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    note.encode(PROBE, &mut out);
    out
}

/// Reads the server's answers to [`sign_in`] and [`request`].
#[derive(Debug, Default)]
pub struct ClientHandshake {
    stage: Stage,
    message: Gather,
    /// There is no password: the connection says who this is.
    proven: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Method,
    Auth,
    Reply,
}

/// Where a handshake stands after some input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStep {
    /// All input was taken; more is needed.
    More,
    /// The destination is connected; what follows in the stream is its data.
    Connected,
    /// It will not be.
    Failed(ClientError),
}

/// Why a destination is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientError {
    /// The server wants another authentication method.
    MethodRefused,
    /// Unknown key, wrong signature or wrong time.
    AuthRefused,
    /// The server's reply.
    Refused(Reply),
    /// This is no SOCKS5 server.
    Garbage,
}

impl ClientHandshake {
    /// Of a box that has `proven` who it is by its key, or else does so by its password.
    pub fn new(proven: bool) -> Self {
        ClientHandshake {
            proven,
            ..ClientHandshake::default()
        }
    }

    /// Whether the password was accepted, and nothing of the answer to the request was taken.
    pub fn is_signed_in(&self) -> bool {
        self.stage == Stage::Reply && self.message.is_empty()
    }

    /// Takes bytes of the server; says how many it took and where that leads. Bytes after the
    /// reply are left alone.
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
                (Stage::Method, [VERSION, METHOD_PASSWORD]) if !self.proven => Stage::Auth,
                (Stage::Method, [VERSION, METHOD_NONE]) if self.proven => Stage::Reply,
                (Stage::Method, [VERSION, _]) => return failed(ClientError::MethodRefused),
                (Stage::Auth, [AUTH_VERSION, 0]) => Stage::Reply,
                (Stage::Auth, [AUTH_VERSION, _]) => return failed(ClientError::AuthRefused),
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
