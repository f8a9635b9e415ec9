//! Checks the file of the private key, and looks for the right file if it holds the wrong key.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use braid_proxy::config::Finding;
use braid_secure::keys::PrivateKey;
use rustix::process::getegid;

/// Maximum number of directory entries that are examined, so that a large directory does not delay the check.
/// The number is a guess.
const MAX_DIR_ENTRIES: usize = 256;
/// Maximum length in bytes of a file that is read as a key. A key is shorter.
const MAX_KEY_FILE_BYTES: u64 = 128;

/// Reports a key that other users may read or write. If `already_logged` is true, a key that every user may read
/// is not reported, because reading the file has logged a warning about it.
pub(super) fn mode(path: &Path, already_logged: bool) -> Option<Finding> {
    let file = fs::metadata(path).ok()?;
    let mode = file.mode();
    let by_others = mode & 0o007 != 0;
    // The group of root and the group of this process are not reported.
    let by_group = mode & 0o060 != 0 && file.gid() != 0 && file.gid() != getegid().as_raw();
    let readers = match (by_others, by_group) {
        (true, _) if already_logged => return None,
        (true, _) => "every user of this machine",
        (false, true) => "a group of users of this machine",
        (false, false) => return None,
    };
    let message = format!(
        "{} has mode {:o} instead of 600: {readers} may read or write the key, and anybody who has the key can \
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

/// Reports that the key file holds a public key, if the private key of the pair is in the same directory.
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
