use braid_wire::Instant;
use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{Connection, KeyChange, Keys, Version};

use super::*;
use crate::channel::{Client, Server, Versions};
use crate::keys::PrivateKey;

const DATA: (EncryptionLevel, ContentType) = (EncryptionLevel::Traffic, ContentType::Data);

/// The keys of one end: for records that it seals, for records that it opens, and the next keys.
struct End {
    out: DirectionKeys,
    into: DirectionKeys,
    next: NextKeys,
}

impl End {
    fn new(keys: Keys, next: Secrets) -> End {
        let (mut out, mut into) = (DirectionKeys::new(), DirectionKeys::new());
        out.set_traffic(keys.local.packet);
        into.set_traffic(keys.remote.packet);
        End {
            out,
            into,
            next: NextKeys::new(next),
        }
    }

    fn rekey_out(&mut self) {
        self.out.replace_key(self.next.local().unwrap());
    }

    fn rekey_into(&mut self) {
        self.into.replace_key(self.next.remote().unwrap());
    }
}

/// Returns a box and its server after their handshake.
fn ends() -> [End; 2] {
    let [key, server_key] = [1, 2].map(|n| PrivateKey::from_seed([n; 32]));
    let client = Client::new(&key, server_key.public(), Versions::OURS);
    let server = Server::new(&server_key, [key.public()], Versions::OURS);
    let mut ends: [Connection; 2] = [
        client.connect(Instant::ZERO).unwrap().into(),
        server.accept().unwrap().0.into(),
    ];
    let mut keys: [Option<End>; 2] = [None, None];
    while ends.iter().any(|end| end.is_handshaking()) {
        for (from, to) in [(0, 1), (1, 0)] {
            loop {
                let mut messages = Vec::new();
                let change = ends[from].write_hs(&mut messages);
                ends[to].read_hs(&messages).unwrap();
                match change {
                    Some(KeyChange::OneRtt { keys: k, next }) => {
                        keys[from] = Some(End::new(k, next));
                    }
                    Some(KeyChange::Handshake { .. }) => {}
                    None => break,
                }
            }
        }
    }
    keys.map(|end| end.expect("keys"))
}

fn directions() -> (DirectionKeys, DirectionKeys) {
    let [client, server] = ends();
    (client.out, server.into)
}

fn seal_padded(
    keys: &mut DirectionKeys,
    kind: (EncryptionLevel, ContentType),
    bytes: &[u8],
    padding: usize,
) -> Vec<u8> {
    let mut record = [&[0; HEADER_LEN], bytes].concat();
    record.resize(bytes.len() + RECORD_OVERHEAD + padding, 0);
    keys.seal(kind, &mut record, bytes.len()).unwrap();
    record
}

fn seal(keys: &mut DirectionKeys, kind: (EncryptionLevel, ContentType), bytes: &[u8]) -> Vec<u8> {
    seal_padded(keys, kind, bytes, 0)
}

fn open_as(
    keys: &mut DirectionKeys,
    record: &[u8],
) -> Result<(ContentType, Vec<u8>), ChannelError> {
    let (head, body) = record.split_first_chunk().unwrap();
    let header = Header::read(*head)?;
    assert_eq!(header.body_len, body.len());
    let mut body = body.to_vec();
    let (content, len) = keys.open(EncryptionLevel::Traffic, &header, &mut body)?;
    body.truncate(len);
    Ok((content, body))
}

fn open(keys: &mut DirectionKeys, record: &[u8]) -> Result<Vec<u8>, ChannelError> {
    open_as(keys, record).map(|(_, bytes)| bytes)
}

#[test]
fn records_open_in_the_order_of_sealing_only() {
    let (mut out, mut into) = directions();
    let records = [&b"one"[..], b"", b"three"].map(|bytes| seal(&mut out, DATA, bytes));
    assert_eq!(open(&mut into, &records[0]).unwrap(), b"one");
    // Record 2 is out of order; record 1 comes a second time.
    assert_eq!(open(&mut into, &records[2]), Err(ChannelError::Damaged));
    assert_eq!(open(&mut into, &records[1]).unwrap(), b"");
    assert_eq!(open(&mut into, &records[1]), Err(ChannelError::Damaged));
    assert_eq!(open(&mut into, &records[2]).unwrap(), b"three");
}

#[test]
fn a_changed_bit_is_found_in_each_byte() {
    // The record has 3 payload bytes.
    for at in 0..RECORD_OVERHEAD + 3 {
        let (mut out, mut into) = directions();
        let mut record = seal(&mut out, DATA, b"abc");
        // Bytes 3 and 4 are the length. With a wrong length the helper `open` already fails, so the length has its
        // own case below.
        if at == 3 || at == 4 {
            continue;
        }
        record[at] ^= 1;
        let found = open(&mut into, &record);
        assert_eq!(found, Err(ChannelError::Damaged), "byte {at}");
    }
    // The length is authenticated too: the record grows by a byte, and its header says so.
    let (mut out, mut into) = directions();
    let mut record = seal(&mut out, DATA, b"abc");
    record[4] += 1;
    record.push(0);
    assert_eq!(open(&mut into, &record), Err(ChannelError::Damaged));
}

/// The header shows neither the content type nor the length of the payload: all these records encrypt 128 bytes
/// and have a tag of 16.
#[test]
fn content_type_and_padding_are_encrypted() {
    for content in [
        ContentType::Alert,
        ContentType::Handshake,
        ContentType::Data,
        ContentType::FlowEnd,
    ] {
        for bytes in [&b""[..], b"a name", &[0; 40]] {
            let (mut out, mut into) = directions();
            let pad = padding(bytes.len(), false);
            let record = seal_padded(&mut out, (EncryptionLevel::Traffic, content), bytes, pad);
            assert_eq!(record[..5], [23, 3, 3, 0, 128 + 16]);
            let opened = open_as(&mut into, &record);
            assert_eq!(opened, Ok((content, bytes.to_vec())));
        }
    }
    // Zeros alone have no content type (RFC 8446 section 5.4), and the content type 24 is unknown.
    for inside in [&[0; 20][..], &[1, 2, 3, 24]] {
        let (mut out, mut into) = directions();
        let header = [23, 3, 3, 0, inside.len() as u8 + 16];
        let mut body = inside.to_vec();
        let key = out.key(EncryptionLevel::Traffic).unwrap();
        let tag = key.key.encrypt_in_place(0, &header, &mut body).unwrap();
        let record = [&header[..], &body, tag.as_ref()].concat();
        assert_eq!(open(&mut into, &record), Err(ChannelError::Damaged));
    }
}

#[test]
fn messages_come_in_few_sizes_and_users_bytes_are_never_tiny() {
    // The sizes include the content type, so a payload of 1,023 bytes is the longest that is padded to 1,024.
    let sizes = |is_user_data: bool, lens: core::ops::Range<usize>| {
        let mut sizes: Vec<usize> = lens
            .map(|len| len + 1 + padding(len, is_user_data))
            .collect();
        sizes.dedup();
        sizes
    };
    assert_eq!(sizes(false, 0..1024), [128, 256, 512, 1024]);
    // One or two packets of 1,400 less header (5) and tag (16).
    assert_eq!(sizes(false, 1024..1400), [1379, 2758]);
    assert_eq!(
        sizes(false, MAX_PAYLOAD - 9..MAX_PAYLOAD + 1),
        [MAX_PAYLOAD + 1]
    );
    assert_eq!(sizes(true, 0..130), [128, 129, 130]);
}

#[test]
fn keys_reach_their_limit_and_are_replaced() {
    let [mut client, mut server] = ends();
    let limit = client.out.traffic.as_ref().unwrap().limit;
    assert_eq!(
        limit,
        (1 << 23) - MAX_RECORDS_PER_WRITE as u64,
        "the limit of RFC 9001 section 6.6, less one batch"
    );
    client.out.key(EncryptionLevel::Traffic).unwrap().number = limit - 1;
    server.into.key(EncryptionLevel::Traffic).unwrap().number = limit - 1;
    assert!(!client.out.is_key_limit_reached());
    let old = seal(&mut client.out, DATA, b"old");
    assert!(client.out.is_key_limit_reached());
    client.rekey_out();
    assert!(!client.out.is_key_limit_reached());
    let new = seal(&mut client.out, DATA, b"new");
    assert_eq!(open(&mut server.into, &old).unwrap(), b"old");
    server.rekey_into();
    assert_eq!(open(&mut server.into, &new).unwrap(), b"new");
    // After the server has replaced the key, a record under the old key does not open.
    let [mut client, mut server] = ends();
    let under_old = seal(&mut client.out, DATA, b"old");
    server.rekey_into();
    assert_eq!(
        open(&mut server.into, &under_old),
        Err(ChannelError::Damaged)
    );
}

/// The keys of both ends agree in whatever order the directions rekey.
#[test]
fn directions_rekey_in_any_order() {
    let [mut client, mut server] = ends();
    for (of_client, times) in [(true, 1), (false, 3), (true, 4), (false, 2)] {
        for _ in 0..times {
            let (from, to) = match of_client {
                true => (&mut client, &mut server),
                false => (&mut server, &mut client),
            };
            from.rekey_out();
            to.rekey_into();
            let record = seal(&mut from.out, DATA, b"new");
            assert_eq!(open(&mut to.into, &record).unwrap(), b"new");
        }
    }
    // Both directions have rekeyed five times (1 + 4 and 3 + 2). Neither is behind, and no derived key waits.
    assert!(!client.out.is_behind(&client.into) && !client.into.is_behind(&client.out));
    assert!(client.next.local.is_empty() && client.next.remote.is_empty());
}

/// Forward secrecy: after two rekeys of the client, no key that the server still has or can derive opens a record
/// under the client's second key.
#[test]
fn a_replaced_key_cannot_be_derived_again() {
    let [mut client, mut server] = ends();
    let second = |end: &mut End| {
        end.rekey_out();
        seal(&mut end.out, DATA, b"of the second key")
    };
    let record = second(&mut client);
    server.rekey_into();
    assert_eq!(
        open(&mut server.into, &record).unwrap(),
        b"of the second key"
    );
    client.rekey_out();
    server.rekey_into();
    // The client's second key is used up at the server. Its waiting keys and secrets give later keys only.
    let mut remaining = vec![server.next.remote().unwrap()];
    remaining.extend(core::iter::from_fn(|| server.next.remote.pop_front()));
    remaining.extend((0..3).map(|_| server.next.secrets.next_packet_keys().remote));
    for key in remaining {
        let (head, body) = record.split_first_chunk::<HEADER_LEN>().unwrap();
        let opened = key.decrypt_in_place(0, head, &mut body.to_vec()).is_ok();
        assert!(!opened);
    }
}

#[test]
fn keys_for_a_direction_that_does_not_follow_are_bounded() {
    let [mut client, _] = ends();
    for _ in 0..MAX_KEYS_AHEAD {
        assert!(client.next.remote().is_ok());
    }
    assert!(matches!(client.next.remote(), Err(ChannelError::Damaged)));
}

#[test]
fn invalid_headers_are_refused() {
    let head = |kind: u8, len: u16| {
        let [a, b] = len.to_be_bytes();
        Header::read([kind, 3, 3, a, b]).map(|header| (header.outer as u8, header.body_len))
    };
    let max_body = (MAX_RECORD - HEADER_LEN) as u16;
    assert_eq!(head(23, max_body), Ok((23, MAX_RECORD - HEADER_LEN)));
    assert_eq!(head(23, max_body + 1), Err(ChannelError::Damaged));
    // A protected record has at least a content type and a tag, 17 bytes; a plaintext record may be empty.
    assert_eq!(head(23, 17), Ok((23, 17)));
    assert_eq!(head(23, 16), Err(ChannelError::Damaged));
    assert_eq!(head(FIRST_TLS_BYTE, 0), Ok((FIRST_TLS_BYTE, 0)));
    let known: Vec<u8> = (0..=255).filter(|kind| head(*kind, 100).is_ok()).collect();
    assert_eq!(known, [21, 22, 23]);
    let versions = [[3, 3], [3, 1], [3, 4], [2, 0]];
    let read = |kind: u8| versions.map(|[a, b]| Header::read([kind, a, b, 0, 100]).is_ok());
    assert_eq!(read(FIRST_TLS_BYTE), [true, true, false, false]);
    assert_eq!(read(23), [true, false, false, false]);
}

/// Records sealed by another library (AES-GCM of OpenSSL) with the same keys.
const VECTORS: [&str; 3] = [
    "170303001628d17db6f56b94aec22de6ce1c83e0f81294503e14fd",
    "17030300188a3aabbc0787c2ce55761221a3eb2525c2be761a7b08c259",
    "1703030013d6b19c885a78c61e455be8d77fc825c9aeafaa",
];

/// The keys are those of RFC 9001 appendix A.1; `docs/security.md` shows the records for other implementations.
#[test]
fn records_equal_the_vectors() {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let quic = suite.quic_suite().unwrap();
    let id = 0x8394_c8f0_3e51_5708_u64.to_be_bytes();
    let keys = Keys::initial(Version::V1, quic.suite, quic.quic, &id, Side::Client);
    let mut direction = DirectionKeys::new();
    direction.set_traffic(keys.local.packet);
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let records = [
        seal(&mut direction, DATA, b"hello"),
        seal_padded(
            &mut direction,
            (EncryptionLevel::Traffic, ContentType::FlowEnd),
            b"",
            7,
        ),
        seal(
            &mut direction,
            (EncryptionLevel::Traffic, ContentType::Alert),
            &CLOSE_NOTIFY,
        ),
    ];
    assert_eq!(records.map(|record| hex(&record)), VECTORS);
}

#[test]
fn memory_is_divided_into_record_slots() {
    let lens = |bufs: &[usize]| -> Vec<usize> {
        let mut memory: Vec<Vec<u8>> = bufs.iter().map(|len| vec![0; *len]).collect();
        let mut bufs: Vec<_> = memory.iter_mut().map(|m| IoSliceMut::new(m)).collect();
        split_into_records(&mut bufs)
            .iter()
            .map(|place| place.len())
            .collect()
    };
    assert_eq!(lens(&[32 << 10, 32 << 10]), [16 << 10; 4]);
    // No record exceeds 16 KiB, and memory is divided evenly so that none is a small remainder.
    assert_eq!(lens(&[(16 << 10) + 1]), [8 << 10, (8 << 10) + 1]);
    assert_eq!(lens(&[100, 32 << 10, 50]), [100, 16 << 10, 16 << 10, 50]);
    // The last buffer is too small for any payload.
    assert_eq!(lens(&[20_000, RECORD_OVERHEAD]), [10_000, 10_000]);
    assert_eq!(lens(&[RECORD_OVERHEAD]), []);
    assert_eq!(lens(&[32 << 10; 20]).len(), MAX_RECORDS_PER_WRITE);
}
