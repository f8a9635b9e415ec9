//! MP_JOIN (RFC 8684 section 3.2).

use core::time::Duration;

use braid_engine::buffer::RangeSet;
use braid_engine::{Config, Event, PathConfig, PathId, Protocol, SubflowCloseReason};
use braid_wire::mptcp::{Join, MptcpOption, ResetReason};
use braid_wire::tcp::Flags;

use crate::harness::{PEER_KEY, PORT, Script, config, join_hmac, token_idsn};
use crate::segment::{Mp, Rel, Seg, ack, dack, data, fin, hex, rst_ack, syn, syn_ack};

const NONCE: u32 = 0x0102_0304;

/// The peer's SYN of a further subflow.
fn join_syn(s: &Script, token: u32, backup: bool) -> crate::segment::Seg {
    let head = [30, 12, 0x10 | u8::from(backup), 7];
    let (token, nonce) = (token.to_be_bytes(), NONCE.to_be_bytes());
    let flow = s.flows.len() - 1;
    syn().on(flow).raw(&[&head[..], &token, &nonce].concat())
}

/// An accepted connection that has answered a join; returns the nonce of the stack.
pub fn joining(config: Config, backup: bool) -> (Script, u32) {
    let mut s = Script::accepted(config);
    let nonce = begin(&mut s, 20, backup);
    (s, nonce)
}

/// Makes the peer join; returns the nonce of the stack's answer.
fn begin(s: &mut Script, at: i32, backup: bool) -> u32 {
    s.peer(2);
    let (token, _) = token_idsn(s.key.unwrap());
    send!(s, at, join_syn(s, token, backup));
    s.advance(s.now);
    let (at, got) = s.take().expect("no answer to the join");
    assert_eq!(at, s.now);
    let [Mp::Other(MptcpOption::Join(Join::SynAck { hmac, nonce, .. }))] = got.mptcp[..] else {
        panic!("no MP_JOIN in {got:?}");
    };
    let expected = join_hmac((s.key.unwrap(), PEER_KEY), (nonce, NONCE));
    assert_eq!(hmac.to_be_bytes(), expected[..8]);
    // Our own id is 0: the address of the initial subflow.
    assert_eq!(got.raw.unwrap()[..4], [30, 16, 0x10, 0]);
    nonce
}

/// Makes the peer open a second subflow with a round trip of 1 ms.
pub fn complete(s: &mut Script, at: i32) {
    let nonce = begin(s, at, false);
    send!(s, at + 1, join_ack(s, nonce));
    recv!(s, at + 1, ack(1, 1).on(1).dss(dack(0)));
}

/// Returns the peer's third ACK of a join.
fn join_ack(s: &Script, nonce: u32) -> crate::segment::Seg {
    let hmac = join_hmac((PEER_KEY, s.key.unwrap()), (NONCE, nonce));
    ack(1, 1)
        .on(1)
        .win(512)
        .raw(&[&[30, 24, 0x10, 0], &hmac[..20]].concat())
}

fn established(s: &Script) -> usize {
    s.events
        .iter()
        .filter(|e| matches!(e, Event::SubflowEstablished { .. }))
        .count()
}

// Conforms: 8684-3.2-11, 8684-3.2-15
#[test]
fn server_takes_a_join() {
    let (mut s, nonce) = joining(config(), false);
    assert_eq!(established(&s), 1);
    send!(s, 30, join_ack(&s, nonce));
    // The fourth ACK acknowledges the join.
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    assert_eq!(established(&s), 2);
    send!(s, 40, data(1, 1, "two").on(1).dss(dack(0).map(0, 1, 3)));
    recv!(s, 40, ack(1, 4).on(1).dss(dack(3)));
    assert_eq!(s.read(), b"two");
}

/// The fourth ACK was lost: the third is repeated, and answered again.
// Conforms: 8684-3.2-11
#[test]
fn server_repeats_the_fourth_ack() {
    let (mut s, nonce) = joining(config(), false);
    send!(s, 30, join_ack(&s, nonce));
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    send!(s, 1030, join_ack(&s, nonce));
    recv!(s, 1030, ack(1, 1).on(1).dss(dack(0)));
}

#[test]
fn data_before_the_third_ack_of_a_join_is_not_taken() {
    let (mut s, _) = joining(config(), false);
    send!(s, 30, data(1, 1, "two").on(1).dss(dack(0).map(0, 1, 3)));
    quiet!(s, 31);
    assert_eq!(s.read(), b"");
    assert_eq!(established(&s), 1);
}

// Conforms: 8684-3.2-8, 8684-3.2-10
#[test]
fn a_wrong_hmac_is_reset() {
    let (mut s, nonce) = joining(config(), false);
    send!(s, 30, join_ack(&s, nonce ^ 1));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex("1e 04 80 01")));
    assert_eq!(established(&s), 1);
    assert_eq!(s.stack.stats().joins_forged, 1);
    // The connection goes on.
    s.write("x");
    recv!(s, 30, data(1, 1, "x").dss(dack(0).map(0, 1, 1)));
}

/// A middlebox strips the options of a join after its SYNs.
// Conforms: 8684-3.2-9
#[test]
fn a_third_ack_without_join_is_reset() {
    let (mut s, _) = joining(config(), false);
    send!(s, 30, ack(1, 1).on(1).win(512));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex("1e 04 80 01")));
    assert_eq!(established(&s), 1);
}

// Conforms: 8684-3.2-1, 8684-3.2-3, 8684-3.2-10
#[test]
fn an_unknown_token_is_reset() {
    let mut s = Script::accepted(config());
    s.peer(2);
    let (token, _) = token_idsn(s.key.unwrap());
    send!(s, 20, join_syn(&s, token ^ 1, false));
    recv!(s, 20, rst_ack(0, 1).on(1).raw(&hex("1e 04 80 01")));
    assert_eq!(s.stack.stats().joins_refused, 1);
}

/// Before the third ACK the connection is not established, so its token is not registered.
#[test]
fn a_join_before_establishment_is_refused() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    s.peer(2);
    let (token, _) = token_idsn(s.key.unwrap());
    send!(s, 5, join_syn(&s, token, false));
    recv!(s, 5, rst_ack(0, 1).on(1).raw(&hex("1e 04 80 01")));
}

/// The last event of a connection is its end, whatever was under way.
#[test]
fn a_join_after_the_end_is_not_told() {
    let (mut s, nonce) = joining(config(), false);
    s.shutdown();
    recv!(s, 20, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    send!(s, 30, ack(1, 1).dss(dack(1).map(0, 0, 1).fin()));
    recv!(s, 30, fin(1, 1).dss(dack(1)));
    let end = s.events.last();
    assert!(matches!(end, Some(Event::Closed { .. })), "{end:?}");
    send!(s, 40, join_ack(&s, nonce));
    assert_eq!(established(&s), 1);
    let end = s.events.last();
    assert!(matches!(end, Some(Event::Closed { .. })), "{end:?}");
}

// Conforms: 8684-3.2-2
#[test]
fn joins_are_bounded() {
    let config = Config {
        max_subflows: 2,
        ..config()
    };
    let (mut s, nonce) = joining(config, false);
    send!(s, 30, join_ack(&s, nonce));
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    s.peer(3);
    let (token, _) = token_idsn(s.key.unwrap());
    send!(s, 40, join_syn(&s, token, false));
    recv!(s, 40, rst_ack(0, 1).on(2).raw(&hex("1e 04 80 01")));
}

/// A joiner that never sends its third ACK leaves nothing behind.
#[test]
fn half_a_join_is_given_up() {
    let (mut s, _) = joining(config(), false);
    let mut repeats = Vec::new();
    while s.stack.subflows(s.id()).len() > 1 {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
        while let Some((at, seg)) = s.take() {
            if seg.flow == 1 {
                repeats.push(at.as_millis());
            }
        }
    }
    assert_eq!(repeats, [1020, 3020, 7020, 15_020]);
    assert_eq!(s.now.as_millis(), 23_020);
}

/// B flag: RFC 8684 sections 3.2 and 3.3.8.
// Conforms: 8684-3.3.8-2
#[test]
fn the_backup_bit_is_kept_and_changed() {
    let (mut s, nonce) = joining(config(), true);
    send!(s, 30, join_ack(&s, nonce));
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    assert!(s.stack.subflows(s.id())[1].backup);
    send!(
        s,
        40,
        ack(1, 1).on(1).opt(MptcpOption::Prio { backup: false })
    );
    assert!(!s.stack.subflows(s.id())[1].backup);
    quiet!(s, 50);
}

// --- the joiner's side

/// An opened connection whose join's SYN has left; returns its nonce.
pub fn opened(s: &mut Script) -> u32 {
    s.advance(s.now);
    let (at, got) = s.take().expect("no join");
    assert_eq!((at.as_millis(), got.flow), (20, 1));
    let (token, nonce) = Script::join_syn(&got.mptcp[0]);
    assert_eq!(token, token_idsn(PEER_KEY).0);
    assert_eq!(got.raw.unwrap()[..3], [30, 12, 0x10]);
    nonce
}

pub fn join_syn_ack(s: &Script, nonce: u32, backup: bool) -> crate::segment::Seg {
    let hmac = join_hmac((PEER_KEY, s.key.unwrap()), (NONCE, nonce));
    let head = [30, 16, 0x10 | u8::from(backup), 3];
    syn_ack()
        .on(1)
        .win(65_535)
        .raw(&[&head[..], &hmac[..8], &NONCE.to_be_bytes()].concat())
}

pub fn third_ack(s: &Script, nonce: u32) -> crate::segment::Seg {
    let hmac = join_hmac((s.key.unwrap(), PEER_KEY), (nonce, NONCE));
    ack(1, 1)
        .on(1)
        .raw(&[&[30, 24, 0x10, 0], &hmac[..20]].concat())
}

/// An opened connection with two subflows, the second faster: 2 ms. Done at 24 ms.
pub fn joined() -> Script {
    joined_with(config())
}

fn joined_with(config: Config) -> Script {
    let mut s = Script::opened(config, 2);
    let nonce = opened(&mut s);
    send!(s, 22, join_syn_ack(&s, nonce, false));
    recv!(s => 22, third_ack(s, nonce));
    send!(s, 24, ack(1, 1).on(1).win(512).dss(dack(0)));
    s
}

/// The SYN's backup bit is outdated when the join completes: the peer is told the current one.
#[test]
fn a_priority_that_changes_during_a_join_is_told() {
    let mut s = Script::opened(config(), 2);
    let nonce = opened(&mut s);
    s.stack.set_path_backup(s.now, PathId(1), true);
    send!(s, 22, join_syn_ack(&s, nonce, false));
    recv!(s => 22, third_ack(s, nonce));
    send!(s, 24, ack(1, 1).on(1).win(512).dss(dack(0)));
    let prio = MptcpOption::Prio { backup: true };
    recv!(s, 24, ack(1, 1).on(1).opt(prio).dss(dack(0)));
}

// Conforms: 8684-3.2-13
#[test]
fn client_joins_and_waits_for_the_fourth_ack() {
    let mut s = Script::opened(config(), 2);
    let nonce = opened(&mut s);
    // The first subflow is slow, so data would prefer the second.
    send!(s, 22, join_syn_ack(&s, nonce, false));
    recv!(s => 22, third_ack(s, nonce));
    s.write("slow");
    recv!(s, 22, data(1, 1, "slow").dss(dack(0).map(0, 1, 4)));
    assert_eq!(established(&s), 1);
    send!(s, 24, ack(1, 1).on(1).win(512).dss(dack(0)));
    assert_eq!(established(&s), 2);
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(4, 1, 4)));
}

/// The third or the fourth ACK was lost: the third is repeated until an answer comes.
// Conforms: 8684-3.2-12
#[test]
fn client_repeats_its_third_ack() {
    let mut s = Script::opened(config(), 2);
    let nonce = opened(&mut s);
    send!(s, 30, join_syn_ack(&s, nonce, false));
    recv!(s => 30, third_ack(s, nonce));
    // The round trip is known: twice its 10 ms, then 10 ms and the least variance.
    recv!(s => 50, third_ack(s, nonce));
    recv!(s => 260, third_ack(s, nonce));
    // A repeated SYN/ACK asks for it at once.
    send!(s, 300, join_syn_ack(&s, nonce, false));
    recv!(s => 300, third_ack(s, nonce));
    send!(s, 310, ack(1, 1).on(1).win(512).dss(dack(0)));
    assert_eq!(established(&s), 2);
    quiet!(s, 5000);
}

// Conforms: 8684-3.2-6, 8684-3.2-10
#[test]
fn a_syn_ack_with_a_wrong_hmac_is_reset() {
    let mut s = Script::opened(config(), 2);
    let nonce = opened(&mut s);
    send!(s, 30, join_syn_ack(&s, nonce ^ 1, false));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex("1e 04 80 01")));
    assert_eq!(established(&s), 1);
}

// Conforms: 8684-3.2-7
#[test]
fn a_syn_ack_without_join_is_reset() {
    let mut s = Script::opened(config(), 2);
    opened(&mut s);
    send!(s, 30, syn_ack().on(1).win(65_535));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex("1e 04 80 01")));
}

#[test]
fn a_refused_join_is_tried_again_later() {
    let mut s = Script::opened(config(), 2);
    opened(&mut s);
    send!(s, 30, rst_ack(0, 1).on(1));
    quiet!(s, 529);
    s.advance(braid_wire::Instant::from_millis(530));
    let (at, got) = s.take().expect("no second join");
    assert_eq!((at.as_millis(), got.flow), (530, 2));
    Script::join_syn(&got.mptcp[0]);
}

/// C flag (RFC 8684 section 3.1): no subflows to the address and port of the initial one.
// Conforms: 8684-3.1-6
#[test]
fn deny_join_is_obeyed() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(
        s,
        10,
        syn_ack()
            .win(65_535)
            .raw(&hex("1e 0c 01 21 1122334455667788"))
    );
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    quiet!(s, 5000);
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
}

/// MP_CAPABLE has no backup bit: the peer is told about the first subflow once it answers.
#[test]
fn a_connection_that_opens_on_a_backup_path_says_so() {
    let mut s = Script::new(config(), &[path(0, true)]);
    s.connect(([10, 0, 9, 1], 4433).into(), Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    let prio = MptcpOption::Prio { backup: true };
    recv!(s, 20, ack(1, 1).opt(prio).dss(dack(0)));
}

fn path(n: u8, backup: bool) -> PathConfig {
    PathConfig {
        backup,
        ..PathConfig::v4(core::net::Ipv4Addr::new(10, 0, n, 2))
    }
}

/// A backup path's SYN sets the backup bit, and its subflow stays unused while another works.
#[test]
fn a_backup_path_joins_as_backup() {
    let mut s = Script::new(config(), &[path(0, false), path(1, true)]);
    s.connect(([10, 0, 9, 1], 4433).into(), Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 19, ack(1, 1).win(512).dss(dack(0)));
    s.advance(braid_wire::Instant::from_millis(20));
    let (_, got) = s.take().expect("no join");
    assert_eq!(got.raw.as_ref().unwrap()[..3], [30, 12, 0x11]);
    let (_, nonce) = Script::join_syn(&got.mptcp[0]);
    send!(s, 30, join_syn_ack(&s, nonce, false));
    recv!(s => 30, third_ack(s, nonce));
    send!(s, 40, ack(1, 1).on(1).win(512).dss(dack(0)));
    assert!(s.stack.subflows(s.id())[1].backup);
}

/// Data of a dead subflow travels on another (RFC 8684 section 3.3.6).
#[test]
fn a_dead_subflow_s_data_is_reinjected() {
    let mut s = joined();
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    send!(s, 26, rst_ack(1, 1).on(1));
    // A working subflow is replaced at once.
    let (_, again) = s.take().expect("no new join");
    assert_eq!((again.flow, s.now.as_millis()), (2, 26));
    recv!(s, 26, data(1, 1, "fast").dss(dack(0).map(0, 1, 4)));
    assert!(s.saw(|e| matches!(
        e,
        Event::SubflowClosed {
            reason: SubflowCloseReason::Reset,
            ..
        }
    )));
}

/// After a timeout the data is sent elsewhere without waiting for the path, and retransmitted there too,
/// because its sequence numbers cannot be skipped.
// Conforms: 8684-3.3.6-1
#[test]
fn a_timeout_reinjects_and_fills() {
    let mut s = joined();
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    // Probe: 2 srtt + 60 ms.
    recv!(s, 88, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    // Timer: srtt + 200 ms after the probe.
    recv!(s, 290, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    recv!(s, 290, data(1, 1, "fast").dss(dack(0).map(0, 1, 4)));
    send!(s, 300, ack(1, 5).dss(dack(4)));
    // The data is acknowledged at the data level; the subflow still retransmits the bytes under the old
    // mapping (RFC 8684 section 3.3.6), which the peer discards. There is no backoff, since another path
    // carries the data.
    recv!(s, 492, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    send!(s, 494, ack(1, 5).on(1).dss(dack(4)));
    s.write("next");
    recv!(s, 494, data(5, 1, "next").on(1).dss(dack(0).map(4, 5, 4)));
}

/// Data that timed out on the only subflow and was retransmitted there has arrived: a DATA_ACK that lags
/// behind the subflow's acknowledgement is no reason to map the data again.
#[test]
fn a_late_data_ack_brings_nothing_back() {
    let mut s = Script::accepted(config());
    s.write("lags");
    s.skip(600);
    let traffic = |s: &Script| s.stack.subflows(s.id())[0].traffic;
    assert!(traffic(&s).rtos > 0);
    send!(s, 600, ack(1, 5).win(512).dss(dack(0)));
    s.skip(620);
    assert_eq!((traffic(&s).bytes_sent, traffic(&s).bytes_copied), (4, 0));
}

/// However often a dead subflow times out, its data is on one other subflow and stays there.
#[test]
fn further_timeouts_put_nothing_on_further_subflows() {
    let mut s = joined();
    s.write("fast");
    s.skip(1_500);
    let stats = s.stack.subflows(s.id());
    assert!(stats[1].traffic.rtos > 1, "{:?}", stats[1].traffic);
    assert_eq!(stats[0].traffic.bytes_copied, 4);
    // The data does not return to the dead subflow when the other times out as well: both retransmit it by
    // themselves.
    assert!(stats[0].traffic.rtos > 1, "{:?}", stats[0].traffic);
    assert_eq!(stats[1].traffic.bytes_copied, 0);
}

/// Returns the bytes that the tests below write.
fn pattern(range: core::ops::Range<usize>) -> Vec<u8> {
    range.map(|n| (n / 100) as u8).collect()
}

/// Two subflows: the second is dark, and data on the first is acknowledged there.
struct Dark {
    s: Script,
    /// The offsets received on the first subflow: of the subflow, and of the stream.
    subflow: u64,
    stream: RangeSet,
    /// The segments sent on the second subflow.
    lost: Vec<Seg>,
}

impl Dark {
    /// Puts `len` bytes on the second subflow, which goes dark, so that they are sent again on the first.
    fn with(config: Config, len: usize) -> Dark {
        let mut s = joined_with(config);
        send!(s, 25, ack(1, 1).on(1).win(8192).dss(dack(0)));
        let (stream, lost) = (RangeSet::new(), Vec::new());
        let mut dark = Dark {
            s,
            subflow: 0,
            stream,
            lost,
        };
        for at in (0..len).step_by(100_000) {
            dark.s.write(pattern(at..len.min(at + 100_000)));
        }
        dark.carry(400);
        assert_eq!(dark.acked(), len as u64, "not sent again");
        dark
    }

    /// Returns the offset below which the whole stream has arrived.
    fn acked(&self) -> u64 {
        self.stream.first().map_or(0, |first| first.end)
    }

    /// Lets `ms` milliseconds pass.
    fn carry(&mut self, ms: u64) {
        for _ in 0..ms {
            self.s.advance(self.s.now + Duration::from_millis(1));
            let before = self.subflow;
            while let Some((_, seg)) = self.s.take() {
                if seg.flow > 0 {
                    self.lost.push(seg);
                } else if let [Mp::Dss(Rel { map: Some(map), .. })] = seg.mptcp[..] {
                    let (data, len) = (map.0, seg.payload.len() as u64);
                    self.subflow = self.subflow.max(seg.seq - 1 + len);
                    self.stream.insert(data..data + len);
                }
            }
            if self.subflow > before {
                let seg = ack(1, self.subflow + 1).win(8192);
                send!(self.s, self.s.now, seg.dss(dack(self.acked())));
            }
        }
    }

    /// Returns the MP_TCPRST of the second subflow.
    fn reset(&self) -> Option<Mp> {
        let reset = self.lost.iter().find(|seg| seg.flags.contains(Flags::RST));
        reset.map(|seg| seg.mptcp[0])
    }
}

const BLOCK: usize = 32 << 10;
const TOO_MUCH: Mp = Mp::Other(MptcpOption::Reset {
    transient: true,
    reason: ResetReason::TooMuchOutstanding,
});

/// A path that was dark retransmits its data in flight, byte by byte, however much the other one has
/// carried since (RFC 8684 section 3.3.6). Meanwhile only that data is held for it.
// Conforms: 8684-3.3.2-1, 8684-3.3.6-1
#[test]
fn a_dark_path_repeats_its_data_and_holds_no_other() {
    let len = 14_400;
    let mut dark = Dark::with(config(), len);
    let ends = dark
        .lost
        .iter()
        .map(|seg| seg.seq - 1 + seg.payload.len() as u64);
    let held = ends.max().unwrap();
    assert!(held > 10_000, "{held} bytes were lost");
    let mut sent = len;
    while sent < 3_000_000 {
        dark.s.write(pattern(sent..sent + 50_000));
        sent += 50_000;
        dark.carry(20);
        let live = sent - dark.acked() as usize;
        assert!(dark.s.stack.buffered() <= live + 3 * BLOCK);
    }
    dark.carry(100);
    let far = dark.acked();
    dark.lost.clear();
    let mut back = 1;
    while back <= held {
        dark.carry(300);
        let again = dark.lost.drain(..).filter(|seg| seg.seq <= held);
        let again: Vec<Seg> = again.collect();
        assert!(!again.is_empty(), "not repeated");
        for seg in again {
            let at = seg.seq as usize - 1;
            assert_eq!(seg.payload, pattern(at..at + seg.payload.len()));
            back = back.max(seg.seq + seg.payload.len() as u64);
        }
        let (s, seg) = (&mut dark.s, ack(1, back).on(1));
        send!(s, s.now, seg.win(8192).dss(dack(far)));
    }
    dark.carry(10);
    assert_eq!(dark.s.stack.buffered(), 0);
    assert_eq!(dark.reset(), None);
}

/// If memory is used up and others wait for some, a dark path gives up the data that is kept for it, and is
/// opened again (RFC 8684 section 3.6). An exhausted share of its own connection is no reason.
#[test]
fn a_dark_path_holds_no_memory_that_others_need() {
    let config = Config {
        // Seven blocks beside the reserve, of which each connection may hold four.
        memory: 8 * BLOCK,
        ..config()
    };
    let mut dark = Dark::with(config, 14_400);
    let id = dark.s.id();
    let fill = |dark: &mut Dark, id| {
        while dark.s.stack.write(dark.s.now, id, &[0; 100_000]).unwrap() > 0 {}
    };
    for _ in 0..500 {
        fill(&mut dark, id);
        dark.carry(1);
    }
    assert_eq!(dark.reset(), None);
    dark.s.connect(([10, 0, 9, 1], PORT).into(), Protocol::Tcp);
    dark.s.skip(dark.s.now);
    let flow = dark.s.flows.len() - 1;
    let s = &mut dark.s;
    send!(s, s.now, syn_ack().on(flow).win(0));
    let other = dark.s.id();
    fill(&mut dark, id);
    dark.s.conn = Some(id);
    dark.carry(1);
    assert_eq!(dark.reset(), None);
    fill(&mut dark, id);
    fill(&mut dark, other);
    assert_eq!(dark.s.stack.buffered(), 7 * BLOCK);
    dark.s.write("");
    dark.carry(1);
    assert_eq!(dark.reset(), Some(TOO_MUCH));
    let again = |dark: &Dark| dark.lost.iter().any(|seg| seg.flags == Flags::SYN);
    dark.carry(1000);
    assert!(again(&dark), "not opened again");
}

/// The data kept for a dark path is bounded by the send buffer's size.
// Conforms: 8684-3.3.2-2
#[test]
fn what_is_kept_for_a_dark_path_is_bounded() {
    let config = Config {
        initial_window: 250,
        send_buffer: 300_000,
        ..config()
    };
    let dark = Dark::with(config, 300_000);
    assert_eq!(dark.reset(), Some(TOO_MUCH));
    assert_eq!(dark.s.stack.buffered(), 0);
}

/// After the end nothing is retransmitted: the subflow that lacks data answers, and is reset once the peer
/// has closed it.
// Conforms: 8684-3.3.3-7
#[test]
fn nothing_is_repeated_after_the_end() {
    let mut dark = Dark::with(config(), 14_400);
    dark.s.shutdown();
    dark.s.skip(dark.s.now);
    let (s, sub) = (&mut dark.s, dark.subflow + 1);
    let last = dack(14_401).map(0, 0, 1).fin();
    send!(s, s.now, ack(1, sub).dss(last));
    assert!(s.saw(|e| matches!(e, Event::Closed { .. })));
    assert_eq!(s.stack.buffered(), 0);
    dark.lost.clear();
    dark.carry(900);
    assert!(dark.lost.iter().all(|seg| seg.payload.is_empty()));
    let s = &mut dark.s;
    send!(s, s.now, fin(1, 1).on(1).dss(dack(14_401)));
    dark.carry(1);
    assert_eq!(dark.reset(), Some(TOO_MUCH));
}

/// RFC 8684 section 3.7: data of a further subflow is acknowledged without DATA_ACK. The fourth ACK
/// acknowledges no data and may be bare.
// Conforms: 8684-3.7-3, 8684-3.7-4
#[test]
fn a_further_subflow_whose_options_are_lost_is_reset() {
    let mut s = Script::opened(config(), 2);
    let nonce = opened(&mut s);
    send!(s, 22, join_syn_ack(&s, nonce, false));
    recv!(s => 22, third_ack(s, nonce));
    send!(s, 24, ack(1, 1).on(1).win(512));
    assert_eq!(established(&s), 2);
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    send!(s, 26, ack(1, 5).on(1));
    recv!(s, 26, rst_ack(5, 1).on(1).raw(&hex("1e 04 80 06")));
    // The join is tried again, and data goes on elsewhere.
    let (_, again) = s.take().expect("no new join");
    assert_eq!(again.flow, 2);
    s.write("slow");
    recv!(s, 26, data(1, 1, "slow").dss(dack(0).map(4, 1, 4)));
}

/// A path that strips options, and with them DATA_FIN, does not keep the connection from ending.
// Conforms: 8684-3.3.3-4
#[test]
fn data_fin_is_repeated_on_other_subflows_too() {
    let mut s = joined();
    s.shutdown();
    let data_fin = |flow| ack(1, 1).on(flow).dss(dack(0).map(0, 0, 1).fin());
    let mut flows = Vec::new();
    while flows.len() < 5 {
        s.advance(s.now + core::time::Duration::from_millis(100));
        while let Some((_, got)) = s.take() {
            assert!(data_fin(got.flow).matches(&got), "{got:?}");
            flows.push(got.flow);
        }
    }
    assert_eq!(flows, [1, 1, 0, 0, 1]);
}
