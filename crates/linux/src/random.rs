//! Random bytes from the kernel.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes for keys, seeds and nonces. Shortly after the boot of the machine the call waits until the
/// kernel has enough entropy.
///
/// # Errors
/// Fails if `getrandom` does.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
