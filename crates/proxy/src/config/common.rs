//! What both files have in common.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;

use super::error::ConfigError;
use super::types::{Cidr, Interface, SECRET_HINT, Secret};

/// Port of the server where none is given: SOCKS (RFC 1928).
pub const DEFAULT_PORT: u16 = 1080;

/// Most paths of a box or a server: links, listening addresses.
pub(super) const MAX_PATHS: usize = 16;

/// The TUN device and the addresses paths have on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the device.
    pub name: String,
    /// IPv4 range, /16 to /27, with room for 16 paths. The first address is the host's own on
    /// the device.
    pub v4: Cidr,
    /// IPv6 range, /48 to /120.
    pub v6: Cidr,
}

impl TunConfig {
    /// IPv4 address of path `n`, counted from 0.
    pub fn path_v4(&self, n: u8) -> core::net::Ipv4Addr {
        match self.v4.network() {
            core::net::IpAddr::V4(a) => {
                core::net::Ipv4Addr::from_bits(a.to_bits() + 2 + u32::from(n))
            }
            core::net::IpAddr::V6(_) => unreachable!("checked when it was read"),
        }
    }

    /// IPv6 address of path `n`, counted from 0.
    pub fn path_v6(&self, n: u8) -> core::net::Ipv6Addr {
        match self.v6.network() {
            core::net::IpAddr::V6(a) => {
                core::net::Ipv6Addr::from_bits(a.to_bits() + 2 + u128::from(n))
            }
            core::net::IpAddr::V4(_) => unreachable!("checked when it was read"),
        }
    }
}

/// The file being read, for errors that span several settings.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|e| ConfigError::from_toml(self.file, self.text, &e))
    }

    /// A mistake at the value `at`.
    pub(super) fn error<T>(
        &self,
        at: &Spanned<T>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let hint = Some(hint.into());
        ConfigError::at(self.file, self.text, Some(at.span()), message, hint)
    }

    /// A mistake of the whole file.
    pub(super) fn whole(&self, message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError::at(self.file, self.text, None, message, Some(hint.into()))
    }

    /// The secret that is given in place or in a file beside this one.
    pub(super) fn secret(
        &self,
        owner: &Spanned<String>,
        inline: Option<Secret>,
        file: Option<Spanned<PathBuf>>,
    ) -> Result<Secret, ConfigError> {
        match (inline, file) {
            (Some(secret), None) => Ok(secret),
            (None, Some(path)) => {
                let dir = Path::new(self.file).parent().unwrap_or(Path::new(""));
                let full = dir.join(path.get_ref());
                warn_if_open(&full);
                let text = std::fs::read_to_string(&full).map_err(|e| {
                    let message = format!("cannot read the secret in {}: {e}", full.display());
                    let hint = format!(
                        "the file that holds it (make one: openssl rand -base64 32 > {})",
                        full.display()
                    );
                    self.error(&path, message, hint)
                })?;
                Secret::new(&text)
                    .map_err(|e| self.error(&path, format!("{}: {e}", full.display()), SECRET_HINT))
            }
            (None, None) => Err(self.error(
                owner,
                "no secret is given",
                "secret_file = \"secret\", a file made by: openssl rand -base64 32 > secret",
            )),
            (Some(_), Some(path)) => Err(self.error(
                &path,
                "both `secret` and `secret_file` are given",
                "one of them",
            )),
        }
    }
}

/// Who can read the secret can use the server. No error: the file may be on a system without
/// owners.
fn warn_if_open(secret: &Path) {
    use std::os::unix::fs::MetadataExt;
    let open = std::fs::metadata(secret).is_ok_and(|m| m.mode() & 0o007 != 0);
    if open {
        let file = secret.display();
        tracing::warn!(%file, "every user of this machine may read the secret: chmod 600 it");
    }
}

pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|e| ConfigError {
        file: path.display().to_string(),
        position: None,
        read: None,
        message: format!("cannot read the file: {e}"),
        hint: None,
    })
}

/// The settings of `[tun]` as they are written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTun {
    name: Option<Spanned<Interface>>,
    v4: Option<Spanned<Cidr>>,
    v6: Option<Spanned<Cidr>>,
}

impl RawTun {
    /// `taken` are interfaces that exist for something else.
    pub(super) fn check(
        raw: Option<RawTun>,
        src: &Source<'_>,
        (v4, v6): (&str, &str),
        taken: &[&str],
    ) -> TunResult {
        let default = |s: &str| s.parse::<Cidr>().expect("the default range is valid");
        let raw = raw.unwrap_or(RawTun {
            name: None,
            v4: None,
            v6: None,
        });
        let pick = |given: Option<Spanned<Cidr>>, default: Cidr, prefixes: (u8, u8)| match given {
            None => Ok(default),
            Some(c) if c.get_ref().network().is_ipv4() != default.network().is_ipv4() => Err(src
                .error(
                    &c,
                    format!("{} is of the wrong family", c.get_ref()),
                    format!("a range such as \"{default}\""),
                )),
            Some(c) if !(prefixes.0..=prefixes.1).contains(&c.get_ref().prefix()) => Err(src
                .error(
                    &c,
                    format!(
                        "the range {} is not between /{} and /{}",
                        c.get_ref(),
                        prefixes.0,
                        prefixes.1
                    ),
                    format!("a range such as \"{default}\""),
                )),
            Some(c) => Ok(c.into_inner()),
        };
        Ok(TunConfig {
            v4: pick(raw.v4, default(v4), (16, 27))?,
            v6: pick(raw.v6, default(v6), (48, 120))?,
            name: match raw.name {
                None => "braid0".to_owned(),
                Some(name) if taken.contains(&name.get_ref().0.as_str()) => {
                    let message = format!("{:?} is a link or of the LAN", name.get_ref().0);
                    return Err(src.error(&name, message, "a name of its own: name = \"braid0\""));
                }
                Some(name) => name.into_inner().0,
            },
        })
    }
}

type TunResult = Result<TunConfig, ConfigError>;
