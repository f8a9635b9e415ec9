//! A user with a key and a program of its own, which speaks as a box does, and ends as the test wants.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_engine::ConnId;
use braid_secure::keys::{PrivateKey, PublicKey};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::quic::{ClientConnection, KeyChange, PacketKey, Secrets, Version};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::world::{World, box_key};

pub const GREETING: [u8; 3] = [5, 1, 0];
/// Metadata without hints, CONNECT to [`CONTENT`](crate::world::CONTENT), and early hints without hints.
pub const REQUEST: [u8; 15] = [0xb5, 0, 0, 5, 1, 0, 1, 198, 51, 100, 1, 0, 80, 0, 0];

/// Content types of records (`docs/protocol.md`).
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const DATA: u8 = 23;
pub const FLOW_END: u8 = 0xe0;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 1];
/// Most payload bytes of a record.
const MOST: usize = (16 << 10) - 22;

/// The keys of a level, ours and the server's, each with the number of the next record.
type Keys = [(Box<dyn PacketKey>, u64); 2];

/// A connection of the host without a core.
pub struct Program {
    pub conn: ConnId,
    session: ClientConnection,
    /// The keys of the handshake, and of what follows.
    keys: [Option<Keys>; 2],
    next: Option<Secrets>,
    /// The server's next keys, for rekeys that this end began.
    servers_next: VecDeque<Box<dyn PacketKey>>,
    /// The levels of writing and reading: 0 is plaintext.
    level: usize,
    hears: usize,
    /// Number of times that the server replaced its key.
    pub followed: usize,
    /// Bytes to be sent, and bytes received that are not yet a whole record.
    pub out: Vec<u8>,
    heard: Vec<u8>,
    /// Data received from the server.
    pub got: Vec<u8>,
    /// Descriptions of the alerts received.
    pub alerts: Vec<u8>,
    /// The length of `got` at each end of a user's bytes.
    pub ends: Vec<usize>,
}

impl Program {
    /// Connects, and sends a ClientHello with the box's key.
    pub fn connect(w: &mut World) -> Program {
        Program::connect_as(w, b"braid/4", None)
    }

    /// Connects, and requests [`CONTENT`](crate::world::CONTENT) with `words` behind the request.
    pub fn asking(w: &mut World, words: &[u8]) -> Program {
        let mut program = Program::connect(w);
        program.say(w, &[&GREETING[..], &REQUEST, words].concat());
        program
    }

    /// Connects with another ALPN protocol, and with an error about the server's key.
    pub fn connect_as(
        w: &mut World,
        protocol: &[u8],
        mistake: Option<CertificateError>,
    ) -> Program {
        let key = box_key();
        Program::connect_by(w, protocol, mistake, (key.public(), &key))
    }

    /// Connects as an attacker who presents the first key and signs by the second.
    pub fn pretending(w: &mut World, shows: PublicKey, has: &PrivateKey) -> Program {
        Program::connect_by(w, b"braid/4", None, (shows, has))
    }

    fn connect_by(
        w: &mut World,
        protocol: &[u8],
        mistake: Option<CertificateError>,
        (shows, has): (PublicKey, &PrivateKey),
    ) -> Program {
        let pkcs8 = has.to_pkcs8();
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()));
        let public = CertificateDer::from(shows.to_spki());
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
            servers_next: VecDeque::new(),
            level: 0,
            hears: 0,
            followed: 0,
            out: Vec::new(),
            heard: Vec::new(),
            got: Vec::new(),
            alerts: Vec::new(),
            ends: Vec::new(),
        };
        program.go_on(w);
        program
    }

    /// Sends queued bytes, and processes what comes for a while.
    pub fn go_on(&mut self, w: &mut World) {
        assert!(self.try_go_on(w), "it takes what there is to say");
    }

    /// Works as [`go_on`](Self::go_on) does; returns false where the server has ended the connection.
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
            while let Some((content, body)) = self.next_record() {
                match content {
                    HANDSHAKE if body.starts_with(&KEY_UPDATE[..4]) => self.follow(),
                    HANDSHAKE => {
                        if self.session.read_hs(&body).is_err() {
                            let alert = self.session.alert().unwrap();
                            self.record(ALERT, &[2, alert.into()]);
                        }
                        self.shake_hands();
                    }
                    ALERT => self.alerts.push(body[1]),
                    DATA => self.got.extend(body),
                    FLOW_END => self.ends.push(self.got.len()),
                    _ => panic!("no such content: {content}"),
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
                self.record(HANDSHAKE, &messages);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.keys[0] = Some([(keys.local.packet, 0), (keys.remote.packet, 0)]);
                    (self.level, self.hears) = (1, 1);
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.keys[1] = Some([(keys.local.packet, 0), (keys.remote.packet, 0)]);
                    (self.next, self.level, self.hears) = (Some(next), 2, 2);
                }
                None => return,
            }
        }
    }

    fn keys(&mut self, level: usize, theirs: bool) -> Option<&mut (Box<dyn PacketKey>, u64)> {
        let keys = self.keys.get_mut(level.checked_sub(1)?)?.as_mut()?;
        Some(&mut keys[usize::from(theirs)])
    }

    /// Queues a record.
    pub fn record(&mut self, content: u8, bytes: &[u8]) {
        self.padded(content, bytes, 0);
    }

    /// Queues a record with zeros behind its content type.
    pub fn padded(&mut self, content: u8, bytes: &[u8], zeros: usize) {
        let mut body = bytes.to_vec();
        let header = |content: u8, len: usize| {
            let [a, b] = u16::try_from(len).unwrap().to_be_bytes();
            [content, 3, 3, a, b]
        };
        let header = match self.keys(self.level, false) {
            None => header(content, body.len()),
            Some((key, number)) => {
                body.push(content);
                body.resize(body.len() + zeros, 0);
                let header = header(DATA, body.len() + 16);
                let tag = key.encrypt_in_place(*number, &header, &mut body).unwrap();
                body.extend_from_slice(tag.as_ref());
                *number += 1;
                header
            }
        };
        self.out.extend_from_slice(&header);
        self.out.extend(body);
    }

    fn next_record(&mut self) -> Option<(u8, Vec<u8>)> {
        let header = *self.heard.first_chunk::<5>()?;
        let end = 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
        let mut body = self.heard.get(5..end)?.to_vec();
        self.heard.drain(..end);
        let mut content = header[0];
        if content == DATA {
            let (key, number) = self.keys(self.hears, true).unwrap();
            let opened = key.decrypt_in_place(*number, &header, &mut body);
            let len = opened.unwrap().iter().rposition(|byte| *byte != 0).unwrap();
            *number += 1;
            content = body[len];
            body.truncate(len);
        }
        Some((content, body))
    }

    /// Queues data.
    pub fn data(&mut self, bytes: &[u8]) {
        bytes.chunks(MOST).for_each(|part| self.record(DATA, part));
    }

    /// Queues the end of a user's bytes.
    pub fn end(&mut self) {
        self.record(FLOW_END, &[]);
    }

    /// Queues a close_notify.
    pub fn close(&mut self) {
        self.record(ALERT, &CLOSE_NOTIFY);
    }

    /// Queues a KeyUpdate, and replaces the key.
    pub fn renew(&mut self) {
        self.record(HANDSHAKE, &KEY_UPDATE);
        let keys = self.next.as_mut().unwrap().next_packet_keys();
        self.servers_next.push_back(keys.remote);
        self.keys[1].as_mut().unwrap()[0] = (keys.local, 0);
    }

    /// Replaces the server's key, as it was asked to.
    fn follow(&mut self) {
        let key = self.servers_next.pop_front().expect("it was asked to");
        self.keys[1].as_mut().unwrap()[1] = (key, 0);
        self.followed += 1;
    }

    pub fn say(&mut self, w: &mut World, bytes: &[u8]) {
        self.data(bytes);
        self.go_on(w);
    }
}

/// Accepts any server, or fails with this error.
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
