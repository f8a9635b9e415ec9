//! What box and server give up once they are set up: whoever takes one of them over later gets no more
//! than what it still needs.
//!
//! Each of the three goes for the calling thread and those that it starts from then on, so it has to be
//! the only one.

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

/// Links, routes and tables of nftables that change, sockets in the name of others
/// (`IP_TRANSPARENT`).
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Kept besides where files are given up and some are read again, such as configuration and key: these may
/// lie where only their owner may look. What it opens is then bounded by the files that are left.
const KEPT_TO_READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// The rights on files that this program knows of; a kernel may know fewer.
const KNOWN: ABI = ABI::V6;

/// Settings of interfaces: put back at the end, and set anew where one comes back.
const SETTINGS: &str = "/proc/sys/net";

/// What `nft` is loaded from, which is run again where links change and at the end.
const LIBRARIES: [&str; 7] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// What the system's resolver reads, and where it asks for what else to load.
const RESOLVER: [&str; 5] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
];

/// Files that are needed later, beside those that every instance needs.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Read: files, or directories with all below them.
    pub read: Vec<PathBuf>,
    /// Directories of which files are removed.
    pub remove: Vec<PathBuf>,
    /// Directories in which anything may be done.
    pub own: Vec<PathBuf>,
}

impl Files {
    /// All that is needed later, and what for.
    fn rights(&self) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let mut all = vec![(PathBuf::from(SETTINGS), read | AccessFs::WriteFile)];
        let mut allow = |paths: Vec<PathBuf>, rights: BitFlags<AccessFs>| {
            all.extend(paths.into_iter().map(|path| (path, rights)));
        };
        allow(
            LIBRARIES.map(PathBuf::from).into(),
            read | AccessFs::Execute,
        );
        // Its directory, for a newer one may take its place.
        allow(directories_of("nft"), read | AccessFs::Execute);
        allow(self.read.clone(), read);
        allow(self.remove.clone(), AccessFs::RemoveFile.into());
        let any = AccessFs::from_all(KNOWN) & !AccessFs::Execute;
        allow(self.own.clone(), any);
        all
    }
}

/// What the resolver reads. Where one of its files leads elsewhere, as to `/run`, it is replaced there,
/// so that directory is read.
pub(super) fn of_resolver() -> impl Iterator<Item = PathBuf> {
    RESOLVER.iter().map(|file| {
        let target = fs::canonicalize(file).unwrap_or_default();
        let directory = target.parent().filter(|d| !d.starts_with("/etc"));
        directory.map_or_else(|| PathBuf::from(file), Path::to_owned)
    })
}

/// Where a file may be: in the directory it is named in, which it may come to lie in, and where it is a
/// link, in that where it leads, which is what the kernel looks at.
pub(super) fn around(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let named = directory_of(file);
    let real = fs::canonicalize(&named).ok();
    let target = fs::canonicalize(file).ok();
    let target = target.and_then(|target| target.parent().map(Path::to_owned));
    let elsewhere = target.filter(|target| real.as_ref() != Some(target));
    [named].into_iter().chain(elsewhere)
}

/// What keeps the rules in force.
#[derive(Debug)]
pub(super) struct Confined {
    /// The kernel knows directories by their inodes. Those of `/proc` are made anew where nobody holds
    /// them.
    #[expect(dead_code, reason = "held, not used")]
    held: Vec<PathFd>,
}

/// Gives up all files but `files`, where the kernel can do that, and all capabilities but those needed
/// later. For good: no program that is run gets any other.
///
/// # Errors
/// What the system refused.
pub(super) fn give_up(privileges: Privileges, files: &Files) -> Result<Option<Confined>> {
    if privileges == Privileges::Kept {
        return Ok(None);
    }
    let doing = || SystemError::doing("give up privileges");
    set_no_new_privs(true).map_err(doing())?;
    let (status, confined) = give_up_files(files)
        .map_err(|e| SystemError::other("give up access to files", e.to_string()))?;
    let reads = status != RulesetStatus::NotEnforced && !files.read.is_empty();
    let kept = if reads { KEPT | KEPT_TO_READ } else { KEPT };
    give_up_capabilities(kept).map_err(doing())?;
    match status {
        RulesetStatus::NotEnforced => tracing::warn!(
            ?kept,
            "this kernel has no Landlock: all files of this user stay within reach"
        ),
        status => tracing::info!(?kept, files = ?status, ?files, "privileges given up"),
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
            // The kernel knows no more of them; or this process may not, and then gets none in any
            // case, for it may not get new ones.
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
        .handle_access(AccessFs::from_all(KNOWN))?
        // Signals and abstract sockets of other processes.
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let mut held = Vec::new();
    for (path, rights) in files.rights() {
        // What there is not is not needed.
        let Ok(file) = PathFd::new(&path) else {
            continue;
        };
        let rights = match path.is_dir() {
            true => rights,
            false => rights & AccessFs::from_file(KNOWN),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(&file, rights))?;
        held.push(file);
    }
    let status = ruleset.restrict_self()?.ruleset;
    Ok((status, Confined { held }))
}

/// The directories where `Command` looks for programs that have this one, and where links lead from
/// there.
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

    /// What a thread finds that has given up everything but these files.
    fn confined<T: Send>(files: Files, look: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _confined = give_up(Privileges::GivenUp, &files).unwrap();
                look()
            });
            thread.join().unwrap()
        })
    }

    /// A directory of this test alone, in one that none but another user may look into, where this
    /// process may give files away.
    fn directory_of_another(test: &str) -> PathBuf {
        let name = format!("braid-confine-{}-{test}", std::process::id());
        let theirs = std::env::temp_dir().join(name);
        let directory = theirs.join("ours");
        make(&theirs, 0o700);
        make(&directory, 0o755);
        // Without Landlock there is nothing that may look in.
        if !has_landlock() {
            return directory;
        }
        if let Err(error) = std::os::unix::fs::chown(&theirs, Some(1), Some(1)) {
            // No root, or one whose user namespace has no other user.
            let kind = error.kind();
            assert!(matches!(
                kind,
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput
            ));
        }
        directory
    }

    /// Makes a directory of this mode, whatever mask another test has set meanwhile.
    fn make(directory: &Path, mode: u32) {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
    }

    fn remove(directory: &Path) {
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    /// Whether the kernel has Landlock: then this program has to use it.
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
        // Who replaces it has given up nothing.
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
            true => KEPT | KEPT_TO_READ,
            false => KEPT,
        };
        for (files, kept) in [(Files::default(), KEPT), (reads, to_read)] {
            let (left, child) = confined(files, || {
                // A thread that is started later has no more.
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
