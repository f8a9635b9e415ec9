//! The request for a tunnel, the server's answer, and the secrets that both ends export for an epoch.
//!
//! A box requests a tunnel in place of a destination, on a protected connection of its own. The server answers with the
//! session and the epoch whose secrets both ends export from that connection (RFC 8446 section 7.5), and with what the
//! box needs to know. `docs/protocol.md` describes each field.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_secure::channel::Channel;
use braid_tunnel::{Secrets, SessionId, Suite};

use super::fields::{each_field, put};
use super::socks::MessageBuffer;

/// The label of the exported secrets. RFC 5705 section 4 leaves labels with this beginning to private use.
const LABEL: &[u8] = b"EXPERIMENTAL braid tunnel";
/// First byte of the answer, version 1.
const ANSWER: u8 = 0xba;
/// Number of bytes before the fields of an answer: the first byte and a length of two bytes.
const ANSWER_HEAD_LEN: usize = 3;
/// Maximum number of bytes of the fields in an answer. Those of this version have at most 64 bytes; the rest is room for
/// fields of later versions.
const MAX_FIELDS: usize = 256;

// Kinds of fields of the request.
const BOX: u8 = 1;
const RESUME: u8 = 2;
const PATH_MTU: u8 = 3;
const SUITES: u8 = 4;

// Kinds of fields of the answer.
const EPOCH: u8 = 1;
const V4: u8 = 2;
const V6: u8 = 3;
const PORT: u8 = 4;
const MTU: u8 = 5;
const SUITE: u8 = 6;
const REFUSAL: u8 = 7;

/// The ciphers by their numbers in messages, from 1.
const BY_NUMBER: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

/// The name of a box among those of its user, which stays the same over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BoxId(pub(crate) [u8; 8]);

impl BoxId {
    /// Returns the id of the box with this configured name.
    pub(crate) fn of_name(name: &str) -> Self {
        BoxId(hash(name.as_bytes()).to_be_bytes())
    }
}

/// Returns a hash of `bytes` that is the same in every release: FNV-1a, 64 bits. Nobody gains by a collision.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The request of a box for a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The box. A new session replaces the box's earlier one.
    pub(crate) boxed: BoxId,
    /// The session that gets another epoch; `None` for a new session. A server that does not know the session draws a
    /// new one.
    pub(crate) session: Option<SessionId>,
    /// The size of the largest IP packet that every path of the box takes, in bytes.
    pub(crate) path_mtu: u16,
    /// The ciphers that the box has, the preferred one first.
    pub(crate) suites: [Option<Suite>; 2],
}

impl Request {
    /// Encodes the fields of the request.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, BOX, &self.boxed.0);
        if let Some(session) = self.session {
            put(&mut out, RESUME, &session.0);
        }
        put(&mut out, PATH_MTU, &self.path_mtu.to_be_bytes());
        let suites: Vec<u8> = self
            .suites
            .iter()
            .flatten()
            .map(|s| number_of(*s))
            .collect();
        put(&mut out, SUITES, &suites);
        out
    }

    /// Decodes the fields of a request. Returns `None` without the box's id.
    pub(crate) fn decode(fields: &[u8]) -> Option<Self> {
        let mut boxed = None;
        let (mut session, mut path_mtu, mut suites) = (None, None, [None; 2]);
        each_field(fields, |kind, value| match kind {
            BOX => boxed = value.try_into().ok().map(BoxId),
            RESUME => session = value.try_into().ok().map(SessionId),
            PATH_MTU => path_mtu = value.try_into().ok().map(u16::from_be_bytes),
            SUITES => {
                let known = value.iter().filter_map(|number| by_number(*number));
                let mut known = known.take(suites.len());
                suites.fill_with(|| known.next());
            }
            _ => {}
        });
        Some(Request {
            boxed: boxed?,
            session,
            // Without the field, the box's paths take what IPv6 demands (RFC 8200 section 5).
            path_mtu: path_mtu.unwrap_or(1280),
            suites,
        })
    }
}

fn number_of(suite: Suite) -> u8 {
    let at = BY_NUMBER.iter().position(|s| *s == suite);
    at.map_or(0, |at| at as u8 + 1)
}

fn by_number(number: u8) -> Option<Suite> {
    let at = usize::from(number).checked_sub(1)?;
    BY_NUMBER.get(at).copied()
}

/// A tunnel that the server grants, with the epoch that both ends install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The session.
    pub(crate) session: SessionId,
    /// The epoch, whose secrets both ends export.
    pub(crate) epoch: u64,
    /// The box's IPv4 address in the tunnel.
    pub(crate) v4: Option<Ipv4Addr>,
    /// The box's IPv6 address in the tunnel; `None` if the server reaches no IPv6 destinations.
    pub(crate) v6: Option<Ipv6Addr>,
    /// The UDP port of the server, at the addresses of its TCP port.
    pub(crate) port: u16,
    /// The largest packet that the tunnel carries, in bytes.
    pub(crate) mtu: u16,
    /// The cipher.
    pub(crate) suite: Suite,
}

impl Grant {
    /// Returns the box's addresses in the tunnel.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// The reason why a server grants no tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// 1: the server has no tunnel now.
    NotOffered,
    /// 2: the user, or all users, have as many sessions as they may.
    TooMany,
    /// 3: every address of the pool is taken.
    NoAddress,
    /// 4: the server has none of the box's ciphers.
    NoSuite,
    /// A reason that this release does not know.
    Unknown(u8),
}

impl Refusal {
    fn number(self) -> u8 {
        match self {
            Refusal::NotOffered => 1,
            Refusal::TooMany => 2,
            Refusal::NoAddress => 3,
            Refusal::NoSuite => 4,
            Refusal::Unknown(number) => number,
        }
    }

    fn by_number(number: u8) -> Self {
        match number {
            1 => Refusal::NotOffered,
            2 => Refusal::TooMany,
            3 => Refusal::NoAddress,
            4 => Refusal::NoSuite,
            number => Refusal::Unknown(number),
        }
    }
}

/// The server's answer to a request.
pub(crate) type Answer = Result<Grant, Refusal>;

/// Encodes an answer.
pub(crate) fn encode_answer(answer: &Answer) -> Vec<u8> {
    let mut fields = Vec::new();
    match answer {
        Ok(grant) => {
            let mut epoch = grant.session.0.to_vec();
            epoch.extend(grant.epoch.to_be_bytes());
            put(&mut fields, EPOCH, &epoch);
            if let Some(v4) = grant.v4 {
                put(&mut fields, V4, &v4.octets());
            }
            if let Some(v6) = grant.v6 {
                put(&mut fields, V6, &v6.octets());
            }
            put(&mut fields, PORT, &grant.port.to_be_bytes());
            put(&mut fields, MTU, &grant.mtu.to_be_bytes());
            put(&mut fields, SUITE, &[number_of(grant.suite)]);
        }
        Err(refusal) => put(&mut fields, REFUSAL, &[refusal.number()]),
    }
    let len = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    [&[ANSWER][..], &len.to_be_bytes(), &fields].concat()
}

/// Decodes the fields of an answer. Returns `None` if a field that a tunnel needs is missing or malformed.
fn decode_answer(fields: &[u8]) -> Option<Answer> {
    let (mut epoch, mut v4, mut v6): (Option<[u8; 16]>, _, _) = (None, None, None);
    let (mut port, mut mtu, mut suite, mut refusal) = (None, None, None, None);
    each_field(fields, |kind, value| match (kind, value) {
        (EPOCH, value) => epoch = value.try_into().ok(),
        (V4, value) => v4 = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
        (V6, value) => v6 = <[u8; 16]>::try_from(value).ok().map(Ipv6Addr::from),
        (PORT, value) => port = value.try_into().ok().map(u16::from_be_bytes),
        (MTU, value) => mtu = value.try_into().ok().map(u16::from_be_bytes),
        (SUITE, [number]) => suite = by_number(*number),
        (REFUSAL, [number]) => refusal = Some(Refusal::by_number(*number)),
        _ => {}
    });
    if let Some(refusal) = refusal {
        return Some(Err(refusal));
    }
    let (session, number) = epoch.as_ref()?.split_first_chunk::<8>()?;
    let grant = Grant {
        session: SessionId(*session),
        epoch: u64::from_be_bytes(number.try_into().ok()?),
        v4,
        v6,
        port: port.filter(|port| *port > 0)?,
        // A host may send packets of 1,280 bytes by IPv6 anywhere; larger ones than 9,000 the tunnel does not take.
        mtu: mtu.filter(|mtu| (1280..=9000).contains(mtu))?,
        suite: suite?,
    };
    let is_usable = grant.addresses().next().is_some() && grant.addresses().all(is_of_host);
    is_usable.then_some(Ok(grant))
}

/// Returns whether one host may have the address on a device.
fn is_of_host(addr: IpAddr) -> bool {
    let excluded = match addr {
        // 0.0.0.0/8 is no host's (RFC 1122), and 240.0.0.0/4 is reserved (RFC 1112).
        IpAddr::V4(v4) => v4.is_link_local() || matches!(v4.octets()[0], 0 | 240..),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(excluded || addr.is_unspecified() || addr.is_loopback() || addr.is_multicast())
}

/// The progress of reading an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerStep {
    /// All input was consumed, and more is needed.
    More,
    /// The answer.
    Answer(Answer),
    /// The answer is malformed: the peer has an incompatible version.
    Malformed,
}

/// Reads the server's answer, in any fragmentation.
#[derive(Debug, Default)]
pub(crate) struct AnswerReader {
    message: MessageBuffer,
}

impl AnswerReader {
    /// Processes bytes of the server. Returns the number of bytes consumed, and the progress.
    pub(crate) fn input(&mut self, input: &[u8]) -> (usize, AnswerStep) {
        let (taken, complete) = self.message.take(input, |m| match m {
            [ANSWER, a, b, ..] => match usize::from(u16::from_be_bytes([*a, *b])) {
                len @ 0..=MAX_FIELDS => ANSWER_HEAD_LEN + len,
                // The message ends here, and is malformed.
                _ => ANSWER_HEAD_LEN,
            },
            [] | [ANSWER, ..] => ANSWER_HEAD_LEN,
            _ => 1,
        });
        if !complete {
            return (taken, AnswerStep::More);
        }
        let step = match self.message.clear().as_slice() {
            [ANSWER, a, b, fields @ ..]
                if usize::from(u16::from_be_bytes([*a, *b])) == fields.len() =>
            {
                decode_answer(fields).map_or(AnswerStep::Malformed, AnswerStep::Answer)
            }
            _ => AnswerStep::Malformed,
        };
        (taken, step)
    }
}

/// Returns the secrets of an epoch, which both ends export from the connection with request and answer. Session and
/// epoch are part of the context: no two epochs have a secret in common, even on one connection. Returns `None` if the
/// connection is plaintext, or its handshake is not complete.
pub(crate) fn secrets(channel: &Channel, session: SessionId, epoch: u64) -> Option<Secrets> {
    let export = |sender: u8| {
        let mut context = [0; 17];
        context[0] = sender;
        context[1..9].copy_from_slice(&session.0);
        context[9..].copy_from_slice(&epoch.to_be_bytes());
        channel.export_secret(LABEL, &context)
    };
    Some(Secrets {
        of_box: *export(b'b')?,
        of_server: *export(b's')?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            boxed: BoxId([1, 2, 3, 4, 5, 6, 7, 8]),
            session: Some(SessionId([9; 8])),
            path_mtu: 1492,
            suites: [Some(Suite::ChaCha20Poly1305), Some(Suite::Aes256Gcm)],
        }
    }

    fn grant() -> Grant {
        Grant {
            session: SessionId([0x40, 1, 2, 3, 4, 5, 6, 7]),
            epoch: 258,
            v4: Some(Ipv4Addr::new(10, 215, 128, 9)),
            v6: Some("fdb7:a1d0:80::9".parse().unwrap()),
            port: 1080,
            mtu: 1500,
            suite: Suite::Aes256Gcm,
        }
    }

    #[test]
    fn a_request_has_these_bytes() {
        let bytes = [
            &[1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 2, 8][..],
            &[9; 8],
            &[3, 2, 0x05, 0xd4, 4, 2, 2, 1],
        ]
        .concat();
        assert_eq!(request().encode(), bytes);
        assert_eq!(Request::decode(&bytes), Some(request()));
        // A later release may add fields and ciphers.
        let later = [&[77, 1, 0][..], &bytes[..24], &[4, 4, 9, 2, 3, 1]].concat();
        assert_eq!(Request::decode(&later), Some(request()));
        let first = Request {
            session: None,
            suites: [Some(Suite::Aes256Gcm), None],
            ..request()
        };
        assert_eq!(Request::decode(&first.encode()), Some(first));
    }

    #[test]
    fn requests_without_a_box_are_refused_and_other_fields_may_be_missing() {
        let id = [1, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        let least = Request {
            session: None,
            path_mtu: 1280,
            suites: [None; 2],
            ..request()
        };
        assert_eq!(Request::decode(&id), Some(least));
        for bytes in [&[][..], &[1, 7, 1, 2, 3, 4, 5, 6, 7], &id[..9], &[4, 1, 1]] {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn an_answer_has_these_bytes() {
        let bytes = [
            &[0xba, 0, 53, 1, 16, 0x40, 1, 2, 3, 4, 5, 6, 7][..],
            &[0, 0, 0, 0, 0, 0, 1, 2, 2, 4, 10, 215, 128, 9, 3, 16],
            &[
                0xfd, 0xb7, 0xa1, 0xd0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
            ],
            &[4, 2, 0x04, 0x38, 5, 2, 0x05, 0xdc, 6, 1, 1],
        ]
        .concat();
        assert_eq!(encode_answer(&Ok(grant())), bytes);
        for cut in 0..bytes.len() {
            let mut reader = AnswerReader::default();
            assert_eq!(reader.input(&bytes[..cut]), (cut, AnswerStep::More));
            let answer = AnswerStep::Answer(Ok(grant()));
            assert_eq!(reader.input(&bytes[cut..]), (bytes.len() - cut, answer));
        }
        for number in 0..=5 {
            let refusal = Refusal::by_number(number);
            assert_eq!(encode_answer(&Err(refusal)), [0xba, 0, 3, 7, 1, number]);
            let mut reader = AnswerReader::default();
            let step = reader.input(&[0xba, 0, 3, 7, 1, number]).1;
            assert_eq!(step, AnswerStep::Answer(Err(refusal)));
        }
    }

    #[test]
    fn malformed_answers_are_noticed() {
        let without = |kind: u8| {
            let mut fields = Vec::new();
            each_field(&encode_answer(&Ok(grant()))[3..], |k, value| {
                if k != kind {
                    put(&mut fields, k, value);
                }
            });
            [&[0xba, 0, fields.len() as u8][..], &fields].concat()
        };
        for kind in [EPOCH, PORT, MTU, SUITE] {
            let mut reader = AnswerReader::default();
            assert_eq!(
                reader.input(&without(kind)).1,
                AnswerStep::Malformed,
                "{kind}"
            );
        }
        for kind in [V4, V6] {
            let step = AnswerReader::default().input(&without(kind)).1;
            assert!(matches!(step, AnswerStep::Answer(Ok(_))), "{kind}");
        }
        let no_hosts = [
            "0.1.2.3",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
        ];
        let no_hosts = no_hosts.map(|text| (Some(text.parse().unwrap()), None));
        let no_hosts_v6 = ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"];
        let no_hosts_v6 = no_hosts_v6.map(|text| (None, Some(text.parse().unwrap())));
        for (v4, v6) in no_hosts
            .into_iter()
            .chain(no_hosts_v6)
            .chain([(None, None)])
        {
            let bytes = encode_answer(&Ok(Grant { v4, v6, ..grant() }));
            let step = AnswerReader::default().input(&bytes).1;
            assert_eq!(step, AnswerStep::Malformed, "{v4:?} {v6:?}");
        }
        for bytes in [&[5, 0][..], &[0xbb], &[0xba, 1, 1], &[0xba, 0, 0]] {
            let mut reader = AnswerReader::default();
            assert_eq!(reader.input(bytes).1, AnswerStep::Malformed, "{bytes:?}");
        }
    }
}
