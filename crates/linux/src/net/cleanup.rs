//! Removal of everything that an instance created in the kernel.

use std::io::ErrorKind;

use super::netlink::Netlink;
use super::sysctl::Sysctl;
use super::{InstanceNames, Result, SystemError, shortcut};
use crate::nft;

/// Removes everything that an instance created, and restores the kernel settings that the instance changed. The
/// instance is this process, or an earlier process that was killed. `record` holds the earlier values of these
/// settings. They are recorded in the kernel too, but another program may have removed this record. The TUN
/// device needs no removal: the kernel removes it when its process ends.
///
/// # Errors
/// Fails with the first error of a step. All other steps are still done.
pub fn cleanup(instance_names: &InstanceNames, record: &[Sysctl]) -> Result<()> {
    let steps = [
        remove_routing(instance_names),
        restore_settings(instance_names, record),
        nft::remove(instance_names),
        shortcut::remove_unclaimed(),
    ];
    // All steps have run; `collect` returns the first error.
    steps.into_iter().collect()
}

/// Takes over from an earlier instance of this name that was killed. The earlier instance's packet filter rules,
/// and its routes and rules for forwarded packets, stay until this instance replaces them: forwarded connections
/// break if the kernel stops tracking them even for a moment. Returns the settings that the earlier instance
/// recorded.
///
/// # Errors
/// Fails if the kernel refuses to list or remove routing rules, or if `nft` is missing or fails.
pub fn take_over(instance_names: &InstanceNames) -> Result<Vec<Sysctl>> {
    let cannot = || SystemError::cannot("remove routing rules");
    let mut netlink = Netlink::open().map_err(cannot())?;
    // If the old rules stayed, they would route packets of the new device by old routes until the state of the
    // links is read.
    netlink
        .delete_rules(|priority| priority == instance_names.rule_priority())
        .map_err(cannot())?;
    shortcut::remove_unclaimed()?;
    nft::recorded(instance_names)
}

fn remove_routing(instance_names: &InstanceNames) -> Result<()> {
    let cannot = || SystemError::cannot("remove routes and rules");
    let mut netlink = Netlink::open().map_err(cannot())?;
    netlink
        .delete_rules(|priority| instance_names.owns_priority(priority))
        .map_err(cannot())?;
    netlink
        .delete_routes(|table| instance_names.owns_table(table))
        .map_err(cannot())
}

fn restore_settings(instance_names: &InstanceNames, record: &[Sysctl]) -> Result<()> {
    let mut settings = nft::recorded(instance_names)?;
    let in_record = |key: &str| record.iter().any(|setting| setting.key == key);
    settings.retain(|setting| !in_record(&setting.key));
    settings.extend_from_slice(record);
    for setting in settings {
        match setting.apply().map_err(|error| (error.kind(), error)) {
            // Either the interface is gone, or this process may not change the setting, and so never did.
            Err((ErrorKind::NotFound | ErrorKind::PermissionDenied, _)) | Ok(()) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}
