//! `braid box` and `braid server`: set everything up, run the core, restore everything.

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
mod uplinks;

pub use app::{AppConfig, Role, run_app};
pub use device::Device;
pub use gateway_box::run_box;
pub use reload::Reload;
pub(crate) use reload::ReloadRequests;
pub use server::run_server;
pub use signals::Signals;

/// The fate of the privileges of the thread that runs box or server, and of the threads it starts, once
/// everything is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// All are kept, for a process that goes on with something else.
    Kept,
    /// All that are not needed later are given up.
    GivenUp,
}

/// The end of the first line that `braid box` and `braid server` print on standard output, once everything is
/// set up.
pub const READY: &str = "ready";
