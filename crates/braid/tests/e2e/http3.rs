//! HTTP/3 of the LAN through the tunnel: a client, and a server behind Braid's. A link goes dark in the middle of a
//! transfer, and comes back, and then the other one: the QUIC connection goes on.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_testbed::{Pattern, tls};
use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig};
use tokio::runtime::{Builder, Runtime};

use super::attacks::{inside, namespace};
use super::fixture::{Fixture, bulk};

/// The port of HTTP/3.
const PORT: u16 = 443;
/// The name of HTTP/3 in TLS (RFC 9114 section 3.1).
const ALPN: &[u8] = b"h3";
/// Bytes of one frame.
const CHUNK: usize = 16 << 10;
/// Bytes that a transfer has to move in each step.
const STEP: u64 = 300_000;
/// Longest silence of a connection: a loaded machine may let a test stand still for seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The direction in which a transfer moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Down,
    Up,
}

/// The clients that the server has seen.
#[derive(Default)]
struct Seen {
    /// Handshakes that clients have begun.
    handshakes: AtomicU64,
    /// Addresses of clients, noted with each frame.
    clients: Mutex<BTreeSet<SocketAddr>>,
}

/// A transfer under way.
pub struct Transfer {
    /// The ends of the client and of the server.
    endpoints: [Endpoint; 2],
    seen: Arc<Seen>,
    moved: Arc<AtomicU64>,
    client: JoinHandle<Result<(), String>>,
    serving: JoinHandle<()>,
}

impl Transfer {
    /// Starts a server on the content host at `to`, and a client on the user host that moves `size` bytes.
    pub fn start(bed: &Fixture, direction: Direction, to: SocketAddr, size: usize) -> Self {
        let (seen, moved) = (Arc::new(Seen::default()), Arc::new(AtomicU64::new(0)));
        let any = SocketAddr::new(unspecified(to), 0);
        let [at_server, at_client] = [("content", to), ("user", any)].map(|(host, at)| {
            let socket = inside(&namespace(bed, host), || UdpSocket::bind(at));
            socket.expect("a free port")
        });
        let (running, server) = endpoint(at_server, Some(server_config()));
        let site = Site {
            size,
            seen: Arc::clone(&seen),
            moved: Arc::clone(&moved),
        };
        let accepting = server.clone();
        let serving = thread::spawn(move || running.block_on(serve(accepting, site)));
        let (running, client) = endpoint(at_client, None);
        let endpoints = [client.clone(), server];
        let counted = Arc::clone(&moved);
        let client = thread::spawn(move || {
            let visit = visit(&client, direction, to, size, &counted);
            let result = running.block_on(visit);
            client.close(0u8.into(), b"");
            running.block_on(client.wait_idle());
            result.map_err(|e| format!("{direction:?}: {e}"))
        });
        Transfer {
            endpoints,
            seen,
            moved,
            client,
            serving,
        }
    }

    /// Returns the number of bytes that were received so far.
    pub fn bytes(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    /// Waits for the end, and fails unless every byte was right, in one connection from one address. Returns that
    /// address as the server sees it.
    pub fn expect_whole(self) -> SocketAddr {
        let result = self.client.join().expect("no panic at the client");
        result.unwrap_or_else(|e| panic!("{e}"));
        self.endpoints[1].close(0u8.into(), b"");
        self.serving.join().expect("no panic at the server");
        let handshakes = self.seen.handshakes.load(Ordering::Acquire);
        assert_eq!(handshakes, 1, "handshakes");
        let clients = self.seen.clients.lock().expect("no panic");
        let mut clients = clients.iter().copied();
        let client = clients.next().expect("a request");
        assert_eq!(clients.next(), None, "the client moved from {client}");
        client
    }

    /// Ends the transfer in the middle.
    pub fn abandon(self) {
        for endpoint in &self.endpoints {
            endpoint.close(0u8.into(), b"");
        }
        let result = self.client.join().expect("no panic at the client");
        assert!(result.is_err(), "it was whole before");
        self.serving.join().expect("no panic at the server");
    }
}

fn unspecified(like: SocketAddr) -> std::net::IpAddr {
    match like {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let timeout = IDLE_TIMEOUT.try_into().expect("a timeout of QUIC");
    transport.max_idle_timeout(Some(timeout));
    Arc::new(transport)
}

fn server_config() -> quinn::ServerConfig {
    let mut tls = tls::server();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicServerConfig::try_from(tls).expect("the suites are those of QUIC");
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport());
    config
}

fn client_config() -> quinn::ClientConfig {
    let mut tls = tls::client();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicClientConfig::try_from(tls).expect("the suites are those of QUIC");
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(transport());
    config
}

/// Returns an endpoint, and its runtime.
fn endpoint(socket: UdpSocket, server: Option<quinn::ServerConfig>) -> (Runtime, Endpoint) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let entered = runtime.enter();
    let config = EndpointConfig::default();
    let endpoint = Endpoint::new(config, server, socket, Arc::new(TokioRuntime));
    drop(entered);
    (runtime, endpoint.expect("a socket"))
}

/// The content of a server: `size` bytes for everybody. It takes as many.
#[derive(Clone)]
struct Site {
    size: usize,
    seen: Arc<Seen>,
    moved: Arc<AtomicU64>,
}

/// Serves until the endpoint is closed.
async fn serve(endpoint: Endpoint, site: Site) {
    while let Some(incoming) = endpoint.accept().await {
        site.seen.handshakes.fetch_add(1, Ordering::AcqRel);
        let site = site.clone();
        tokio::spawn(async move {
            let connection = incoming.await.expect("a handshake");
            let requests = h3_quinn::Connection::new(connection.clone());
            let requests = h3::server::Connection::new(requests).await;
            let mut requests = requests.expect("HTTP/3");
            while let Ok(Some(request)) = requests.accept().await {
                // A client that goes away has the error.
                let _ = answer(request, &connection, &site).await;
            }
        });
    }
    endpoint.wait_idle().await;
}

type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

/// Answers a GET with the bytes, and a POST of the same bytes with 200.
async fn answer(
    request: Resolver,
    connection: &quinn::Connection,
    site: &Site,
) -> Result<(), h3::error::StreamError> {
    let note = || {
        let mut clients = site.seen.clients.lock().expect("no panic");
        clients.insert(connection.remote_address());
    };
    let (request, mut stream) = request.resolve_request().await?;
    note();
    let response = |status| Response::builder().status(status).body(()).expect("valid");
    if request.method() == http::Method::POST {
        let (mut pattern, mut len) = (Pattern::new(site.size as u64), 0);
        while let Some(mut data) = stream.recv_data().await? {
            note();
            len += take(&mut data, &mut pattern, &site.moved);
        }
        let status = match len == site.size {
            true => StatusCode::OK,
            false => StatusCode::BAD_REQUEST,
        };
        stream.send_response(response(status)).await?;
    } else {
        stream.send_response(response(StatusCode::OK)).await?;
        for chunk in chunks(site.size) {
            stream.send_data(chunk).await?;
            note();
        }
    }
    stream.finish().await
}

/// Returns the bytes of a transfer.
fn chunks(size: usize) -> impl Iterator<Item = Bytes> {
    let mut pattern = Pattern::new(size as u64);
    (0..size).step_by(CHUNK).map(move |at| {
        let mut chunk = vec![0; CHUNK.min(size - at)];
        pattern.fill(&mut chunk);
        Bytes::from(chunk)
    })
}

/// Compares and counts received bytes, and returns their number.
fn take(data: &mut impl Buf, pattern: &mut Pattern, moved: &AtomicU64) -> usize {
    let mut len = 0;
    while data.has_remaining() {
        let chunk = data.chunk();
        assert_eq!(pattern.check(chunk), Ok(()), "a byte differs");
        let n = chunk.len();
        data.advance(n);
        moved.fetch_add(n as u64, Ordering::AcqRel);
        len += n;
    }
    len
}

/// Moves the bytes as a client.
async fn visit(
    endpoint: &Endpoint,
    direction: Direction,
    to: SocketAddr,
    size: usize,
    moved: &AtomicU64,
) -> Result<(), Box<dyn std::error::Error>> {
    let connection = endpoint.connect_with(client_config(), to, tls::NAME)?;
    let connection = h3_quinn::Connection::new(connection.await?);
    let (mut driver, mut requests) = h3::client::new(connection).await?;
    // It drives the connection until that ends.
    tokio::spawn(async move { driver.wait_idle().await });
    let uri = format!("https://{}/bytes", tls::NAME);
    let request = match direction {
        Direction::Down => Request::get(uri),
        Direction::Up => Request::post(uri),
    };
    let mut stream = requests.send_request(request.body(())?).await?;
    if direction == Direction::Up {
        for chunk in chunks(size) {
            stream.send_data(chunk).await?;
        }
    }
    stream.finish().await?;
    let response = stream.recv_response().await?;
    assert_eq!(response.status(), StatusCode::OK);
    if direction == Direction::Down {
        let (mut pattern, mut len) = (Pattern::new(size as u64), 0);
        while let Some(mut data) = stream.recv_data().await? {
            len += take(&mut data, &mut pattern, moved);
        }
        assert_eq!(len, size, "the length differs");
    }
    Ok(())
}

/// Moves bytes while each link goes dark once.
fn outlives_each_link(direction: Direction, host: fn(&Fixture, &str) -> std::net::IpAddr) {
    let mut bed = Fixture::up();
    bed.wait_for_tunnel();
    bed.slow_down();
    let to = SocketAddr::new(host(&bed, "content"), PORT);
    let transfer = Transfer::start(&bed, direction, to, bulk());
    bed.darken_each_link(STEP, || transfer.bytes());
    bed.release();
    let client = transfer.expect_whole();
    assert_eq!(client.ip(), host(&bed, "server"), "it came by the tunnel");
}

#[test]
#[ignore = "network"]
fn an_http3_download_outlives_each_link() {
    outlives_each_link(Direction::Down, Fixture::v4);
}

#[test]
#[ignore = "network"]
fn an_http3_upload_outlives_each_link() {
    outlives_each_link(Direction::Up, Fixture::v6);
}
