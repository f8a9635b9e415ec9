//! Putting everything back.

use std::io::ErrorKind;

use super::netlink::Netlink;
use super::{Identity, Result, SystemError, shortcut};
use crate::nft;

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
