//! WireGuard in user space (wireguard-go) between the hosts of a testbed that otherwise run box and server.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use braid::failure::Failure;
use braid_testbed::fixture::Fixture;

use crate::fixture::WAIT_TIMEOUT;

/// The variable with the path of wireguard-go. `scripts/wireguard-go.sh` builds it.
const PROGRAM: &str = "BRAID_WIREGUARD_GO";
const PORT: u16 = 51_820;
/// The largest inner packet: what an outer packet of 1,500 bytes takes over IPv6, as `wg-quick` sets it.
const MTU: u32 = 1_420;
/// The byte that each private key consists of, and the public keys that belong to them (RFC 7748). They protect
/// nothing.
const KEYS: [(&str, &str); 2] = [
    (
        "11",
        "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13",
    ),
    (
        "22",
        "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20",
    ),
];

/// Both ends, which end when this value is dropped.
pub struct WireGuard {
    ends: Vec<Child>,
}

/// Returns the path of wireguard-go, if it is installed.
pub fn program() -> Option<PathBuf> {
    std::env::var_os(PROGRAM).map(PathBuf::from)
}

impl WireGuard {
    /// Starts both ends in place of box and server, and leads what users send to `content` through them.
    pub fn start(
        program: &Path,
        fixture: &mut Fixture,
        content: IpAddr,
    ) -> Result<WireGuard, Failure> {
        let mut started = WireGuard { ends: Vec::new() };
        let server = fixture.address("server")?;
        let user = fixture.lan_address("user")?;
        let names = ["b", "s"].map(|end| format!("bwg{}{end}", std::process::id()));
        for ((end, host), name) in [0, 1].into_iter().zip(["box", "server"]).zip(&names) {
            let mut command: Command = fixture.exec(host, &program.display().to_string())?;
            command.args(["-f", name]).env("LOG_LEVEL", "error");
            started.ends.push(command.stdin(Stdio::null()).spawn()?);
            let socket = PathBuf::from(format!("/var/run/wireguard/{name}.sock"));
            fixture.wait_for("wireguard-go", WAIT_TIMEOUT, |_| Ok(socket.exists()))?;
            let private = KEYS[end].0.repeat(32);
            let peer = KEYS[1 - end].1;
            let endpoint = match end {
                0 => format!("endpoint={server}:{PORT}\n"),
                _ => String::new(),
            };
            let settings = format!(
                "set=1\nprivate_key={private}\nlisten_port={PORT}\npublic_key={peer}\n{endpoint}\
                 allowed_ip=0.0.0.0/0\n\n"
            );
            let mut control = UnixStream::connect(&socket)?;
            control.write_all(settings.as_bytes())?;
            let mut answer = [0; 64];
            let len = control.read(&mut answer)?;
            if !answer[..len].starts_with(b"errno=0") {
                let answer = String::from_utf8_lossy(&answer[..len]).into_owned();
                return Err(Failure::Run(format!("wireguard-go: {answer}")));
            }
            run(fixture, host, &format!("ip link set {name} up mtu {MTU}"))?;
        }
        let [boxed, served] = &names;
        run(
            fixture,
            "box",
            &format!("ip route replace {content} dev {boxed}"),
        )?;
        run(
            fixture,
            "server",
            &format!("ip route replace {user} dev {served}"),
        )?;
        // As box and server do, it hides its users behind its own address.
        let masquerade = format!(
            "nft add table ip wg; add chain ip wg out {{ type nat hook postrouting priority 100; }}; \
             add rule ip wg out ip saddr {user} masquerade"
        );
        run(fixture, "server", &masquerade)?;
        Ok(started)
    }

    /// Returns the processes of both ends.
    pub fn pids(&self) -> Vec<u32> {
        self.ends.iter().map(Child::id).collect()
    }
}

impl Drop for WireGuard {
    fn drop(&mut self) {
        for end in &mut self.ends {
            // It may have ended by itself.
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

/// Runs a command on a host: the first word is the program. What follows it is one argument for `nft`.
fn run(fixture: &Fixture, host: &str, command: &str) -> Result<(), Failure> {
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let mut child = fixture.exec(host, program)?;
    if program == "nft" {
        child.arg(rest);
    } else {
        child.args(rest.split(' '));
    }
    let done = child.status()?;
    done.success()
        .then_some(())
        .ok_or_else(|| Failure::Run(format!("{command}: {done}")))
}
