//! The pair of link and server that a check looks at, and the result.

use std::io;
use std::net::SocketAddr;

use braid_proxy::config::ServerEntry;
use braid_proxy::trial::TrialReport;

use super::echo::Echoes;

/// The results for one server over one link.
#[derive(Debug)]
pub(super) struct ProbeResult {
    pub trial: io::Result<TrialReport>,
    pub echoes: io::Result<Echoes>,
}

/// A server as seen over a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbedPair<'a> {
    pub link: &'a str,
    pub server: &'a ServerEntry,
    pub remote: SocketAddr,
    /// Largest packet of the link, bytes.
    pub mtu: u16,
}

impl ProbedPair<'_> {
    pub fn subject(&self) -> String {
        format!(
            "link {} to {} ({})",
            self.link, self.server.name, self.remote
        )
    }
}
