//! The format of control sockets: one line of JSON each way over a Unix socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a line of at most `most` bytes within `timeout`.
///
/// # Errors
/// `TimedOut`; `InvalidData` if the line is too long, is no JSON or does not fit `T`; `UnexpectedEof` if the
/// peer closes without a byte.
pub fn read<T: DeserializeOwned>(
    mut stream: &UnixStream,
    most: usize,
    timeout: Duration,
) -> io::Result<T> {
    let end = Instant::now() + timeout;
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while !line.contains(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(n) => line.extend_from_slice(&chunk[..n]),
            // Either time is up, or a signal came. The check of the remaining time tells which.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if line.len() > most {
            let message = format!("a line of more than {most} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Writes `message` as a line. Each part must be taken within `timeout` of the part before.
///
/// # Errors
/// Fails if the system refuses; with `WouldBlock` if the peer does not read.
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

    fn read_of(sent: &[u8], ends: bool) -> io::Result<Vec<u32>> {
        let (mut to, from) = UnixStream::pair()?;
        to.write_all(sent)?;
        if ends {
            drop(to);
            return read(&from, 64, TIMEOUT);
        }
        read(&from, 64, TIMEOUT)
    }

    #[test]
    fn a_line_is_read_and_what_is_none_is_told() {
        assert_eq!(read_of(b"[1,2]\n", false).unwrap(), [1, 2]);
        assert_eq!(read_of(b"[1,2]", true).unwrap(), [1, 2]);
        let kind = |sent: &[u8], ends| read_of(sent, ends).unwrap_err().kind();
        assert_eq!(kind(b"", true), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"[1,", false), io::ErrorKind::TimedOut);
        assert_eq!(kind(b"{}\n", false), io::ErrorKind::InvalidData);
        assert_eq!(kind(&[b' '; 65], false), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_is_written_is_read() {
        let (to, from) = UnixStream::pair().unwrap();
        write(&to, &[3, 4], TIMEOUT).unwrap();
        assert_eq!(read::<Vec<u32>>(&from, 64, TIMEOUT).unwrap(), [3, 4]);
    }
}
