//! Checks of the private key's file, and of the files beside it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use braid_proxy::config::Finding;
use braid_secure::keys::PrivateKey;
use rustix::process::getegid;

/// Entries of the directory that are looked at, so that a large directory does not delay the check.
const MAX_DIR_ENTRIES: usize = 256;
/// Longest file that can be a key, bytes.
const MAX_KEY_FILE_BYTES: u64 = 128;

/// Finds a key that others may read. With `already_logged`, a key that everybody may read is left out, because
/// reading the file has already warned of it.
pub(super) fn mode(path: &Path, already_logged: bool) -> Option<Finding> {
    let file = fs::metadata(path).ok()?;
    let mode = file.mode();
    let by_others = mode & 0o007 != 0;
    let by_group = mode & 0o060 != 0 && file.gid() != 0 && file.gid() != getegid().as_raw();
    let whom = match (by_others, by_group) {
        (true, _) if already_logged => return None,
        (true, _) => "every user of this machine",
        (false, true) => "a group of users of this machine",
        (false, false) => return None,
    };
    let message = format!(
        "{} has mode {:o} instead of 600: {whom} may read or write the key, and anybody who has the key can \
         pose as this box or server",
        path.display(),
        mode & 0o777
    );
    let remedy = format!(
        "chmod 600 {}; make a new key if somebody may have read this one",
        path.display()
    );
    Some(Finding::warning(("key.mode", "key_file"), message, remedy))
}

/// Finds a public key in the place of the private one, if the private one lies beside it.
pub(super) fn swapped(path: &Path, key: &PrivateKey) -> Option<Finding> {
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty());
    let files = fs::read_dir(directory.unwrap_or(Path::new("."))).ok()?;
    for entry in files.take(MAX_DIR_ENTRIES).flatten() {
        let is_small = |m: fs::Metadata| m.is_file() && m.len() <= MAX_KEY_FILE_BYTES;
        if !entry.metadata().is_ok_and(is_small) {
            continue;
        }
        let text = zeroize::Zeroizing::new(fs::read_to_string(entry.path()).unwrap_or_default());
        let Ok(other) = PrivateKey::from_text(&text) else {
            continue;
        };
        if key.has_text_of(&other.public()) {
            let message = format!(
                "{} holds a public key, that of the private key in {}: with it every connection is refused",
                path.display(),
                entry.path().display()
            );
            let remedy = format!("write key_file = {:?}", entry.file_name().to_string_lossy());
            return Some(Finding::failure(
                ("key.private", "key_file"),
                message,
                remedy,
            ));
        }
    }
    None
}
