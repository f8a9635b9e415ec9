//! Checks a configuration against this machine and its links: before a start, at a start, and while an instance
//! runs.

mod boxes;
mod keys;
mod links;
mod machine;
mod running;
mod servers;
mod system;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::path::Path;

use braid_proxy::config::{BoxConfig, Finding, ServerConfig, Verdict, key_file};
use braid_proxy::status::Status;
use braid_secure::keys::PrivateKey;

use machine::Machine;
use running::{Running, WantedInstance};
use system::Needs;

/// A configuration with the file and the text that it was read from.
#[derive(Debug)]
pub struct File<'a, C> {
    /// The file.
    pub path: &'a Path,
    /// The text of the file.
    pub text: &'a str,
    /// The configuration that the file holds.
    pub config: &'a C,
}

/// Checks file, machine and links of a box. Ends early if `stop` becomes readable. The check takes up to 12
/// seconds: up to 2.5 s until a running instance answers, and up to 9 s for the probes of all links, which run in
/// parallel.
pub fn check_box(file: File<'_, BoxConfig>, stop: BorrowedFd<'_>) -> Vec<Finding> {
    let CheckResult {
        mut found,
        machine,
        status,
    } = of_box(&file, false);
    // The state of the network could not be read. The findings already report this.
    let Some(machine) = machine else {
        return found;
    };
    if system::is_privileged() {
        let of_links = links::findings(file.config, &machine, status.as_deref(), stop);
        found.extend(of_links);
        return found;
    }
    found.push(Finding::new(
        Verdict::CouldNotCheck,
        ("link.tcp", "links"),
        "the links were not probed: that needs CAP_NET_ADMIN and CAP_NET_RAW",
        "run the check as root",
    ));
    found
}

/// Checks file and machine of a server.
pub fn check_server(file: File<'_, ServerConfig>) -> Vec<Finding> {
    let mut found = of_server(&file, false);
    let message = "only a box can show whether boxes reach the port from outside";
    let remedy = "on a box: braid box check";
    let at = ("listen.outside", "listen");
    found.push(Finding::new(Verdict::NotChecked, at, message, remedy));
    found
}

/// Checks file and machine at the start of a box. A finding that [refuses](Finding::refuses_start) the start
/// means that the box cannot work. The links are not probed: this takes seconds, and a link that fails now may
/// work later, so its failure would not refuse the start.
pub fn box_starts(file: File<'_, BoxConfig>) -> Vec<Finding> {
    of_box(&file, true).found
}

/// Checks file and machine at the start of a server, as [`box_starts`] does for a box.
pub fn server_starts(file: File<'_, ServerConfig>) -> Vec<Finding> {
    of_server(&file, true)
}

/// The result of a check of file and machine.
struct CheckResult {
    found: Vec<Finding>,
    /// The state of the network; `None` if it cannot be read.
    machine: Option<Machine>,
    /// The status of the running instance of this configuration.
    status: Option<Box<Status>>,
}

/// Checks file and machine of a box. `at_start` is true if the box is about to start, and false for
/// `braid box check`.
fn of_box(file: &File<'_, BoxConfig>, at_start: bool) -> CheckResult {
    let File { config, text, .. } = *file;
    let mut found = config.findings(text);
    add_key(file.path, text, &config.key, at_start, &mut found);
    let machine = match Machine::read() {
        Ok(machine) => machine,
        // Most of the further checks compare the configuration with the network, so all of them are left out.
        // The finding is no failure, so it does not refuse a start.
        Err(error) => {
            found.push(unreadable(&error));
            return CheckResult {
                found,
                machine: None,
                status: None,
            };
        }
    };
    let Running {
        own_status,
        findings,
    } = running::find(&WantedInstance::of_box(config), &machine, at_start);
    let is_running = own_status.is_some();
    found.extend(findings);
    // If a box of this configuration runs, it is the program that listens at the SOCKS address.
    found.extend(boxes::findings(config, &machine, is_running));
    found.extend(system::findings(
        &Needs::of_box(config),
        at_start,
        is_running,
    ));
    CheckResult {
        found,
        machine: Some(machine),
        status: own_status,
    }
}

/// Checks file and machine of a server. `at_start` is true if the server is about to start, and false for
/// `braid server check`.
fn of_server(file: &File<'_, ServerConfig>, at_start: bool) -> Vec<Finding> {
    let File { config, text, .. } = *file;
    let mut found = config.findings(text);
    add_key(file.path, text, &config.key, at_start, &mut found);
    let machine = match Machine::read() {
        Ok(machine) => machine,
        Err(error) => {
            found.push(unreadable(&error));
            return found;
        }
    };
    let running = running::find(&WantedInstance::of_server(config), &machine, at_start);
    let is_running = running.own_status.is_some();
    found.extend(running.findings);
    // A running server needs no exception here: it has no kernel sockets at its endpoints.
    found.extend(servers::findings(config, &machine));
    let needs = Needs::of_server(config, &machine);
    found.extend(system::findings(&needs, at_start, is_running));
    found
}

/// Adds the findings on the file of the private key. A configuration keeps the key but not the name of its file,
/// so the name is read from `text`.
fn add_key(file: &Path, text: &str, key: &PrivateKey, at_start: bool, found: &mut Vec<Finding>) {
    let Some(path) = key_file(&file.display().to_string(), text) else {
        return;
    };
    found.extend(keys::mode(&path, at_start));
    if let Some(swapped) = keys::swapped(&path, key) {
        // The check of the configuration may have reported the same mistake under the same id. That check reads
        // no other file and cannot name the right one, so its finding is replaced.
        found.retain(|other| other.id != swapped.id);
        found.push(swapped);
    }
}

fn unreadable(error: &std::io::Error) -> Finding {
    let message = format!("cannot read interfaces, addresses and routes: {error}");
    Finding::new(Verdict::CouldNotCheck, ("machine", "network"), message, "")
}
