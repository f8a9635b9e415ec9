//! A server that reads its configuration again while connections go on.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use braid_testbed::Role;
use rustix::process::{Pid, Signal, kill_process};

use super::control::{ask, status};
use super::fixture::{Download, Fixture, render_changed, stderr};
use super::stock::{braid, text};

/// The file `large`, slow enough to observe the download. The content host is slow, since a curl that reads
/// slowly soon has all the rest in its kernel's buffer.
const SLOW: &str = "large?rate=1m";

/// Box and server, and a user of the server without a box.
pub struct SocksFixture {
    pub bed: Fixture,
    /// The SOCKS client's key file, beside the server's.
    key: PathBuf,
    /// The server's configuration at its start.
    text: String,
}

impl SocksFixture {
    pub fn up() -> Self {
        SocksFixture::of(Fixture::up_idle(render_changed(
            Role::Server,
            allowing_plaintext,
        )))
    }

    /// Brings it up with a SOCKS client whom the server knows from the start.
    pub fn with_socks_client() -> Self {
        SocksFixture::up().knowing_socks_client()
    }

    /// Takes a bed with neither box nor server running.
    pub fn of(mut bed: Fixture) -> Self {
        let key = bed.testbed.state_dir().join("guest.key");
        braid(&["key", "new", text(&key)]);
        bed.start("server");
        bed.start("box");
        bed.wait_for_interception();
        for link in ["link1", "link2"] {
            bed.set_link(link, "rate=20mbit");
        }
        let file = bed.testbed.state_dir().join("server/server.toml");
        let text = fs::read_to_string(file).expect("a configuration");
        SocksFixture { bed, key, text }
    }

    pub fn knowing_socks_client(self) -> Self {
        self.write(&self.file(true, true, as_it_was));
        self.expect_reloaded("users: 1 added\n");
        self
    }

    /// Returns the server's file with the selected users, and a change.
    pub fn file(&self, boxed: bool, socks: bool, change: impl Fn(&str) -> String) -> String {
        let (settings, user) = self.text.split_once("[[user]]").expect("a user");
        let public = braid(&["key", "show", text(&self.key)]);
        let socks_user = format!("\n[[user]]\nname = \"guest\"\nkey = \"{public}\"\n");
        let user = format!("\n[[user]]{user}");
        let users = [(boxed, user), (socks, socks_user)];
        let users = users.iter().filter(|(there, _)| *there);
        change(settings) + &users.map(|(_, text)| text.as_str()).collect::<String>()
    }

    /// Replaces the server's file, as editors do.
    pub fn write(&self, text: &str) {
        let directory = self.bed.testbed.state_dir().join("server");
        let new = directory.join("server.toml.new");
        fs::write(&new, text).expect("the state directory is writable");
        fs::rename(new, directory.join("server.toml")).expect("in one directory");
    }

    pub fn reload(&self) -> Output {
        ask(&self.bed, "server", &["reload"])
    }

    pub fn expect_reloaded(&self, expected: &str) {
        let output = self.reload();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }

    /// Sends SIGHUP, and waits until the server logs `expected`.
    fn hang_up(&mut self, expected: &str) {
        let before = self.bed.log("server");
        let pid = self.bed.testbed.pid("server").expect("it runs");
        let pid = Pid::from_raw(pid as i32).expect("a process id");
        kill_process(pid, Signal::HUP).expect("it runs");
        // Removed users may be logged too: they come back, and are refused.
        self.bed.wait_for(expected, |bed| {
            // Empty if the log could not be read just now.
            let log = bed.log("server");
            log.get(before.len()..)
                .is_some_and(|new| new.contains(expected))
        });
    }

    /// Starts a download by the SOCKS client.
    fn socks_download(&self, name: &str) -> Download {
        self.socks_download_from(&self.bed.v4("content").to_string(), name)
    }

    /// Starts a download from a host by its name, or its address.
    pub fn socks_download_from(&self, content: &str, name: &str) -> Download {
        let server = self.bed.testbed.state_dir().join("server/server.key");
        let server = braid(&["key", "show", text(&server)]);
        let to = format!("{content}:80");
        let key = text(&self.key);
        let password = braid(&["password", &to, "--key", key, "--server-key", &server]);
        let proxy = format!("socks5h://{}:1080/", self.bed.v4("server"));
        let way = ["--proxy", &proxy, "--proxy-user", &password];
        let curl = self.bed.exec("internet", "curl");
        let url = format!("http://{content}/{name}");
        self.bed.download(curl, &way, &url)
    }

    fn wait_for_bytes(&mut self, downloads: &[&Download]) {
        self.bed.wait_for("downloads to get going", |_| {
            downloads.iter().all(|d| d.bytes() > 2_000_000)
        });
    }
}

/// Returns the server's settings, with users in plaintext permitted.
pub fn allowing_plaintext(text: String) -> String {
    format!("unprotected = true\n{text}")
}

fn as_it_was(settings: &str) -> String {
    settings.to_owned()
}

#[test]
#[ignore = "network"]
fn users_come_and_go_while_others_download() {
    let mut world = SocksFixture::up();
    let expected = world.bed.offer("large", 10_000_000);
    let both = world.file(true, true, as_it_was);
    world.write(&both);
    world.expect_reloaded("users: 1 added\n");
    // Both have to be in the middle of the download.
    let (socks, user) = (world.socks_download(SLOW), world.bed.curl(SLOW));
    world.wait_for_bytes(&[&user, &socks]);
    // By the command; users who are not removed go on.
    world.write(&world.file(true, false, as_it_was));
    world.expect_reloaded("users: 1 removed\n");
    let (well, _) = socks.end();
    assert!(!well, "who was taken out had all of it");
    user.expect_bytes(&expected);

    // A file with a mistake changes nothing.
    world.write(&world.file(true, true, |settings| {
        format!("{settings}\nport = \"ssh\"\n")
    }));
    let refused = world.reload();
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    let place = "server.toml:";
    assert!(
        said.contains(place) && said.contains("port = \"ssh\""),
        "{said}"
    );
    world.hang_up("the configuration stays as it was");
    world.bed.fetch(100_000);

    // By the signal, with a setting that needs a restart.
    world.write(&both);
    world.expect_reloaded("users: 1 added\n");
    let (socks, user) = (world.socks_download(SLOW), world.bed.curl(SLOW));
    world.wait_for_bytes(&[&user, &socks]);
    world.write(&world.file(false, true, |settings| format!("port = 443\n{settings}")));
    world.hang_up("users: 1 removed; not before a restart: port");
    let (well, _) = user.end();
    assert!(!well, "who was taken out had all of it");
    socks.expect_bytes(&expected);

    // A user who comes back is served.
    world.write(&both);
    world.expect_reloaded("users: 1 added\n");
    let connected = |bed: &Fixture| status(bed, "server").counters["connected"];
    let before = connected(&world.bed);
    world.bed.wait_for("the box to be served again", |bed| {
        bed.fetch(100_000);
        connected(bed) > before
    });
}
