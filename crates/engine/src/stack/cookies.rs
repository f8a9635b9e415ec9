//! SYN cookies: SYNs are answered without state once many handshakes are under way (RFC 4987 section 3.6).
//!
//! The initial sequence number of the SYN/ACK encodes the offer of the SYN and a part of a keyed hash. The hash
//! proves that this stack sent the SYN/ACK. Another part of the hash is the key in the MP_CAPABLE of the
//! SYN/ACK. The third ACK returns both the number and the key (RFC 8684 section 3.1), and only then a connection
//! is created.
//!
//! The SYN of a join is always answered with state: the HMAC of the third ACK covers the nonce of the SYN, which
//! nothing else returns (section 3.2). But a join needs the token of an established connection, and each
//! connection has few subflows, so a flood of joins takes little memory.

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

/// The duration of one period of cookies. A third ACK is accepted in the period of its SYN/ACK and in the next
/// one, so for 64 to 128 s after the SYN/ACK. Linux's SYN cookies use a period of about a minute too.
const COOKIE_PERIOD: Duration = Duration::from_secs(64);
/// The maximum number of answers that wait to be sent. Further SYNs are dropped, and are repeated by their
/// senders. The value is a guess; a driver sends all answers after each batch of packets.
const MAX_QUEUED_ANSWERS: usize = 1024;
/// The maximum number of cookies remembered as used in a [`COOKIE_PERIOD`]. If used cookies were not remembered,
/// the repeat of a third ACK with data could open a second connection once the first one is forgotten. Beyond
/// the maximum, cookies are accepted but not remembered: if they were refused, a flood would keep out everyone.
/// The value, 1,000 cookies a second, is a guess.
const MAX_USED_COOKIES: usize = 1 << 16;
/// The segment sizes that a cookie can encode. Other sizes are rounded down, and those below 536 count as 536.
/// The first two are the defaults of IPv4 and IPv6 (RFC 9293 section 3.7.1), 1400 is a guess for links with
/// tunnels, and 1460 is the size on Ethernet with IPv4.
const ENCODED_MSS: [u16; 4] = [536, 1220, 1400, 1460];
/// The code for a SYN without a window scale option. Shifts above 14 are not used (RFC 7323 section 2.3).
const NO_WINDOW_SCALE: u8 = 15;

/// The part of a SYN that is needed when its handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    /// The index into [`ENCODED_MSS`].
    mss: u8,
    window_scale: Option<u8>,
    sack: bool,
    mptcp: bool,
}

impl Offer {
    /// Returns the offer of a SYN, as far as a cookie can encode it.
    fn of(syn: &tcp::Repr, tuple: &FourTuple) -> Offer {
        // RFC 9293 section 3.7.1 sets the default of a SYN without the option.
        let mss = syn.options.mss.unwrap_or_else(|| announced_mss(0, tuple));
        let index = ENCODED_MSS.iter().rposition(|m| *m <= mss).unwrap_or(0);
        let is_usable = |c| matches!(c, Capable::Syn { version, flags } if usable(version, flags));
        Offer {
            mss: index as u8,
            // RFC 7323 section 2.3: a shift above 14 counts as 14, so 15 is free for `NO_WINDOW_SCALE`.
            window_scale: syn.options.window_scale.map(|scale| scale.min(14)),
            sack: syn.options.sack_permitted,
            mptcp: capable(syn).is_some_and(is_usable),
        }
    }

    /// Returns the encoding in a byte: two bits of the segment size, one each of MPTCP and SACK, and four of
    /// the window scale.
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

/// The numbers of a SYN/ACK that was sent without state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cookie {
    /// The initial sequence number: 24 bits of the hash, and the encoding of the offer.
    iss: Seq32,
    /// Our MPTCP key.
    key: u64,
    /// The offset of our timestamps from the millisecond clock.
    ts_base: u32,
}

/// The secret of the cookies, and the cookies used lately.
#[derive(Debug)]
pub(super) struct Cookies {
    secret: Secret,
    /// The time of the last answer without state.
    last_answer: Instant,
    /// The keys of the cookies that opened a connection in the period `used_in`, and in the period before.
    /// Older cookies are not accepted anyway.
    used: [BTreeSet<u64>; 2],
    used_in: u64,
}

impl Cookies {
    fn new(rng: &mut Rng) -> Self {
        Cookies {
            secret: Secret::new(rng),
            last_answer: Instant::ZERO,
            used: Default::default(),
            used_in: 0,
        }
    }

    /// Returns the cookie for a SYN with the initial sequence number `irs`.
    fn cookie(&self, tuple: &FourTuple, irs: Seq32, offer: Offer, period: u64) -> Cookie {
        let mut message = [0; 13];
        message[..4].copy_from_slice(&irs.0.to_be_bytes());
        message[4..12].copy_from_slice(&period.to_be_bytes());
        message[12] = offer.bits();
        let words = self.secret.hash(tuple, &message);
        Cookie {
            iss: Seq32(words[0] << 8 | u32::from(offer.bits())),
            key: u64::from(words[2]) << 32 | u64::from(words[3]),
            ts_base: words[4],
        }
    }

    /// Returns the offer of the SYN that a SYN/ACK with `iss` answered, and the cookie of that SYN/ACK; `None`
    /// if this stack sent no such SYN/ACK in this period or the one before.
    fn check(
        &self,
        now: Instant,
        tuple: &FourTuple,
        irs: Seq32,
        iss: Seq32,
    ) -> Option<(Offer, Cookie)> {
        // The hash covers the encoded offer, so a forged offer gives another cookie.
        let offer = Offer::from_bits(iss.0 as u8);
        let period = period(now);
        let mut cookies = [period, period.wrapping_sub(1)]
            .into_iter()
            .map(|period| self.cookie(tuple, irs, offer, period));
        let cookie = cookies.find(|cookie| cookie.iss == iss)?;
        Some((offer, cookie))
    }

    /// Returns whether `cookie` is remembered to have opened a connection.
    fn is_used(&self, cookie: &Cookie) -> bool {
        self.used.iter().any(|used| used.contains(&cookie.key))
    }

    /// Notes that `cookie` opens a connection.
    fn note_used(&mut self, now: Instant, cookie: &Cookie) {
        let period = period(now);
        // Each new period moves the keys on by one set; after two periods both sets are empty.
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

/// Returns the number of the period that contains `now`.
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
        cookies.last_answer = now;
        let mut offer = Offer::of(syn, &at.tuple);
        let mut cookie = cookies.cookie(&at.tuple, syn.seq, offer, period(now));
        // Another connection may have the token of this key. The key cannot be replaced, because only the key
        // of the cookie can be verified later (RFC 8684 section 3.1). So the connection falls back.
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
            let peer_requires_checksum =
                matches!(capable(syn), Some(Capable::Syn { flags, .. }) if flags.checksum_required);
            options.mptcp.push(MptcpOption::Capable(Capable::SynAck {
                version: VERSION,
                flags: flags(
                    &shared.config,
                    peer_requires_checksum || shared.config.checksum,
                ),
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

    /// Handles a segment of no connection that may complete a stateless handshake. Returns whether the segment
    /// was handled; otherwise the caller answers it by RST. For a while after SYNs were answered without state,
    /// a segment without a valid cookie is dropped without an answer: the segment may have overtaken the third
    /// ACK, and a RST would end the peer's connection.
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
        let are_expired =
            |c: &mut Cookies| now.saturating_since(c.last_answer) >= 2 * COOKIE_PERIOD;
        self.cookies.take_if(are_expired);
        let Some(cookies) = &mut self.cookies else {
            return false;
        };
        // The numbers of a third ACK are one above those of both SYNs; adding `u32::MAX` subtracts 1.
        let (irs, iss) = (tcp.seq.add(u32::MAX), tcp.ack.add(u32::MAX));
        let Some((offer, cookie)) = cookies.check(now, &tuple, irs, iss) else {
            self.shared.stats.out_of_the_blue += 1;
            return true;
        };
        if cookies.is_used(&cookie) {
            return false;
        }
        // A segment with other MPTCP options overtook the third ACK with the keys. The third ACK will follow,
        // and no state is kept until it arrives.
        let lacks_keys = offer.mptcp
            && capable(tcp).is_none()
            && !tcp.options.mptcp.is_empty()
            && !is_plain_data(tcp, payload.len());
        if lacks_keys || !tcp.flags.contains(Flags::ACK) || tcp.flags.contains(Flags::SYN) {
            return true;
        }
        let local = Keys::from_key(cookie.key);
        let taken = offer.mptcp && self.shared.demux.tokens.contains_key(&local.token);
        if taken || self.table.len() >= self.shared.config.max_connections {
            self.shared.stats.syns_dropped += 1;
            return true;
        }
        cookies.note_used(now, &cookie);
        // The SYN is restored as far as the connection needs it. Only the third ACK shows the timestamps.
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

/// Returns the window of a stateless SYN/ACK. Windows of SYNs are not scaled, so it is at most 65,535 bytes.
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
