//! The testbed of what goes through box and server: user to content host.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use braid::failure::Failure;
use braid_testbed::bed::{self, Bed};
use braid_testbed::render::render_config;
use braid_testbed::{Options, RenderConfig, Rendered, Role, netns};

/// Longest that anything is waited for.
pub const LONGEST: Duration = Duration::from_secs(20);
/// Of what is offered beside nginx.
const PORT: u16 = 8_080;

/// With box and server running, and links of these rates and delays.
pub fn up(links: [(&str, &str); 2]) -> Result<Bed, Failure> {
    let name = format!("bench{}", std::process::id());
    let mut bed = build(&bed::description(&name, links), render_config(None)?)?;
    bed.start("server", LONGEST)?;
    bed.start("box", LONGEST)?;
    bed.wait_for_intake(LONGEST)?;
    Ok(bed)
}

/// What users' connections go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// Box and server.
    Braid,
    /// Box and server without protection.
    Clear,
    /// Something in their place.
    Others,
}

/// The same hosts with links that nothing holds back, for these gateways. Nothing is started.
pub fn unshaped(gateways: Gateways, congestion: &str) -> Result<Bed, Failure> {
    let kind = match gateways {
        Gateways::Braid => "braid",
        Gateways::Clear => "clear",
        Gateways::Others => "relays",
    };
    let name = format!("bench{}{kind}", std::process::id());
    let cubic = "congestion = \"cubic\"";
    let mut text = bed::unshaped(&name).replace(cubic, &format!("congestion = \"{congestion}\""));
    for role in ["box", "server"]
        .iter()
        .filter(|_| gateways == Gateways::Others)
    {
        let started = format!("role = \"{role}\"\nstart = \"manual\"");
        text = text.replace(&started, "role = \"router\"");
    }
    let render = render_config(Some(congestion))?;
    build(
        &text,
        match gateways {
            Gateways::Clear => in_clear(render),
            _ => render,
        },
    )
}

/// The same configurations without protection.
fn in_clear(render: RenderConfig) -> RenderConfig {
    Box::new(move |layout, host| {
        let Rendered { text, key } = render(layout, host)?;
        let text = match host.role {
            Role::Server => format!("unprotected = true\n{text}"),
            _ => text.replace("[[server]]\n", "[[server]]\nprotection = \"none\"\n"),
        };
        Some(Rendered { text, key })
    })
}

fn build(description: &str, render: RenderConfig) -> Result<Bed, Failure> {
    let options = Options {
        executable: Some(env!("CARGO_BIN_EXE_braid").into()),
        render: Some(render),
        ..Options::default()
    };
    Ok(Bed::up(bed::spec(description)?, options, || false)?)
}

/// Listens on the content host.
pub fn listen(bed: &Bed) -> Result<TcpListener, Failure> {
    let host = bed.testbed.layout().host("content")?;
    let address: SocketAddr = (host.interfaces[0].address4, PORT).into();
    let listener = netns::run_inside(&host.namespace, || TcpListener::bind(address))?;
    Ok(listener)
}
