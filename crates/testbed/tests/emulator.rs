//! Tests of the link emulator between network namespaces.
//!
//! Tests outside the module `soak` check lower bounds of times only, so that they hold however late the
//! emulator or the test is scheduled.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::netns;
use braid_testbed::{DirectionStatus, LinkChange, Options, Spec, Testbed};
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

/// Rate of both links, bit/s.
const RATE: f64 = 5e6;
/// Probability of loss of both links.
const LOSS: f64 = 0.01;
/// One-way delay of both links.
const DELAY: Duration = Duration::from_millis(20);

/// Length of the IPv4 and UDP headers, bytes.
const HEADERS: usize = 28;
/// Largest payload that a test sends, bytes.
const MAX_PAYLOAD: usize = 1500 - HEADERS;
/// Most datagrams of 100 bytes or less on their way at once. Without privileges, the buffer of a socket holds
/// about 256 of them (`net.core.rmem_default`), and a duplicated one counts twice.
const BATCH: u32 = 100;

/// Bound on every wait: other work may delay a machine for seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two looks at a condition that is waited for.
const POLL: Duration = Duration::from_millis(10);

/// Brings up a testbed of two links; `None` if namespaces cannot be made.
fn up(suffix: &str) -> Option<Testbed> {
    up_as(TWO_PATHS, suffix)
}

fn up_as(description: &str, suffix: &str) -> Option<Testbed> {
    if let Err(reason) = netns::ensure_capable() {
        reason.announce("testbed tests");
        return None;
    }
    let name = format!("be{}{suffix}", std::process::id());
    let text = description.replace("NAME", &name);
    let spec = Spec::parse(&text, Path::new("two.toml")).unwrap();
    Some(Testbed::up(spec, Options::default()).unwrap())
}

fn set(testbed: &mut Testbed, link: &str, words: &[&str]) {
    let mut change = LinkChange::parse(words).unwrap();
    change.load(testbed.state_dir()).unwrap();
    testbed.set(link, None, &change).unwrap();
}

/// Polls the forward direction of `link` until `done`, and returns its status then.
fn wait_for(
    testbed: &Testbed,
    link: &str,
    what: &str,
    done: impl Fn(&DirectionStatus) -> bool,
) -> DirectionStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = testbed.link_status(link).unwrap().forward;
        if done(&status) {
            return status;
        }
        assert!(
            Instant::now() < deadline,
            "{link}: {what}: not within {TIMEOUT:?}, now {status:#?}"
        );
        thread::sleep(POLL);
    }
}

/// Waits until `link` was offered `sent` packets since its start and none is in it any more.
fn settled(testbed: &Testbed, link: &str, sent: u64) -> DirectionStatus {
    let what = format!("{sent} packets are delivered or dropped");
    wait_for(testbed, link, &what, |d| is_settled(d, sent))
}

fn is_settled(d: &DirectionStatus, sent: u64) -> bool {
    let dropped = d.dropped_queue + d.dropped_codel + d.dropped_loss + d.dropped_down;
    d.packets_offered + d.dropped_device >= sent
        && d.packets_delivered + dropped == d.packets_offered + d.packets_duplicated
}

/// Sockets at both ends of a path, bound to its addresses.
struct Sockets {
    link: &'static str,
    a: UdpSocket,
    b: UdpSocket,
    to_b: SocketAddr,
}

fn path(testbed: &Testbed, link: usize, port: u16) -> Sockets {
    let open = |host: &str| {
        let host = testbed.layout().host(host).unwrap();
        let address = SocketAddr::from((host.interfaces[link].address4, port));
        let socket = netns::run_inside(&host.namespace, || UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        (socket, address)
    };
    let ((a, _), (b, to_b)) = (open("a"), open("b"));
    Sockets {
        link: ["link1", "link2"][link],
        a,
        b,
        to_b,
    }
}

impl Sockets {
    /// Sends a datagram of `len` bytes, IP headers included, for each of `numbers`, which is in its first bytes.
    fn send_numbered(&self, numbers: Range<u32>, len: usize) {
        let mut datagram = vec![0; len - HEADERS];
        for n in numbers {
            datagram[..4].copy_from_slice(&n.to_le_bytes());
            self.a.send_to(&datagram, self.to_b).unwrap();
        }
    }

    /// Receives `count` datagrams, and returns their numbers in order of arrival.
    fn receive_numbered(&self, count: u64) -> Vec<u32> {
        let mut came = Vec::new();
        let mut datagram = [0; MAX_PAYLOAD];
        for n in 0..count {
            if let Err(error) = self.b.recv(&mut datagram) {
                panic!("{}: {n} of {count} came: {error}", self.link);
            }
            came.push(u32::from_le_bytes(datagram[..4].try_into().unwrap()));
        }
        came
    }

    /// Sends `count` numbered datagrams of `len` bytes. Reads those that have arrived before it sends more
    /// than the buffer of a socket holds. Returns their numbers, in order of arrival, and the link's
    /// counters. The link must have been restarted or unused before.
    fn exchange_numbered(
        &self,
        testbed: &Testbed,
        count: u32,
        len: usize,
    ) -> (Vec<u32>, DirectionStatus) {
        let (mut sent, mut came) = (0, Vec::new());
        loop {
            let next = count.min(sent + BATCH);
            self.send_numbered(sent..next, len);
            sent = next;
            let status = settled(testbed, self.link, sent.into());
            // A socket drops what a link has corrupted, because the checksum does not hold.
            let intact = status.packets_delivered - status.packets_corrupted;
            came.extend(self.receive_numbered(intact - came.len() as u64));
            if sent == count {
                return (came, status);
            }
        }
    }
}

/// Restarts link 1 with `changes` and sends `count` numbered datagrams of 32 bytes over it. Returns the
/// numbers of those that arrive, in order, and the link's counters.
fn numbered(
    testbed: &mut Testbed,
    path: &Sockets,
    changes: &[&str],
    count: u32,
) -> (Vec<u32>, DirectionStatus) {
    set(testbed, path.link, &[changes, &["restart"]].concat());
    path.exchange_numbered(testbed, count, HEADERS + 4)
}

#[test]
#[ignore = "network"]
fn a_link_delivers_no_packet_before_its_time() {
    let Some(mut testbed) = up("late") else {
        return;
    };
    for link in ["link1", "link2"] {
        set(&mut testbed, link, &["loss=0", "queue=100 packets"]);
    }
    let serialisation = |len: usize| Duration::from_secs_f64(len as f64 * 8.0 / RATE);
    let (testbed_ref, both) = (&testbed, [0, 1]);
    thread::scope(|scope| {
        for link in both {
            scope.spawn(move || {
                let path = path(testbed_ref, link, 5000);
                for _ in 0..20 {
                    let (mut datagram, begun) = ([0; 100 - HEADERS], Instant::now());
                    path.a.send_to(&datagram, path.to_b).unwrap();
                    let (len, from) = path.b.recv_from(&mut datagram).unwrap();
                    path.b.send_to(&datagram[..len], from).unwrap();
                    path.a.recv(&mut datagram).unwrap();
                    let (rtt, least) = (begun.elapsed(), 2 * (DELAY + serialisation(100)));
                    assert!(rtt >= least, "RTT {rtt:?}, less than {least:?}");
                }
                let begun = Instant::now();
                path.send_numbered(0..30, 1500);
                assert_eq!(path.receive_numbered(30), (0..30).collect::<Vec<_>>());
                let (took, least) = (begun.elapsed(), DELAY + 30 * serialisation(1500));
                assert!(took >= least, "30 packets in {took:?}, less than {least:?}");
            });
        }
    });
    testbed.down().unwrap();
}

#[test]
#[ignore = "network"]
fn losses_are_within_three_sigma() {
    const COUNT: u32 = 12_000;
    let Some(mut testbed) = up("loss") else {
        return;
    };
    for link in ["link1", "link2"] {
        let faster = ["rate=50M", "queue=20000 packets", "restart"];
        set(&mut testbed, link, &faster);
    }
    let testbed_ref = &testbed;
    thread::scope(|scope| {
        for link in [0, 1] {
            scope.spawn(move || {
                let path = path(testbed_ref, link, 5000);
                let (came, status) = path.exchange_numbered(testbed_ref, COUNT, 100);
                assert_eq!(came.len() as u64, status.packets_delivered, "{status:#?}");
                let chance = status.dropped_loss;
                let sigma = (f64::from(COUNT) * LOSS * (1.0 - LOSS)).sqrt();
                let off = (chance as f64 - f64::from(COUNT) * LOSS).abs();
                assert!(off < 3.0 * sigma, "{chance} of {COUNT} lost: {status:#?}");
                // All missing packets were lost by chance or in a queue.
                let queues = status.dropped_queue + status.dropped_device;
                let lost = u64::from(COUNT) - status.packets_delivered;
                assert_eq!(lost, chance + queues, "{status:#?}");
            });
        }
    });
    testbed.down().unwrap();
}

/// A run over emulated links and one in the simulator lose the same packets.
#[test]
#[ignore = "network"]
fn losses_fall_on_the_packets_that_the_seed_says() {
    let Some(mut testbed) = up("seed") else {
        return;
    };
    let path = path(&testbed, 0, 5002);
    let mut draws = Rng::for_component(20, 0);
    let survivors: Vec<u32> = (0..500).filter(|_| !draws.chance(0.1)).collect();
    for _ in 0..2 {
        let changes = ["loss=10%", "queue=1000 packets"];
        let (came, status) = numbered(&mut testbed, &path, &changes, 500);
        assert_eq!(came, survivors, "{status:#?}");
    }
    testbed.down().unwrap();
}

#[test]
#[ignore = "network"]
fn what_is_set_of_a_link_happens_to_its_packets() {
    let Some(mut testbed) = up("fate") else {
        return;
    };
    let path = path(&testbed, 0, 5002);
    let each: Vec<u32> = (0..50).collect();
    let with = |change| ["loss=0", "queue=3000 packets", change];

    let twice: Vec<u32> = each.iter().flat_map(|n| [*n, *n]).collect();
    let (came, status) = numbered(&mut testbed, &path, &with("duplicate=1"), 50);
    assert_eq!(came, twice);
    assert_eq!(status.packets_duplicated, 50);

    // The receiver's checksum detects a flipped bit, so an intact packet sent later is the first to arrive.
    let (_, status) = numbered(&mut testbed, &path, &with("corrupt=1"), 50);
    assert_eq!(status.packets_corrupted, 50);
    set(&mut testbed, "link1", &["corrupt=0"]);
    path.a.send_to(&77u32.to_le_bytes(), path.to_b).unwrap();
    assert_eq!(path.receive_numbered(1), [77]);

    // Packets that take no detour overtake those that do, which are 500 ms behind them.
    let (mut overtaken, status) = numbered(&mut testbed, &path, &with("reorder=30%/500ms"), 50);
    assert!(status.packets_detoured > 0, "{status:#?}");
    assert_ne!(overtaken, each);
    overtaken.sort();
    assert_eq!(overtaken, each);

    // In bursts of a hundred: long runs of losses, not every tenth packet.
    let (came, _) = numbered(
        &mut testbed,
        &path,
        &["loss=50%/100", "queue=3000 packets"],
        2000,
    );
    let ends = came
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count();
    assert!((1..60).contains(&ends), "{ends} bursts");

    // A hundred packets of 32 bytes in the queue take 1 s at 25 kbit/s.
    let slow = ["loss=0", "rate=25k", "queue=1000 packets"];
    let (came, _) = numbered(&mut testbed, &path, &slow, 100);
    assert_eq!(came, (0..100).collect::<Vec<_>>());
    let (came, status) = numbered(
        &mut testbed,
        &path,
        &[&slow[..], &["codel=5ms/50ms"]].concat(),
        100,
    );
    assert!(status.dropped_codel > 0, "{status:#?}");
    assert_eq!(came.len() as u64 + status.dropped_codel, 100, "{status:#?}");
    testbed.down().unwrap();
}

/// Gives link 1 a trace of two packets every 25 ms: 960 kbit/s.
fn set_trace(testbed: &mut Testbed) {
    std::fs::write(testbed.state_dir().join("two.trace"), "25\n25\n").unwrap();
    let words = ["loss=0", "queue=100 packets", "trace=two.trace", "restart"];
    set(testbed, "link1", &words);
}

#[test]
#[ignore = "network"]
fn a_trace_holds_packets_back_until_they_may_leave() {
    let Some(mut testbed) = up("hold") else {
        return;
    };
    let path = path(&testbed, 0, 5000);
    let begun = Instant::now();
    set_trace(&mut testbed);
    assert_eq!(
        testbed.link_status("link1").unwrap().forward.rate,
        Some(960_000)
    );
    path.send_numbered(0..20, 1500);
    assert_eq!(path.receive_numbered(20), (0..20).collect::<Vec<_>>());
    // The first two of the twenty leave after 25 ms, the last two after 250 ms.
    let (took, least) = (begun.elapsed(), DELAY + Duration::from_millis(250));
    assert!(took >= least, "{took:?}, less than {least:?}");
    testbed.down().unwrap();
}

/// Returns the description of the two links, with this schedule in place of losses.
fn scheduled(schedule: &str) -> String {
    let schedule = format!("schedule = {schedule}");
    TWO_PATHS.replace("loss = \"1%\"", &schedule)
}

#[test]
#[ignore = "network"]
fn a_link_changes_as_its_schedule_says() {
    const UP: Duration = Duration::from_millis(1500);
    let schedule = "[\"500ms forward down\", \"1500ms up delay=60ms\", \"3600s loss=1\"]";
    let Some(mut testbed) = up_as(&scheduled(schedule), "plan") else {
        return;
    };
    let path = path(&testbed, 0, 5002);
    // If the machine stands still while the link is down, nothing is lost: try again.
    let deadline = Instant::now() + TIMEOUT;
    let lost = loop {
        let lost = lost_by_schedule(&mut testbed, &path, UP);
        if !lost.is_empty() {
            break lost;
        }
        assert!(Instant::now() < deadline, "nothing is lost");
    };
    // Packets sent while the link is down are lost, as are packets in it when it goes down.
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert_eq!(lost, (first..=last).collect::<Vec<_>>());
    let status = testbed.link_status("link1").unwrap();
    assert_eq!(
        (status.forward.delay_ms, status.reverse.delay_ms),
        (60.0, 60.0)
    );

    // Settings of `set` hold until the schedule changes them, and leave its other changes in force.
    set(&mut testbed, "link1", &["rate=1M"]);
    let status = testbed.link_status("link1").unwrap();
    assert_eq!(
        (status.forward.rate, status.forward.delay_ms),
        (Some(1_000_000), 60.0)
    );
    testbed.down().unwrap();
}

/// Restarts link 1 and sends numbered datagrams over it until its schedule has brought it up again. Returns
/// the numbers of the lost ones.
fn lost_by_schedule(testbed: &mut Testbed, path: &Sockets, up: Duration) -> Vec<u32> {
    let begun = Instant::now();
    set(testbed, "link1", &["restart"]);
    let mut sent = 0u32;
    let mut send = || {
        path.a.send_to(&sent.to_le_bytes(), path.to_b).unwrap();
        sent += 1;
        sent
    };
    let deadline = begun + TIMEOUT;
    let mut came = Vec::new();
    loop {
        send();
        thread::sleep(POLL);
        let status = testbed.link_status("link1").unwrap().forward;
        // Read all along, since the buffer of a socket may not hold them all.
        came.extend(path.receive_numbered(status.packets_delivered - came.len() as u64));
        if status.up && status.delay_ms == 60.0 {
            break;
        }
        assert!(Instant::now() < deadline, "it is not up again: {status:#?}");
    }
    let early = begun.elapsed();
    assert!(early >= up, "the link is up again after {early:?} already");
    let sent = send();
    let status = settled(testbed, "link1", sent.into());
    came.extend(path.receive_numbered(status.packets_delivered - came.len() as u64));
    assert_eq!(came.last(), Some(&(sent - 1)), "{status:#?}");
    (0..sent).filter(|n| !came.contains(n)).collect()
}

#[test]
#[ignore = "network"]
fn a_link_that_is_down_is_dark_and_comes_back() {
    let Some(mut testbed) = up("dark") else {
        return;
    };
    set(&mut testbed, "link1", &["loss=0", "down"]);
    let path = path(&testbed, 0, 5000);
    path.a.send_to(b"lost", path.to_b).unwrap();
    let what = "a packet is dropped";
    let status = wait_for(&testbed, "link1", what, |d| d.dropped_down > 0);
    assert_eq!(status.packets_offered, 1, "{status:#?}");
    set(&mut testbed, "link1", &["up"]);
    path.a.send_to(b"carried", path.to_b).unwrap();
    // The other datagram is not late but lost, so this one is the first to arrive.
    assert_eq!(path.b.recv(&mut [0; 16]).unwrap(), 7);
    testbed.down().unwrap();
}

/// Tests of the emulator against the wall clock. Measurements during which the emulator itself was late are
/// repeated.
mod soak {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Attempts at a measurement that is invalid because the emulator was late.
    const ATTEMPTS: usize = 5;

    /// Largest delivery lag (99th percentile, µs) with which a measurement shows the model, not the machine.
    const MAX_DELIVERY_LAG_US: f64 = 1000.0;

    /// Interval at which a receiver looks whether to go on.
    const LOOK: Duration = Duration::from_millis(300);

    /// Held during a measurement, since two would disturb each other.
    static MACHINE: Mutex<()> = Mutex::new(());

    fn machine() -> MutexGuard<'static, ()> {
        MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measured_path(testbed: &Testbed, link: usize, port: u16) -> Sockets {
        let path = path(testbed, link, port);
        for socket in [&path.a, &path.b] {
            socket.set_read_timeout(Some(LOOK)).unwrap();
            // Large enough that a receiver that is not scheduled for a while loses nothing. Only root may
            // exceed the limit.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 8 << 20);
        }
        path
    }

    /// Runs `measure` until the emulator was in time throughout, and judges that measurement.
    fn undisturbed<T>(
        testbed: &mut Testbed,
        measure: impl Fn(&Testbed) -> T,
        judge: impl FnOnce(&T),
    ) {
        for _ in 0..ATTEMPTS {
            testbed.reset_delivery_lag().unwrap();
            let measured = measure(testbed);
            let late = testbed.delivery_lag().unwrap();
            eprintln!(
                "lateness: p50 {} µs, p99 {} µs, max {} µs",
                late.p50_us, late.p99_us, late.max_us
            );
            if late.p99_us <= MAX_DELIVERY_LAG_US {
                return judge(&measured);
            }
        }
        let _ = writeln!(
            std::io::stderr(),
            "skipped: this machine is too busy to emulate links in wall-clock time"
        );
    }

    /// Returns the lower quartile of the round-trip times of `count` datagrams of `len` bytes, IP headers
    /// included, 10 ms apart.
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
            let sender = scope.spawn(move || {
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
            loop {
                let over = sender.is_finished();
                if path.a.recv(&mut buffer).is_ok() {
                    let sent = u64::from_le_bytes(buffer[..8].try_into().unwrap());
                    times.push(start.elapsed() - Duration::from_nanos(sent));
                } else if over {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            times
        });
        assert!(
            times.len() > count as usize * 9 / 10,
            "{} of {count} came back",
            times.len()
        );
        // The lower quartile: scheduling of these threads delays some round trips, not most.
        times.sort();
        times[times.len() / 4]
    }

    /// Sends datagrams of `len` bytes, IP headers included, at `per_ms` a millisecond for `duration`.
    /// Returns how many were sent, how many came, and the rate at which they came, bit/s.
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
            loop {
                let over = sender.is_finished();
                if path.b.recv(&mut buffer).is_ok() {
                    let now = Instant::now();
                    span = Some((span.map_or(now, |s| s.0), now));
                    came += 1;
                } else if over {
                    break;
                }
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
    #[ignore = "soak"]
    fn round_trip_times_are_within_a_millisecond_also_beside_a_full_path() {
        let _machine = machine();
        let Some(mut testbed) = up("rtt") else { return };
        undisturbed(
            &mut testbed,
            |testbed| {
                let (one, two) = (
                    measured_path(testbed, 0, 5000),
                    measured_path(testbed, 1, 5000),
                );
                let idle = thread::scope(|scope| {
                    let other = scope.spawn(|| round_trip(&two, 150, 100));
                    [round_trip(&one, 150, 100), other.join().unwrap()]
                });
                let full = measured_path(testbed, 0, 5001);
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
    #[ignore = "soak"]
    fn two_full_paths_each_have_their_rate() {
        let _machine = machine();
        let Some(mut testbed) = up("rate") else {
            return;
        };
        undisturbed(
            &mut testbed,
            |testbed| {
                let (one, two) = (
                    measured_path(testbed, 0, 5000),
                    measured_path(testbed, 1, 5000),
                );
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
    #[ignore = "soak"]
    fn a_link_carries_300_mbit_a_second() {
        let _machine = machine();
        let Some(mut testbed) = up("fast") else {
            return;
        };
        let faster = ["rate=400M", "delay=5ms", "loss=0", "queue=1MB"];
        set(&mut testbed, "link1", &faster);
        let path = measured_path(&testbed, 0, 5000);
        // Other work on the machine may delay the sender or the receiver, so the best rate counts.
        let mut best = 0.0f64;
        for _ in 0..ATTEMPTS {
            let (sent, came, rate) = flood(&path, 1500, 33.0, Duration::from_secs(1));
            eprintln!("sent {sent}, came {came}, {:.0} Mbit/s", rate / 1e6);
            best = best.max(rate);
            if best >= 300e6 {
                break;
            }
        }
        eprintln!("lateness: {:?}", testbed.delivery_lag().unwrap());
        assert!(best >= 300e6, "{best} bit/s at best");
        testbed.down().unwrap();
    }

    #[test]
    #[ignore = "soak"]
    fn a_trace_says_when_packets_leave() {
        let _machine = machine();
        let Some(mut testbed) = up("trace") else {
            return;
        };
        set_trace(&mut testbed);
        let path = measured_path(&testbed, 0, 5000);
        let (_, _, rate) = flood(&path, 1500, 0.3, Duration::from_secs(2));
        assert!((rate / 960e3 - 1.0).abs() < 0.05, "{rate} bit/s");
        testbed.down().unwrap();
    }

    #[test]
    #[ignore = "soak"]
    fn a_link_changes_when_its_schedule_says() {
        let _machine = machine();
        let schedule = "[\"200ms forward down\", \"400ms up delay=60ms\"]";
        let Some(mut testbed) = up_as(&scheduled(schedule), "when") else {
            return;
        };
        let path = path(&testbed, 0, 5002);
        set(&mut testbed, "link1", &["restart"]);
        let start = Instant::now();
        for n in 0..60u32 {
            let due = Duration::from_millis(10) * n;
            thread::sleep(due.saturating_sub(start.elapsed()));
            path.a.send_to(&n.to_le_bytes(), path.to_b).unwrap();
        }
        let status = settled(&testbed, "link1", 60);
        let came = path.receive_numbered(status.packets_delivered);
        let lost: Vec<u32> = (0..60).filter(|n| !came.contains(n)).collect();
        let (first, last) = (lost[0], lost[lost.len() - 1]);
        assert!(
            (17..=19).contains(&first) && (38..=41).contains(&last),
            "{lost:?}"
        );
        testbed.down().unwrap();
    }
}
