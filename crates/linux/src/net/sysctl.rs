//! Kernel settings of the current network namespace.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use super::{Result, SystemError};

/// A setting and a value for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Path below `/proc/sys/`, such as `net/ipv4/conf/eth0/forwarding`.
    pub key: String,
    /// Value.
    pub value: String,
}

impl Sysctl {
    /// Returns a setting with the value for it.
    pub fn new(key: impl Into<String>, value: impl ToString) -> Sysctl {
        Sysctl {
            key: key.into(),
            value: value.to_string(),
        }
    }

    /// Returns the setting with its present value; `None` if this kernel or namespace does not have it.
    pub fn current(key: &str) -> Option<Sysctl> {
        let value = fs::read_to_string(path(key)?).ok()?;
        Some(Sysctl::new(key, value.trim()))
    }

    /// Writes the value into the kernel.
    ///
    /// # Errors
    /// Fails if the file of the setting cannot be written: with `NotFound` if this kernel or namespace does not
    /// have the setting.
    pub fn apply(&self) -> Result<()> {
        let action = || format!("set {} to {}", self.key, self.value);
        let path = path(&self.key)
            .ok_or_else(|| SystemError::other(action(), "it is not a network setting"))?;
        // The file is not truncated: Landlock has a separate right for truncation, and box and server give up
        // this right. The kernel takes the written bytes as the whole value in any case.
        let file = fs::OpenOptions::new().write(true).open(path);
        let written = file.and_then(|mut file| file.write_all(self.value.as_bytes()));
        written.map_err(SystemError::cannot(action()))
    }
}

/// Returns the settings of `wanted` whose current value differs, each as a pair of the current and the wanted
/// setting. Settings that this kernel or namespace does not have are left out.
pub fn differing(wanted: &[Sysctl]) -> Vec<(Sysctl, Sysctl)> {
    let pairs = wanted.iter().filter_map(|new| {
        let old = Sysctl::current(&new.key)?;
        (old.value != new.value).then(|| (old, new.clone()))
    });
    pairs.collect()
}

/// Returns the file of a setting; `None` if the key would lead out of `/proc/sys/net`. A key may contain an
/// interface name, and the kernel allows almost any character in such a name.
fn path(key: &str) -> Option<PathBuf> {
    let sane =
        key.starts_with("net/") && key.split('/').all(|part| part != ".." && !part.is_empty());
    sane.then(|| PathBuf::from("/proc/sys").join(key))
}
