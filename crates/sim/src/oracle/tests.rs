//! Tests that each rule is reported when it is broken. Two engines talk to each other; the oracle of one
//! is shown changed packets and figures.

use core::net::Ipv4Addr;
use core::time::Duration;

use braid_engine::stats::{LossRecovery, SubflowStats};
use braid_engine::{CloseReason, ConnectOptions, PathConfig, RxMeta, TransmitInfo};
use braid_strategy::by_name;
use braid_wire::mptcp::{Dss, Join, MptcpOption, WireDsn};
use braid_wire::tcp::Flags;
use braid_wire::{Rng, Seq32, ip, tcp};

use super::flow::{Arrived, Flow, Map};
use super::*;
use crate::hijacker::packet;

const PORT: u16 = 80;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
const CHECKED: RxMeta = RxMeta {
    checksum_ok: true,
    gso_size: 0,
};

/// A segment on its way to the oracle.
struct Shown<'a> {
    tcp: &'a mut tcp::Repr,
    /// The engine's description, if the client sends the segment.
    info: Option<&'a mut TransmitInfo>,
    payload: usize,
    /// True if the oracle does not see the segment.
    hidden: bool,
}

impl Shown<'_> {
    /// Returns whether the client sends the segment.
    fn is_sent(&self) -> bool {
        self.info.is_some()
    }

    /// Returns the DSS of a segment of the client.
    fn sent_dss(&mut self) -> Option<&mut Dss> {
        let options = self.tcp.options.mptcp.iter_mut();
        options
            .filter(|_| self.info.is_some())
            .find_map(|o| match o {
                MptcpOption::Dss(dss) => Some(dss),
                _ => None,
            })
    }
}

/// A change to a segment that the oracle is shown.
type Lie = Box<dyn FnMut(&mut Shown<'_>)>;

fn honest(_: &mut Shown<'_>) {}

/// A client under an oracle, and a server.
struct Pair {
    now: Instant,
    client: Stack,
    server: Stack,
    oracle: Oracle,
    conn: ConnId,
    served: Option<ConnId>,
    lie: Lie,
}

fn stack(addrs: &[Ipv4Addr], id: u64) -> Stack {
    let strategy = Box::new(|| by_name("minrtt").expect("a known strategy"));
    let mut stack = Stack::new(Config::default(), Rng::for_component(1, id), strategy);
    for addr in addrs {
        stack.add_path(PathConfig::v4(*addr)).unwrap();
    }
    stack
}

fn connect(stack: &mut Stack, now: Instant, addr: Ipv4Addr) -> ConnId {
    let options = ConnectOptions::new((addr, PORT).into(), by_name("minrtt").unwrap());
    stack.connect(now, options).unwrap()
}

/// Returns a packet as `lie` changes it, and the length of its headers; `None` if `lie` hides the packet.
fn retold(
    original: &[u8],
    info: Option<&mut TransmitInfo>,
    lie: impl FnOnce(&mut Shown<'_>),
) -> Option<(Vec<u8>, usize)> {
    let (ip, segment) = ip::Repr::parse(original).unwrap();
    let (mut tcp, payload) = tcp::Repr::parse(segment).unwrap();
    let mut shown = Shown {
        tcp: &mut tcp,
        info,
        payload: payload.len(),
        hidden: false,
    };
    lie(&mut shown);
    if shown.hidden {
        return None;
    }
    let told = packet((ip.src, ip.dst), &tcp, payload);
    let headers = told.len() - payload.len();
    Some((told, headers))
}

/// Returns a segment of the client with `len` bytes of payload.
fn segment(tcp: &tcp::Repr, len: u64) -> Segment<'_> {
    Segment {
        src: (CLIENT, tcp.src_port).into(),
        dst: (SERVER, tcp.dst_port).into(),
        tcp,
        len,
        signals: false,
    }
}

fn repr(flags: Flags, seq: u32, ack: u32) -> tcp::Repr {
    tcp::Repr {
        seq: Seq32(seq),
        ack: Seq32(ack),
        window: u16::MAX,
        ..tcp::Repr::new(PORT, PORT, flags)
    }
}

impl Pair {
    fn new(lie: impl FnMut(&mut Shown<'_>) + 'static) -> Pair {
        let now = Instant::from_millis(1000);
        let mut client = stack(&[CLIENT, Ipv4Addr::new(10, 0, 1, 2)], 1);
        let mut server = stack(&[SERVER], 2);
        server.listen((SERVER, PORT).into()).unwrap();
        let conn = connect(&mut client, now, SERVER);
        Pair {
            now,
            client,
            server,
            oracle: Oracle::new(Config::default()),
            conn,
            served: None,
            lie: Box::new(lie),
        }
    }

    /// Exchanges packets for `ms` milliseconds, one each way.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            while let Some(event) = self.server.poll_event() {
                if let Event::Accepted { conn, .. } = event {
                    self.served = Some(conn);
                }
            }
            for sent in drain(&mut self.server, self.now) {
                self.client.receive(self.now, &sent, CHECKED);
                if let Some((told, _)) = retold(&sent, None, &mut self.lie) {
                    self.oracle.on_received(self.now, &told, &self.client);
                }
            }
            while let Some(event) = self.client.poll_event() {
                self.oracle.on_event(self.now, &event);
            }
            self.send();
            self.oracle.end_turn(self.now, &self.client);
            self.now += Duration::from_millis(1);
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
        }
    }

    fn send(&mut self) {
        loop {
            self.oracle.check_sent(self.now, &self.client);
            let Some(mut t) = self.client.poll_transmit(self.now) else {
                return;
            };
            let packet = [t.header, &t.payload.concat()].concat();
            self.server.receive(self.now, &packet, CHECKED);
            if let Some((told, len)) = retold(&packet, t.info.as_mut(), &mut self.lie) {
                let header = &told[..len];
                self.oracle.on_transmit(self.now, &Transmit { header, ..t });
            }
        }
    }

    /// Opens the connection and both subflows.
    fn open(lie: impl FnMut(&mut Shown<'_>) + 'static) -> Pair {
        let mut pair = Pair::new(lie);
        pair.run(10);
        assert_eq!(pair.client.subflows(pair.conn).len(), 2);
        pair
    }

    fn upload(&mut self, bytes: usize) {
        let written = self.client.write(self.now, self.conn, &vec![7; bytes]);
        assert_eq!(written, Ok(bytes));
    }

    fn download(&mut self, bytes: usize) {
        let conn = self.served.expect("an accepted connection");
        let written = self.server.write(self.now, conn, &vec![7; bytes]);
        assert_eq!(written, Ok(bytes));
    }

    /// Returns the rule that was broken first.
    fn broken(&mut self) -> Option<Rule> {
        self.oracle.take().first().map(|v| v.rule)
    }

    /// Returns the rule that `event` breaks.
    fn broken_by(&mut self, event: &Event) -> Option<Rule> {
        self.oracle.on_event(self.now, event);
        self.broken()
    }

    /// Returns the rule that is broken by the connections `secs` seconds from now.
    fn broken_after(&mut self, secs: u64) -> Option<Rule> {
        let later = self.now + Duration::from_secs(secs);
        self.oracle.sweep(later, &self.client);
        self.broken()
    }

    /// Makes the oracle believe that the peer was heard `secs` seconds from now.
    fn hear_after(&mut self, secs: u64) {
        let conn = self.oracle.conns.get_mut(&self.conn).unwrap();
        conn.last_heard = self.now + Duration::from_secs(secs);
    }
}

fn drain(stack: &mut Stack, now: Instant) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(t) = stack.poll_transmit(now) {
        packets.push([t.header, &t.payload.concat()].concat());
    }
    packets
}

#[test]
fn a_sound_engine_breaks_nothing() {
    let mut pair = Pair::open(honest);
    pair.upload(100_000);
    pair.download(100_000);
    pair.run(100);
    let read = pair.client.readable(pair.conn);
    assert_eq!(read, 100_000);
    pair.oracle.on_read(pair.now, pair.conn, 0..read as u64);
    let about = (pair.now, Some(pair.conn));
    pair.oracle
        .on_content(about, 0, &vec![7; read], |_| &[7; 50]);
    for (stack, conn) in [
        (&mut pair.client, pair.conn),
        (&mut pair.server, pair.served.unwrap()),
    ] {
        let all = |slices: &[std::io::IoSlice<'_>]| {
            Ok::<_, braid_engine::ApiError>(slices.iter().map(|s| s.len()).sum())
        };
        while stack.read_with(pair.now, conn, all).unwrap() > 0 {}
        stack.shutdown(pair.now, conn).unwrap();
    }
    pair.run(100);
    pair.oracle.on_end(pair.now, pair.conn);
    pair.run(20_000);
    assert_eq!(pair.client.connections(), 0);
    assert_eq!(pair.oracle.take(), []);
    assert!(pair.oracle.flows.is_empty() && pair.oracle.conns.is_empty());
}

/// A restarted peer answers the same SYN once more, with another sequence number.
#[test]
fn a_second_answer_to_a_syn() {
    let mut pair = Pair::new(honest);
    pair.run(1);
    let syn_ack = drain(&mut pair.server, pair.now).remove(0);
    pair.client.receive(pair.now, &syn_ack, CHECKED);
    pair.oracle.on_received(pair.now, &syn_ack, &pair.client);
    let later = |shown: &mut Shown<'_>| shown.tcp.seq = shown.tcp.seq.add(1000);
    let (another, _) = retold(&syn_ack, None, later).unwrap();
    pair.oracle.on_received(pair.now, &another, &pair.client);
    pair.run(10);
    assert_eq!(pair.oracle.take(), []);
}

#[test]
fn wrong_bytes() {
    let mut oracle = Oracle::new(Config::default());
    let mut bytes = [7; 100];
    bytes[60] = 8;
    let about = (Instant::ZERO, None);
    oracle.on_content(about, 1000, &bytes, |_| &[7; 30]);
    let seen = oracle.take();
    assert_eq!(seen[0].rule, Rule::Bytes);
    assert!(seen[0].seen.contains("byte 1060"), "{}", seen[0]);
}

#[test]
fn bytes_delivered_twice_or_too_early() {
    let mut pair = Pair::open(honest);
    pair.download(100);
    pair.run(10);
    pair.oracle.on_read(pair.now, pair.conn, 0..50);
    assert_eq!(pair.broken(), None);
    pair.oracle.on_read(pair.now, pair.conn, 0..50);
    assert_eq!(pair.broken(), Some(Rule::Bytes));
    pair.oracle.on_read(pair.now, pair.conn, 50..101);
    assert_eq!(pair.broken(), Some(Rule::Gap));
    pair.oracle.on_end(pair.now, pair.conn);
    assert_eq!(pair.broken(), Some(Rule::Fin));
}

/// Checks that a lie about the packets of a client and a server breaks `rule` first.
#[track_caller]
fn breaks(rule: Rule, lie: impl FnMut(&mut Shown<'_>) + 'static) {
    let mut pair = Pair::open(lie);
    pair.upload(50_000);
    pair.download(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(rule));
}

#[test]
fn lies_about_packets() {
    // A gap in the sent data.
    breaks(Rule::Gap, |shown| {
        let data = shown.info.as_ref().map(|info| info.data.clone());
        shown.hidden = data.is_some_and(|data| data.start == 0 && data.end > 0);
    });
    // The engine acknowledges data that the oracle did not see arrive.
    breaks(Rule::Gap, |shown| {
        shown.hidden = !shown.is_sent() && shown.payload > 0;
    });
    // A DATA_ACK is ahead.
    breaks(Rule::Gap, |shown| {
        match shown.sent_dss().and_then(|dss| dss.data_ack.as_mut()) {
            Some(WireDsn::Four(n)) => *n = n.wrapping_add(1),
            Some(WireDsn::Eight(n)) => *n = n.wrapping_add(1),
            None => {}
        }
    });
    // The peer has announced a smaller window than the engine believes.
    breaks(Rule::PeerWindow, |shown| {
        if !shown.is_sent() {
            shown.tcp.window = 0;
        }
    });
    // The mapping covers other bytes than the payload, or is missing.
    breaks(Rule::Mapping, |shown| {
        if let Some(mapping) = shown.sent_dss().and_then(|dss| dss.mapping.as_mut()) {
            mapping.subflow_seq += 1;
        }
    });
    breaks(Rule::Mapping, |shown| {
        if let Some(dss) = shown.sent_dss() {
            dss.mapping = None;
        }
    });
    // A join has a wrong token.
    breaks(Rule::Mapping, |shown| {
        for option in &mut shown.tcp.options.mptcp {
            if let MptcpOption::Join(Join::Syn { token, .. }) = option {
                *token ^= 1;
            }
        }
    });
    // The engine describes a packet with payload wrongly.
    let descriptions: [fn(&mut TransmitInfo); 4] = [
        |info| info.kind = SegmentKind::Copy,
        |info| info.kind = SegmentKind::Control,
        |info| info.data.end += 1,
        |info| info.subflow = SubflowId(7),
    ];
    for describe in descriptions {
        breaks(Rule::Info, move |shown| {
            if let Some(info) = shown.info.as_mut().filter(|_| shown.payload > 0) {
                describe(info);
            }
        });
    }
}

/// DATA_FIN moves, or one repetition of the last bytes does not carry it. The client gets no answers.
#[test]
fn data_fins_that_change() {
    let changes: [fn(&mut Dss, u16); 2] = [
        |dss, fins| dss.mapping.as_mut().unwrap().len += fins,
        |dss, fins| {
            dss.data_fin = fins == 1;
            dss.mapping.as_mut().unwrap().len -= u16::from(fins > 1);
        },
    ];
    for change in changes {
        let mut pair = Pair::open(honest);
        pair.upload(10);
        pair.client.shutdown(pair.now, pair.conn).unwrap();
        let mut fins = 0;
        pair.lie = Box::new(move |shown| {
            if let Some(dss) = shown.sent_dss()
                && dss.data_fin
                && dss.mapping.is_some_and(|mapping| mapping.len > 1)
            {
                fins += 1;
                change(dss, fins);
            }
        });
        pair.server = stack(&[], 3);
        pair.run(2000);
        let seen = pair.oracle.take();
        assert!(seen.iter().any(|v| v.rule == Rule::Fin), "{seen:?}");
    }
}

/// A middlebox that overwrites an option leaves nothing that the receiver could read.
#[test]
fn an_option_that_is_malformed_signals_nothing() {
    let mut repr = tcp::Repr::new(1, 2, Flags::ACK);
    let ack = MptcpOption::Dss(Dss {
        data_ack: Some(WireDsn::Four(1)),
        mapping: None,
        data_fin: false,
    });
    repr.options.mptcp.push(ack);
    let mut bytes = packet((CLIENT.into(), SERVER.into()), &repr, &[]);
    let signals = |bytes: &[u8]| {
        let seen = Segment::of(bytes, None, |s| (s.signals, s.dss().is_some()));
        seen.unwrap()
    };
    assert_eq!(signals(&bytes), (false, true));
    // No MPTCP option that starts with a zero is eight bytes long.
    let body = bytes.len() - 6;
    bytes[body..].fill(0);
    assert_eq!(signals(&bytes), (false, false));
}

#[test]
fn payload_behind_a_fin() {
    let mut flow = Flow::default();
    let mut log = ViolationLog::default();
    let header = repr(Flags::SYN, 10, 0);
    let syn = segment(&header, 0);
    flow.on_syn_sent(&syn, &mut log.checker(Instant::ZERO, None));
    for (flags, seq, len, rule) in [
        (Flags::FIN, 11, 5, None),
        (Flags::FIN, 11, 5, None),
        (Flags::EMPTY, 17, 1, Some(Rule::Fin)),
        (Flags::FIN, 11, 4, Some(Rule::Fin)),
    ] {
        let header = repr(flags, seq, 0);
        let sent = segment(&header, len);
        flow.on_sent(&sent, &mut log.checker(Instant::ZERO, None));
        assert_eq!(log.take().first().map(|v| v.rule), rule);
    }
}

/// Middleboxes cut and join segments, and keep the option of the first or the last segment. Therefore a mapping
/// may come before, with, or after its payload.
#[test]
fn mappings_apart_from_their_payload() {
    let map = |sub: u64, len| Map {
        data: sub - 1,
        sub,
        len,
    };
    let orders: [&[(Range<u64>, Option<Map>)]; 4] = [
        // The mapping of the second half comes with the first half.
        &[(1..100, Some(map(1, 199))), (100..200, None)],
        // The mapping comes after its payload.
        &[(1..100, None), (100..200, Some(map(1, 199)))],
        // The end of a mapping comes first; its start lies behind another mapping.
        &[(100..200, Some(map(50, 150))), (1..100, Some(map(1, 49)))],
        // Payload under two mappings, one of which came before.
        &[(150..200, Some(map(50, 150))), (1..150, Some(map(1, 49)))],
    ];
    for order in orders {
        let (mut flow, mut stream) = (Flow::default(), Arrived::default());
        flow.arrived.next = 1;
        for (payload, map) in order {
            flow.arrived.insert(payload.clone());
            flow.locate(payload.clone(), *map, &mut stream);
        }
        assert_eq!(stream.next, 199, "{order:?}");
    }
}

#[test]
fn a_window_taken_back() {
    let mut pair = Pair::open(honest);
    pair.download(1000);
    pair.run(10);
    pair.lie = Box::new(|shown| {
        if shown.is_sent() {
            shown.tcp.window /= 2;
        }
    });
    pair.download(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::WindowShrunk));
}

/// A client with data in flight on one subflow.
struct Flight {
    pair: Pair,
    tuple: Tuple,
    /// True statistics of the subflow.
    stats: SubflowStats,
}

impl Flight {
    /// Returns a client that has sent 10,000 bytes.
    fn new() -> Flight {
        let mut pair = Pair::open(honest);
        pair.upload(10_000);
        pair.send();
        let subflows = pair.client.subflows(pair.conn);
        let stats = subflows.into_iter().find(|s| s.in_flight > 0).unwrap();
        let tuple = Tuple::new(stats.local, stats.remote);
        Flight { pair, tuple, stats }
    }

    /// Returns a client with 20,000 bytes outstanding. Its SYN permits SACK; the SYN of its peer does if
    /// `permits_sack`.
    fn outstanding(permits_sack: bool) -> Flight {
        let mut flight = Flight::new();
        let oracle = &mut flight.pair.oracle;
        let mut checker = oracle.log.checker(flight.pair.now, None);
        let (mut syn, mut syn_ack) = (repr(Flags::SYN, 0, 0), repr(Flags::SYN | Flags::ACK, 0, 1));
        syn.options.sack_permitted = true;
        syn_ack.options.sack_permitted = permits_sack;
        let mut flow = Flow::default();
        flow.on_syn_sent(&segment(&syn, 0), &mut checker);
        flow.on_syn_received(&segment(&syn_ack, 0));
        flow.on_sent(&segment(&repr(Flags::ACK, 1, 1), 20_000), &mut checker);
        oracle.flows.insert(flight.tuple, flow);
        (flight.stats.in_flight, flight.stats.cwnd) = (20_000, 20_000);
        flight
    }

    fn flow(&mut self) -> &mut Flow {
        self.pair.oracle.flows.get_mut(&self.tuple).unwrap()
    }

    /// Returns the rule that `stats` break after a segment of this kind.
    fn judge(&mut self, stats: &SubflowStats, kind: SegmentKind) -> Option<Rule> {
        let oracle = &mut self.pair.oracle;
        let mut checker = oracle.log.checker(self.pair.now, None);
        let flow = oracle.flows.get_mut(&self.tuple).unwrap();
        flow.check_flight(stats, (kind, true), &mut checker);
        self.pair.broken()
    }
}

#[test]
fn more_in_flight_than_the_window() {
    use SegmentKind::{New, Retransmission};
    let mut flight = Flight::new();
    let stats = flight.stats;
    assert_eq!(flight.judge(&stats, New), None);
    let broken = Some(Rule::CongestionWindow);
    let mut over = stats;
    over.cwnd = stats.in_flight - 1;
    assert_eq!(flight.judge(&over, New), broken);
    // A probe is excused, but not twice in a row.
    flight.pair.now += Duration::from_secs(1);
    assert_eq!(flight.judge(&over, Retransmission), None);
    assert_eq!(flight.judge(&over, Retransmission), broken);
    // In fast recovery the limit is the window, or the flight, before the recovery.
    let mut fast = stats;
    (fast.recovery, fast.ssthresh) = (LossRecovery::Fast, over.cwnd / 2);
    fast.cwnd = u64::MAX;
    assert_eq!(flight.judge(&fast, New), None);
    fast.in_flight += u64::from(stats.mss) + 1;
    assert_eq!(flight.judge(&fast, New), broken);
}

#[test]
fn bytes_in_flight_that_are_forgotten() {
    let mut flight = Flight::new();
    let mut stats = flight.stats;
    stats.in_flight -= 1;
    assert_eq!(flight.judge(&stats, SegmentKind::New), Some(Rule::Flight));
}

/// Without SACK each duplicate acknowledgement stands for a segment that has arrived, whatever the number of
/// duplicates. None stands for the missing segment.
///
/// RFC 5681 section 2: a segment is no duplicate acknowledgement if it has data, FIN, another window, a DATA_ACK
/// that advances, or another MPTCP signal.
#[test]
fn duplicates_that_tell_of_arrivals() {
    let ack = repr(Flags::ACK, 1, 1);
    let dup = segment(&ack, 0);
    let mut signal = dup.clone();
    signal.signals = true;
    let mut smaller = ack.clone();
    smaller.window -= 1;
    let window = segment(&smaller, 0);
    let end = repr(Flags::ACK | Flags::FIN, 1, 1);
    let fin = segment(&end, 0);
    let data = segment(&ack, 100);
    let mss = u64::from(Flight::outstanding(false).stats.mss);
    // The fields are: whether the SYNs permit SACK, the segment and whether its DATA_ACK advances, the number of
    // its copies, the number of bytes that the engine subtracts from its flight, and whether the oracle accepts
    // this.
    for (permits_sack, (segment, advances), copies, arrived, believed) in [
        (false, (&dup, false), 1, mss, true),
        (false, (&dup, false), 1, mss + 1, false),
        (true, (&dup, false), 1, mss, false),
        (false, (&dup, false), 100, 19_999, true),
        (false, (&dup, false), 100, 20_000, false),
        (false, (&dup, true), 1, 1, false),
        (false, (&window, false), 1, 1, false),
        (false, (&signal, false), 1, 1, false),
        (false, (&fin, false), 1, 1, false),
        (false, (&data, false), 1, 1, false),
    ] {
        let mut flight = Flight::outstanding(permits_sack);
        let mut stats = flight.stats;
        assert_eq!(flight.judge(&stats, SegmentKind::New), None);
        for _ in 0..copies {
            flight.flow().on_received(segment, advances);
        }
        stats.in_flight -= arrived;
        let broken = (!believed).then_some(Rule::Flight);
        let seen = flight.judge(&stats, SegmentKind::New);
        assert_eq!(
            seen, broken,
            "{arrived} after {copies} of {segment:?}, {advances}"
        );
    }
}

/// A duplicate stands for a segment of the size that segments had when the duplicate came.
#[test]
fn duplicates_of_segments_that_were_longer() {
    let mut flight = Flight::outstanding(false);
    let mut stats = flight.stats;
    assert_eq!(flight.judge(&stats, SegmentKind::New), None);
    let header = repr(Flags::ACK, 1, 1);
    let dup = segment(&header, 0);
    flight.flow().on_received(&dup, false);
    stats.in_flight -= u64::from(stats.mss);
    stats.mss /= 2;
    for _ in 0..3 {
        assert_eq!(flight.judge(&stats, SegmentKind::New), None);
    }
}

/// A recovery may follow another one with nothing sent between them. The second recovery begins with the data that
/// is then in flight. The window may have grown since the oracle last saw it, and recovery at most halves it.
#[test]
fn a_recovery_after_another() {
    let broken = Some(Rule::CongestionWindow);
    for (acked, ssthresh, rule) in [
        (1, 10_000, broken),
        (20_001, 10_000, None),
        (1, 14_000, broken),
        (1, 15_000, None),
    ] {
        let mut flight = Flight::outstanding(true);
        let mut stats = flight.stats;
        (stats.recovery, stats.ssthresh) = (LossRecovery::Fast, ssthresh);
        assert_eq!(flight.judge(&stats, SegmentKind::New), None);
        let header = repr(Flags::ACK, 1, acked);
        let ack = segment(&header, 0);
        flight.flow().on_received(&ack, false);
        stats.in_flight = 30_000;
        assert_eq!(flight.judge(&stats, SegmentKind::New), rule);
    }
}

#[test]
fn a_timer_that_is_not_served() {
    let mut pair = Pair::open(honest);
    pair.upload(1000);
    pair.send();
    pair.oracle
        .end_turn(pair.now + Duration::from_secs(5), &pair.client);
    assert_eq!(pair.broken(), Some(Rule::Timer));
}

#[test]
fn timers_that_lead_to_nothing() {
    let spin = |step: Duration| {
        let (mut timers, mut log) = (TimerCheck::default(), ViolationLog::default());
        let mut now = Instant::from_millis(1);
        for _ in 0..500 {
            timers.check(Some(now + step), 1, &mut log.checker(now, None));
            now += step;
        }
        log.take().first().map(|v| v.rule)
    };
    assert_eq!(spin(Duration::from_micros(10)), Some(Rule::Timer));
    assert_eq!(spin(Duration::from_millis(10)), None);
}

#[test]
fn connections_that_do_not_end() {
    // The opening is never given up, because the engine is not told that time passes.
    let mut pair = Pair::new(honest);
    pair.run(1);
    assert_eq!(pair.broken_after(60), Some(Rule::Liveness));
    // Data is not acknowledged, and nothing is heard from the peer.
    let mut pair = Pair::open(honest);
    pair.oracle.config.user_timeout = Duration::from_secs(30);
    pair.upload(1000);
    pair.send();
    assert_eq!(pair.broken_after(0), None);
    assert_eq!(pair.broken_after(60), Some(Rule::Liveness));
    // The peer is heard, but acknowledges nothing new.
    pair.hear_after(60);
    assert_eq!(pair.broken_after(60), None);
    pair.hear_after(260);
    assert_eq!(pair.broken_after(260), Some(Rule::Liveness));
}

#[test]
fn a_connection_that_vanishes_or_lingers() {
    let mut pair = Pair::open(honest);
    pair.client = stack(&[CLIENT], 4);
    assert_eq!(pair.broken_after(0), Some(Rule::Liveness));
    let mut pair = Pair::open(honest);
    assert_eq!(pair.broken_by(&closed(pair.conn)), None);
    assert_eq!(pair.broken_after(16), Some(Rule::Liveness));
}

fn closed(conn: ConnId) -> Event {
    let reason = CloseReason::Finished;
    Event::Closed { conn, reason }
}

/// The oracle forgets the flows of refused SYNs, although no event reports their end.
#[test]
fn refused_syns_are_forgotten() {
    let mut pair = Pair::open(honest);
    let open = pair.oracle.flows.len();
    let mut stranger = stack(&[SERVER], 5);
    connect(&mut stranger, pair.now, CLIENT);
    let syn = drain(&mut stranger, pair.now).remove(0);
    pair.client.receive(pair.now, &syn, CHECKED);
    pair.oracle.on_received(pair.now, &syn, &pair.client);
    pair.send();
    assert_eq!(pair.oracle.flows.len(), open + 1);
    assert_eq!(pair.broken_after(0), None);
    assert_eq!(pair.oracle.flows.len(), open);
}

#[test]
fn events_out_of_place() {
    let mut pair = Pair::open(honest);
    let conn = pair.conn;
    let broken = Some(Rule::Event);
    assert_eq!(pair.broken_by(&Event::Connected { conn }), broken);
    assert_eq!(pair.broken_by(&closed(conn)), None);
    assert_eq!(pair.broken_by(&Event::Readable { conn }), broken);
}

#[test]
fn bounds_that_are_passed() {
    let bound = |config: Config| {
        let mut pair = Pair::open(honest);
        pair.oracle.config = config;
        pair.upload(10_000);
        pair.download(10_000);
        pair.run(5);
        pair.broken_after(0)
    };
    assert_eq!(bound(Config::default()), None);
    let narrow: [fn(&mut Config); 4] = [
        |c| c.memory = 1,
        |c| c.max_connections = 0,
        |c| c.recv_buffer = 9_999,
        |c| c.max_subflows = 1,
    ];
    for narrow in narrow {
        let mut config = Config::default();
        narrow(&mut config);
        assert_eq!(bound(config), Some(Rule::Bound));
    }
}
