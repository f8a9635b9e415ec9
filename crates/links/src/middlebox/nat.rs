//! Network address and port translation (RFC 4787, 5382, 5508).

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::checksum::{self, Sum};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, ip, tcp, udp};

use super::segment::{adjust, edit};
use super::{Direction, Middlebox, Output, Packet};

/// Ports that a NAT gives out: from here on up.
const FIRST_PORT: u16 = 1024;
/// How many these are.
const PORTS: usize = 65_536 - FIRST_PORT as usize;
/// Bytes of an ICMP error before the packet it quotes.
const ICMP_LEN: usize = 8;

/// Settings of a [`Nat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatConfig {
    /// The address that all inside hosts have outside.
    pub external: Ipv4Addr,
    /// How long a TCP connection may be idle (RFC 5382 section 5 wants 2 h 4 min; cheap ones have
    /// some minutes).
    pub established: Duration,
    /// How long one that is not answered yet, or has ended, may be.
    pub transitory: Duration,
    /// How long a UDP flow may be.
    pub udp: Duration,
    /// Most mappings at a time; never more than there are ports from 1024 on.
    pub capacity: usize,
    /// Whether a segment from the middle of a connection it does not know makes a mapping; else
    /// only a SYN does.
    pub adopts: bool,
    /// Whether a flow keeps its port outside if that is free; else ports are given out in turn.
    pub preserves_ports: bool,
}

impl NatConfig {
    /// The times of the RFCs, 4096 mappings, and otherwise as Linux does it.
    pub fn new(external: Ipv4Addr) -> Self {
        NatConfig {
            external,
            established: Duration::from_secs(2 * 3600 + 4 * 60),
            transitory: Duration::from_secs(4 * 60),
            udp: Duration::from_secs(5 * 60),
            capacity: 4096,
            adopts: true,
            preserves_ports: true,
        }
    }
}

/// What a [`Nat`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NatCounters {
    /// Packets translated, either way.
    pub translated: u64,
    /// Mappings made.
    pub mapped: u64,
    /// Dropped: no mapping, and none to be made.
    pub unknown: u64,
    /// Dropped: the table was full.
    pub full: u64,
    /// Dropped: no whole packet of a protocol it knows.
    pub unsupported: u64,
}

/// A NAT: hosts inside share one IPv4 address outside. Each flow, of one inside and one outside
/// endpoint, has a mapping of its own; what comes from outside without one is dropped. IPv6 passes
/// as it is.
#[derive(Debug)]
pub struct Nat {
    config: NatConfig,
    mappings: BTreeMap<Flow, Mapping>,
    /// Whose a port outside is.
    ports: BTreeMap<(u8, u16), Flow>,
    next_port: u16,
    counters: NatCounters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    protocol: u8,
    inside: SocketAddrV4,
    outside: SocketAddrV4,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    port: u16,
    expires: Instant,
    /// Whether the outside answered.
    answered: bool,
    /// Whether the inside, the outside sent its FIN; both after a RST.
    ended: [bool; 2],
}

/// Why a packet is dropped.
enum Refusal {
    Unknown,
    Full,
    Unsupported,
}

impl From<braid_wire::Error> for Refusal {
    fn from(_: braid_wire::Error) -> Self {
        Refusal::Unsupported
    }
}

/// Source or destination.
#[derive(Debug, Clone, Copy)]
enum Side {
    Src,
    Dst,
}

impl Nat {
    /// A NAT without mappings.
    pub fn new(config: NatConfig) -> Self {
        Nat {
            config,
            mappings: BTreeMap::new(),
            ports: BTreeMap::new(),
            next_port: FIRST_PORT,
            counters: NatCounters::default(),
        }
    }

    /// Forgets all mappings, as after a restart.
    pub fn forget(&mut self) {
        self.mappings.clear();
        self.ports.clear();
    }

    /// Has another address outside from now on, and with it no mapping, as when a link is dialled
    /// anew.
    pub fn rebind(&mut self, external: Ipv4Addr) {
        self.config.external = external;
        self.forget();
    }

    /// What it did.
    pub fn counters(&self) -> NatCounters {
        self.counters
    }

    /// Mappings there are, those included that have expired and were not missed yet.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    fn translate(
        &mut self,
        now: Instant,
        direction: Direction,
        packet: &mut [u8],
    ) -> Result<(), Refusal> {
        let view = ip::Packet::new(&packet[..])?;
        if !view.checksum_ok() || view.is_v4_fragment() {
            return Err(Refusal::Unsupported);
        }
        let (protocol, ip_len) = (view.next_header(), view.header_len());
        let (header, payload) = packet.split_at_mut(ip_len);
        if protocol == ip::PROTO_ICMP {
            return self.translate_error(now, direction, (header, payload));
        }
        let (src, dst) = endpoints(header, payload, protocol)?;
        let flags = match protocol {
            ip::PROTO_TCP => tcp::Packet::new(&*payload)?.flags(),
            _ => Flags::EMPTY,
        };
        match direction {
            Direction::Outbound => {
                let flow = Flow {
                    protocol,
                    inside: src,
                    outside: dst,
                };
                let port = self.port_of(now, flow, flags)?;
                self.keep(now, flow, direction, flags);
                let to = SocketAddrV4::new(self.config.external, port);
                readdress(header, Side::Src, *to.ip());
                rewrite(payload, protocol, Side::Src, (src, to));
            }
            Direction::Inbound => {
                let flow = self.flow_at(now, protocol, dst, src)?;
                self.keep(now, flow, direction, flags);
                readdress(header, Side::Dst, *flow.inside.ip());
                rewrite(payload, protocol, Side::Dst, (dst, flow.inside));
            }
        }
        Ok(())
    }

    /// ICMP errors pass for flows that have a mapping, and their quotes are translated too
    /// (RFC 5508 section 4).
    fn translate_error(
        &mut self,
        now: Instant,
        direction: Direction,
        (header, message): (&mut [u8], &mut [u8]),
    ) -> Result<(), Refusal> {
        let is_error = message.first().is_some_and(|t| matches!(t, 3 | 11 | 12));
        let quoted = message.get(ICMP_LEN..).filter(|_| is_error);
        let quoted = quoted.ok_or(Refusal::Unsupported)?;
        let inner_len = usize::from(*quoted.first().ok_or(Refusal::Unsupported)? & 0x0f) * 4;
        if inner_len < 20 || quoted.len() < inner_len + 4 {
            return Err(Refusal::Unsupported);
        }
        let (inner, ports) = quoted.split_at(inner_len);
        let protocol = inner[9];
        let (src, dst) = (
            endpoint(inner, ports, Side::Src),
            endpoint(inner, ports, Side::Dst),
        );
        let (side, to) = match direction {
            // About what the inside sent.
            Direction::Inbound => {
                let flow = self.flow_at(now, protocol, src, dst)?;
                readdress(header, Side::Dst, *flow.inside.ip());
                (Side::Src, flow.inside)
            }
            Direction::Outbound => {
                let flow = Flow {
                    protocol,
                    inside: dst,
                    outside: src,
                };
                let mapping = self.mappings.get(&flow).ok_or(Refusal::Unknown)?;
                readdress(header, Side::Src, self.config.external);
                (
                    Side::Dst,
                    SocketAddrV4::new(self.config.external, mapping.port),
                )
            }
        };
        edit(message, 2, |message| {
            let (inner, ports) = message[ICMP_LEN..].split_at_mut(inner_len);
            readdress(inner, side, *to.ip());
            set_port(ports, side, to.port());
        });
        Ok(())
    }

    /// The flow whose outside end `external` is, if it is with `outside`.
    fn flow_at(
        &mut self,
        now: Instant,
        protocol: u8,
        external: SocketAddrV4,
        outside: SocketAddrV4,
    ) -> Result<Flow, Refusal> {
        let key = (protocol, external.port());
        let flow = *self.ports.get(&key).ok_or(Refusal::Unknown)?;
        if *external.ip() != self.config.external || flow.outside != outside {
            return Err(Refusal::Unknown);
        }
        match self.is_current(now, flow) {
            true => Ok(flow),
            false => Err(Refusal::Unknown),
        }
    }

    /// The port outside of `flow`, of which a packet comes from inside.
    fn port_of(&mut self, now: Instant, flow: Flow, flags: Flags) -> Result<u16, Refusal> {
        if self.is_current(now, flow) {
            return Ok(self.mappings[&flow].port);
        }
        let opens = flow.protocol == ip::PROTO_UDP
            || flags.contains(Flags::SYN)
            || (self.config.adopts && !flags.contains(Flags::RST));
        if !opens {
            return Err(Refusal::Unknown);
        }
        let capacity = self.config.capacity.min(PORTS);
        if self.mappings.len() >= capacity {
            self.mappings.retain(|_, mapping| mapping.expires > now);
            self.ports
                .retain(|_, flow| self.mappings.contains_key(flow));
        }
        if self.mappings.len() >= capacity {
            return Err(Refusal::Full);
        }
        let port = self.free_port(flow);
        self.counters.mapped += 1;
        self.ports.insert((flow.protocol, port), flow);
        let mapping = Mapping {
            port,
            expires: now,
            answered: false,
            ended: [false; 2],
        };
        self.mappings.insert(flow, mapping);
        Ok(port)
    }

    /// A port that no mapping has. There is one: fewer than all are given out.
    fn free_port(&mut self, flow: Flow) -> u16 {
        let wanted = flow.inside.port();
        let mut port = match self.config.preserves_ports && wanted >= FIRST_PORT {
            true => wanted,
            false => self.next_port,
        };
        let after = |port: u16| port.checked_add(1).unwrap_or(FIRST_PORT);
        while self.ports.contains_key(&(flow.protocol, port)) {
            port = after(port);
        }
        if !self.config.preserves_ports {
            self.next_port = after(port);
        }
        port
    }

    /// Whether `flow` has a mapping that is not expired; removes it if it is.
    fn is_current(&mut self, now: Instant, flow: Flow) -> bool {
        let Some(mapping) = self.mappings.get(&flow) else {
            return false;
        };
        if mapping.expires > now {
            return true;
        }
        self.ports.remove(&(flow.protocol, mapping.port));
        self.mappings.remove(&flow);
        false
    }

    /// A packet of `flow` passed: it is kept for a while longer.
    fn keep(&mut self, now: Instant, flow: Flow, direction: Direction, flags: Flags) {
        let Some(mapping) = self.mappings.get_mut(&flow) else {
            return;
        };
        let outside = direction == Direction::Inbound;
        mapping.answered |= outside;
        mapping.ended[usize::from(outside)] |= flags.contains(Flags::FIN);
        if flags.contains(Flags::RST) {
            mapping.ended = [true; 2];
        }
        if flags.contains(Flags::SYN) && !outside {
            // The ports are used again.
            mapping.ended = [false; 2];
        }
        let time = match (flow.protocol, mapping.answered, mapping.ended) {
            (ip::PROTO_UDP, ..) => self.config.udp,
            (_, false, _) | (.., [true, true]) => self.config.transitory,
            _ => self.config.established,
        };
        mapping.expires = now + time;
    }
}

impl Middlebox for Nat {
    fn process(
        &mut self,
        now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        if packet.bytes.first().is_some_and(|byte| byte >> 4 == 6) {
            out.push_back((direction, packet));
            return;
        }
        match self.translate(now, direction, &mut packet.bytes) {
            Ok(()) => {
                self.counters.translated += 1;
                out.push_back((direction, packet));
            }
            Err(Refusal::Unknown) => self.counters.unknown += 1,
            Err(Refusal::Full) => self.counters.full += 1,
            Err(Refusal::Unsupported) => self.counters.unsupported += 1,
        }
    }
}

/// Source and destination of a TCP segment or a UDP datagram.
fn endpoints(
    header: &[u8],
    payload: &[u8],
    protocol: u8,
) -> Result<(SocketAddrV4, SocketAddrV4), Refusal> {
    let least = match protocol {
        ip::PROTO_TCP => tcp::HEADER_LEN,
        ip::PROTO_UDP => udp::HEADER_LEN,
        _ => return Err(Refusal::Unsupported),
    };
    if payload.len() < least {
        return Err(Refusal::Unsupported);
    }
    let of = |side| endpoint(header, payload, side);
    Ok((of(Side::Src), of(Side::Dst)))
}

/// One end, from an IPv4 header of at least 20 bytes and the ports behind it.
fn endpoint(header: &[u8], ports: &[u8], side: Side) -> SocketAddrV4 {
    let (addr, port) = match side {
        Side::Src => (&header[12..16], &ports[..2]),
        Side::Dst => (&header[16..20], &ports[2..4]),
    };
    let addr = Ipv4Addr::new(addr[0], addr[1], addr[2], addr[3]);
    SocketAddrV4::new(addr, u16::from_be_bytes([port[0], port[1]]))
}

/// Replaces an address in an IPv4 header.
fn readdress(header: &mut [u8], side: Side, addr: Ipv4Addr) {
    let at = match side {
        Side::Src => 12,
        Side::Dst => 16,
    };
    edit(header, 10, |header| {
        header[at..at + 4].copy_from_slice(&addr.octets());
    });
}

fn set_port(ports: &mut [u8], side: Side, port: u16) {
    let at = match side {
        Side::Src => 0,
        Side::Dst => 2,
    };
    ports[at..at + 2].copy_from_slice(&port.to_be_bytes());
}

/// Replaces a port in a TCP or UDP header, whose checksum covers the address too.
fn rewrite(payload: &mut [u8], protocol: u8, side: Side, (from, to): (SocketAddrV4, SocketAddrV4)) {
    set_port(payload, side, to.port());
    let field = if protocol == ip::PROTO_TCP { 16 } else { 6 };
    if protocol == ip::PROTO_UDP && payload[field..field + 2] == [0, 0] {
        return;
    }
    adjust(payload, field, sum_of(from), sum_of(to));
    if protocol == ip::PROTO_UDP && payload[field..field + 2] == [0, 0] {
        payload[field..field + 2].fill(0xff);
    }
}

fn sum_of(end: SocketAddrV4) -> Sum {
    let sum = checksum::sum(Sum::default(), &end.ip().octets());
    Sum(sum.0 + u64::from(end.port()))
}
