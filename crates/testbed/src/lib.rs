//! Testbeds on one machine: hosts as network namespaces, emulated links and plain LANs between them, and the
//! processes on the hosts. One TOML file describes a testbed.
//!
//! A program can own a testbed: [`Testbed::up`] builds it, and dropping the value takes it down. Or a daemon can
//! own it: [`spawn_daemon`] starts this executable again in the background, where [`run_daemon`] holds the
//! [`Testbed`] and answers requests on a control socket. A [`Client`] sends the requests.
//!
//! ```no_run
//! use braid_testbed::{LinkChange, Options, Spec, Testbed};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = Spec::read("examples/testbed/demo.toml".as_ref())?;
//! let mut testbed = Testbed::up(spec, Options::default())?;
//! testbed.start("content")?;
//! testbed.exec("user", "curl")?.arg("http://203.0.113.80/").status()?;
//! testbed.set("link1", None, &LinkChange::parse(["loss=1%"])?)?;
//! let carried = testbed.link_status("link1")?.reverse.bytes_delivered;
//! testbed.down()?;
//! # Ok(()) }
//! ```
//!
//! A testbed's namespaces are named `<testbed>.<host>`. By these names, [`down`] finds and removes a testbed even
//! after its daemon was killed. It also kills every process that still runs in one of the namespaces.

mod capture;
mod change;
mod control;
pub mod emulator;
mod error;
pub mod fixture;
pub mod kernel_tcp;
mod layout;
pub mod mptcp_info;
pub mod netns;
mod pattern;
pub mod render;
mod routes;
mod spec;
mod stale_resources;
mod state;
mod status;
mod testbed;

pub use capture::{Capture, Captured};
pub use change::{LinkChange, ScheduledChange};
pub use control::{Client, down, run_daemon, spawn_daemon};
pub use error::Error;
pub use layout::{HostLayout, InterfaceLayout, Layout, SegmentKind};
pub use pattern::Pattern;
pub use spec::{HostSpec, LanSpec, LinkSpec, Role, Spec, Start};
pub use state::is_up;
pub use status::{ChildStatus, DeliveryLagStatus, DirectionStatus, HostStatus, LinkStatus, Status};
pub use testbed::{Options, RenderConfig, Rendered, Testbed};
