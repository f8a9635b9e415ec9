//! `braid-lab demo`: one file, fetched in four ways over the same two emulated links.
//!
//! In the rows `link1` and `link2`, the box only forwards packets over the named link. In the row `kernel`,
//! a relay (`braid-lab kernel-peer relay`) on the box's host relays to another on the server's host over a
//! kernel Multipath TCP connection. In the row `braid`, `braid box` and `braid server` run. In every row, an
//! ordinary curl on the user host talks TCP and an ordinary nginx answers.

pub(super) mod fixture;
mod table;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_testbed::Error;
use braid_testbed::fixture::{Download, Fixture};
use sha2::{Digest, Sha256};

use self::fixture::LINKS;
use self::table::Row;
use super::setting::{prepare_links, print_result, progress_bar};
use crate::cli::DemoArgs;
use braid::failure::Failure;

/// Name of the testbed.
const NAME: &str = "braid-demo";
/// Size of a file that is downloaded without being measured, bytes. Any size would do.
const SMALL_BYTES: u64 = 6;
/// Pause before each row, so that the links' queues run empty. A guess.
const PAUSE: Duration = Duration::from_millis(300);
/// Minimum time limit of a download, s. The default file of 20 MB needs only 17 s on the slowest link,
/// which has 10 Mbit/s.
const MIN_TIME_LIMIT_S: u64 = 60;

/// Runs the demo. The testbed is taken down before this returns, even after a failure.
pub fn run(args: &DemoArgs, json: bool) -> Result<(), Failure> {
    prepare_links()?;
    let mut fixture = fixture::up(NAME, &args.congestion, &args.strategy)?;
    let rows = rows(&mut fixture, args);
    let rows = rows.map_err(|failure| fixture::with_log_lines(&mut fixture, failure));
    let late = fixture.testbed.delivery_lag().map(|late| late.p99_us);
    let down = fixture.testbed.down();
    // A failure of the demo tells more than a failure to remove its testbed, so the former is returned
    // first.
    let rows = rows?;
    down?;
    if let Ok(late) = late {
        fixture::warn_if_busy(late);
    }
    print_result(json, &rows, || table::text(&rows, args))?;
    match rows.iter().find(|row| !row.sha256_ok) {
        Some(Row { via, .. }) => Err(Failure::Run(format!("the file came damaged via {via}"))),
        None => Ok(()),
    }
}

/// Fetches the file in each way.
fn rows(fixture: &mut Fixture, args: &DemoArgs) -> Result<Vec<Row>, Failure> {
    let size = u64::from(args.size) * 1_000_000;
    fixture.offer("small", SMALL_BYTES)?;
    let sha256 = hash(&fixture.offer("file", size)?)?;
    let content = SocketAddr::new(fixture.address("content")?, 80);
    let row = |fixture: &Fixture, via, from| row(fixture, via, from, size, &sha256);
    let mut rows = Vec::new();
    for link in LINKS {
        fixture.forward_over(link)?;
        rows.push(row(fixture, link, content)?);
    }
    fixture.stop_forwarding()?;
    // Relays do not intercept connections, so curl connects to the first of them.
    let (relay, relays) = fixture::start_relays(fixture, content, &args.congestion)?;
    rows.push(row(fixture, "kernel", relay)?);
    drop(relays);
    fixture::start_gateways(fixture)?;
    // A download that is not measured comes first, so that the row does not include the start of box and
    // server.
    download(fixture, &format!("{content}/small"), SMALL_BYTES, |_| ())
        .map_err(|error| Failure::run("download", error))?;
    rows.push(row(fixture, "braid", content)?);
    table::set_shares(&mut rows);
    Ok(rows)
}

/// Fetches the file of `size` bytes from the web server or relay `from`.
fn row(
    fixture: &Fixture,
    via: &'static str,
    from: SocketAddr,
    size: u64,
    sha256: &[u8],
) -> Result<Row, Failure> {
    fixture.sleep(PAUSE)?;
    let before = fixture.delivered_in_reverse(&LINKS)?;
    let bar =
        progress_bar(size, "{prefix:7} {bar:40} {bytes}/{total_bytes} {elapsed}").with_prefix(via);
    let fetched = download(fixture, &format!("{from}/file"), size, |bytes| {
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let (file, seconds) =
        fetched.map_err(|error| Failure::run(format_args!("download via {via}"), error))?;
    let after = fixture.delivered_in_reverse(&LINKS)?;
    let bytes_by_link = after.iter().zip(&before);
    let bytes_by_link = bytes_by_link.map(|(after, before)| after.saturating_sub(*before));
    let row = Row {
        via,
        seconds,
        mbit_s: size as f64 * 8.0 / seconds / 1e6,
        share_of_sum: 0.0,
        sha256_ok: hash(&file)? == sha256,
        bytes_by_link: bytes_by_link.collect(),
    };
    fs::remove_file(&file)?;
    tracing::info!(?row, "downloaded");
    Ok(row)
}

/// Downloads a file of `size` bytes on the user host, and calls `progress` with the number of bytes received so
/// far. Returns the file and the time measured by curl, connection set-up included.
fn download(
    fixture: &Fixture,
    url: &str,
    size: u64,
    progress: impl FnMut(u64),
) -> Result<(PathBuf, f64), Error> {
    let file = fixture.testbed.state_dir().join("fetched");
    let download = Download {
        host: "user",
        url: format!("http://{url}"),
        to: &file,
        bytes: None,
        // A large file gets a longer limit: the time that it takes at 500,000 bytes/s, which is 4 Mbit/s.
        longest: Duration::from_secs(MIN_TIME_LIMIT_S.max(size / 500_000)),
    };
    let seconds = fixture.download(&download, progress)?;
    Ok((file, seconds))
}

/// Returns the SHA-256 of a file.
fn hash(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.finalize().to_vec()),
            n => hash.update(&chunk[..n]),
        }
    }
}
