//! A connection to a server, up to its request.

use braid_engine::{ApiError, ConnId, PathId, Stack};
use braid_wire::Instant;

use crate::auth::SignIn;
use crate::config::ServerEntry;
use crate::hints::FlowHints;
use crate::socks::{self, ClientHandshake, Destination, Note};

/// A connection to a server, on which the password leaves with the end of the handshake.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) conn: ConnId,
    /// Position of the server in the configuration.
    pub(crate) server: usize,
    /// Path of the initial subflow.
    pub(crate) path: PathId,
    pub(crate) sign_in: SignIn,
    /// Of a warm connection, what reads the server's answers; all but that to the request are here.
    pub(crate) answers: Option<Box<ClientHandshake>>,
}

/// Writes greeting and password.
pub(super) fn sign_in(
    now: Instant,
    lease: &Lease,
    entry: &ServerEntry,
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let user = entry.user.as_bytes();
    let password = lease.sign_in.password(&entry.secret, user);
    write_all(now, lease.conn, &socks::sign_in(user, &password), stack)
}

/// Writes the one request that may follow, with its hints.
pub(super) fn request(
    (now, conn): (Instant, ConnId),
    entry: &ServerEntry,
    sign_in: &SignIn,
    (destination, hints): (&Destination, &FlowHints),
    stack: &mut Stack,
) -> Result<(), ApiError> {
    let hints = hints.encode();
    let code = sign_in.request(&entry.secret, entry.user.as_bytes(), destination, &hints);
    let request = socks::request(Some(&Note { code, hints }), destination);
    write_all(now, conn, &request, stack)
}

/// Whole or not at all: there is no room only where memory has run out.
pub(super) fn write_all(
    now: Instant,
    conn: ConnId,
    bytes: &[u8],
    stack: &mut Stack,
) -> Result<(), ApiError> {
    match stack.write(now, conn, bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(ApiError::LimitReached),
    }
}
