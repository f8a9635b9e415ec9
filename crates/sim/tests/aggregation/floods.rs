//! Users at work while their server receives floods of forged packets (RFC 4987).

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use braid_links::Settings;
use braid_proxy::config::DEFAULT_PORT;
use braid_sim::aggregation::{content_addr, server_addr};
use braid_sim::tap::{PacketEvent, Tap};
use braid_sim::{LinkId, Node, NodeId, Packet, Turn};
use braid_wire::mptcp::{Capable, CapableFlags, Join, MptcpOption};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Rng, Seq32, ip};

use crate::attacks::{USERS, Work, segment};
use crate::support::{start, two_links};

/// The time between two forged packets: 5,000 a second are many times what the server's tables take, and
/// few enough for the processor of a test.
const GAP: Duration = Duration::from_micros(200);
/// The content host whose address the forged packets have.
const FORGED: usize = 1;

/// Kinds of forged packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Syn,
    CapableSyn,
    JoinSyn,
    /// A join with the token of a connection, as an observer of a link learns it.
    StolenJoinSyn,
    /// A join with the token of a connection, whose third ACK has a wrong HMAC.
    Guess,
    JoinAck,
    Ack,
    Rst,
    Malformed,
}

/// A node that sends packets to the server with the address of another host.
#[derive(Debug)]
struct Forger {
    kind: Option<Kind>,
    next: Instant,
    sent: u64,
    /// Tokens of open connections.
    tokens: Vec<u32>,
    /// The server's answers to joins.
    seen: Arc<Mutex<Answers>>,
    rng: Rng,
}

impl Forger {
    fn join_syn(&mut self, token: u32) -> MptcpOption {
        MptcpOption::Join(Join::Syn {
            backup: false,
            address_id: 1,
            token,
            nonce: self.rng.u32(),
        })
    }

    fn option(&mut self, kind: Kind) -> Option<MptcpOption> {
        match kind {
            Kind::CapableSyn => Some(MptcpOption::Capable(Capable::Syn {
                version: 1,
                flags: CapableFlags::DEFAULT_OFFER,
            })),
            Kind::JoinSyn => {
                let token = self.rng.u32();
                Some(self.join_syn(token))
            }
            Kind::StolenJoinSyn | Kind::Guess => {
                let at = self.rng.below(self.tokens.len() as u64);
                Some(self.join_syn(self.tokens[at as usize]))
            }
            Kind::JoinAck => {
                let mut hmac = [0; 20];
                self.rng.fill(&mut hmac);
                Some(MptcpOption::Join(Join::Ack { hmac }))
            }
            Kind::Syn | Kind::Ack | Kind::Rst | Kind::Malformed => None,
        }
    }

    /// Returns a header whose numbers are drawn at random.
    fn header(&mut self, kind: Kind) -> tcp::Repr {
        let flags = match kind {
            Kind::JoinAck | Kind::Ack => Flags::ACK,
            Kind::Rst => Flags::RST,
            _ => Flags::SYN,
        };
        let port = 1 + self.rng.below(65_535) as u16;
        let mut repr = tcp::Repr::new(port, DEFAULT_PORT, flags);
        (repr.seq, repr.ack) = (Seq32(self.rng.u32()), Seq32(self.rng.u32()));
        repr.options.mss = flags.contains(Flags::SYN).then_some(1460);
        repr.options.mptcp.extend(self.option(kind));
        repr
    }

    fn forge(&mut self, kind: Kind) -> Vec<u8> {
        let repr = self.header(kind);
        let mut packet = packet(&repr);
        if kind == Kind::Malformed {
            let options = packet.len() - repr.header_len() + tcp::HEADER_LEN;
            self.rng.fill(&mut packet[options..]);
        }
        packet
    }

    /// Returns third ACKs with random codes, for all joins that the server has answered.
    fn guesses(&mut self) -> Vec<Vec<u8>> {
        let seen = core::mem::take(&mut self.seen.lock().unwrap().joins);
        let third_ack = |answer: tcp::Repr| {
            let mut repr = self.header(Kind::JoinAck);
            (repr.src_port, repr.seq) = (answer.dst_port, answer.ack);
            repr.ack = answer.seq.add(1);
            packet(&repr)
        };
        seen.into_iter().map(third_ack).collect()
    }
}

/// Returns a packet to the server with this header.
fn packet(repr: &tcp::Repr) -> Vec<u8> {
    let header = ip::Repr {
        src: content_addr(FORGED).into(),
        dst: server_addr(0).into(),
        protocol: ip::PROTO_TCP,
        payload_len: repr.header_len(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let mut packet = vec![0; header.header_len() + repr.header_len()];
    header.emit(&mut packet);
    repr.emit(&mut packet[header.header_len()..]);
    packet
}

impl Node for Forger {
    fn receive(&mut self, turn: &mut Turn<'_>, _: u32, packet: Packet) {
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        while let Some(kind) = self.kind
            && self.next <= turn.now
        {
            let forged = self.forge(kind);
            turn.send(0, Packet::new(forged));
            if kind == Kind::Guess {
                for guess in self.guesses() {
                    turn.send(0, Packet::new(guess));
                }
            }
            self.sent += 1;
            self.next += GAP;
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.kind.map(|_| self.next)
    }
}

/// The server's answers to joins.
#[derive(Debug, Default)]
struct Answers {
    joins: VecDeque<tcp::Repr>,
    count: u64,
}

impl Tap for Answers {
    fn on_packet(&mut self, _: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        if let (PacketEvent::Sent, Some((segment, _))) = (what, segment(&packet.bytes))
            && let Some(Join::SynAck { .. }) = segment.options.join()
        {
            self.count += 1;
            self.joins.push_back(segment);
        }
    }
}

/// The tokens of connections that are joined over a link.
#[derive(Debug, Default)]
struct Tokens(BTreeSet<u32>);

impl Tap for Tokens {
    fn on_packet(&mut self, _: Instant, _: LinkId, _: PacketEvent, packet: &Packet) {
        if let Some((segment, _)) = segment(&packet.bytes)
            && let Some(Join::Syn { token, .. }) = segment.options.join()
        {
            self.0.insert(*token);
        }
    }
}

/// Users at work, and a forger with a link to their server.
struct Flooded {
    work: Work,
    forger: NodeId,
    answers: Arc<Mutex<Answers>>,
}

impl Flooded {
    fn new() -> Self {
        let mut config = two_links();
        config.contents = 2;
        let mut net = start(&config);
        let tokens = Arc::new(Mutex::new(Tokens::default()));
        for (up, _) in net.access.clone() {
            net.world.tap(up, Box::new(Arc::clone(&tokens)));
        }
        // The host whose address is forged gets none of the server's answers, so it resets nothing.
        let ifaces = net.world.interfaces(net.servers[0]);
        let (answered, _) = ifaces[net.access.len() + FORGED];
        let dark = Settings {
            up: false,
            ..Settings::default()
        };
        net.world.set_link(answered, dark);
        let answers = Arc::new(Mutex::new(Answers::default()));
        net.world.tap(answered, Box::new(Arc::clone(&answers)));
        let mut work = Work::begin(net);
        let world = &mut work.net.world;
        let tokens = tokens.lock().unwrap().0.iter().copied().collect::<Vec<_>>();
        assert!(!tokens.is_empty(), "nothing was joined");
        let seen = Arc::clone(&answers);
        let forger = world.add(|rng| Forger {
            kind: None,
            next: Instant::ZERO,
            sent: 0,
            tokens,
            seen,
            rng,
        });
        let perfect = Settings::default();
        world.connect(forger, work.net.servers[0], perfect.clone(), perfect);
        Flooded {
            work,
            forger,
            answers,
        }
    }

    /// Sends packets of `kind` from now on, or none; returns how many were sent until now.
    fn send(&mut self, kind: Option<Kind>) -> u64 {
        let world = &mut self.work.net.world;
        world.with_node(self.forger, |forger: &mut Forger, now| {
            (forger.kind, forger.next) = (kind, now + GAP);
            forger.sent
        })
    }

    /// Returns the counter of the server's engine for `kind`.
    fn counted(&self, kind: Kind) -> u64 {
        let stats = self.work.net.server_node(0).stack().unwrap().stats();
        match kind {
            Kind::Syn | Kind::CapableSyn => stats.syn_cookies,
            Kind::JoinSyn | Kind::StolenJoinSyn => stats.joins_refused,
            Kind::Guess => stats.joins_forged,
            Kind::JoinAck | Kind::Ack | Kind::Rst => stats.out_of_the_blue,
            Kind::Malformed => stats.malformed,
        }
    }

    /// Asserts that a flood of `kind` changes nothing for users; returns how many packets were sent,
    /// and how many of them the server counted.
    #[track_caller]
    fn bear(&mut self, kind: Kind) -> (u64, u64) {
        let connections = |w: &Self| w.work.net.server_node(0).stack().unwrap().connections();
        let (sent, counted, open) = (self.send(Some(kind)), self.counted(kind), connections(self));
        self.work.goes_on_during(|_| ());
        let max_half_open = braid_engine::Config::default().max_half_open;
        let grown = connections(self).saturating_sub(open);
        assert!(
            grown <= max_half_open + 2 * USERS,
            "{grown} more connections"
        );
        let sent = self.send(None) - sent;
        assert!(sent > 10_000, "{sent} packets");
        (sent, self.counted(kind) - counted)
    }
}

#[test]
fn floods_of_syns_change_nothing_for_users() {
    let mut w = Flooded::new();
    // The server keeps nothing of a SYN that it answers by a cookie. So the oracle first hears of the
    // connection when the third ACK opens it, and reports `Rule::Event`: "never opened". Users that
    // arrive during the flood are accepted that way. No oracle ends this test.
    w.work.net.world.keep_violations();
    for kind in [Kind::Syn, Kind::CapableSyn] {
        let (sent, counted) = w.bear(kind);
        // The server keeps the first SYNs, as many as it has room for.
        assert!(counted > sent * 9 / 10, "{kind:?}: {counted} of {sent}");
    }
    w.work.ends();
}

#[test]
fn floods_of_joins_change_nothing_for_users() {
    let mut w = Flooded::new();
    let (sent, counted) = w.bear(Kind::JoinSyn);
    assert_eq!(counted, sent);
    let (sent, counted) = w.bear(Kind::StolenJoinSyn);
    assert!(counted > sent * 9 / 10, "{counted} of {sent}");
    w.work.ends();
}

/// An observer of a join has its token and sequence numbers, but not the keys.
#[test]
fn joins_with_a_wrong_hmac_change_nothing_for_users() {
    let mut w = Flooded::new();
    let (_, counted) = w.bear(Kind::Guess);
    let answered = w.answers.lock().unwrap().count;
    assert!(answered > 1_000, "{answered} were answered");
    assert!(counted.abs_diff(answered) < 10, "{counted} of {answered}");
    w.work.ends();
}

#[test]
fn floods_of_segments_of_no_connection_change_nothing_for_users() {
    let mut w = Flooded::new();
    for kind in [Kind::JoinAck, Kind::Ack, Kind::Rst] {
        let (sent, counted) = w.bear(kind);
        // A few are answers to the box's own probes, which it no longer awaits.
        let others = counted - sent;
        assert!(others < 20, "{kind:?}: {others}");
    }
    w.work.ends();
}

#[test]
fn floods_of_malformed_segments_change_nothing_for_users() {
    let mut w = Flooded::new();
    let (sent, counted) = w.bear(Kind::Malformed);
    assert!(counted > sent / 2, "{counted} of {sent}");
    w.work.ends();
}
