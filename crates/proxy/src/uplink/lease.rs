//! A connection to a server, up to a request.

use core::time::Duration;

use braid_engine::{ApiError, ConnectOptions, Event, PathId, Stack};
use braid_secure::auth::SignIn;
use braid_secure::channel::Channel;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_wire::Instant;

use super::servers::Servers;
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{self, ClientHandshake, Destination, Note};

/// Who gets at the memory of an end reads what was recorded of connections that are open: none serves a
/// further user for longer than this after it was opened.
const LIFE: Duration = Duration::from_secs(600);

/// A connection to a server, on which a box signs in as soon as its handshake ends.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) channel: Channel,
    /// Position of the server in the configuration.
    pub(crate) server: usize,
    /// Path of the initial subflow.
    pub(crate) path: PathId,
    /// The password, where nothing else says who this is.
    pub(crate) sign_in: Option<SignIn>,
    /// Of a warm connection, what reads the server's answers; all but that to the request are here.
    pub(crate) answers: Option<Box<ClientHandshake>>,
    pub(crate) past: Past,
}

/// What a connection has been through, whoever used it.
#[derive(Debug)]
pub(crate) struct Past {
    opened_at: Instant,
    /// Paths that have a subflow.
    joined: Vec<PathId>,
    /// It is regular TCP, on one of them.
    fell_back: bool,
}

impl Past {
    pub(super) fn new(opened_at: Instant) -> Self {
        Past {
            opened_at,
            joined: Vec::new(),
            fell_back: false,
        }
    }

    /// Whether it may serve a further user.
    pub(super) fn is_good(&self, now: Instant) -> bool {
        !self.fell_back && now < self.good_until()
    }

    /// When it is too old for one.
    pub(super) fn good_until(&self) -> Instant {
        self.opened_at + LIFE
    }

    /// Follows what the engine says of subflows.
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

    /// Returns whether it is regular TCP.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// The paths that have a subflow.
    pub(super) fn joined(&self) -> &[PathId] {
        &self.joined
    }

    /// How many subflows there are.
    pub(super) fn subflows(&self) -> usize {
        self.joined.len()
    }
}

impl Servers {
    /// Opens a connection to a server over a path, and writes greeting and, in clear, the password.
    pub(super) fn sign_in_over(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<Lease, ApiError> {
        let (channel, sign_in) = self.channel((now, server), options, stack)?;
        let keys = (&self.key, self.entries[server].key);
        let words = greeting(keys, sign_in.as_ref());
        let mut lease = Lease {
            channel,
            server,
            path,
            sign_in,
            answers: None,
            past: Past::new(now),
        };
        if let Err(error) = lease.channel.write_all(now, stack, &words) {
            lease.channel.abort(now, stack);
            return Err(error);
        }
        Ok(lease)
    }
}

/// Returns greeting and, where there is one, the password of the user with this key, at the server with that one.
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

/// Writes a request, with its hints.
pub(super) fn request(
    (now, channel): (Instant, &mut Channel),
    (key, server): (&PrivateKey, PublicKey),
    sign_in: Option<&SignIn>,
    (destination, hints): (&Destination, &FlowHints),
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let hints = hints.encode();
    let code = sign_in.map(|sign_in| sign_in.request(key, server, &destination.to_bytes(), &hints));
    let request = socks::request(Some(&Note { code, hints }), destination);
    channel.write_all(now, stack, &request)
}
