//! Fuzz targets of `braid-tunnel`: what anybody may send to an end, and what a peer with keys may.
//!
//! No input makes an end panic, breaks one of its invariants, lets it answer more than it may, or leaves a timer in
//! the past.

use std::net::{Ipv4Addr, SocketAddr};

use bolero::{TypeGenerator, check, produce};
use braid_tunnel::frame::Frames;
use braid_tunnel::{Config, FlowPolicy, Header, PathId, Role, Secrets, SessionId, Tunnel};
use braid_wire::{Instant, Rng};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

const SESSION: SessionId = SessionId([1; 8]);
const SECRET: [u8; 32] = [1; 32];

/// Returns a server's end with keys.
fn server() -> Tunnel {
    let rng = Rng::from_seed([1; 32]);
    let mut end = Tunnel::new(Config::default(), Role::Server, SESSION, rng);
    let secrets = Secrets {
        of_box: SECRET,
        of_server: [2; 32],
    };
    end.install_keys(Instant::ZERO, 0, &secrets);
    end
}

fn addr(path: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(192, 0, 2, path).into(), 443)
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(label: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let secret = Prk::new_less_safe(HKDF_SHA256, &SECRET);
    let labels = [label];
    let okm = secret.expand(&labels, Length(N)).expect("a short output");
    okm.fill(&mut out).expect("as long as asked for");
    out
}

/// Seals frames as the box does.
fn seal(path: u8, number: u64, frames: &[u8]) -> Vec<u8> {
    let header = Header {
        phase: 0,
        session: SESSION,
        path: PathId(path),
        number: (number & 0xff_ffff) as u32,
    };
    let key = UnboundKey::new(&AES_256_GCM, &expand::<32>(b"braid tunnel key"));
    let key = LessSafeKey::new(key.expect("32 bytes"));
    let mut nonce: [u8; 12] = expand(b"braid tunnel iv");
    nonce[3] ^= path;
    for (byte, mask) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= mask;
    }
    let head = header.emit();
    let mut sealed = frames.to_vec();
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(head), &mut sealed)
        .expect("a short datagram");
    [&head[..], &sealed].concat()
}

/// Takes all that an end puts out, and returns the bytes that it sends.
fn drain(end: &mut Tunnel, now: Instant) -> usize {
    let mut sent = Vec::new();
    for turn in 0.. {
        assert!(turn < 10_000, "the end sends without end");
        if end.poll_transmit(now, &mut sent).is_none() {
            break;
        }
    }
    while end.poll_delivery().is_some() {}
    end.invariants();
    assert!(end.next_timeout().is_none_or(|at| at > now));
    sent.len()
}

/// Bytes as they come, as datagrams and as the frames in one.
#[test]
fn bytes() {
    check!().for_each(|input: &[u8]| {
        let mut end = server();
        assert!(
            end.receive(Instant::ZERO, addr(1), &mut input.to_vec())
                .is_err()
        );
        assert_eq!(drain(&mut end, Instant::ZERO), 0);
        assert_eq!(end.next_timeout(), None);
        for frame in Frames::new(input).flatten() {
            let mut out = Vec::new();
            frame.emit(&mut out);
            let again: Vec<_> = Frames::new(&out).collect();
            assert_eq!(again, [Ok(frame)]);
        }
    });
}

/// A frame that random bytes seldom are.
#[derive(Debug, Clone, TypeGenerator)]
struct RawFrame {
    kind: u8,
    flags: u8,
    /// The highest six bits are the policy of a packet's flow.
    flow: u16,
    sequence: u16,
    body: Vec<u8>,
}

#[derive(Debug, Clone, TypeGenerator)]
enum Step {
    /// A datagram on a path, from an address, with a number so far above the last one.
    Datagram(u8, u8, u16, Vec<RawFrame>),
    /// A datagram of these bytes.
    Bytes(u8, Vec<u8>),
    /// An inner packet of so many bytes.
    Send(u16),
    /// So many milliseconds.
    Pass(u16),
}

/// A peer that has the keys and keeps no rule.
#[test]
fn peer() {
    let steps = produce::<Vec<Step>>().with().len(0..200);
    check!().with_generator(steps).for_each(|steps| {
        let mut end = server();
        let mut now = Instant::ZERO;
        let mut numbers = [0u64; 16];
        let (mut received, mut sent) = (0, 0);
        for step in steps {
            match step {
                Step::Datagram(path, from, skip, frames) => {
                    let path = path % 16;
                    let number = &mut numbers[usize::from(path)];
                    *number += u64::from(skip >> (skip % 16)) + 1;
                    let frames: Vec<u8> = frames.iter().flat_map(raw).collect();
                    let mut datagram = seal(path, *number, &frames);
                    received += datagram.len();
                    // Whatever the peer broke, the end lives on.
                    let _ = end.receive(now, addr(from % 2), &mut datagram);
                }
                Step::Bytes(path, frames) => {
                    let path = path % 16;
                    numbers[usize::from(path)] += 1;
                    let mut datagram = seal(path, numbers[usize::from(path)], frames);
                    received += datagram.len();
                    let _ = end.receive(now, addr(0), &mut datagram);
                }
                Step::Send(len) => {
                    let packet = inner(len % 1481);
                    // Without a path, packets wait until the queue is full.
                    let _ = end.send(now, FlowPolicy::default(), &packet);
                }
                Step::Pass(millis) => {
                    now += std::time::Duration::from_millis(u64::from(*millis));
                    end.handle_timeout(now);
                }
            }
            sent += drain(&mut end, now);
            // The peer cannot know the data of a challenge, so no address is ever proved.
            assert!(sent <= received, "{sent} bytes for {received}");
        }
    });
}

/// Returns the bytes of a frame.
fn raw(frame: &RawFrame) -> Vec<u8> {
    let mut bytes = vec![(frame.kind % 9) | (frame.flags & 0xe0)];
    let has_policy = matches!(frame.kind % 9, 1 | 2);
    let mask = if has_policy { 0xfcff } else { 0x00ff };
    bytes.extend_from_slice(&(frame.flow & mask).to_be_bytes());
    bytes.extend_from_slice(&u32::from(frame.sequence).to_be_bytes()[1..]);
    bytes.extend_from_slice(&(frame.body.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&frame.body);
    bytes
}

/// Returns an IPv4 packet with `len` bytes of payload.
fn inner(len: u16) -> Vec<u8> {
    let mut packet = vec![0; 20 + usize::from(len)];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    packet[9] = 253;
    packet
}
