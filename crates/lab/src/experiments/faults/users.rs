//! The user's connections during a fault: a download, an upload and a dialogue of words and echoes, all by
//! kernel sockets. A word is a short message that the content host sends back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_sim::traffic::pattern_from;
use braid_testbed::kernel_tcp::{self as socket, Transport};
use braid_testbed::netns;

use crate::backend::Error;
use crate::backend::fixture::{interrupted, run_error};
use crate::backend::gateways::Gateways;
use crate::case::ReceivedBytes;

/// Interval between two words. The bound of the claim is a pause of 600 ms, which ten words a second show
/// reliably.
const ECHO_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a word, as of a key press in a remote shell.
const ECHO_BYTES: usize = 64;
/// Maximum bytes of one write. A guess.
const CHUNK: usize = 16 << 10;
/// Time without progress after which a connection counts as failed. A guess: twice the longest fault.
const STALL_TIMEOUT: Duration = Duration::from_secs(40);
const CONGESTION: &str = "cubic";
/// Ports of the content host for the download, the upload and the words. Any unused ports work.
const PORTS: [u16; 3] = [7001, 7002, 7003];

/// The measurements of the user's connections. Times count from the start of the observation.
#[derive(Debug, Default)]
pub struct UserObservations {
    /// Bytes received of the download, and of the upload.
    pub bulk: [ReceivedBytes; 2],
    /// For each word, its time of sending and the time until its echo.
    pub echoes: Vec<(Duration, Duration)>,
    /// Descriptions of connections that failed.
    pub failures: Vec<String>,
}

/// The measurement of one connection: arrivals of a bulk transfer, or echoes of a dialogue.
#[derive(Debug, Default)]
struct Flow {
    arrivals: ReceivedBytes,
    echoes: Vec<(Duration, Duration)>,
    failure: Option<String>,
}

/// Both ends of a connection through the box: the user's and the content host's.
struct Ends {
    user: TcpStream,
    content: TcpStream,
}

/// The time during which senders send.
#[derive(Clone, Copy)]
struct Span {
    begun: Instant,
    duration: Duration,
}

impl Span {
    fn is_over(self) -> bool {
        self.begun.elapsed() >= self.duration || interrupted()
    }
}

/// Opens the user's connections and sends over them for `duration`, while `meanwhile` runs.
///
/// # Errors
/// A connection does not open, or `meanwhile` returns an error. A connection that fails later is no error,
/// but is listed in [`UserObservations::failures`].
pub fn observe(
    net: &mut Gateways,
    duration: Duration,
    meanwhile: impl FnOnce(&mut Gateways) -> Result<(), Error>,
) -> Result<UserObservations, Error> {
    let [down, up, talk] = open(net)?;
    let span = Span {
        begun: Instant::now(),
        duration,
    };
    thread::scope(|scope| {
        let flows = [
            scope.spawn(|| bulk(&down.content, &down.user, span)),
            scope.spawn(|| bulk(&up.user, &up.content, span)),
            scope.spawn(|| dialogue(&talk, span)),
        ];
        let result = meanwhile(net);
        let mut seen = UserObservations::default();
        let names = ["download", "upload", "words"];
        for (n, flow) in flows.into_iter().enumerate() {
            let flow = flow
                .join()
                .unwrap_or_else(|_| Flow::failed(&"a thread panicked"));
            // The first two flows are the bulk transfers.
            match seen.bulk.get_mut(n) {
                Some(arrivals) => *arrivals = flow.arrivals,
                None => seen.echoes = flow.echoes,
            }
            let failure = flow
                .failure
                .map(|failure| format!("{}: {failure}", names[n]));
            seen.failures.extend(failure);
        }
        result.map(|()| seen)
    })
}

/// Opens a connection to each of [`PORTS`].
fn open(net: &Gateways) -> Result<[Ends; 3], Error> {
    let fixture = &net.fixture;
    let namespace = |host: &str| {
        let host = fixture.testbed.layout().host(host).map_err(run_error)?;
        Ok::<_, Error>(&host.namespace)
    };
    let (user, content) = (namespace("user")?, namespace("content")?);
    let address = fixture.address("content").map_err(run_error)?;
    let open = |port: u16| {
        let to = SocketAddr::new(address, port);
        let listener: TcpListener =
            netns::run_inside(content, || socket::listen(to, Transport::Tcp, CONGESTION))?;
        let connect = || socket::connect(to, None, Transport::Tcp, CONGESTION);
        let user = netns::run_inside(user, connect)?;
        let content = socket::accept_within(&listener, CONGESTION, STALL_TIMEOUT)?;
        let content = content.ok_or(io::ErrorKind::TimedOut)?;
        for end in [&user, &content] {
            // Nagle's algorithm would delay words.
            end.set_nodelay(true)?;
            socket::set_stall(end, STALL_TIMEOUT)?;
        }
        Ok(Ends { user, content })
    };
    let mut ends = PORTS
        .into_iter()
        .map(|port| open(port).map_err(|e: io::Error| run_error(e)));
    let mut next = || ends.next().unwrap_or_else(|| Err(run_error("no port")));
    Ok([next()?, next()?, next()?])
}

impl Flow {
    fn failed(why: &impl ToString) -> Flow {
        Flow {
            failure: Some(why.to_string()),
            ..Flow::default()
        }
    }
}

/// Sends as fast as the socket takes data until the span is over, and checks every received byte.
fn bulk(from: &TcpStream, to: &TcpStream, span: Span) -> Flow {
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(from, span, &sent));
        let mut flow = receive(to, span);
        let received = flow.arrivals.at(Duration::MAX);
        let send_failure = match sending.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("sending: {error}")),
            Err(_) => Some("sending: a thread panicked".to_owned()),
        };
        let sent = sent.load(Ordering::Acquire);
        let incomplete = (received != sent).then(|| format!("{received} of {sent} bytes arrived"));
        // The receiver's failure is the most precise, so it has precedence.
        flow.failure = flow.failure.or(send_failure).or(incomplete);
        flow
    })
}

/// Sends the test pattern until the span is over, and stores the number of bytes in `sent`, even if
/// sending fails.
fn send(mut to: &TcpStream, span: Span, sent: &AtomicU64) -> io::Result<()> {
    let mut at = 0;
    while !span.is_over() {
        let chunk = pattern_from(at);
        let n = to.write(&chunk[..chunk.len().min(CHUNK)])?;
        at += n as u64;
        sent.store(at, Ordering::Release);
    }
    to.shutdown(Shutdown::Write)
}

/// Receives the test pattern up to the end of the stream.
fn receive(mut from: &TcpStream, span: Span) -> Flow {
    let mut flow = Flow::default();
    let mut buffer = vec![0; 4 * CHUNK];
    let mut at = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return flow,
            Ok(n) if is_pattern(&buffer[..n], at) => {
                at += n as u64;
                flow.arrivals.record(span.begun.elapsed(), at);
            }
            Ok(_) => {
                flow.failure = Some(format!("wrong bytes after {at}"));
                return flow;
            }
            Err(error) => {
                flow.failure = Some(format!("after {at} bytes: {error}"));
                return flow;
            }
        }
    }
}

/// Returns whether `bytes` are the test pattern from byte `at` on.
fn is_pattern(mut bytes: &[u8], mut at: u64) -> bool {
    while !bytes.is_empty() {
        let expected = pattern_from(at);
        let n = expected.len().min(bytes.len());
        if bytes[..n] != expected[..n] {
            return false;
        }
        bytes = &bytes[n..];
        at += n as u64;
    }
    true
}

/// Sends words, which the content host sends back, and measures the time until each returns.
fn dialogue(ends: &Ends, span: Span) -> Flow {
    thread::scope(|scope| {
        let sending = scope.spawn(|| send_words(&ends.user, span));
        let echoing = scope.spawn(|| echo(&ends.content));
        let mut flow = receive_echoes(&ends.user, span);
        let sent = sending
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        let echoed = echoing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        let failure = match (sent, echoed) {
            (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
            (Ok(sent), Ok(())) if sent != flow.echoes.len() as u64 => {
                Some(format!("{} of {sent} words came back", flow.echoes.len()))
            }
            _ => None,
        };
        flow.failure = flow.failure.or(failure);
        flow
    })
}

/// Sends a word every [`ECHO_INTERVAL`] until the span is over, and returns the number of words. The first
/// eight bytes of a word are its time of sending, ns.
fn send_words(mut to: &TcpStream, span: Span) -> io::Result<u64> {
    let mut sent = 0;
    while !span.is_over() {
        let mut word = [0; ECHO_BYTES];
        word[..8].copy_from_slice(&(span.begun.elapsed().as_nanos() as u64).to_be_bytes());
        to.write_all(&word)?;
        sent += 1;
        thread::sleep(ECHO_INTERVAL);
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Sends every received byte back, up to the end of the stream.
fn echo(stream: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (stream, stream);
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

/// Receives echoes up to the end of the stream.
fn receive_echoes(mut from: &TcpStream, span: Span) -> Flow {
    let mut flow = Flow::default();
    let mut word = [0; ECHO_BYTES];
    loop {
        match from.read_exact(&mut word) {
            Ok(()) => {
                let sent_at = word.first_chunk().copied().unwrap_or_default();
                let sent_at = Duration::from_nanos(u64::from_be_bytes(sent_at));
                let took = span.begun.elapsed().saturating_sub(sent_at);
                flow.echoes.push((sent_at, took));
            }
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return flow,
            Err(error) => {
                flow.failure = Some(error.to_string());
                return flow;
            }
        }
    }
}
