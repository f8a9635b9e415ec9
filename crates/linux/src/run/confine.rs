//! Privileges that box and server give up once they are set up, so that an attacker who takes one of them
//! over gets no more than what it still needs.
//!
//! Each restriction covers the calling thread and the threads that it starts later, so it has to be the only
//! thread at that time.

use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::Privileges;
use super::process::directory_of;
use crate::net::{Result, SystemError};

/// Needed for changes of links, routes and nftables, and for sockets with foreign addresses
/// (`IP_TRANSPARENT`).
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Kept besides if access to files is restricted and some files, such as configuration and key, are read
/// again: only their owner may be allowed to read them. The remaining files bound what this capability opens.
const CAPABILITIES_TO_READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// The Landlock rights that this program knows of. A kernel may know fewer.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Settings of interfaces: restored at the end, and set again when an interface comes back.
const SYSCTL_DIR: &str = "/proc/sys/net";

/// The shared libraries of `nft`, which is run again when links change and at the end.
const LIBRARY_PATHS: [&str; 7] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// The files of the system's resolver, which also name further modules to load.
const RESOLVER_FILES: [&str; 5] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
];

/// Files that are needed later, beside those that every instance needs.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Files to read, or directories with everything below them.
    pub read: Vec<PathBuf>,
    /// Directories in which files are removed.
    pub remove: Vec<PathBuf>,
    /// Directories with all rights but execution.
    pub own: Vec<PathBuf>,
}

impl Files {
    /// Returns all files that are needed later, with the rights on each.
    fn rights(&self) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let mut all = vec![(PathBuf::from(SYSCTL_DIR), read | AccessFs::WriteFile)];
        let mut allow = |paths: Vec<PathBuf>, rights: BitFlags<AccessFs>| {
            all.extend(paths.into_iter().map(|path| (path, rights)));
        };
        allow(
            LIBRARY_PATHS.map(PathBuf::from).into(),
            read | AccessFs::Execute,
        );
        // The directory, since an upgrade replaces the file in it.
        allow(directories_of("nft"), read | AccessFs::Execute);
        allow(self.read.clone(), read);
        allow(self.remove.clone(), AccessFs::RemoveFile.into());
        let any = AccessFs::from_all(LANDLOCK_ABI) & !AccessFs::Execute;
        allow(self.own.clone(), any);
        all
    }
}

/// Returns the resolver's files. If one of them is a link to elsewhere, for example into `/run`, another
/// program replaces the file there, so the directory is returned.
pub(super) fn of_resolver() -> impl Iterator<Item = PathBuf> {
    RESOLVER_FILES.iter().map(|file| {
        let target = fs::canonicalize(file).unwrap_or_default();
        let directory = target.parent().filter(|d| !d.starts_with("/etc"));
        directory.map_or_else(|| PathBuf::from(file), Path::to_owned)
    })
}

/// Returns the directories of a file: the one in its name, and, for a symbolic link, the directory of the
/// target, which is the one that the kernel checks.
pub(super) fn around(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let named = directory_of(file);
    let real = fs::canonicalize(&named).ok();
    let target = fs::canonicalize(file).ok();
    let target = target.and_then(|target| target.parent().map(Path::to_owned));
    let elsewhere = target.filter(|target| real.as_ref() != Some(target));
    [named].into_iter().chain(elsewhere)
}

/// The handles that keep the rules effective.
#[derive(Debug)]
pub(super) struct Confined {
    /// The kernel identifies directories by their inodes. It makes those of `/proc` anew if no process holds
    /// them.
    #[expect(dead_code, reason = "held, not used")]
    held: Vec<PathFd>,
}

/// Gives up access to all files but `files`, if the kernel supports that, and all capabilities but those
/// needed later. It is final: no program that is run regains any.
///
/// # Errors
/// Fails if the system refuses.
pub(super) fn give_up(privileges: Privileges, files: &Files) -> Result<Option<Confined>> {
    if privileges == Privileges::Kept {
        return Ok(None);
    }
    let cannot = || SystemError::cannot("give up privileges");
    set_no_new_privs(true).map_err(cannot())?;
    let (status, confined) = give_up_files(files)
        .map_err(|e| SystemError::other("give up access to files", e.to_string()))?;
    let reads = status != RulesetStatus::NotEnforced && !files.read.is_empty();
    let kept = if reads {
        KEPT_CAPABILITIES | CAPABILITIES_TO_READ
    } else {
        KEPT_CAPABILITIES
    };
    give_up_capabilities(kept).map_err(cannot())?;
    match status {
        RulesetStatus::NotEnforced => tracing::warn!(
            ?kept,
            "this kernel has no Landlock: the process keeps access to all files of its user"
        ),
        status => tracing::info!(?kept, files = ?status, ?files, "gave up privileges"),
    }
    Ok(Some(confined))
}

fn give_up_capabilities(kept: CapabilitySet) -> std::result::Result<(), Errno> {
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // EINVAL: the kernel has no further capabilities. EPERM: this process may not drop them, but then
            // `no_new_privs` keeps it from gaining any.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    let had = capabilities(None)?;
    let kept = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.permitted & kept,
        inheritable: had.inheritable & kept,
    };
    set_capabilities(None, kept)
}

fn give_up_files(files: &Files) -> std::result::Result<(RulesetStatus, Confined), RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        // Signals and abstract sockets of other processes are out of reach too.
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    let mut held = Vec::new();
    for (path, rights) in files.rights() {
        // A missing file is not needed.
        let Ok(file) = PathFd::new(&path) else {
            continue;
        };
        let rights = match path.is_dir() {
            true => rights,
            false => rights & AccessFs::from_file(LANDLOCK_ABI),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(&file, rights))?;
        held.push(file);
    }
    let status = ruleset.restrict_self()?.ruleset;
    Ok((status, Confined { held }))
}

/// Returns the directories in which `Command` finds this program, and the directories of links' targets.
fn directories_of(program: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|directory| directory.join(program));
    files
        .filter(|file| file.is_file())
        .flat_map(|file| around(&file))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::sockets::resolver::is_out_of_reach;

    /// Returns the result of `look` on a thread that has given up everything but these files.
    fn confined<T: Send>(files: Files, look: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _confined = give_up(Privileges::GivenUp, &files).unwrap();
                look()
            });
            thread.join().unwrap()
        })
    }

    /// Makes a directory for this test, inside one that only another user may open, if this process may
    /// change owners.
    fn directory_of_another(test: &str) -> PathBuf {
        let name = format!("braid-confine-{}-{test}", std::process::id());
        let theirs = std::env::temp_dir().join(name);
        let directory = theirs.join("ours");
        make(&theirs, 0o700);
        make(&directory, 0o755);
        // Without Landlock, the capability to read would not be kept.
        if !has_landlock() {
            return directory;
        }
        if let Err(error) = std::os::unix::fs::chown(&theirs, Some(1), Some(1)) {
            // Either the process is not root, or its user namespace has no other user.
            let kind = error.kind();
            assert!(matches!(
                kind,
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput
            ));
        }
        directory
    }

    /// Makes a directory with this mode, whatever umask another test has set meanwhile.
    fn make(directory: &Path, mode: u32) {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
    }

    fn remove(directory: &Path) {
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    /// Returns whether the kernel has Landlock, which the program then has to use.
    fn has_landlock() -> bool {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1));
        ruleset.and_then(Ruleset::create).is_ok()
    }

    #[test]
    fn no_file_is_opened_but_those_that_are_needed() {
        let directory = directory_of_another("files");
        let [own, read, other] = ["own", "read", "other"].map(|name| directory.join(name));
        for directory in [&own, &read, &other] {
            make(directory, 0o755);
            fs::write(directory.join("there"), "text").unwrap();
        }
        let files = Files {
            read: vec![read.clone()],
            remove: vec![other.clone()],
            own: vec![own.clone()],
        };
        let found = confined(files, || {
            let kind = |result: std::io::Result<()>| result.map_err(|error| error.kind());
            let open = |path: &Path| kind(File::open(path).map(drop));
            let write = |directory: &Path| kind(fs::write(directory.join("new"), "text"));
            [
                write(&own),
                open(&own.join("there")),
                kind(fs::rename(own.join("new"), own.join("newer"))),
                open(&read.join("there")),
                write(&read),
                open(&other.join("there")),
                kind(fs::remove_file(other.join("there"))),
                open(Path::new("/etc/passwd")),
                open(Path::new("/proc/self/status")),
            ]
        });
        remove(&directory);
        let denied = match has_landlock() {
            true => Err(ErrorKind::PermissionDenied),
            false => Ok(()),
        };
        let allowed = Ok(());
        let expected = [
            allowed, allowed, allowed, allowed, denied, denied, allowed, denied, denied,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_that_takes_the_place_of_another_is_out_of_reach() {
        let directory = directory_of_another("replaced");
        let [file, new] = ["file", "new"].map(|name| directory.join(name));
        for path in [&file, &new] {
            fs::write(path, "text").unwrap();
        }
        let files = Files {
            read: vec![file.clone()],
            ..Files::default()
        };
        // The thread that replaces the file has given up nothing.
        let turn = Barrier::new(2);
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                turn.wait();
                fs::rename(&new, &file).unwrap();
                turn.wait();
            });
            confined(files, || {
                let before = is_out_of_reach(&file);
                turn.wait();
                turn.wait();
                (before, is_out_of_reach(&file))
            })
        });
        remove(&directory);
        assert_eq!(found, (false, has_landlock()));
    }

    #[test]
    fn a_link_is_followed() {
        let directory = directory_of_another("link");
        let [named, target] = ["named", "target"].map(|name| directory.join(name));
        for directory in [&named, &target] {
            make(directory, 0o755);
        }
        fs::write(target.join("real"), "text").unwrap();
        fs::write(named.join("there"), "text").unwrap();
        let link = named.join("link");
        std::os::unix::fs::symlink("../target/real", &link).unwrap();
        assert_eq!(around(&named.join("there")).count(), 1);
        let files = Files {
            read: around(&link).collect(),
            ..Files::default()
        };
        let there = [link, named.join("there")];
        let found = confined(files, || there.map(|file| fs::read(file).is_ok()));
        remove(&directory);
        assert_eq!(found, [true, true]);
    }

    #[test]
    fn capabilities_are_gone_for_good() {
        let had = capabilities(None).unwrap();
        let reads = Files {
            read: vec![PathBuf::from("/etc/hosts")],
            ..Files::default()
        };
        let to_read = match has_landlock() {
            true => KEPT_CAPABILITIES | CAPABILITIES_TO_READ,
            false => KEPT_CAPABILITIES,
        };
        for (files, kept) in [(Files::default(), KEPT_CAPABILITIES), (reads, to_read)] {
            let (left, child) = confined(files, || {
                // A thread that is started later has no more capabilities.
                let child = thread::spawn(|| capabilities(None).unwrap());
                (capabilities(None).unwrap(), child.join().unwrap())
            });
            assert_eq!(left.permitted, had.permitted & kept);
            assert_eq!(left.effective, had.effective & kept);
            assert_eq!(child, left);
        }
        assert_eq!(capabilities(None).unwrap(), had, "of that thread alone");
    }
}
