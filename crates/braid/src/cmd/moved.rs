//! The commands that have moved from `braid` to `braid-lab`. For one version, `braid` still runs them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::cli::Moved;
use crate::failure::Failure;
use crate::program::{self, BRAID, BRAID_LAB};

/// Replaces this process by `braid-lab`, so that signals, terminal and exit code need no forwarding. `old` is
/// the command of `braid`. `new` is the command of `braid-lab`, or empty if `moved` already begins with this
/// command. `global` holds the options that go before the command of `braid-lab`.
pub fn run(old: &str, new: &str, global: Vec<OsString>, moved: &Moved) -> Result<(), Failure> {
    let now = format!("{BRAID_LAB} {new}");
    let now = now.trim_end();
    let failed = |error| Failure::run(format_args!("`{BRAID} {old}` is `{now}` now"), error);
    let braid_lab = program::find(BRAID_LAB).map_err(failed)?;
    program::complain(
        BRAID,
        format_args!(
            "`{BRAID} {old}` is deprecated and will be removed in the next version; running `{now}` instead"
        ),
    );
    let mut command = Command::new(braid_lab);
    command.args(global);
    command.args(Some(new).filter(|new| !new.is_empty()));
    // `exec` returns only if it fails.
    Err(failed(command.args(&moved.arguments).exec()))
}
