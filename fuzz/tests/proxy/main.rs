//! Fuzz targets of `braid-proxy`: what anybody may say to a server.
//!
//! No input makes a server panic, connect to anything that no box asked for, or keep anything of a
//! connection that is over; and boxes are served afterwards.

#[path = "../../../crates/proxy/tests/world/mod.rs"]
mod world;

use core::time::Duration;

use bolero::{TypeGenerator, check};
use braid_proxy::FlowHints;
use braid_proxy::socks::{
    ClientHandshake, ClientStep, Foreword, ForewordStep, ServerHandshake, ServerStep,
};
use braid_wire::{ip, tcp};
use world::local::Content;
use world::{CONTENT, Setup, World};

/// Bytes that may come in pieces of any length.
#[derive(Debug, Clone, TypeGenerator)]
struct Pieces {
    bytes: Vec<u8>,
    lengths: [u8; 4],
}

impl Pieces {
    /// Hands the pieces to `input`, which says how many bytes it took and whether there is more to say.
    fn feed(&self, mut input: impl FnMut(&[u8]) -> (usize, bool)) {
        let mut rest = &self.bytes[..];
        for n in self.lengths.iter().cycle().take(64) {
            let (mut piece, after) = rest.split_at(rest.len().min(usize::from(*n) + 1));
            // Each step ends a message, and there are not many.
            for _ in 0..16 {
                let (taken, more) = input(piece);
                assert!(taken <= piece.len());
                piece = &piece[taken..];
                if !more {
                    return;
                }
            }
            rest = after;
        }
    }
}

/// Everything of SOCKS5 that comes from elsewhere.
#[test]
fn socks() {
    check!().with_type::<Pieces>().for_each(|pieces| {
        for fresh in [
            ServerHandshake::default,
            ServerHandshake::open,
            ServerHandshake::proven,
        ] {
            let mut server = fresh();
            pieces.feed(|bytes| {
                let (taken, step) = server.input(bytes);
                if let ServerStep::Credentials { .. } = step {
                    server.accepted();
                }
                let over = matches!(step, ServerStep::Failed(_) | ServerStep::Request(_));
                (taken, !over)
            });
        }
        for proven in [false, true] {
            let mut client = ClientHandshake::new(proven);
            pieces.feed(|bytes| {
                let (taken, step) = client.input(bytes);
                (taken, step == ClientStep::More)
            });
        }
        let mut foreword = Foreword::default();
        pieces.feed(|bytes| {
            let (taken, step) = foreword.input(bytes);
            (taken, step == ForewordStep::More)
        });
        let _ = FlowHints::decode(&pieces.bytes);
    });
}

/// What happens to a first flight that was heard on the way.
#[derive(Debug, Clone, TypeGenerator)]
struct Edit {
    at: u16,
    what: What,
}

#[derive(Debug, Clone, TypeGenerator)]
enum What {
    Flip(u8),
    Cut(u8),
    Insert(Vec<u8>),
    Repeat(u8),
    /// The rest waits so many milliseconds.
    Pause(u8),
}

/// The handshake and the record layer: a first flight with a ticket, of a box that was served, as
/// somebody else sends it.
#[test]
fn first_flights() {
    check!()
        .with_type::<Vec<Edit>>()
        .for_each(|edits: &Vec<Edit>| {
            let mut w = World::met(1, Setup::default());
            w.content(CONTENT, Content::Echoes);
            let mut flight = first_flight(&mut w);
            let served = w.server_local().attempts.len();
            let mut pauses = Vec::new();
            for Edit { at, what } in edits {
                let at = usize::from(*at) % (flight.len() + 1);
                match what {
                    What::Flip(bits) => {
                        if let Some(byte) = flight.get_mut(at) {
                            *byte ^= bits;
                        }
                    }
                    What::Cut(n) => drop(flight.drain(at..flight.len().min(at + usize::from(*n)))),
                    What::Insert(bytes) => drop(flight.splice(at..at, bytes.iter().copied())),
                    What::Repeat(n) => {
                        let end = flight.len().min(at + usize::from(*n));
                        flight.extend_from_within(at..end);
                    }
                    What::Pause(ms) => pauses.push((at, *ms)),
                }
            }
            pauses.sort_unstable();
            let conn = w.raw_connect();
            let mut said = 0;
            for (at, ms) in pauses.into_iter().chain([(flight.len(), 0)]) {
                let at = at.min(flight.len());
                let _ = w.raw.write(w.now, conn, &flight[said.min(at)..at]);
                said = said.max(at);
                w.run_for(Duration::from_millis(ms.into()));
            }
            w.run_for(Duration::from_secs(30));
            assert_eq!(
                w.server_local().attempts.len(),
                served,
                "it served somebody"
            );
            assert_eq!(w.server().connections(), 0, "something is left");
            let user = w.open(CONTENT, b"hello", false);
            w.run_until(|w| w.user(user).got == b"hello");
        });
}

/// What a box says up to the server's answer.
fn first_flight(w: &mut World) -> Vec<u8> {
    w.wire = Some(Vec::new());
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    w.boxed.local.break_stream(user);
    w.run_for(Duration::from_millis(200));
    let mut flight = Vec::new();
    for (to_server, packet) in w.wire.take().expect("it was watched") {
        let (_, segment) = ip::Repr::parse(&packet).expect("a packet");
        let segment = tcp::Packet::new(segment).expect("a segment");
        match (to_server, segment.payload()) {
            (_, []) => {}
            (true, payload) => flight.extend_from_slice(payload),
            (false, _) => break,
        }
    }
    flight
}
