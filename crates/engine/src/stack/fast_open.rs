//! The server's side of TCP Fast Open (RFC 7413): cookies, and how many connections may be open before
//! their handshake is through.

use core::time::Duration;
use std::collections::VecDeque;

use braid_wire::Instant;
use braid_wire::tcp::{self, FastOpenCookie, Flags};

use super::Stack;
use crate::buffer::Payload;
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::{Config, ConnId};

/// A cookie is taken so long at least, and twice as long at most.
const PERIOD: Duration = Duration::from_secs(12 * 3600);
/// Bytes of a cookie: as many as there is room for beside timestamps and a key in a SYN/ACK (RFC 7413
/// section 4.1.1: 4 to 16). To guess one takes 2^47 SYNs on average.
const LEN: usize = 6;
/// Tells these hashes from others of the same secret.
const USE: [u8; 8] = *b"fastopen";
/// A connection that ends before its handshake is through counts for so long as if it were still under
/// way, however it ended: who forges SYNs gains nothing by a victim that answers by RST (RFC 7413 section
/// 5.1), nor by an application that gives up. Longer than SYN/ACKs are repeated.
const ENDED_COUNTS: Duration = Duration::from_secs(60);

/// Connections whose SYN brought payload and that ended before their handshake was through, by when they
/// cease to count.
#[derive(Debug, Default)]
pub(super) struct EndedEarly(VecDeque<Instant>);

impl EndedEarly {
    pub fn note(&mut self, now: Instant) {
        self.0.push_back(now + ENDED_COUNTS);
    }

    fn count(&mut self, now: Instant) -> usize {
        while self.0.front().is_some_and(|until| *until <= now) {
            self.0.pop_front();
        }
        self.0.len()
    }
}

/// What follows from the fast-open option of a SYN.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// A cookie for the SYN/ACK.
    pub cookie: Option<FastOpenCookie>,
    /// The payload may be taken.
    pub data: bool,
}

/// The cookie of whoever is behind the far address of `tuple`. The ports do not matter: later
/// connections have others.
fn cookie(secret: &Secret, tuple: &FourTuple, period: u64) -> FastOpenCookie {
    let mut ends = *tuple;
    ends.local.set_port(0);
    ends.remote.set_port(0);
    let mut more = [0; 16];
    more[..8].copy_from_slice(&USE);
    more[8..].copy_from_slice(&period.to_be_bytes());
    let [a, b, ..] = secret.hash(&ends, &more);
    let bytes = u64::from(a) << 32 | u64::from(b);
    bytes.to_be_bytes().into_iter().take(LEN).collect()
}

impl Admission {
    // Conforms: 7413-4.1.2-1, 7413-4.1.2-2, 7413-4.2.2-5
    fn of(secret: &Secret, now: Instant, tuple: &FourTuple, option: &FastOpenCookie) -> Admission {
        let period = now.as_nanos() / PERIOD.as_nanos() as u64;
        let fresh = cookie(secret, tuple, period);
        let valid = *option == fresh;
        let old = || period > 0 && *option == cookie(secret, tuple, period - 1);
        Admission {
            data: valid || old(),
            cookie: (!valid).then_some(fresh),
        }
    }
}

impl Stack {
    /// What to do with the fast-open option of a SYN, if anything. Past the bound it is as if there
    /// were none: an ordinary handshake.
    // Conforms: 7413-4.2-1, 7413-5.1-1
    pub(super) fn admit_fast_open(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        syn: &tcp::Repr,
    ) -> Admission {
        let Config {
            fast_open,
            max_fast_open,
            ..
        } = self.shared.config;
        let option = syn.options.fast_open.as_ref().filter(|_| fast_open);
        let pending = self.table.fast_open() + self.ended_early.count(now);
        match option {
            Some(option) if pending < max_fast_open => {
                let admission = Admission::of(&self.shared.secret, now, tuple, option);
                Admission {
                    data: admission.data && !syn.flags.contains(Flags::FIN),
                    ..admission
                }
            }
            _ => Admission::default(),
        }
    }

    /// Gives a connection that was just admitted what its SYN brought.
    pub(super) fn open_fast(
        &mut self,
        now: Instant,
        id: ConnId,
        admission: Admission,
        (syn, payload): (&tcp::Repr, &mut Payload<'_>),
    ) {
        let taken = self.with(now, id, |conn, ctx| {
            conn.transport.subflows[0].handshake.cookie = admission.cookie;
            let payload = payload.piece(0, payload.len());
            admission.data && conn.accept_syn_data(ctx, syn.window, payload)
        });
        self.shared.stats.fast_accepted += u64::from(taken == Some(true));
    }

    /// Keeps count of how far the handshakes of accepted connections are.
    pub(super) fn settle_half_open(&mut self, now: Instant, id: ConnId) {
        if self.table.settle_half_open(id) {
            self.ended_early.note(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_wire::Rng;

    use super::*;

    fn tuple(host: u8, port: u16) -> FourTuple {
        FourTuple {
            local: ([10, 0, 0, 1], 443).into(),
            remote: ([10, 0, 0, host], port).into(),
        }
    }

    // Conforms: 7413-4.1.2-1, 7413-4.1.2-2
    #[test]
    fn a_cookie_holds_for_its_address_and_a_while() {
        let secret = Secret::new(&mut Rng::for_component(1, 1));
        let start = Instant::from_millis(1);
        let ask = |now, tuple, option| Admission::of(&secret, now, &tuple, option);
        let none = FastOpenCookie::new();
        let asked = ask(start, tuple(2, 5000), &none);
        assert!(!asked.data);
        let cookie = asked.cookie.expect("a cookie was asked for");
        assert_eq!(cookie.len(), LEN);
        let again = ask(start, tuple(2, 5001), &cookie);
        assert!(again.data && again.cookie.is_none());
        // It is renewed before it expires.
        let later = ask(start + PERIOD, tuple(2, 5000), &cookie);
        assert!(later.data);
        assert_ne!(later.cookie.expect("a new one"), cookie);
        let late = ask(start + 2 * PERIOD, tuple(2, 5000), &cookie);
        assert!(!late.data && late.cookie.is_some());
        let other = ask(start, tuple(3, 5000), &cookie);
        assert!(!other.data && other.cookie.is_some());
    }
}
