//! An attacker on one access link. It sees every packet of the link and injects forged packets. It knows
//! the MPTCP keys of the connections whose first handshake passed the link.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};

use braid_links::middlebox::{Direction, Middlebox, Output, Packet};
use braid_proxy::config;
use braid_sim::hijacker::{self, Hijacker, Keys, hmac_sha256, keys_in};
use braid_sim::traffic::pattern_from;
use braid_wire::mptcp::{AddAddr, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Dsn64, Instant, Rng, Seq32, ip};

/// Maximum number of recent packets to choose a replay from. A guess.
const MAX_RECENT: usize = 64;
/// The attacker's own address (RFC 5737, for documentation). Forged ADD_ADDRs announce it, to draw subflows
/// to it.
const ATTACKER_ADDR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);
/// First port of the subflows that the attacker opens in the box's name.
const FIRST_PORT: u16 = 60_000;
/// Length of the parts of users' streams for which the attacker searches packets, bytes. 64 bits of ciphertext
/// practically never equal one of a few thousand parts by chance.
const WORD_LEN: usize = 8;

/// An access link with an attacker on it.
#[derive(Debug, Clone, Copy)]
pub struct Attacked {
    /// The link.
    pub link: usize,
    /// The attacker uses one packet of this many for an attack, on average.
    pub every: u64,
    /// Maximum number of attacks.
    pub attacks: u32,
    /// True if all attacks are new subflows (MP_JOIN).
    pub joins_only: bool,
}

/// An attack on a subflow.
#[derive(Debug, Clone, Copy)]
enum Attack {
    /// Forges a segment of the subflow, completed by the function. The function returns `None` if the attacker
    /// lacks keys or sequence numbers for the attack.
    Forge(fn(&mut Adversary, &mut Segment) -> Option<()>),
    /// Opens a subflow.
    Join,
    /// Sends an earlier packet again.
    Replay,
    /// Changes the payload at or after the position.
    Change(fn(&mut Rng, &mut Vec<u8>, usize)),
    /// Drops the packet.
    Drop,
}

const ATTACKS: [Attack; 15] = [
    Attack::Forge(|_, forged| forged.flag(Flags::RST)),
    Attack::Forge(|_, forged| forged.flag(Flags::FIN)),
    // A DATA_FIN. RFC 8684, section 3.3.3: without data it has length 1 and subflow sequence number 0.
    Attack::Forge(|_, forged| {
        let (mapping, data_fin) = forged.mapping()?;
        (mapping.subflow_seq, mapping.len, *data_fin) = (0, 1, true);
        Some(())
    }),
    // Random payload.
    Attack::Forge(|attacker, forged| {
        let len = 1 + attacker.rng.below(1_300) as u16;
        forged.mapping()?.0.len = len;
        forged.payload = vec![0; len.into()];
        attacker.rng.fill(&mut forged.payload);
        Some(())
    }),
    Attack::Forge(|attacker, forged| {
        let (_, receiver_key) = forged.by_sender(attacker.any_keys()?.1);
        if attacker.rng.chance(0.5) {
            forged.flag(Flags::RST);
        }
        forged.signal(MptcpOption::FastClose { receiver_key })
    }),
    Attack::Forge(|attacker, forged| {
        let keys = forged.by_sender(attacker.any_keys()?.1);
        let port = attacker.rng.chance(0.5).then_some(forged.tcp.src_port);
        let address_id = 1 + attacker.rng.below(8) as u8;
        forged.signal(MptcpOption::AddAddr(announcement(keys, address_id, port)))
    }),
    Attack::Forge(|attacker, forged| {
        let ids = [attacker.rng.below(3) as u8, attacker.rng.below(8) as u8];
        forged.signal(MptcpOption::RemoveAddr(RemoveAddr::new(&ids)?))
    }),
    Attack::Forge(|_, forged| {
        let dsn = forged.mapping()?.0.dsn.expand(Dsn64(0));
        forged.signal(MptcpOption::Fail { dsn })
    }),
    // RFC 8684, section 3.7: a mapping of length 0 is infinite. It makes a connection fall back. The length of a
    // forged mapping is 0 from the start.
    Attack::Forge(|_, forged| forged.mapping().map(|_| ())),
    Attack::Forge(|_, forged| forged.signal(MptcpOption::Prio { backup: true })),
    Attack::Join,
    Attack::Replay,
    Attack::Change(|rng, payload, at| {
        if let Some(byte) = payload.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }),
    Attack::Change(|_, payload, at| payload.truncate(at)),
    Attack::Drop,
];

/// A TCP segment on the link.
#[derive(Debug, Clone)]
struct Segment {
    direction: Direction,
    ip: ip::Repr,
    tcp: tcp::Repr,
    payload: Vec<u8>,
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
    /// Every part of [`WORD_LEN`] bytes of the users' streams.
    words: BTreeSet<&'static [u8]>,
    /// Number of packets that show users' bytes in plaintext.
    pub leaks: u64,
}

impl Segment {
    fn parse(direction: Direction, packet: &[u8]) -> Option<Self> {
        let (ip, segment) = ip::Repr::parse(packet).ok()?;
        let (tcp, payload) = tcp::Repr::parse(segment).ok()?;
        Some(Segment {
            direction,
            ip,
            tcp,
            payload: payload.to_vec(),
        })
    }

    fn bytes(&self) -> Vec<u8> {
        hijacker::packet((self.ip.src, self.ip.dst), &self.tcp, &self.payload)
    }

    fn src(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    fn dst(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }

    /// Returns the addresses (box, server) of the subflow, and the sender (0: the box, 1: the server).
    fn subflow_and_sender(&self) -> ((SocketAddr, SocketAddr), usize) {
        match self.direction {
            Direction::Outbound => ((self.src(), self.dst()), 0),
            Direction::Inbound => ((self.dst(), self.src()), 1),
        }
    }

    /// Orders keys as (sender's, receiver's). The box opens all connections.
    fn by_sender(&self, (opener, listener): Keys) -> Keys {
        match self.direction {
            Direction::Outbound => (opener, listener),
            Direction::Inbound => (listener, opener),
        }
    }

    /// Returns a segment without payload that follows this segment.
    fn next(&self) -> Segment {
        let passed = &self.tcp;
        let mut tcp = tcp::Repr::new(passed.src_port, passed.dst_port, Flags::ACK);
        tcp.seq = passed.seq.add(self.payload.len() as u32);
        (tcp.ack, tcp.window) = (passed.ack, passed.window);
        tcp.options.timestamps = passed.options.timestamps;
        Segment {
            direction: self.direction,
            ip: self.ip,
            tcp,
            payload: Vec::new(),
        }
    }

    /// Reverses the direction of the segment. Its sequence number is then the one that the new receiver expects.
    fn reverse(&mut self) {
        mem::swap(&mut self.ip.src, &mut self.ip.dst);
        let tcp = &mut self.tcp;
        mem::swap(&mut tcp.src_port, &mut tcp.dst_port);
        mem::swap(&mut tcp.seq, &mut tcp.ack);
        if let Some(times) = &mut tcp.options.timestamps {
            mem::swap(&mut times.value, &mut times.echo);
        }
        self.direction = match self.direction {
            Direction::Outbound => Direction::Inbound,
            Direction::Inbound => Direction::Outbound,
        };
    }

    /// Maps the payload.
    fn map(&mut self, dsn: WireDsn, subflow_seq: u32, data_ack: Option<WireDsn>) {
        let mapping = DssMapping {
            dsn,
            subflow_seq,
            len: self.payload.len() as u16,
            checksum: None,
        };
        let dss = Dss {
            data_ack,
            mapping: Some(mapping),
            data_fin: false,
        };
        // The other options leave room for a DSS, so the push succeeds.
        let _ = self.tcp.options.mptcp.try_push(MptcpOption::Dss(dss));
    }

    /// Returns the mapping, and the flag of its DATA_FIN.
    fn mapping(&mut self) -> Option<(&mut DssMapping, &mut bool)> {
        let mut options = self.tcp.options.mptcp.iter_mut();
        options.find_map(|option| match option {
            MptcpOption::Dss(dss) => Some((dss.mapping.as_mut()?, &mut dss.data_fin)),
            _ => None,
        })
    }

    fn flag(&mut self, flag: Flags) -> Option<()> {
        self.tcp.flags = flag | Flags::ACK;
        Some(())
    }

    /// Adds a signal in place of the mapping, because the two together may exceed the 40 bytes of TCP options.
    fn signal(&mut self, signal: MptcpOption) -> Option<()> {
        let options = &mut self.tcp.options.mptcp;
        options.retain(|option| !matches!(option, MptcpOption::Dss(_)));
        options.try_push(signal).ok()
    }
}

impl Adversary {
    /// Creates the attacker of a link.
    pub fn new(rng: Rng, attacked: &Attacked) -> Self {
        Adversary {
            rng,
            every: attacked.every,
            attacks_left: attacked.attacks,
            attacks: match attacked.joins_only {
                true => &[Attack::Join],
                false => &ATTACKS,
            },
            subflows: BTreeMap::new(),
            keys: Vec::new(),
            hijacker: Hijacker::default(),
            next_port: FIRST_PORT,
            dsns: BTreeMap::new(),
            recent: VecDeque::new(),
            words: pattern_from(0).windows(WORD_LEN).collect(),
            leaks: 0,
        }
    }

    /// Returns whether `payload` has a run of users' bytes.
    fn shows_user_bytes(&self, payload: &[u8]) -> bool {
        // Looks at 8 bytes out of every 16, for speed. `words` has the parts at every offset of the
        // streams, so this finds every run of 23 bytes: at most 15 bytes to the next place to look, and 8
        // bytes there.
        let mut words = payload.windows(WORD_LEN).step_by(2 * WORD_LEN);
        words.any(|word| self.words.contains(word))
    }

    /// Learns sequence numbers and keys from a segment.
    fn learn(&mut self, segment: &Segment) {
        let (key, sender) = segment.subflow_and_sender();
        let subflow = self.subflows.entry(key).or_default();
        let tcp = &segment.tcp;
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
    fn forge(&mut self, passing: &Segment) -> Segment {
        let mut forged = passing.next();
        let tcp = &passing.tcp;
        let mapping = tcp.options.dss().and_then(|dss| dss.mapping);
        let mut dsn = mapping.map(|m| match m.dsn {
            WireDsn::Four(n) => WireDsn::Four(n.wrapping_add(m.len.into())),
            WireDsn::Eight(n) => WireDsn::Eight(n.wrapping_add(m.len.into())),
        });
        let same_sender = self.rng.chance(0.5);
        if !same_sender {
            forged.reverse();
            // The mapping of the passing segment is for the other direction.
            dsn = None;
        }
        let (key, sender) = forged.subflow_and_sender();
        if let Some(subflow) = self.subflows.get(&key)
            && let (Some(iss), Some(dsn)) = (subflow.iss[sender], dsn.or(subflow.next[sender]))
        {
            let subflow_seq = forged.tcp.seq.0.wrapping_sub(iss.0);
            forged.map(dsn, subflow_seq, subflow.next[1 - sender]);
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
    fn attack(&mut self, packet: Packet, passing: &Segment, out: &mut Output) -> Option<Packet> {
        match self.attacks[self.rng.below(self.attacks.len() as u64) as usize] {
            Attack::Forge(complete) => {
                let mut forged = self.forge(passing);
                if complete(self, &mut forged).is_some() {
                    out.push_back((forged.direction, Packet::new(forged.bytes())));
                }
            }
            Attack::Join => self.join_connection(passing, out),
            Attack::Replay => {
                let n = self.rng.below(self.recent.len() as u64) as usize;
                out.push_back(self.recent[n].clone());
            }
            Attack::Change(change) => {
                let mut changed = passing.clone();
                let at = self.rng.below(changed.payload.len().max(1) as u64) as usize;
                change(&mut self.rng, &mut changed.payload, at);
                let bytes = changed.bytes();
                return Some(Packet { bytes, ..packet });
            }
            Attack::Drop => return None,
        }
        Some(packet)
    }

    /// Opens a subflow to a connection whose keys are known, with the box's address as source.
    fn join_connection(&mut self, passing: &Segment, out: &mut Output) {
        let Some((server, keys)) = self.any_keys() else {
            return;
        };
        let (src, dst) = (passing.src(), passing.dst());
        let box_addr = if dst == server { src } else { dst };
        let local = SocketAddr::new(box_addr.ip(), self.next_port);
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        let nonce = self.rng.u32();
        let address_id = self.rng.below(8) as u8;
        let known = self.subflows.iter().filter(|((_, to), _)| *to == server);
        let dsn = known.filter_map(|(_, s)| s.next[0]).next_back();
        self.dsns.extend(dsn.map(|dsn| (local, dsn)));
        let ends = (local, server);
        let syn = self.hijacker.join(keys, ends, (address_id, nonce));
        out.push_back((Direction::Outbound, Packet::new(syn)));
    }

    /// Answers a packet to a subflow of the attacker. After the SYN/ACK, completes the handshake and sends
    /// forged data. After that, only acknowledges the packets that arrive.
    fn continue_join(&mut self, received: &[u8], segment: &Segment, out: &mut Output) {
        let Some(answer) = self.hijacker.answer(received) else {
            return;
        };
        out.push_back((Direction::Outbound, Packet::new(answer)));
        let Some(dsn) = self.dsns.remove(&segment.dst()) else {
            return;
        };
        let mut data = segment.next();
        data.reverse();
        // The packet is the SYN/ACK, which takes one sequence number.
        (data.tcp.ack, data.tcp.window) = (segment.tcp.seq.add(1), u16::MAX);
        data.payload = vec![0; 1_000];
        self.rng.fill(&mut data.payload);
        data.map(dsn, 1, None);
        out.push_back((Direction::Outbound, Packet::new(data.bytes())));
    }
}

impl Middlebox for Adversary {
    fn process(&mut self, _: Instant, direction: Direction, packet: Packet, out: &mut Output) {
        let Some(segment) = Segment::parse(direction, &packet.bytes) else {
            out.push_back((direction, packet));
            return;
        };
        let (box_addr, server) = segment.subflow_and_sender().0;
        if self.hijacker.owns(box_addr) {
            self.continue_join(&packet.bytes, &segment, out);
            return;
        }
        // Braid does not protect traffic that a box forwards without a server. The bytes of such traffic
        // are no leak.
        if server.port() != config::DEFAULT_PORT {
            out.push_back((direction, packet));
            return;
        }
        self.leaks += u64::from(self.shows_user_bytes(&segment.payload));
        self.learn(&segment);
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((direction, packet.clone()));
        let mut passing = Some(packet);
        if self.attacks_left > 0 && self.rng.below(self.every) == 0 {
            self.attacks_left -= 1;
            passing = passing.and_then(|packet| self.attack(packet, &segment, out));
        }
        out.extend(passing.map(|packet| (direction, packet)));
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
