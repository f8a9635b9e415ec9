//! The TLS 1.3 (RFC 8446) configuration of both ends, with raw public keys (RFC 7250). Box and server have one key
//! each, so there are no certificates to manage.
//!
//! A ticket is valid for one connection: the server forgets the ticket when a client uses it. If an attacker
//! replays a first flight, the server no longer knows the ticket in that flight. The attacker then has to prove the
//! client's key by a full handshake, and cannot.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use braid_wire::Instant;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    AlwaysResolvesClientRawPublicKeys, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, StoresServerSessions};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, NamedGroup,
    ServerConfig, SignatureScheme, quic, version,
};
use zeroize::Zeroizing;

use super::ChannelError;
use super::parameters::{self, JoinSecret};
use super::record::RECORD_OVERHEAD;
use super::scratch::Scratch;
use super::versions::{Agreed, Versions};
use crate::Families;
use crate::auth::WallClock;
use crate::keys::{PrivateKey, PublicKey};

/// The protocol that both ends announce (ALPN, RFC 7301), so that a peer with another record format is refused in
/// the handshake. The number counts record formats; [`Versions`] counts messages within one format.
const ALPN_PROTOCOL: &[u8] = b"braid/4";

/// Maximum number of bytes of early data, with padding. 14 KiB is about an initial window of 10 segments (RFC
/// 6928): more could not leave before the server's answer.
pub(super) const MAX_EARLY_DATA: usize = 14 << 10;
/// Maximum number of early records, which bounds their total overhead. 64 is a guess: many times the few writes
/// (request, hints, a user's first bytes) before the server's answer.
pub(super) const MAX_EARLY_RECORDS: usize = 64;
/// Maximum number of bytes of early data on the wire. The server reads at most this number of bytes. If it does
/// not know the ticket, it skips them instead.
pub(super) const MAX_EARLY_DATA_ON_WIRE: usize =
    MAX_EARLY_DATA + MAX_EARLY_RECORDS * RECORD_OVERHEAD;

/// Number of tickets that a server issues on each connection: one replaces the ticket that the connection used,
/// the other lets the box open more connections than before.
const TICKETS_PER_CONNECTION: usize = 2;
/// Maximum number of tickets that a box keeps for each server; the oldest is dropped first. 64 is a guess: more
/// than the connections that a box opens at once.
const MAX_CLIENT_TICKETS: usize = 64;
/// The lifetime of an unused ticket at either end. During the lifetime, somebody who reads an end's memory can
/// decrypt the early data that its tickets protect. A day is a guess, below the seven days that RFC 8446 section
/// 4.6.1 allows.
const TICKET_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of tickets that a server remembers for all users; the oldest are dropped first. 16,384 is a
/// guess: 64 tickets of each of 256 boxes. A box whose ticket was dropped needs one more round trip to connect; no
/// connection fails.
const MAX_SERVER_TICKETS: usize = 16 << 10;

/// The clock that rustls uses for the age of tickets. The wall clock is set seldom and advances by the driver's
/// instants in between, because this crate reads no clock.
#[derive(Debug, Default)]
pub(super) struct TicketClock {
    /// Wall-clock time at [`Instant::ZERO`], milliseconds since 1970-01-01 UTC.
    zero_ms: AtomicU64,
    /// The latest instant, milliseconds since [`Instant::ZERO`].
    now_ms: AtomicU64,
}

impl TicketClock {
    fn set(&self, now: Instant, wall: &WallClock) {
        let zero_ms = wall.unix_ms(Instant::ZERO);
        self.zero_ms.store(zero_ms, Ordering::Relaxed);
        self.advance(now);
    }

    /// Advances the clock to `now`.
    pub(super) fn advance(&self, now: Instant) {
        self.now_ms.store(now.as_millis(), Ordering::Relaxed);
    }

    /// Returns the latest instant as time since [`Instant::ZERO`]. Steps of the wall clock do not change it.
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::Relaxed))
    }
}

impl TimeProvider for TicketClock {
    fn current_time(&self) -> Option<UnixTime> {
        let zero = Duration::from_millis(self.zero_ms.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(zero + self.now()))
    }
}

/// The reason why configuring the version cannot fail, for `expect`.
const SUITES_ARE_TLS13: &str = "the suites are of TLS 1.3";

/// Returns a provider with one key exchange and two ciphers, so that little is negotiable. The second cipher is
/// faster on machines without AES instructions.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
}

/// Wraps a key for rustls, with its public key in place of a certificate.
fn certified_key(key: &PrivateKey) -> Arc<CertifiedKey> {
    let pkcs8 = key.to_pkcs8();
    let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()))
        .expect("32 bytes are an Ed25519 key");
    let public = CertificateDer::from(key.public().to_spki());
    Arc::new(CertifiedKey::new(vec![public], signing))
}

/// Returns the public key that stands in place of a certificate.
pub(super) fn public_key_of(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    PublicKey::from_spki(certificate)
}

/// State that all connections of a [`Client`] or [`Server`] share.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) clock: Arc<TicketClock>,
    pub(super) scratch: Scratch,
    /// The versions that this end speaks.
    pub(super) versions: Versions,
    /// The version and features of a client's latest handshake. `None` before the first handshake, and if the
    /// latest found no version in common.
    agreed: Mutex<Option<Agreed>>,
}

impl EndpointState {
    pub(super) fn note_agreed(&self, agreed: Option<Agreed>) {
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = agreed;
    }

    fn new(clock: &Arc<TicketClock>, versions: Versions) -> Arc<Self> {
        Arc::new(EndpointState {
            clock: Arc::clone(clock),
            scratch: Scratch::default(),
            versions,
            agreed: Mutex::default(),
        })
    }
}

/// The TLS configuration and tickets of a box for one server.
pub struct Client {
    config: Arc<ClientConfig>,
    tickets: Arc<ClientTickets>,
    pub(super) endpoint: Arc<EndpointState>,
}

impl Client {
    /// Creates the client of a box with `key`. It speaks `versions`, and accepts only the server with the key
    /// `server`.
    pub fn new(key: &PrivateKey, server: PublicKey, versions: Versions) -> Self {
        let provider = provider();
        let signatures = provider.signature_verification_algorithms;
        let clock = Arc::new(TicketClock::default());
        let mut config = ClientConfig::builder_with_details(provider, Arc::clone(&clock) as _)
            .with_protocol_versions(&[&version::TLS13])
            .expect(SUITES_ARE_TLS13)
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedServerVerifier { server, signatures }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified_key(key),
            )));
        config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        // The pinned key identifies the server, so a name would only tell observers more.
        config.enable_sni = false;
        config.enable_early_data = true;
        let tickets = Arc::new(ClientTickets::new(&clock));
        config.resumption = Resumption::store(Arc::clone(&tickets) as _);
        Client {
            config: Arc::new(config),
            tickets,
            endpoint: EndpointState::new(&clock, versions),
        }
    }

    /// Sets the wall clock and forgets expired tickets. To be called at least once a minute, so that a step of the
    /// wall clock is noticed and expired tickets leave the memory even if no connection is opened.
    pub fn set_clock(&self, now: Instant, wall: &WallClock) {
        self.endpoint.clock.set(now, wall);
        drop(self.tickets.unexpired());
    }

    /// Returns the version and features of the latest handshake. Returns `None` before the first handshake, and if
    /// the latest found no version in common.
    pub fn agreed(&self) -> Option<Agreed> {
        *self
            .endpoint
            .agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a connection. The ClientHello is then ready to be written.
    ///
    /// # Errors
    /// The cryptographic library fails.
    pub(super) fn connect(&self, now: Instant) -> Result<quic::ClientConnection, Error> {
        self.endpoint.clock.advance(now);
        // rustls uses the name to look up tickets and as SNI. This client has one server and sends no SNI, so any
        // name will do.
        let name = ServerName::IpAddress(core::net::Ipv4Addr::UNSPECIFIED.into());
        quic::ClientConnection::new(
            Arc::clone(&self.config),
            // The QUIC version selects the labels of the keys (RFC 9001 section 5.1); no packet names the version.
            quic::Version::V1,
            name,
            parameters::client_parameters(self.endpoint.versions),
        )
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client(..)")
    }
}

/// The TLS configuration and tickets of a server.
pub struct Server {
    config: Arc<ServerConfig>,
    /// The families in which this server reaches destinations. New connections report them to their boxes.
    pub reached: Families,
    users: Arc<UserVerifier>,
    pub(super) tickets: Arc<ServerTickets>,
    pub(super) endpoint: Arc<EndpointState>,
}

impl Server {
    /// Creates a server with `key`. It speaks `versions`, and accepts only boxes with one of the keys `users`.
    pub fn new(
        key: &PrivateKey,
        users: impl IntoIterator<Item = PublicKey>,
        versions: Versions,
    ) -> Self {
        let provider = provider();
        let clock = Arc::new(TicketClock::default());
        let users = Arc::new(UserVerifier {
            keys: RwLock::new(users.into_iter().collect()),
            signatures: provider.signature_verification_algorithms,
        });
        let mut config = ServerConfig::builder_with_details(provider, Arc::clone(&clock) as _)
            .with_protocol_versions(&[&version::TLS13])
            .expect(SUITES_ARE_TLS13)
            .with_client_cert_verifier(Arc::clone(&users) as _)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
                certified_key(key),
            )));
        let tickets = Arc::new(ServerTickets::new(&clock));
        config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        config.session_storage = Arc::clone(&tickets) as _;
        config.send_tls13_tickets = TICKETS_PER_CONNECTION;
        // QUIC allows only 0 or `u32::MAX` here (RFC 9001 section 4.6.1), so the receive path bounds early data
        // instead. Early data is processed before the handshake ends. A replay is no danger, because each ticket
        // is valid once.
        config.max_early_data_size = u32::MAX;
        Server {
            config: Arc::new(config),
            reached: Families::BOTH,
            users,
            tickets,
            endpoint: EndpointState::new(&clock, versions),
        }
    }

    /// Sets the wall clock and forgets expired tickets. To be called at least once a minute, as
    /// [`Client::set_clock`].
    pub fn set_clock(&self, now: Instant, wall: &WallClock) {
        self.endpoint.clock.set(now, wall);
        drop(self.tickets.unexpired());
    }

    /// Accepts only the keys `users` in later handshakes. The ticket of a removed user still resumes, because no
    /// verifier runs then. The caller therefore has to look up the user of every connection by its key.
    pub fn set_users(&self, users: impl IntoIterator<Item = PublicKey>) {
        let accepted = self.users.keys.write();
        *accepted.unwrap_or_else(PoisonError::into_inner) = users.into_iter().collect();
    }

    /// Prepares a connection that waits for a ClientHello, and draws the secret that authenticates its subflows.
    ///
    /// # Errors
    /// The cryptographic library fails.
    pub(super) fn accept(&self) -> Result<(quic::ServerConnection, JoinSecret), Error> {
        let mut secret = JoinSecret::default();
        let random = self.config.crypto_provider().secure_random;
        random.fill(&mut secret[..])?;
        let config = Arc::clone(&self.config);
        let parameters =
            parameters::server_parameters(&secret, self.reached, self.endpoint.versions);
        let session = quic::ServerConnection::new(config, quic::Version::V1, parameters)?;
        Ok((session, secret))
    }

    /// Returns random bytes for secrets of the caller.
    ///
    /// # Errors
    /// The cryptographic library has no randomness.
    pub fn random_seed(&self) -> Result<[u8; 32], ChannelError> {
        let mut seed = [0; 32];
        let random = self.config.crypto_provider().secure_random;
        random.fill(&mut seed).map_err(|_| ChannelError::Failed)?;
        Ok(seed)
    }

    /// Returns the number of presented tickets that this server did not know, because they were used before, had
    /// expired, were dropped, or were issued before a restart.
    pub fn unknown_tickets(&self) -> u64 {
        self.tickets.unknown_count.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server(..)")
    }
}

/// A box's tickets of one server. The box uses the newest ticket first, because the server drops the oldest first.
#[derive(Debug)]
struct ClientTickets {
    clock: Arc<TicketClock>,
    /// The time of receipt and the ticket, newest last.
    tickets: Mutex<VecDeque<(Duration, Tls13ClientSessionValue)>>,
}

impl ClientTickets {
    fn new(clock: &Arc<TicketClock>) -> Self {
        ClientTickets {
            clock: Arc::clone(clock),
            tickets: Mutex::default(),
        }
    }

    /// Drops expired tickets and returns the rest.
    fn unexpired(&self) -> MutexGuard<'_, VecDeque<(Duration, Tls13ClientSessionValue)>> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        while tickets
            .front()
            .is_some_and(|(received_at, _)| *received_at + TICKET_LIFETIME <= now)
        {
            tickets.pop_front();
        }
        tickets
    }
}

// There is one key exchange group and no TLS 1.2, so the methods for them have nothing to store.
impl ClientSessionStore for ClientTickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut tickets = self.unexpired();
        if tickets.len() == MAX_CLIENT_TICKETS {
            tickets.pop_front();
        }
        tickets.push_back((self.clock.now(), value));
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.unexpired().pop_back().map(|(_, ticket)| ticket)
    }
}

/// The tickets that a server has issued.
///
/// rustls takes a ticket from this store before it checks that the client knows the ticket's secret (the binder,
/// RFC 8446 section 4.2.11.2). The store removes the ticket only after that check. Otherwise anybody who saw a
/// ClientHello could send its ticket before the client does, and so use the ticket up.
#[derive(Debug)]
pub(super) struct ServerTickets {
    clock: Arc<TicketClock>,
    tickets: Mutex<TicketTable>,
    /// The number of presented tickets that were not in the table.
    unknown_count: AtomicU64,
}

/// Tickets by their order of issue.
#[derive(Debug, Default)]
struct TicketTable {
    /// The number of each ticket, by the key under which rustls stores it. Nothing iterates over the hash table,
    /// because its order is random.
    numbers: HashMap<Vec<u8>, u64>,
    /// Tickets by number, so that the oldest is first.
    tickets: BTreeMap<u64, Ticket>,
    next_number: u64,
    /// The ticket that the latest ClientHello presented, known or not.
    presented: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Ticket {
    /// The time of issue, counted from [`Instant::ZERO`].
    issued_at: Duration,
    /// The key under which rustls stores the session state: the ticket itself, as the client presents it.
    key: Vec<u8>,
    /// The session state with the secret that protects early data.
    value: Zeroizing<Vec<u8>>,
}

impl TicketTable {
    fn put(&mut self, ticket: Ticket) {
        if self.tickets.len() == MAX_SERVER_TICKETS {
            self.forget_first();
        }
        self.numbers.insert(ticket.key.clone(), self.next_number);
        self.tickets.insert(self.next_number, ticket);
        self.next_number += 1;
    }

    fn get(&self, key: &[u8]) -> Option<&Ticket> {
        self.tickets.get(self.numbers.get(key)?)
    }

    fn take(&mut self, key: &[u8]) -> Option<Ticket> {
        let number = self.numbers.remove(key)?;
        self.tickets.remove(&number)
    }

    fn forget_first(&mut self) {
        if let Some((_, ticket)) = self.tickets.pop_first() {
            self.numbers.remove(&ticket.key);
        }
    }

    /// Removes the tickets that were issued at `time` or earlier.
    fn forget_issued_until(&mut self, time: Duration) {
        let first = |table: &Self| table.tickets.first_key_value().map(|(_, t)| t.issued_at);
        while first(self).is_some_and(|issued_at| issued_at <= time) {
            self.forget_first();
        }
    }
}

impl ServerTickets {
    fn new(clock: &Arc<TicketClock>) -> Self {
        ServerTickets {
            clock: Arc::clone(clock),
            tickets: Mutex::default(),
            unknown_count: AtomicU64::new(0),
        }
    }

    /// Prepares for the next ClientHello. There must be no call for another connection until
    /// [`finish_client_hello`](Self::finish_client_hello), because this table stores one presented ticket only.
    pub(super) fn begin_client_hello(&self) {
        self.unexpired().presented = None;
    }

    /// Concludes a ClientHello, and returns whether it presented a ticket. If the client has proved that it knows
    /// the ticket's secret (`secret_proved`), the ticket is removed.
    ///
    /// # Errors
    /// Another connection has used the ticket since [`begin_client_hello`](Self::begin_client_hello). The rule of
    /// that method excludes this. If a caller broke the rule, the check would still keep a ticket valid only once.
    pub(super) fn finish_client_hello(&self, secret_proved: bool) -> Result<bool, ChannelError> {
        let mut table = self.unexpired();
        let Some(presented) = table.presented.take() else {
            return Ok(false);
        };
        match secret_proved && table.take(&presented).is_none() {
            true => Err(ChannelError::Damaged),
            false => Ok(true),
        }
    }

    /// Drops expired tickets and returns the rest.
    fn unexpired(&self) -> MutexGuard<'_, TicketTable> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // In the first day of the clock no ticket can have expired.
        if let Some(time) = self.clock.now().checked_sub(TICKET_LIFETIME) {
            tickets.forget_issued_until(time);
        }
        tickets
    }
}

impl StoresServerSessions for ServerTickets {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let ticket = Ticket {
            issued_at: self.clock.now(),
            key,
            value: Zeroizing::new(value),
        };
        self.unexpired().put(ticket);
        true
    }

    // For TLS 1.3 rustls calls `take`, never this method.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.take(key)
    }

    /// Returns a ticket to rustls without removing it, contrary to the name of the method;
    /// [`finish_client_hello`](ServerTickets::finish_client_hello) removes it.
    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut table = self.unexpired();
        table.presented = Some(key.to_vec());
        let value = table.get(key).map(|ticket| ticket.value.to_vec());
        if value.is_none() {
            self.unknown_count.fetch_add(1, Ordering::Relaxed);
        }
        value
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Defines the verifier methods that clients and servers share: Ed25519 raw public keys, and no TLS 1.2.
macro_rules! raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Accepts only the server with the configured key.
#[derive(Debug)]
struct PinnedServerVerifier {
    server: PublicKey,
    signatures: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match public_key_of(end_entity) == Some(self.server) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed_by(message, key, signature, &self.signatures)
    }

    raw_keys!();
}

/// Accepts users whose keys are in the configuration.
#[derive(Debug)]
struct UserVerifier {
    keys: RwLock<BTreeSet<PublicKey>>,
    signatures: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for UserVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Accepts any well-formed key. `verify_tls13_signature` looks the user up, after the client has proved its
    /// key.
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match public_key_of(end_entity) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    /// Checks the signature before the key, and gives the same error to every refused client. Somebody without the
    /// private key therefore learns neither from the answer nor from the time until it whether a public key is a
    /// user's.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let signed = signed_by(message, key, signature, &self.signatures);
        let users = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let is_user = public_key_of(key).is_some_and(|key| users.contains(&key));
        signed
            .ok()
            .filter(|_| is_user)
            .ok_or(CertificateError::ApplicationVerificationFailure.into())
    }

    raw_keys!();
}

/// Verifies that `key` made the `signature` of a handshake.
fn signed_by(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    signatures: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signature, signatures)
}

#[cfg(test)]
mod tests {
    use braid_engine::JoinAuth;

    use super::*;

    /// Runs a handshake. Returns the authentication of subflows that each end derives from its peer's parameters.
    fn handshake(
        client: quic::ClientConnection,
        (server, secret): (quic::ServerConnection, Option<JoinSecret>),
    ) -> [JoinAuth; 2] {
        let mut ends: [quic::Connection; 2] = [client.into(), server.into()];
        for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
            // Messages under different keys are passed separately.
            let mut goes_on = true;
            while goes_on {
                let mut messages = Vec::new();
                goes_on = ends[from].write_hs(&mut messages).is_some();
                ends[to].read_hs(&messages).unwrap();
            }
        }
        assert!(ends.iter().all(|end| !end.is_handshaking()));
        let parameters_of = |end: usize| ends[end].quic_transport_parameters().unwrap();
        let at_box = parameters::join_auth(None, parameters_of(0));
        [
            at_box,
            parameters::join_auth(secret.as_ref(), parameters_of(1)),
        ]
    }

    #[test]
    fn subflows_authenticate_by_a_secret_if_both_ends_can() {
        let [key, user] = [1, 2].map(|seed| PrivateKey::from_seed([seed; 32]));
        let server = Server::new(&key, [user.public()], Versions::OURS);
        let client = Client::new(&user, key.public(), Versions::OURS);
        let accept = || server.accept().map(|(end, secret)| (end, Some(secret)));
        let connect = || client.connect(Instant::ZERO).unwrap();
        let mut secrets = Vec::new();
        for _ in 0..3 {
            let (end, secret) = accept().unwrap();
            let expected = JoinAuth::Secret(**secret.as_ref().unwrap());
            // From the second round on, the handshake resumes with a ticket.
            assert_eq!(handshake(connect(), (end, secret)), [expected; 2]);
            assert!(!secrets.contains(&expected), "each connection has its own");
            secrets.push(expected);
        }
        // Ends of an older release send no parameters.
        let name = ServerName::IpAddress(core::net::Ipv4Addr::UNSPECIFIED.into());
        let (boxed, version) = (Arc::clone(&client.config), quic::Version::V1);
        let older = quic::ClientConnection::new(boxed, version, name, Vec::new()).unwrap();
        let both = handshake(older, accept().unwrap());
        assert_eq!(both[1], JoinAuth::Keys);
        let config = Arc::clone(&server.config);
        let older = quic::ServerConnection::new(config, version, Vec::new()).unwrap();
        let both = handshake(connect(), (older, None));
        assert_eq!(both[0], JoinAuth::Keys);
    }

    #[test]
    fn a_ticket_is_valid_once_and_kept_for_a_day() {
        let key = PrivateKey::from_seed([1; 32]);
        let server = Server::new(&key, [key.public()], Versions::OURS);
        let issue = |ticket: u8| assert!(server.tickets.put(vec![ticket], vec![ticket, 0]));
        let at = |hours: u64| Instant::ZERO + Duration::from_secs(hours * 3600);
        server.endpoint.clock.advance(at(1));
        issue(1);
        issue(2);
        // Presenting a ticket without proof of its secret does not use it up.
        let present = |ticket: u8, secret_proved: bool| {
            server.tickets.begin_client_hello();
            let value = server.tickets.take(&[ticket]);
            (value, server.tickets.finish_client_hello(secret_proved))
        };
        assert_eq!(present(1, false), (Some(vec![1, 0]), Ok(true)));
        assert_eq!(present(1, true), (Some(vec![1, 0]), Ok(true)));
        assert_eq!(present(1, false), (None, Ok(true)));
        assert_eq!(server.unknown_tickets(), 1);
        server.tickets.begin_client_hello();
        assert_eq!(server.tickets.finish_client_hello(true), Ok(false));
        server.endpoint.clock.advance(at(20));
        issue(3);
        // 24 hours after tickets 1 and 2, 5 hours after ticket 3.
        server.set_clock(at(25), &WallClock::default());
        let counts = |table: &TicketTable| (table.numbers.len(), table.tickets.len());
        assert_eq!(counts(&server.tickets.tickets.lock().unwrap()), (1, 1));
        assert_eq!(server.tickets.take(&[2]), None);
        assert_eq!(server.tickets.take(&[3]), Some(vec![3, 0]));
        // One ticket too many: the oldest, number 0, is dropped.
        for n in 0..=MAX_SERVER_TICKETS as u32 {
            server.tickets.put(n.to_be_bytes().to_vec(), Vec::new());
        }
        assert_eq!(counts(&server.tickets.unexpired()).1, MAX_SERVER_TICKETS);
        assert_eq!(server.tickets.take(&0u32.to_be_bytes()), None);
    }
}
