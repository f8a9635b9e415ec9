//! An attacker on one access link. The attacker sees all packets of the link and injects forged ones. The
//! forged ones can prove the keys of MPTCP if the keys passed the link.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use braid_links::middlebox::{Direction, Middlebox, Output, Packet};
use braid_proxy::config;
use braid_sim::hijacker::{self, Hijacker, Keys, hmac_sha256, keys_in};
use braid_sim::traffic::pattern_from;
use braid_wire::mptcp::{AddAddr, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags, Timestamps};
use braid_wire::{Dsn64, Instant, Rng, Seq32, ip};

/// Maximum number of packets that are kept for replays. A guess.
const MAX_KEPT: usize = 64;
/// The attacker's own address. Forged announcements (ADD_ADDR) try to draw subflows to it.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);
/// First port of the subflows that the attacker opens from the box's address. Any port works that the box's
/// engine rarely draws (it draws from 32,768 to 60,999).
const FIRST_PORT: u16 = 60_000;
/// Length of the parts of the users' streams that are searched for on the link, bytes. Eight random bytes
/// equal such a part too rarely to matter.
const WORD: usize = 8;

/// An attack on a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// RST.
    Reset,
    /// FIN of the subflow.
    Fin,
    /// DATA_FIN, which ends the stream.
    DataFin,
    /// Random bytes with a valid mapping.
    Inject,
    /// MP_FASTCLOSE.
    FastClose,
    /// ADD_ADDR with the attacker's address.
    Announce,
    /// REMOVE_ADDR.
    Remove,
    /// MP_FAIL.
    Fail,
    /// An infinite mapping, which ends the use of MPTCP.
    Infinite,
    /// MP_PRIO, which makes the subflow a backup.
    Backup,
    /// A subflow of the attacker's own.
    Join,
    /// A packet that passed before.
    Replay,
    /// A changed bit in the passing packet's payload.
    Change,
    /// A shorter payload in the passing packet.
    Truncate,
    /// The loss of the passing packet.
    Drop,
}

impl Attack {
    const ALL: [Attack; 15] = {
        use Attack::*;
        [
            Reset, Fin, DataFin, Inject, FastClose, Announce, Remove, Fail, Infinite, Backup, Join,
            Replay, Change, Truncate, Drop,
        ]
    };
}

/// The attacker's knowledge of a subflow.
#[derive(Debug, Default)]
struct Subflow {
    /// Initial sequence numbers of the box (0) and of the server (1).
    iss: [Option<Seq32>; 2],
    /// Next data sequence number of the box (0) and of the server (1), as the other end acknowledged it.
    next: [Option<WireDsn>; 2],
}

/// The attacker as a middlebox: the box is inside, the servers are outside.
#[derive(Debug)]
pub struct Adversary {
    rng: Rng,
    /// One packet in this many is used for an attack.
    every: u64,
    /// Number of attacks that are left.
    left: u32,
    /// The attacks to draw from.
    attacks: &'static [Attack],
    /// The known subflows. The key is the box's address and the server's address.
    subflows: BTreeMap<(SocketAddr, SocketAddr), Subflow>,
    /// Keys of connections that were opened over this link, with the address of their server.
    keys: Vec<(SocketAddr, Keys)>,
    hijacker: Hijacker,
    next_port: u16,
    /// For each subflow that the attacker opens, by its local address, the data sequence number at which the
    /// attacker will write.
    dsns: BTreeMap<SocketAddr, WireDsn>,
    /// The last packets, for replays.
    kept: VecDeque<(Direction, Packet)>,
    /// All parts of [`WORD`] bytes of the users' streams, sorted.
    words: Vec<[u8; WORD]>,
    /// Number of packets in which users' bytes were readable.
    pub leaks: u64,
}

/// A forged segment and its direction.
struct Forged {
    direction: Direction,
    ip: ip::Repr,
    tcp: tcp::Repr,
    payload: Vec<u8>,
}

impl Adversary {
    /// Creates an attacker that uses one packet in `every` for an attack, at most `attacks` times.
    pub fn new(rng: Rng, every: u64, attacks: u32) -> Self {
        let words = pattern_from(0).windows(WORD);
        let mut words: Vec<[u8; WORD]> = words.filter_map(|word| word.try_into().ok()).collect();
        words.sort_unstable();
        Adversary {
            rng,
            every,
            left: attacks,
            attacks: &Attack::ALL,
            subflows: BTreeMap::new(),
            keys: Vec::new(),
            hijacker: Hijacker::default(),
            next_port: FIRST_PORT,
            dsns: BTreeMap::new(),
            kept: VecDeque::new(),
            words,
            leaks: 0,
        }
    }

    /// Limits the attacks to [`Attack::Join`] if `only_joins` is true.
    pub fn with_joins_only(mut self, only_joins: bool) -> Self {
        if only_joins {
            self.attacks = &[Attack::Join];
        }
        self
    }

    /// Returns whether `payload` contains readable bytes of a user.
    fn reads(&self, payload: &[u8]) -> bool {
        // `words` has the pattern at every offset. Samples of 8 bytes, 16 bytes apart, find any 23 readable
        // bytes in a row.
        let mut words = payload.windows(WORD).step_by(2 * WORD);
        words.any(|word| self.words.binary_search_by(|w| w[..].cmp(word)).is_ok())
    }

    /// Stores the sequence numbers and keys of a passing segment.
    fn learn(&mut self, direction: Direction, ip: &ip::Repr, tcp: &tcp::Repr) {
        let (key, side) = subflow_of(direction, ends(ip, tcp));
        let subflow = self.subflows.entry(key).or_default();
        if tcp.flags.contains(Flags::SYN) {
            subflow.iss[side] = Some(tcp.seq);
        }
        if let Some(ack) = tcp.options.dss().and_then(|dss| dss.data_ack) {
            subflow.next[1 - side] = Some(ack);
        }
        if let Some(keys) = keys_in(tcp) {
            let known = (key.1, keys);
            if !self.keys.contains(&known) {
                self.keys.push(known);
            }
        }
    }

    /// Forges a segment in order. At random it comes from the sender of the passing segment and follows that
    /// segment, or it comes from the other end and acknowledges it. It has a mapping if the attacker knows the
    /// numbers.
    fn forge(&mut self, direction: Direction, ip: ip::Repr, tcp: &tcp::Repr, len: usize) -> Forged {
        let same_sender = self.rng.chance(0.5);
        let after = Seq32(tcp.seq.0.wrapping_add(len as u32));
        let mut own = tcp::Repr::new(tcp.src_port, tcp.dst_port, Flags::ACK);
        (own.seq, own.ack, own.window) = (after, tcp.ack, tcp.window);
        own.options.timestamps = tcp.options.timestamps;
        let mut forged = Forged {
            direction,
            ip,
            tcp: own,
            payload: Vec::new(),
        };
        let mapping = tcp.options.dss().and_then(|dss| dss.mapping);
        let mut dsn = mapping.map(|m| match m.dsn {
            WireDsn::Four(n) => WireDsn::Four(n.wrapping_add(m.len.into())),
            WireDsn::Eight(n) => WireDsn::Eight(n.wrapping_add(m.len.into())),
        });
        if !same_sender {
            let own = &mut forged.tcp;
            (own.src_port, own.dst_port) = (tcp.dst_port, tcp.src_port);
            (own.seq, own.ack) = (tcp.ack, after);
            own.options.timestamps = tcp.options.timestamps.map(|times| Timestamps {
                value: times.echo,
                echo: times.value,
            });
            (forged.ip.src, forged.ip.dst) = (ip.dst, ip.src);
            forged.direction = match direction {
                Direction::Outbound => Direction::Inbound,
                Direction::Inbound => Direction::Outbound,
            };
            dsn = None;
        }
        let (key, side) = subflow_of(forged.direction, ends(&forged.ip, &forged.tcp));
        if let Some(subflow) = self.subflows.get(&key)
            && let (Some(iss), Some(dsn)) = (subflow.iss[side], dsn.or(subflow.next[side]))
        {
            let mapping = DssMapping {
                dsn,
                subflow_seq: forged.tcp.seq.0.wrapping_sub(iss.0),
                len: 0,
                checksum: None,
            };
            let dss = Dss {
                data_ack: subflow.next[1 - side],
                mapping: Some(mapping),
                data_fin: false,
            };
            let _ = forged.tcp.options.mptcp.try_push(MptcpOption::Dss(dss));
        }
        forged
    }

    /// Returns the keys of a random known connection, with the address of its server.
    fn any_keys(&mut self) -> Option<(SocketAddr, Keys)> {
        let n = self.rng.below(self.keys.len().max(1) as u64) as usize;
        self.keys.get(n).copied()
    }

    /// Makes one attack. Returns the passing packet, which may be changed or dropped.
    fn attack(
        &mut self,
        direction: Direction,
        packet: Packet,
        (ip, tcp, payload): &Parsed,
        out: &mut Output,
    ) -> Option<Packet> {
        let attack = self.attacks[self.rng.below(self.attacks.len() as u64) as usize];
        match attack {
            Attack::Drop => return None,
            Attack::Change | Attack::Truncate => {
                let mut changed = payload.clone();
                let at = self.rng.below(changed.len().max(1) as u64) as usize;
                if attack == Attack::Truncate {
                    changed.truncate(at);
                } else if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 1 << self.rng.below(8);
                }
                let bytes = hijacker::packet((ip.src, ip.dst), tcp, &changed);
                return Some(Packet { bytes, ..packet });
            }
            Attack::Replay => {
                let n = self.rng.below(self.kept.len() as u64) as usize;
                out.push_back(self.kept[n].clone());
            }
            Attack::Join => self.open(ends(ip, tcp), out),
            _ => {
                let mut forged = self.forge(direction, *ip, tcp, payload.len());
                if self.fill_in(attack, &mut forged).is_some() {
                    let ends = (forged.ip.src, forged.ip.dst);
                    let bytes = hijacker::packet(ends, &forged.tcp, &forged.payload);
                    out.push_back((forged.direction, Packet::new(bytes)));
                }
            }
        }
        Some(packet)
    }

    /// Completes a forged segment for `attack`; `None` if the attacker knows too little for it.
    fn fill_in(&mut self, attack: Attack, forged: &mut Forged) -> Option<()> {
        // The keys in the order (sender, receiver).
        let by_sender = match forged.direction {
            Direction::Outbound => |(opener, listener): Keys| (opener, listener),
            Direction::Inbound => |(opener, listener): Keys| (listener, opener),
        };
        let options = &mut forged.tcp.options;
        let mapped = options.mptcp.iter_mut().find_map(|option| match option {
            MptcpOption::Dss(dss) => dss.mapping.as_mut().map(|m| (m, &mut dss.data_fin)),
            _ => None,
        });
        let signal = match attack {
            Attack::Reset => {
                forged.tcp.flags = Flags::RST | Flags::ACK;
                return Some(());
            }
            Attack::Fin => {
                forged.tcp.flags = Flags::FIN | Flags::ACK;
                return Some(());
            }
            Attack::DataFin => {
                let (mapping, fin) = mapped?;
                // RFC 8684, 3.3.3: a DATA_FIN without data has length 1 and subflow sequence number 0.
                (mapping.subflow_seq, mapping.len, *fin) = (0, 1, true);
                return Some(());
            }
            Attack::Infinite => {
                // RFC 8684, 3.7: a mapping of length 0 is infinite.
                mapped?.0.len = 0;
                return Some(());
            }
            Attack::Inject => {
                let len = 1 + self.rng.below(1_300) as u16;
                mapped?.0.len = len;
                forged.payload = vec![0; len.into()];
                self.rng.fill(&mut forged.payload);
                return Some(());
            }
            Attack::FastClose => {
                let (_, receiver_key) = by_sender(self.any_keys()?.1);
                if self.rng.chance(0.5) {
                    forged.tcp.flags = Flags::RST | Flags::ACK;
                }
                MptcpOption::FastClose { receiver_key }
            }
            Attack::Announce => {
                let keys = by_sender(self.any_keys()?.1);
                let port = self.rng.chance(0.5).then_some(forged.tcp.src_port);
                let address_id = 1 + self.rng.below(8) as u8;
                MptcpOption::AddAddr(announcement(keys, address_id, port))
            }
            Attack::Remove => {
                let ids = [self.rng.below(3) as u8, self.rng.below(8) as u8];
                MptcpOption::RemoveAddr(RemoveAddr::new(&ids)?)
            }
            Attack::Fail => MptcpOption::Fail {
                dsn: mapped?.0.dsn.expand(Dsn64(0)),
            },
            Attack::Backup => MptcpOption::Prio { backup: true },
            Attack::Join | Attack::Replay | Attack::Change | Attack::Truncate | Attack::Drop => {
                return None;
            }
        };
        options.mptcp.retain(|o| !matches!(o, MptcpOption::Dss(_)));
        options.mptcp.try_push(signal).ok()
    }

    /// Opens a subflow of a connection whose keys are known, from the box's address.
    fn open(&mut self, (from, to): (SocketAddr, SocketAddr), out: &mut Output) {
        let Some((server, keys)) = self.any_keys() else {
            return;
        };
        let boxed = if to == server { from } else { to };
        let local = SocketAddr::new(boxed.ip(), self.next_port);
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        let nonce = self.rng.u32();
        let address_id = self.rng.below(8) as u8;
        let known = self.subflows.iter().filter(|((_, to), _)| *to == server);
        let dsn = known.filter_map(|(_, s)| s.next[0]).next_back();
        self.dsns.extend(dsn.map(|dsn| (local, dsn)));
        let syn = self
            .hijacker
            .join(keys, (local, server), (address_id, nonce));
        out.push_back((Direction::Outbound, Packet::new(syn)));
    }

    /// Answers a packet on a subflow that the attacker opened. The first answer proves the keys, and random
    /// data follows it. Later answers acknowledge the received bytes.
    fn answer_on_own_subflow(&mut self, received: &[u8], (ip, tcp, _): &Parsed, out: &mut Output) {
        let Some(answer) = self.hijacker.answer(received) else {
            return;
        };
        out.push_back((Direction::Outbound, Packet::new(answer)));
        let (_, local) = ends(ip, tcp);
        let Some(dsn) = self.dsns.remove(&local) else {
            return;
        };
        let mut data = tcp::Repr::new(tcp.dst_port, tcp.src_port, Flags::ACK);
        (data.seq, data.ack, data.window) = (tcp.ack, tcp.seq.add(1), u16::MAX);
        let mut payload = [0; 1_000];
        self.rng.fill(&mut payload);
        let mapping = DssMapping {
            dsn,
            subflow_seq: 1,
            len: payload.len() as u16,
            checksum: None,
        };
        data.options.mptcp.push(MptcpOption::Dss(Dss {
            mapping: Some(mapping),
            ..Dss::default()
        }));
        let bytes = hijacker::packet((ip.dst, ip.src), &data, &payload);
        out.push_back((Direction::Outbound, Packet::new(bytes)));
    }
}

impl Middlebox for Adversary {
    fn process(&mut self, _: Instant, direction: Direction, packet: Packet, out: &mut Output) {
        let Some(parsed) = parse(&packet.bytes) else {
            out.push_back((direction, packet));
            return;
        };
        let (ip, tcp, payload) = &parsed;
        let (boxed, server) = subflow_of(direction, ends(ip, tcp)).0;
        if self.hijacker.owns(boxed) {
            self.answer_on_own_subflow(&packet.bytes, &parsed, out);
            return;
        }
        // Traffic that the box forwards without a server is not protected by Braid, so reading it is no leak.
        if server.port() != config::DEFAULT_PORT {
            out.push_back((direction, packet));
            return;
        }
        self.leaks += u64::from(self.reads(payload));
        self.learn(direction, ip, tcp);
        if self.kept.len() == MAX_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((direction, packet.clone()));
        let mut passes = Some(packet);
        if self.left > 0 && self.rng.below(self.every) == 0 {
            self.left -= 1;
            passes = passes.and_then(|packet| self.attack(direction, packet, &parsed, out));
        }
        out.extend(passes.map(|packet| (direction, packet)));
    }
}

type Parsed = (ip::Repr, tcp::Repr, Vec<u8>);

fn parse(packet: &[u8]) -> Option<Parsed> {
    let (ip, segment) = ip::Repr::parse(packet).ok()?;
    let (tcp, payload) = tcp::Repr::parse(segment).ok()?;
    Some((ip, tcp, payload.to_vec()))
}

/// Returns source and destination of a segment.
fn ends(ip: &ip::Repr, tcp: &tcp::Repr) -> (SocketAddr, SocketAddr) {
    let (src, dst) = (ip.src, ip.dst);
    (
        SocketAddr::new(src, tcp.src_port),
        SocketAddr::new(dst, tcp.dst_port),
    )
}

/// Returns the subflow of a segment (the box's address and the server's), and its sender (0: the box, 1: the
/// server).
fn subflow_of(
    direction: Direction,
    (from, to): (SocketAddr, SocketAddr),
) -> ((SocketAddr, SocketAddr), usize) {
    match direction {
        Direction::Outbound => ((from, to), 0),
        Direction::Inbound => ((to, from), 1),
    }
}

/// Returns an ADD_ADDR of the attacker's address, authenticated with these keys.
fn announcement(keys: Keys, address_id: u8, port: Option<u16>) -> AddAddr {
    let mut message = vec![address_id];
    message.extend(ELSEWHERE.octets());
    message.extend(port.unwrap_or(0).to_be_bytes());
    // RFC 8684, 3.4.1: the rightmost 64 bits of the HMAC.
    let mut tail = [0; 8];
    tail.copy_from_slice(&hmac_sha256(keys, &message)[24..]);
    AddAddr {
        address_id,
        addr: ELSEWHERE.into(),
        port,
        hmac: Some(u64::from_be_bytes(tail)),
    }
}
