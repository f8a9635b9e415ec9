//! `braid-lab testbed`: networks of namespaces and emulated links.

use std::os::unix::process::CommandExt;
use std::path::Path;

use braid_testbed as testbed;
use braid_testbed::{Client, LinkChange, Options, Spec, render};

use super::setting::{ensure_netns, last_lines, print_result};
use crate::cli::Testbed;
use braid::failure::Failure;

/// Number of last lines of the log of a process that ended.
const LOG_LINES: usize = 3;

/// Runs one of the commands of `braid-lab testbed`.
pub fn run(command: &Testbed, json: bool) -> Result<(), Failure> {
    match command {
        Testbed::Up { file } => up(file, json),
        Testbed::Daemon { file } => {
            ensure_netns()?;
            Ok(testbed::run_daemon(Spec::read(file)?, options(None)?)?)
        }
        Testbed::Exec {
            file,
            host,
            command,
        } => exec(file, host, command),
        Testbed::Status { file } => show(&client(file)?, json),
        Testbed::Set {
            file,
            link,
            changes,
        } => {
            let spec = Spec::read(file)?;
            // Checked here, so that a wrong name is an error of usage even if the testbed is not up.
            let links = spec.links.iter();
            let known: Vec<_> = links.map(|link| link.name.to_string()).collect();
            if !known.contains(link) {
                return Err(testbed::Error::NoSuchLink(link.clone(), known).into());
            }
            let mut change = LinkChange::parse(changes)?;
            change.load(&std::env::current_dir()?)?;
            Ok(Client::connect(&spec.name)?.set(link, None, &change)?)
        }
        Testbed::Down { file } => Ok(testbed::down(&Spec::read(file)?.name)?),
    }
}

/// Returns the options of all testbeds that this program builds. `congestion` is the congestion control of
/// boxes and servers; `None` keeps their default.
pub fn options(congestion: Option<&str>) -> Result<Options, Failure> {
    Ok(Options {
        render: Some(render::render_config(congestion)?),
        ..Options::default()
    })
}

fn up(file: &Path, json: bool) -> Result<(), Failure> {
    let spec = Spec::read(file)?;
    let arguments = ["testbed".as_ref(), "daemon".as_ref(), file.as_os_str()];
    let client = testbed::spawn_daemon(&spec.name, arguments)?;
    let status = client.status()?;
    print_result(json, &status, || &status)?;
    // A testbed whose box or server is not there still carries packets, and would measure something else.
    let ended = status.hosts.iter().find_map(|host| {
        let process = host.process.as_ref().filter(|p| p.pid.is_none())?;
        let how = process.ended.as_ref()?;
        let log = std::fs::read_to_string(&process.log).unwrap_or_default();
        let name = &host.name;
        let mut text =
            format!("the process of {name} ended ({how}); the testbed stays up without it:");
        for line in last_lines(&log, LOG_LINES) {
            text += &format!("\n  {line}");
        }
        Some(text)
    });
    ended.map_or(Ok(()), |reason| Err(Failure::Run(reason)))
}

/// Replaces this process by the command, so that signals, terminal and exit code are the command's own.
fn exec(file: &Path, host: &str, command: &[String]) -> Result<(), Failure> {
    let (program, arguments) = command.split_first().expect("clap requires a command");
    let error = client(file)?.exec(host, program)?.args(arguments).exec();
    Err(Failure::run(format_args!("cannot run {program}"), error))
}

fn client(file: &Path) -> Result<Client, Failure> {
    Ok(Client::connect(&Spec::read(file)?.name)?)
}

fn show(client: &Client, json: bool) -> Result<(), Failure> {
    let status = client.status()?;
    print_result(json, &status, || &status)
}
