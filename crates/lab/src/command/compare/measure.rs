//! The measurements of one round of `braid-lab compare`.

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

/// Sizes of small transfers, bytes: a guess at small and medium objects of web pages.
pub const SIZES: [u64; 3] = [4_000, 64_000, 1_000_000];
/// Description of the page: objects that a browser fetches at the same time, each over a new connection.
pub const PAGE: &str = "6 objects of 30 kB at once";
/// Objects of the page: browsers open six HTTP/1.1 connections to a host.
const PAGE_OBJECTS: usize = 6;
/// Bytes of each object.
const PAGE_OBJECT_LEN: u64 = 30_000;
/// Bytes of the answer to an echo request: about a line of a terminal.
const ECHO_LEN: u64 = 100;

/// Number of small transfers of each size in a round.
const SMALL_RUNS: usize = 10;
/// Duration of a download.
const DOWNLOAD: Duration = Duration::from_secs(10);
/// Bytes that one request of the download asks for. The default links carry 15 such requests in a second,
/// so a request that is under way at the end delays the end only a little.
const REQUEST_LEN: u64 = 250_000;
/// Number of requests that wait for an answer at any time. Together they ask for 16 MB, so that the links
/// never wait for a request.
const REQUESTS_AHEAD: usize = 64;
/// Pause between two pages.
const PAGE_PAUSE: Duration = Duration::from_millis(700);
/// Pause between two echoes.
const ECHO_PAUSE: Duration = Duration::from_millis(100);
/// Time between the start of a download and the first page or echo, or the outage of a link. A guess, long
/// enough for slow start to end.
const SLOW_START_TIME: Duration = Duration::from_secs(2);
/// Length of the outage.
const OUTAGE: Duration = Duration::from_secs(5);
/// Number of concurrent users in the measurement of connections a second.
const USERS: usize = 16;
/// Number of connections that each of these users opens one after the other.
const CONNECTIONS_PER_USER: usize = 20;
/// Bytes that each of these connections fetches.
const TINY_LEN: u64 = 1_000;
/// Pause between two measurements, so that the links' queues run empty.
const PAUSE: Duration = Duration::from_millis(500);

/// All samples of one variant.
#[derive(Debug, Default)]
pub struct Samples {
    pub download_mbit_s: Vec<f64>,
    /// Processor time of the download.
    pub cpu_ms_per_gbit: Vec<f64>,
    /// Times of pages beside a download.
    pub page_ms: Vec<f64>,
    /// Times of echoes beside a download.
    pub echo_ms: Vec<f64>,
    /// Completion times by size, in the order of [`SIZES`].
    pub small_ms: [Vec<f64>; SIZES.len()],
    /// Longest pause without data in each download over a link that dies.
    pub pause_ms: Vec<f64>,
    /// Connections a second.
    pub connections_s: Vec<f64>,
}

/// Measures one variant once.
pub fn round(variant: &mut Variant, samples: &mut Samples) -> Result<(), Failure> {
    small_transfers(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    download(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    beside_download(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    link_dies(variant, samples)?;
    variant.fixture.sleep(PAUSE)?;
    connections(variant, samples)
}

fn small_transfers(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    for (bytes, into) in SIZES.into_iter().zip(&mut samples.small_ms) {
        for _ in 0..SMALL_RUNS {
            into.push(ms(variant.user.run(|content| fetch(content, bytes))?));
        }
    }
    Ok(())
}

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

/// Downloads until `arrived` returns false. Calls `arrived` with the size of each part that arrives.
fn download_while(content: SocketAddr, mut arrived: impl FnMut(u64) -> bool) -> io::Result<()> {
    let mut client = Client::connect(content)?;
    for _ in 0..REQUESTS_AHEAD {
        client.request(REQUEST_LEN)?;
    }
    let mut goes_on = true;
    while goes_on {
        client.request(REQUEST_LEN)?;
        client.read(REQUEST_LEN, |bytes| goes_on &= arrived(bytes))?;
    }
    Ok(())
}

/// Fetches pages and echoes while a download fills the links.
fn beside_download(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    let (user, stop) = (&variant.user, AtomicBool::new(false));
    let goes_on = || !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let download = scope.spawn(|| user.run(|content| download_while(content, |_| goes_on())));
        let echoes = scope.spawn(|| user.run(|content| echoes(content, goes_on)));
        let pages = user.run(|content| pages(content, DOWNLOAD));
        stop.store(true, Ordering::Relaxed);
        join(download)?;
        samples.echo_ms.extend(join(echoes)?);
        samples.page_ms.extend(pages?);
        Ok(())
    })
}

/// Fetches pages for the time `during`. Returns the time of each, ms.
fn pages(content: SocketAddr, during: Duration) -> io::Result<Vec<f64>> {
    let end = Instant::now() + SLOW_START_TIME + during;
    let page = || at_once(PAGE_OBJECTS, || fetch(content, PAGE_OBJECT_LEN).map(drop));
    repeat(page, PAGE_PAUSE, || Instant::now() < end)
}

/// Sends small requests over one connection while `goes_on`, as a remote shell does. Returns the times until
/// their answers, ms.
fn echoes(content: SocketAddr, goes_on: impl Fn() -> bool) -> io::Result<Vec<f64>> {
    let mut client = Client::connect(content)?;
    repeat(|| client.ask(ECHO_LEN, |_| {}), ECHO_PAUSE, goes_on)
}

/// Waits for the end of slow start, and then does `work` while `goes_on`, with pauses. Returns the time that each
/// `work` took, ms.
fn repeat(
    mut work: impl FnMut() -> io::Result<()>,
    pause: Duration,
    goes_on: impl Fn() -> bool,
) -> io::Result<Vec<f64>> {
    let mut times = Vec::new();
    thread::sleep(SLOW_START_TIME);
    while goes_on() {
        let since = Instant::now();
        work()?;
        times.push(ms(since.elapsed()));
        thread::sleep(pause);
    }
    Ok(times)
}

/// Measures the longest pause of a download during an outage of the first link. The link drops all packets
/// and stays up, so only missing acknowledgements show the outage.
fn link_dies(variant: &mut Variant, samples: &mut Samples) -> Result<(), Failure> {
    let (user, stop) = (variant.user.clone(), AtomicBool::new(false));
    let longest = thread::scope(|scope| {
        let download = scope.spawn(|| user.run(|content| longest_pause(content, &stop)));
        let died = break_link_for_a_while(variant);
        stop.store(true, Ordering::Relaxed);
        let longest = join(download);
        died.and(longest)
    })?;
    samples.pause_ms.push(ms(longest));
    Ok(())
}

/// Downloads until `stop` is set. Returns the longest time without data after slow start.
fn longest_pause(content: SocketAddr, stop: &AtomicBool) -> io::Result<Duration> {
    let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    download_while(content, |_| {
        if begun.elapsed() > SLOW_START_TIME {
            longest = longest.max(last.elapsed());
        }
        last = Instant::now();
        !stop.load(Ordering::Relaxed)
    })?;
    Ok(longest)
}

fn break_link_for_a_while(variant: &mut Variant) -> Result<(), Failure> {
    let set = |variant: &mut Variant, to: &str| -> Result<(), Failure> {
        let change = LinkChange::parse([to])?;
        Ok(variant.fixture.testbed.set(LINKS[0], None, &change)?)
    };
    variant.fixture.sleep(SLOW_START_TIME + PAUSE)?;
    set(variant, "down")?;
    let slept = variant.fixture.sleep(OUTAGE);
    // The link comes back even if a signal interrupted the sleep.
    set(variant, "up")?;
    slept?;
    // The download outlasts the outage, so that a pause that lasts to the end of the outage is measured in
    // full.
    Ok(variant.fixture.sleep(SLOW_START_TIME)?)
}

fn connections(variant: &Variant, samples: &mut Samples) -> Result<(), Failure> {
    let since = Instant::now();
    variant.user.run(|content| {
        at_once(USERS, || {
            (0..CONNECTIONS_PER_USER).try_for_each(|_| fetch(content, TINY_LEN).map(drop))
        })
    })?;
    let count = (USERS * CONNECTIONS_PER_USER) as f64;
    let rate = count / since.elapsed().as_secs_f64();
    samples.connections_s.push(rate);
    Ok(())
}

/// Runs `work` on `n` threads at once. Threads inherit the namespace of the caller.
fn at_once(n: usize, work: impl Fn() -> io::Result<()> + Sync) -> io::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(join)
    })
}

/// Waits for the thread of a user and returns its result.
fn join<T, E: From<io::Error>>(user: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    user.join()
        .unwrap_or_else(|_| Err(io::Error::other("a user panicked").into()))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
