//! Tests that each rule is reported when it is broken. Two engines talk to each other; the oracle of one
//! is shown changed packets and figures.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::stats::{LossRecovery, SubflowStats};
use braid_engine::{ConnectOptions, PathConfig, RxMeta, TransmitInfo};
use braid_strategy::by_name;
use braid_wire::mptcp::{Dss, Join, MptcpOption, WireDsn};
use braid_wire::tcp::{Flags, SackBlocks};
use braid_wire::{Rng, Seq32, ip, tcp};

use super::flow::{Arrived, Flow, Map};
use super::*;

const PORT: u16 = 80;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);

/// A segment on its way to the oracle, and the engine's description of it.
struct Shown<'a> {
    tcp: &'a mut tcp::Repr,
    info: Option<&'a mut TransmitInfo>,
    payload: usize,
}

/// A change to a segment that the oracle is shown. It returns false to hide the segment.
type Lie = Box<dyn FnMut(Shown<'_>) -> bool>;

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

/// Returns `packet` with a changed TCP header, and the length of its headers. Returns `None` if the packet is
/// hidden.
fn retold(
    packet: &[u8],
    lie: impl FnOnce(&mut tcp::Repr, usize) -> bool,
) -> Option<(Vec<u8>, usize)> {
    let (ip, segment) = ip::Repr::parse(packet).unwrap();
    let (mut repr, payload) = tcp::Repr::parse(segment).unwrap();
    if !lie(&mut repr, payload.len()) {
        return None;
    }
    let headers = ip.header_len() + repr.header_len();
    let mut told = vec![0; headers];
    let ip = ip::Repr {
        payload_len: repr.header_len() + payload.len(),
        ..ip
    };
    ip.emit(&mut told);
    repr.emit(&mut told[ip.header_len()..]);
    told.extend_from_slice(payload);
    Some((told, headers))
}

impl Pair {
    fn new(lie: impl FnMut(Shown<'_>) -> bool + 'static) -> Pair {
        let now = Instant::from_millis(1000);
        let mut client = stack(&[CLIENT, Ipv4Addr::new(10, 0, 1, 2)], 1);
        let mut server = stack(&[SERVER], 2);
        let addr = SocketAddr::from((SERVER, PORT));
        server.listen(addr).unwrap();
        let options = ConnectOptions::new(addr, by_name("minrtt").unwrap());
        let conn = client.connect(now, options).unwrap();
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
            for packet in drain(&mut self.server, self.now) {
                self.client.receive(self.now, &packet, CHECKED);
                let lie = &mut self.lie;
                let told = retold(&packet, |tcp, payload| {
                    lie(Shown {
                        tcp,
                        info: None,
                        payload,
                    })
                });
                if let Some((told, _)) = told {
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
            let sent = {
                let Some(t) = self.client.poll_transmit(self.now) else {
                    return;
                };
                let packet = [t.header, &t.payload.concat()].concat();
                self.server.receive(self.now, &packet, CHECKED);
                let mut info = t.info.clone();
                let lie = &mut self.lie;
                let told = retold(&packet, |tcp, payload| {
                    lie(Shown {
                        tcp,
                        info: info.as_mut(),
                        payload,
                    })
                });
                let Some((told, headers)) = told else {
                    continue;
                };
                self.oracle.on_transmit(
                    self.now,
                    &Transmit {
                        header: &told[..headers],
                        payload: t.payload.clone(),
                        info,
                        ..t
                    },
                )
            };
            self.oracle.check_sent(self.now, sent, &self.client);
        }
    }

    /// Opens the connection and both subflows.
    fn open(lie: impl FnMut(Shown<'_>) -> bool + 'static) -> Pair {
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
}

const CHECKED: RxMeta = RxMeta {
    checksum_ok: true,
    gso_size: 0,
};

fn drain(stack: &mut Stack, now: Instant) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(t) = stack.poll_transmit(now) {
        packets.push([t.header, &t.payload.concat()].concat());
    }
    packets
}

fn honest(_: Shown<'_>) -> bool {
    true
}

/// Returns the DSS of a segment.
fn dss(tcp: &mut tcp::Repr) -> Option<&mut Dss> {
    tcp.options.mptcp.iter_mut().find_map(|o| match o {
        MptcpOption::Dss(dss) => Some(dss),
        _ => None,
    })
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
    let (another, _) = retold(&syn_ack, |tcp, _| {
        tcp.seq = tcp.seq.add(1000);
        true
    })
    .unwrap();
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

#[test]
fn a_gap_in_what_is_sent() {
    let mut hidden = 0;
    let mut pair = Pair::open(move |shown| {
        hidden += u32::from(shown.info.is_some() && shown.payload > 0);
        !(hidden == 1 && shown.payload > 0 && shown.info.is_some())
    });
    pair.upload(50_000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::Gap));
}

/// The engine acknowledges data that the oracle did not see arrive.
#[test]
fn an_acknowledgement_of_nothing() {
    let mut pair = Pair::open(|shown| shown.info.is_some() || shown.payload == 0);
    pair.download(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::Gap));
}

#[test]
fn a_data_ack_ahead() {
    let mut pair = Pair::open(|shown| {
        if let (Some(dss), Some(_)) = (dss(shown.tcp), shown.info) {
            dss.data_ack = dss.data_ack.map(|ack| match ack {
                WireDsn::Four(n) => WireDsn::Four(n.wrapping_add(1)),
                WireDsn::Eight(n) => WireDsn::Eight(n.wrapping_add(1)),
            });
        }
        true
    });
    pair.download(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::Gap));
}

/// Returns the rules broken when nobody answers a short upload, and `change` is applied to its mappings
/// with DATA_FIN.
fn changed_data_fins(mut change: impl FnMut(&mut Dss) + 'static) -> Vec<Rule> {
    let mut pair = Pair::open(honest);
    pair.upload(10);
    pair.client.shutdown(pair.now, pair.conn).unwrap();
    pair.lie = Box::new(move |shown| {
        if let (Some(dss), Some(_)) = (dss(shown.tcp), shown.info)
            && dss.mapping.is_some()
            && dss.data_fin
        {
            change(dss);
        }
        true
    });
    pair.server = stack(&[], 3);
    pair.run(2000);
    pair.oracle.take().iter().map(|v| v.rule).collect()
}

#[test]
fn a_data_fin_that_moves() {
    let mut fins = 0;
    let rules = changed_data_fins(move |dss| {
        fins += 1;
        dss.mapping.as_mut().unwrap().len += fins;
    });
    assert!(rules.contains(&Rule::Fin), "{rules:?}");
}

/// One repetition of the last bytes does not carry DATA_FIN.
#[test]
fn a_data_fin_on_one_copy_only() {
    let mut fins = 0;
    let rules = changed_data_fins(move |dss| {
        let mapping = dss.mapping.as_mut().unwrap();
        if mapping.len > 1 {
            fins += 1;
            dss.data_fin = fins == 1;
            mapping.len -= u16::from(fins > 1);
        }
    });
    assert!(rules.contains(&Rule::Fin), "{rules:?}");
}

/// Returns the headers of a packet of the client.
fn packet(repr: &tcp::Repr) -> Vec<u8> {
    let ip = ip::Repr {
        src: CLIENT.into(),
        dst: SERVER.into(),
        protocol: ip::PROTO_TCP,
        payload_len: repr.header_len(),
        hop_limit: 1,
        traffic_class: 0,
    };
    let mut bytes = vec![0; ip.header_len() + repr.header_len()];
    ip.emit(&mut bytes);
    repr.emit(&mut bytes[ip.header_len()..]);
    bytes
}

/// A box that overwrites options leaves none that the receiver could read.
#[test]
fn an_option_that_is_malformed_signals_nothing() {
    let mut repr = tcp::Repr::new(1, 2, Flags::ACK);
    let ack = MptcpOption::Dss(Dss {
        data_ack: Some(WireDsn::Four(1)),
        mapping: None,
        data_fin: false,
    });
    repr.options.mptcp.push(ack);
    let mut bytes = packet(&repr);
    assert!(!Segment::parse(&bytes, None).unwrap().signals);
    // No MPTCP option that starts with a zero is eight bytes long.
    let body = bytes.len() - 6;
    bytes[body..].fill(0);
    let overwritten = Segment::parse(&bytes, None).unwrap();
    assert!(!overwritten.signals && overwritten.dss.is_none());
}

#[test]
fn payload_behind_a_fin() {
    let mut flow = Flow::default();
    let mut log = ViolationLog::default();
    let pair = Pair::open(honest);
    let mut checker = Checker {
        log: &mut log,
        at: pair.now,
        conn: pair.conn,
    };
    let segment = |flags, seq, payload| {
        let repr = tcp::Repr {
            seq: Seq32(seq),
            ..tcp::Repr::new(1, 2, flags)
        };
        Segment::parse(&packet(&repr), Some(payload)).unwrap()
    };
    flow.on_syn_sent(&segment(Flags::SYN, 10, 0), &mut checker);
    flow.on_sent(&segment(Flags::FIN, 11, 5), &mut checker);
    flow.on_sent(&segment(Flags::FIN, 11, 5), &mut checker);
    assert!(checker.log.take().is_empty());
    flow.on_sent(&segment(Flags::EMPTY, 17, 1), &mut checker);
    assert_eq!(checker.log.take()[0].rule, Rule::Fin);
    flow.on_sent(&segment(Flags::FIN, 11, 4), &mut checker);
    assert_eq!(checker.log.take()[0].rule, Rule::Fin);
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
            flow.locate(payload.clone(), *map, |place| {
                if !place.is_empty() {
                    stream.insert(place);
                }
            });
        }
        assert_eq!(stream.next, 199, "{order:?}");
    }
}

/// The peer has announced a smaller window than the engine believes.
#[test]
fn data_past_the_peers_window() {
    let mut pair = Pair::open(|shown| {
        if shown.info.is_none() {
            shown.tcp.window = 0;
        }
        true
    });
    pair.upload(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::PeerWindow));
}

#[test]
fn a_window_taken_back() {
    let mut pair = Pair::open(honest);
    pair.download(1000);
    pair.run(10);
    pair.lie = Box::new(|shown| {
        if shown.info.is_some() {
            shown.tcp.window /= 2;
        }
        true
    });
    pair.download(1000);
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::WindowShrunk));
}

#[test]
fn a_mapping_of_something_else() {
    for strip in [false, true] {
        let mut pair = Pair::open(honest);
        pair.lie = Box::new(move |shown| {
            let ours = shown.info.is_some() && shown.payload > 0;
            if let (Some(dss), true) = (dss(shown.tcp), ours)
                && let Some(mapping) = &mut dss.mapping
            {
                mapping.subflow_seq += 1;
                if strip {
                    dss.mapping = None;
                }
            }
            true
        });
        pair.upload(1000);
        pair.run(10);
        assert_eq!(pair.broken(), Some(Rule::Mapping), "strip: {strip}");
    }
}

#[test]
fn a_join_with_a_wrong_token() {
    let mut pair = Pair::new(|shown| {
        for option in &mut shown.tcp.options.mptcp {
            if let MptcpOption::Join(Join::Syn { token, .. }) = option {
                *token ^= 1;
            }
        }
        true
    });
    pair.run(10);
    assert_eq!(pair.broken(), Some(Rule::Mapping));
}

#[test]
fn wrong_words_about_a_packet() {
    let lies: [fn(&mut TransmitInfo); 4] = [
        |info| info.kind = SegmentKind::Copy,
        |info| info.kind = SegmentKind::Control,
        |info| info.data.end += 1,
        |info| info.subflow = SubflowId(7),
    ];
    for lie in lies {
        let mut pair = Pair::open(honest);
        pair.lie = Box::new(move |shown| {
            if let (Some(info), true) = (shown.info, shown.payload > 0) {
                lie(info);
            }
            true
        });
        pair.upload(1000);
        pair.run(10);
        assert_eq!(pair.broken(), Some(Rule::Info));
    }
}

/// Returns the flow of a client that has sent 10,000 bytes, and true statistics of the flow.
fn flight(pair: &mut Pair) -> (Tuple, SubflowStats) {
    pair.upload(10_000);
    pair.send();
    let subflows = pair.client.subflows(pair.conn);
    let stats = subflows.into_iter().find(|s| s.in_flight > 0).unwrap();
    (tuple(stats.local, stats.remote), stats)
}

fn judge(pair: &mut Pair, tuple: Tuple, stats: &SubflowStats, kind: SegmentKind) -> Option<Rule> {
    let flow = pair.oracle.flows.get_mut(&tuple).unwrap();
    let mut checker = Checker {
        log: &mut pair.oracle.log,
        at: pair.now,
        conn: pair.conn,
    };
    flow.check_flight(pair.now, stats, (kind, true), &mut checker);
    pair.broken()
}

#[test]
fn more_in_flight_than_the_window() {
    use SegmentKind::{New, Retransmission};
    let mut pair = Pair::open(honest);
    let (tuple, stats) = flight(&mut pair);
    assert_eq!(judge(&mut pair, tuple, &stats, New), None);
    let over = SubflowStats {
        cwnd: stats.in_flight - 1,
        ..stats
    };
    assert_eq!(
        judge(&mut pair, tuple, &over, New),
        Some(Rule::CongestionWindow)
    );
    // A probe is excused, but not twice in a row.
    pair.now += Duration::from_secs(1);
    assert_eq!(judge(&mut pair, tuple, &over, Retransmission), None);
    assert_eq!(
        judge(&mut pair, tuple, &over, Retransmission),
        Some(Rule::CongestionWindow)
    );
    // In fast recovery the limit is the window, or the flight, before the recovery.
    let fast = SubflowStats {
        recovery: LossRecovery::Fast,
        ssthresh: over.cwnd / 2,
        cwnd: u64::MAX,
        ..stats
    };
    assert_eq!(judge(&mut pair, tuple, &fast, New), None);
    let grown = SubflowStats {
        in_flight: fast.in_flight + u64::from(stats.mss) + 1,
        ..fast
    };
    assert_eq!(
        judge(&mut pair, tuple, &grown, New),
        Some(Rule::CongestionWindow)
    );
}

#[test]
fn bytes_in_flight_that_are_forgotten() {
    let mut pair = Pair::open(honest);
    let (tuple, stats) = flight(&mut pair);
    let forgetful = SubflowStats {
        in_flight: stats.in_flight - 1,
        ..stats
    };
    let rule = judge(&mut pair, tuple, &forgetful, SegmentKind::New);
    assert_eq!(rule, Some(Rule::Flight));
}

fn segment(flags: Flags, (seq, ack): (u32, u32), len: u64, permits_sack: bool) -> Segment {
    Segment {
        src: SocketAddr::from((CLIENT, PORT)),
        dst: SocketAddr::from((SERVER, PORT)),
        seq: Seq32(seq),
        ack: Some(Seq32(ack)),
        flags,
        window: u16::MAX,
        len,
        scale: None,
        permits_sack,
        sack: SackBlocks::new(),
        dss: None,
        capable: None,
        join: None,
        signals: false,
    }
}

/// Returns a flow with 20,000 bytes outstanding; its SYNs permit SACK if `permits_sack`.
fn outstanding(pair: &mut Pair, permits_sack: bool) -> (Tuple, SubflowStats) {
    let (tuple, stats) = flight(pair);
    let mut flow = Flow::default();
    let mut checker = Checker {
        log: &mut pair.oracle.log,
        at: pair.now,
        conn: pair.conn,
    };
    flow.on_syn_sent(&segment(Flags::SYN, (0, 0), 0, true), &mut checker);
    flow.on_syn_received(&segment(Flags::SYN | Flags::ACK, (0, 1), 0, permits_sack));
    flow.on_sent(&segment(Flags::ACK, (1, 1), 20_000, false), &mut checker);
    pair.oracle.flows.insert(tuple, flow);
    let stats = SubflowStats {
        in_flight: 20_000,
        cwnd: 20_000,
        ..stats
    };
    (tuple, stats)
}

/// Returns whether the oracle believes that `arrived` of 20,000 outstanding bytes have arrived, after `times`
/// acknowledgements `dup`. The SYNs permit SACK if `permits_sack`, and the DATA_ACK advances if `news`.
fn is_believed(
    (permits_sack, news): (bool, bool),
    dup: &Segment,
    times: usize,
    arrived: u64,
) -> bool {
    let mut pair = Pair::open(honest);
    let (tuple, stats) = outstanding(&mut pair, permits_sack);
    assert_eq!(judge(&mut pair, tuple, &stats, SegmentKind::New), None);
    let flow = pair.oracle.flows.get_mut(&tuple).unwrap();
    for _ in 0..times {
        flow.on_received(dup, news);
    }
    let told = SubflowStats {
        in_flight: stats.in_flight - arrived,
        ..stats
    };
    let broken = judge(&mut pair, tuple, &told, SegmentKind::New);
    assert!(matches!(broken, None | Some(Rule::Flight)), "{broken:?}");
    broken.is_none()
}

/// Without SACK each duplicate acknowledgement stands for a segment that has arrived, whatever the number of
/// duplicates. None stands for the missing segment.
#[test]
fn duplicates_that_tell_of_arrivals() {
    let dup = segment(Flags::ACK, (1, 1), 0, false);
    let mss = {
        let mut pair = Pair::open(honest);
        u64::from(outstanding(&mut pair, false).1.mss)
    };
    assert!(is_believed((false, false), &dup, 1, mss));
    assert!(!is_believed((false, false), &dup, 1, mss + 1));
    assert!(!is_believed((true, false), &dup, 1, mss));
    assert!(is_believed((false, false), &dup, 100, 19_999));
    assert!(!is_believed((false, false), &dup, 100, 20_000));
}

/// A duplicate stands for a segment of the size that segments had when the duplicate came.
#[test]
fn duplicates_of_segments_that_were_longer() {
    let mut pair = Pair::open(honest);
    let (tuple, stats) = outstanding(&mut pair, false);
    assert_eq!(judge(&mut pair, tuple, &stats, SegmentKind::New), None);
    let flow = pair.oracle.flows.get_mut(&tuple).unwrap();
    flow.on_received(&segment(Flags::ACK, (1, 1), 0, false), false);
    let shorter = SubflowStats {
        in_flight: stats.in_flight - u64::from(stats.mss),
        mss: stats.mss / 2,
        ..stats
    };
    for _ in 0..3 {
        assert_eq!(judge(&mut pair, tuple, &shorter, SegmentKind::New), None);
    }
}

/// RFC 5681 section 2: a segment is no duplicate acknowledgement if it has data, FIN, another window, a DATA_ACK
/// that advances, or another MPTCP signal.
#[test]
fn acknowledgements_that_are_no_duplicates() {
    let dup = segment(Flags::ACK, (1, 1), 0, false);
    let window = Segment {
        window: dup.window - 1,
        ..dup.clone()
    };
    let signal = Segment {
        signals: true,
        ..dup.clone()
    };
    let fin = segment(Flags::ACK | Flags::FIN, (1, 1), 0, false);
    let data = segment(Flags::ACK, (1, 1), 100, false);
    for other in [window, signal, fin, data] {
        assert!(!is_believed((false, false), &other, 1, 1), "{other:?}");
    }
    assert!(!is_believed((false, true), &dup, 1, 1));
}

/// A recovery may follow another one with nothing sent between them. The second recovery begins with the data that
/// is in flight at its begin. The window may have grown since the oracle last saw it, and is at most halved.
#[test]
fn a_recovery_after_another() {
    let broken = Some(Rule::CongestionWindow);
    for (acked, ssthresh, rule) in [
        (1, 10_000, broken),
        (20_001, 10_000, None),
        (1, 14_000, broken),
        (1, 15_000, None),
    ] {
        let mut pair = Pair::open(honest);
        let (tuple, stats) = outstanding(&mut pair, true);
        let fast = SubflowStats {
            recovery: LossRecovery::Fast,
            ssthresh,
            ..stats
        };
        assert_eq!(judge(&mut pair, tuple, &fast, SegmentKind::New), None);
        let flow = pair.oracle.flows.get_mut(&tuple).unwrap();
        flow.on_received(&segment(Flags::ACK, (1, acked), 0, false), false);
        let more = SubflowStats {
            in_flight: 30_000,
            ..fast
        };
        assert_eq!(judge(&mut pair, tuple, &more, SegmentKind::New), rule);
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
            timers.check(now, (Some(now + step), 1), &mut log);
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
    let minute = Duration::from_secs(60);
    pair.oracle.sweep(pair.now + minute, &pair.client);
    assert_eq!(pair.broken(), Some(Rule::Liveness));
    // Data is not acknowledged, and nothing is heard from the peer.
    let mut pair = Pair::open(honest);
    pair.oracle.config.user_timeout = Duration::from_secs(30);
    pair.upload(1000);
    pair.send();
    pair.oracle.sweep(pair.now, &pair.client);
    assert_eq!(pair.broken(), None);
    let later = pair.now + minute;
    pair.oracle.sweep(later, &pair.client);
    assert_eq!(pair.broken(), Some(Rule::Liveness));
    // The peer is heard, but acknowledges nothing new.
    pair.oracle.conns.get_mut(&pair.conn).unwrap().last_heard = later;
    pair.oracle.sweep(later, &pair.client);
    assert_eq!(pair.broken(), None);
    let later = later + Duration::from_secs(200);
    pair.oracle.conns.get_mut(&pair.conn).unwrap().last_heard = later;
    pair.oracle.sweep(later, &pair.client);
    assert_eq!(pair.broken(), Some(Rule::Liveness));
}

#[test]
fn a_connection_that_vanishes_or_lingers() {
    let mut pair = Pair::open(honest);
    let nobody = stack(&[CLIENT], 4);
    pair.oracle.sweep(pair.now, &nobody);
    assert_eq!(pair.broken(), Some(Rule::Liveness));
    let mut pair = Pair::open(honest);
    let closed = Event::Closed {
        conn: pair.conn,
        reason: braid_engine::CloseReason::Finished,
    };
    pair.oracle.on_event(pair.now, &closed);
    let later = pair.now + Duration::from_secs(16);
    pair.oracle.sweep(later, &pair.client);
    assert_eq!(pair.broken(), Some(Rule::Liveness));
}

/// The oracle forgets the flows of refused SYNs, although no event reports their end.
#[test]
fn refused_syns_are_forgotten() {
    let mut pair = Pair::open(honest);
    let open = pair.oracle.flows.len();
    let mut stranger = stack(&[SERVER], 5);
    let addr = SocketAddr::from((CLIENT, PORT));
    let options = ConnectOptions::new(addr, by_name("minrtt").unwrap());
    stranger.connect(pair.now, options).unwrap();
    let syn = drain(&mut stranger, pair.now).remove(0);
    pair.client.receive(pair.now, &syn, CHECKED);
    pair.oracle.on_received(pair.now, &syn, &pair.client);
    pair.send();
    assert_eq!(pair.oracle.flows.len(), open + 1);
    pair.oracle.sweep(pair.now, &pair.client);
    assert_eq!(pair.oracle.flows.len(), open);
    assert_eq!(pair.broken(), None);
}

#[test]
fn events_out_of_place() {
    let mut pair = Pair::open(honest);
    let conn = pair.conn;
    let connected = Event::Connected { conn };
    pair.oracle.on_event(pair.now, &connected);
    assert_eq!(pair.broken(), Some(Rule::Event));
    let closed = Event::Closed {
        conn,
        reason: braid_engine::CloseReason::Finished,
    };
    pair.oracle.on_event(pair.now, &closed);
    assert_eq!(pair.broken(), None);
    pair.oracle.on_event(pair.now, &Event::Readable { conn });
    assert_eq!(pair.broken(), Some(Rule::Event));
}

#[test]
fn bounds_that_are_passed() {
    let bound = |config: Config| {
        let mut pair = Pair::open(honest);
        pair.oracle.config = config;
        pair.upload(10_000);
        pair.download(10_000);
        pair.run(5);
        pair.oracle.sweep(pair.now, &pair.client);
        pair.broken()
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
