//! Testbeds for benchmarks through box and server: a user, the gateways, and a content host.

use std::path::Path;
use std::time::Duration;

use braid::failure::Failure;
use braid::program::BRAID;
use braid_testbed::fixture::{self, Fixture};
use braid_testbed::render::{render_config, with_plaintext};
use braid_testbed::{Options, RenderConfig, Rendered, Role};

/// Longest wait for a process or an answer.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The programs that carry users' connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// Box and server.
    Braid,
    /// Box and server with plaintext between them.
    Plaintext,
    /// Relays in place of box and server, without encryption.
    Relays,
    /// Relays that encrypt.
    Shadowsocks,
    /// WireGuard in place of box and server.
    WireGuard,
}

impl Gateways {
    /// Returns the name used for testbeds and progress messages.
    pub fn name(self) -> &'static str {
        match self {
            Gateways::Braid => "braid",
            Gateways::Plaintext => "clear",
            Gateways::Relays => "relays",
            Gateways::Shadowsocks => "shadowsocks",
            Gateways::WireGuard => "wireguard",
        }
    }

    fn are_box_and_server(self) -> bool {
        matches!(self, Gateways::Braid | Gateways::Plaintext)
    }

    /// Returns the name of a testbed with these gateways.
    fn testbed_name(self) -> String {
        format!("bench{}{}", std::process::id(), self.name())
    }

    fn render(self, congestion: Option<&str>) -> Result<RenderConfig, Failure> {
        let render = render_config(congestion)?;
        Ok(match self {
            Gateways::Plaintext => with_plaintext(render),
            _ => render,
        })
    }
}

/// Starts box and server between links of these rates and delays, with `settings` appended to the box's
/// configuration.
pub fn up(
    gateways: Gateways,
    links: [(&str, &str); 2],
    settings: &'static str,
) -> Result<Fixture, Failure> {
    let render = gateways.render(None)?;
    let render: RenderConfig = Box::new(move |layout, host| {
        let Rendered { mut text, key } = render(layout, host)?;
        if host.role == Role::Box {
            text.push_str(settings);
        }
        Some(Rendered { text, key })
    });
    let mut fixture = build(
        &fixture::description(&gateways.testbed_name(), links),
        render,
    )?;
    fixture.start("server", WAIT_TIMEOUT)?;
    fixture.start("box", WAIT_TIMEOUT)?;
    fixture.wait_for_interception(WAIT_TIMEOUT)?;
    Ok(fixture)
}

/// Builds the same hosts with links that nothing holds back, and starts no gateway.
pub fn unshaped(gateways: Gateways, congestion: &str) -> Result<Fixture, Failure> {
    let cubic = "congestion = \"cubic\"";
    let mut text = fixture::unshaped(&gateways.testbed_name());
    text = text.replace(cubic, &format!("congestion = \"{congestion}\""));
    if !gateways.are_box_and_server() {
        for role in ["box", "server"] {
            let started = format!("role = \"{role}\"\nstart = \"manual\"");
            text = text.replace(&started, "role = \"router\"");
        }
    }
    build(&text, gateways.render(Some(congestion))?)
}

fn build(description: &str, render: RenderConfig) -> Result<Fixture, Failure> {
    let options = Options {
        executable: Some(Path::new(env!("CARGO_BIN_EXE_braid-lab")).with_file_name(BRAID)),
        render: Some(render),
        ..Options::default()
    };
    Ok(Fixture::up(fixture::spec(description)?, options, || false)?)
}

/// Returns the processes of box and server.
pub fn pids(fixture: &mut Fixture) -> Result<Vec<u32>, Failure> {
    let hosts = ["box", "server"].into_iter();
    hosts
        .map(|host| {
            let ended = || Failure::Run(format!("the {host} ended"));
            fixture.testbed.pid(host).ok_or_else(ended)
        })
        .collect()
}
