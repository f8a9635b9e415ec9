//! A server that sends as many bytes as a user asks for, and the user's part.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use braid::failure::Failure;
use braid_testbed::fixture::Fixture;

use crate::fixture::{self, WAIT_TIMEOUT};

/// Serves on the content host until the process ends. Returns the listener's address.
pub fn offer(fixture: &Fixture) -> Result<SocketAddr, Failure> {
    let listener = fixture::listen(fixture)?;
    let address = listener.local_addr()?;
    thread::spawn(move || serve(&listener));
    Ok(address)
}

/// Answers every connection. A request is the number of bytes wanted, eight bytes in network order.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            // The user may have closed the connection.
            let _ = answer(stream);
        });
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let mut left = u64::from_be_bytes(wanted);
    let bytes = vec![0; 1 << 18];
    while left > 0 {
        let chunk = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        stream.write_all(&bytes[..chunk])?;
        left -= chunk as u64;
    }
    Ok(())
}

/// Fetches `bytes` bytes from the calling thread's namespace. Returns the time from before the SYN to
/// the last byte.
pub fn fetch(content: SocketAddr, bytes: u64) -> io::Result<Duration> {
    let since = Instant::now();
    let mut stream = TcpStream::connect(content)?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    stream.write_all(&bytes.to_be_bytes())?;
    let mut buffer = vec![0; 1 << 18];
    let (mut got, mut took) = (0, Duration::ZERO);
    loop {
        match stream.read(&mut buffer)? {
            0 if got == bytes => return Ok(took),
            0 => {
                let message = format!("{got} of {bytes} bytes arrived");
                return Err(io::Error::other(message));
            }
            n => got += n as u64,
        }
        took = since.elapsed();
    }
}
