//! The link emulator against the wall clock.
//!
//! What is measured while the emulator itself was late is thrown away and measured again.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::netns;
use braid_testbed::{LinkChange, LinkStatus, Options, Spec, Testbed};
use braid_wire::Rng;

/// Two hosts and two links of 5 Mbit/s, 20 ms one way, 1 % loss.
const TWO_PATHS: &str = r#"
name = "NAME"
seed = 20
[[host]]
name = "a"
role = "user"
[[host]]
name = "b"
role = "user"
[[link]]
name = "link1"
from = "a"
to = "b"
rate = "5Mbit/s"
delay = "20ms"
loss = "1%"
queue = "50 packets"
[[link]]
name = "link2"
from = "a"
to = "b"
rate = "5Mbit/s"
delay = "20ms"
loss = "1%"
queue = "50 packets"
"#;

const RATE: f64 = 5e6;
const LOSS: f64 = 0.01;

/// IPv4 and UDP headers.
const HEADERS: usize = 28;

/// How often a measurement is tried again because the emulator was late.
const ATTEMPTS: usize = 5;

/// The emulator was later than this at the 99th percentile: the machine, not the model, was seen.
const TOLERABLE: f64 = 1000.0;

/// One measurement at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn up(suffix: &str) -> Option<Testbed> {
    if let Err(reason) = netns::ensure_capable() {
        reason.announce("testbed tests");
        return None;
    }
    let name = format!("be{}{suffix}", std::process::id());
    let spec = Spec::parse(&TWO_PATHS.replace("NAME", &name), Path::new("two.toml")).unwrap();
    Some(Testbed::up(spec, Options::default()).unwrap())
}

/// Runs `measure` until the emulator was in time throughout, and judges that one.
fn undisturbed<T>(testbed: &mut Testbed, measure: impl Fn(&Testbed) -> T, judge: impl FnOnce(&T)) {
    for _ in 0..ATTEMPTS {
        testbed.reset_lateness().unwrap();
        let measured = measure(testbed);
        let late = testbed.lateness().unwrap();
        eprintln!(
            "lateness: p50 {} µs, p99 {} µs, max {} µs",
            late.p50_us, late.p99_us, late.max_us
        );
        if late.p99_us <= TOLERABLE {
            return judge(&measured);
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "skipped: this machine is too busy to emulate links in wall-clock time"
    );
}

/// Sockets at both ends of a path, bound to its addresses.
struct Sockets {
    a: UdpSocket,
    b: UdpSocket,
    to_b: SocketAddr,
}

fn path(testbed: &Testbed, link: usize, port: u16) -> Sockets {
    let open = |host: &str| {
        let host = testbed.layout().host(host).unwrap();
        let address = SocketAddr::from((host.interfaces[link].address4, port));
        let socket = netns::run_inside(&host.namespace, || UdpSocket::bind(address)).unwrap();
        // Large enough that a receiver that is not scheduled for a while loses nothing.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20);
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        (socket, address)
    };
    let ((a, _), (b, to_b)) = (open("a"), open("b"));
    Sockets { a, b, to_b }
}

/// Lower quartile of the round-trip times of `count` datagrams of `len` bytes, IP headers included, 10 ms apart.
fn round_trip(path: &Sockets, count: u32, len: usize) -> Duration {
    let stop = AtomicBool::new(false);
    let mut times = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((n, from)) = path.b.recv_from(&mut buffer) {
                    path.b.send_to(&buffer[..n], from).unwrap();
                }
            }
        });
        let start = Instant::now();
        scope.spawn(move || {
            let mut datagram = vec![0; len - HEADERS];
            for n in 0..count {
                let due = Duration::from_millis(10) * n;
                thread::sleep(due.saturating_sub(start.elapsed()));
                let now = start.elapsed().as_nanos() as u64;
                datagram[..8].copy_from_slice(&now.to_le_bytes());
                path.a.send_to(&datagram, path.to_b).unwrap();
            }
        });
        let mut times = Vec::new();
        let mut buffer = [0; 2048];
        while path.a.recv(&mut buffer).is_ok() {
            let sent = u64::from_le_bytes(buffer[..8].try_into().unwrap());
            times.push(start.elapsed() - Duration::from_nanos(sent));
        }
        stop.store(true, Ordering::Relaxed);
        times
    });
    assert!(
        times.len() > count as usize * 9 / 10,
        "{} of {count} came back",
        times.len()
    );
    // What the scheduling of these threads adds is not the link's: most are free of it, not all.
    times.sort();
    times[times.len() / 4]
}

/// Sends datagrams of `len` bytes, IP headers included, at `per_ms` a millisecond for `duration`.
/// Answers how many were sent, how many came, and the rate at which they came, bit/s.
fn flood(path: &Sockets, len: usize, per_ms: f64, duration: Duration) -> (u64, u64, f64) {
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let datagram = vec![0; len - HEADERS];
            let start = Instant::now();
            let mut sent = 0;
            while start.elapsed() < duration {
                while (sent as f64) < start.elapsed().as_secs_f64() * 1e3 * per_ms {
                    // A full device queue (ENOBUFS) is a lost datagram like another.
                    let _ = path.a.send_to(&datagram, path.to_b);
                    sent += 1;
                }
                thread::sleep(Duration::from_micros(500));
            }
            sent
        });
        let mut buffer = [0; 2048];
        let mut span: Option<(Instant, Instant)> = None;
        let mut came = 0u64;
        while path.b.recv(&mut buffer).is_ok() {
            let now = Instant::now();
            span = Some((span.map_or(now, |s| s.0), now));
            came += 1;
        }
        let seconds = span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let rate = (came.saturating_sub(1) as f64) * len as f64 * 8.0 / seconds;
        (sender.join().unwrap(), came, rate)
    })
}

fn assert_round_trip(measured: Duration, len: usize) {
    let serialisation = 2.0 * len as f64 * 8.0 / RATE;
    let expected = Duration::from_millis(40) + Duration::from_secs_f64(serialisation);
    assert!(
        measured >= expected,
        "RTT {measured:?}, less than {expected:?}"
    );
    assert!(
        measured - expected < Duration::from_millis(1),
        "RTT {measured:?}, not {expected:?}"
    );
}

fn assert_rate(measured: f64) {
    assert!((measured / RATE - 1.0).abs() < 0.02, "{measured} bit/s");
}

#[test]
fn round_trip_times_are_within_a_millisecond_also_beside_a_full_path() {
    let _machine = machine();
    let Some(mut testbed) = up("rtt") else { return };
    undisturbed(
        &mut testbed,
        |testbed| {
            let (one, two) = (path(testbed, 0, 5000), path(testbed, 1, 5000));
            let idle = thread::scope(|scope| {
                let other = scope.spawn(|| round_trip(&two, 150, 100));
                [round_trip(&one, 150, 100), other.join().unwrap()]
            });
            let full = path(testbed, 0, 5001);
            let beside = thread::scope(|scope| {
                let flood = scope.spawn(|| flood(&full, 1500, 0.8, Duration::from_secs(2)));
                let beside = round_trip(&two, 150, 100);
                (beside, flood.join().unwrap().2)
            });
            (idle, beside)
        },
        |(idle, (beside, rate))| {
            idle.iter().for_each(|rtt| assert_round_trip(*rtt, 100));
            assert_round_trip(*beside, 100);
            assert_rate(*rate);
        },
    );
    testbed.down().unwrap();
}

#[test]
fn two_full_paths_each_have_their_rate() {
    let _machine = machine();
    let Some(mut testbed) = up("rate") else {
        return;
    };
    undisturbed(
        &mut testbed,
        |testbed| {
            let (one, two) = (path(testbed, 0, 5000), path(testbed, 1, 5000));
            thread::scope(|scope| {
                let other = scope.spawn(|| flood(&two, 1500, 0.8, Duration::from_secs(3)).2);
                [
                    flood(&one, 1500, 0.8, Duration::from_secs(3)).2,
                    other.join().unwrap(),
                ]
            })
        },
        |rates| rates.iter().for_each(|rate| assert_rate(*rate)),
    );
    testbed.down().unwrap();
}

#[test]
fn losses_are_within_three_sigma() {
    let _machine = machine();
    let Some(mut testbed) = up("loss") else {
        return;
    };
    // By chance, and because the sender had to catch up with its own pace.
    let lost_by = |link: LinkStatus| {
        let d = link.forward;
        [d.dropped_loss, d.dropped_queue + d.dropped_device]
    };
    undisturbed(
        &mut testbed,
        |testbed| {
            let before = ["link1", "link2"].map(|l| lost_by(testbed.link_status(l).unwrap()));
            let (one, two) = (path(testbed, 0, 5000), path(testbed, 1, 5000));
            let counts = thread::scope(|scope| {
                let other = scope.spawn(|| flood(&two, 100, 3.0, Duration::from_secs(4)));
                [
                    flood(&one, 100, 3.0, Duration::from_secs(4)),
                    other.join().unwrap(),
                ]
            });
            let after = ["link1", "link2"].map(|l| lost_by(testbed.link_status(l).unwrap()));
            let lost = [0, 1].map(|link| [0, 1].map(|why| after[link][why] - before[link][why]));
            (counts, lost)
        },
        |(counts, lost_by_link)| {
            for ((sent, came, _), [chance, queues]) in counts.iter().zip(lost_by_link) {
                let sigma = (*sent as f64 * LOSS * (1.0 - LOSS)).sqrt();
                let off = (*chance as f64 - *sent as f64 * LOSS).abs();
                assert!(off < 3.0 * sigma, "{chance} of {sent} lost");
                // Besides the datagrams there is at most the odd neighbour discovery.
                let lost = sent - came;
                assert!(
                    (chance + queues).abs_diff(lost) <= 3,
                    "{lost} lost, {chance} by chance and {queues} in queues"
                );
            }
        },
    );
    testbed.down().unwrap();
}

#[test]
fn a_link_carries_300_mbit_a_second() {
    let _machine = machine();
    let Some(mut testbed) = up("fast") else {
        return;
    };
    let faster = LinkChange::parse(["rate=400M", "delay=5ms", "loss=0", "queue=1MB"]).unwrap();
    testbed.set("link1", None, &faster).unwrap();
    let path = path(&testbed, 0, 5000);
    // Other work on the machine may take the sender's or the receiver's time: the best counts.
    let mut best = 0.0f64;
    for _ in 0..ATTEMPTS {
        let (sent, came, rate) = flood(&path, 1500, 33.0, Duration::from_secs(1));
        eprintln!("sent {sent}, came {came}, {:.0} Mbit/s", rate / 1e6);
        best = best.max(rate);
        if best >= 300e6 {
            break;
        }
    }
    eprintln!("lateness: {:?}", testbed.lateness().unwrap());
    assert!(best >= 300e6, "{best} bit/s at best");
    testbed.down().unwrap();
}

/// Sends `count` numbered datagrams over link 1, restarted with `changes`, `gap` apart; which of
/// them came, in order of arrival.
fn numbered(testbed: &mut Testbed, changes: &[&str], count: u32, gap: Duration) -> Vec<u32> {
    let words = changes.iter().chain(&["restart"]);
    let mut change = LinkChange::parse(words).unwrap();
    change.load(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let path = path(testbed, 0, 5002);
    testbed.set("link1", None, &change).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..count {
                thread::sleep((gap * n).saturating_sub(start.elapsed()));
                path.a.send_to(&n.to_le_bytes(), path.to_b).unwrap();
            }
        });
        let mut came = Vec::new();
        let mut datagram = [0; 4];
        while path.b.recv(&mut datagram).is_ok() {
            came.push(u32::from_le_bytes(datagram));
        }
        came
    })
}

/// So that a run over emulated links and one in the simulator lose the same packets.
#[test]
fn losses_fall_on_the_packets_that_the_seed_says() {
    let _machine = machine();
    let Some(mut testbed) = up("seed") else {
        return;
    };
    let mut draws = Rng::for_component(20, 0);
    let survivors: Vec<u32> = (0..500).filter(|_| !draws.chance(0.1)).collect();
    for _ in 0..2 {
        let came = numbered(&mut testbed, &["loss=10%"], 500, Duration::from_millis(1));
        assert_eq!(came, survivors);
    }
    testbed.down().unwrap();
}

#[test]
fn what_is_set_of_a_link_happens_to_its_packets() {
    let _machine = machine();
    let Some(mut testbed) = up("fate") else {
        return;
    };
    let forward = |testbed: &Testbed| testbed.link_status("link1").unwrap().forward;
    let gap = Duration::from_millis(1);
    let each: Vec<u32> = (0..50).collect();

    let twice: Vec<u32> = each.iter().flat_map(|n| [*n, *n]).collect();
    assert_eq!(
        numbered(&mut testbed, &["loss=0", "duplicate=1"], 50, gap),
        twice
    );
    assert_eq!(forward(&testbed).packets_duplicated, 50);

    // A flipped bit is for the checksum to find.
    assert_eq!(
        numbered(&mut testbed, &["loss=0", "corrupt=1"], 50, gap),
        [0; 0]
    );
    assert_eq!(forward(&testbed).packets_corrupted, 50);

    // A detour of twenty gaps: overtaken by those that do not take it.
    let mut overtaken = numbered(&mut testbed, &["loss=0", "reorder=30%/20ms"], 50, gap);
    assert!(forward(&testbed).packets_detoured > 0);
    assert_ne!(overtaken, each);
    overtaken.sort();
    assert_eq!(overtaken, each);

    // In bursts of a hundred: much at once, not each tenth.
    let came = numbered(&mut testbed, &["loss=50%/100"], 2000, gap / 10);
    let ends = came
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count();
    assert!((1..60).contains(&ends), "{ends} bursts");

    // A hundred packets of 32 bytes in the queue take 1 s at 25 kbit/s.
    let slow = ["loss=0", "rate=25k", "queue=1000 packets"];
    assert_eq!(
        numbered(&mut testbed, &slow, 100, gap),
        (0..100).collect::<Vec<_>>()
    );
    let came = numbered(
        &mut testbed,
        &[&slow[..], &["codel=5ms/50ms"]].concat(),
        100,
        gap,
    );
    let dropped = forward(&testbed).dropped_codel;
    assert!(dropped > 0);
    assert_eq!(came.len() as u64 + dropped, 100);
    testbed.down().unwrap();
}

#[test]
fn a_trace_says_when_packets_leave() {
    let _machine = machine();
    let Some(mut testbed) = up("trace") else {
        return;
    };
    // Two packets every 25 ms: 960 kbit/s.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-each-25ms.trace");
    std::fs::write(&file, "25\n25\n").unwrap();
    let mut change = LinkChange::parse(["loss=0", "trace=two-each-25ms.trace"]).unwrap();
    change.load(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    testbed.set("link1", None, &change).unwrap();
    assert_eq!(
        testbed.link_status("link1").unwrap().forward.rate,
        Some(960_000)
    );
    let path = path(&testbed, 0, 5000);
    let (_, _, rate) = flood(&path, 1500, 0.3, Duration::from_secs(2));
    assert!((rate / 960e3 - 1.0).abs() < 0.05, "{rate} bit/s");
    testbed.down().unwrap();
}

#[test]
fn a_link_changes_as_its_schedule_says() {
    let _machine = machine();
    if netns::ensure_capable().is_err() {
        return;
    }
    let name = format!("be{}plan", std::process::id());
    let schedule = "schedule = [\"200ms forward down\", \"400ms up delay=60ms\", \"3600s loss=1\"]";
    let text = TWO_PATHS
        .replace("NAME", &name)
        .replace("loss = \"1%\"", schedule);
    let spec = Spec::parse(&text, Path::new("plan.toml")).unwrap();
    let mut testbed = Testbed::up(spec, Options::default()).unwrap();
    let came = numbered(&mut testbed, &[], 60, Duration::from_millis(10));
    // Those sent while the link is down are lost, and those that are in it when it goes down.
    let lost: Vec<u32> = (0..60).filter(|n| !came.contains(n)).collect();
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert_eq!(lost, (first..=last).collect::<Vec<_>>());
    assert!(
        (17..=19).contains(&first) && (38..=41).contains(&last),
        "{lost:?}"
    );
    let status = testbed.link_status("link1").unwrap();
    assert_eq!(
        (status.forward.delay_ms, status.reverse.delay_ms),
        (60.0, 60.0)
    );

    // What is set holds until the schedule says otherwise, and leaves the rest of it in force.
    let slower = LinkChange::parse(["rate=1M"]).unwrap();
    testbed.set("link1", None, &slower).unwrap();
    let status = testbed.link_status("link1").unwrap();
    assert_eq!(
        (status.forward.rate, status.forward.delay_ms),
        (Some(1_000_000), 60.0)
    );
    testbed.down().unwrap();
}

#[test]
fn a_link_that_is_down_is_dark_and_comes_back() {
    let _machine = machine();
    let Some(mut testbed) = up("dark") else {
        return;
    };
    let set = |testbed: &mut Testbed, words: &[&str]| {
        testbed
            .set("link1", None, &LinkChange::parse(words).unwrap())
            .unwrap();
    };
    set(&mut testbed, &["loss=0", "down"]);
    let path = path(&testbed, 0, 5000);
    path.a.send_to(b"lost", path.to_b).unwrap();
    assert!(path.b.recv(&mut [0; 16]).is_err());
    assert!(testbed.link_status("link1").unwrap().forward.dropped_down > 0);
    set(&mut testbed, &["up"]);
    path.a.send_to(b"carried", path.to_b).unwrap();
    assert_eq!(path.b.recv(&mut [0; 16]).unwrap(), 7);
    testbed.down().unwrap();
}
