//! Fuzz targets of `braid-proxy`: what anybody may say to a server.
//!
//! No input makes a server panic, connect to anything that no box asked for, or keep anything of a
//! connection that is over; and boxes are served afterwards.

#[path = "../../../crates/proxy/tests/world/mod.rs"]
#[expect(dead_code, reason = "the tests of these cores use the rest")]
mod world;

use core::time::Duration;

use bolero::{TypeGenerator, check};
use braid_proxy::FlowHints;
use braid_proxy::config::ServerTimeouts;
use braid_proxy::socks::{
    ClientHandshake, ClientStep, EarlyHints, EarlyHintsStep, ServerHandshake, ServerStep,
};
use world::downstream::Content;
use world::tls::{Program, REQUEST};
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
            ServerHandshake::anonymous,
            ServerHandshake::authenticated,
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
        let mut early_hints = EarlyHints::default();
        pieces.feed(|bytes| {
            let (taken, step) = early_hints.input(bytes);
            (taken, step == EarlyHintsStep::More)
        });
        let _ = FlowHints::decode(&pieces.bytes);
    });
}

/// The bytes that a user sends with the first flight.
const SAID: &[u8] = b"hello";

/// An edit of a first flight that was heard on the way.
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

/// The handshake and the record layer: a first flight with a good ticket, which was held back on the
/// way, as somebody else sends it.
#[test]
fn first_flights() {
    check!()
        .with_type::<Vec<Edit>>()
        .for_each(|edits: &Vec<Edit>| {
            let mut w = World::met(1, Setup::default());
            w.content(CONTENT, Content::Echoes);
            let original = w.hold_first_flight(SAID);
            let mut flight = original.clone();
            let before = w.server_downstream().attempts.len();
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
            let begun = w.now;
            let conn = w.raw_connect();
            let mut said = 0;
            for (at, ms) in pauses.into_iter().chain([(flight.len(), 0)]) {
                let at = at.min(flight.len());
                let _ = w.raw.write(w.now, conn, &flight[said.min(at)..at]);
                said = said.max(at);
                w.run_for(Duration::from_millis(ms.into()));
            }
            w.run_for(Duration::from_millis(100));
            let timeout = ServerTimeouts::default().handshake;
            let in_time = w.now.saturating_since(begun) < timeout;
            let served = w.server_downstream().attempts.split_off(before);
            if flight == original && in_time {
                assert_eq!(served.len(), 1, "nothing was changed");
            }
            for addr in served {
                assert_eq!(addr, CONTENT.parse().expect("an address"));
                let streams = &w.server_downstream().streams;
                let (_, stream) = streams.last_key_value().expect("it was connected to");
                assert!(SAID.starts_with(&stream.got), "nobody said that");
            }
            // What nobody proves in time is given up; who was let in may stay.
            w.raw.abort(w.now, conn);
            w.run_for(Duration::from_secs(30));
            assert_eq!(w.server().connections(), 0, "something is left");
            let user = w.open(CONTENT, b"hello", false);
            w.run_until(|w| w.user(user).got == b"hello");
        });
}

/// A message of somebody with a key.
#[derive(Debug, Clone, TypeGenerator)]
enum Say {
    Record(u8, Vec<u8>),
    Request,
    FlowEnd,
    Close,
    NextKey,
    Raw(Vec<u8>),
    /// With what stands before it; then the server has time to answer.
    Now(Vec<u8>),
}

/// Records of a user who has a key, in any order.
#[test]
fn records() {
    check!()
        .with_type::<(bool, Vec<Say>)>()
        .for_each(|(asks, words): &(bool, Vec<Say>)| {
            let mut w = World::ready(1, Setup::default());
            w.content(CONTENT, Content::Echoes);
            let mut program = match asks {
                true => Program::asking(&mut w, &[]),
                false => Program::connect(&mut w),
            };
            for word in words {
                match word {
                    // Kinds of a level without a key are sent with any bytes for a tag.
                    Say::Record(kind, bytes) => program.record(*kind, bytes),
                    Say::Request => program.data(&REQUEST),
                    Say::FlowEnd => program.end(),
                    Say::Close => program.close(),
                    Say::NextKey => program.renew(),
                    Say::Raw(bytes) => program.out.extend(bytes),
                    Say::Now(bytes) => {
                        program.data(bytes);
                        program.try_go_on(&mut w);
                    }
                }
                if program.out.len() > 100_000 {
                    break;
                }
            }
            program.try_go_on(&mut w);
            w.raw.abort(w.now, program.conn);
            w.run_for(Duration::from_secs(30));
            let left = (w.server().connections(), w.server().waiting());
            assert_eq!(left, (0, 0), "something is left");
            let user = w.open(CONTENT, b"hello", false);
            w.run_until(|w| w.user(user).got == b"hello");
        });
}
