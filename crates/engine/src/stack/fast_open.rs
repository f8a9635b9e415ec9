//! The server's side of TCP Fast Open (RFC 7413): cookies, and a bound on pending connections. A connection is
//! pending while its handshake is not complete although its SYN carried payload.

use core::time::Duration;
use std::collections::VecDeque;

use braid_wire::Instant;
use braid_wire::tcp::{self, FastOpenCookie, Flags};

use super::Stack;
use crate::buffer::Payload;
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::{Config, ConnId};

/// The duration of one period of cookies. A cookie is accepted in the period in which it is made and in the next
/// one, so for 12 to 24 hours. RFC 7413 section 4.1.2 asks servers to expire cookies; the value is a guess.
const COOKIE_PERIOD: Duration = Duration::from_secs(12 * 3600);
/// The length of a cookie in bytes; RFC 7413 section 4.1.1 allows 4 to 16. A SYN/ACK with timestamps and
/// MP_CAPABLE has no room for more. An attacker needs 2^47 SYNs on average to guess a cookie.
const COOKIE_LEN: usize = 6;
/// The label that separates these hashes from others of the same secret.
const COOKIE_LABEL: [u8; 8] = *b"fastopen";
/// The time for which a connection that ended before its handshake was complete still counts as pending. Without
/// this time an attacker who forges SYNs could get around the bound: a connection ends early if the victim answers
/// the SYN/ACK with a RST (RFC 7413 section 5.1), or if the application gives up. The value is a guess, longer than
/// the time for which SYN/ACKs are repeated.
const ENDED_PENDING_TIME: Duration = Duration::from_secs(60);

/// The connections whose SYN carried payload and that ended before their handshake was complete. Each is kept as
/// the time until which it counts as pending. The queue needs no bound of its own: its entries count towards
/// `max_fast_open`, and above this bound no connection is admitted that could become an entry.
#[derive(Debug, Default)]
pub(super) struct EndedEarly(VecDeque<Instant>);

impl EndedEarly {
    /// Adds a connection that ends now.
    pub fn note(&mut self, now: Instant) {
        self.0.push_back(now + ENDED_PENDING_TIME);
    }

    /// Returns the number of connections that still count.
    fn count(&mut self, now: Instant) -> usize {
        while self.0.front().is_some_and(|until| *until <= now) {
            self.0.pop_front();
        }
        self.0.len()
    }
}

/// The decision about the fast-open option of a SYN.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// The cookie to grant on the SYN/ACK, if any.
    pub cookie: Option<FastOpenCookie>,
    /// True if the payload of the SYN may be accepted.
    pub data: bool,
}

/// Returns the cookie for the addresses of `tuple`. Its ports do not matter, because later connections have
/// other ports.
fn cookie(secret: &Secret, tuple: &FourTuple, period: u64) -> FastOpenCookie {
    let mut addresses = *tuple;
    addresses.local.set_port(0);
    addresses.remote.set_port(0);
    let mut message = [0; 16];
    message[..8].copy_from_slice(&COOKIE_LABEL);
    message[8..].copy_from_slice(&period.to_be_bytes());
    let [a, b, ..] = secret.hash(&addresses, &message);
    let bytes = u64::from(a) << 32 | u64::from(b);
    bytes.to_be_bytes().into_iter().take(COOKIE_LEN).collect()
}

impl Admission {
    /// Decides by the cookie in the option. The peer gets the cookie of this period unless its option has that
    /// cookie.
    // Conforms: 7413-4.1.2-1, 7413-4.1.2-2, 7413-4.2.2-5
    fn of(secret: &Secret, now: Instant, tuple: &FourTuple, option: &FastOpenCookie) -> Admission {
        let period = now.as_nanos() / COOKIE_PERIOD.as_nanos() as u64;
        let current = cookie(secret, tuple, period);
        let is_current = *option == current;
        let is_previous = || period > 0 && *option == cookie(secret, tuple, period - 1);
        Admission {
            data: is_current || is_previous(),
            cookie: (!is_current).then_some(current),
        }
    }
}

impl Stack {
    /// Decides about the fast-open option of a SYN. If there are too many pending connections, the option is
    /// ignored, and the handshake is an ordinary one.
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
                // A SYN with FIN gets an ordinary handshake: `accept_syn_data` takes payload, but no end of the
                // stream.
                Admission {
                    data: admission.data && !syn.flags.contains(Flags::FIN),
                    ..admission
                }
            }
            _ => Admission::default(),
        }
    }

    /// Gives the payload of its SYN to a connection that was just created, if the decision allows that.
    pub(super) fn open_fast(
        &mut self,
        now: Instant,
        id: ConnId,
        admission: Admission,
        (syn, payload): (&tcp::Repr, &mut Payload<'_>),
    ) {
        let taken = self.with(now, id, |conn, ctx| {
            conn.transport.subflows[0].handshake.cookie = admission.cookie;
            let payload = payload.slice(0, payload.len());
            admission.data && conn.accept_syn_data(ctx, syn.window, payload)
        });
        self.shared.stats.fast_accepted += u64::from(taken == Some(true));
    }

    /// Updates the counts of incomplete handshakes after a change of connection `id`.
    pub(super) fn recount_half_open(&mut self, now: Instant, id: ConnId) {
        if self.table.recount_half_open(id) {
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
        assert_eq!(cookie.len(), COOKIE_LEN);
        let again = ask(start, tuple(2, 5001), &cookie);
        assert!(again.data && again.cookie.is_none());
        // A cookie is renewed before it expires.
        let later = ask(start + COOKIE_PERIOD, tuple(2, 5000), &cookie);
        assert!(later.data);
        assert_ne!(later.cookie.expect("a new one"), cookie);
        let late = ask(start + 2 * COOKIE_PERIOD, tuple(2, 5000), &cookie);
        assert!(!late.data && late.cookie.is_some());
        let other = ask(start, tuple(3, 5000), &cookie);
        assert!(!other.data && other.cookie.is_some());
    }
}
