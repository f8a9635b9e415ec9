//! `braid key`: the keys of boxes, servers and clients.

use std::io::ErrorKind;
use std::path::Path;

use braid_secure::keys::PrivateKey;

use crate::cli::Key;
use crate::failure::Failure;
use crate::print::{print, print_json};

/// Creates or reads a private key, and prints its public key.
pub fn run(command: &Key, json: bool) -> Result<(), Failure> {
    let key = match command {
        Key::New { file } => create(file)?,
        Key::Show { file } => PrivateKey::read(file).map_err(Failure::Usage)?,
    };
    let public = key.public().to_string();
    match json {
        true => print_json(&public),
        false => print(format!("{public}\n")),
    }
}

/// Creates a private key in a new file.
fn create(path: &Path) -> Result<PrivateKey, Failure> {
    let seed = braid_linux::random()
        .map_err(|e| Failure::run("cannot get random bytes from the kernel", e))?;
    let key = PrivateKey::generate(seed);
    let file = path.display();
    match key.create(path) {
        Ok(()) => Ok(key),
        // Peers know a box or server by its key alone, so an overwritten key would lock it out.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(Failure::Usage(format!(
            "{file} exists, and an existing key is never overwritten; name another file"
        ))),
        Err(e) => Err(Failure::Usage(format!("cannot write a key to {file}: {e}"))),
    }
}
