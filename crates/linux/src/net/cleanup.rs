//! Putting everything back.

use std::io::ErrorKind;

use super::netlink::Netlink;
use super::sysctl::Sysctl;
use super::{Identity, Result, SystemError, shortcut};
use crate::nft;

/// Removes everything that an instance created, be it this process or an earlier one that was
/// killed, and puts the recorded kernel settings back in force, with those in `record`, which another program
/// may have removed from where they were kept. The TUN device is none of it: it goes with its process.
///
/// # Errors
/// Where the system refuses; what could be removed is gone nevertheless.
pub fn cleanup(identity: &Identity, record: &[Sysctl]) -> Result<()> {
    let steps = [
        remove_routing(identity),
        restore_settings(identity, record),
        nft::remove(identity),
        shortcut::remove_unclaimed(),
    ];
    steps.into_iter().collect()
}

/// Takes over what an earlier instance of the name left behind: its packet filter rules and the routes and
/// rules for what is forwarded stay until others take their place, since connections that are under way hang
/// where the kernel stops to follow them for a moment. Returns the settings that it recorded.
///
/// # Errors
/// Where the system refuses.
pub fn take_over(identity: &Identity) -> Result<Vec<Sysctl>> {
    let doing = || SystemError::doing("remove routing rules");
    let mut netlink = Netlink::open().map_err(doing())?;
    // What the new device sends is looked at before it is steered into links.
    netlink
        .delete_rules(|priority| priority == identity.rule_priority())
        .map_err(doing())?;
    shortcut::remove_unclaimed()?;
    nft::recorded(identity)
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

fn restore_settings(identity: &Identity, record: &[Sysctl]) -> Result<()> {
    let mut settings = nft::recorded(identity)?;
    let known = |key: &str| record.iter().any(|setting| setting.key == key);
    settings.retain(|setting| !known(&setting.key));
    settings.extend_from_slice(record);
    for setting in settings {
        match setting.apply().map_err(|error| (error.kind(), error)) {
            // Its interface is gone, or it could not be changed in the first place.
            Err((ErrorKind::NotFound | ErrorKind::PermissionDenied, _)) | Ok(()) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}
