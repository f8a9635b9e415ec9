//! An attacker on one access link, who sees all its packets and injects forged ones, with the keys of
//! Multipath TCP if they passed the link.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use braid_links::middlebox::{Direction, Middlebox, Output, Packet};
use braid_proxy::config;
use braid_sim::hijacker::{self, Hijacker, Keys, hmac_sha256, keys_in};
use braid_sim::traffic::pattern_from;
use braid_wire::mptcp::{AddAddr, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags, Timestamps};
use braid_wire::{Dsn64, Instant, Rng, Seq32, ip};

/// Most packets that are kept for replays.
const MAX_KEPT: usize = 64;
/// The attacker's own address, to which announcements try to draw subflows.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);
/// First port of the subflows that the attacker opens in the box's name.
const FIRST_PORT: u16 = 60_000;
/// Bytes of the users' streams that are searched for on the link, too many to be equal by chance.
const WORD: usize = 8;

/// An attack on a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    Reset,
    Fin,
    DataFin,
    Inject,
    FastClose,
    Announce,
    Remove,
    Fail,
    Infinite,
    Backup,
    Join,
    Replay,
    Change,
    Truncate,
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

/// The attacker's knowledge of a subflow. Its key is the box's end and the server's end.
#[derive(Debug, Default)]
struct Subflow {
    /// Initial sequence numbers of the box and of the server.
    iss: [Option<Seq32>; 2],
    /// Next data sequence number of each end, as the other end acknowledged it.
    next: [Option<WireDsn>; 2],
}

/// The attacker as a middlebox: the box is inside, the servers are outside.
#[derive(Debug)]
pub struct Adversary {
    rng: Rng,
    /// One packet in so many is used for an attack.
    every: u64,
    /// Number of attacks that are left.
    left: u32,
    /// The attacks to draw from.
    attacks: &'static [Attack],
    subflows: BTreeMap<(SocketAddr, SocketAddr), Subflow>,
    /// Keys of connections that were opened over this link, with the address of their server.
    keys: Vec<(SocketAddr, Keys)>,
    hijacker: Hijacker,
    next_port: u16,
    /// Data sequence numbers at which the attacker would write into connections that it joins, by its
    /// address.
    dsns: BTreeMap<SocketAddr, WireDsn>,
    kept: VecDeque<(Direction, Packet)>,
    words: Vec<[u8; WORD]>,
    /// Number of packets in which users' bytes could be read.
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
    /// Creates an attacker that uses one packet in `every` for an attack, `attacks` times at most.
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

    /// Limits the attacks to MP_JOIN if `alone`.
    pub fn with_joins_only(mut self, alone: bool) -> Self {
        if alone {
            self.attacks = &[Attack::Join];
        }
        self
    }

    fn reads(&self, payload: &[u8]) -> bool {
        // `words` covers the pattern at every offset, so samples 16 bytes apart find any run of 23 bytes.
        let mut words = payload.windows(WORD).step_by(2 * WORD);
        words.any(|word| self.words.binary_search_by(|w| w[..].cmp(word)).is_ok())
    }

    /// Learns sequence numbers and keys from a segment.
    fn learn(&mut self, direction: Direction, ip: &ip::Repr, tcp: &tcp::Repr) {
        let (key, side) = place(direction, ends(ip, tcp));
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

    /// Forges a segment that follows the passing one, or one of the other end that acknowledges it. The
    /// segment is in order, with a mapping if the attacker knows the numbers.
    fn forge(&mut self, direction: Direction, ip: ip::Repr, tcp: &tcp::Repr, len: usize) -> Forged {
        let behind = self.rng.chance(0.5);
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
        if !behind {
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
        let (key, side) = place(forged.direction, ends(&forged.ip, &forged.tcp));
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
        let signs = match forged.direction {
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
                let (_, receiver_key) = signs(self.any_keys()?.1);
                if self.rng.chance(0.5) {
                    forged.tcp.flags = Flags::RST | Flags::ACK;
                }
                MptcpOption::FastClose { receiver_key }
            }
            Attack::Announce => {
                let keys = signs(self.any_keys()?.1);
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

    /// Opens a subflow of a connection whose keys are known, in the box's name.
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

    /// Answers on a subflow that the attacker opens: proves the keys and sends data of its own, then
    /// acknowledges whatever arrives.
    fn go_on(&mut self, received: &[u8], (ip, tcp, _): &Parsed, out: &mut Output) {
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
        let (boxed, server) = place(direction, ends(ip, tcp)).0;
        if self.hijacker.owns(boxed) {
            self.go_on(&packet.bytes, &parsed, out);
            return;
        }
        // Traffic that a box forwards without a server has no protection by Braid, so it is no leak.
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

/// Returns the subflow of a segment, and the side that sends it (0: the box, 1: the server).
fn place(
    direction: Direction,
    (from, to): (SocketAddr, SocketAddr),
) -> ((SocketAddr, SocketAddr), usize) {
    match direction {
        Direction::Outbound => ((from, to), 0),
        Direction::Inbound => ((to, from), 1),
    }
}

/// Returns the ADD_ADDR with which the holder of these keys would announce the attacker's address.
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
