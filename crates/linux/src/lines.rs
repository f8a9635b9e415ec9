//! The format of control sockets: one line of JSON in each direction over a Unix socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a line of JSON. The whole line has to arrive within `timeout`.
///
/// # Errors
/// Fails with `TimedOut` if the time is over, with `InvalidData` if the line has more than `max_len` bytes or is
/// no JSON for `T`, and with `UnexpectedEof` if the peer closes the stream without a byte.
pub fn read<T: DeserializeOwned>(
    mut stream: &UnixStream,
    max_len: usize,
    timeout: Duration,
) -> io::Result<T> {
    let deadline = Instant::now() + timeout;
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while !line.contains(&b'\n') {
        let time_left = deadline.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(time_left))?;
        match stream.read(&mut chunk) {
            Ok(0) if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(n) => line.extend_from_slice(&chunk[..n]),
            // Either the time is over or a signal interrupted the read. The next turn checks the remaining time.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if line.len() > max_len {
            let message = format!("a line of more than {max_len} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Writes `message` as a line. The timeout applies to each write to the socket, not to the whole line.
///
/// # Errors
/// Fails if a write does: with `WouldBlock` if the peer does not read within `timeout`.
pub fn write(
    mut stream: &UnixStream,
    message: &impl Serialize,
    timeout: Duration,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn read_of(sent: &[u8], closes: bool) -> io::Result<Vec<u32>> {
        let (mut to, from) = UnixStream::pair()?;
        to.write_all(sent)?;
        if closes {
            drop(to);
            return read(&from, 64, TIMEOUT);
        }
        read(&from, 64, TIMEOUT)
    }

    #[test]
    fn a_line_is_read_and_other_input_is_an_error() {
        assert_eq!(read_of(b"[1,2]\n", false).unwrap(), [1, 2]);
        assert_eq!(read_of(b"[1,2]", true).unwrap(), [1, 2]);
        let kind = |sent: &[u8], closes| read_of(sent, closes).unwrap_err().kind();
        assert_eq!(kind(b"", true), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"[1,", false), io::ErrorKind::TimedOut);
        assert_eq!(kind(b"{}\n", false), io::ErrorKind::InvalidData);
        assert_eq!(kind(&[b' '; 65], false), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_written_line_is_read_back() {
        let (to, from) = UnixStream::pair().unwrap();
        write(&to, &[3, 4], TIMEOUT).unwrap();
        assert_eq!(read::<Vec<u32>>(&from, 64, TIMEOUT).unwrap(), [3, 4]);
    }
}
