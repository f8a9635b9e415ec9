//! A user with a key of its own program: it speaks TLS as a box does, and ends as it likes.

use std::sync::Arc;

use braid_engine::ConnId;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
};
use std::io::{Read, Write};

use crate::world::{World, box_key};

pub const GREETING: [u8; 3] = [5, 1, 0];
/// A note without hints, CONNECT to [`CONTENT`](crate::world::CONTENT), and in a frame a foreword without
/// hints.
pub const REQUEST: [u8; 17] = [0xb5, 0, 0, 5, 1, 0, 1, 198, 51, 100, 1, 0, 80, 0, 2, 0, 0];
/// The end of what a user says.
pub const END: [u8; 2] = [0, 0];

/// What a user says, in a frame.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap();
    [&len.to_be_bytes()[..], bytes].concat()
}

/// A connection of the host without a core.
pub struct Program {
    pub conn: ConnId,
    pub session: ClientConnection,
    /// What the server said.
    pub got: Vec<u8>,
}

impl Program {
    /// Connects and says hello, with the box's key.
    pub fn connect(w: &mut World) -> Program {
        Program::connect_as(w, b"braid/2", None)
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
        let mut program = Program {
            conn: w.raw_connect(),
            session: ClientConnection::new(Arc::new(config), name).unwrap(),
            got: Vec::new(),
        };
        program.go_on(w);
        program
    }

    /// Says what there is to say, and hears what there is to hear, for a while.
    pub fn go_on(&mut self, w: &mut World) {
        for _ in 0..10 {
            let mut out = Vec::new();
            while self.session.wants_write() {
                self.session.write_tls(&mut out).unwrap();
            }
            if !out.is_empty() {
                assert_eq!(w.raw.write(w.now, self.conn, &out), Ok(out.len()));
            }
            w.run_for(core::time::Duration::from_millis(20));
            let heard = w.raw_read(self.conn);
            let mut heard = &heard[..];
            while !heard.is_empty() {
                self.session.read_tls(&mut heard).unwrap();
                let Ok(state) = self.session.process_new_packets() else {
                    // What is wrong is said in the next round.
                    break;
                };
                let mut said = vec![0; state.plaintext_bytes_to_read()];
                self.session.reader().read_exact(&mut said).unwrap();
                self.got.extend(said);
            }
        }
    }

    pub fn say(&mut self, w: &mut World, bytes: &[u8]) {
        self.session.writer().write_all(bytes).unwrap();
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
