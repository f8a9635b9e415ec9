//! `braid box check` and `braid server check`: each mistake is named, and a sound network gets no complaint.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use braid_secure::keys::PrivateKey;
use braid_testbed::Role;
use braid_testbed::render::render_config;
use serde_json::Value;

use super::fixture::{Fixture, changed, stderr};
use super::stale_resources::{expect_as_before, settled_host};

const FINE: i32 = 0;
const UNKNOWN: i32 = 1;
const WARNINGS: i32 = 3;
const BROKEN: i32 = 4;

/// A testbed whose box and server claim no more than the machine has, with their files written.
struct Checked {
    bed: Fixture,
}

impl Checked {
    /// Brings it up with the server running, and the box stopped.
    fn up() -> Self {
        let mut checked = Checked::with_box();
        checked.bed.testbed.stop("box").expect("it ran");
        checked
    }

    fn with_box() -> Self {
        let few = |text: String| {
            format!("{text}\n[limits]\nmemory = \"64MiB\"\n[expert]\nmax_connections = 1000\n")
        };
        let render = changed(render_config(None).expect("randomness"), Role::Server, few);
        let mut bed = Fixture::up_idle(changed(render, Role::Box, few));
        bed.start("server");
        bed.start("box");
        bed.wait_for_interception();
        Checked { bed }
    }

    fn directory(&self, role: &str) -> PathBuf {
        self.bed.testbed.state_dir().join(role)
    }

    fn text(&self, role: &str) -> String {
        let file = self.directory(role).join(format!("{role}.toml"));
        fs::read_to_string(file).expect("it was started once")
    }

    /// Writes another file beside the one of box or server.
    fn write(&self, role: &str, text: &str) -> PathBuf {
        let file = self.directory(role).join("other.toml");
        fs::write(&file, text).expect("the state directory is writable");
        file
    }

    /// Checks this file of the role on its host, by a shell that runs `before` first.
    fn check_by(&self, role: &str, text: &str, before: &str) -> Report {
        let file = self.write(role, text);
        let braid = env!("CARGO_BIN_EXE_braid");
        let script = format!(
            "{before}\nexec {braid} {role} check --json -c {}",
            file.display()
        );
        let mut shell = self.bed.exec(role, "unshare");
        shell.args(["--mount", "sh", "-c", &script]);
        Report::of(&mut shell)
    }

    fn check(&self, role: &str, text: &str) -> Report {
        self.check_by(role, text, "")
    }

    /// Fails unless a check of the box's file, changed by `change`, has a finding of this id about this
    /// subject, with all of `words`, and this exit code.
    fn expect(
        &self,
        change: impl Fn(String) -> String,
        id: &str,
        subject: &str,
        found: (i32, &[&str]),
    ) {
        let text = change(self.text("box"));
        self.check("box", &text).expect(id, subject, found);
    }
}

/// The output of a check.
#[derive(Debug)]
struct Report {
    code: Option<i32>,
    json: Value,
}

impl Report {
    fn of(command: &mut Command) -> Report {
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let json = serde_json::from_str(&text);
        Report {
            code: output.status.code(),
            json: json.unwrap_or_else(|e| panic!("{e} in {text:?}: {}", stderr(&output))),
        }
    }

    fn findings(&self) -> &[Value] {
        self.json["findings"].as_array().expect("a list")
    }

    /// Returns the findings with one of these verdicts.
    fn with<'a>(&'a self, verdicts: &'a [&str]) -> impl Iterator<Item = &'a Value> {
        let wanted = |f: &&Value| verdicts.contains(&f["verdict"].as_str().expect("text"));
        self.findings().iter().filter(wanted)
    }

    #[track_caller]
    fn expect(&self, id: &str, subject: &str, (code, words): (i32, &[&str])) {
        let about = |f: &&&Value| f["id"] == id && f["subject"] == subject;
        let mut bad = self.with(&["warning", "failure", "could_not_check"]);
        let all: Vec<_> = bad.by_ref().collect();
        let Some(finding) = all.iter().find(about) else {
            panic!("no {id} of {subject}: {all:#?}")
        };
        let message = finding["message"].as_str().expect("text");
        for word in words {
            assert!(message.contains(word), "{word:?} in {message:?}");
        }
        assert!(finding["remedy"].is_string(), "{finding}");
        assert_eq!(self.code, Some(code), "{all:#?}");
    }

    /// Fails if there is any complaint.
    #[track_caller]
    fn expect_fine(&self) {
        let bad: Vec<_> = self
            .with(&["warning", "failure", "could_not_check"])
            .collect();
        assert_eq!(bad, [&Value::Null; 0]);
        assert_eq!(
            (self.code, &self.json["verdict"]),
            (Some(FINE), &"ok".into())
        );
    }

    /// Returns the number of good findings of this id.
    fn count(&self, id: &str) -> usize {
        self.with(&["ok"]).filter(|f| f["id"] == id).count()
    }
}

#[test]
#[ignore = "network"]
fn nothing_is_said_of_a_sound_network_and_nothing_left_there() {
    let mut checked = Checked::with_box();
    for stopped in [false, true] {
        if stopped {
            checked.bed.testbed.stop("box").expect("it ran");
        }
        let before = settled_host(&mut checked.bed, "box");
        let report = checked.check("box", &checked.text("box"));
        report.expect_fine();
        // Two links, each with two families.
        for id in [
            "link.tcp",
            "link.mptcp",
            "link.server",
            "link.mtu",
            "link.udp",
        ] {
            assert_eq!(report.count(id), 4, "{id}: {report:#?}");
        }
        expect_as_before(&mut checked.bed, "box", &before);
        checked
            .check("server", &checked.text("server"))
            .expect_fine();
    }
    checked.bed.testbed.stop("server").expect("it ran");
    checked
        .check("server", &checked.text("server"))
        .expect_fine();
}

#[test]
#[ignore = "network"]
fn what_is_printed_is_a_table_with_remedies() {
    let checked = Checked::up();
    let text = checked.text("box").replace("\"64MiB\"", "\"256\"");
    let file = checked.write("box", &text);
    let output = checked
        .bed
        .exec("box", env!("CARGO_BIN_EXE_braid"))
        .args(["box", "check", "-c"])
        .arg(file)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(BROKEN), "{said}");
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    let mut lines = said.lines().map(str::trim);
    let row = lines
        .find(|line| line.starts_with("failure"))
        .expect("a row");
    assert!(
        row.contains("limits.memory") && row.contains("256 bytes"),
        "{row}"
    );
    let remedy = lines.next().expect("a line below");
    assert!(
        remedy.starts_with("to do: write a size with its unit"),
        "{remedy}"
    );
    assert!(
        said.ends_with("the box would not work: 1 failure, 0 warnings\n"),
        "{said}"
    );
}

/// Mistakes that the file alone shows.
#[test]
#[ignore = "network"]
fn mistakes_of_the_file_are_named() {
    let checked = Checked::up();
    let key = |name: &str| PrivateKey::read(&checked.directory(name).join(format!("{name}.key")));
    let (boxed, server) = (key("box").expect("a key"), key("server").expect("a key"));
    let server_key = server.public().to_string();
    let with_key = |other: String| move |text: String| text.replace(&server_key.clone(), &other);
    let memory = |text: String| text.replace("memory = \"64MiB\"", "memory = \"256\"");
    checked.expect(memory, "limits", "limits.memory", (BROKEN, &["256 bytes"]));
    let connect = |text| format!("{text}\n[timeouts]\nuser_timeout = 30\n");
    checked.expect(
        connect,
        "unit",
        "timeouts.user_timeout",
        (WARNINGS, &["no unit", "30 seconds"]),
    );
    let own = with_key.clone()(boxed.public().to_string());
    checked.expect(
        own,
        "server.key",
        "server server",
        (BROKEN, &["own public key"]),
    );
    let private = with_key(server.to_text().to_string());
    checked.expect(
        private,
        "server.key",
        "server server",
        (BROKEN, &["private one"]),
    );
    let address = checked.bed.v4("server");
    let other = PrivateKey::generate([9; 32]).public();
    let twice = move |text| {
        format!(
            "{text}\n[[server]]\nname = \"again\"\naddress = \"{address}\"\nkey = \"{other}\"\n"
        )
    };
    checked.expect(
        twice,
        "server.twice",
        "server again",
        (WARNINGS, &["another key"]),
    );
    let auto = |text: String| {
        let second = "[[link]]\nname = \"same\"\ninterface = \"link1\"\n\n[[server]]";
        text.replacen("[[server]]", second, 1)
    };
    checked.expect(
        auto,
        "link.same",
        "link same",
        (WARNINGS, &["as link link1 does"]),
    );
    let bypass = |text| format!("bypass = [\"192.0.2.0/24\", \"192.0.2.7\"]\n{text}");
    checked.expect(
        bypass,
        "never.bypass",
        "bypass 192.0.2.7/32",
        (WARNINGS, &["already"]),
    );
    let unspecified = move |text: String| text.replace(&address.to_string(), "0.0.0.0");
    let report = checked.check("box", &unspecified(checked.text("box")));
    assert_eq!(report.code, Some(BROKEN));
    assert!(
        report.findings()[0]["message"]
            .as_str()
            .expect("text")
            .contains("0.0.0.0")
    );
}

/// Mistakes with the private key's file.
#[test]
#[ignore = "network"]
fn mistakes_with_the_key_file_are_named() {
    let checked = Checked::up();
    let file = checked.directory("box").join("box.key");
    let same = |text: String| text;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    checked.expect(
        same,
        "key.mode",
        "key_file",
        (WARNINGS, &["mode 644", "every user"]),
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");

    let private = fs::read_to_string(&file).expect("readable");
    let public = PrivateKey::from_text(&private).expect("a key").public();
    // Alone, and beside its private key.
    fs::write(&file, public.to_string()).expect("writable");
    let report = checked.check("box", &checked.text("box"));
    report.expect(
        "key.private",
        "key_file",
        (BROKEN, &["may hold a public key"]),
    );
    report.expect(
        "link.server",
        &format!("link link1 to server ({}:1080)", checked.bed.v4("server")),
        (BROKEN, &["key refused"]),
    );
    fs::write(checked.directory("box").join("old.key"), private).expect("writable");
    checked.expect(
        same,
        "key.private",
        "key_file",
        (
            BROKEN,
            &["a public key, that of the private key in", "old.key"],
        ),
    );
}

/// Mistakes about interfaces and addresses.
#[test]
#[ignore = "network"]
fn mistakes_about_the_network_are_named() {
    let checked = Checked::up();
    let replace = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from), "{from} in {text}");
            text.replace(from, to)
        }
    };
    let lan = replace("lan = [\"home\"]", "lan = \"eth99\"");
    checked.expect(lan, "lan", "lan eth99", (BROKEN, &["no such interface"]));
    let link = replace("interface = \"link2\"", "interface = \"wwan9\"");
    checked.expect(
        link,
        "link",
        "link wwan9",
        (WARNINGS, &["no interface wwan9"]),
    );

    let gateway = |text: String| {
        let line = text
            .lines()
            .find(|line| line.starts_with("gateway"))
            .expect("one")
            .to_owned();
        text.replacen(&line, "gateway = \"192.0.2.1\"", 1)
    };
    checked.expect(
        gateway,
        "link",
        "link link1",
        (WARNINGS, &["192.0.2.1 is in no network of link1"]),
    );

    let socks = |text| format!("socks = \"192.0.2.77:1080\"\n{text}");
    checked.expect(
        socks,
        "socks",
        "socks 192.0.2.77:1080",
        (WARNINGS, &["has no address 192.0.2.77"]),
    );
}

/// A range of the TUN device that the LAN or a link uses.
#[test]
#[ignore = "network"]
fn ranges_that_others_have_are_named() {
    let checked = Checked::up();
    for (interface, verdict) in [("home", "users' network"), ("link1", "network of a link")] {
        let layout = checked.bed.testbed.layout().host("box").expect("a host");
        let on = layout
            .interfaces
            .iter()
            .find(|i| i.name == interface)
            .expect("one");
        let mut network = on.address4.octets();
        network[3] = 0;
        let range = format!("{}/24", std::net::Ipv4Addr::from(network));
        let v6 = on.address6;
        let tun = format!("[tun]\nv4 = \"{range}\"");
        let overlapping = |text| format!("{text}\n{tun}\n");
        let report = checked.check("box", &overlapping(checked.text("box")));
        report.expect("tun.overlap", &format!("tun {range}"), (BROKEN, &[verdict]));
        let range = ipnet_of(v6);
        let overlapping = |text: String| format!("{text}\n[tun]\nv6 = \"{range}\"\n");
        let report = checked.check("box", &overlapping(checked.text("box")));
        report.expect("tun.overlap", &format!("tun {range}"), (BROKEN, &[verdict]));
    }
    let mut server = match checked.bed.v4("server") {
        std::net::IpAddr::V4(v4) => v4.octets(),
        std::net::IpAddr::V6(_) => panic!("an IPv4 address"),
    };
    server[3] = 0;
    let range = format!("{}/24", std::net::Ipv4Addr::from(server));
    let of_server = |text: String| {
        let only = text
            .lines()
            .map(|line| match line.starts_with("address = ") {
                true => format!("address = \"{}\"", checked.bed.v4("server")),
                false => line.to_owned(),
            });
        format!(
            "{}\n[tun]\nv4 = \"{range}\"\n",
            only.collect::<Vec<_>>().join("\n")
        )
    };
    let words = (BROKEN, &["of [tun]", "no server is left"][..]);
    checked.expect(of_server, "server.address", "server server", words);
}

/// Returns the /64 network of an address.
fn ipnet_of(address: std::net::Ipv6Addr) -> String {
    let network = address.to_bits() & !u128::from(u64::MAX);
    format!("{}/64", std::net::Ipv6Addr::from_bits(network))
}

/// Mistakes of the machine: its kernel, its rights and its limits.
#[test]
#[ignore = "network"]
fn mistakes_of_the_machine_are_named() {
    let checked = Checked::up();
    let text = checked.text("box");
    let by = |before: &str| checked.check_by("box", &text, before);
    let read_only = "mount -o bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    checked.bed.run(
        "box",
        "sysctl",
        &["-qw", "net.ipv4.conf.link2.forwarding=0"],
    );
    by(read_only).expect("forwarding", "link2", (BROKEN, &["cannot be switched on"]));
    checked.bed.run(
        "box",
        "sysctl",
        &["-qw", "net.ipv4.conf.link2.forwarding=1"],
    );
    for key in ["home", "link1", "link2"] {
        let key = format!("net.ipv4.conf.{key}.forwarding=1");
        checked.bed.run("box", "sysctl", &["-qw", &key]);
    }
    checked
        .bed
        .run("box", "sysctl", &["-qw", "net.ipv4.conf.link1.rp_filter=1"]);
    let no_v6 = "net.ipv6.conf.all.forwarding=0";
    checked.bed.run("box", "sysctl", &["-qw", no_v6]);
    let report = by(read_only);
    report.expect("rp_filter", "link1", (WARNINGS, &["strict"]));
    report.expect(
        "forwarding",
        "IPv6",
        (WARNINGS, &["IPv6 packets are not forwarded"]),
    );
    checked
        .bed
        .run("box", "sysctl", &["-qw", "net.ipv4.conf.link1.rp_filter=0"]);

    by("PATH=/nowhere").expect("nft", "nftables", (BROKEN, &["not in PATH"]));
    let no_tun = "mount -t tmpfs none /dev/net";
    by(no_tun).expect("tun.device", "/dev/net/tun", (BROKEN, &["cannot open it"]));

    let ports = "net.ipv4.ip_local_port_range=1024 65000";
    checked.bed.run("box", "sysctl", &["-qw", ports]);
    let words = (WARNINGS, &["1024 to 65000"][..]);
    by("").expect("ports", "net.ipv4.ip_local_port_range", words);
    checked
        .check("box", &format!("shortcut = false\n{text}"))
        .expect_fine();
    let usual = "net.ipv4.ip_local_port_range=32768 60999";
    checked.bed.run("box", "sysctl", &["-qw", usual]);

    let many = text.replace("connections = 1000", "connections = 1048576");
    checked.check("box", &many).expect(
        "descriptors",
        "expert.max_connections",
        (WARNINGS, &["1048832"]),
    );
    let large = text.replace("\"64MiB\"", "\"4000GiB\"");
    checked
        .check("box", &large)
        .expect("memory", "limits.memory", (WARNINGS, &["4096000 MiB"]));
}

/// Another instance, or another program, has the port.
#[test]
#[ignore = "network"]
fn other_instances_in_the_way_are_named() {
    let checked = Checked::with_box();
    let text = checked.text("box");
    let renamed = text.replace("name = \"server\"", "name = \"other\"");
    let report = checked.check("box", &format!("name = \"second\"\n{renamed}"));
    report.expect(
        "instance",
        "tun braid0",
        (WARNINGS, &["another configuration"]),
    );
    let elsewhere = text.replace("control.sock", "other.sock");
    let report = checked.check("box", &elsewhere);
    report.expect(
        "instance",
        "tun braid0",
        (BROKEN, &["the box cannot start"]),
    );
    let other = format!(
        "{elsewhere}\n[tun]\nname = \"braid7\"\nv4 = \"10.99.0.0/24\"\nv6 = \"fd99::/64\"\n"
    );
    let report = checked.check("box", &other);
    report.expect(
        "port",
        "lan home",
        (WARNINGS, &["another box", "intercepts users"]),
    );

    let server = checked.text("server").replace("control.sock", "other.sock");
    let second =
        format!("{server}\n[tun]\nname = \"braid7\"\nv4 = \"10.99.0.0/24\"\nv6 = \"fd99::/64\"\n");
    let listens = format!("listen {}", checked.bed.v4("server"));
    let report = checked.check("server", &second);
    let named = report.with(&["warning"]).any(|f| {
        f["id"] == "port"
            && f["subject"]
                .as_str()
                .is_some_and(|s| s.contains(&listens[7..]))
    });
    assert!(named && report.code == Some(WARNINGS), "{report:#?}");

    // A program of this machine has the port.
    let endpoint = format!("{}:1085", checked.bed.v4("server"));
    let _peer = checked.bed.kernel_peer("server", &["listen", &endpoint]);
    let moved = format!("port = 1085\n{second}");
    let report = checked.check("server", &moved);
    report.expect(
        "port",
        &format!("listen {endpoint}"),
        (WARNINGS, &["another program listens"]),
    );
}

/// Rules at the router that spoil a link, each in its own way.
#[test]
#[ignore = "network"]
fn what_is_wrong_with_a_link_is_named() {
    let checked = Checked::up();
    let bed = &checked.bed;
    let server = bed.v4("server");
    let subject = format!("link link1 to server ({server}:1080)");
    let content = bed.v4("content");
    let cases = [
        (
            "link.mptcp",
            "stripped",
            "filter",
            "reset tcp option mptcp".to_owned(),
        ),
        (
            "link.mptcp",
            "blocked",
            "filter",
            "tcp flags syn tcp option mptcp exists drop".to_owned(),
        ),
        ("link.tcp", "no answer", "filter", "drop".to_owned()),
        (
            "link.tcp",
            "refuses port 1080",
            "filter",
            "reject with tcp reset".to_owned(),
        ),
        (
            "link.portal",
            "a web page answers",
            "nat",
            format!("dnat to {content}:80"),
        ),
    ];
    for (id, words, kind, rule) in cases {
        let priority = if kind == "nat" { "dstnat" } else { "mangle" };
        let hook = if rule.starts_with("reject") {
            "forward"
        } else {
            "prerouting"
        };
        let priority = if hook == "forward" {
            "filter"
        } else {
            priority
        };
        let script = format!(
            "table ip way {{\nchain c {{\ntype {kind} hook {hook} priority {priority};\n\
             iifname link1 ip daddr {server} tcp dport 1080 {rule}\n}}\n}}"
        );
        bed.run("internet", "nft", &[&script]);
        let report = checked.check("box", &checked.text("box"));
        bed.run("internet", "nft", &["delete table ip way"]);
        report.expect(id, &subject, (WARNINGS, &[words]));
    }
    // Large packets vanish.
    let script = "table ip way {\nchain c {\ntype filter hook prerouting priority mangle;\n\
                  iifname link1 meta length > 1400 drop\n}\n}";
    bed.run("internet", "nft", &[script]);
    let report = checked.check("box", &checked.text("box"));
    report.expect(
        "link.mtu",
        &subject,
        (WARNINGS, &["packets above 1400 bytes vanish"]),
    );
    bed.run("internet", "nft", &["delete table ip way"]);
    checked.check("box", &checked.text("box")).expect_fine();
}

/// A server that does not know the box, and a host without a server.
#[test]
#[ignore = "network"]
fn a_server_that_does_not_serve_is_named() {
    let mut checked = Checked::up();
    let stranger = PrivateKey::generate([5; 32]);
    let file = checked.directory("box").join("stranger.key");
    stranger.create(&file).expect("a new file");
    let text = checked.text("box").replace("box.key", "stranger.key");
    let subject = format!("link link2 to server ({}:1080)", checked.bed.v4("server"));
    let report = checked.check("box", &text);
    report.expect(
        "link.server",
        &subject,
        (BROKEN, &["key refused", "no link reaches a server"]),
    );
    checked.bed.testbed.stop("server").expect("it ran");
    let report = checked.check("box", &checked.text("box"));
    report.expect(
        "link.tcp",
        &subject,
        (BROKEN, &["no link reaches a server"]),
    );
}

/// A user other than root is told what could not be checked.
#[test]
#[ignore = "network"]
fn what_root_alone_may_see_is_said_to_others() {
    let checked = Checked::up();
    let text = checked.text("box");
    let file = checked.write("box", &text);
    let mut command = checked.bed.exec("box", "setpriv");
    let none = "-net_admin,-net_raw,-sys_admin,-sys_resource";
    command.args(["--bounding-set", none, "--inh-caps", none]);
    command.arg(env!("CARGO_BIN_EXE_braid"));
    let report = Report::of(command.args(["box", "check", "--json", "-c"]).arg(file));
    report.expect(
        "privileges",
        "this process",
        (UNKNOWN, &["CAP_NET_ADMIN", "the links"]),
    );
    report.expect("link.tcp", "links", (UNKNOWN, &["CAP_NET_RAW"]));
}

/// A start refuses faults that can never heal, by name, and warns of those that may.
#[test]
#[ignore = "network"]
fn a_start_refuses_what_can_never_work_and_warns_of_the_rest() {
    let mut checked = Checked::up();
    let text = checked.text("box");
    let start = |text: &str, before: &str| -> Output {
        let file = checked.write("box", text);
        let braid = env!("CARGO_BIN_EXE_braid");
        let script = format!("{before}\nexec {braid} box -c {}", file.display());
        let mut shell = checked.bed.exec("box", "unshare");
        shell
            .args(["--mount", "sh", "-c", &script])
            .output()
            .expect("it runs")
    };
    let refused = start(&text.replace("\"64MiB\"", "\"256\""), "");
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(
        said.starts_with("braid: limits.memory: 256 bytes"),
        "{said}"
    );
    assert!(
        said.contains("; to do: write a size with its unit"),
        "{said}"
    );
    let refused = start(&text, "mount -t tmpfs none /dev/net");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).starts_with("braid: /dev/net/tun: cannot open it"));

    // The box goes on without its LAN, and reports that.
    let (key, server) = (
        checked.directory("box").join("box.key"),
        checked.directory("server"),
    );
    assert!(key.exists() && server.exists());
    checked
        .bed
        .run("box", "ip", &["link", "set", "home", "name", "away"]);
    checked.bed.start("box");
    let log = checked.bed.log("box");
    assert!(
        log.contains("lan home: there is no such interface"),
        "{log}"
    );
}

mod soak {
    use std::time::{Duration, Instant};

    use super::*;

    /// Dark links take longest: nothing answers.
    #[test]
    #[ignore = "soak"]
    fn a_check_ends_in_time() {
        let mut checked = Checked::up();
        for dark in [&[][..], &["link1"], &["link1", "link2"]] {
            for link in dark {
                checked.bed.set_link(link, "down");
            }
            let begun = Instant::now();
            checked.check("box", &checked.text("box"));
            let took = begun.elapsed();
            assert!(
                took < Duration::from_secs(15),
                "{took:?} with {dark:?} dark"
            );
        }
    }
}
