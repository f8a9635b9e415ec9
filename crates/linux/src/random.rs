//! Randomness of the system.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes that nobody can foretell: keys, seeds, nonces. Right after boot it waits until the system
/// has gathered some.
///
/// # Errors
/// The system has none to give.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
