//! `braid password`: for programs that speak SOCKS5 to a server without a box.

use std::fs::File;
use std::io::Read;
use std::time::SystemTime;

use braid_proxy::auth;
use braid_proxy::config::{Secret, read_secret};

use super::print::{print, print_json};
use crate::cli::PasswordArgs;
use crate::failure::Failure;
use crate::kernel_peer::hex;

/// Prints a password that is good for one connection.
pub fn run(args: &PasswordArgs, json: bool) -> Result<(), Failure> {
    let secret = secret(args)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_err(|e| Failure::run("the clock of this machine is wrong", e))?;
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut nonce = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    let user = args.user.as_bytes();
    let password = hex(&auth::password(
        &secret,
        user,
        &args.destination,
        now_ms,
        nonce,
    ));
    match json {
        true => print_json(&password),
        false => print(format!("{password}\n")),
    }
}

fn secret(args: &PasswordArgs) -> Result<Secret, Failure> {
    let file = args.secret_file.display();
    let text = read_secret(&args.secret_file).map_err(Failure::Usage)?;
    Secret::new(&text).map_err(|e| Failure::Usage(format!("{file}: {e}")))
}
