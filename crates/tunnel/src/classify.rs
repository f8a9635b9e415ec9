//! The flow of an inner packet, by addresses, protocol and ports.

use core::net::IpAddr;

use braid_wire::{Rng, ip};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

/// Protocols whose first four bytes are two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// The fields that all packets of a flow have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    /// Zero for protocols without ports, and for fragments: only the first fragment has ports, and all must stay in one
    /// flow.
    pub ports: [u8; 4],
}

impl FlowKey {
    /// Returns the key of an IP packet that fills `packet`, or `None` if it is none.
    pub fn of(packet: &[u8]) -> Option<FlowKey> {
        let view = ip::Packet::new(packet).ok()?;
        if view.total_len() != packet.len() {
            return None;
        }
        let (protocol, ports) = match view.transport() {
            Ok((protocol, payload)) if WITH_PORTS.contains(&protocol) => (
                protocol,
                payload.first_chunk::<4>().copied().unwrap_or_default(),
            ),
            Ok((protocol, _)) => (protocol, [0; 4]),
            Err(_) => (view.next_header(), [0; 4]),
        };
        Some(FlowKey {
            src: view.src(),
            dst: view.dst(),
            protocol,
            ports,
        })
    }

    /// Returns the key of packets in the other direction.
    pub fn reversed(self) -> FlowKey {
        let [a, b, c, d] = self.ports;
        FlowKey {
            src: self.dst,
            dst: self.src,
            protocol: self.protocol,
            ports: [c, d, a, b],
        }
    }

    /// Returns source and destination port, if packets of the flow show them.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let [a, b, c, d] = self.ports;
        let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        (ports != (0, 0)).then_some(ports)
    }
}

/// The numbers of flows.
#[derive(Debug)]
pub(crate) struct FlowNumbers {
    numbers: HashMap<FlowKey, u16, SeedableRandomState>,
    /// The key of each number.
    keys: Vec<FlowKey>,
    max: u16,
}

impl FlowNumbers {
    pub fn new(max: u16, rng: &mut Rng) -> Self {
        let hasher = SeedableRandomState::with_seed(rng.u64(), SharedSeed::global_fixed());
        FlowNumbers {
            numbers: HashMap::with_hasher(hasher),
            keys: Vec::new(),
            max: max.max(1),
        }
    }

    /// Returns the number of the flow, and true if the flow is new. A new flow gets an unused number or, if all are
    /// used, the number that `evict` returns. The flow that had this number is forgotten.
    pub fn number(&mut self, key: FlowKey, evict: impl FnOnce() -> u16) -> (u16, bool) {
        if let Some(&number) = self.numbers.get(&key) {
            return (number, false);
        }
        let number = if self.keys.len() < usize::from(self.max) {
            self.keys.push(key);
            (self.keys.len() - 1) as u16
        } else {
            let number = evict();
            let old = &mut self.keys[usize::from(number)];
            self.numbers.remove(&*old);
            *old = key;
            number
        };
        self.numbers.insert(key, number);
        (number, true)
    }

    /// Returns the number of a flow that has one.
    pub fn get(&self, key: &FlowKey) -> Option<u16> {
        self.numbers.get(key).copied()
    }

    /// Returns the key of each number.
    pub fn keys(&self) -> &[FlowKey] {
        &self.keys
    }

    /// Returns how many numbers are in use.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Returns the key of UDP packets from 10.0.0.1, port 5000, to 192.0.2.`last`, port 53.
#[cfg(test)]
pub(crate) fn key(last: u8) -> FlowKey {
    FlowKey {
        src: IpAddr::from([10, 0, 0, 1]),
        dst: IpAddr::from([192, 0, 2, last]),
        protocol: 17,
        ports: [0x13, 0x88, 0, 53],
    }
}
