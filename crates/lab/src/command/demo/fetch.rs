//! One download by curl, with a progress bar and a hash of the file.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use braid_testbed::fixture::{Download, Fixture};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::table::Via;
use crate::kernel_peer::hex;
use braid::failure::Failure;

/// Minimum time limit of a download, s. The default file of 20 MB needs only 17 s on the slowest link,
/// which has 10 Mbit/s.
const MIN_TIME_LIMIT_S: u64 = 60;

/// Settings of a download.
pub struct Fetch<'a> {
    /// The web server, or a relay to it.
    pub from: SocketAddr,
    /// Path of the file on the web server.
    pub path: &'a str,
    /// File to write.
    pub to: &'a Path,
    /// Size of the file, bytes.
    pub size: u64,
    /// The variant to name in the progress bar; `None` shows no bar.
    pub via: Option<Via>,
}

/// A download that succeeded.
pub struct Fetched {
    /// Time measured by curl, connection set-up included.
    pub seconds: f64,
    /// SHA-256 of the received file, in hexadecimal.
    pub sha256: String,
}

/// Downloads a file on the user host and hashes it.
pub fn fetch(fixture: &Fixture, what: &Fetch<'_>) -> Result<Fetched, Failure> {
    let bar = progress_bar(what);
    let download = Download {
        host: "user",
        url: format!("http://{}/{}", what.from, what.path),
        to: what.to,
        bytes: None,
        // A large file gets a longer limit: the time that it takes at 500,000 bytes/s, which is 4 Mbit/s.
        longest: Duration::from_secs(MIN_TIME_LIMIT_S.max(what.size / 500_000)),
    };
    let seconds = fixture.download(&download, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let seconds = seconds.map_err(|error| {
        let via = what.via.map(|via| format!(" via {via}"));
        Failure::run(format_args!("download{}", via.unwrap_or_default()), error)
    })?;
    let sha256 = hash(what.to)?;
    Ok(Fetched { seconds, sha256 })
}

fn progress_bar(what: &Fetch<'_>) -> ProgressBar {
    let Some(via) = what.via else {
        return ProgressBar::hidden();
    };
    let style = ProgressStyle::with_template("{prefix:7} {bar:40} {bytes}/{total_bytes} {elapsed}");
    ProgressBar::new(what.size)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(via.to_string())
}

/// Returns the SHA-256 of a file, in hexadecimal.
pub fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&chunk[..n]),
        }
    }
}
