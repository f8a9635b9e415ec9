//! Removal of everything that an instance set up.

use std::io::ErrorKind;

use super::netlink::Netlink;
use super::sysctl::Sysctl;
use super::{InstanceNames, Result, SystemError, shortcut};
use crate::nft;

/// Removes everything that an instance created, be it this process or an earlier one that was killed.
/// Recorded kernel settings are restored. `record` holds settings too, since another program may have removed
/// the recorded ones. The TUN device is left out: it vanishes with its process.
///
/// # Errors
/// Fails if the system refuses; all other steps are still done.
pub fn cleanup(instance_names: &InstanceNames, record: &[Sysctl]) -> Result<()> {
    let steps = [
        remove_routing(instance_names),
        restore_settings(instance_names, record),
        nft::remove(instance_names),
        shortcut::remove_unclaimed(),
    ];
    steps.into_iter().collect()
}

/// Takes over the remains of an earlier instance of the name. Its packet filter rules stay until others
/// replace them, as do its routes and rules for forwarded packets: connections under way hang if the kernel
/// stops to track them for a moment. Returns the settings that the instance recorded.
///
/// # Errors
/// Fails if the system refuses.
pub fn take_over(instance_names: &InstanceNames) -> Result<Vec<Sysctl>> {
    let doing = || SystemError::doing("remove routing rules");
    let mut netlink = Netlink::open().map_err(doing())?;
    // The new device's packets must not follow old rules into links that have not been looked at yet.
    netlink
        .delete_rules(|priority| priority == instance_names.rule_priority())
        .map_err(doing())?;
    shortcut::remove_unclaimed()?;
    nft::recorded(instance_names)
}

fn remove_routing(instance_names: &InstanceNames) -> Result<()> {
    let doing = || SystemError::doing("remove routes and rules");
    let mut netlink = Netlink::open().map_err(doing())?;
    netlink
        .delete_rules(|priority| instance_names.owns_priority(priority))
        .map_err(doing())?;
    netlink
        .delete_routes(|table| instance_names.owns_table(table))
        .map_err(doing())
}

fn restore_settings(instance_names: &InstanceNames, record: &[Sysctl]) -> Result<()> {
    let mut settings = nft::recorded(instance_names)?;
    let known = |key: &str| record.iter().any(|setting| setting.key == key);
    settings.retain(|setting| !known(&setting.key));
    settings.extend_from_slice(record);
    for setting in settings {
        match setting.apply().map_err(|error| (error.kind(), error)) {
            // The interface is gone, or the setting could not be changed in the first place.
            Err((ErrorKind::NotFound | ErrorKind::PermissionDenied, _)) | Ok(()) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}
