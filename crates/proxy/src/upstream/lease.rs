//! A connection to a server, up to its request.

use braid_engine::{ApiError, PathId, Stack};
use braid_wire::Instant;

use crate::auth::SignIn;
use crate::channel::Channel;
use crate::hints::FlowHints;
use crate::keys::{PrivateKey, PublicKey};
use crate::socks::{self, ClientHandshake, Destination, Note};

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
}

/// Writes greeting and, in clear, the password of the user with this key, at the server with that one.
pub(super) fn sign_in(
    now: Instant,
    lease: &mut Lease,
    keys: (&PrivateKey, PublicKey),
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let words = greeting(keys, lease.sign_in.as_ref());
    lease.channel.write_all(now, stack, &words)
}

/// Greeting and password, where there is one.
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

/// Writes the one request that may follow, with its hints.
pub(super) fn request(
    (now, channel): (Instant, &mut Channel),
    (key, server): (&PrivateKey, PublicKey),
    sign_in: Option<&SignIn>,
    (destination, hints): (&Destination, &FlowHints),
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let hints = hints.encode();
    let code = sign_in.map(|sign_in| sign_in.request(key, server, destination, &hints));
    let request = socks::request(Some(&Note { code, hints }), destination);
    channel.write_all(now, stack, &request)
}
