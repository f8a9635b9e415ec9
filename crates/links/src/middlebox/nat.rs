//! Network address and port translation (RFC 4787 for UDP, RFC 5382 for TCP, RFC 5508 for ICMP).

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::checksum::{self, Sum};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, ip, tcp, udp};

use super::segment::{adjust, edit};
use super::{Direction, Middlebox, Output, Packet};

/// The lowest external port that a NAT assigns. Lower ports are well-known ports (RFC 6335).
const FIRST_PORT: u16 = 1024;
/// The number of external ports that a NAT assigns.
const PORTS: usize = 65_536 - FIRST_PORT as usize;
/// Bytes of an ICMP error before the quoted packet.
const ICMP_HEADER_LEN: usize = 8;

/// Settings of a [`Nat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatConfig {
    /// The external address that all inside hosts share.
    pub external: Ipv4Addr,
    /// The idle time after which the mapping of an established TCP connection expires. RFC 5382 section 5 requires
    /// at least 2 h 4 min; cheap NATs use some minutes.
    pub established: Duration,
    /// The idle time after which the mapping of any other TCP connection expires: one that is not answered yet or
    /// has ended.
    pub transitory: Duration,
    /// The idle time after which the mapping of a UDP flow expires.
    pub udp: Duration,
    /// Maximum number of mappings. The number of ports above 1023 limits it further.
    pub capacity: usize,
    /// True if a segment from the middle of an unknown connection creates a mapping, false if only a SYN does.
    pub adopts: bool,
    /// True if a flow gets the external port with the number of its inside port, provided that this port is free.
    /// False if ports are assigned in turn.
    pub preserves_ports: bool,
}

impl NatConfig {
    /// Creates settings with the times of the RFCs and 4096 mappings (a guess). Otherwise the NAT behaves like
    /// Linux: it adopts connections and preserves ports.
    pub fn new(external: Ipv4Addr) -> Self {
        NatConfig {
            external,
            established: Duration::from_secs(2 * 3600 + 4 * 60),
            // RFC 5382 section 5: "transitory connection idle-timeout".
            transitory: Duration::from_secs(4 * 60),
            // RFC 4787 section 4.3 recommends 5 minutes.
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
    /// Packets translated in either direction.
    pub translated: u64,
    /// Mappings created.
    pub mapped: u64,
    /// Packets dropped because they have no mapping and cannot create one.
    pub unknown: u64,
    /// Packets dropped because the table was full.
    pub full: u64,
    /// Packets dropped because they are incomplete or of an unknown protocol.
    pub unsupported: u64,
}

/// A NAT with one external IPv4 address for all inside hosts. Each pair of an inside and an outside endpoint has
/// its own mapping ("address and port-dependent", RFC 4787 section 4.1). Packets from the outside without a
/// mapping are dropped. IPv6 packets pass unchanged.
#[derive(Debug)]
pub struct Nat {
    config: NatConfig,
    mappings: BTreeMap<Flow, Mapping>,
    /// The flow that has each external port, by protocol and port.
    ports: BTreeMap<(u8, u16), Flow>,
    /// The port at which the search for a free port begins, if ports are assigned in turn.
    next_port: u16,
    counters: NatCounters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    protocol: u8,
    inside: SocketAddrV4,
    outside: SocketAddrV4,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mapping {
    /// The external port.
    port: u16,
    expires: Instant,
    /// True once a packet came from the outside.
    answered: bool,
    /// The first is true once the inside has sent a FIN, the second once the outside has. A RST sets both.
    ended: [bool; 2],
}

/// The reason why a packet is dropped.
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

/// The offsets of the source or the destination: of the address in an IPv4 header, and of the port after it.
#[derive(Debug, Clone, Copy)]
struct Side {
    addr: usize,
    port: usize,
}

const SRC: Side = Side { addr: 12, port: 0 };
const DST: Side = Side { addr: 16, port: 2 };

impl Nat {
    /// Creates a NAT without mappings.
    pub fn new(config: NatConfig) -> Self {
        Nat {
            config,
            mappings: BTreeMap::new(),
            ports: BTreeMap::new(),
            next_port: FIRST_PORT,
            counters: NatCounters::default(),
        }
    }

    /// Removes all mappings, as after a restart.
    pub fn forget(&mut self) {
        self.mappings.clear();
        self.ports.clear();
    }

    /// Changes the external address and removes all mappings, as after a link has reconnected.
    pub fn rebind(&mut self, external: Ipv4Addr) {
        self.config.external = external;
        self.forget();
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> NatCounters {
        self.counters
    }

    /// Returns the number of mappings. Expired mappings count until they are removed, when a packet needs such a
    /// mapping or its room.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Translates a packet in place.
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
        let flags = match protocol {
            ip::PROTO_TCP => tcp::Packet::new(&*payload)?.flags(),
            ip::PROTO_UDP if payload.len() >= udp::HEADER_LEN => Flags::EMPTY,
            _ => return Err(Refusal::Unsupported),
        };
        let [src, dst] = [SRC, DST].map(|side| endpoint(header, payload, side));
        let (side, from, to, flow) = match direction {
            Direction::Outbound => {
                let flow = Flow {
                    protocol,
                    inside: src,
                    outside: dst,
                };
                let port = self.port_of(now, flow, flags)?;
                (SRC, src, self.external(port), flow)
            }
            Direction::Inbound => {
                let flow = self.flow_at(now, protocol, dst, src)?;
                (DST, dst, flow.inside, flow)
            }
        };
        self.keep(now, flow, direction, flags);
        set_addr(header, side, *to.ip());
        rewrite(payload, protocol, side, (from, to));
        Ok(())
    }

    /// Returns the external endpoint with this port.
    fn external(&self, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(self.config.external, port)
    }

    /// Translates an ICMP error and the packet that it quotes (RFC 5508 section 4). An error about a flow without
    /// a mapping is refused.
    fn translate_error(
        &mut self,
        now: Instant,
        direction: Direction,
        (header, message): (&mut [u8], &mut [u8]),
    ) -> Result<(), Refusal> {
        // Types: destination unreachable, time exceeded, parameter problem.
        let is_error = message.first().is_some_and(|t| matches!(t, 3 | 11 | 12));
        let quoted = message.get(ICMP_HEADER_LEN..).filter(|_| is_error);
        let quoted = quoted.ok_or(Refusal::Unsupported)?;
        let inner_len = usize::from(*quoted.first().ok_or(Refusal::Unsupported)? & 0x0f) * 4;
        if inner_len < 20 || quoted.len() < inner_len + 4 {
            return Err(Refusal::Unsupported);
        }
        let (inner, ports) = quoted.split_at(inner_len);
        let protocol = inner[9];
        let [src, dst] = [SRC, DST].map(|side| endpoint(inner, ports, side));
        let (outer, side, to) = match direction {
            // The error quotes a packet from the inside as it was after its translation.
            Direction::Inbound => {
                let flow = self.flow_at(now, protocol, src, dst)?;
                (DST, SRC, flow.inside)
            }
            Direction::Outbound => {
                let flow = Flow {
                    protocol,
                    inside: dst,
                    outside: src,
                };
                let mapping = self.mappings.get(&flow).ok_or(Refusal::Unknown)?;
                (SRC, DST, self.external(mapping.port))
            }
        };
        set_addr(header, outer, *to.ip());
        // The transport checksum in the quoted packet stays as it is. Receivers cannot verify it anyway, because
        // payload is missing.
        edit(message, 2, |message| {
            let (inner, ports) = message[ICMP_HEADER_LEN..].split_at_mut(inner_len);
            set_addr(inner, side, *to.ip());
            set_port(ports, side, to.port());
        });
        Ok(())
    }

    /// Returns the flow whose external endpoint is `external` and whose outside endpoint is `outside`.
    fn flow_at(
        &mut self,
        now: Instant,
        protocol: u8,
        external: SocketAddrV4,
        outside: SocketAddrV4,
    ) -> Result<Flow, Refusal> {
        let key = (protocol, external.port());
        let flow = *self.ports.get(&key).ok_or(Refusal::Unknown)?;
        let is_known = *external.ip() == self.config.external
            && flow.outside == outside
            && self.is_current(now, flow);
        is_known.then_some(flow).ok_or(Refusal::Unknown)
    }

    /// Returns the external port of `flow`, for a packet from the inside. Creates a mapping if there is none.
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
        // Expired mappings are removed only when their room is needed.
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
        // The caller sets the expiry by `keep`.
        let mapping = Mapping {
            port,
            ..Mapping::default()
        };
        self.mappings.insert(flow, mapping);
        Ok(port)
    }

    /// Returns an external port that no mapping has. There is such a port, because the capacity is at most the
    /// number of ports and the table is not full here.
    fn free_port(&mut self, flow: Flow) -> u16 {
        let wanted = flow.inside.port();
        let mut port = match self.config.preserves_ports && wanted >= FIRST_PORT {
            true => wanted,
            false => self.next_port,
        };
        let next = |port: u16| port.checked_add(1).unwrap_or(FIRST_PORT);
        while self.ports.contains_key(&(flow.protocol, port)) {
            port = next(port);
        }
        if !self.config.preserves_ports {
            self.next_port = next(port);
        }
        port
    }

    /// Returns whether `flow` has a mapping that has not expired. Removes an expired mapping.
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

    /// Updates the state and the expiry of the mapping of `flow`, after a packet of the flow.
    fn keep(&mut self, now: Instant, flow: Flow, direction: Direction, flags: Flags) {
        let Some(mapping) = self.mappings.get_mut(&flow) else {
            return;
        };
        let from_outside = direction == Direction::Inbound;
        mapping.answered |= from_outside;
        mapping.ended[usize::from(from_outside)] |= flags.contains(Flags::FIN);
        if flags.contains(Flags::RST) {
            mapping.ended = [true; 2];
        }
        if flags.contains(Flags::SYN) && !from_outside {
            // A SYN opens a new connection on the same ports.
            mapping.ended = [false; 2];
        }
        let timeout = match (flow.protocol, mapping.answered, mapping.ended) {
            (ip::PROTO_UDP, ..) => self.config.udp,
            (_, false, _) | (.., [true, true]) => self.config.transitory,
            _ => self.config.established,
        };
        mapping.expires = now + timeout;
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

/// Returns one endpoint of a packet, from its IPv4 header (at least 20 bytes) and the ports after it.
fn endpoint(header: &[u8], ports: &[u8], side: Side) -> SocketAddrV4 {
    let (addr, port) = (&header[side.addr..][..4], &ports[side.port..][..2]);
    let addr = Ipv4Addr::new(addr[0], addr[1], addr[2], addr[3]);
    SocketAddrV4::new(addr, u16::from_be_bytes([port[0], port[1]]))
}

/// Replaces an address in an IPv4 header, and adjusts the header checksum.
fn set_addr(header: &mut [u8], side: Side, addr: Ipv4Addr) {
    edit(header, 10, |header| {
        header[side.addr..][..4].copy_from_slice(&addr.octets());
    });
}

fn set_port(ports: &mut [u8], side: Side, port: u16) {
    ports[side.port..][..2].copy_from_slice(&port.to_be_bytes());
}

/// Replaces a port in a TCP or UDP header. Adjusts the checksum for the new port and the new address, because it
/// covers both.
fn rewrite(payload: &mut [u8], protocol: u8, side: Side, (from, to): (SocketAddrV4, SocketAddrV4)) {
    set_port(payload, side, to.port());
    let field = if protocol == ip::PROTO_TCP { 16 } else { 6 };
    // In UDP, zero means that there is no checksum, and a computed zero is sent as all ones (RFC 768).
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
