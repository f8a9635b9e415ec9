//! A user with a key of its own program: it speaks as a box does, and ends as it likes.

use std::sync::Arc;

use braid_engine::ConnId;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::quic::{ClientConnection, KeyChange, PacketKey, Secrets, Version};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::world::{World, box_key};

pub const GREETING: [u8; 3] = [5, 1, 0];
/// A note without hints, CONNECT to [`CONTENT`](crate::world::CONTENT), and a foreword without hints.
pub const REQUEST: [u8; 15] = [0xb5, 0, 0, 5, 1, 0, 1, 198, 51, 100, 1, 0, 80, 0, 0];

/// Kinds of records, with the level in the upper half.
const HANDSHAKE: u8 = 1;
const DATA: u8 = 0x32;
const FLOW_END: u8 = 0x33;
const KEY_UPDATE: u8 = 0x34;
const CLOSE: u8 = 0x35;
const ALERT: u8 = 6;
/// Most bytes of a record.
const MOST: usize = (16 << 10) - 19;

/// Keys of a level, ours and the server's.
type Keys = (Box<dyn PacketKey>, Box<dyn PacketKey>);

/// A connection of the host without a core.
pub struct Program {
    pub conn: ConnId,
    session: ClientConnection,
    /// Of the handshake, and of what follows.
    keys: [Option<Keys>; 2],
    next: Option<Secrets>,
    /// By which key it says what it says.
    level: u8,
    numbers: (u64, u64),
    /// What it has not said yet, and heard in part.
    pub out: Vec<u8>,
    heard: Vec<u8>,
    /// What the server said.
    pub got: Vec<u8>,
    /// How much of that it had said when users' bytes ended.
    pub ends: Vec<usize>,
}

impl Program {
    /// Connects and says hello, with the box's key.
    pub fn connect(w: &mut World) -> Program {
        Program::connect_as(w, b"braid/3", None)
    }

    /// Connects, and asks for [`CONTENT`](crate::world::CONTENT) with those words behind the request.
    pub fn asking(w: &mut World, words: &[u8]) -> Program {
        let mut program = Program::connect(w);
        program.say(w, &[&GREETING[..], &REQUEST, words].concat());
        program
    }

    /// As [`connect`](Self::connect), for another protocol, and with a mistake that is found in the server's key.
    pub fn connect_as(
        w: &mut World,
        protocol: &[u8],
        mistake: Option<CertificateError>,
    ) -> Program {
        let key = box_key();
        let pkcs8 = key.to_pkcs8();
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()));
        let public = CertificateDer::from(key.public().to_spki());
        let certified = Arc::new(CertifiedKey::new(vec![public], signing.unwrap()));
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Judge(mistake)))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.enable_sni = false;
        let name = ServerName::IpAddress(core::net::Ipv4Addr::LOCALHOST.into());
        let session = ClientConnection::new(Arc::new(config), Version::V1, name, Vec::new());
        let mut program = Program {
            conn: w.raw_connect(),
            session: session.unwrap(),
            keys: [None, None],
            next: None,
            level: 0,
            numbers: (0, 0),
            out: Vec::new(),
            heard: Vec::new(),
            got: Vec::new(),
            ends: Vec::new(),
        };
        program.go_on(w);
        program
    }

    /// Says what there is to say, and hears what there is to hear, for a while.
    pub fn go_on(&mut self, w: &mut World) {
        assert!(self.try_go_on(w), "it takes what there is to say");
    }

    /// The same where the server may have ended it, so that nothing can be said; whether something could.
    pub fn try_go_on(&mut self, w: &mut World) -> bool {
        for _ in 0..10 {
            self.shake_hands();
            if !self.out.is_empty() {
                let out = core::mem::take(&mut self.out);
                if w.raw.write(w.now, self.conn, &out) != Ok(out.len()) {
                    return false;
                }
            }
            w.run_for(core::time::Duration::from_millis(20));
            self.heard.extend(w.raw_read(self.conn));
            while let Some((kind, body)) = self.next_record() {
                match kind & 0xf {
                    HANDSHAKE => {
                        if self.session.read_hs(&body).is_err() {
                            let alert = self.session.alert().unwrap();
                            self.record(self.level << 4 | ALERT, &[alert.into()]);
                        }
                        self.shake_hands();
                    }
                    2 => self.got.extend(body),
                    3 => self.ends.push(self.got.len()),
                    _ => {}
                }
            }
        }
        true
    }

    fn shake_hands(&mut self) {
        loop {
            let mut messages = Vec::new();
            let change = self.session.write_hs(&mut messages);
            if !messages.is_empty() {
                self.record(self.level << 4 | HANDSHAKE, &messages);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.keys[0] = Some((keys.local.packet, keys.remote.packet));
                    self.level = 2;
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.keys[1] = Some((keys.local.packet, keys.remote.packet));
                    (self.next, self.level) = (Some(next), 3);
                }
                None => return,
            }
        }
    }

    fn keys(&self, kind: u8) -> Option<&Keys> {
        let level = usize::from(kind >> 4).checked_sub(2)?;
        self.keys.get(level)?.as_ref()
    }

    /// Adds a record to what is to be said.
    pub fn record(&mut self, kind: u8, bytes: &[u8]) {
        let number = self.numbers.0;
        self.numbers.0 += 1;
        let mut body = bytes.to_vec();
        let tag = if kind >> 4 == 0 { 0 } else { 16 };
        let [a, b] = u16::try_from(body.len() + tag).unwrap().to_be_bytes();
        let header = [kind, a, b];
        if let Some((ours, _)) = self.keys(kind) {
            let tag = ours.encrypt_in_place(number, &header, &mut body).unwrap();
            body.extend_from_slice(tag.as_ref());
        }
        self.out.extend_from_slice(&header);
        self.out.extend(body);
    }

    fn next_record(&mut self) -> Option<(u8, Vec<u8>)> {
        let header = *self.heard.first_chunk::<3>()?;
        let end = 3 + usize::from(u16::from_be_bytes([header[1], header[2]]));
        let mut body = self.heard.get(3..end)?.to_vec();
        self.heard.drain(..end);
        let number = self.numbers.1;
        self.numbers.1 += 1;
        if let Some((_, theirs)) = self.keys(header[0]) {
            let opened = theirs.decrypt_in_place(number, &header, &mut body);
            let len = opened.unwrap().len();
            body.truncate(len);
        }
        Some((header[0], body))
    }

    /// Adds bytes to what is to be said.
    pub fn data(&mut self, bytes: &[u8]) {
        bytes.chunks(MOST).for_each(|part| self.record(DATA, part));
    }

    /// Adds the end of a user's bytes.
    pub fn end(&mut self) {
        self.record(FLOW_END, &[]);
    }

    /// Adds that nothing more will be said.
    pub fn close(&mut self) {
        self.record(CLOSE, &[]);
    }

    /// Adds that another key follows.
    pub fn renew(&mut self) {
        self.record(KEY_UPDATE, &[]);
        let keys = self.next.as_mut().unwrap().next_packet_keys();
        self.keys[1].as_mut().unwrap().0 = keys.local;
    }

    pub fn say(&mut self, w: &mut World, bytes: &[u8]) {
        self.data(bytes);
        self.go_on(w);
    }
}

/// Takes any server, or none.
#[derive(Debug)]
struct Judge(Option<CertificateError>);

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.0 {
            None => Ok(ServerCertVerified::assertion()),
            Some(mistake) => Err(mistake.clone().into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("only TLS 1.3 is spoken")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
