//! The commands that `braid` had in the last version run `braid-lab`, for one version more.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by the test that runs. A process that another thread starts meanwhile holds a script open for
/// writing, and the kernel refuses to run such a file (ETXTBSY).
static ALONE: Mutex<()> = Mutex::new(());

/// A directory with the program `braid`, and another one that is in `PATH`. Both are removed with this value.
struct Place {
    root: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    fn new(name: &str) -> Place {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let root = std::env::temp_dir().join(format!("braid-moved-{}-{name}", std::process::id()));
        let place = Place {
            root,
            _alone: alone,
        };
        for directory in ["bin", "path"] {
            fs::create_dir_all(place.root.join(directory)).expect("a writable directory");
        }
        let built = Path::new(env!("CARGO_BIN_EXE_braid"));
        let here = place.root.join("bin/braid");
        // A hard link is impossible on another file system.
        if fs::hard_link(built, &here).is_err() {
            fs::copy(built, &here).expect("room for it");
        }
        place
    }

    /// Adds a `braid-lab` to a directory, which prints the directory and its arguments, and ends with `code`.
    fn add_laboratory(&self, directory: &str, code: u8) {
        let script = format!("#!/bin/sh\necho {directory}: \"$@\"\nexit {code}\n");
        let file = self.root.join(directory).join("braid-lab");
        fs::write(&file, script).expect("a writable directory");
        fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("it is ours");
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output: Output = Command::new(self.root.join("bin/braid"))
            .args(arguments)
            .env("PATH", self.root.join("path"))
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The system clears the directory of temporary files too.
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn an_old_command_runs_the_laboratory_with_all_its_arguments() {
    let place = Place::new("arguments");
    place.add_laboratory("bin", 7);
    for (line, expected, now) in [
        ("demo", "demo", "`braid-lab demo`"),
        (
            "--json demo --size 10",
            "--json demo --size 10",
            "`braid-lab demo`",
        ),
        (
            "testbed -vv exec t.toml user ls -l --json",
            "-v -v testbed exec t.toml user ls -l --json",
            "`braid-lab testbed`",
        ),
        ("lab list --arm sim", "list --arm sim", "`braid-lab`"),
        ("lab", "", "`braid-lab`"),
        ("lab fct --help", "fct --help", "`braid-lab`"),
        ("lab --help", "--help", "`braid-lab`"),
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (code, printed, said) = place.run(&arguments);
        assert_eq!(code, Some(7), "{line}: {said}");
        assert_eq!(printed.trim_end(), format!("bin: {expected}").trim_end());
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert!(said.starts_with("braid: "), "{line}: {said}");
        assert!(
            said.contains("deprecated") && said.contains(now),
            "{line}: {said}"
        );
    }
}

#[test]
fn the_laboratory_beside_the_program_goes_before_the_one_in_path() {
    let place = Place::new("path");
    place.add_laboratory("path", 0);
    assert_eq!(place.run(&["demo"]).1, "path: demo\n");
    place.add_laboratory("bin", 0);
    assert_eq!(place.run(&["demo"]).1, "bin: demo\n");
}

#[test]
fn an_old_command_without_the_laboratory_says_what_to_do() {
    let place = Place::new("missing");
    let (code, printed, said) = place.run(&["testbed", "up", "t.toml"]);
    assert_eq!((code, printed.as_str()), (Some(1), ""), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for words in [
        "`braid testbed` is `braid-lab testbed` now",
        "`braid-lab` is neither in the directory of this program",
        "nor in PATH",
        "cargo build --release -p braid-lab",
    ] {
        assert!(said.contains(words), "{words:?} in {said:?}");
    }
}

#[test]
fn help_names_no_command_of_the_laboratory() {
    let place = Place::new("help");
    let (_, help, _) = place.run(&["--help"]);
    let listed = |name: &str| help.lines().any(|line| line.trim_start().starts_with(name));
    assert!(listed("server "), "{help}");
    for name in ["demo ", "testbed ", "lab "] {
        assert!(!listed(name), "{name}: {help}");
    }
}
