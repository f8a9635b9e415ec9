//! The common part of the box and server nodes: a proxy core between an MPTCP stack and downstream sockets.

use core::net::{IpAddr, SocketAddr};

use braid_engine::{PathId, Transmit};
use braid_proxy::app::{self, Core, Ctx};
use braid_wire::Instant;

use super::DownstreamTcp;
use crate::node::{Packet, Turn};
use crate::udp::UdpHeader;
use crate::watched::{WatchedStack, destination, meta};

/// The maximum number of rounds of [`Machine::drain`] at one time. 100,000 is a guess, far above any legitimate
/// number: rounds only move bytes between bounded buffers. A core that needs more rounds loops for ever.
const MAX_ROUNDS: usize = 100_000;

/// A core with its stacks. It runs timers and events in the order of the event loop on Linux.
#[derive(Debug)]
pub(super) struct Machine<C> {
    pub(super) core: C,
    pub(super) engine: WatchedStack,
    pub(super) downstream: DownstreamTcp,
    /// The datagram of the tunnel that is being sent.
    pub(super) datagram: Vec<u8>,
}

impl<C: Core> Machine<C> {
    /// Hands a packet to the MPTCP stack.
    pub(super) fn receive(&mut self, turn: &Turn<'_>, packet: &[u8]) {
        self.engine.receive(turn.now, packet, meta(turn));
    }

    /// Hands a packet to the downstream sockets.
    pub(super) fn receive_downstream(&mut self, turn: &Turn<'_>, packet: &[u8]) {
        self.downstream.set_now(turn.now);
        self.downstream.receive(packet, meta(turn));
    }

    /// Hands a packet with a datagram of the tunnel to the core. `path` is the socket that it came to.
    pub(super) fn receive_datagram(&mut self, turn: &Turn<'_>, path: PathId, packet: &mut [u8]) {
        if let Some((header, payload)) = UdpHeader::parse(turn, packet) {
            let start = packet.len() - payload.len();
            self.core
                .on_datagram(turn.now, path, header.src, &mut packet[start..]);
        }
    }

    /// Sends the datagrams of the tunnel. `from` returns the own address and the interface for a path and a remote
    /// address; `None` drops the datagram.
    pub(super) fn send_datagrams(
        &mut self,
        turn: &mut Turn<'_>,
        from: impl Fn(PathId, SocketAddr) -> Option<(SocketAddr, u32)>,
    ) {
        loop {
            self.datagram.clear();
            let next = self.core.poll_datagram(turn.now, &mut self.datagram);
            let Some(transmit) = next else {
                return;
            };
            let Some((src, iface)) = from(transmit.path, transmit.remote) else {
                continue;
            };
            let fill = |payload: &mut [u8]| payload.copy_from_slice(&self.datagram);
            let packet = UdpHeader::new(src, transmit.remote).packet(turn, transmit.len, fill);
            turn.send(iface, packet);
        }
    }

    /// Returns the next packet that has come out of the tunnel.
    pub(super) fn next_packet(&mut self, turn: &mut Turn<'_>) -> Option<Packet> {
        let inner = self.core.poll_packet()?;
        let mut bytes = turn.buffer();
        bytes.extend_from_slice(inner);
        Some(Packet::new(bytes))
    }

    /// Runs due timers, hands events to the core, and sends the packets of the MPTCP stack and of the downstream
    /// sockets, until nothing is left to do. `stack_iface` returns the interface for a path and a destination;
    /// `downstream_iface` returns the interface for a destination.
    pub(super) fn wake(
        &mut self,
        turn: &mut Turn<'_>,
        stack_iface: impl Fn(PathId, IpAddr) -> u32,
        downstream_iface: impl Fn(IpAddr) -> u32,
    ) {
        let stack_iface = |t: &Transmit<'_>| stack_iface(t.path, destination(t));
        let downstream_iface = |t: &Transmit<'_>| downstream_iface(destination(t));
        // Sending can cause further events, such as room in a send buffer.
        loop {
            self.drain(turn.now);
            let sent = self.engine.send_all(turn, stack_iface, |_, _| ());
            if !self.downstream.send_all(turn, downstream_iface) && !sent {
                break;
            }
        }
        turn.report(self.engine.end_turn(turn.now));
        turn.report(self.downstream.take_violations());
    }

    /// Runs due timers and hands events to the core, until there is neither a due timer nor an event.
    fn drain(&mut self, now: Instant) {
        self.downstream.set_now(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for _ in 0..MAX_ROUNDS {
            self.with_core(now, app::serve_timers);
            if due(self.downstream.next_timeout()) {
                self.downstream.handle_timeout();
            }
            let mut idle = true;
            while let Some(event) = self.engine.poll_event(now) {
                self.with_core(now, |core, ctx| core.on_engine_event(ctx, event));
                idle = false;
            }
            while let Some(event) = self.downstream.next_event() {
                self.with_core(now, |core, ctx| core.on_downstream_event(ctx, event));
                idle = false;
            }
            if idle && !due(self.next_timeout()) {
                return;
            }
        }
        let next = self.next_timeout();
        panic!("the core finds work without end at {now}; its next timeout is {next:?}");
    }

    /// Calls `f` with the core and the context that its methods take.
    pub(super) fn with_core(&mut self, now: Instant, f: impl FnOnce(&mut C, &mut Ctx<'_>)) {
        let mut ctx = Ctx {
            now,
            stack: &mut self.engine.stack,
            downstream: &mut self.downstream,
        };
        f(&mut self.core, &mut ctx);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        Instant::earliest([
            self.engine.stack.next_timeout(),
            self.core.next_timeout(),
            self.downstream.next_timeout(),
        ])
    }
}
