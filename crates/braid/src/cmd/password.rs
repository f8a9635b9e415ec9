//! `braid password`, for programs that speak SOCKS5 to a server without a box.

use std::time::SystemTime;

use braid_secure::auth;
use braid_secure::keys::PrivateKey;
use serde::Serialize;

use crate::cli::PasswordArgs;
use crate::failure::Failure;
use crate::print::{print, print_json};

/// The user name and password of a SOCKS5 handshake (RFC 1929).
#[derive(Serialize)]
struct Credentials {
    user: String,
    password: String,
}

/// Prints the user name and the password for one connection.
pub fn run(args: &PasswordArgs, json: bool) -> Result<(), Failure> {
    let key = PrivateKey::read(&args.key).map_err(Failure::Usage)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now =
        now.map_err(|e| Failure::run("the clock of this machine is before 1970; set it", e))?;
    // The time limits when the server accepts the password. The nonce makes the server accept it only once.
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let nonce = braid_linux::random()
        .map_err(|e| Failure::run("cannot get random bytes from the kernel", e))?;
    let (server, destination) = (args.server_key, args.destination.to_bytes());
    let password = auth::password(&key, server, &destination, now_ms, nonce);
    let credentials = Credentials {
        user: key.public().to_string(),
        password: auth::to_text(&password),
    };
    match json {
        true => print_json(&credentials),
        // The form of curl's option `--proxy-user`.
        false => print(format!("{}:{}\n", credentials.user, credentials.password)),
    }
}
