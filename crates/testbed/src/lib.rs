//! Testbeds: hosts as network namespaces, emulated links and plain LANs between them, and the
//! processes that run on the hosts, all described by one TOML file.
//!
//! There are two ways to use a testbed. In this process, [`Testbed::up`] builds and owns everything; dropping the
//! [`Testbed`] takes it down. As a daemon, [`spawn_daemon`] starts this executable again in the background, where
//! [`run_daemon`] owns the [`Testbed`] and answers on a control socket; a [`Client`] talks to it.
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
//! The namespaces of a testbed are found by their names, `<testbed>.<host>`. So [`down`] finds and removes
//! everything even after the daemon was killed. It also kills every process that still runs in one of the
//! namespaces.

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
mod programs;
pub mod render;
mod routes;
mod spec;
mod stale_resources;
mod state;
mod status;
mod testbed;
pub mod tls;
mod worker;

pub use capture::{Capture, Captured};
pub use change::{LinkChange, ScheduledChange};
pub use control::{Client, down, run_daemon, spawn_daemon};
pub use error::Error;
pub use layout::{HostLayout, InterfaceLayout, Layout};
pub use pattern::Pattern;
pub use spec::{HostSpec, LanSpec, LinkSpec, Role, SegmentKind, Spec, Start};
pub use state::is_up;
pub use status::{ChildStatus, DeliveryLagStatus, DirectionStatus, HostStatus, LinkStatus, Status};
pub use testbed::{Options, RenderConfig, Rendered, Testbed};
