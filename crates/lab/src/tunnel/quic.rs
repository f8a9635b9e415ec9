//! A QUIC client and its server as hosts of a simulated world. `quinn-proto` implements QUIC and runs in virtual time.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time;

use braid_sim::udp::UdpHeader;
use braid_sim::{Node, Packet, Turn};
use braid_testbed::tls::NAME;
use braid_wire::{Instant, Rng};
use bytes::{Bytes, BytesMut};
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, ConnectionId, ConnectionIdGenerator,
    DatagramEvent, Dir, EcnCodepoint, Endpoint, EndpointConfig, Event, Incoming, ReadError,
    ServerConfig, StreamId, Transmit, TransportConfig, VarInt, WriteError,
};
use ring::{hkdf, hmac};

use super::tls;

/// The congestion control of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// BBR, version 1. quinn-proto chooses the first phase of the gain cycle by a random number of the operating
    /// system. Runs are reproducible nevertheless: the phase changes only a pacing rate that quinn-proto reports and
    /// does not use.
    Bbr,
    /// CUBIC.
    Cubic,
}

impl Congestion {
    fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Congestion::Bbr => Arc::new(BbrConfig::default()),
            Congestion::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}

/// Flow control and send buffer, bytes: more than twice the bandwidth-delay product of all paths of any profile.
/// The largest is that of 100 Mbit/s and a round trip of 640 ms, 8 MB. Thus congestion control alone limits a flow.
const WINDOW: u32 = 64 << 20;
/// Length of a connection ID, bytes: the default of quinn-proto.
const CID_LEN: usize = 8;
/// Maximum number of bytes written to a stream at a time.
const BLOCK_LEN: usize = 1 << 16;

/// The instant of the standard library that stands for the origin of virtual time. quinn-proto only compares and
/// subtracts instants, so the choice of the origin changes nothing.
static ORIGIN: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);

fn to_std(at: Instant) -> time::Instant {
    at.to_std(*ORIGIN).expect("a run lasts no centuries")
}

/// Draws connection IDs from a seeded generator.
struct SeededIds(Rng);

impl ConnectionIdGenerator for SeededIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CID_LEN];
        self.0.fill(&mut id);
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<time::Duration> {
        None
    }
}

/// The role of a host in the download.
#[derive(Debug)]
enum Role {
    /// Asks for `size` bytes at the time `start`.
    Client {
        server: SocketAddr,
        start: Instant,
        size: u64,
        received: u64,
    },
    /// Sends as many bytes as the client asks for.
    Server { unsent: Option<u64> },
}

/// A host with one QUIC connection: a client that downloads on one stream, or the server.
pub struct QuicHost {
    addr: SocketAddr,
    endpoint: Endpoint,
    transport: Arc<TransportConfig>,
    connection: Option<(ConnectionHandle, Connection)>,
    stream: Option<StreamId>,
    role: Role,
    rng: Rng,
    finished_at: Option<Instant>,
    failure: Option<ConnectionError>,
    /// The time of the connection's next timer. It is stored, because [`Connection::poll_timeout`] needs a mutable
    /// connection and [`Node::next_timeout`] has none.
    timeout: Option<Instant>,
    datagram: Vec<u8>,
}

impl QuicHost {
    /// Makes a client at `addr` that downloads `size` bytes from `server` from the time `start` on.
    pub fn client(
        (addr, server): (SocketAddr, SocketAddr),
        (size, start): (u64, Instant),
        congestion: Congestion,
        rng: Rng,
    ) -> Self {
        let role = Role::Client {
            server,
            start,
            size,
            received: 0,
        };
        let mut host = QuicHost::new(addr, role, congestion, rng);
        host.timeout = Some(start);
        host
    }

    /// Makes a server at `addr`.
    pub fn server(addr: SocketAddr, congestion: Congestion, rng: Rng) -> Self {
        QuicHost::new(addr, Role::Server { unsent: None }, congestion, rng)
    }

    fn new(addr: SocketAddr, role: Role, congestion: Congestion, mut rng: Rng) -> Self {
        let mut seed = || {
            let mut seed = [0; 32];
            rng.fill(&mut seed);
            seed
        };
        let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &seed())));
        let ids = seed();
        config.rng_seed(Some(seed()));
        config.cid_generator(move || Box::new(SeededIds(Rng::from_seed(ids))));
        let mut transport = TransportConfig::default();
        let window = VarInt::from_u32(WINDOW);
        transport
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(WINDOW.into())
            .congestion_controller_factory(congestion.factory());
        let transport = Arc::new(transport);
        let server = matches!(role, Role::Server { .. }).then(|| {
            let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&seed());
            let mut server = ServerConfig::new(tls::server(), Arc::new(token_key));
            server.transport_config(Arc::clone(&transport));
            // The server sends no tokens: a token contains the time of the wall clock, so runs would differ.
            server.validation_token.sent(0);
            Arc::new(server)
        });
        QuicHost {
            addr,
            endpoint: Endpoint::new(Arc::new(config), server, true, None),
            transport,
            connection: None,
            stream: None,
            role,
            rng,
            finished_at: None,
            failure: None,
            timeout: None,
            datagram: Vec::new(),
        }
    }

    /// Returns the time at which the client had received all bytes.
    pub fn finished_at(&self) -> Option<Instant> {
        self.finished_at
    }

    /// Returns the reason for which the connection ended before the download was complete.
    pub fn failure(&self) -> Option<&ConnectionError> {
        self.failure.as_ref()
    }

    /// Returns the number of bytes that the client has received.
    pub fn received(&self) -> u64 {
        match self.role {
            Role::Client { received, .. } => received,
            Role::Server { .. } => 0,
        }
    }

    /// Starts the client's connection when its time has come.
    fn start(&mut self, now: Instant) {
        let Role::Client { server, start, .. } = self.role else {
            return;
        };
        if self.connection.is_some() || self.failure.is_some() || now < start {
            return;
        }
        let mut first_id = [0; CID_LEN];
        self.rng.fill(&mut first_id);
        let mut config = quinn_proto::ClientConfig::new(tls::client());
        config
            .transport_config(Arc::clone(&self.transport))
            .initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&first_id)));
        let connection = self.endpoint.connect(to_std(now), config, server, NAME);
        self.connection = Some(connection.expect("the endpoint's settings are valid"));
    }

    /// Takes a datagram from `remote`.
    fn take(&mut self, turn: &mut Turn<'_>, header: &UdpHeader, payload: &[u8]) {
        let now = to_std(turn.now);
        self.datagram.clear();
        let event = self.endpoint.handle(
            now,
            header.src,
            Some(self.addr.ip()),
            EcnCodepoint::from_bits(header.traffic_class),
            BytesMut::from(payload),
            &mut self.datagram,
        );
        match event {
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(turn, incoming),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, connection)) = &mut self.connection
                    && *own == handle
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.send(turn, &transmit),
            None => {}
        }
    }

    fn accept(&mut self, turn: &mut Turn<'_>, incoming: Incoming) {
        if self.connection.is_some() {
            return self.endpoint.ignore(incoming);
        }
        let now = to_std(turn.now);
        match (self.endpoint).accept(incoming, now, &mut self.datagram, None) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => {
                if let Some(response) = error.response {
                    self.send(turn, &response);
                }
                self.failure = Some(error.cause);
            }
        }
    }

    /// Sends the datagram that was made last.
    fn send(&self, turn: &mut Turn<'_>, transmit: &Transmit) {
        let header = UdpHeader {
            src: self.addr,
            dst: transmit.destination,
            traffic_class: transmit.ecn.map_or(0, |ecn| ecn as u8),
        };
        let datagram = &self.datagram[..transmit.size];
        let packet = header.packet(turn, transmit.size, |payload| {
            payload.copy_from_slice(datagram);
        });
        turn.send(0, packet);
    }

    /// Runs the connection until it has nothing more to do.
    fn drive(&mut self, turn: &mut Turn<'_>) {
        let Some((handle, mut connection)) = self.connection.take() else {
            return;
        };
        let now = to_std(turn.now);
        while connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        loop {
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(handle, event) {
                    connection.handle_event(event);
                }
            }
            while let Some(event) = connection.poll() {
                if let Event::ConnectionLost { reason } = event
                    && self.finished_at.is_none()
                {
                    self.failure = Some(reason);
                }
            }
            if !connection.is_closed() {
                self.transfer(turn.now, &mut connection);
            }
            self.datagram.clear();
            let Some(transmit) = connection.poll_transmit(now, 1, &mut self.datagram) else {
                break;
            };
            self.send(turn, &transmit);
        }
        let timeout = connection.poll_timeout();
        self.timeout = timeout.map(|at| Instant::from_std(at, *ORIGIN));
        self.connection = Some((handle, connection));
    }

    /// Reads and writes the stream, as far as it goes.
    fn transfer(&mut self, now: Instant, connection: &mut Connection) {
        let stream = self.stream.or_else(|| match self.role {
            // The client can open a stream once the handshake has given it the server's limits.
            Role::Client { size, .. } => {
                let stream = connection.streams().open(Dir::Bi)?;
                let request = connection.send_stream(stream).write(&size.to_be_bytes());
                request.expect("a new stream takes 8 bytes");
                connection.send_stream(stream).finish().ok()?;
                Some(stream)
            }
            Role::Server { .. } => connection.streams().accept(Dir::Bi),
        });
        self.stream = stream;
        let Some(stream) = stream else {
            return;
        };
        match &mut self.role {
            Role::Client { received, .. } => {
                let is_end = read(connection, stream, |bytes| *received += bytes.len() as u64);
                if is_end && self.finished_at.is_none() {
                    self.finished_at = Some(now);
                }
            }
            Role::Server { unsent } => {
                read(connection, stream, |bytes| {
                    // The request is so short that it comes in one piece.
                    *unsent = bytes.as_ref().try_into().ok().map(u64::from_be_bytes);
                });
                if let Some(left) = unsent {
                    write(connection, stream, left);
                }
            }
        }
    }
}

/// Passes everything that has arrived on a stream to `take`. Returns true at the end of the stream.
fn read(connection: &mut Connection, stream: StreamId, mut take: impl FnMut(Bytes)) -> bool {
    let mut reader = connection.recv_stream(stream);
    // Chunks are read in the order of arrival, so that they do not stay in quinn-proto's buffer. quinn-proto ends a
    // connection whose buffer has more than 1,024 gaps, and on a path with a long round trip the losses at the end of
    // slow start make as many gaps.
    let Ok(mut chunks) = reader.read(false) else {
        return false;
    };
    let is_end = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => take(chunk.bytes),
            Ok(None) => break true,
            Err(ReadError::Blocked | ReadError::Reset(_)) => break false,
        }
    };
    // `drive` polls for datagrams after each read, so the update of the window is sent without the hint that
    // `finalize` returns.
    let _ = chunks.finalize();
    is_end
}

/// Writes zeros to a stream until `left` is zero or the stream takes no more, and then ends it.
fn write(connection: &mut Connection, stream: StreamId, left: &mut u64) {
    static ZEROS: [u8; BLOCK_LEN] = [0; BLOCK_LEN];
    while *left > 0 {
        let block = Bytes::from_static(&ZEROS).slice(..BLOCK_LEN.min(*left as usize));
        match connection.send_stream(stream).write_chunks(&mut [block]) {
            Ok(written) => *left -= written.bytes as u64,
            Err(WriteError::Blocked) => return,
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
        }
    }
    // This function is called again after the end. `finish` then fails, which has no effect.
    let _ = connection.send_stream(stream).finish();
}

impl Node for QuicHost {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        if let Some((header, payload)) = UdpHeader::parse(turn, &packet.bytes)
            && header.dst == self.addr
        {
            self.take(turn, &header, payload);
        }
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        self.start(turn.now);
        self.drive(turn);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.timeout
    }
}
