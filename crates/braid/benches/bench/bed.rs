//! The testbed of what goes through box and server: user to content host.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use braid::failure::Failure;
use braid_testbed::bed::{self, Bed};
use braid_testbed::render::render_config;
use braid_testbed::{Options, netns};

/// Longest that anything is waited for.
pub const LONGEST: Duration = Duration::from_secs(20);
/// Of what is offered beside nginx.
const PORT: u16 = 8_080;

/// With box and server running, and links of these rates and delays.
pub fn up(links: [(&str, &str); 2]) -> Result<Bed, Failure> {
    let name = format!("bench{}", std::process::id());
    let spec = bed::spec(&bed::description(&name, links))?;
    let options = Options {
        executable: Some(env!("CARGO_BIN_EXE_braid").into()),
        render: Some(render_config()?),
        ..Options::default()
    };
    let mut bed = Bed::up(spec, options, || false)?;
    bed.start("server", LONGEST)?;
    bed.start("box", LONGEST)?;
    bed.wait_for_intake(LONGEST)?;
    Ok(bed)
}

/// Listens on the content host.
pub fn listen(bed: &Bed) -> Result<TcpListener, Failure> {
    let host = bed.testbed.layout().host("content")?;
    let address: SocketAddr = (host.interfaces[0].address4, PORT).into();
    let listener = netns::run_inside(&host.namespace, || TcpListener::bind(address))?;
    Ok(listener)
}
