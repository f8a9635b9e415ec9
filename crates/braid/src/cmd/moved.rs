//! The commands that `braid` had in the last version and `braid-lab` has now.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::cli::Moved;
use crate::failure::Failure;
use crate::program::{self, BRAID, BRAID_LAB};

/// Replaces this process by `braid-lab`, which so gets signals, terminal and exit code. `old` is the command
/// of `braid`, and `new` the command of `braid-lab`, empty if the arguments name it; `global` are the options
/// before both.
pub fn run(old: &str, new: &str, global: Vec<OsString>, moved: &Moved) -> Result<(), Failure> {
    let now = format!("{BRAID_LAB} {new}");
    let now = now.trim_end();
    let failed = |error| Failure::run(format_args!("`{BRAID} {old}` is `{now}` now"), error);
    let laboratory = program::find(BRAID_LAB).map_err(failed)?;
    program::complain(
        BRAID,
        format_args!(
            "`{BRAID} {old}` is deprecated and will be removed in the next version; running `{now}` instead"
        ),
    );
    let mut command = Command::new(laboratory);
    command.args(global);
    command.args(Some(new).filter(|new| !new.is_empty()));
    Err(failed(command.args(&moved.arguments).exec()))
}
