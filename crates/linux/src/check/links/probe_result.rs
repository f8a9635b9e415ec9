//! The link and the server that a check probes, and the results.

use std::io;
use std::net::SocketAddr;

use braid_proxy::config::ServerEntry;
use braid_proxy::trial::TrialReport;

use super::echo::Echoes;

/// The results for one server over one link.
#[derive(Debug)]
pub(super) struct ProbeResult {
    /// The result of a connection to the server.
    pub trial: io::Result<TrialReport>,
    /// The results of the probes for packet sizes and UDP.
    pub echoes: io::Result<Echoes>,
}

/// A link and a server that is probed over it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbedPair<'a> {
    /// Name of the link.
    pub link: &'a str,
    pub server: &'a ServerEntry,
    /// The address of the server that is probed.
    pub remote: SocketAddr,
    /// Maximum packet size of the link in bytes.
    pub mtu: u16,
}

impl ProbedPair<'_> {
    /// Returns the text by which findings name link and server.
    pub fn subject(&self) -> String {
        format!(
            "link {} to {} ({})",
            self.link, self.server.name, self.remote
        )
    }
}
