//! The measurements of a round. Sizes, counts and pauses are guesses: a round takes about 90 s.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use braid_testbed::LinkChange;

use super::variant::Variant;
use crate::command::demo::fixture::LINKS;
use crate::content::{Client, fetch};
use braid::failure::Failure;

/// Sizes of small transfers, bytes.
pub const SIZES: [u64; 3] = [4_000, 64_000, 1_000_000];
/// The description of the page: objects that a browser fetches at once, each over a connection of its own. A
/// browser opens six connections to a host.
pub const PAGE: &str = "6 objects of 30 kB at once";
const PAGE_OBJECTS: usize = 6;
const PAGE_OBJECT: u64 = 30_000;
/// Bytes of an echo's answer.
const ECHO: u64 = 100;

/// Number of small transfers of each size in a round.
const SMALL_RUNS: usize = 10;
/// Duration of a download.
const DOWNLOAD: Duration = Duration::from_secs(10);
/// Bytes of a request of the download: a small share of what the links carry in a second.
const REQUEST: u64 = 250_000;
/// Number of requests that are sent ahead, so that the server always has something to send.
const REQUESTS_AHEAD: usize = 64;
/// Pause between two pages beside a download.
const PAGE_PAUSE: Duration = Duration::from_millis(700);
/// Pause between two echoes beside a download.
const ECHO_PAUSE: Duration = Duration::from_millis(100);
/// Time from a download's start until pages and echoes are measured, or a link dies. Slow start is over by then.
const SLOW_START: Duration = Duration::from_secs(2);
/// Time for which the link is dead.
const DEAD: Duration = Duration::from_secs(5);
/// Number of concurrent users in the measurement of connections a second.
const USERS: usize = 16;
/// Number of connections that each of these users opens, one after another.
const CONNECTIONS: usize = 20;
/// Bytes that each of those connections fetches.
const TINY: u64 = 1_000;
/// Pause between two measurements, in which the links' queues run empty.
const PAUSE: Duration = Duration::from_millis(500);

/// All samples of one variant.
#[derive(Debug, Default)]
pub struct Samples {
    pub download_mbit_s: Vec<f64>,
    pub cpu_ms_per_gbit: Vec<f64>,
    pub page_ms: Vec<f64>,
    pub echo_ms: Vec<f64>,
    /// Completion times by size, in the order of [`SIZES`].
    pub small_ms: [Vec<f64>; SIZES.len()],
    pub pause_ms: Vec<f64>,
    pub connections_s: Vec<f64>,
}

/// Measures one variant once.
pub fn round(variant: &mut Variant, samples: &mut Samples) -> Result<(), Failure> {
    small(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    download(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    beside_download(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    link_dies(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    connections(variant, samples)
}

/// Measures small transfers, one after another.
fn small(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    for (bytes, into) in SIZES.into_iter().zip(&mut samples.small_ms) {
        for _ in 0..SMALL_RUNS {
            into.push(ms(variant.user.run(|content| fetch(content, bytes))?));
        }
    }
    Ok(())
}

/// Measures the rate and the processor time of a download.
fn download(variant: &mut Variant, samples: &mut Samples) -> Result<(), Failure> {
    let before = variant.cpu_seconds()?;
    let (since, mut got) = (Instant::now(), 0);
    variant.user.run(|content| {
        download_while(content, |bytes| {
            got += bytes;
            since.elapsed() < DOWNLOAD
        })
    })?;
    let gbit = got as f64 * 8.0 / 1e9;
    let rate = gbit * 1e3 / since.elapsed().as_secs_f64();
    samples.download_mbit_s.push(rate);
    let cpu = variant.cpu_seconds()? - before;
    samples.cpu_ms_per_gbit.push(cpu * 1e3 / gbit);
    Ok(())
}

/// Downloads until `arrived`, called with the size of each part, returns false.
fn download_while(content: SocketAddr, mut arrived: impl FnMut(u64) -> bool) -> io::Result<()> {
    let mut client = Client::connect(content)?;
    for _ in 0..REQUESTS_AHEAD {
        client.request(REQUEST)?;
    }
    let mut is_running = true;
    while is_running {
        client.request(REQUEST)?;
        client.read(REQUEST, |bytes| is_running &= arrived(bytes))?;
    }
    Ok(())
}

/// Measures pages and echoes while a download fills the links.
fn beside_download(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    let (user, stop) = (&variant.user, AtomicBool::new(false));
    let is_running = || !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let download =
            scope.spawn(|| user.run(|content| download_while(content, |_| is_running())));
        let echoes = scope.spawn(|| user.run(|content| echoes(content, is_running)));
        let pages = user.run(|content| pages(content, DOWNLOAD));
        stop.store(true, Ordering::Relaxed);
        join(download)?;
        samples.echo_ms.extend(join(echoes)?);
        samples.page_ms.extend(pages?);
        Ok(())
    })
}

/// Fetches pages for the time `during`. Returns the time that each takes, ms.
fn pages(content: SocketAddr, during: Duration) -> io::Result<Vec<f64>> {
    thread::sleep(SLOW_START);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < during {
        let since = Instant::now();
        at_once(PAGE_OBJECTS, || fetch(content, PAGE_OBJECT).map(drop))?;
        times.push(ms(since.elapsed()));
        thread::sleep(PAGE_PAUSE);
    }
    Ok(times)
}

/// Requests a short answer again and again over one connection, as a remote shell does. Returns the time that
/// each takes, ms.
fn echoes(content: SocketAddr, is_running: impl Fn() -> bool) -> io::Result<Vec<f64>> {
    let mut client = Client::connect(content)?;
    let mut times = Vec::new();
    thread::sleep(SLOW_START);
    while is_running() {
        let since = Instant::now();
        client.ask(ECHO, |_| {})?;
        times.push(ms(since.elapsed()));
        thread::sleep(ECHO_PAUSE);
    }
    Ok(times)
}

/// Measures the longest pause of a download while the first link drops every packet for a while. The link stays
/// up, so that nothing reports the failure.
fn link_dies(variant: &mut Variant, samples: &mut Samples) -> Result<(), Failure> {
    let (user, stop) = (variant.user.clone(), AtomicBool::new(false));
    let longest = thread::scope(|scope| {
        let download = scope.spawn(|| {
            let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
            user.run(|content| {
                download_while(content, |_| {
                    if begun.elapsed() > SLOW_START {
                        longest = longest.max(last.elapsed());
                    }
                    last = Instant::now();
                    !stop.load(Ordering::Relaxed)
                })
            })?;
            Ok(longest)
        });
        let outage = cut_first_link(variant);
        stop.store(true, Ordering::Relaxed);
        let longest = join(download);
        outage?;
        longest
    })?;
    samples.pause_ms.push(ms(longest));
    Ok(())
}

/// Makes the first link drop every packet for the time [`DEAD`].
fn cut_first_link(variant: &mut Variant) -> Result<(), Failure> {
    let set = |variant: &mut Variant, to: &str| -> Result<(), Failure> {
        let change = LinkChange::parse([to])?;
        Ok(variant.fixture.testbed.set(LINKS[0], None, &change)?)
    };
    variant.fixture.sleep(SLOW_START + PAUSE)?;
    set(variant, "down")?;
    let slept = variant.fixture.sleep(DEAD);
    set(variant, "up")?;
    slept?;
    // Until a variant uses the link again, which is not measured.
    Ok(variant.fixture.sleep(SLOW_START)?)
}

/// Measures the number of short connections a second.
fn connections(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    let since = Instant::now();
    variant.user.run(|content| {
        at_once(USERS, || {
            (0..CONNECTIONS).try_for_each(|_| fetch(content, TINY).map(drop))
        })
    })?;
    let count = (USERS * CONNECTIONS) as f64;
    let rate = count / since.elapsed().as_secs_f64();
    samples.connections_s.push(rate);
    Ok(())
}

/// Returns the result of a user's thread. A panic becomes a failure.
fn join<T>(user: ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    user.join()
        .unwrap_or_else(|_| Err(Failure::Run("a user panicked".to_owned())))
}

/// Runs `work` on `n` threads at once. Threads inherit the namespace of the caller.
fn at_once(n: usize, work: impl Fn() -> io::Result<()> + Sync) -> io::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|_| Err(io::Error::other("a user panicked")))
        })
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
