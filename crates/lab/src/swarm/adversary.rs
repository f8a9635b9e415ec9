//! An attacker on one access link. It sees every packet of the link and injects forged packets. It knows
//! the MPTCP keys of the connections whose first handshake passed the link.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use braid_links::middlebox::{Direction, Middlebox, Output, Packet};
use braid_proxy::config;
use braid_sim::hijacker::{self, Hijacker, Keys, hmac_sha256, keys_in};
use braid_sim::traffic::pattern_from;
use braid_wire::mptcp::{AddAddr, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags, Timestamps};
use braid_wire::{Dsn64, Instant, Rng, Seq32, ip};

/// Maximum number of recent packets to choose a replay from. A guess.
const MAX_RECENT: usize = 64;
/// The attacker's own address (RFC 5737, for documentation). Forged ADD_ADDRs announce it, to draw subflows
/// to it.
const ATTACKER_ADDR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);
/// First port of the subflows that the attacker opens in the box's name.
const FIRST_PORT: u16 = 60_000;
/// Length of the parts of users' streams, bytes. The attacker searches packets for these parts. By chance,
/// 64 bits of ciphertext do not equal a part.
const WORD_LEN: usize = 8;

/// An attack on a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// Forges a RST.
    Reset,
    /// Forges a FIN.
    Fin,
    /// Forges a DATA_FIN.
    DataFin,
    /// Forges a segment with random payload.
    Inject,
    /// Forges an MP_FASTCLOSE.
    FastClose,
    /// Forges an ADD_ADDR.
    Announce,
    /// Forges a REMOVE_ADDR.
    Remove,
    /// Forges an MP_FAIL.
    Fail,
    /// Forges an infinite mapping, which makes a connection fall back.
    Infinite,
    /// Forges an MP_PRIO.
    Backup,
    /// Opens a subflow.
    Join,
    /// Sends an earlier packet again.
    Replay,
    /// Flips a bit of the payload.
    Change,
    /// Cuts off the end of the payload.
    Truncate,
    /// Drops the packet.
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
    /// Initial sequence numbers of the box and of the server, in this order.
    iss: [Option<Seq32>; 2],
    /// Next data sequence number of the box and of the server: the last DATA_ACK of the other end.
    next: [Option<WireDsn>; 2],
}

/// The attacker as a middlebox: the box is inside, the servers are outside.
#[derive(Debug)]
pub struct Adversary {
    rng: Rng,
    /// The attacker uses one packet of this many for an attack, on average.
    every: u64,
    attacks_left: u32,
    /// The attacks to draw from.
    attacks: &'static [Attack],
    /// The observed subflows by the addresses of box and server.
    subflows: BTreeMap<(SocketAddr, SocketAddr), Subflow>,
    /// Keys of each connection that was opened over this link, with the address of its server.
    keys: Vec<(SocketAddr, Keys)>,
    hijacker: Hijacker,
    next_port: u16,
    /// For each connection that the attacker joins: the data sequence number at which the attacker will
    /// write. The key is the local address of the attacker's subflow.
    dsns: BTreeMap<SocketAddr, WireDsn>,
    /// The last packets, for replays.
    recent: VecDeque<(Direction, Packet)>,
    /// Every part of [`WORD_LEN`] bytes of the users' streams, sorted.
    words: Vec<[u8; WORD_LEN]>,
    /// Number of packets that show users' bytes in plaintext.
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
    /// Creates an attacker that uses about one packet in `every` for an attack, and makes at most `attacks`.
    pub fn new(rng: Rng, every: u64, attacks: u32) -> Self {
        let words = pattern_from(0).windows(WORD_LEN);
        let mut words: Vec<[u8; WORD_LEN]> =
            words.filter_map(|word| word.try_into().ok()).collect();
        words.sort_unstable();
        Adversary {
            rng,
            every,
            attacks_left: attacks,
            attacks: &Attack::ALL,
            subflows: BTreeMap::new(),
            keys: Vec::new(),
            hijacker: Hijacker::default(),
            next_port: FIRST_PORT,
            dsns: BTreeMap::new(),
            recent: VecDeque::new(),
            words,
            leaks: 0,
        }
    }

    /// Limits the attacks to MP_JOIN if `joins_only` is true.
    pub fn with_joins_only(mut self, joins_only: bool) -> Self {
        if joins_only {
            self.attacks = &[Attack::Join];
        }
        self
    }

    /// Returns whether `payload` has a run of users' bytes.
    fn shows_user_bytes(&self, payload: &[u8]) -> bool {
        // Looks at 8 bytes out of every 16, for speed. `words` has the parts at every offset of the
        // streams, so this finds every run of 23 bytes: at most 15 bytes to the next place to look, and 8
        // bytes there.
        let mut words = payload.windows(WORD_LEN).step_by(2 * WORD_LEN);
        words.any(|word| self.words.binary_search_by(|w| w[..].cmp(word)).is_ok())
    }

    /// Learns sequence numbers and keys from a segment.
    fn learn(&mut self, direction: Direction, ip: &ip::Repr, tcp: &tcp::Repr) {
        let (key, sender) = subflow_and_sender(direction, ends(ip, tcp));
        let subflow = self.subflows.entry(key).or_default();
        if tcp.flags.contains(Flags::SYN) {
            subflow.iss[sender] = Some(tcp.seq);
        }
        if let Some(ack) = tcp.options.dss().and_then(|dss| dss.data_ack) {
            subflow.next[1 - sender] = Some(ack);
        }
        if let Some(keys) = keys_in(tcp) {
            let known = (key.1, keys);
            if !self.keys.contains(&known) {
                self.keys.push(known);
            }
        }
    }

    /// Forges a segment of the passing segment's subflow. Its sender is the sender of the passing segment,
    /// or the receiver, each with the same probability. The forged segment is in sequence. It has a mapping
    /// if the attacker knows an initial sequence number and a data sequence number of its sender.
    fn forge(&mut self, direction: Direction, ip: ip::Repr, tcp: &tcp::Repr, len: usize) -> Forged {
        let same_sender = self.rng.chance(0.5);
        let next_seq = Seq32(tcp.seq.0.wrapping_add(len as u32));
        let mut header = tcp::Repr::new(tcp.src_port, tcp.dst_port, Flags::ACK);
        (header.seq, header.ack, header.window) = (next_seq, tcp.ack, tcp.window);
        header.options.timestamps = tcp.options.timestamps;
        let mut forged = Forged {
            direction,
            ip,
            tcp: header,
            payload: Vec::new(),
        };
        let mapping = tcp.options.dss().and_then(|dss| dss.mapping);
        let mut dsn = mapping.map(|m| match m.dsn {
            WireDsn::Four(n) => WireDsn::Four(n.wrapping_add(m.len.into())),
            WireDsn::Eight(n) => WireDsn::Eight(n.wrapping_add(m.len.into())),
        });
        if !same_sender {
            let header = &mut forged.tcp;
            (header.src_port, header.dst_port) = (tcp.dst_port, tcp.src_port);
            (header.seq, header.ack) = (tcp.ack, next_seq);
            header.options.timestamps = tcp.options.timestamps.map(|times| Timestamps {
                value: times.echo,
                echo: times.value,
            });
            (forged.ip.src, forged.ip.dst) = (ip.dst, ip.src);
            forged.direction = match direction {
                Direction::Outbound => Direction::Inbound,
                Direction::Inbound => Direction::Outbound,
            };
            // The mapping of the passing segment is for the other direction.
            dsn = None;
        }
        let (key, sender) = subflow_and_sender(forged.direction, ends(&forged.ip, &forged.tcp));
        if let Some(subflow) = self.subflows.get(&key)
            && let (Some(iss), Some(dsn)) = (subflow.iss[sender], dsn.or(subflow.next[sender]))
        {
            let mapping = DssMapping {
                dsn,
                subflow_seq: forged.tcp.seq.0.wrapping_sub(iss.0),
                len: 0,
                checksum: None,
            };
            let dss = Dss {
                data_ack: subflow.next[1 - sender],
                mapping: Some(mapping),
                data_fin: false,
            };
            // The other options leave room for a DSS, so the push succeeds.
            let _ = forged.tcp.options.mptcp.try_push(MptcpOption::Dss(dss));
        }
        forged
    }

    /// Returns the keys of a connection, drawn from the known ones, with the address of the connection's
    /// server.
    fn any_keys(&mut self) -> Option<(SocketAddr, Keys)> {
        let n = self.rng.below(self.keys.len().max(1) as u64) as usize;
        self.keys.get(n).copied()
    }

    /// Makes one attack, drawn at random. Returns the passing packet, perhaps changed; `None` drops it.
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
                let n = self.rng.below(self.recent.len() as u64) as usize;
                out.push_back(self.recent[n].clone());
            }
            Attack::Join => self.join_connection(ends(ip, tcp), out),
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

    /// Completes a forged segment for `attack`. Returns `None` if the attacker lacks keys or sequence numbers
    /// for the attack.
    fn fill_in(&mut self, attack: Attack, forged: &mut Forged) -> Option<()> {
        // Orders keys as (sender's, receiver's). The box opens all connections.
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
                // RFC 8684, section 3.3.3: a DATA_FIN without data has length 1 and subflow sequence number 0.
                (mapping.subflow_seq, mapping.len, *fin) = (0, 1, true);
                return Some(());
            }
            Attack::Infinite => {
                // RFC 8684, section 3.7: a mapping of length 0 is infinite.
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
        // The signal replaces the mapping, because the two together may exceed the 40 bytes of TCP options.
        options.mptcp.retain(|o| !matches!(o, MptcpOption::Dss(_)));
        options.mptcp.try_push(signal).ok()
    }

    /// Opens a subflow to a connection whose keys are known, with the box's address as source.
    fn join_connection(&mut self, (from, to): (SocketAddr, SocketAddr), out: &mut Output) {
        let Some((server, keys)) = self.any_keys() else {
            return;
        };
        let box_addr = if to == server { from } else { to };
        let local = SocketAddr::new(box_addr.ip(), self.next_port);
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

    /// Answers a packet to a subflow of the attacker. After the SYN/ACK, completes the handshake and sends
    /// forged data. Later only acknowledges whatever arrives.
    fn continue_join(&mut self, received: &[u8], (ip, tcp, _): &Parsed, out: &mut Output) {
        let Some(answer) = self.hijacker.answer(received) else {
            return;
        };
        out.push_back((Direction::Outbound, Packet::new(answer)));
        let (_, local) = ends(ip, tcp);
        let Some(dsn) = self.dsns.remove(&local) else {
            return;
        };
        let mut data = tcp::Repr::new(tcp.dst_port, tcp.src_port, Flags::ACK);
        // The packet is the SYN/ACK, which takes one sequence number.
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
        let (box_addr, server) = subflow_and_sender(direction, ends(ip, tcp)).0;
        if self.hijacker.owns(box_addr) {
            self.continue_join(&packet.bytes, &parsed, out);
            return;
        }
        // Braid does not protect traffic that a box forwards without a server. The bytes of such traffic
        // are no leak.
        if server.port() != config::DEFAULT_PORT {
            out.push_back((direction, packet));
            return;
        }
        self.leaks += u64::from(self.shows_user_bytes(payload));
        self.learn(direction, ip, tcp);
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((direction, packet.clone()));
        let mut passing = Some(packet);
        if self.attacks_left > 0 && self.rng.below(self.every) == 0 {
            self.attacks_left -= 1;
            passing = passing.and_then(|packet| self.attack(direction, packet, &parsed, out));
        }
        out.extend(passing.map(|packet| (direction, packet)));
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

/// Returns the addresses (box, server) of a segment's subflow, and its sender (0: the box, 1: the server).
fn subflow_and_sender(
    direction: Direction,
    (from, to): (SocketAddr, SocketAddr),
) -> ((SocketAddr, SocketAddr), usize) {
    match direction {
        Direction::Outbound => ((from, to), 0),
        Direction::Inbound => ((to, from), 1),
    }
}

/// Returns the ADD_ADDR that the owner of these keys would send to announce the attacker's address.
fn announcement(keys: Keys, address_id: u8, port: Option<u16>) -> AddAddr {
    let mut message = vec![address_id];
    message.extend(ATTACKER_ADDR.octets());
    message.extend(port.unwrap_or(0).to_be_bytes());
    // RFC 8684, section 3.4.1: the rightmost 64 bits of the HMAC.
    let mut tail = [0; 8];
    tail.copy_from_slice(&hmac_sha256(keys, &message)[24..]);
    AddAddr {
        address_id,
        addr: ATTACKER_ADDR.into(),
        port,
        hmac: Some(u64::from_be_bytes(tail)),
    }
}
