//! Random bytes of the system.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes fit for keys, seeds and nonces. Right after boot the call waits until the system has
/// gathered entropy.
///
/// # Errors
/// Fails if the system has no random source.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
