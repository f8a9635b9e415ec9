//! `braid-lab demo`: one file, fetched in four ways over the same two emulated links.
//!
//! In the rows `link1` and `link2`, the box only forwards packets over the named link. In the row `kernel`,
//! a relay (`braid-lab kernel-peer relay`) on the box's host relays to another on the server's host over a
//! kernel Multipath TCP connection. In the row `braid`, `braid box` and `braid server` run. In every row, an
//! ordinary curl on the user host talks TCP and an ordinary nginx answers.

mod fetch;
pub(super) mod fixture;
pub(super) mod interrupt;
mod table;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use braid_testbed::fixture::Fixture;

use self::fetch::{Fetch, fetch};
use self::interrupt::Interrupt;
use self::table::{Row, Via};
use super::testbed;
use crate::cli::DemoArgs;
use braid::failure::Failure;
use braid::print::{print, print_json};

/// Name of the testbed.
const NAME: &str = "braid-demo";
/// Size of a file that is downloaded without being measured, bytes. Any size would do.
const SMALL_BYTES: u64 = 6;
/// Pause before each row, so that the links' queues run empty. A guess.
const PAUSE: Duration = Duration::from_millis(300);

/// Runs the demo. The testbed is taken down before this returns, even after a failure.
pub fn run(args: &DemoArgs, json: bool) -> Result<(), Failure> {
    testbed::ensure_netns()?;
    let interrupt = Interrupt::install()?;
    let mut fixture = fixture::up(NAME, &args.congestion, interrupt)?;
    let rows = Demo::new(&mut fixture, args).and_then(|mut demo| demo.rows());
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
    if json {
        print_json(&rows)?;
    } else {
        print(table::Table { rows: &rows, args })?;
    }
    match rows.iter().find(|row| !row.sha256_ok) {
        Some(row) => Err(Failure::Run(format!(
            "the file came damaged via {}",
            row.via
        ))),
        None => Ok(()),
    }
}

/// The demo on a testbed that is up.
struct Demo<'a> {
    fixture: &'a mut Fixture,
    congestion: &'a str,
    /// Bytes of the file.
    size: u64,
    sha256: String,
    content: SocketAddr,
}

impl<'a> Demo<'a> {
    fn new(fixture: &'a mut Fixture, args: &'a DemoArgs) -> Result<Self, Failure> {
        let size = u64::from(args.size) * 1_000_000;
        fixture.offer("small", SMALL_BYTES)?;
        let sha256 = fetch::hash(&fixture.offer("file", size)?)?;
        let content = SocketAddr::new(fixture.address("content")?, 80);
        Ok(Demo {
            fixture,
            congestion: &args.congestion,
            size,
            sha256,
            content,
        })
    }

    fn rows(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for (link, via) in fixture::LINKS.into_iter().zip([Via::Link1, Via::Link2]) {
            self.fixture.forward_over(link)?;
            rows.push(self.row(via, self.content)?);
        }
        self.fixture.stop_forwarding()?;
        rows.push(self.kernel_row()?);
        rows.push(self.braid_row()?);
        table::set_shares(&mut rows);
        Ok(rows)
    }

    /// Measures relays of kernel sockets in place of box and server. curl connects to the first relay.
    fn kernel_row(&mut self) -> Result<Row, Failure> {
        let (from, relays) = fixture::start_relays(self.fixture, self.content, self.congestion)?;
        let row = self.row(Via::Kernel, from);
        drop(relays);
        row
    }

    fn braid_row(&mut self) -> Result<Row, Failure> {
        fixture::start_gateways(self.fixture)?;
        // A download that is not measured comes first, so that the row does not include the start of box and
        // server.
        let small = self.fixture.testbed.state_dir().join("small");
        fetch(
            self.fixture,
            &Fetch {
                from: self.content,
                path: "small",
                to: &small,
                size: SMALL_BYTES,
                via: None,
            },
        )?;
        self.row(Via::Braid, self.content)
    }

    fn row(&mut self, via: Via, from: SocketAddr) -> Result<Row, Failure> {
        self.fixture.sleep(PAUSE)?;
        let to = self.fixture.testbed.state_dir().join("fetched");
        let before = self.fixture.delivered_in_reverse(&fixture::LINKS)?;
        let what = Fetch {
            from,
            path: "file",
            to: &to,
            size: self.size,
            via: Some(via),
        };
        let fetched = fetch(self.fixture, &what)?;
        let after = self.fixture.delivered_in_reverse(&fixture::LINKS)?;
        let bytes_by_link = after
            .iter()
            .zip(&before)
            .map(|(a, b)| a.saturating_sub(*b))
            .collect();
        fs::remove_file(&to)?;
        let row = Row {
            via,
            seconds: fetched.seconds,
            mbit_s: self.size as f64 * 8.0 / fetched.seconds / 1e6,
            share_of_sum: 0.0,
            sha256_ok: fetched.sha256 == self.sha256,
            bytes_by_link,
        };
        tracing::info!(?row, "downloaded");
        Ok(row)
    }
}
