//! The user's connections during a fault: a download, an upload and a dialogue of words and echoes, all by
//! kernel sockets. A word is a short message that the content host sends back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use braid_testbed::Pattern;
use braid_testbed::kernel_tcp::{self as socket, Transport};
use braid_testbed::netns;

use crate::backend::gateways::Gateways;
use crate::backend::{Error, interrupted, run_error};
use crate::case::ReceivedBytes;

/// Interval between two words. The bound of the claim is a pause of 600 ms, which ten words a second show
/// reliably.
const ECHO_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a word, as of a key press in a remote shell.
const ECHO_BYTES: usize = 64;
/// Bytes of one write. A guess.
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
    let [down, up, talk] = PORTS.map(|port| open(net, port).map_err(run_error));
    let (down, up, talk) = (down?, up?, talk?);
    let span = Span {
        begun: Instant::now(),
        duration,
    };
    let mut seen = UserObservations::default();
    let [download, upload] = &mut seen.bulk;
    let echoes = &mut seen.echoes;
    let failures = &mut seen.failures;
    thread::scope(|scope| {
        let flows = [
            scope.spawn(|| bulk(&down.content, &down.user, span, download)),
            scope.spawn(|| bulk(&up.user, &up.content, span, upload)),
            scope.spawn(|| dialogue(&talk, span, echoes)),
        ];
        let result = meanwhile(net);
        for (name, flow) in ["download", "upload", "words"].into_iter().zip(flows) {
            let failure = join(flow).err();
            failures.extend(failure.map(|failure| format!("{name}: {failure}")));
        }
        result
    })?;
    Ok(seen)
}

/// Opens a connection to a port of the content host.
fn open(net: &Gateways, port: u16) -> io::Result<Ends> {
    let fixture = &net.fixture;
    let namespace = |host: &str| {
        let host = fixture.testbed.layout().host(host);
        host.map(|host| &host.namespace).map_err(io::Error::other)
    };
    let (user, content) = (namespace("user")?, namespace("content")?);
    let address = fixture.address("content").map_err(io::Error::other)?;
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
}

fn join<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    let result = thread.join();
    result.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Returns an error if less arrived than was sent. `what` names the things that arrive, as in "bytes arrived".
fn check_complete(arrived: u64, sent: u64, what: &str) -> io::Result<()> {
    if arrived == sent {
        return Ok(());
    }
    Err(io::Error::other(format!("{arrived} of {sent} {what}")))
}

/// Sends as fast as the socket takes data until the span is over, and checks every received byte.
fn bulk(
    from: &TcpStream,
    to: &TcpStream,
    span: Span,
    arrivals: &mut ReceivedBytes,
) -> io::Result<()> {
    thread::scope(|scope| {
        let mut pattern = Pattern::new(0);
        let fill = move |chunk: &mut [u8; CHUNK]| pattern.fill(chunk);
        let sending = scope.spawn(move || send(from, span, fill));
        // The receiver's failure is the most precise, so it has precedence.
        receive(to, span, arrivals)?;
        let sent = join(sending).map_err(|e| io::Error::other(format!("sending: {e}")))?;
        let received = arrivals.at(Duration::MAX);
        check_complete(received, sent * CHUNK as u64, "bytes arrived")
    })
}

/// Sends chunks until the span is over, and returns their number. `fill` makes the next chunk when it is due.
fn send<const N: usize>(
    mut to: &TcpStream,
    span: Span,
    mut fill: impl FnMut(&mut [u8; N]),
) -> io::Result<u64> {
    let (mut chunk, mut sent) = ([0; N], 0);
    while !span.is_over() {
        fill(&mut chunk);
        to.write_all(&chunk)?;
        sent += 1;
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Receives the test pattern up to the end of the stream.
fn receive(mut from: &TcpStream, span: Span, arrivals: &mut ReceivedBytes) -> io::Result<()> {
    let (mut pattern, mut chunk, mut received) = (Pattern::new(0), [0; 4 * CHUNK], 0);
    loop {
        let read = from.read(&mut chunk);
        let read = read.map_err(|e| io::Error::other(format!("after {received} bytes: {e}")))?;
        if read == 0 {
            return Ok(());
        }
        let wrong = |at| io::Error::other(format!("wrong bytes after {at}"));
        pattern.check(&chunk[..read]).map_err(wrong)?;
        received += read as u64;
        arrivals.record(span.begun.elapsed(), received);
    }
}

/// Sends a word every [`ECHO_INTERVAL`], which the content host sends back, and measures the time until
/// each returns. The first eight bytes of a word are its time of sending, ns.
fn dialogue(ends: &Ends, span: Span, echoes: &mut Vec<(Duration, Duration)>) -> io::Result<()> {
    let fill = |word: &mut [u8; ECHO_BYTES]| {
        thread::sleep(ECHO_INTERVAL);
        word[..8].copy_from_slice(&(span.begun.elapsed().as_nanos() as u64).to_be_bytes());
    };
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&ends.user, span, fill));
        let echoing = scope.spawn(|| echo(&ends.content));
        receive_echoes(&ends.user, span, echoes)?;
        let sent = join(sending)?;
        join(echoing)?;
        check_complete(echoes.len() as u64, sent, "words came back")
    })
}

/// Sends every received byte back, up to the end of the stream.
fn echo(stream: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (stream, stream);
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

/// Receives echoes up to the end of the stream.
fn receive_echoes(
    mut from: &TcpStream,
    span: Span,
    echoes: &mut Vec<(Duration, Duration)>,
) -> io::Result<()> {
    let mut word = [0; ECHO_BYTES];
    loop {
        match from.read_exact(&mut word) {
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let sent_at = word.first_chunk().copied().unwrap_or_default();
        let sent_at = Duration::from_nanos(u64::from_be_bytes(sent_at));
        let took = span.begun.elapsed().saturating_sub(sent_at);
        echoes.push((sent_at, took));
    }
}
