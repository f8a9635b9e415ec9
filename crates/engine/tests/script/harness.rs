//! The runner of scripts: virtual time, the peer's side of each subflow, and the stack's output.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::io::Read;

use braid_engine::buffer::PacketBuffer;
use braid_engine::stats::ConnStats;
use braid_engine::{
    ApiError, Class, Config, ConnId, ConnectOptions, Event, JoinAuth, PathConfig, Protocol, RxMeta,
    Stack, TransmitInfo, TxChecksum, Urgency,
};
use braid_wire::mptcp::{Capable, Dss, DssMapping, Join, MptcpOption, WireDsn};
use braid_wire::tcp::{self, Flags, Options, Timestamps};
use braid_wire::{Dsn64, Instant, Rng, Seq32, checksum, ip};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::segment::{Mp, Rel, Seg, ack, dack, data, syn, syn_ack};
use crate::strategy::strategy;

/// The peer sends a segment at a time; everything that the stack sent before must have been expected.
macro_rules! send {
    ($s:expr, $at:expr, $seg:expr) => {{
        let seg = $seg;
        $s.send($at, seg)
    }};
}

/// The stack sends this segment at exactly this time.
macro_rules! recv {
    ($s:expr, $at:expr, $seg:expr) => {
        $s.recv($at, |_| $seg)
    };
    ($s:ident => $at:expr, $seg:expr) => {
        $s.recv($at, |$s| $seg)
    };
}

/// Nothing is sent until this time.
macro_rules! quiet {
    ($s:expr, $until:expr) => {
        $s.quiet($until)
    };
}

pub const PORT: u16 = 4433;
/// The key of the peer.
pub const PEER_KEY: u64 = 0x1122_3344_5566_7788;
const PEER_TS: u32 = 1_000_000;

/// A time of a script: milliseconds, whole or not.
pub trait At: Copy {
    fn at(self) -> Instant;
}

impl At for i32 {
    fn at(self) -> Instant {
        Instant::from_millis(self as u64)
    }
}

impl At for f64 {
    fn at(self) -> Instant {
        Instant::from_nanos((self * 1e6).round() as u64)
    }
}

impl At for Instant {
    fn at(self) -> Instant {
        self
    }
}

/// A subflow as the peer sees it.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    pub stack: SocketAddr,
    pub peer: SocketAddr,
    /// The initial sequence number of the stack, once seen.
    pub iss: Option<Seq32>,
    /// The initial sequence number of the peer.
    pub irs: Seq32,
    /// The first timestamp of the stack.
    pub ts: Option<u32>,
}

pub struct Script {
    pub stack: Stack,
    device: PacketBuffer,
    pub now: Instant,
    pub flows: Vec<Flow>,
    pub conn: Option<ConnId>,
    /// The stack's key, once seen.
    pub key: Option<u64>,
    pub events: Vec<Event>,
    /// The stack's description of each packet it sent.
    pub infos: Vec<Option<TransmitInfo>>,
    /// The final statistics of the connection.
    pub report: Option<ConnStats>,
    out: VecDeque<(Instant, Seg)>,
}

/// Returns token and initial data sequence number from SHA-256 of a key (RFC 8684 section 3.1).
pub fn token_idsn(key: u64) -> (u32, Dsn64) {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    (
        u32::from_be_bytes(hash[..4].try_into().unwrap()),
        Dsn64(u64::from_be_bytes(hash[24..].try_into().unwrap())),
    )
}

/// Returns HMAC-SHA256 of MP_JOIN (RFC 8684 section 3.2), the sender's key and nonce first.
pub fn join_hmac(keys: (u64, u64), nonces: (u32, u32)) -> [u8; 32] {
    let key = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(&nonces.0.to_be_bytes());
    mac.update(&nonces.1.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// The settings: packets of one MTU, computed checksums, windows shifted by 7 as the peer does.
pub fn config() -> Config {
    Config {
        checksum_offload: false,
        max_transmit: 1500,
        // Announced with a shift of 7.
        recv_buffer: 4 << 20,
        user_timeout: Duration::from_secs(30),
        ..Config::default()
    }
}

fn v4(n: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, n, host)
}

fn path(v4: Ipv4Addr) -> PathConfig {
    PathConfig::v4(v4)
}

impl Script {
    pub fn new(config: Config, paths: &[PathConfig]) -> Script {
        let mut stack = Stack::new(config, Rng::for_component(1, 1), Box::new(strategy));
        for path in paths {
            stack.add_path(*path).unwrap();
        }
        Script {
            stack,
            device: PacketBuffer::new(),
            now: Instant::ZERO,
            flows: Vec::new(),
            conn: None,
            key: None,
            events: Vec::new(),
            infos: Vec::new(),
            report: None,
            out: VecDeque::new(),
        }
    }

    /// A stack that listens on one address.
    pub fn server(config: Config) -> Script {
        let mut s = Script::new(config, &[path(v4(9, 1))]);
        s.stack.listen((v4(9, 1), PORT).into()).unwrap();
        s
    }

    /// A stack with `paths` addresses that opens a connection at time 0.
    pub fn client(config: Config, paths: u8, protocol: Protocol) -> Script {
        let paths: Vec<_> = (0..paths).map(|n| path(v4(n, 2))).collect();
        let mut s = Script::new(config, &paths);
        s.connect((v4(9, 1), PORT).into(), protocol);
        s
    }

    pub fn connect(&mut self, remote: SocketAddr, protocol: Protocol) {
        self.open(ConnectOptions {
            protocol,
            ..ConnectOptions::new(remote, strategy())
        });
    }

    pub fn open(&mut self, options: ConnectOptions) {
        self.conn = Some(self.stack.connect(self.now, options).unwrap());
        self.poll();
    }

    /// Connects like [`connect`](Self::connect), with `bytes` written before anything is sent.
    pub fn connect_with(&mut self, protocol: Protocol, bytes: &[u8]) {
        let options = ConnectOptions {
            protocol,
            ..ConnectOptions::new((v4(9, 1), PORT).into(), strategy())
        };
        let id = self.stack.connect(self.now, options).unwrap();
        self.conn = Some(id);
        assert_eq!(self.stack.write(self.now, id, bytes), Ok(bytes.len()));
        self.poll();
    }

    /// An accepted connection: MP_CAPABLE handshake with a round trip of 10 ms, done at 10 ms.
    pub fn accepted(config: Config) -> Script {
        let mut s = Script::server(config);
        s.peer(1);
        send!(s, 0, syn().raw(&[30, 4, 1, 1]));
        recv!(s => 0, s.capable(syn_ack()));
        send!(s, 10, s.third_ack());
        recv!(s, 10, ack(1, 1).dss(dack(0)));
        s
    }

    /// An opened connection, fully established by a DATA_ACK, round trip 10 ms, done at 20 ms. Joins on further
    /// paths leave then and are still to be taken.
    pub fn opened(config: Config, paths: u8) -> Script {
        let mut s = Script::client(config, paths, Protocol::Mptcp);
        recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, 1]));
        send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
        recv!(s => 10, s.stack_keys(ack(1, 1)));
        s.advance(20.at());
        s.arrive(&ack(1, 1).win(512).dss(dack(0)));
        s
    }

    /// Regular TCP, accepted at 10 ms with a round trip of 10 ms.
    pub fn tcp(config: Config, first: Seg, third: Seg) -> Script {
        let mut s = Script::server(config);
        s.peer(1);
        let sack_ok = first.sack_ok;
        send!(s, 0, first);
        let answer = Seg {
            sack_ok,
            ..syn_ack().ws(None)
        };
        recv!(s, 0, answer);
        send!(s, 10, third);
        quiet!(s, 10);
        s
    }

    /// Adds a subflow that the peer will open from its `n`th address; returns its index.
    pub fn peer(&mut self, n: u8) -> usize {
        let peer = SocketAddr::from((v4(n, 2), 5000 + self.flows.len() as u16));
        self.flow((v4(9, 1), PORT).into(), peer)
    }

    pub fn flow(&mut self, stack: SocketAddr, peer: SocketAddr) -> usize {
        self.flows.push(Flow {
            stack,
            peer,
            iss: None,
            // The initial number is close to the wrap, so that every script crosses it.
            irs: Seq32(0u32.wrapping_sub(700).wrapping_sub(self.flows.len() as u32)),
            ts: None,
        });
        self.flows.len() - 1
    }

    // --- options that need the keys

    /// Adds the stack's key, as on its SYN/ACK.
    pub fn capable(&self, seg: Seg) -> Seg {
        let key = self.key.expect("no key seen yet").to_be_bytes();
        seg.raw(&[&[30, 12, 1, 1], &key[..]].concat())
    }

    /// Adds the peer's key, as on its SYN/ACK.
    pub fn peer_capable(&self, seg: Seg) -> Seg {
        seg.raw(&[&[30, 12, 1, 1], &PEER_KEY.to_be_bytes()[..]].concat())
    }

    /// Adds the stack's key and the peer's, as on its third ACK.
    pub fn stack_keys(&self, seg: Seg) -> Seg {
        let ours = self.key.expect("no key seen yet").to_be_bytes();
        let theirs = PEER_KEY.to_be_bytes();
        seg.raw(&[&[30, 20, 1, 1], &ours[..], &theirs[..]].concat())
    }

    /// Adds the stack's keys with the length of the first mapping.
    pub fn stack_keys_data(&self, seg: Seg, len: u16) -> Seg {
        let Some(mut raw) = self.stack_keys(seg.clone()).raw else {
            unreachable!();
        };
        raw[1] = 22;
        raw.extend(len.to_be_bytes());
        seg.raw(&raw)
    }

    /// Returns the peer's third ACK.
    pub fn third_ack(&self) -> Seg {
        self.peer_keys(ack(1, 1), None).win(512)
    }

    /// Adds the peer's keys, with the length of the first mapping if there is one.
    pub fn peer_keys(&self, seg: Seg, len: Option<u16>) -> Seg {
        let theirs = PEER_KEY.to_be_bytes();
        let ours = self.key.expect("no key seen yet").to_be_bytes();
        let head = [30, if len.is_some() { 22 } else { 20 }, 1, 1];
        let tail: Vec<u8> = len.map_or(Vec::new(), |l| l.to_be_bytes().to_vec());
        seg.raw(&[&head[..], &theirs, &ours, &tail].concat())
    }

    // --- the application

    pub fn id(&self) -> ConnId {
        self.conn.expect("no connection yet")
    }

    pub fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let (id, bytes) = (self.id(), bytes.as_ref());
        assert_eq!(self.stack.write(self.now, id, bytes), Ok(bytes.len()));
        self.poll();
    }

    /// Writes to a stream with an urgency; nothing is sent before the next call that sends.
    pub fn queue(&mut self, stream: u32, level: u8, bytes: impl AsRef<[u8]>) {
        let urgency = Urgency::new(level).expect("a level from 0 to 7");
        let class = Class {
            stream,
            urgency,
            ..Class::default()
        };
        self.queue_class(class, bytes.as_ref());
    }

    pub fn queue_class(&mut self, class: Class, mut from: &[u8]) {
        let id = self.id();
        let all = from.len();
        let n = self.stack.write_class(self.now, id, class, all, |slices| {
            slices.iter_mut().try_fold(0, |n, slice| {
                let len = from.read(slice).expect("memory");
                Ok::<_, ApiError>(n + len)
            })
        });
        assert_eq!(n, Ok(all));
    }

    pub fn read(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        let id = self.id();
        while self.stack.readable(id) > 0 {
            let n = self.stack.read_with(self.now, id, |slices| {
                let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
                read.extend_from_slice(&bytes);
                Ok::<_, ApiError>(bytes.len())
            });
            n.unwrap();
        }
        self.poll();
        read
    }

    pub fn set_join_auth(&mut self, auth: JoinAuth) {
        self.stack.set_join_auth(self.now, self.id(), auth).unwrap();
        self.poll();
    }

    pub fn shutdown(&mut self) {
        self.stack.shutdown(self.now, self.id()).unwrap();
        self.poll();
    }

    pub fn abort(&mut self) {
        self.stack.abort(self.now, self.id());
        self.poll();
    }

    /// Returns whether this event was reported.
    pub fn saw(&self, want: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(want)
    }

    /// Returns the number of times that this event was reported.
    pub fn count(&self, want: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| want(event)).count()
    }

    // --- time

    /// Makes the peer send `seg`.
    pub fn send(&mut self, at: impl At, seg: Seg) {
        self.quiet(at);
        self.arrive(&seg);
    }

    fn arrive(&mut self, seg: &Seg) {
        let packet = self.packet(seg);
        self.read_in(&packet);
    }

    /// Injects a packet that the harness did not make.
    pub fn inject(&mut self, at: impl At, packet: &[u8]) {
        self.quiet(at);
        self.read_in(packet);
    }

    /// Hands a packet to the stack as a device does.
    fn read_in(&mut self, packet: &[u8]) {
        self.device.fill(packet);
        let meta = RxMeta::default();
        self.stack.receive_from(self.now, &mut self.device, meta);
        self.poll();
    }

    /// Expects `want` as the stack's next segment, at this time. `want` is built after the segment was
    /// sent, so that it may use keys that the segment shows.
    pub fn recv(&mut self, at: impl At, want: impl FnOnce(&Script) -> Seg) {
        let at = at.at();
        self.advance(at);
        let want = want(self);
        let Some((when, got)) = self.out.pop_front() else {
            panic!("nothing was sent by {at}, expected {want:?}");
        };
        assert!(
            want.matches(&got) && when == at,
            "expected at {at}\n  {want:?}\nsent at {when}\n  {got:?}\nthen {:?}",
            self.out
        );
    }

    /// Takes the next segment sent by now, whatever it is.
    pub fn take(&mut self) -> Option<(Instant, Seg)> {
        self.out.pop_front()
    }

    /// Returns whether nothing more was sent by now.
    pub fn idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Ignores everything sent until this time.
    pub fn skip(&mut self, until: impl At) {
        self.advance(until.at());
        self.out.clear();
    }

    pub fn quiet(&mut self, until: impl At) {
        self.advance(until.at());
        assert!(self.out.is_empty(), "unexpected: {:#?}", self.out);
    }

    pub fn advance(&mut self, until: Instant) {
        assert!(until >= self.now, "{until} is over at {}", self.now);
        while let Some(at) = self.stack.next_timeout().filter(|at| *at <= until) {
            assert!(at >= self.now, "a timer in the past");
            let before = (self.now, self.stack.next_timeout());
            self.now = at;
            self.stack.handle_timeout(at);
            self.poll();
            assert_ne!((self.now, self.stack.next_timeout()), before, "no progress");
        }
        self.now = until;
    }

    fn poll(&mut self) {
        self.poll_events();
        let mut packets = Vec::new();
        while let Some(t) = self.stack.poll_transmit(self.now) {
            assert_eq!(t.checksum, TxChecksum::Done);
            packets.push(([t.header, &t.payload.concat()].concat(), t.gso_size));
            self.infos.push(t.info);
            assert!(packets.len() < 10_000, "no end of packets");
        }
        for (packet, gso) in packets {
            let seg = self.parse(&packet, gso);
            self.out.push_back((self.now, seg));
        }
        self.poll_events();
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Accepted { conn, .. } => self.conn = Some(conn),
                Event::Closed { conn, .. } => self.report = self.stack.conn_stats(conn),
                _ => {}
            }
            self.events.push(event);
        }
    }

    // --- bytes

    /// Returns the peer's packet for `seg`.
    pub fn packet(&self, seg: &Seg) -> Vec<u8> {
        let flow = &self.flows[seg.flow];
        let mut options = Options {
            mss: seg.mss,
            window_scale: seg.ws,
            sack_permitted: seg.sack_ok == Some(true),
            fast_open: seg.cookie.as_ref().map(|c| c[..].try_into().unwrap()),
            timestamps: seg.ts.map(|(value, echo)| Timestamps {
                value: PEER_TS.wrapping_add(value),
                echo: flow.ts.unwrap_or(0).wrapping_add(echo),
            }),
            ..Options::default()
        };
        let iss = flow.iss.unwrap_or(Seq32(0));
        for (l, r) in &seg.sack {
            options.sack.push((iss.add(*l as u32), iss.add(*r as u32)));
        }
        if seg.raw.is_none() {
            options.mptcp.extend(seg.mptcp.iter().map(|o| self.wire(o)));
        }
        let repr = tcp::Repr {
            src_port: flow.peer.port(),
            dst_port: flow.stack.port(),
            seq: flow.irs.add(seg.seq as u32),
            ack: iss.add(seg.ack.unwrap_or(0) as u32),
            flags: seg.flags,
            window: seg.win.unwrap_or(u16::MAX),
            options,
        };
        let mut tcp = vec![0; repr.header_len()];
        repr.emit(&mut tcp);
        if let Some(raw) = &seg.raw {
            tcp.extend(raw);
            tcp.resize(tcp.len().next_multiple_of(4), 1);
            tcp[12] = (tcp.len() as u8 / 4) << 4;
        }
        let ip = ip::Repr {
            src: flow.peer.ip(),
            dst: flow.stack.ip(),
            protocol: ip::PROTO_TCP,
            payload_len: tcp.len() + seg.payload.len(),
            hop_limit: 64,
            traffic_class: seg.ecn.unwrap_or(ip::NOT_ECT),
        };
        tcp::fill_checksum(ip.src, ip.dst, &mut tcp, &[&seg.payload]);
        let mut packet = vec![0; ip.header_len()];
        ip.emit(&mut packet);
        [packet, tcp, seg.payload.clone()].concat()
    }

    fn wire(&self, option: &Mp) -> MptcpOption {
        let rel = match option {
            Mp::Dss(rel) => rel,
            Mp::Other(option) => return *option,
        };
        let ours = self.key.map_or(Dsn64(0), |key| token_idsn(key).1).add(1);
        let theirs = token_idsn(PEER_KEY).1.add(1);
        MptcpOption::Dss(Dss {
            data_ack: rel.ack.map(|n| WireDsn::new(ours.add(n), rel.wide_ack)),
            mapping: rel.map.map(|(data, sub, len)| DssMapping {
                dsn: WireDsn::new(theirs.add(data), rel.wide_map),
                subflow_seq: sub,
                len,
                checksum: rel.checksum,
            }),
            data_fin: rel.fin,
        })
    }

    /// Returns an ICMP error about the stack's segment that starts at `seq`.
    pub fn icmp(&self, flow: usize, kind: (u8, u8, u32), seq: u64) -> Vec<u8> {
        self.icmp_from(flow, kind, seq, self.flows[flow].stack.ip())
    }

    /// Returns the same error from a network that saw the segment come from `source`.
    pub fn icmp_from(
        &self,
        flow: usize,
        (kind, code, rest): (u8, u8, u32),
        seq: u64,
        source: IpAddr,
    ) -> Vec<u8> {
        let flow = &self.flows[flow];
        let quoted = tcp::Repr {
            seq: flow.iss.unwrap().add(seq as u32),
            ..tcp::Repr::new(flow.stack.port(), flow.peer.port(), Flags::ACK)
        };
        let mut segment = vec![0; quoted.header_len()];
        quoted.emit(&mut segment);
        let header = |src, dst, protocol, payload_len| {
            let ip = ip::Repr {
                src,
                dst,
                protocol,
                payload_len,
                hop_limit: 64,
                traffic_class: 0,
            };
            let mut bytes = vec![0; ip.header_len()];
            ip.emit(&mut bytes);
            bytes
        };
        let quoted = header(source, flow.peer.ip(), ip::PROTO_TCP, segment.len());
        let mut icmp = vec![kind, code, 0, 0];
        icmp.extend(rest.to_be_bytes());
        icmp.extend(quoted);
        icmp.extend(segment);
        let (protocol, sum) = match flow.stack.ip() {
            IpAddr::V4(_) => (ip::PROTO_ICMP, checksum::Sum::default()),
            IpAddr::V6(_) => (
                ip::PROTO_ICMPV6,
                checksum::pseudo_header(
                    flow.peer.ip(),
                    flow.stack.ip(),
                    ip::PROTO_ICMPV6,
                    icmp.len() as u32,
                ),
            ),
        };
        let value = checksum::finish(checksum::sum(sum, &icmp));
        icmp[2..4].copy_from_slice(&value.to_be_bytes());
        let ip = header(flow.peer.ip(), flow.stack.ip(), protocol, icmp.len());
        [ip, icmp].concat()
    }

    /// Parses a packet of the stack into relative numbers.
    fn parse(&mut self, packet: &[u8], gso: u16) -> Seg {
        let (ip, segment) = ip::Repr::parse(packet).unwrap();
        assert!(tcp::verify_checksum(ip.src, ip.dst, segment));
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        let stack = SocketAddr::new(ip.src, tcp.src_port);
        let peer = SocketAddr::new(ip.dst, tcp.dst_port);
        let known = self
            .flows
            .iter()
            .rposition(|f| (f.stack, f.peer) == (stack, peer));
        let n = known.unwrap_or_else(|| self.flow(stack, peer));
        let flow = &mut self.flows[n];
        if tcp.flags.contains(Flags::SYN) {
            flow.iss = Some(tcp.seq);
        }
        let iss = flow.iss.unwrap_or(Seq32(0));
        if let Some(ts) = tcp.options.timestamps {
            flow.ts.get_or_insert(ts.value);
        }
        let flow = *flow;
        self.learn_key(&tcp);
        let rel = |seq: Seq32, base: Seq32| u64::from(seq.0.wrapping_sub(base.0));
        let raw = tcp::raw_options(&segment[20..segment.len() - payload.len()])
            .flatten()
            .filter(|o| o.kind() == tcp::kind::MPTCP)
            .flat_map(|o| o.bytes().to_vec())
            .collect();
        Seg {
            flow: n,
            flags: tcp.flags,
            seq: rel(tcp.seq, iss),
            ack: tcp
                .flags
                .contains(Flags::ACK)
                .then(|| rel(tcp.ack, flow.irs)),
            win: Some(tcp.window),
            payload: payload.to_vec(),
            mss: tcp.options.mss,
            ws: tcp.options.window_scale,
            sack_ok: Some(tcp.options.sack_permitted),
            cookie: tcp.options.fast_open.as_ref().map(|c| c.to_vec()),
            ts: tcp.options.timestamps.map(|ts| {
                (
                    ts.value.wrapping_sub(flow.ts.unwrap()),
                    ts.echo.wrapping_sub(PEER_TS),
                )
            }),
            sack: tcp
                .options
                .sack
                .iter()
                .map(|(l, r)| (rel(*l, flow.irs), rel(*r, flow.irs)))
                .collect(),
            mptcp: tcp.options.mptcp.iter().map(|o| self.relative(o)).collect(),
            raw: Some(raw),
            gso: Some(gso),
            ecn: Some(ip.traffic_class),
        }
    }

    fn learn_key(&mut self, tcp: &tcp::Repr) {
        for option in &tcp.options.mptcp {
            if let MptcpOption::Capable(
                Capable::SynAck { sender_key, .. }
                | Capable::Ack { sender_key, .. }
                | Capable::Data { sender_key, .. },
            ) = option
            {
                self.key = Some(*sender_key);
            }
        }
    }

    fn relative(&self, option: &MptcpOption) -> Mp {
        let MptcpOption::Dss(dss) = option else {
            return Mp::Other(*option);
        };
        let ours = self.key.map_or(Dsn64(0), |key| token_idsn(key).1).add(1);
        let theirs = token_idsn(PEER_KEY).1.add(1);
        let rel = |dsn: WireDsn, base: Dsn64| match dsn {
            WireDsn::Four(low) => u64::from(low.wrapping_sub(base.low())),
            WireDsn::Eight(full) => full.wrapping_sub(base.0),
        };
        Mp::Dss(Rel {
            ack: dss.data_ack.map(|a| rel(a, theirs)),
            wide_ack: dss.data_ack.is_some_and(WireDsn::is_eight),
            map: dss
                .mapping
                .map(|m| (rel(m.dsn, ours), m.subflow_seq, m.len)),
            wide_map: dss.mapping.is_some_and(|m| m.dsn.is_eight()),
            fin: dss.data_fin,
            checksum: dss.mapping.and_then(|m| m.checksum),
        })
    }

    /// Returns token and nonce of the stack's SYN with MP_JOIN.
    pub fn join_syn(option: &Mp) -> (u32, u32) {
        match option {
            Mp::Other(MptcpOption::Join(Join::Syn { token, nonce, .. })) => (*token, *nonce),
            other => panic!("no MP_JOIN of a SYN: {other:?}"),
        }
    }
}

/// Returns data of the peer under a mapping of its own: byte `at` of the stream is at `at + 1` of the only
/// subflow.
pub fn mapped(at: u64, acked: u64, payload: impl AsRef<[u8]>) -> Seg {
    let len = payload.as_ref().len() as u16;
    data(at + 1, 1 + acked, payload).dss(dack(acked).map(at, at as u32 + 1, len))
}
