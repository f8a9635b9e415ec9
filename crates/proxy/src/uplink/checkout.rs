//! A connection to a server, checked out for a user, up to the request.

use core::time::Duration;

use braid_engine::{ApiError, ConnectOptions, Event, PathId, Stack};
use braid_secure::auth::SignIn;
use braid_secure::channel::Channel;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_wire::Instant;

use super::servers::Servers;
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{self, ClientHandshake, Destination, RequestMetadata};

/// Longest life of a connection that serves further users. Somebody who reads the memory of an end obtains the
/// keys of its open connections, and so their recorded traffic; the limit bounds that traffic.
const MAX_CONN_LIFE: Duration = Duration::from_secs(600);

/// A connection to a server, on which a box signs in as soon as its handshake ends.
#[derive(Debug)]
pub(crate) struct Checkout {
    pub(crate) channel: Channel,
    /// Index of the server in the configuration.
    pub(crate) server: usize,
    /// Path of the initial subflow.
    pub(crate) path: PathId,
    /// The password, where the connection itself does not prove who this box is.
    pub(crate) sign_in: Option<SignIn>,
    /// For an idle connection, the reader of the server's answers, which has read all but the answer to the
    /// request.
    pub(crate) handshake: Option<Box<ClientHandshake>>,
    pub(crate) history: ConnHistory,
}

/// The history of a connection, across its users.
#[derive(Debug)]
pub(crate) struct ConnHistory {
    opened_at: Instant,
    /// Paths that have a subflow.
    joined: Vec<PathId>,
    /// The connection is regular TCP, on a single path.
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

    /// Returns whether the connection may serve a further user.
    pub(super) fn is_good(&self, now: Instant) -> bool {
        !self.fell_back && now < self.good_until()
    }

    /// Returns the time after which the connection serves no further user.
    pub(super) fn good_until(&self) -> Instant {
        self.opened_at + MAX_CONN_LIFE
    }

    /// Updates the history by an event of the engine.
    pub(crate) fn on_event(&mut self, event: &Event) {
        match *event {
            Event::SubflowEstablished { path, .. } => {
                self.joined.retain(|p| *p != path);
                self.joined.push(path);
            }
            Event::SubflowClosed { path, .. } => self.joined.retain(|p| *p != path),
            Event::FellBack { .. } => self.fell_back = true,
            _ => {}
        }
    }

    /// Returns whether the connection is regular TCP.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Returns the paths that have a subflow.
    pub(super) fn joined(&self) -> &[PathId] {
        &self.joined
    }

    /// Returns the number of subflows.
    pub(super) fn subflows(&self) -> usize {
        self.joined.len()
    }
}

impl Servers {
    /// Opens a connection to a server over a path, and writes the greeting and, in plaintext, the password.
    pub(super) fn sign_in_over(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<Checkout, ApiError> {
        let (channel, sign_in) = self.channel((now, server), options, stack)?;
        let keys = (&self.key, self.entries[server].key);
        let words = greeting(keys, sign_in.as_ref());
        let mut checkout = Checkout {
            channel,
            server,
            path,
            sign_in,
            handshake: None,
            history: ConnHistory::new(now),
        };
        if let Err(error) = checkout.channel.write_all(now, stack, &words) {
            checkout.channel.abort(now, stack);
            return Err(error);
        }
        Ok(checkout)
    }
}

/// Returns the greeting and, where needed, the password of the user with `key` at the server with the key
/// `server`.
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

/// Writes a request with its hints.
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
