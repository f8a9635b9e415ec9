//! The server's end.

use super::message::{
    AUTH_VERSION, CMD_CONNECT, Destination, Gather, METHOD_NONE, METHOD_PASSWORD, NO_METHOD, NOTE,
    NOTE_HEAD, Note, PROBE, Reply, VERSION, address_length,
};

/// Reads a client's greeting, password, note and request.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    stage: Stage,
    message: Gather,
    /// Waits for its request.
    note: Option<Note>,
    clients: Clients,
}

/// Who comes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// Whoever has a password.
    #[default]
    Unknown,
    /// Whoever is in this network.
    Welcome,
    /// One that has proved who it is.
    Proven,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Auth,
    /// A note or the request.
    Request,
    /// The request, after its note.
    Noted,
    Over,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where it wants to go.
    pub destination: Destination,
    /// What it says of itself; a box's.
    pub note: Option<Note>,
}

/// What the caller is to do after some input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerStep {
    /// Nothing; all input was taken.
    More,
    /// Send these bytes and go on.
    Send([u8; 2]),
    /// Check these; go on after [`ServerHandshake::accepted`], or send
    /// [`ServerHandshake::REFUSED`] and close.
    Credentials {
        /// 1 to 255 bytes; less where [any will do](ServerHandshake::open).
        user: Vec<u8>,
        /// 1 to 255 bytes; less where [any will do](ServerHandshake::open).
        password: Vec<u8>,
    },
    /// Connect there and answer by [`Reply::encode`]; what follows in the stream is for the
    /// destination, after a [`Foreword`](super::Foreword) where there is a note.
    Request(Request),
    /// Answer a probe, and close.
    Probe(Note),
    /// Send the bytes, if any, and close.
    Failed(ServerError),
}

/// What was wrong with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerError {
    /// Not SOCKS5, or malformed.
    Garbage,
    /// The client does not offer user/password in clear, or no authentication where it is known.
    NoMethod,
    /// Not CONNECT.
    Command,
    /// An address type nobody knows.
    AddressType,
    /// A name that is none.
    Name,
}

impl ServerError {
    /// What to send before closing.
    pub fn reply(self) -> Vec<u8> {
        match self {
            // To something that speaks another protocol an answer would be noise.
            ServerError::Garbage => Vec::new(),
            ServerError::NoMethod => vec![VERSION, NO_METHOD],
            ServerError::Command => Reply::CommandNotSupported.encode().to_vec(),
            ServerError::AddressType => Reply::AddressTypeNotSupported.encode().to_vec(),
            ServerError::Name => Reply::GeneralFailure.encode().to_vec(),
        }
    }
}

impl ServerHandshake {
    /// Answer to credentials that are right.
    pub const ACCEPTED: [u8; 2] = [AUTH_VERSION, 0];
    /// Answer to credentials that are wrong; the connection is to be closed (RFC 1929).
    pub const REFUSED: [u8; 2] = [AUTH_VERSION, 1];

    /// With clients of a network that is trusted: any user and password will do, or none.
    pub fn open() -> Self {
        ServerHandshake {
            clients: Clients::Welcome,
            ..ServerHandshake::default()
        }
    }

    /// With a box that has proved who it is: there is no password, and notes have no code.
    pub fn proven() -> Self {
        ServerHandshake {
            clients: Clients::Proven,
            ..ServerHandshake::default()
        }
    }

    /// What a client hears that has proved who it is, before its first request and before each further one.
    pub const READY: [u8; 2] = [VERSION, METHOD_NONE];

    /// With one that has signed in before: its next request is awaited.
    pub fn signed_in() -> Self {
        ServerHandshake {
            stage: Stage::Request,
            ..ServerHandshake::proven()
        }
    }

    /// The credentials are right: goes on to the request. The caller sends
    /// [`ACCEPTED`](Self::ACCEPTED).
    pub fn accepted(&mut self) {
        if self.stage == Stage::Over {
            self.stage = Stage::Request;
        }
    }

    /// Whether a client signed in and has not begun its request.
    pub fn awaits_request(&self) -> bool {
        self.stage == Stage::Request && self.message.is_empty()
    }

    /// Takes bytes of the client, up to the next step; says how many it took.
    pub fn input(&mut self, input: &[u8]) -> (usize, ServerStep) {
        let coded = self.clients != Clients::Proven;
        let mut taken = 0;
        loop {
            let stage = self.stage;
            if stage == Stage::Over {
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
            self.stage = Stage::Over;
            let step = match stage {
                Stage::Greeting => self.greeting(&message),
                Stage::Auth => auth(&message, self.clients == Clients::Welcome),
                Stage::Request if message.first() == Some(&NOTE) => {
                    let body = message.get(NOTE_HEAD..);
                    self.note = body.and_then(|body| Note::decode(body, coded));
                    if self.note.is_some() {
                        self.stage = Stage::Noted;
                        continue;
                    }
                    ServerStep::Failed(ServerError::Garbage)
                }
                Stage::Request if message.first() == Some(&PROBE) => {
                    let body = message.get(NOTE_HEAD..);
                    match body.and_then(|body| Note::decode(body, coded)) {
                        Some(note) => ServerStep::Probe(note),
                        None => ServerStep::Failed(ServerError::Garbage),
                    }
                }
                Stage::Request | Stage::Noted => self.request(&message),
                Stage::Over => ServerStep::More,
            };
            return (taken, step);
        }
    }

    fn greeting(&mut self, message: &[u8]) -> ServerStep {
        match message {
            [VERSION, _, methods @ ..]
                if methods.contains(&METHOD_PASSWORD) && self.clients != Clients::Proven =>
            {
                self.stage = Stage::Auth;
                ServerStep::Send([VERSION, METHOD_PASSWORD])
            }
            [VERSION, _, methods @ ..]
                if self.clients != Clients::Unknown && methods.contains(&METHOD_NONE) =>
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
                let note = self.note.take();
                ServerStep::Request(Request { destination, note })
            }
            [VERSION, _, _, _] => ServerStep::Failed(ServerError::Command),
            _ => ServerStep::Failed(ServerError::Garbage),
        }
    }
}

/// Length of the message that starts with `m`; a message whose first byte is wrong already ends
/// there, so that garbage is not waited for.
fn length((stage, coded): (Stage, bool), m: &[u8]) -> usize {
    match (stage, m) {
        (_, []) => 1,
        (Stage::Greeting, [VERSION, n, ..]) => 2 + usize::from(*n),
        (Stage::Greeting, [VERSION]) | (Stage::Auth, [AUTH_VERSION]) => 2,
        (Stage::Auth, [AUTH_VERSION, user, rest @ ..]) => {
            let user = usize::from(*user);
            3 + user + rest.get(user).map_or(0, |p| usize::from(*p))
        }
        (Stage::Request | Stage::Noted, [VERSION, CMD_CONNECT, _, atyp, rest @ ..]) => {
            4 + address_length(*atyp, rest).unwrap_or(0)
        }
        (Stage::Request | Stage::Noted, [VERSION, ..]) => 4,
        (Stage::Request, [NOTE | PROBE, a, b, ..]) => {
            NOTE_HEAD + Note::length([*a, *b], coded).unwrap_or(0)
        }
        (Stage::Request, [NOTE | PROBE, ..]) => NOTE_HEAD,
        _ => 1,
    }
}

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
