//! A content host that sends as many bytes as it is asked for, and a client that asks for them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use braid::failure::Failure;
use braid_testbed::fixture::Fixture;
use braid_testbed::netns;

/// Port of the listener on the content host; nginx has port 80.
const PORT: u16 = 8_080;
/// Maximum wait for the next bytes of a connection.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of bytes that one call reads or writes.
const CHUNK: usize = 1 << 18;

/// Opens a listener on the content host.
///
/// # Errors
/// Fails if the testbed has no such host, or if the port is in use.
pub fn listen(fixture: &Fixture) -> Result<TcpListener, Failure> {
    let host = fixture.testbed.layout().host("content")?;
    let address: SocketAddr = (host.interfaces[0].address4, PORT).into();
    let listener = netns::run_inside(&host.namespace, || TcpListener::bind(address))?;
    Ok(listener)
}

/// Serves on the content host until the process ends. Returns the listener's address.
///
/// # Errors
/// Fails as [`listen`] does.
pub fn offer(fixture: &Fixture) -> Result<SocketAddr, Failure> {
    let listener = listen(fixture)?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                // The user may close the connection at any time.
                let _ = answer(stream);
            });
        }
    });
    Ok(address)
}

/// Answers the requests of a connection one after the other. A request is the number of bytes wanted, eight
/// bytes in network order.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let bytes = vec![0; CHUNK];
    let mut wanted = [0; 8];
    loop {
        stream.read_exact(&mut wanted)?;
        let mut left = u64::from_be_bytes(wanted);
        while left > 0 {
            let chunk = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
            stream.write_all(&bytes[..chunk])?;
            left -= chunk as u64;
        }
    }
}

/// A user's connection to the content host.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    chunk: Vec<u8>,
}

impl Client {
    /// Connects from the calling thread's namespace.
    ///
    /// # Errors
    /// Fails if the connection does not open.
    pub fn connect(content: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(content)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let chunk = vec![0; CHUNK];
        Ok(Client { stream, chunk })
    }

    /// Asks for `bytes` bytes and reads them. Calls `arrived` with the size of each part as it arrives.
    ///
    /// # Errors
    /// Fails as [`request`](Client::request) and [`read`](Client::read) do.
    pub fn ask(&mut self, bytes: u64, arrived: impl FnMut(u64)) -> io::Result<()> {
        self.request(bytes)?;
        self.read(bytes, arrived)
    }

    /// Asks for `bytes` more bytes. They arrive after the bytes of earlier requests.
    ///
    /// # Errors
    /// Fails if the connection has ended.
    pub fn request(&mut self, bytes: u64) -> io::Result<()> {
        self.stream.write_all(&bytes.to_be_bytes())
    }

    /// Reads `bytes` bytes. Calls `arrived` with the size of each part as it arrives.
    ///
    /// # Errors
    /// Fails if the connection ends before all bytes are there, or stands still for 20 s.
    pub fn read(&mut self, bytes: u64, mut arrived: impl FnMut(u64)) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
            let n = self.stream.read(&mut self.chunk[..most])? as u64;
            if n == 0 {
                let got = bytes - left;
                return Err(io::Error::other(format!("{got} of {bytes} bytes arrived")));
            }
            left -= n;
            arrived(n);
        }
        Ok(())
    }
}

/// Fetches `bytes` bytes over a connection of their own, from the calling thread's namespace. Returns the time
/// from before the SYN to the last byte.
///
/// # Errors
/// Fails as [`Client::connect`] and [`Client::ask`] do.
pub fn fetch(content: SocketAddr, bytes: u64) -> io::Result<Duration> {
    let since = Instant::now();
    Client::connect(content)?.ask(bytes, |_| {})?;
    Ok(since.elapsed())
}
