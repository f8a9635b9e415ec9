//! The server's end of the SOCKS5 handshake. A box uses it too, for SOCKS5 clients in its LAN.

use super::message::{
    AUTH_VERSION, CMD_CONNECT, Destination, METADATA, METADATA_HEAD_LEN, METHOD_NONE,
    METHOD_PASSWORD, MessageBuffer, NO_METHOD, PROBE, Reply, RequestMetadata, TUNNEL, VERSION,
    address_length,
};

/// Decodes a client's greeting, password, metadata and request.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    stage: Stage,
    message: MessageBuffer,
    /// Metadata that has come, until its request comes.
    metadata: Option<RequestMetadata>,
    clients: Clients,
}

/// The clients that may connect.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// Clients that sign in by a password.
    #[default]
    WithPassword,
    /// Any client of a trusted network, with or without a password.
    AnyOfNetwork,
    /// A box that TLS has authenticated by its key.
    Authenticated,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Auth,
    /// Metadata or the request.
    Request,
    /// The request, after its metadata.
    AfterMetadata,
    /// No further message is read, unless the caller accepts the credentials.
    Ended,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The requested destination.
    pub destination: Destination,
    /// The metadata, which only boxes send.
    pub metadata: Option<RequestMetadata>,
}

/// The next action of the caller after some input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerStep {
    /// Read more; all input was consumed.
    More,
    /// Send these bytes and continue.
    Send([u8; 2]),
    /// Check these credentials. If they are valid, call [`ServerHandshake::accepted`] and continue. Otherwise send
    /// [`ServerHandshake::REFUSED`] and close.
    Credentials {
        /// 1 to 255 bytes; may be empty if [any client may connect](ServerHandshake::anonymous).
        user: Vec<u8>,
        /// 1 to 255 bytes; may be empty if [any client may connect](ServerHandshake::anonymous).
        password: Vec<u8>,
    },
    /// Connect to the destination and answer by [`Reply::encode`]. The following bytes of the stream are for the
    /// destination. If the request has metadata, [`EarlyHints`](super::EarlyHints) come before them.
    Request(Request),
    /// Answer a probe, and close.
    Probe(RequestMetadata),
    /// Answer a request for a tunnel with these fields, and close. Only a box that TLS has authenticated sends one.
    Tunnel(Vec<u8>),
    /// Send the bytes of [`ServerError::reply`], if any, and close.
    Failed(ServerError),
}

/// The error of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerError {
    /// The input is not SOCKS5, or is malformed.
    Garbage,
    /// The client does not offer the authentication method that this end needs: user and password in plaintext,
    /// or no authentication on a protected connection.
    NoMethod,
    /// The command is not CONNECT.
    Command,
    /// The address type is unknown.
    AddressType,
    /// The destination's name is invalid.
    Name,
}

impl ServerError {
    /// Returns the bytes to send before closing.
    pub fn reply(self) -> Vec<u8> {
        match self {
            // A peer of another protocol would not understand an answer.
            ServerError::Garbage => Vec::new(),
            ServerError::NoMethod => vec![VERSION, NO_METHOD],
            ServerError::Command => Reply::CommandNotSupported.encode().to_vec(),
            ServerError::AddressType => Reply::AddressTypeNotSupported.encode().to_vec(),
            ServerError::Name => Reply::GeneralFailure.encode().to_vec(),
        }
    }
}

impl ServerHandshake {
    /// The answer to valid credentials.
    pub const ACCEPTED: [u8; 2] = [AUTH_VERSION, 0];
    /// The answer to invalid credentials; the connection must then be closed (RFC 1929 section 2).
    pub const REFUSED: [u8; 2] = [AUTH_VERSION, 1];

    /// Creates a handshake for clients of a trusted network, which need no password and may send any.
    pub fn anonymous() -> Self {
        ServerHandshake {
            clients: Clients::AnyOfNetwork,
            ..ServerHandshake::default()
        }
    }

    /// Creates a handshake for a box that TLS has authenticated. The box sends no password, and its metadata has
    /// no code.
    pub fn authenticated() -> Self {
        ServerHandshake {
            clients: Clients::Authenticated,
            ..ServerHandshake::default()
        }
    }

    /// The message that permits a box without a password to send its first request, and each further request.
    pub const READY: [u8; 2] = [VERSION, METHOD_NONE];

    /// Creates a handshake that expects the next request of a box that has signed in before.
    pub fn signed_in() -> Self {
        ServerHandshake {
            stage: Stage::Request,
            ..ServerHandshake::authenticated()
        }
    }

    /// Continues to the request after valid credentials. The caller sends [`ACCEPTED`](Self::ACCEPTED).
    pub fn accepted(&mut self) {
        if self.stage == Stage::Ended {
            self.stage = Stage::Request;
        }
    }

    /// Returns whether a client has signed in and no byte of its request was read.
    pub fn awaits_request(&self) -> bool {
        self.stage == Stage::Request && self.message.is_empty()
    }

    /// Processes bytes of the client, up to the next step. Returns the number of bytes consumed, and the step.
    pub fn input(&mut self, input: &[u8]) -> (usize, ServerStep) {
        let coded = self.clients != Clients::Authenticated;
        let mut taken = 0;
        loop {
            let stage = self.stage;
            if stage == Stage::Ended {
                return (taken, ServerStep::More);
            }
            let (n, complete) = self
                .message
                .take(&input[taken..], |m| length((stage, coded), m));
            taken += n;
            if !complete {
                return (taken, ServerStep::More);
            }
            let message = self.message.clear();
            // The message sets the next stage, if it is valid.
            self.stage = Stage::Ended;
            let step = match stage {
                Stage::Greeting => self.greeting(&message),
                Stage::Auth => auth(&message, self.clients == Clients::AnyOfNetwork),
                Stage::Request if message.first() == Some(&METADATA) => {
                    let body = message.get(METADATA_HEAD_LEN..);
                    self.metadata = body.and_then(|body| RequestMetadata::decode(body, coded));
                    if self.metadata.is_some() {
                        self.stage = Stage::AfterMetadata;
                        continue;
                    }
                    ServerStep::Failed(ServerError::Garbage)
                }
                Stage::Request if message.first() == Some(&PROBE) => {
                    let body = message.get(METADATA_HEAD_LEN..);
                    match body.and_then(|body| RequestMetadata::decode(body, coded)) {
                        Some(metadata) => ServerStep::Probe(metadata),
                        None => ServerStep::Failed(ServerError::Garbage),
                    }
                }
                Stage::Request if message.first() == Some(&TUNNEL) && !coded => {
                    let body = message.get(METADATA_HEAD_LEN..);
                    match body.and_then(|body| RequestMetadata::decode(body, coded)) {
                        Some(metadata) => ServerStep::Tunnel(metadata.hints),
                        None => ServerStep::Failed(ServerError::Garbage),
                    }
                }
                Stage::Request | Stage::AfterMetadata => self.request(&message),
                Stage::Ended => ServerStep::More,
            };
            return (taken, step);
        }
    }

    /// Chooses the authentication method. A client of the LAN that offers a password is asked for it, because the
    /// user name can carry hints.
    fn greeting(&mut self, message: &[u8]) -> ServerStep {
        match message {
            [VERSION, _, methods @ ..]
                if methods.contains(&METHOD_PASSWORD) && self.clients != Clients::Authenticated =>
            {
                self.stage = Stage::Auth;
                ServerStep::Send([VERSION, METHOD_PASSWORD])
            }
            [VERSION, _, methods @ ..]
                if self.clients != Clients::WithPassword && methods.contains(&METHOD_NONE) =>
            {
                self.stage = Stage::Request;
                ServerStep::Send(Self::READY)
            }
            [VERSION, n, _, ..] if *n > 0 => ServerStep::Failed(ServerError::NoMethod),
            _ => ServerStep::Failed(ServerError::Garbage),
        }
    }

    fn request(&mut self, message: &[u8]) -> ServerStep {
        match message {
            [VERSION, CMD_CONNECT, _, atyp, body @ ..] => {
                if address_length(*atyp, body).is_none() {
                    return ServerStep::Failed(ServerError::AddressType);
                }
                let Some(destination) = Destination::decode(*atyp, body) else {
                    return ServerStep::Failed(ServerError::Name);
                };
                let metadata = self.metadata.take();
                ServerStep::Request(Request {
                    destination,
                    metadata,
                })
            }
            // `length` ends a message with another command before the address.
            [VERSION, _, _, _] => ServerStep::Failed(ServerError::Command),
            _ => ServerStep::Failed(ServerError::Garbage),
        }
    }
}

/// Returns the length of the message that starts with `m`, or a lower bound, as [`MessageBuffer::take`] needs it.
/// A message with a wrong first byte has length 1, so that it is refused without a wait for more bytes.
fn length((stage, coded): (Stage, bool), m: &[u8]) -> usize {
    match (stage, m) {
        (_, []) => 1,
        (Stage::Greeting, [VERSION, n, ..]) => 2 + usize::from(*n),
        (Stage::Greeting, [VERSION]) | (Stage::Auth, [AUTH_VERSION]) => 2,
        (Stage::Auth, [AUTH_VERSION, user, rest @ ..]) => {
            let user = usize::from(*user);
            3 + user + rest.get(user).map_or(0, |p| usize::from(*p))
        }
        (Stage::Request | Stage::AfterMetadata, [VERSION, CMD_CONNECT, _, atyp, rest @ ..]) => {
            4 + address_length(*atyp, rest).unwrap_or(0)
        }
        (Stage::Request | Stage::AfterMetadata, [VERSION, ..]) => 4,
        (Stage::Request, [METADATA | PROBE, a, b, ..]) => {
            METADATA_HEAD_LEN + RequestMetadata::length([*a, *b], coded).unwrap_or(0)
        }
        (Stage::Request, [TUNNEL, a, b, ..]) if !coded => {
            METADATA_HEAD_LEN + RequestMetadata::length([*a, *b], coded).unwrap_or(0)
        }
        (Stage::Request, [TUNNEL, ..]) if !coded => METADATA_HEAD_LEN,
        (Stage::Request, [METADATA | PROBE, ..]) => METADATA_HEAD_LEN,
        _ => 1,
    }
}

/// Decodes user and password (RFC 1929 section 2).
fn auth(message: &[u8], may_be_empty: bool) -> ServerStep {
    let fields = message.split_first_chunk::<2>().and_then(|(head, rest)| {
        let [AUTH_VERSION, n] = *head else {
            return None;
        };
        let (user, password) = rest.split_at_checked(usize::from(n))?;
        Some((user, password.get(1..)?))
    });
    match fields {
        Some((user, password)) if may_be_empty || !user.is_empty() && !password.is_empty() => {
            ServerStep::Credentials {
                user: user.to_vec(),
                password: password.to_vec(),
            }
        }
        _ => ServerStep::Failed(ServerError::Garbage),
    }
}
