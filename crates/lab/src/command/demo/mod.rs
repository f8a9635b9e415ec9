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
/// Port of the relays of the kernel row: any free port.
const RELAY_PORT: u16 = 7001;
/// Maximum time that box and server may take to start. It bounds only a program that hangs.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a file that is downloaded without being measured, bytes. Any size would do.
const SMALL_BYTES: u64 = 6;
/// Pause before each row, so that the links' queues run empty. A guess.
const PAUSE: Duration = Duration::from_millis(300);
/// Maximum delivery lag of the emulator (99th percentile, µs) with which the result is reliable. 1 ms is
/// small against the links' delays of 15 and 35 ms.
const MAX_DELIVERY_LAG_US: f64 = 1000.0;

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
    if let Some(late) = late.ok().filter(|late| *late > MAX_DELIVERY_LAG_US) {
        eprintln!(
            "braid-lab: the machine was busy (links {late:.0} µs late): do not trust the result"
        );
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

    /// Measures relays in place of box and server. They open one kernel MPTCP connection for each connection of
    /// curl. Relays do not intercept connections, so curl connects to the first relay.
    fn kernel_row(&mut self) -> Result<Row, Failure> {
        let at_box = SocketAddr::new(self.fixture.lan_address("box")?, RELAY_PORT);
        let at_server = SocketAddr::new(self.fixture.address("server")?, RELAY_PORT);
        let (content, cc) = (self.content, self.congestion);
        let server_relay = fixture::relay(
            self.fixture,
            "server",
            (at_server, "mptcp"),
            (content, "tcp"),
            cc,
        )?;
        let box_relay = fixture::relay(
            self.fixture,
            "box",
            (at_box, "tcp"),
            (at_server, "mptcp"),
            cc,
        )?;
        let row = self.row(Via::Kernel, at_box);
        drop((box_relay, server_relay));
        row
    }

    fn braid_row(&mut self) -> Result<Row, Failure> {
        self.fixture.start("server", START_TIMEOUT)?;
        self.fixture.start("box", START_TIMEOUT)?;
        self.fixture.wait_for_interception(START_TIMEOUT)?;
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
