//! One download by curl.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::table::Via;
use crate::bed::{Bed, POLL};
use crate::failure::Failure;
use crate::kernel_peer::hex;

/// Longest a download may take; the slowest link needs 17 s for the demo's usual file.
const LONGEST_S: u64 = 60;

/// What to download.
pub struct Fetch<'a> {
    /// The web server, or a relay to it.
    pub from: SocketAddr,
    /// Path of the file there.
    pub path: &'a str,
    /// Where to put it.
    pub to: &'a Path,
    /// Its size, bytes.
    pub size: u64,
    /// Way to name in the progress; nothing is shown where there is none.
    pub via: Option<Via>,
}

/// A download that ended well.
pub struct Fetched {
    /// As measured by curl, connection set-up included.
    pub seconds: f64,
    /// Of what came.
    pub sha256: String,
}

/// Downloads on the user host.
pub fn fetch(bed: &Bed, what: &Fetch<'_>) -> Result<Fetched, Failure> {
    let longest = LONGEST_S.max(what.size / 500_000).to_string();
    let mut curl = bed.exec("user", "curl")?;
    curl.args([
        "-q",
        "-sS",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        &longest,
    ])
    .args(["-w", "%{time_total}", "-o"])
    .arg(what.to)
    .arg(format!("http://{}/{}", what.from, what.path))
    .stdin(Stdio::null())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped());
    let child = curl
        .spawn()
        .map_err(|e| Failure::run("cannot run curl", e))?;
    let output = wait(bed, child, what)?;
    let seconds = output
        .trim()
        .parse()
        .map_err(|e| Failure::run("curl's time", e))?;
    let sha256 = hash(what.to)?;
    Ok(Fetched { seconds, sha256 })
}

/// Waits for curl with a progress bar; ends it where the user interrupts. Returns what it printed.
fn wait(bed: &Bed, mut child: Child, what: &Fetch<'_>) -> Result<String, Failure> {
    let bar = progress_bar(what);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(interrupted) = bed.sleep(POLL) {
            child.kill()?;
            child.wait()?;
            return Err(interrupted);
        }
        bar.set_position(fs::metadata(what.to).map_or(0, |file| file.len()));
    };
    bar.finish_and_clear();
    let mut printed = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut printed)?;
    }
    if status.success() {
        return Ok(printed);
    }
    let mut why = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut why)?;
    }
    let via = what
        .via
        .map(|via| format!(" via {via}"))
        .unwrap_or_default();
    Err(Failure::Run(format!("download{via}: {}", why.trim())))
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

fn hash(path: &Path) -> io::Result<String> {
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
