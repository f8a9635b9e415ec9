//! Two namespaces connected by two plain veth pairs: no emulation, no shaping, segmentation and receive
//! offload on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid::failure::Failure;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_testbed::netns;

/// Number of links between the two namespaces.
pub const LINKS: usize = 2;
/// Routing table of the near side's second link, for the kernel's second subflow.
const TABLE: &str = "102";
/// Priority of the rule for that table, ahead of the main table's rule (32766).
const PREFERENCE: &str = "20000";

/// The network, removed when dropped.
pub struct Network {
    near: String,
    far: String,
    directory: PathBuf,
}

impl Network {
    /// Builds the network. The routes prescribe the congestion control, so that subflows that the
    /// kernel opens or accepts by itself have it too.
    pub fn up(congestion: &str) -> Result<Network, Failure> {
        let prefix = format!("braid-bench-{}", std::process::id());
        let network = Network {
            near: format!("{prefix}-near"),
            far: format!("{prefix}-far"),
            directory: std::env::temp_dir().join(&prefix),
        };
        netns::create(&network.near)?;
        netns::create(&network.far)?;
        fs::create_dir_all(&network.directory)?;
        for namespace in [&network.near, &network.far] {
            network.ip(namespace, "link set lo up")?;
            // Loose filtering: answers arrive on a link other than the main table's route to their
            // source.
            let loosen = || std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2");
            netns::run_inside(namespace, loosen)?;
            network.ip(namespace, "mptcp limits set subflows 4 add_addr_accepted 4")?;
        }
        for link in 1..=LINKS {
            network.add_link(link, congestion)?;
        }
        let near2 = near_address(2);
        let far2 = far_address(2);
        let near = &network.near;
        network.ip(
            near,
            &format!("rule add from {near2} lookup {TABLE} pref {PREFERENCE}"),
        )?;
        network.ip(
            near,
            &format!("route add default via {far2} dev link2 congctl {congestion} table {TABLE}"),
        )?;
        network.ip(
            near,
            &format!("mptcp endpoint add {near2} dev link2 subflow"),
        )?;
        // The configuration needs a server's key, but no handshake uses it: the peer is a plain socket.
        let key = PrivateKey::from_seed([1; 32]);
        key.create(&network.directory.join("engine.key"))?;
        fs::write(network.config(), engine_config(congestion, key.public()))?;
        Ok(network)
    }

    fn add_link(&self, link: usize, congestion: &str) -> Result<(), Failure> {
        let (near, far) = (&self.near, &self.far);
        self.ip(
            near,
            &format!("link add link{link} type veth peer name link{link} netns {far}"),
        )?;
        for (namespace, address) in [(near, near_address(link)), (far, far_address(link))] {
            self.ip(
                namespace,
                &format!("address add {address}/24 dev link{link}"),
            )?;
            self.ip(namespace, &format!("link set link{link} up"))?;
            self.ip(
                namespace,
                &format!("route change 10.9.{link}.0/24 dev link{link} congctl {congestion}"),
            )?;
        }
        Ok(())
    }

    fn ip(&self, namespace: &str, arguments: &str) -> Result<(), Failure> {
        let output = netns::command(namespace, "ip")?
            .args(arguments.split(' '))
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(Failure::Run(format!("ip {arguments}: {}", stderr.trim())))
    }

    /// Returns a command that runs on the side that opens connections, by kernel or engine.
    pub fn near(&self, program: &str) -> Result<Command, Failure> {
        Ok(netns::command(&self.near, program)?)
    }

    /// Returns a command that runs on the side that accepts connections, always by kernel sockets.
    pub fn far(&self, program: &str) -> Result<Command, Failure> {
        Ok(netns::command(&self.far, program)?)
    }

    /// Returns the path of the engine's configuration.
    pub fn config(&self) -> PathBuf {
        self.directory.join("engine.toml")
    }

    /// Returns the bytes that each link has carried so far, both directions together.
    pub fn carried(&self) -> Result<[u64; LINKS], Failure> {
        let name = self.near.clone();
        let read = || {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok([1, 2].map(|link| carried(&text, &format!("link{link}:"))))
        };
        Ok(netns::run_inside(&name, read)?)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // The namespace may not exist if `up` failed early.
            let _ = netns::delete(namespace);
        }
        let _ = fs::remove_dir_all::<&Path>(&self.directory);
    }
}

/// Returns the address of the side that opens connections.
fn near_address(link: usize) -> String {
    format!("10.9.{link}.1")
}

/// Returns the address of the side that accepts connections.
pub fn far_address(link: usize) -> String {
    format!("10.9.{link}.2")
}

fn engine_config(congestion: &str, key: PublicKey) -> String {
    let mut text =
        format!("key_file = \"engine.key\"\nlan = \"lo\"\ncongestion = \"{congestion}\"\n");
    for link in 1..=LINKS {
        let gateway = far_address(link);
        text.push_str(&format!(
            "[[link]]\ninterface = \"link{link}\"\ngateway = \"{gateway}\"\n"
        ));
    }
    let server = far_address(1);
    text.push_str(&format!(
        "[[server]]\naddress = \"{server}\"\nkey = \"{key}\"\n"
    ));
    text
}

/// Returns the bytes received and sent in the line of `/proc/net/dev` that starts with `name`.
pub fn carried(text: &str, name: &str) -> u64 {
    let fields = |line: &str| {
        let mut fields = line.split_whitespace().map(str::to_owned);
        (fields.next().as_deref() == Some(name)).then(|| fields.collect::<Vec<_>>())
    };
    let fields = text.lines().find_map(fields).unwrap_or_default();
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok());
    // Eight fields on reception precede the bytes sent.
    field(0).unwrap_or(0) + field(8).unwrap_or(0)
}
