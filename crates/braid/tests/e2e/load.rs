//! Users at work while their server is attacked: a download goes on, all users who come are served, and
//! neither log nor memory of the server grows with the attack. In the soak, users keep their rate too.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::fixture::POLL_INTERVAL;
use braid_testbed::netns;

use super::fixture::{Download, Fixture, Judge};

/// The share of their rate that users keep.
const ENOUGH: f64 = 0.9;
/// Users who come during an attack.
pub const USERS: usize = 25;
/// Time over which a rate is measured.
const SPAN: Duration = Duration::from_secs(3);
/// Spans of which one has to be good: other work may take the processors in one, but an attack is in all.
const SPANS: u32 = 5;
/// Bytes of the download, more than the links carry in an hour, and its longest duration, seconds.
const LARGE: u64 = 40_000_000_000;
const LARGE_S: &str = "3600";
/// Longest time until an attack is under way.
const ONSET: Duration = Duration::from_secs(60);
/// Bytes by which the download has to grow during an attack.
const PROGRESS: u64 = 500_000;
/// Bytes by which the memory of the server's process may grow,
pub const GROWTH: u64 = 64 << 20;
/// and bytes of it that may remain: the allocator keeps some freed memory.
const KEPT: u64 = 16 << 20;
/// Lines that an attack may add to the server's log: one a minute for each kind of message, by source.
pub const LINES: usize = 30;

/// A download, the users who come beside it, and the server's state before.
pub struct Load {
    judge: Judge,
    download: Download,
    small: Vec<u8>,
    memory: u64,
}

/// The signals between an attack under way and its judge.
#[derive(Default)]
pub struct Attack {
    begun: AtomicBool,
    ending: AtomicBool,
}

impl Attack {
    /// Tells that the attack is under way: users come now.
    pub fn begins(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Returns true until users have seen enough of it.
    pub fn goes_on(&self) -> bool {
        !self.ending.load(Ordering::Acquire)
    }
}

/// Ends an attack when it is dropped, even by a test that fails.
pub struct EndsWith<'a>(pub &'a Attack);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.ending.store(true, Ordering::Release);
    }
}

/// The outcome of an attack.
pub struct Kept {
    /// Share of their rate that users kept, and that rate without an attack in bytes a second; `None` if only
    /// the service is judged.
    rate: Option<(f64, f64)>,
    /// Packets a second that the server's kernel delivered to its engine.
    pub packets: f64,
}

impl Kept {
    /// Fails if `what` took too much of the users' rate, if that is judged.
    pub fn expect_enough(&self, what: &str) {
        if let Some((share, alone)) = self.rate {
            println!("{what}: users have {share:.2} of {alone:.0} bytes/s");
            assert!(share > ENOUGH, "{what}: {share:.2} of {alone:.0} bytes/s");
        }
    }
}

impl Load {
    /// Slows the links down to what two processors carry beside an attack, and starts a download.
    pub fn start(bed: &mut Fixture, judge: Judge) -> Self {
        bed.set_link("link1", "rate=20mbit");
        bed.set_link("link2", "rate=10mbit");
        let small = bed.offer("small", 20_000);
        bed.offer_zeros("large", LARGE);
        let download = begin(bed, judge);
        Load {
            judge,
            download,
            small,
            memory: memory(bed, "server"),
        }
    }

    /// Lets users come while the router between them and the server carries out `attack`.
    pub fn during(&mut self, bed: &mut Fixture, attack: impl FnOnce(&Attack) + Send) -> Kept {
        let router = bed.testbed.layout().host("internet").expect("a host");
        let router = router.namespace.clone();
        let lines = bed.log("server").lines().count();
        let alone = (self.judge == Judge::Clock).then(|| rate(|| self.download.bytes()));
        let quiet = packets(bed);
        let state = Attack::default();
        let kept = thread::scope(|scope| {
            let attacker = scope.spawn(|| {
                netns::run_inside(&router, || {
                    attack(&state);
                    Ok(())
                })
                .expect("a host")
            });
            let ended = EndsWith(&state);
            let called = Instant::now();
            while !state.begun.load(Ordering::Acquire) {
                let waits = !attacker.is_finished() && called.elapsed() < ONSET;
                assert!(waits, "the attack does not begin");
                thread::sleep(POLL_INTERVAL);
            }
            let begun = Instant::now();
            let users: Vec<_> = (0..USERS).map(|_| bed.curl("small")).collect();
            let moved = || self.download.bytes() + users.iter().map(Download::bytes).sum::<u64>();
            let rate = alone.map(|alone| (best_share(alone, ENOUGH, moved), alone));
            for user in users {
                user.expect_bytes(&self.small);
            }
            let before = self.download.bytes();
            bed.wait_for("the download to go on", |_| {
                self.download.bytes() > before + PROGRESS
            });
            let packets = (packets(bed) - quiet) as f64 / begun.elapsed().as_secs_f64();
            drop(ended);
            Kept { rate, packets }
        });
        let written = bed.log("server").lines().count() - lines;
        assert!(written < LINES, "{written} lines:\n{}", bed.log("server"));
        let grown = memory(bed, "server").saturating_sub(self.memory);
        assert!(grown < GROWTH, "the server grew by {grown} bytes");
        kept
    }

    /// Ends the download; the server's memory must be as before.
    pub fn expect_memory_back(self, bed: &mut Fixture) {
        let (before, mut last) = (self.memory, 0);
        drop(self.download);
        bed.wait_for("the server's memory to be given back", |bed| {
            let now = memory(bed, "server");
            let back = now < before + KEPT;
            if now != last {
                println!("memory: {before} bytes before, {now} after");
                last = now;
            }
            back
        });
    }
}

/// Starts a download and waits until it is under way; if its rate is judged, until slow start is over.
fn begin(bed: &mut Fixture, judge: Judge) -> Download {
    let going = match judge {
        Judge::Service => PROGRESS,
        Judge::Clock => 8_000_000,
    };
    let url = format!("http://{}/large", bed.v4("content"));
    let download = bed.curl_by(&["--noproxy", "*", "--max-time", LARGE_S], &url);
    bed.wait_for("the download to get going", |_| download.bytes() > going);
    download
}

/// Returns the best share of `alone` that `moved` keeps in a span, or the first that is above `enough`.
pub fn best_share(alone: f64, enough: f64, moved: impl Fn() -> u64) -> f64 {
    let mut share: f64 = 0.0;
    for _ in 0..SPANS {
        share = share.max(rate(&moved) / alone);
        if share > enough {
            break;
        }
        eprintln!("{share:.2} of {alone:.0} bytes/s until now");
    }
    share
}

/// Returns the memory of the process of box or server, bytes.
pub fn memory(bed: &mut Fixture, role: &str) -> u64 {
    let pid = bed.testbed.pid(role).expect("it runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("of a process");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.expect("resident memory").trim();
    let kib = resident
        .split(' ')
        .next()
        .and_then(|n| n.parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// Returns the number of packets that the server's kernel has delivered to its engine.
fn packets(bed: &Fixture) -> u64 {
    let printed = bed.print("server", "ip", &["-j", "-s", "link", "show", "braid0"]);
    let link: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let packets = link[0]["stats64"]["tx"]["packets"].as_u64();
    packets.expect("a counter")
}

/// Returns the bytes a second that `bytes` grows, over [`SPAN`].
pub fn rate(bytes: impl Fn() -> u64) -> f64 {
    let (begun, before) = (Instant::now(), bytes());
    thread::sleep(SPAN);
    (bytes() - before) as f64 / begun.elapsed().as_secs_f64()
}
