//! Gives up the privileges that box and server need only during their start. If an attacker takes over the
//! process later, the attacker gets only the privileges that the process still needs.
//!
//! Each restriction covers the calling thread and the threads that this thread starts later. So the process must
//! have no other thread when it gives up privileges.

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

/// The capabilities that are kept in any case: for changes of links, routes and nftables, and for sockets that
/// have addresses of other hosts (`IP_TRANSPARENT`).
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN;

/// The further capability that is kept under two conditions: Landlock restricts the access to files, and some
/// files, such as configuration and key, are read again. Such a file may be readable only by its owner, and the
/// process may run as another user. With Landlock this capability opens no file except those in [`Files`].
const CAPABILITIES_TO_READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// The version of Landlock whose rights are restricted. The library ignores rights that the kernel lacks.
const LANDLOCK_ABI: ABI = ABI::V6;

/// The directory of the network settings. It stays writable, since the settings are restored at the end, and set
/// again when an interface comes back.
const SYSCTL_DIR: &str = "/proc/sys/net";

/// Paths of the shared libraries of `nft`, which runs again when links change and at the end.
const LIBRARY_PATHS: [&str; 7] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// The configuration files of the system's resolver.
const RESOLVER_FILES: [&str; 5] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
];

/// Files that this instance needs later, besides those that every instance needs.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Files that are read, and directories in which every file is read.
    pub read: Vec<PathBuf>,
    /// Directories in which files are removed.
    pub remove: Vec<PathBuf>,
    /// Directories in which everything is allowed except running programs.
    pub own: Vec<PathBuf>,
}

impl Files {
    /// Returns the paths of all files that are needed later, each with the rights that are kept.
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
        // The rights are on the directory, since an upgrade of `nft` replaces the file.
        allow(program_directories("nft"), read | AccessFs::Execute);
        allow(self.read.clone(), read);
        allow(self.remove.clone(), AccessFs::RemoveFile.into());
        let any = AccessFs::from_all(LANDLOCK_ABI) & !AccessFs::Execute;
        allow(self.own.clone(), any);
        all
    }
}

/// Returns the paths of the resolver's files. If a file is a symbolic link out of `/etc`, for example into `/run`,
/// returns the directory of its target instead: another program replaces the file there, and Landlock's rights
/// on the old file would not cover the new one.
pub(super) fn resolver_files() -> impl Iterator<Item = PathBuf> {
    RESOLVER_FILES.iter().map(|file| {
        let target = fs::canonicalize(file).unwrap_or_default();
        let directory = target.parent().filter(|d| !d.starts_with("/etc"));
        directory.map_or_else(|| PathBuf::from(file), Path::to_owned)
    })
}

/// Returns the directory in the path of a file. If the file is a symbolic link, also returns the directory of its
/// target, whose rights the kernel checks.
pub(super) fn directories_around(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let directory = directory_of(file);
    let resolved = fs::canonicalize(&directory).ok();
    let target = fs::canonicalize(file).ok();
    let target = target.and_then(|target| target.parent().map(Path::to_owned));
    let elsewhere = target.filter(|target| resolved.as_ref() != Some(target));
    [directory].into_iter().chain(elsewhere)
}

/// The open files and directories that keep the Landlock rules effective.
#[derive(Debug)]
pub(super) struct Confined {
    /// Landlock's rules refer to inodes. The kernel drops an inode of `/proc` if no process has it open. It
    /// later makes a new inode, which the rules would not cover.
    #[expect(dead_code, reason = "open as long as the value lives")]
    open_directories: Vec<PathFd>,
}

/// Gives up access to all files that are not needed later, if the kernel has Landlock, and all capabilities that
/// are not needed later. This is final: a program that this process runs does not regain them either.
///
/// # Errors
/// Fails if the kernel refuses to restrict the process.
pub(super) fn give_up(privileges: Privileges, files: &Files) -> Result<Option<Confined>> {
    if privileges == Privileges::Kept {
        return Ok(None);
    }
    let cannot = || SystemError::cannot("give up privileges");
    set_no_new_privs(true).map_err(cannot())?;
    let (status, confined) = give_up_files(files)
        .map_err(|e| SystemError::other("give up access to files", e.to_string()))?;
    let reads_later = status != RulesetStatus::NotEnforced && !files.read.is_empty();
    let kept = if reads_later {
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

/// Gives up all capabilities except `kept`.
fn give_up_capabilities(kept: CapabilitySet) -> std::result::Result<(), Errno> {
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // EINVAL: the kernel has no capability with this or a higher number. EPERM: this process may not
            // drop any capability from the bounding set. Even so, `no_new_privs` keeps the process from gaining
            // capabilities.
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

/// Gives up access to all files except `files`, as far as the kernel's version of Landlock allows.
fn give_up_files(files: &Files) -> std::result::Result<(RulesetStatus, Confined), RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        // This also forbids signals to other processes and connections to their abstract sockets.
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    let mut open_directories = Vec::new();
    for (path, rights) in files.rights() {
        // Not every system has all of the paths; a missing one needs no rights.
        let Ok(file) = PathFd::new(&path) else {
            continue;
        };
        // Landlock refuses rights for directories on a file.
        let rights = match path.is_dir() {
            true => rights,
            false => rights & AccessFs::from_file(LANDLOCK_ABI),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(&file, rights))?;
        open_directories.push(file);
    }
    let status = ruleset.restrict_self()?.ruleset;
    Ok((status, Confined { open_directories }))
}

/// Returns the directories in which `Command` finds this program. If the program is a symbolic link, also
/// returns the directory of its target.
fn program_directories(program: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|directory| directory.join(program));
    files
        .filter(|file| file.is_file())
        .flat_map(|file| directories_around(&file))
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

    /// Returns the result of `action` on a thread that has given up its privileges except for these files.
    fn confined<T: Send>(files: Files, action: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _confined = give_up(Privileges::GivenUp, &files).unwrap();
                action()
            });
            thread.join().unwrap()
        })
    }

    /// Creates a directory for this test. If this process may change owners, the directory's parent belongs to
    /// another user, and only this user may open the parent.
    fn directory_of_another(test: &str) -> PathBuf {
        let name = format!("braid-confine-{}-{test}", std::process::id());
        let parent = std::env::temp_dir().join(name);
        let directory = parent.join("ours");
        make(&parent, 0o700);
        make(&directory, 0o755);
        // Without Landlock the capability to read is given up, so the test could not open the directory.
        if !has_landlock() {
            return directory;
        }
        if let Err(error) = std::os::unix::fs::chown(&parent, Some(1), Some(1)) {
            // Either the process is not root, or its user namespace has no other user.
            let kind = error.kind();
            assert!(matches!(
                kind,
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput
            ));
        }
        directory
    }

    /// Creates a directory with this mode, independent of the umask, since another test may change the umask at
    /// the same time.
    fn make(directory: &Path, mode: u32) {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
    }

    fn remove(directory: &Path) {
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    /// Returns whether the kernel has Landlock. If so, the program has to use it.
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
    fn a_file_that_replaces_an_allowed_file_is_out_of_reach() {
        let directory = directory_of_another("replaced");
        let [file, new] = ["file", "new"].map(|name| directory.join(name));
        for path in [&file, &new] {
            fs::write(path, "text").unwrap();
        }
        let files = Files {
            read: vec![file.clone()],
            ..Files::default()
        };
        // The thread that replaces the file keeps its privileges.
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
        assert_eq!(directories_around(&named.join("there")).count(), 1);
        let files = Files {
            read: directories_around(&link).collect(),
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
        let reads_later = Files {
            read: vec![PathBuf::from("/etc/hosts")],
            ..Files::default()
        };
        let to_read = match has_landlock() {
            true => KEPT_CAPABILITIES | CAPABILITIES_TO_READ,
            false => KEPT_CAPABILITIES,
        };
        for (files, kept) in [
            (Files::default(), KEPT_CAPABILITIES),
            (reads_later, to_read),
        ] {
            let (left, child) = confined(files, || {
                // A thread that is started later has no more capabilities.
                let child = thread::spawn(|| capabilities(None).unwrap());
                (capabilities(None).unwrap(), child.join().unwrap())
            });
            assert_eq!(left.permitted, had.permitted & kept);
            assert_eq!(left.effective, had.effective & kept);
            assert_eq!(child, left);
        }
        assert_eq!(
            capabilities(None).unwrap(),
            had,
            "only that thread gave them up"
        );
    }
}
