//! Addresses, routes, rules and settings of the kernel: what sends each subflow out of its link.

mod error;
mod identity;
pub mod link;
pub mod links;
pub mod netlink;
pub mod routes;
pub mod shortcut;
pub mod sysctl;

use std::io::ErrorKind;

pub use error::{Result, SystemError};
pub use identity::Identity;

use crate::nft;
use netlink::Netlink;
use sysctl::Sysctl;

/// Removes everything that an instance created, be it this process or an earlier one that was
/// killed, and puts the recorded kernel settings back in force. The TUN device is none of it: it
/// goes with its process.
///
/// # Errors
/// Where the system refuses; what could be removed is gone nevertheless.
pub fn cleanup(identity: &Identity) -> Result<()> {
    let steps = [
        remove_routing(identity),
        restore_settings(identity),
        nft::remove(identity),
        shortcut::remove_unclaimed(),
    ];
    steps.into_iter().collect()
}

fn remove_routing(identity: &Identity) -> Result<()> {
    let doing = || SystemError::doing("remove routes and rules");
    let mut netlink = Netlink::open().map_err(doing())?;
    netlink
        .delete_rules(|priority| identity.owns_priority(priority))
        .map_err(doing())?;
    netlink
        .delete_routes(|table| identity.owns_table(table))
        .map_err(doing())
}

fn restore_settings(identity: &Identity) -> Result<()> {
    for setting in nft::recorded(identity)? {
        match setting.apply().map_err(|error| (error.kind(), error)) {
            // Its interface is gone, or it could not be changed in the first place.
            Err((ErrorKind::NotFound | ErrorKind::PermissionDenied, _)) | Ok(()) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}

/// Of `wanted`, the settings that are not in force yet, each with the one in force before it.
/// Settings that this kernel or namespace does not have are left out.
pub fn differing(wanted: &[Sysctl]) -> Vec<(Sysctl, Sysctl)> {
    let pairs = wanted.iter().filter_map(|new| {
        let old = Sysctl::current(&new.key)?;
        (old.value != new.value).then(|| (old, new.clone()))
    });
    pairs.collect()
}
