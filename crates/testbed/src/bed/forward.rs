//! A box that only forwards, as users have it without a proxy.

use std::io::{self, Write};
use std::process::Stdio;

use super::Bed;
use crate::error::Error;

/// Name of the nftables table.
const TABLE: &str = "braid_forward";

impl Bed {
    /// Makes the box a plain router with NAT that uses one link only.
    ///
    /// # Errors
    /// Fails if there is no such link, or if the system refuses.
    pub fn forward_over(&self, link: &str) -> Result<(), Error> {
        let gateway = self.interface("box", |i| i.name == link)?.gateway4;
        let gateway = gateway.ok_or_else(|| {
            let missing = io::Error::other("it has no gateway");
            Error::system(format!("forward over {link}"), missing)
        })?;
        self.nft(
            "box",
            &format!(
                "table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n\
             chain postrouting {{\ntype nat hook postrouting priority srcnat;\n\
             oifname \"{link}\" masquerade\n}}\n}}\n"
            ),
        )?;
        let route = format!("route replace default via {gateway} dev {link} metric 1\n");
        self.testbed.ip("box", &route)
    }

    /// Undoes [`forward_over`](Self::forward_over).
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn stop_forwarding(&self) -> Result<(), Error> {
        self.nft("box", &format!("delete table ip {TABLE}\n"))?;
        self.testbed.ip("box", "route del default metric 1\n")
    }

    /// Loads `script` on a host by `nft`.
    ///
    /// # Errors
    /// Fails if there is no such host, or if the system refuses.
    pub fn nft(&self, host: &str, script: &str) -> Result<(), Error> {
        let mut command = self.exec(host, "nft")?;
        let mut run = || {
            let mut child = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(script.as_bytes())?;
            }
            match child.wait()? {
                status if status.success() => Ok(()),
                status => Err(io::Error::other(status.to_string())),
            }
        };
        run().map_err(|e| Error::system("run nft", e))
    }
}
