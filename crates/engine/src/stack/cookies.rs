//! SYN cookies: SYNs are answered without state once many handshakes are under way (RFC 4987 section 3.6).
//!
//! The sequence number of the SYN/ACK encodes the offer of the SYN and proves by a keyed hash that the
//! SYN/ACK was sent; the key in its MP_CAPABLE is part of the same hash. Both come back with the third ACK
//! (RFC 8684 section 3.1), and only then does a connection exist. A join keeps state, because its proof
//! covers a number that only its SYN carries (section 3.2). But a join needs the token of an established
//! connection, which has few subflows.

use core::time::Duration;
use std::collections::BTreeSet;

use braid_wire::mptcp::{Capable, MptcpOption, VERSION};
use braid_wire::tcp::{self, Flags, Options, Timestamps};
use braid_wire::{Instant, Rng, Seq32};

use super::ingress::{Arrival, StatelessReply};
use super::{Outside, Stack};
use crate::Config;
use crate::FallbackCause;
use crate::buffer::Payload;
use crate::mptcp::keys::Keys;
use crate::mptcp::{Mode, capable, flags, is_plain_data, usable, window_shift};
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::tcp::segment_size::announced_mss;

/// The least time for which a third ACK is accepted after the SYN/ACK; the most is twice as long.
const COOKIE_PERIOD: Duration = Duration::from_secs(64);
/// The most answers that wait at once; further SYNs are dropped, and come again.
const MAX_QUEUED_ANSWERS: usize = 1024;
/// The most connections in a [`COOKIE_PERIOD`] whose cookies are remembered as used: 1,000 a second. A remembered
/// cookie opens no second connection when its third ACK with data is repeated after the connection is
/// forgotten. Beyond the limit cookies are not remembered: refusing them would serve a flood.
const MAX_USED_COOKIES: usize = 1 << 16;
/// The segment sizes that a cookie can encode; others count as the next smaller one.
const ENCODED_MSS: [u16; 4] = [536, 1220, 1400, 1460];
/// The encoding of a SYN without window scale option.
const NO_WINDOW_SCALE: u8 = 15;

/// The part of a SYN that is needed when its handshake completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    /// The index into [`ENCODED_MSS`].
    mss: u8,
    window_scale: Option<u8>,
    sack: bool,
    mptcp: bool,
}

impl Offer {
    fn of(syn: &tcp::Repr, tuple: &FourTuple) -> Offer {
        // RFC 9293 section 3.7.1 sets the default of a SYN without the option.
        let mss = syn.options.mss.unwrap_or_else(|| announced_mss(0, tuple));
        let smaller = ENCODED_MSS.iter().rposition(|m| *m <= mss).unwrap_or(0);
        let speaks = |c| matches!(c, Capable::Syn { version, flags } if usable(version, flags));
        Offer {
            mss: smaller as u8,
            // RFC 7323 section 2.3: a shift above 14 counts as 14, so 15 is free for `NO_WINDOW_SCALE`.
            window_scale: syn.options.window_scale.map(|scale| scale.min(14)),
            sack: syn.options.sack_permitted,
            mptcp: capable(syn).is_some_and(speaks),
        }
    }

    fn bits(self) -> u8 {
        self.mss << 6
            | u8::from(self.mptcp) << 5
            | u8::from(self.sack) << 4
            | self.window_scale.unwrap_or(NO_WINDOW_SCALE)
    }

    fn from_bits(bits: u8) -> Offer {
        Offer {
            mss: bits >> 6,
            window_scale: Some(bits & 0x0f).filter(|scale| *scale != NO_WINDOW_SCALE),
            sack: bits & 0x10 != 0,
            mptcp: bits & 0x20 != 0,
        }
    }
}

/// The numbers of a SYN/ACK that left no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cookie {
    iss: Seq32,
    key: u64,
    ts_base: u32,
}

/// The secret of the cookies, and the cookies used lately.
#[derive(Debug)]
pub(super) struct Cookies {
    secret: Secret,
    last: Instant,
    /// The keys that opened a connection in the period `used_in`, and in the one before. Older cookies are
    /// not accepted anyway.
    used: [BTreeSet<u64>; 2],
    used_in: u64,
}

impl Cookies {
    fn new(rng: &mut Rng) -> Self {
        Cookies {
            secret: Secret::new(rng),
            last: Instant::ZERO,
            used: Default::default(),
            used_in: 0,
        }
    }

    fn cookie(&self, tuple: &FourTuple, irs: Seq32, offer: Offer, period: u64) -> Cookie {
        let mut more = [0; 13];
        more[..4].copy_from_slice(&irs.0.to_be_bytes());
        more[4..12].copy_from_slice(&period.to_be_bytes());
        more[12] = offer.bits();
        let word = self.secret.hash(tuple, &more);
        Cookie {
            iss: Seq32(word[0] << 8 | u32::from(offer.bits())),
            key: u64::from(word[2]) << 32 | u64::from(word[3]),
            ts_base: word[4],
        }
    }

    /// Returns the offer of the SYN that `iss` answered; `None` if there was none lately.
    fn check(
        &self,
        now: Instant,
        tuple: &FourTuple,
        irs: Seq32,
        iss: Seq32,
    ) -> Option<(Offer, Cookie)> {
        let offer = Offer::from_bits(iss.0 as u8);
        let period = period(now);
        let mut cookies = [period, period.wrapping_sub(1)]
            .into_iter()
            .map(|period| self.cookie(tuple, irs, offer, period));
        let cookie = cookies.find(|cookie| cookie.iss == iss)?;
        Some((offer, cookie))
    }

    fn is_used(&self, cookie: &Cookie) -> bool {
        self.used.iter().any(|used| used.contains(&cookie.key))
    }

    /// Notes that `cookie` opens a connection.
    fn note_used(&mut self, now: Instant, cookie: &Cookie) {
        let period = period(now);
        for _ in self.used_in..period.min(self.used_in + 2) {
            let [newer, older] = &mut self.used;
            *older = core::mem::take(newer);
        }
        self.used_in = period;
        if self.used[0].len() < MAX_USED_COOKIES {
            self.used[0].insert(cookie.key);
        }
    }
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_PERIOD.as_nanos() as u64
}

impl Stack {
    /// Answers a SYN without keeping state.
    pub(super) fn answer_stateless(&mut self, now: Instant, at: Arrival, syn: &tcp::Repr) {
        if self.stateless_replies.len() >= MAX_QUEUED_ANSWERS {
            self.shared.stats.syns_dropped += 1;
            return;
        }
        let shared = &mut self.shared;
        let cookies = self
            .cookies
            .get_or_insert_with(|| Cookies::new(&mut shared.rng));
        cookies.last = now;
        let mut offer = Offer::of(syn, &at.tuple);
        let mut cookie = cookies.cookie(&at.tuple, syn.seq, offer, period(now));
        // The key of the cookie is the only one that can be verified later (RFC 8684 section 3.1), so there
        // is no second choice: fall back to regular TCP.
        // Conforms: 8684-3.1-21
        let token = || Keys::from_key(cookie.key).token;
        if offer.mptcp && shared.demux.tokens.contains_key(&token()) {
            offer.mptcp = false;
            cookie = cookies.cookie(&at.tuple, syn.seq, offer, period(now));
        }
        let mtu = shared.paths[usize::from(at.path.0)].config.mtu;
        let mut options = Options {
            mss: Some(announced_mss(mtu.into(), &at.tuple)),
            window_scale: offer.window_scale.map(|_| window_shift(&shared.config)),
            sack_permitted: offer.sack,
            timestamps: syn.options.timestamps.map(|ts| Timestamps {
                value: cookie.ts_base.wrapping_add(now.as_millis() as u32),
                echo: ts.value,
            }),
            ..Options::default()
        };
        if offer.mptcp {
            let wanted =
                matches!(capable(syn), Some(Capable::Syn { flags, .. }) if flags.checksum_required);
            options.mptcp.push(MptcpOption::Capable(Capable::SynAck {
                version: VERSION,
                flags: flags(&shared.config, wanted || shared.config.checksum),
                sender_key: cookie.key,
            }));
        }
        shared.stats.syn_cookies += 1;
        self.stateless_replies.push_back(StatelessReply {
            path: at.path,
            tuple: at.tuple,
            repr: tcp::Repr {
                src_port: at.tuple.local.port(),
                dst_port: at.tuple.remote.port(),
                seq: cookie.iss,
                ack: syn.seq.add(1),
                flags: Flags::SYN | Flags::ACK,
                window: syn_ack_window(&shared.config),
                options,
            },
        });
    }

    /// Handles a segment of no connection that may complete a stateless handshake. Returns whether it was
    /// handled: while SYNs were answered without state lately, a segment without a valid cookie is dropped,
    /// because the third ACK may follow it.
    pub(super) fn on_stateless_ack(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        tcp: &tcp::Repr,
        (payload, outside): (&mut Payload<'_>, Outside),
    ) -> bool {
        let Some(at) = self.arrival(tuple) else {
            return false;
        };
        let over = |c: &mut Cookies| now.saturating_since(c.last) >= 2 * COOKIE_PERIOD;
        self.cookies.take_if(over);
        let Some(cookies) = &mut self.cookies else {
            return false;
        };
        let (irs, iss) = (tcp.seq.add(u32::MAX), tcp.ack.add(u32::MAX));
        let Some((offer, cookie)) = cookies.check(now, &tuple, irs, iss) else {
            self.shared.stats.out_of_the_blue += 1;
            return true;
        };
        if cookies.is_used(&cookie) {
            return false;
        }
        // An incomplete handshake gets no state either.
        let early = offer.mptcp
            && capable(tcp).is_none()
            && !tcp.options.mptcp.is_empty()
            && !is_plain_data(tcp, payload.len());
        if early || !tcp.flags.contains(Flags::ACK) || tcp.flags.contains(Flags::SYN) {
            return true;
        }
        let local = Keys::from_key(cookie.key);
        let taken = offer.mptcp && self.shared.demux.tokens.contains_key(&local.token);
        if taken || self.table.len() >= self.shared.config.max_connections {
            self.shared.stats.syns_dropped += 1;
            return true;
        }
        cookies.note_used(now, &cookie);
        // The relevant part of the SYN.
        let mut syn = tcp::Repr::new(tcp.src_port, tcp.dst_port, Flags::SYN);
        syn.seq = irs;
        syn.options = Options {
            mss: Some(ENCODED_MSS[usize::from(offer.mss)]),
            window_scale: offer.window_scale,
            sack_permitted: offer.sack,
            timestamps: tcp.options.timestamps,
            ..Options::default()
        };
        let checksum = self.shared.config.checksum;
        let mode = match offer.mptcp {
            true => Mode::Accepting { local, checksum },
            false => Mode::Tcp,
        };
        let id = self.admit(now, at, &syn, mode);
        if !offer.mptcp {
            self.plain(now, id, FallbackCause::PeerSynPlain);
        }
        self.with(now, id, |conn, ctx| {
            let subflow = &mut conn.transport.subflows[0];
            let advertised_end = 1 + u64::from(syn_ack_window(&ctx.shared.config));
            subflow.resume(cookie.iss, cookie.ts_base, advertised_end);
            let id = subflow.id;
            conn.on_segment(ctx, id, tcp, payload, outside)
        });
        true
    }
}

/// Returns the window of a SYN/ACK, which is not scaled.
fn syn_ack_window(config: &Config) -> u16 {
    config.recv_buffer.min(usize::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests {
    use braid_wire::mptcp::CapableFlags;

    use super::*;
    use crate::{Config, ConnId, PathConfig};

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: ([10, 0, 0, 1], 443).into(),
            remote: ([10, 0, 0, 2], port).into(),
        }
    }

    #[test]
    fn an_offer_fits_in_a_byte() {
        for bits in 0..=u8::MAX {
            assert_eq!(Offer::from_bits(bits).bits(), bits);
        }
    }

    // Conforms: 8684-3.1-21
    #[test]
    fn no_key_is_offered_whose_token_is_in_use() {
        let strategy = Box::new(|| unreachable!("nothing is opened"));
        let mut stack = Stack::new(Config::default(), Rng::for_component(1, 1), strategy);
        let path = PathConfig::v4([10, 0, 0, 1].into());
        stack.add_path(path).unwrap();
        stack.listen(([10, 0, 0, 1], 443).into()).unwrap();
        let mut syn = tcp::Repr::new(5000, 443, Flags::SYN);
        let (version, flags) = (VERSION, CapableFlags::DEFAULT_OFFER);
        let offer = MptcpOption::Capable(Capable::Syn { version, flags });
        syn.options.mptcp.push(offer);
        let mut answer = |used: Option<u64>| {
            let tokens = &mut stack.shared.demux.tokens;
            let (slot, generation) = (0, 0);
            let used = used.map(|key| Keys::from_key(key).token);
            tokens.extend(used.map(|token| (token, ConnId { slot, generation })));
            let at = stack.arrival(tuple(5000)).unwrap();
            stack.answer_stateless(Instant::from_millis(1_000), at, &syn);
            capable(&stack.stateless_replies.pop_back().unwrap().repr)
        };
        let Some(Capable::SynAck { sender_key, .. }) = answer(None) else {
            panic!("no key");
        };
        assert_eq!(answer(Some(sender_key)), None);
    }

    #[test]
    fn a_cookie_holds_for_its_peer_and_a_while() {
        let cookies = Cookies::new(&mut Rng::for_component(1, 1));
        let offer = Offer::from_bits(0xb7);
        let (irs, start) = (Seq32(77), Instant::from_millis(1_000));
        let cookie = cookies.cookie(&tuple(5000), irs, offer, period(start));
        let check = |now, tuple, irs| cookies.check(now, &tuple, irs, cookie.iss);
        let right = Some((offer, cookie));
        assert_eq!(check(start, tuple(5000), irs), right);
        assert_eq!(check(start + COOKIE_PERIOD, tuple(5000), irs), right);
        assert_eq!(check(start + 2 * COOKIE_PERIOD, tuple(5000), irs), None);
        assert_eq!(check(start, tuple(5001), irs), None);
        assert_eq!(check(start, tuple(5000), Seq32(78)), None);
        let other = Seq32(cookie.iss.0 ^ 0x10);
        assert_eq!(cookies.check(start, &tuple(5000), irs, other), None);
    }
}
