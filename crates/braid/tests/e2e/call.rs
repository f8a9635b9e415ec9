//! A call through the tunnel: numbered packets, 50 a second and 200 bytes each, which the other end returns.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use braid_testbed::{Pattern, RenderConfig, Role};
use socket2::SockRef;

use super::attacks::{inside, namespace};
use super::control::status;
use super::fixture::{Fixture, render_changed};

/// The port of the callee.
const PORT: u16 = 4_000;
/// Time between two packets.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a packet.
const SIZE: usize = 200;
/// Traffic class of speech: EF (RFC 4594 section 4.1).
const EXPEDITED: u32 = 46 << 2;
/// Packets that have to come back in each step.
const STEP: u64 = 50;

/// The packets that one end has received.
pub struct Log {
    /// Number and time of each packet, in the order of arrival.
    pub arrivals: Vec<(u32, Instant)>,
    /// The addresses of the senders.
    pub senders: BTreeSet<SocketAddr>,
    /// Number of packets that differ from those that the other end sends.
    pub altered: u64,
}

impl Log {
    fn new() -> Self {
        Log {
            arrivals: Vec::new(),
            senders: BTreeSet::new(),
            altered: 0,
        }
    }

    fn note(&mut self, received: &[u8], from: SocketAddr) {
        self.senders.insert(from);
        let number = received.first_chunk::<4>().map(|n| u32::from_be_bytes(*n));
        match number.filter(|number| received == packet(*number)) {
            Some(number) => self.arrivals.push((number, Instant::now())),
            None => self.altered += 1,
        }
    }

    /// Fails if a packet came twice or was altered, or came from several addresses. Returns the address.
    fn expect_sound(&self, end: &str) -> SocketAddr {
        assert_eq!(self.altered, 0, "{end}: altered packets");
        let numbers: BTreeSet<u32> = self.arrivals.iter().map(|(number, _)| *number).collect();
        let twice = self.arrivals.len() - numbers.len();
        assert_eq!(twice, 0, "{end}: packets that came twice");
        let mut senders = self.senders.iter().copied();
        let sender = senders.next().expect("a packet came");
        assert_eq!(senders.next(), None, "{end}: the other end moved");
        sender
    }
}

/// Returns the packet with a number.
fn packet(number: u32) -> [u8; SIZE] {
    let mut packet = [0; SIZE];
    packet[..4].copy_from_slice(&number.to_be_bytes());
    Pattern::new(number.into()).fill(&mut packet[4..]);
    packet
}

/// A call under way; ended when dropped.
pub struct Call {
    ending: Arc<AtomicBool>,
    returned: Arc<AtomicU64>,
    ends: Option<[JoinHandle<Log>; 2]>,
}

impl Call {
    /// Lets the user call an address of the content host. The user's packets are marked as speech.
    pub fn start(bed: &Fixture, content: IpAddr) -> Self {
        Call::start_with(bed, content, EXPEDITED)
    }

    /// Does the same with a traffic class of the caller's own.
    fn start_with(bed: &Fixture, content: IpAddr, class: u32) -> Self {
        let to = SocketAddr::new(content, PORT);
        let any = match content {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        };
        let any = any.parse().expect("an address");
        let [callee, caller] = [("content", to), ("user", any)].map(|(host, at)| {
            let socket = inside(&namespace(bed, host), || UdpSocket::bind(at));
            socket.expect("a free port")
        });
        let socket = SockRef::from(&caller);
        let marked = match content {
            IpAddr::V4(_) => socket.set_tos_v4(class),
            IpAddr::V6(_) => socket.set_tclass_v6(class),
        };
        marked.expect("a traffic class");
        caller.connect(to).expect("a route");
        let (ending, returned) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let end = Arc::clone(&ending);
        let callee = thread::spawn(move || answer(&callee, &end));
        let (end, count) = (Arc::clone(&ending), Arc::clone(&returned));
        let caller = thread::spawn(move || talk(&caller, &end, &count));
        Call {
            ending,
            returned,
            ends: Some([callee, caller]),
        }
    }

    /// Returns the number of packets that have come back.
    pub fn returned(&self) -> u64 {
        self.returned.load(Ordering::Acquire)
    }

    /// Ends the call, and fails if a packet came twice, was altered, or came from another address than the others.
    /// Returns the logs of callee and caller, and the caller's address as the callee saw it.
    pub fn expect_sound(mut self) -> ([Log; 2], SocketAddr) {
        self.ending.store(true, Ordering::Release);
        let ends = self.ends.take().expect("it is ended once");
        let logs = ends.map(|end| end.join().expect("no panic"));
        logs[1].expect_sound("caller");
        let seen = logs[0].expect_sound("callee");
        (logs, seen)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
    }
}

/// Returns each packet to its sender.
fn answer(socket: &UdpSocket, ending: &AtomicBool) -> Log {
    let (mut log, mut buffer) = (Log::new(), [0; 2_048]);
    socket.set_read_timeout(Some(INTERVAL)).expect("a socket");
    while !ending.load(Ordering::Acquire) {
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            log.note(&buffer[..len], from);
            // Its sender may have gone.
            let _ = socket.send_to(&buffer[..len], from);
        }
    }
    log
}

/// Sends the packets, and receives them when they come back.
fn talk(socket: &UdpSocket, ending: &AtomicBool, returned: &AtomicU64) -> Log {
    let (mut log, mut buffer) = (Log::new(), [0; 2_048]);
    let begun = Instant::now();
    for number in 0.. {
        if ending.load(Ordering::Acquire) {
            break;
        }
        // A packet that has no route now is lost, as any packet may be.
        let _ = socket.send(&packet(number));
        let due = begun + INTERVAL * (number + 1);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left)).expect("a socket");
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                log.note(&buffer[..len], from);
                returned.store(log.arrivals.len() as u64, Ordering::Release);
            }
        }
    }
    log
}

/// A call goes on under one address while each link goes dark once. No packet comes twice, and none is altered.
#[test]
#[ignore = "network"]
fn a_call_outlives_each_link() {
    for host in [Fixture::v4, Fixture::v6] {
        let mut bed = Fixture::up();
        bed.wait_for_tunnel();
        let call = Call::start(&bed, host(&bed, "content"));
        bed.darken_each_link(STEP, || call.returned());
        let (_, seen) = call.expect_sound();
        assert_eq!(seen.ip(), host(&bed, "server"), "it came by the tunnel");
    }
}

/// Returns configurations in which a rule of the box makes calls urgent and gives them a mode.
fn with_rule(mode: &'static str) -> RenderConfig {
    render_changed(Role::Box, move |text| {
        format!("{text}\n[[rule]]\nport = {PORT}\nurgency = 1\nmode = {mode:?}\n")
    })
}

/// Returns true if an end of the tunnel sends copies of the call to an address, and both links have carried many.
fn is_copied(bed: &Fixture, role: &str, to: &str) -> bool {
    let tunnel = status(bed, role).tunnel.expect("it has one");
    let call = tunnel.flows.iter().find(|flow| flow.destination == to);
    call.is_some_and(|call| {
        let sent = call.paths.iter().map(|path| path.bytes_sent);
        (call.urgency, call.steering.as_deref()) == (Some(1), Some("redundant"))
            && call.paths.len() == 2
            && sent.min() > Some(STEP * SIZE as u64)
    })
}

/// By its rule alone, a call is copied in both directions. It goes on under one address while each link goes dark once.
#[test]
#[ignore = "network"]
fn a_call_that_a_rule_has_copied_outlives_each_link() {
    for host in [Fixture::v4, Fixture::v6] {
        let mut bed = Fixture::up_with(with_rule("redundant"));
        bed.wait_for_tunnel();
        let content = host(&bed, "content");
        let call = Call::start_with(&bed, content, 0);
        bed.darken_each_link(STEP, || call.returned());
        let to = SocketAddr::new(content, PORT).to_string();
        for role in ["box", "server"] {
            // Packets that a busy machine sends late come in a burst, which is not copied.
            bed.wait_for(&format!("copies of the {role}"), |bed| {
                is_copied(bed, role, &to)
            });
        }
        let (_, seen) = call.expect_sound();
        assert_eq!(seen.ip(), host(&bed, "server"), "it came by the tunnel");
    }
}

mod soak {
    use super::*;

    /// Longest gaps at callee and caller when a link goes dark.
    const MAX_GAPS: [Duration; 2] = [Duration::from_millis(250); 2];
    /// The same with copies of each packet. The other link is slower by 10 ms, and the caller gets answers, which are
    /// late by that in each direction.
    const MAX_GAPS_OF_COPIES: [Duration; 2] =
        [Duration::from_millis(40), Duration::from_millis(50)];
    /// Time in which the gap shows, and time for a link to be as before.
    const SPAN: Duration = Duration::from_secs(3);
    /// Outages of each link.
    const OUTAGES: usize = 4;

    #[test]
    #[ignore = "soak"]
    fn a_dark_link_silences_a_call_for_a_moment_only() {
        expect_short_gaps(Fixture::up(), EXPEDITED, MAX_GAPS);
    }

    #[test]
    #[ignore = "soak"]
    fn a_dark_link_is_hardly_noticed_in_a_call_that_is_copied() {
        let bed = Fixture::up_with(with_rule("redundant"));
        expect_short_gaps(bed, 0, MAX_GAPS_OF_COPIES);
    }

    #[test]
    #[ignore = "soak"]
    fn a_dark_link_silences_a_call_on_the_fastest_link_for_a_moment_only() {
        let bed = Fixture::up_with(with_rule("fastest"));
        expect_short_gaps(bed, 0, MAX_GAPS);
    }

    /// Fails if a call, whose packets have a traffic class, pauses for longer than `max` at an end when a link
    /// goes dark.
    fn expect_short_gaps(mut bed: Fixture, class: u32, max: [Duration; 2]) {
        bed.wait_for_tunnel();
        let call = Call::start_with(&bed, bed.v4("content"), class);
        thread::sleep(SPAN);
        let mut outages = Vec::new();
        for _ in 0..OUTAGES {
            for link in ["link1", "link2"] {
                outages.push((link, Instant::now()));
                bed.set_link(link, "down");
                thread::sleep(SPAN);
                bed.set_link(link, "up");
                thread::sleep(SPAN);
            }
        }
        let (logs, _) = call.expect_sound();
        let ends = ["callee", "caller"].into_iter().zip(max);
        for ((end, max), log) in ends.zip(&logs) {
            let gaps = outages.iter().map(|(link, at)| (*link, gap(log, *at)));
            let gaps: Vec<_> = gaps.collect();
            println!("gaps at the {end}: {gaps:?}");
            let longest = gaps.iter().map(|(_, gap)| *gap).max().expect("outages");
            assert!(longest <= max, "{longest:?} of silence at the {end}");
        }
    }

    /// Returns the longest time between two arrivals, the later one within [`SPAN`] after `at`.
    fn gap(log: &Log, at: Instant) -> Duration {
        let pairs = log.arrivals.iter().zip(&log.arrivals[1..]);
        let pairs = pairs.filter(|(_, (_, later))| (at..at + SPAN).contains(later));
        let gaps = pairs.map(|((_, earlier), (_, later))| *later - *earlier);
        gaps.max().unwrap_or(SPAN)
    }
}
