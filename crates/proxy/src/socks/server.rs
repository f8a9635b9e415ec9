//! The server's end.

use super::message::{
    AUTH_VERSION, CMD_CONNECT, Destination, Gather, METHOD_NONE, METHOD_PASSWORD, Reply, VERSION,
    address_length,
};

/// Reads a client's greeting, password and request.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    stage: Stage,
    message: Gather,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Auth,
    Request,
    Over,
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
        /// 1 to 255 bytes.
        user: Vec<u8>,
        /// 1 to 255 bytes.
        password: Vec<u8>,
    },
    /// Connect there and answer by [`Reply::encode`]; what follows in the stream is for the
    /// destination.
    Request(Destination),
    /// Send the bytes, if any, and close.
    Failed(ServerError),
}

/// What was wrong with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerError {
    /// Not SOCKS5, or malformed.
    Garbage,
    /// The client does not offer user/password.
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
            ServerError::NoMethod => vec![VERSION, METHOD_NONE],
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

    /// The credentials are right: goes on to the request. The caller sends
    /// [`ACCEPTED`](Self::ACCEPTED).
    pub fn accepted(&mut self) {
        if self.stage == Stage::Over {
            self.stage = Stage::Request;
        }
    }

    /// Takes bytes of the client, up to the next step; says how many it took.
    pub fn input(&mut self, input: &[u8]) -> (usize, ServerStep) {
        let stage = self.stage;
        if stage == Stage::Over {
            return (0, ServerStep::More);
        }
        let (taken, complete) = self.message.take(input, |m| length(stage, m));
        if !complete {
            return (taken, ServerStep::More);
        }
        let message = self.message.clear();
        self.stage = Stage::Over;
        let step = match stage {
            Stage::Greeting => self.greeting(&message),
            Stage::Auth => auth(&message),
            Stage::Request => request(&message),
            Stage::Over => ServerStep::More,
        };
        (taken, step)
    }

    fn greeting(&mut self, message: &[u8]) -> ServerStep {
        match message {
            [VERSION, _, methods @ ..] if methods.contains(&METHOD_PASSWORD) => {
                self.stage = Stage::Auth;
                ServerStep::Send([VERSION, METHOD_PASSWORD])
            }
            [VERSION, n, _, ..] if *n > 0 => ServerStep::Failed(ServerError::NoMethod),
            _ => ServerStep::Failed(ServerError::Garbage),
        }
    }
}

/// Length of the message that starts with `m`; a message whose first byte is wrong already ends
/// there, so that garbage is not waited for.
fn length(stage: Stage, m: &[u8]) -> usize {
    match (stage, m) {
        (_, []) => 1,
        (Stage::Greeting, [VERSION, n, ..]) => 2 + usize::from(*n),
        (Stage::Greeting, [VERSION]) | (Stage::Auth, [AUTH_VERSION]) => 2,
        (Stage::Auth, [AUTH_VERSION, user, rest @ ..]) => {
            let user = usize::from(*user);
            3 + user + rest.get(user).map_or(0, |p| usize::from(*p))
        }
        (Stage::Request, [VERSION, CMD_CONNECT, _, atyp, rest @ ..]) => {
            4 + address_length(*atyp, rest).unwrap_or(0)
        }
        (Stage::Request, [VERSION, ..]) => 4,
        _ => 1,
    }
}

fn auth(message: &[u8]) -> ServerStep {
    let fields = message.split_first_chunk::<2>().and_then(|(head, rest)| {
        let [AUTH_VERSION, n] = *head else {
            return None;
        };
        let (user, password) = rest.split_at_checked(usize::from(n))?;
        Some((user, password.get(1..)?))
    });
    match fields {
        Some((user, password)) if !user.is_empty() && !password.is_empty() => {
            ServerStep::Credentials {
                user: user.to_vec(),
                password: password.to_vec(),
            }
        }
        _ => ServerStep::Failed(ServerError::Garbage),
    }
}

fn request(message: &[u8]) -> ServerStep {
    match message {
        [VERSION, CMD_CONNECT, _, atyp, body @ ..] => {
            if address_length(*atyp, body).is_none() {
                return ServerStep::Failed(ServerError::AddressType);
            }
            match Destination::decode(*atyp, body) {
                Some(destination) => ServerStep::Request(destination),
                None => ServerStep::Failed(ServerError::Name),
            }
        }
        [VERSION, _, _, _] => ServerStep::Failed(ServerError::Command),
        _ => ServerStep::Failed(ServerError::Garbage),
    }
}
