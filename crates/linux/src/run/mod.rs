//! Runs box and server: sets up the kernel, runs the core, and restores the kernel's state at the end.

mod app;
mod box_reload;
mod confine;
mod device;
mod faults;
mod gateway_box;
mod guard;
mod ingress;
mod memory_releaser;
mod places;
mod process;
mod record_writer;
mod reload;
mod server;
mod signals;
mod suspend;
mod tun_device;
mod uplinks;

pub(crate) use app::start_app;
pub use app::{AppConfig, AppHost, Role, run_app};
pub use device::Device;
pub use gateway_box::run_box;
pub use reload::Reload;
pub(crate) use reload::ReloadRequests;
pub use server::run_server;
pub use signals::Signals;

/// The choice whether privileges are given up after the start. It applies to the thread that runs box or server,
/// and to the threads that this thread starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// All privileges are kept, for a process that needs them after the end of box or server.
    Kept,
    /// All privileges that are not needed later are given up.
    GivenUp,
}

/// The last word of the first line that `braid box` and `braid server` print on standard output. They print this
/// line once everything is set up.
pub const READY: &str = "ready";
