//! Network address and port translation (RFC 4787, 5382, 5508).

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::checksum::{self, Sum};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, ip, tcp, udp};

use super::segment::{adjust, edit};
use super::{Direction, Middlebox, Output, Packet};

/// The lowest port that a NAT gives out; lower ones are well-known ports.
const FIRST_PORT: u16 = 1024;
/// The number of ports that a NAT gives out.
const PORTS: usize = 65_536 - FIRST_PORT as usize;
/// Bytes of an ICMP error's header before the packet that it quotes.
const ICMP_LEN: usize = 8;

/// Settings of a [`Nat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatConfig {
    /// The external address that all inside hosts share.
    pub external: Ipv4Addr,
    /// The longest idle time of a TCP connection (at least 2 h 4 min by RFC 5382 section 5; cheap NATs
    /// have some minutes).
    pub established: Duration,
    /// The longest idle time of a TCP connection that is not answered yet, or has ended.
    pub transitory: Duration,
    /// The longest idle time of a UDP flow.
    pub udp: Duration,
    /// Most mappings at a time; never more than there are ports from 1024 on.
    pub capacity: usize,
    /// A segment from the middle of an unknown connection makes a mapping; else only a SYN does.
    pub adopts: bool,
    /// A flow keeps its port outside if that is free; else ports are given out in turn.
    pub preserves_ports: bool,
}

impl NatConfig {
    /// Makes settings with the times of the RFCs, 4096 mappings, and otherwise the behaviour of Linux.
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

/// Counters of a [`Nat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NatCounters {
    /// Packets translated, either way.
    pub translated: u64,
    /// Mappings made.
    pub mapped: u64,
    /// Packets dropped because they have no mapping and may not make one.
    pub unknown: u64,
    /// Packets dropped because the table was full.
    pub full: u64,
    /// Packets dropped because they are no whole packets of a known protocol.
    pub unsupported: u64,
}

/// A NAT: hosts inside share one IPv4 address outside. Each flow between an inside and an outside
/// endpoint has a mapping of its own; a packet from outside without a mapping is dropped. IPv6 passes as
/// it is.
#[derive(Debug)]
pub struct Nat {
    config: NatConfig,
    mappings: BTreeMap<Flow, Mapping>,
    /// The flow that has each port outside.
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
    /// The outside has answered.
    answered: bool,
    /// Inside and outside have sent a FIN; both are set after a RST.
    ended: [bool; 2],
}

/// The reason for which a packet is dropped.
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

/// One of the two endpoints in a header.
#[derive(Debug, Clone, Copy)]
enum Side {
    Src,
    Dst,
}

impl Nat {
    /// Makes a NAT without mappings.
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

    /// Changes the external address and forgets all mappings, as when a link is dialled anew.
    pub fn rebind(&mut self, external: Ipv4Addr) {
        self.config.external = external;
        self.forget();
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> NatCounters {
        self.counters
    }

    /// Returns the number of mappings, including expired ones that no packet has asked for since.
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

    /// Translates an ICMP error and the packet that it quotes (RFC 5508 section 4). Errors pass only for
    /// flows that have a mapping.
    fn translate_error(
        &mut self,
        now: Instant,
        direction: Direction,
        (header, message): (&mut [u8], &mut [u8]),
    ) -> Result<(), Refusal> {
        // Destination unreachable, time exceeded, parameter problem.
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
            // The error is about a packet from the inside.
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

    /// Returns the flow that has `external`, if its outside endpoint is `outside`.
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

    /// Returns the port outside of `flow`, for a packet from the inside; makes a mapping if there is
    /// none.
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

    /// Returns a port that no mapping has. One exists, since fewer than all are given out.
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

    /// Returns whether `flow` has a mapping that is not expired; removes an expired one.
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

    /// Extends the mapping of `flow`, of which a packet passed.
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
            // A SYN opens a new connection on the same ports.
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

/// Returns source and destination of a TCP segment or a UDP datagram.
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

/// Returns one endpoint, from an IPv4 header of at least 20 bytes and the ports behind it.
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

/// Replaces the endpoint in a TCP or UDP header. The checksum there covers the address too.
fn rewrite(payload: &mut [u8], protocol: u8, side: Side, (from, to): (SocketAddrV4, SocketAddrV4)) {
    set_port(payload, side, to.port());
    let field = if protocol == ip::PROTO_TCP { 16 } else { 6 };
    // RFC 768: zero says that there is no checksum, and a sum of zero is sent as all ones.
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
