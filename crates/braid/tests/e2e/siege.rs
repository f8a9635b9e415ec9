//! Users at work while somebody attacks their server: a download goes on at its rate, everybody who comes is
//! served, and neither log nor memory of the server grow with the attack.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::bed::POLL;
use braid_testbed::netns;

use super::bed::{Bed, Download};

/// The share of their rate that users keep.
pub const ENOUGH: f64 = 0.9;
/// Honest users that come during an attack.
pub const USERS: usize = 25;
/// Over which a rate is taken.
const SPAN: Duration = Duration::from_secs(3);
/// Spans of which one is enough: something else may have the processors in one, an attack is in all.
const SPANS: u32 = 5;
/// A download is replaced after this long, before it is over.
const RENEWAL: Duration = Duration::from_secs(40);
/// How long an attack may take until it is under way.
const ONSET: Duration = Duration::from_secs(30);
/// Memory of the server's process may grow by so much, bytes,
const GROWTH: u64 = 64 << 20;
/// and by so much of it in the end: what the allocator keeps in place of giving it back.
const KEPT: u64 = 16 << 20;
/// Lines that an attack may write to the log of the server: one a minute for what it does, by source.
const LINES: usize = 30;

/// A download, those who come beside it, and what the server had before.
pub struct Siege {
    download: Download,
    begun: Instant,
    small: Vec<u8>,
    memory: u64,
}

/// An attack under way, as the attacker knows it.
#[derive(Default)]
pub struct Attack {
    begun: AtomicBool,
    ending: AtomicBool,
}

impl Attack {
    /// It is under way: users come now.
    pub fn begins(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Until users have seen enough of it.
    pub fn goes_on(&self) -> bool {
        !self.ending.load(Ordering::Acquire)
    }
}

/// Ends an attack when it is dropped, also by a test that fails.
struct EndsWith<'a>(&'a Attack);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.ending.store(true, Ordering::Release);
    }
}

/// What users kept.
pub struct Kept {
    /// Of the rate without an attack.
    pub share: f64,
    /// That rate, bytes a second.
    pub alone: f64,
    /// Packets a second that the server's system handed to its engine.
    pub packets: f64,
}

impl Kept {
    /// Fails where `what` has taken too much.
    pub fn expect_enough(&self, what: &str) {
        let Kept { share, alone, .. } = self;
        assert!(*share > ENOUGH, "{what}: {share:.2} of {alone:.0} bytes/s");
    }
}

impl Siege {
    /// Slows the links down to what two processors carry beside an attack, and begins a download.
    pub fn lay(bed: &mut Bed) -> Self {
        bed.set_link("link1", "rate=20mbit");
        bed.set_link("link2", "rate=10mbit");
        let small = bed.offer("small", 20_000);
        bed.offer("large", 400_000_000);
        let download = begin(bed);
        Siege {
            download,
            begun: Instant::now(),
            small,
            memory: memory(bed),
        }
    }

    /// What users keep while `attack` is carried out by the router between them and the server.
    pub fn during(&mut self, bed: &mut Bed, attack: impl FnOnce(&Attack) + Send) -> Kept {
        if self.begun.elapsed() > RENEWAL {
            self.download = begin(bed);
            self.begun = Instant::now();
        }
        let router = bed.testbed.layout().host("internet").expect("a host");
        let router = router.namespace.clone();
        let lines = bed.log("server").lines().count();
        let (alone, quiet) = (rate(|| self.download.bytes()), packets(bed));
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
                thread::sleep(POLL);
            }
            let begun = Instant::now();
            let users: Vec<_> = (0..USERS).map(|_| bed.curl("small")).collect();
            let moved = || self.download.bytes() + users.iter().map(Download::bytes).sum::<u64>();
            let mut share: f64 = 0.0;
            for _ in 0..SPANS {
                share = share.max(rate(moved) / alone);
                if share > ENOUGH {
                    break;
                }
                eprintln!("{share:.2} of {alone:.0} bytes/s until now");
            }
            for user in users {
                user.expect_bytes(&self.small);
            }
            let packets = (packets(bed) - quiet) as f64 / begun.elapsed().as_secs_f64();
            drop(ended);
            Kept {
                share,
                alone,
                packets,
            }
        });
        let written = bed.log("server").lines().count() - lines;
        assert!(written < LINES, "{written} lines:\n{}", bed.log("server"));
        let grown = memory(bed).saturating_sub(self.memory);
        assert!(grown < GROWTH, "the server grew by {grown} bytes");
        kept
    }

    /// Ends the download; the server's memory is what it was.
    pub fn expect_memory_back(self, bed: &mut Bed) {
        let (before, mut last) = (self.memory, 0);
        drop(self.download);
        bed.wait_for("the server's memory to be given back", |bed| {
            let now = memory(bed);
            let back = now < before + KEPT;
            if now != last {
                println!("memory: {before} bytes before, {now} after");
                last = now;
            }
            back
        });
    }
}

/// A download that has got going.
fn begin(bed: &mut Bed) -> Download {
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 8_000_000
    });
    download
}

/// Memory of the server's process, bytes.
fn memory(bed: &mut Bed) -> u64 {
    let pid = bed.testbed.pid("server").expect("it runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("of a process");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.expect("resident memory").trim();
    let kib = resident
        .split(' ')
        .next()
        .and_then(|n| n.parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// Packets that the server's system has handed to its engine.
fn packets(bed: &Bed) -> u64 {
    let printed = bed.print("server", "ip", &["-j", "-s", "link", "show", "braid0"]);
    let link: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let packets = link[0]["stats64"]["tx"]["packets"].as_u64();
    packets.expect("a counter")
}

/// Bytes a second that move, over [`SPAN`].
fn rate(bytes: impl Fn() -> u64) -> f64 {
    let (begun, before) = (Instant::now(), bytes());
    thread::sleep(SPAN);
    (bytes() - before) as f64 / begun.elapsed().as_secs_f64()
}
