//! Downloads by curl.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{Bed, POLL};
use crate::error::Error;

/// A file to download.
#[derive(Debug, Clone)]
pub struct Download<'a> {
    /// The host that curl runs on.
    pub host: &'a str,
    /// The address of the file.
    pub url: String,
    /// The file to write.
    pub to: &'a Path,
    /// The number of leading bytes to ask for; all if `None`.
    pub bytes: Option<u64>,
    /// The longest time that the download may take.
    pub longest: Duration,
}

impl Bed {
    /// Downloads, and returns the seconds from curl's start to the last byte. Calls `progress` every [`POLL`]
    /// with the bytes so far.
    ///
    /// # Errors
    /// Fails if there is no such host, if curl fails, or if waiting is interrupted.
    pub fn download(
        &self,
        what: &Download<'_>,
        mut progress: impl FnMut(u64),
    ) -> Result<f64, Error> {
        let failed = |e| Error::system("run curl", e);
        let mut curl = self.exec(what.host, "curl")?;
        curl.args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time"])
            .arg(what.longest.as_secs_f64().to_string())
            .args(["-w", "%{time_total}", "-o"])
            .arg(what.to);
        if let Some(bytes) = what.bytes {
            let last = bytes.saturating_sub(1);
            curl.args(["--range", &format!("0-{last}")]);
        }
        curl.arg(&what.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = curl.spawn().map_err(failed)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if let Err(interrupted) = self.sleep(POLL) {
                child.kill().map_err(failed)?;
                child.wait().map_err(failed)?;
                return Err(interrupted);
            }
            progress(fs::metadata(what.to).map_or(0, |file| file.len()));
        };
        let mut printed = String::new();
        let mut why = String::new();
        if let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) {
            stdout.read_to_string(&mut printed).map_err(failed)?;
            stderr.read_to_string(&mut why).map_err(failed)?;
        }
        match printed.trim().parse() {
            Ok(seconds) if status.success() => Ok(seconds),
            _ => Err(Error::InVain(why.trim().to_owned())),
        }
    }
}
