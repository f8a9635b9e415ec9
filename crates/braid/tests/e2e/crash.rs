//! SIGKILL and SIGSTOP of box and server while users are at work. Their connections fail or go on, and never
//! look complete if they are not. Users who come after a restart are served; the soak judges how soon.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::netns;
use braid_testbed::render::render_config;
use rustix::process::{Pid, Signal, kill_process};

use super::control::{ask, status};
use super::fixture::{Download, Fixture, Judge, bulk};
use super::stale_resources::{expect_as_before, settled_host};

/// Longest time that users' connections may hang after a crash.
const HANG: Duration = Duration::from_secs(60);
/// Longest time from the start of the process until a new user is served: 2 s, and twice that, since ending
/// connections and polling users take the same processors.
const SOON: Duration = Duration::from_secs(4);
/// Longest time until the user has the answer, including the check whether it came through the server.
const SERVED: Duration = Duration::from_secs(6);
/// The beginning of curl's error about a download that took too long.
const TIMED_OUT: &str = "curl: (28)";
/// Seconds that a process stands still; `BRAID_STANDSTILL` has another number of seconds.
const STANDSTILL: u64 = 10;
/// Port of responses without length, whose bodies end with the connection (RFC 9112 section 6.3).
const UNTOLD: u16 = 8_080;

/// A web server as the oldest ones were: the end of the connection is the end of a body. It runs until dropped.
struct Untold(Arc<AtomicBool>);

impl Untold {
    fn serve(bed: &Fixture, body: &[u8]) -> Self {
        let at = SocketAddr::new(bed.v4("content"), UNTOLD);
        let content = bed.testbed.layout().host("content").expect("a known host");
        let listener = netns::run_inside(&content.namespace, || TcpListener::bind(at));
        let listener = listener.expect("it listens");
        listener.set_nonblocking(true).expect("a socket");
        let ending = Arc::new(AtomicBool::new(false));
        let (told, body) = (Arc::clone(&ending), Arc::<[u8]>::from(body));
        thread::spawn(move || {
            while !told.load(Ordering::Acquire) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let body = Arc::clone(&body);
                stream.set_nonblocking(false).expect("a socket");
                thread::spawn(move || answer_without_length(stream, &body));
            }
        });
        Untold(ending)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Answers a request. A client that leaves early is no error here.
fn answer_without_length(mut stream: TcpStream, body: &[u8]) {
    let mut request = [0; 1024];
    if stream.read(&mut request).is_ok()
        && stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").is_ok()
        && stream.write_all(body).is_ok()
        && stream.shutdown(Shutdown::Write).is_ok()
    {
        // Waits until the client has closed, so that this end does not cut off bytes that the client has not
        // read.
        let _ = stream.read(&mut request);
    }
}

/// Fifty downloads, each with bytes on its way; every second one has no known length.
struct UnderWay {
    downloads: Vec<Download>,
    expected: Vec<u8>,
    _served: Untold,
}

impl UnderWay {
    fn begin(bed: &mut Fixture) -> Self {
        bed.slow_down();
        let expected = bed.offer("large", bulk() / 5);
        let served = Untold::serve(bed, &expected);
        let untold = format!("http://{}:{UNTOLD}/", bed.v4("content"));
        let downloads: Vec<_> = (0..50)
            .map(|n| match n % 2 {
                0 => bed.curl("large"),
                _ => bed.curl_by(&["--noproxy", "*"], &untold),
            })
            .collect();
        bed.wait_for("every download to begin", |_| {
            downloads.iter().all(|d| d.bytes() > 0)
        });
        let ended = downloads.iter().all(|d| d.bytes() == expected.len() as u64);
        assert!(!ended, "no download is under way");
        UnderWay {
            downloads,
            expected,
            _served: served,
        }
    }

    /// Waits for all. None hangs, and what curl takes for complete is complete. Returns how many failed.
    fn end(self, judge: Judge) -> usize {
        let begun = Instant::now();
        let ends = self.downloads.into_iter();
        let ends = ends.map(|download| download.end_as(&self.expected));
        let failures: Vec<_> = ends
            .filter(|(well, _)| !well)
            .map(|(_, said)| said)
            .collect();
        let (failed, took) = (failures.len(), begun.elapsed());
        println!("{failed} of 50 downloads failed, the last ended after {took:?}");
        let hung = failures.iter().find(|said| said.contains(TIMED_OUT));
        assert_eq!(hung, None, "a download hung");
        assert!(
            judge == Judge::Service || took < HANG,
            "the last download hung for {took:?}"
        );
        failed
    }

    fn expect_some_to_fail(self, judge: Judge) {
        let failed = self.end(judge);
        assert!(failed > 0, "no download was under way when it happened");
    }
}

/// Starts box or server; users who come from then on are served through the server. Before that the box
/// forwards them, and forwarded connections go on.
fn start_and_serve(bed: &mut Fixture, host: &str, judge: Judge) {
    let expected = bed.offer("small", 20_000);
    let started = Instant::now();
    bed.testbed.start(host).expect("it starts");
    // The status cannot be read before the process is up.
    let served = |bed: &Fixture| {
        let answer = ask(bed, "server", &["status", "--json"]).stdout;
        let status: Option<serde_json::Value> = serde_json::from_slice(&answer).ok();
        status.map_or(0, |s| s["counters"]["connected"].as_u64().unwrap_or(0))
    };
    let before = match host {
        "server" => 0,
        _ => served(bed),
    };
    expect_service(bed, (host, started), judge, |bed| {
        let (well, said) = bed.curl("small").end_as(&expected);
        assert!(well || host == "box", "forwarded, but {said}");
        served(bed) > before
    });
}

/// Lets users come until one is served by a `host` that started or went on at `since`.
fn expect_service(
    bed: &mut Fixture,
    (host, since): (&str, Instant),
    judge: Judge,
    mut is_served: impl FnMut(&Fixture) -> bool,
) {
    let mut came = since;
    bed.wait_for("a user to be served", |bed| {
        came = Instant::now();
        is_served(bed)
    });
    let (after, within) = (came - since, came.elapsed());
    println!("{host}: the user who came after {after:?} was served within {within:?}");
    if judge == Judge::Clock {
        assert!(after < SOON, "the {host} served nobody before {after:?}");
        assert!(within < SERVED, "the {host} took {within:?} for a user");
    }
}

fn signal(bed: &mut Fixture, host: &str, signal: Signal) {
    let pid = bed.testbed.pid(host).expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("it runs");
}

fn killed_box(judge: Judge) {
    let mut bed = Fixture::up();
    let under_way = UnderWay::begin(&mut bed);
    bed.testbed.kill("box").expect("it ran");
    bed.release();
    under_way.expect_some_to_fail(judge);

    // The box's kernel forwards over one link, once the server has stopped repeating the box's old segments.
    let expected = bed.offer("forwarded", 5_000_000);
    bed.wait_for("a download over one link alone", |bed| {
        let before = bed.carried();
        bed.curl("forwarded").expect_bytes(&expected);
        let after = bed.carried();
        let carried = [0, 1].map(|link| after[link] - before[link]);
        carried.iter().any(|bytes| *bytes < 1_000_000)
    });

    start_and_serve(&mut bed, "box", judge);
    bed.expect_both_links();
}

fn killed_server(judge: Judge) {
    let mut bed = Fixture::up();
    let under_way = UnderWay::begin(&mut bed);
    bed.testbed.kill("server").expect("it ran");
    bed.release();
    bed.wait_for("the box to notice", |bed| {
        bed.print("box", "ss", &["-Hltn"]).is_empty()
    });
    start_and_serve(&mut bed, "server", judge);
    under_way.expect_some_to_fail(judge);
    bed.expect_both_links();
}

/// Box and server are killed and started again under load, and then stopped in order.
#[test]
#[ignore = "network"]
fn a_crash_under_load_leaves_nothing_behind() {
    let mut bed = Fixture::up_idle(render_config(None).expect("randomness"));
    let hosts = ["server", "box"];
    let before = hosts.map(|name| settled_host(&mut bed, name));
    bed.start("server");
    bed.start("box");
    bed.wait_for_interception();
    let under_way = UnderWay::begin(&mut bed);
    for name in hosts {
        bed.testbed.kill(name).expect("it ran");
        bed.start(name);
    }
    bed.release();
    under_way.expect_some_to_fail(Judge::Service);
    for name in hosts {
        bed.testbed.stop(name).expect("it ran");
    }
    for (name, before) in hosts.iter().zip(before) {
        expect_as_before(&mut bed, name, &before);
    }
}

/// A process that stands still has not crashed: its connections may go on, or end with an error.
fn stands_still(name: &str, judge: Judge) {
    let mut bed = Fixture::up();
    let under_way = UnderWay::begin(&mut bed);
    signal(&mut bed, name, Signal::STOP);
    let seconds = std::env::var("BRAID_STANDSTILL").ok();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(STANDSTILL);
    thread::sleep(Duration::from_secs(seconds));
    signal(&mut bed, name, Signal::CONT);
    bed.release();
    let going_on = Instant::now();
    let connected = |bed: &Fixture| status(bed, "server").counters["connected"];
    let before = connected(&bed);
    let expected = bed.offer("small", 20_000);
    expect_service(&mut bed, (name, going_on), judge, |bed| {
        bed.curl("small").expect_bytes(&expected);
        connected(bed) > before
    });
    under_way.end(judge);
    bed.expect_both_links();
}

#[test]
#[ignore = "network"]
fn a_killed_box_fails_open_and_serves_again() {
    killed_box(Judge::Service);
}

#[test]
#[ignore = "network"]
fn a_killed_server_ends_its_connections_and_serves_again() {
    killed_server(Judge::Service);
}

#[test]
#[ignore = "network"]
fn a_box_that_stands_still_goes_on() {
    stands_still("box", Judge::Service);
}

#[test]
#[ignore = "network"]
fn a_server_that_stands_still_goes_on() {
    stands_still("server", Judge::Service);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn a_killed_box_serves_soon() {
        killed_box(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn a_killed_server_serves_soon() {
        killed_server(Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn a_box_that_stands_still_serves_soon() {
        stands_still("box", Judge::Clock);
    }

    #[test]
    #[ignore = "soak"]
    fn a_server_that_stands_still_serves_soon() {
        stands_still("server", Judge::Clock);
    }
}
