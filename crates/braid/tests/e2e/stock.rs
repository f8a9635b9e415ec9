//! Clients without Braid: curl by SOCKS5 over the kernel's Multipath TCP, from a host with two links and
//! without a box; and a host that joins a connection of its own through a box.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid_testbed::Role;

use super::control::status;
use super::fixture::{Download, Fixture, description, render_changed, stderr, unique_name};

const DESCRIPTION: &str = r#"
name = "NAME"
congestion = "cubic"

[[host]]
name = "laptop"
role = "user"
gateway = "internet"
mptcp = true

[[host]]
name = "internet"
role = "router"

[[host]]
name = "server"
role = "server"
start = "manual"
gateway = "internet"

[[host]]
name = "content"
role = "content"
gateway = "internet"

[[link]]
name = "link1"
from = "laptop"
to = "internet"
rate = "20mbit"
delay = "5ms"

[[link]]
name = "link2"
from = "laptop"
to = "internet"
rate = "20mbit"
delay = "15ms"

[[lan]]
name = "backbone"
hosts = ["internet", "server", "content"]
"#;

struct Stock {
    bed: Fixture,
    /// The laptop's key file.
    key: PathBuf,
}

impl Stock {
    fn up() -> Self {
        let key = std::env::temp_dir().join(format!("{}-laptop.key", unique_name()));
        let public = braid(&["key", "new", text(&key)]);
        let render = render_changed(Role::Server, move |text| {
            format!("unprotected = true\n{text}\n[[user]]\nname = \"laptop\"\nkey = \"{public}\"\n")
        });
        let mut bed = Fixture::of_with(DESCRIPTION, render);
        bed.start("server");
        Stock { bed, key }
    }

    /// Returns user and password for one connection.
    fn password(&self, destination: &str) -> String {
        let server = self.bed.testbed.state_dir().join("server/server.key");
        let server = braid(&["key", "show", text(&server)]);
        let key = text(&self.key);
        let arguments = ["password", destination, "--key", key, "--server-key"];
        braid(&[&arguments[..], &[&server]].concat())
    }

    /// Starts curl over the kernel's Multipath TCP, with this user and password.
    fn curl(&self, password: &str, url: &str) -> Download {
        let mut command = self.bed.exec("laptop", "mptcpize");
        command.args(["run", "curl"]);
        let proxy = format!("socks5h://{}:1080/", self.bed.v4("server"));
        let arguments = ["--proxy", &proxy, "--proxy-user", password];
        self.bed.download(command, &arguments, url)
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        // A file that remains harms nothing.
        let _ = fs::remove_file(&self.key);
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Returns the output of the command.
pub fn braid(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(arguments)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
#[ignore = "network"]
fn curl_uses_both_links_of_its_host() {
    let mut stock = Stock::up();
    let expected = stock.bed.offer("large", 10_000_000);
    let to = format!("{}:80", stock.bed.v4("content"));
    stock.bed.slow_down();
    let before = stock.bed.carried();
    let download = stock.curl(&stock.password(&to), &format!("http://{to}/large"));
    stock
        .bed
        .wait_for("some of it to come", |_| download.bytes() > 1_000_000);
    let [conn] = &status(&stock.bed, "server").connections[..] else {
        panic!("one connection")
    };
    assert_eq!(conn.user.as_deref(), Some("laptop"));
    assert!(conn.mptcp && conn.paths.len() == 2, "{conn:?}");
    stock.bed.wait_for("both links to carry 2 MB", |bed| {
        let now = bed.carried();
        (0..2).all(|link| now[link] > before[link] + 2_000_000)
    });
    stock.bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn its_password_serves_one_connection_to_one_place() {
    let stock = Stock::up();
    let expected = stock.bed.offer("some", 10_000);
    let to = format!("{}:80", stock.bed.v4("content"));
    let password = stock.password(&to);
    stock
        .curl(&password, &format!("http://{to}/some"))
        .expect_bytes(&expected);
    let elsewhere = stock.password("192.0.2.1:80");
    let (user, _) = password.split_once(':').expect("two fields");
    let no_password = ["hunter2", &"A".repeat(204)].map(|no| format!("{user}:{no}"));
    for refused in [&password, &elsewhere, &no_password[0], &no_password[1]] {
        let (well, said) = stock.curl(refused, &format!("http://{to}/some")).end();
        assert!(!well && said.starts_with("curl: (97)"), "{said}");
    }
    let server = status(&stock.bed, "server");
    let counters = [
        "connected",
        "auth_replayed",
        "auth_destination",
        "auth_malformed",
    ];
    let counters = counters.map(|name| server.counters[name]);
    assert_eq!(counters, [1, 1, 1, 2], "{:?}", server.counters);
}

/// A user of the box with a link of its own beside it. The box knows nothing of connections that begin there,
/// so even if it intercepts Multipath TCP, it still forwards joins.
#[test]
#[ignore = "network"]
fn a_join_is_forwarded_where_connections_are_taken_in() {
    let both = "gateway = [\"box\", \"internet\"]\nmptcp = true";
    let beside =
        "[[link]]\nname = \"beside\"\nfrom = \"user\"\nto = \"internet\"\nrate = \"20mbit\"\n";
    let hosts = description("NAME").replace("gateway = \"box\"", both) + beside;
    let proxy = |text| format!("mptcp_hosts = \"proxy\"\n{text}");
    let mut bed = Fixture::of_with(&hosts, render_changed(Role::Box, proxy));
    bed.start("server");
    bed.start("box");
    bed.wait_for_interception();
    let [lan, own] = [0, 1].map(|index| bed.v4_of("user", index));
    let lan = lan.to_string();
    let endpoint = ["mptcp", "endpoint", "add", &lan, "dev", "home", "subflow"];
    bed.run("user", "ip", &endpoint);

    let address = format!("{}:7004", bed.v4("content"));
    let there = ["listen", &address, "--send", "5000000", "--seed", "1"];
    let own = format!("{own}:0");
    let here = ["connect", &address, "--bind", &own, "--verify", "1"];
    let before = bed.carried();
    let mut listening = bed.kernel_peer("content", &there);
    let here = [&here[..], &["--expect", "5000000"]].concat();
    let mut connected = bed.kernel_peer("user", &here);
    for peer in [&mut connected, &mut listening] {
        let output = peer.wait();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{report}");
        let multipath = ["\"fallback\":false", "\"subflows\":2"];
        assert!(
            multipath.iter().all(|said| report.contains(said)),
            "{report}"
        );
    }
    let carried = bed.carried().iter().sum::<u64>() - before.iter().sum::<u64>();
    assert!(carried > 1_000_000, "through the box came {carried} bytes");
    assert_eq!(status(&bed, "box").counters["accepted"], 0);
}
