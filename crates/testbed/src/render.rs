//! Configurations of boxes and servers in a testbed, made from its addresses.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

use crate::layout::{HostLayout, InterfaceLayout, Layout, SegmentKind};
use crate::spec::Role;
use crate::testbed::RenderConfig;

/// Beside the configuration: elsewhere those of two testbeds would be the same.
const CONTROL: &str = "control = \"control.sock\"";

/// Most places a server may be told to measure its way to.
const TARGETS: usize = 8;

/// Makes `box.toml` and `server.toml` for the hosts of a testbed; all share one secret, made here.
///
/// # Errors
/// The system has no randomness to give.
pub fn render_config() -> io::Result<RenderConfig> {
    let mut secret = [0; 24];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Box::new(move |layout, host| match host.role {
        Role::Box => box_config(layout, host, &secret),
        Role::Server => server_config(layout, host, &secret),
        Role::User | Role::Router | Role::Content => None,
    }))
}

fn box_config(layout: &Layout, host: &HostLayout, secret: &str) -> Option<String> {
    let inside = host
        .interfaces
        .iter()
        .filter(|i| i.kind == SegmentKind::Lan && !leads_out(i));
    let lan: Vec<_> = inside.map(|i| format!("{:?}", i.name)).collect();
    let mut text = format!(
        "lan = [{}]\ncongestion = \"cubic\"\n{CONTROL}\n",
        lan.join(", ")
    );
    for link in host.interfaces.iter().filter(|i| leads_out(i)) {
        let gateways = [
            link.gateway4.map(|a| format!("\"{a}\"")),
            link.gateway6.map(|a| format!("\"{a}\"")),
        ];
        let gateways: Vec<_> = gateways.into_iter().flatten().collect();
        let _ = write!(
            text,
            "\n[[link]]\ninterface = {:?}\ngateway = [{}]\n",
            link.name,
            gateways.join(", ")
        );
    }
    let servers = layout.hosts.iter().filter(|h| h.role == Role::Server);
    for (server, at) in servers.filter_map(|server| Some((server, uplink(server)?))) {
        let _ = write!(
            text,
            "\n[[server]]\nname = \"{}\"\naddress = [\"{}\", \"{}\"]\nuser = \"{}\"\n\
             secret = \"{secret}\"\n",
            server.name, at.address4, at.address6, host.name
        );
    }
    Some(text)
}

fn server_config(layout: &Layout, host: &HostLayout, secret: &str) -> Option<String> {
    let listen = uplink(host)?;
    // A testbed's networks lie in ranges that a server on the Internet would refuse.
    let contents = || layout.hosts.iter().filter(|h| h.role == Role::Content);
    let reachable = contents().flat_map(|content| &content.interfaces);
    let reachable = reachable.map(|i| format!("\"{}\", \"{}\"", i.address4, i.address6));
    let targets = contents().filter_map(|content| content.interfaces.first());
    let targets = targets
        .take(TARGETS)
        .map(|i| format!("\"{}:80\"", i.address4));
    let mut text = format!(
        "listen = [\"{}\", \"{}\"]\nallow = [{}]\ntargets = [{}]\ncongestion = \"cubic\"\n\
         {CONTROL}\n",
        listen.address4,
        listen.address6,
        reachable.collect::<Vec<_>>().join(", "),
        targets.collect::<Vec<_>>().join(", ")
    );
    for user in layout.hosts.iter().filter(|other| other.role == Role::Box) {
        let _ = write!(
            text,
            "\n[[user]]\nname = \"{}\"\nsecret = \"{secret}\"\n",
            user.name
        );
    }
    Some(text)
}

/// The interface the world reaches a host at: the one towards its gateway, or the first.
fn uplink(host: &HostLayout) -> Option<&InterfaceLayout> {
    host.interfaces
        .iter()
        .find(|i| leads_out(i))
        .or(host.interfaces.first())
}

fn leads_out(interface: &InterfaceLayout) -> bool {
    interface.gateway4.is_some() || interface.gateway6.is_some()
}

#[cfg(test)]
mod tests {
    use braid_proxy::config::{BoxConfig, ServerConfig};

    use super::*;
    use crate::bed;

    fn rendered(host: &str) -> Option<String> {
        let text = bed::description("demo", [("20mbit", "15ms"), ("10mbit", "35ms")]);
        let spec = bed::spec(&text).expect("a good description");
        let layout = Layout::resolve(&spec).expect("a good description");
        let render = render_config().expect("randomness");
        render(&layout, layout.host(host).expect("a known host"))
    }

    #[test]
    fn the_box_uses_every_link_and_the_servers_address() {
        let text = rendered("box").expect("a configuration");
        let config = BoxConfig::from_toml("box.toml", &text).expect("a good configuration");
        assert_eq!(config.lan, ["home"]);
        let links: Vec<_> = config
            .links
            .iter()
            .map(|link| link.interface.as_str())
            .collect();
        assert_eq!(links, ["link1", "link2"]);
        let server = rendered("server").expect("a configuration");
        let server = ServerConfig::from_toml("server.toml", &server).expect("a good one");
        assert_eq!(
            config.servers[0].v4.map(Into::into),
            server.listen.first().copied()
        );
        assert_eq!(config.servers[0].user, server.users[0].name);
    }

    #[test]
    fn other_hosts_have_no_configuration() {
        assert_eq!(rendered("user"), None);
        assert_eq!(rendered("content"), None);
    }
}
