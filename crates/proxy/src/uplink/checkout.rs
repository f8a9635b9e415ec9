//! Connections to servers that are checked out for users, from opening to the request.

use core::time::Duration;

use braid_engine::{ApiError, ConnectOptions, Event, PathId, Stack};
use braid_secure::auth::SignIn;
use braid_secure::channel::Channel;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_wire::Instant;

use super::servers::Servers;
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{self, ClientHandshake, Destination, RequestMetadata};

/// The maximum age at which a connection may serve a further user. An attacker who reads the memory of box or
/// server gets the keys of its open connections, and can decrypt their recorded traffic. The limit bounds that
/// traffic; its value is a guess.
const MAX_CONN_LIFE: Duration = Duration::from_secs(600);

/// A connection to a server. The greeting, with which the box signs in, is written already.
#[derive(Debug)]
pub(crate) struct Checkout {
    pub(crate) channel: Channel,
    /// Index of the server in the configuration.
    pub(crate) server: usize,
    /// Path of the initial subflow.
    pub(crate) path: PathId,
    /// The password on a plaintext connection; `None` on a protected connection, where TLS authenticates the box.
    pub(crate) sign_in: Option<SignIn>,
    /// On a connection from the idle pool, the reader of the server's answers. The reader has read all answers
    /// that precede the answer to the request.
    pub(crate) handshake: Option<Box<ClientHandshake>>,
    pub(crate) history: ConnHistory,
}

/// The history of a connection, across its users.
#[derive(Debug)]
pub(crate) struct ConnHistory {
    opened_at: Instant,
    /// Paths on which the connection has a subflow.
    joined: Vec<PathId>,
    /// True if the connection has fallen back to regular TCP, on a single path.
    fell_back: bool,
}

impl ConnHistory {
    pub(super) fn new(opened_at: Instant) -> Self {
        ConnHistory {
            opened_at,
            joined: Vec::new(),
            fell_back: false,
        }
    }

    /// Returns whether the connection may serve a further user: it uses Multipath TCP, and is not too old.
    pub(super) fn is_good(&self, now: Instant) -> bool {
        !self.fell_back && now < self.good_until()
    }

    /// Returns the time after which the connection serves no further user.
    pub(super) fn good_until(&self) -> Instant {
        self.opened_at + MAX_CONN_LIFE
    }

    /// Updates the history after an event of the engine.
    pub(crate) fn on_event(&mut self, event: &Event) {
        match *event {
            Event::SubflowEstablished { path, .. } => {
                // A path counts once, even if its subflow was replaced.
                self.joined.retain(|p| *p != path);
                self.joined.push(path);
            }
            Event::SubflowClosed { path, .. } => self.joined.retain(|p| *p != path),
            Event::FellBack { .. } => self.fell_back = true,
            _ => {}
        }
    }

    /// Returns whether the connection has fallen back to regular TCP.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Returns the paths on which the connection has a subflow.
    pub(super) fn joined(&self) -> &[PathId] {
        &self.joined
    }

    /// Returns the number of subflows.
    pub(super) fn subflows(&self) -> usize {
        self.joined.len()
    }
}

impl Servers {
    /// Opens a connection to a server over a path, and writes the greeting (in plaintext with the password).
    pub(super) fn sign_in_over(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<Checkout, ApiError> {
        let (channel, sign_in) = self.channel((now, server), options, stack)?;
        let keys = (&self.key, self.entries[server].key);
        let greeting = greeting(keys, sign_in.as_ref());
        let mut checkout = Checkout {
            channel,
            server,
            path,
            sign_in,
            handshake: None,
            history: ConnHistory::new(now),
        };
        if let Err(error) = checkout.channel.write_all(now, stack, &greeting) {
            checkout.channel.abort(now, stack);
            return Err(error);
        }
        Ok(checkout)
    }
}

/// Returns the greeting. With `sign_in`, it contains the password of the user with the key `key` at the server
/// with the key `server`.
pub(super) fn greeting(
    (key, server): (&PrivateKey, PublicKey),
    sign_in: Option<&SignIn>,
) -> Vec<u8> {
    match sign_in {
        Some(sign_in) => {
            let user = key.public().to_string();
            socks::sign_in(user.as_bytes(), &sign_in.password(key, server))
        }
        None => socks::GREETING.to_vec(),
    }
}

/// Writes a request for `destination` with the flow's hints. On a plaintext connection the request carries a code
/// that authenticates the request, because a plaintext connection does not.
pub(super) fn request(
    (now, channel): (Instant, &mut Channel),
    (key, server): (&PrivateKey, PublicKey),
    sign_in: Option<&SignIn>,
    (destination, hints): (&Destination, &FlowHints),
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let hints = hints.encode();
    let code = sign_in.map(|sign_in| sign_in.request(key, server, &destination.to_bytes(), &hints));
    let request = socks::request(Some(&RequestMetadata { code, hints }), destination);
    channel.write_all(now, stack, &request)
}
