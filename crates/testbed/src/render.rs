//! Configurations of boxes and servers in a testbed, made from its addresses.

use std::fmt::Display;
use std::io;

use braid_secure::keys::PrivateKey;

use crate::layout::{HostLayout, InterfaceLayout, Layout};
use crate::spec::Role;
use crate::testbed::{RenderConfig, Rendered};

/// The setting that puts the control socket beside the configuration. With the default path, all testbeds would
/// have the same socket.
const CONTROL: &str = "control = \"control.sock\"";

/// Maximum number of measurement targets that a server's configuration may have.
const MAX_TARGETS: usize = 8;

/// Returns a function that makes `box.toml` and `server.toml` for the hosts of a testbed, with new keys and with
/// the congestion control `congestion`. `None` means the programs' default.
///
/// # Errors
/// Fails if the operating system gives no random bytes.
pub fn render_config(congestion: Option<&str>) -> io::Result<RenderConfig> {
    let keys = Keys(braid_linux::random()?);
    let congestion = congestion.map(|name| format!("congestion = \"{name}\"\n"));
    let settings = format!("{}{CONTROL}\n", congestion.unwrap_or_default());
    Ok(Box::new(move |layout, host| {
        let settings = format!("key_file = \"{}.key\"\n{settings}", host.role.name());
        let text = match host.role {
            Role::Box => box_config(layout, host, &settings, &keys),
            Role::Server => server_config(layout, host, &settings, &keys)?,
            Role::User | Role::Router | Role::Content => return None,
        };
        let key = keys.key_of(layout, host);
        Some(Rendered { text, key })
    }))
}

/// Returns a function that makes the same configurations as `render`, but with plaintext connections.
pub fn with_plaintext(render: RenderConfig) -> RenderConfig {
    Box::new(move |layout, host| {
        let Rendered { text, key } = render(layout, host)?;
        let text = match host.role {
            Role::Server => format!("unprotected = true\n{text}"),
            _ => text.replace("[[server]]\n", "[[server]]\nprotection = \"none\"\n"),
        };
        Some(Rendered { text, key })
    })
}

/// Returns a function that makes the same configurations as `render`, with another strategy at box and server.
pub fn with_strategy(render: RenderConfig, strategy: String) -> RenderConfig {
    Box::new(move |layout, host| {
        let Rendered { text, key } = render(layout, host)?;
        let text = format!("strategy = {strategy:?}\n{text}");
        Some(Rendered { text, key })
    })
}

/// The seed of the keys of a testbed's hosts.
struct Keys([u8; 32]);

impl Keys {
    /// Returns a host's key. It is the same at every call, so that a restarted host keeps its identity.
    fn key_of(&self, layout: &Layout, host: &HostLayout) -> PrivateKey {
        let index = layout.hosts.iter().position(|h| h.name == host.name);
        let index = index.map_or(u32::MAX, |index| index as u32);
        // The host's index makes its seed differ from those of the other hosts.
        let mut seed = self.0;
        seed[..4].copy_from_slice(&index.to_be_bytes());
        PrivateKey::generate(seed)
    }
}

fn box_config(layout: &Layout, host: &HostLayout, settings: &str, keys: &Keys) -> String {
    // An interface without a gateway counts as one that leads to users.
    let inside = host.lans().filter(|i| !leads_out(i));
    let mut text = format!("lan = {}\n{settings}", list(inside.map(|i| &i.name)));
    for link in host.interfaces.iter().filter(|i| leads_out(i)) {
        let gateways = link.addresses().into_iter().filter_map(|a| a.gateway);
        let (name, gateways) = (&link.name, list(gateways));
        text += &format!("\n[[link]]\ninterface = \"{name}\"\ngateway = {gateways}\n");
    }
    let servers = layout.hosts.iter().filter(|h| h.role == Role::Server);
    for (server, at) in servers.filter_map(|server| Some((server, uplink(server)?))) {
        let key = keys.key_of(layout, server).public();
        let (name, address) = (&server.name, list(at.addresses().map(|a| a.address)));
        text += &format!("\n[[server]]\nname = \"{name}\"\naddress = {address}\nkey = \"{key}\"\n");
    }
    text
}

fn server_config(
    layout: &Layout,
    host: &HostLayout,
    settings: &str,
    keys: &Keys,
) -> Option<String> {
    let addresses = |i: &InterfaceLayout| i.addresses().map(|a| a.address);
    let contents = || layout.hosts.iter().filter(|h| h.role == Role::Content);
    let targets = contents().filter_map(|content| content.interfaces.first());
    let targets = targets.map(|i| format!("{}:80", i.address4));
    // A server refuses the address ranges of testbeds as destinations unless its configuration allows them.
    let reachable = contents().flat_map(|content| &content.interfaces);
    let mut text = format!(
        "listen = {}\nallow = {}\ntargets = {}\n{settings}",
        list(addresses(uplink(host)?)),
        list(reachable.flat_map(addresses)),
        list(targets.take(MAX_TARGETS)),
    );
    for user in layout.hosts.iter().filter(|other| other.role == Role::Box) {
        let (name, key) = (&user.name, keys.key_of(layout, user).public());
        text += &format!("\n[[user]]\nname = \"{name}\"\nkey = \"{key}\"\n");
    }
    Some(text)
}

/// Returns a TOML array of `items` as strings.
fn list(items: impl IntoIterator<Item: Display>) -> String {
    let items: Vec<_> = items
        .into_iter()
        .map(|item| format!("\"{item}\""))
        .collect();
    format!("[{}]", items.join(", "))
}

/// Returns the interface by which other hosts reach a host: the interface towards its gateway, or else the
/// first.
fn uplink(host: &HostLayout) -> Option<&InterfaceLayout> {
    let towards = host.interfaces.iter().find(|i| leads_out(i));
    towards.or(host.interfaces.first())
}

fn leads_out(interface: &InterfaceLayout) -> bool {
    interface.gateway4.is_some() || interface.gateway6.is_some()
}

#[cfg(test)]
mod tests {
    use braid_proxy::config::{BoxConfig, ServerConfig};

    use super::*;
    use crate::fixture;

    fn rendered<const N: usize>(hosts: [&str; N]) -> [Option<Rendered>; N] {
        rendered_by(&render_config(None).expect("randomness"), hosts)
    }

    fn rendered_by<const N: usize>(
        render: &RenderConfig,
        hosts: [&str; N],
    ) -> [Option<Rendered>; N] {
        let text = fixture::description("demo", [("20mbit", "15ms"), ("10mbit", "35ms")]);
        let spec = fixture::spec(&text).expect("a good description");
        let layout = Layout::resolve(&spec).expect("a good description");
        hosts.map(|host| render(&layout, layout.host(host).expect("a known host")))
    }

    #[test]
    fn the_box_uses_every_link_and_the_servers_address() {
        let [boxed, server] = rendered(["box", "server"]).map(|r| r.expect("a configuration"));
        assert!(boxed.text.contains("key_file = \"box.key\"\n"));
        assert!(server.text.contains("key_file = \"server.key\"\n"));
        let config = BoxConfig::with_key("box.toml", &boxed.text, boxed.key).expect("a good one");
        assert_eq!(config.lan, ["home"]);
        let links = config.links.iter().map(|link| link.interface.as_str());
        assert!(links.eq(["link1", "link2"]));
        let server = ServerConfig::with_key("server.toml", &server.text, server.key);
        let server = server.expect("a good one");
        let address = config.servers[0].v4.map(Into::into);
        assert_eq!(address, server.listen.first().copied());
        assert_eq!(server.users[0].name, "box");
        assert_eq!(config.key.public(), server.users[0].key);
        assert_eq!(config.servers[0].key, server.key.public());
        assert_ne!(config.key.public(), server.key.public());
    }

    #[test]
    fn box_and_server_use_the_strategy() {
        let render = render_config(None).expect("randomness");
        let render = with_strategy(render, "maps:single".to_owned());
        let hosts = rendered_by(&render, ["box", "server", "user"]);
        let [boxed, server, None] = hosts else {
            panic!("a user has no configuration");
        };
        let [boxed, server] = [boxed, server].map(|r| r.expect("a configuration"));
        assert!(boxed.text.starts_with("strategy = \"maps:single\"\n"));
        BoxConfig::with_key("box.toml", &boxed.text, boxed.key).expect("a good one");
        assert!(server.text.starts_with("strategy = \"maps:single\"\n"));
        ServerConfig::with_key("server.toml", &server.text, server.key).expect("a good one");
    }

    #[test]
    fn other_hosts_have_no_configuration() {
        assert!(rendered(["user", "content"]).iter().all(Option::is_none));
    }
}
