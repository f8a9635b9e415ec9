//! The shared part of box and server: a core between two stacks.

use core::net::IpAddr;

use braid_engine::{PathId, RxMeta, Stack, Transmit};
use braid_proxy::app::{self, Core, Ctx};
use braid_wire::Instant;

use super::DownstreamTcp;
use crate::host::{destination, segment, send_all};
use crate::node::Turn;
use crate::oracle::Oracle;

/// Most rounds in which a core finds work at one time. Each round moves bytes into bounded buffers, so
/// more rounds mean a loop without end.
const MAX_ROUNDS: usize = 100_000;

/// A core with its stacks, driven in the order of the event loop on Linux.
#[derive(Debug)]
pub(super) struct Machine<C> {
    pub(super) core: C,
    pub(super) stack: Stack,
    pub(super) downstream: DownstreamTcp,
    /// The oracle that watches `stack`.
    pub(super) oracle: Oracle,
}

impl<C: Core> Machine<C> {
    /// Hands a packet to the MPTCP side.
    pub(super) fn receive(&mut self, turn: &Turn<'_>, packet: &[u8]) {
        self.stack.receive(turn.now, packet, meta(turn));
        self.oracle.on_received(turn.now, packet, &self.stack);
    }

    /// Hands a packet to the downstream sockets.
    pub(super) fn receive_local(&mut self, turn: &Turn<'_>, packet: &[u8]) {
        self.downstream.set_now(turn.now);
        self.downstream.receive(packet, meta(turn));
    }

    /// Serves timers, and gives the core its events until there are none.
    pub(super) fn drain(&mut self, now: Instant) {
        self.downstream.set_now(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for _ in 0..MAX_ROUNDS {
            let (core, mut ctx) = self.core(now);
            app::serve_timers(core, &mut ctx);
            if due(self.downstream.next_timeout()) {
                self.downstream.handle_timeout();
            }
            let mut idle = true;
            while let Some(event) = self.stack.poll_event() {
                self.oracle.on_event(now, &event);
                let (core, mut ctx) = self.core(now);
                core.on_engine_event(&mut ctx, event);
                idle = false;
            }
            while let Some(event) = self.downstream.next_event() {
                let (core, mut ctx) = self.core(now);
                core.on_downstream_event(&mut ctx, event);
                idle = false;
            }
            if idle && !due(self.next_timeout()) {
                return;
            }
        }
        panic!("time stands still at {now}: {:?}", self.next_timeout());
    }

    /// Returns the core and the context of its calls.
    fn core(&mut self, now: Instant) -> (&mut C, Ctx<'_>) {
        let ctx = Ctx {
            now,
            stack: &mut self.stack,
            downstream: &mut self.downstream,
        };
        (&mut self.core, ctx)
    }

    /// Sends the packets of both sides, each by the interface that is named for it. Returns whether there
    /// was any packet.
    pub(super) fn transmit(
        &mut self,
        turn: &mut Turn<'_>,
        outer: impl Fn(PathId, IpAddr) -> u32,
        inner: impl Fn(IpAddr) -> u32,
    ) -> bool {
        let outer = |t: &Transmit<'_>| outer(t.path, destination(t.header));
        let mut any = send_all(
            &mut self.stack,
            &mut self.oracle,
            turn,
            (outer, |_: &_, _| ()),
        );
        self.downstream.set_now(turn.now);
        while let Some(transmit) = self.downstream.poll_transmit() {
            let iface = inner(destination(transmit.header));
            segment(&transmit, turn, iface);
            any = true;
        }
        // The oracles judge timers and bounds only once nothing is left to send.
        if !any {
            self.oracle.end_turn(turn.now, &self.stack);
            turn.report(self.oracle.take());
            turn.report(self.downstream.take_violations());
        }
        any
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let times = [
            self.stack.next_timeout(),
            self.core.next_timeout(),
            self.downstream.next_timeout(),
        ];
        times.into_iter().flatten().min()
    }
}

fn meta(turn: &Turn<'_>) -> RxMeta {
    RxMeta {
        checksum_ok: !turn.checksums,
        gso_size: 0,
    }
}
