//! Incoming packets: assigns them to connections, opens connections for SYNs, and answers segments that belong
//! to no connection.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use braid_wire::icmp::{TcpError, verify_v6_checksum};
use braid_wire::mptcp::{Capable, Join, MptcpOption, ResetReason};
use braid_wire::tcp::{self, Flags, Options};
use braid_wire::{Instant, Seq32, ip};

use super::{Outside, RxMeta, Stack, Transmit, TxChecksum};
use crate::buffer::{Packet, PacketBuffer, Payload};
use crate::mptcp::opening::JoinProof;
use crate::mptcp::subflow::Opens;
use crate::mptcp::{Connection, MAX_SUBFLOWS, Mode, capable, join, usable};
use crate::path::PathManager;
use crate::tcp::FourTuple;
use crate::{ConnId, FallbackCause, ListenerId, PathId};

/// The number of waiting answers at which no further RST is queued for a segment of an unknown connection. The
/// value is a guess. These RSTs only speed up the peer's recovery, and a flood of forged segments must not fill
/// the memory.
const MAX_OUT_OF_THE_BLUE_REPLIES: usize = 64;

/// The answer to a segment that belongs to no connection.
#[derive(Debug)]
pub(super) struct StatelessReply {
    pub path: PathId,
    pub tuple: FourTuple,
    pub repr: tcp::Repr,
}

/// The path, addresses and listener of an incoming connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub path: PathId,
    pub tuple: FourTuple,
    pub listener: ListenerId,
}

impl Stack {
    /// Processes an IP packet. Bad packets are counted and dropped.
    pub fn receive(&mut self, now: Instant, packet: &[u8], meta: RxMeta) {
        self.take_in(now, Packet::Lent(packet), meta);
    }

    /// Processes a packet like [`receive`](Self::receive), but mostly does not copy the payload of a large packet:
    /// the stack adopts blocks of `packet` and puts free blocks in their place. `packet` is empty afterwards.
    pub fn receive_from(&mut self, now: Instant, packet: &mut PacketBuffer, meta: RxMeta) {
        self.take_in(now, Packet::Buffered(packet), meta);
        packet.set_len(0);
    }

    /// Parses and verifies a packet, and passes it on by its protocol.
    // Conforms: 9293-3.1-1, 9293-3.10.7.1-2
    fn take_in(&mut self, now: Instant, packet: Packet<'_>, meta: RxMeta) {
        self.shared.stats.packets_in += 1;
        // Headers that do not fit the first part make the packet malformed.
        let [head, rest] = packet.parts();
        let Ok((ip, within)) = ip::Repr::parse_head(head, head.len() + rest.len()) else {
            self.shared.stats.malformed += 1;
            return;
        };
        let [segment, rest] = packet.parts_of(within.clone());
        match ip.protocol {
            ip::PROTO_TCP => {}
            // ICMP errors are short (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4), so one that continues in the
            // second part is malformed.
            ip::PROTO_ICMP | ip::PROTO_ICMPV6 if rest.is_empty() => {
                // The checksum of ICMPv6 covers the addresses of the IP header, which the parser of the message
                // does not have.
                let v6 = ip.src.is_ipv6();
                if v6 && !meta.checksum_ok && !verify_v6_checksum(ip.src, ip.dst, segment) {
                    self.shared.stats.bad_checksum += 1;
                    return;
                }
                if let Ok(error) = TcpError::parse(v6, segment) {
                    self.on_icmp(now, ip.dst, &error);
                }
                return;
            }
            _ => {
                self.shared.stats.malformed += 1;
                return;
            }
        }
        let mut tcp = tcp::Repr::new(0, 0, Flags::EMPTY);
        let Ok(payload) = tcp.parse_into(segment) else {
            self.shared.stats.malformed += 1;
            return;
        };
        if !meta.checksum_ok && !tcp::verify_checksum_of(ip.src, ip.dst, &[segment, rest]) {
            self.shared.stats.bad_checksum += 1;
            return;
        }
        let header_len = segment.len() - payload.len();
        let payload = Payload::new(packet, within.start + header_len..within.end);
        self.on_tcp(now, &ip, &tcp, payload, meta);
    }

    /// Passes a TCP segment to its connection, or handles a segment that belongs to no connection.
    fn on_tcp(
        &mut self,
        now: Instant,
        ip: &ip::Repr,
        tcp: &tcp::Repr,
        mut payload: Payload<'_>,
        meta: RxMeta,
    ) {
        let tuple = FourTuple {
            local: SocketAddr::new(ip.dst, tcp.dst_port),
            remote: SocketAddr::new(ip.src, tcp.src_port),
        };
        let outside = Outside {
            gso_size: meta.gso_size,
            marked: ip.traffic_class & ip::CE == ip::CE,
        };
        if let Some(&(conn, subflow)) = self.shared.demux.tuples.get(&tuple) {
            let needs_reset = self.with(now, conn, |c, ctx| {
                c.on_segment(ctx, subflow, tcp, &mut payload, outside)
            });
            if needs_reset == Some(true) {
                self.refuse(tuple, tcp, payload.len(), None);
            }
        } else if tcp.flags.contains(Flags::RST) {
            // A RST is never answered (RFC 9293 section 3.10.7.1).
            self.shared.stats.out_of_the_blue += 1;
        } else if tcp.flags.contains(Flags::SYN) && !tcp.flags.contains(Flags::ACK) {
            self.on_syn(now, tuple, tcp, &mut payload);
        } else if !self.on_stateless_ack(now, tuple, tcp, (&mut payload, outside)) {
            self.refuse(tuple, tcp, payload.len(), None);
        }
    }

    /// Returns the path that owns the local address of `tuple`. If no path owns it, returns the path of the listener
    /// that accepts connections to any address.
    fn path_of(&self, tuple: &FourTuple) -> Option<PathId> {
        let paths = &self.shared.paths;
        let owner = paths.iter().position(|p| p.config.owns(tuple.local.ip()));
        owner
            .map(|i| PathId(i as u8))
            .or_else(|| self.listeners.any_path())
    }

    /// Handles a SYN that belongs to no subflow: a join, or the opening of a connection.
    // Conforms: 8684-3.2-10
    fn on_syn(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        tcp: &tcp::Repr,
        payload: &mut Payload<'_>,
    ) {
        let Some(path) = self.path_of(&tuple) else {
            self.shared.stats.out_of_the_blue += 1;
            return;
        };
        if let Some(join) = join(tcp) {
            if !self.on_join_syn(now, path, tuple, tcp, join) {
                self.shared.stats.joins_refused += 1;
                let reason = ResetReason::MptcpSpecific;
                self.refuse(tuple, tcp, payload.len(), Some(reason));
            }
            return;
        }
        match self.arrival(tuple) {
            Some(at) => self.on_initial_syn(now, at, tcp, payload),
            None => self.refuse(tuple, tcp, payload.len(), None),
        }
    }

    /// Returns path and listener of an incoming connection to `tuple.local`; `None` if there is no listener.
    pub(super) fn arrival(&self, tuple: FourTuple) -> Option<Arrival> {
        let path = self.path_of(&tuple)?;
        Some(Arrival {
            path,
            tuple,
            listener: self.listeners.find(tuple.local)?,
        })
    }

    /// Handles a SYN that opens a connection. The SYN is dropped if there are too many connections, and answered
    /// without state if too many handshakes are under way.
    // Conforms: 8684-3.1-1, 8684-3.1-3, 8684-3.1-13
    fn on_initial_syn(
        &mut self,
        now: Instant,
        at: Arrival,
        tcp: &tcp::Repr,
        payload: &mut Payload<'_>,
    ) {
        if self.table.len() >= self.shared.config.max_connections {
            // The peer repeats its SYN, and a silent connection may be ended by then to make room.
            self.shared.stats.syns_dropped += 1;
            self.reclaim(now, None);
            return;
        }
        let config = &self.shared.config;
        if self.table.half_open() >= config.max_half_open {
            self.answer_stateless(now, at, tcp);
            return;
        }
        // `NotRequested` stands for no fallback.
        let (mode, cause) = match capable(tcp) {
            Some(Capable::Syn { version, flags }) if usable(version, flags) => {
                let checksum = flags.checksum_required || config.checksum;
                let local = self.shared.fresh_keys();
                let mode = Mode::Accepting { local, checksum };
                (mode, FallbackCause::NotRequested)
            }
            _ => (Mode::Tcp, FallbackCause::PeerSynPlain),
        };
        let admission = self.admit_fast_open(now, &at.tuple, tcp);
        let id = self.admit(now, at, tcp, mode);
        if cause != FallbackCause::NotRequested {
            self.plain(now, id, cause);
        }
        self.open_fast(now, id, admission, (tcp, payload));
    }

    /// Creates the connection that `syn` opens. The caller has to run [`after`](Self::after) for it.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        at: Arrival,
        syn: &tcp::Repr,
        mode: Mode,
    ) -> ConnId {
        let id = self.table.reserve();
        let paths = PathManager::accepted(at.tuple.remote);
        let mut conn = Connection::new(id, paths, mode, (self.strategy)(), now);
        conn.transport.listener = Some(at.listener);
        conn.paths.set_initial_local(at.tuple.local);
        let mut ctx = self.shared.ctx(now);
        let subflow = conn.new_subflow(&mut ctx, at.path, at.tuple, Opens::Connection);
        conn.transport.accept_subflow(&mut ctx, subflow, syn);
        self.table.put(conn);
        id
    }

    /// Handles the SYN of a join (RFC 8684 section 3.2). Returns whether the join is accepted.
    // Conforms: 8684-3.2-2, 8684-3.2-3
    fn on_join_syn(
        &mut self,
        now: Instant,
        path: PathId,
        tuple: FourTuple,
        tcp: &tcp::Repr,
        join: Join,
    ) -> bool {
        let Join::Syn {
            backup,
            address_id,
            token,
            nonce,
        } = join
        else {
            return false;
        };
        // Conforms: 8684-3.2-1
        let Some(&id) = self.shared.demux.tokens.get(&token) else {
            return false;
        };
        let max = self.shared.config.max_subflows.min(MAX_SUBFLOWS);
        self.with(now, id, |conn, ctx| {
            let is_denied = ctx.shared.config.deny_join_initial
                && conn.paths.initial_local() == Some(tuple.local);
            if !conn.transport.is_open() || is_denied {
                return false;
            }
            let Some(proves_secret) = conn.admit_join(ctx, nonce, max) else {
                return false;
            };
            let opens = Opens::Join {
                local_nonce: ctx.shared.rng.u32(),
                remote_nonce: nonce,
            };
            let mut subflow = conn.new_subflow(ctx, path, tuple, opens);
            subflow.priority.peer = backup;
            subflow.ids.peer = address_id;
            if proves_secret {
                subflow.handshake.proof = JoinProof::Secret;
            }
            conn.transport.accept_subflow(ctx, subflow, tcp);
            true
        })
        .unwrap_or(false)
    }

    /// Queues a RST in answer to a segment of no connection (RFC 9293 section 3.10.7.1).
    // Conforms: 9293-3.10.7.1-1
    fn refuse(
        &mut self,
        tuple: FourTuple,
        tcp: &tcp::Repr,
        payload: usize,
        reason: Option<ResetReason>,
    ) {
        self.shared.stats.out_of_the_blue += 1;
        // No RST is sent from an address that is not ours.
        let Some(path) = self.path_of(&tuple) else {
            return;
        };
        if self.stateless_replies.len() >= MAX_OUT_OF_THE_BLUE_REPLIES {
            return;
        }
        let bit = |flag| u32::from(tcp.flags.contains(flag));
        // SYN and FIN take one sequence number each.
        let len = payload as u32 + bit(Flags::SYN) + bit(Flags::FIN);
        let (seq, flags) = match tcp.flags.contains(Flags::ACK) {
            true => (tcp.ack, Flags::RST),
            false => (Seq32(0), Flags::RST | Flags::ACK),
        };
        let mut options = Options::default();
        options
            .mptcp
            .extend(reason.map(|reason| MptcpOption::Reset {
                transient: false,
                reason,
            }));
        self.stateless_replies.push_back(StatelessReply {
            path,
            tuple,
            repr: tcp::Repr {
                src_port: tuple.local.port(),
                dst_port: tuple.remote.port(),
                seq,
                ack: if flags.contains(Flags::ACK) {
                    tcp.seq.add(len)
                } else {
                    Seq32(0)
                },
                flags,
                window: 0,
                options,
            },
        });
    }

    /// Writes the headers of an answer to a segment of no connection.
    pub(super) fn transmit_stateless_reply(&mut self, reply: &StatelessReply) -> Transmit<'_> {
        let (src, dst) = (reply.tuple.local.ip(), reply.tuple.remote.ip());
        let header_len = reply.repr.header_len();
        let ip = ip::Repr {
            src,
            dst,
            protocol: ip::PROTO_TCP,
            payload_len: header_len,
            hop_limit: 64,
            traffic_class: 0,
        };
        let ip_len = ip.header_len();
        let scratch = &mut self.shared.scratch;
        ip.emit(&mut scratch[..ip_len]);
        reply.repr.emit(&mut scratch[ip_len..ip_len + header_len]);
        tcp::fill_checksum(src, dst, &mut scratch[ip_len..ip_len + header_len], &[]);
        Transmit {
            path: reply.path,
            header: &self.shared.scratch[..ip_len + header_len],
            payload: ArrayVec::new(),
            gso_size: 0,
            checksum: TxChecksum::Done,
            v6: src.is_ipv6(),
            info: None,
        }
    }

    /// Handles an ICMP error, which quotes one of our packets. The local address is taken from the destination
    /// `to` of the error, not from the quoted packet, because some NATs translate only the destination.
    fn on_icmp(&mut self, now: Instant, to: IpAddr, error: &TcpError) {
        let tuple = FourTuple {
            local: SocketAddr::new(to, error.src_port),
            remote: SocketAddr::new(error.dst, error.dst_port),
        };
        let Some(&(conn, subflow)) = self.shared.demux.tuples.get(&tuple) else {
            return;
        };
        self.with(now, conn, |c, ctx| {
            c.on_icmp(ctx, subflow, error.kind, error.seq)
        });
    }
}
