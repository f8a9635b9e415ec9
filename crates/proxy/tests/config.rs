//! Configuration files: defaults, and the messages about mistakes.

use core::net::Ipv4Addr;
use core::time::Duration;

use braid_proxy::config::{
    BoxConfig, ConfigError, Gateway, MptcpHosts, Protection, Quic, Select, ServerConfig,
};
use braid_secure::keys::PrivateKey;
use ipnet::IpNet;

const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

fn own_key() -> PrivateKey {
    PrivateKey::from_seed([1; 32])
}

fn read_box(text: &str) -> Result<BoxConfig, ConfigError> {
    BoxConfig::with_key("box.toml", text, own_key())
}

fn read_server(text: &str) -> Result<ServerConfig, ConfigError> {
    ServerConfig::with_key("server.toml", text, own_key())
}

fn minimal_box() -> String {
    format!(
        "lan = \"eth0\"\n[[link]]\ninterface = \"wlan0\"\n[[link]]\ninterface = \"wwan0\"\n\
         [server]\naddress = \"203.0.113.7\"\nkey = \"{KEY}\"\n"
    )
}

fn minimal_server() -> String {
    format!("listen = \"203.0.113.7\"\n[[user]]\nname = \"box\"\nkey = \"{KEY}\"\n")
}

fn box_error(text: &str) -> String {
    read_box(text).unwrap_err().to_string()
}

fn server_error(text: &str) -> String {
    read_server(text).unwrap_err().to_string()
}

#[test]
fn a_minimal_box_gets_defaults() {
    let c = read_box(&minimal_box()).unwrap();
    assert_eq!(c.name, "box");
    assert_eq!(c.lan, ["eth0"]);
    assert_eq!(c.links.len(), 2);
    assert_eq!(c.links[1].name, "wwan0");
    assert_eq!(c.links[1].gateway, Gateway::Auto);
    assert!(c.links[1].v4 && c.links[1].v6 && !c.links[1].backup && !c.links[1].metered);
    assert_eq!(c.servers[0].key, KEY.parse().unwrap());
    assert_eq!(c.servers[0].protection, Protection::Tls);
    assert_eq!(c.key.public(), own_key().public());
    assert_eq!(
        c.servers[0].endpoint_v4(),
        Some("203.0.113.7:1080".parse().unwrap())
    );
    assert_eq!(c.servers[0].endpoint_v6(), None);
    assert_eq!(c.strategy, "adaptive");
    assert_eq!(c.congestion.name(), "bbr");
    assert!(c.shortcut);
    assert_eq!(
        (c.quic, c.mptcp_hosts),
        (Quic::Forward, MptcpHosts::Forward)
    );
    assert_eq!(c.timeouts.relay.idle, Duration::from_secs(7200));
    assert_eq!(c.engine().user_timeout, Duration::from_secs(15 * 60));
    assert_eq!(c.tun.path_v4(0), Ipv4Addr::new(10, 215, 77, 2));
    assert_eq!(c.tun.path_v6(1).to_string(), "fdb7:a1d0:77::3");
}

#[test]
fn a_full_box_is_read() {
    let text = format!(
        "name = \"attic\"\nlan = [\"eth0\", \"eth1\"]\nstrategy = \"minrtt\"\ncongestion = \"reno\"\n\
         quic = \"reject\"\nmptcp_hosts = \"proxy\"\nbypass = [\"10.0.0.0/8\", \"2001:db8::/32\", \"192.0.2.1\"]\n\
         [[link]]\nname = \"dsl\"\ninterface = \"ppp0\"\nv6 = false\nmtu = 1492\n\
         gateway = \"192.168.1.1\"\n\
         [[link]]\ninterface = \"wwan0\"\ngateway = [\"192.168.8.1\", \"fe80::1\"]\n\
         metered = true\nbackup = true\n\
         [[server]]\naddress = [\"203.0.113.7\", \"2001:db8::7\"]\nport = 443\n\
         key = \"{KEY}\"\n\
         [[server]]\naddress = \"203.0.113.8\"\nkey = \"{KEY}\"\nprotection = \"none\"\n\
         [timeouts]\nuser_timeout = \"3min\"\ndrain = 20\n[limits]\nmemory = \"64MB\"\n\
         [expert]\nconnection_buffer = \"4MB\"\nmax_connections_per_host = 7\nidle_timeout = \"10min\"\n\
         idle_probe_interval = \"1min\"\nidle_pool_size = 0\n[tun]\nname = \"mptun\"\nv4 = \"172.30.0.0/16\"\n"
    );
    let c = read_box(&text).unwrap();
    assert_eq!(c.lan.len(), 2);
    assert_eq!(c.congestion.name(), "reno");
    assert_eq!((c.quic, c.mptcp_hosts), (Quic::Reject, MptcpHosts::Proxy));
    assert_eq!(
        c.bypass[2],
        IpNet::new("192.0.2.1".parse().unwrap(), 32).unwrap()
    );
    assert_eq!(c.links[0].mtu, Some(1492));
    let fixed = Gateway::Fixed {
        v4: Some(Ipv4Addr::new(192, 168, 8, 1)),
        v6: Some("fe80::1".parse().unwrap()),
    };
    assert_eq!(c.links[1].gateway, fixed);
    assert!(c.links[1].metered && c.links[1].backup);
    let protection: Vec<_> = c.servers.iter().map(|s| s.protection).collect();
    assert_eq!(protection, [Protection::Tls, Protection::None]);
    assert_eq!(
        c.servers[0].endpoint_v6(),
        Some("[2001:db8::7]:443".parse().unwrap())
    );
    assert_eq!((&c.name[..], &c.servers[1].name[..]), ("attic", "server2"));
    assert_eq!(c.timeouts.relay.idle, Duration::from_secs(600));
    assert_eq!(c.timeouts.drain, Duration::from_secs(20));
    assert_eq!(c.engine().user_timeout, Duration::from_secs(180));
    assert_eq!((c.limits.per_host(), c.limits.memory), (7, 64_000_000));
    assert_eq!(c.engine().send_buffer, 4_000_000);
    assert_eq!(c.tun.name, "mptun");
    assert_eq!(c.tun.path_v4(255), Ipv4Addr::new(172, 30, 1, 1));
    assert_eq!(c.probing.idle, Duration::from_secs(60));
    assert_eq!(c.warm.max, 0);
    assert_eq!(c.deprecated, []);
}

#[test]
fn a_minimal_server_gets_defaults() {
    let c = read_server(&minimal_server()).unwrap();
    assert_eq!(
        c.endpoints().collect::<Vec<_>>(),
        ["203.0.113.7:1080".parse().unwrap()]
    );
    assert_eq!(c.users[0].name, "box");
    assert_eq!(c.users[0].key, KEY.parse().unwrap());
    assert_eq!(c.key.public(), own_key().public());
    assert_eq!(c.time_window, Duration::from_secs(120));
    assert_eq!(c.timeouts.handshake, Duration::from_secs(10));
    assert_eq!(c.engine().user_timeout, Duration::from_secs(15 * 60));
    assert!(!c.unprotected);
    let open = read_server(&format!("unprotected = true\n{}", minimal_server()));
    assert!(open.unwrap().unprotected);
}

/// An IPv4-mapped IPv6 address is read as IPv4.
#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let mapped = |text: String| text.replace("203.0.113.7", "::ffff:203.0.113.7");
    let c = read_server(&mapped(minimal_server())).unwrap();
    assert!(c.endpoints().eq(["203.0.113.7:1080".parse().unwrap()]));
    let c = read_box(&mapped(minimal_box())).unwrap();
    let expected = Some("203.0.113.7:1080".parse().unwrap());
    assert_eq!(c.servers[0].endpoint_v4(), expected);
}

#[test]
fn the_examples_are_valid_and_show_the_defaults() {
    for (example, server) in [("box.toml", false), ("server.toml", true)] {
        let path = format!("{}/../../examples/{example}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        // Every setting in a comment must exist, and have its default value.
        let full: String = text
            .lines()
            .map(|l| match l.strip_prefix("# ") {
                Some(l)
                    if l.starts_with('[') || l.contains(" = ") && !l.contains("name = \"lte\"") =>
                {
                    format!("{l}\n")
                }
                _ => format!("{l}\n"),
            })
            .filter(|l| !l.starts_with("# "))
            .collect();
        let show = |text: &str| match server {
            true => format!("{:?}", read_server(text).unwrap()),
            false => format!("{:?}", read_box(text).unwrap()),
        };
        // Settings whose default cannot be written.
        let unset =
            |line: &&str| ["mtu", "control", "state"].contains(&line.split(' ').next().unwrap());
        let full: Vec<&str> = full.lines().filter(|l| !unset(l)).collect();
        let full = full.join("\n");
        assert_eq!(show(&text), show(&full), "{example}");
    }
}

#[test]
fn an_error_names_file_line_what_was_read_and_what_to_write() {
    let text = minimal_box().replace(
        "lan = \"eth0\"",
        "lan = \"eth0\"\nbypass = [\"10.0.0.300/8\"]",
    );
    assert_eq!(
        box_error(&text),
        "box.toml:2:11: \"10.0.0.300/8\": not an address range\n  \
           2 | bypass = [\"10.0.0.300/8\"]\n    \
             |           ^\n  \
           write instead: a range such as \"10.0.0.0/8\" or \"2001:db8::/32\""
    );
}

/// Returns the text of a box with two servers and settings of the choice among them.
fn choosing(settings: &str) -> String {
    let second = format!("[[server]]\naddress = \"203.0.113.8\"\nkey = \"{KEY}\"\n");
    let first = minimal_box().replace("[server]", "[[server]]\nname = \"paris\"");
    format!("{settings}\n{first}{second}")
}

#[test]
fn servers_have_names_and_are_chosen_by_what_is_said() {
    let read = |settings: &str| read_box(&choosing(settings)).unwrap();
    let names: Vec<String> = read("").servers.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["paris", "server2"]);
    assert_eq!(read("").select, Select::Auto);
    for (name, select) in Select::NAMES {
        assert_eq!(read(&format!("select = \"{name}\"")).select, select);
    }
    let measuring = read(
        "expert = { max_measurement_interval = \"1min\", server_change_gain = \"30%\", \
         measurement_quiet_hours = [\"22:00-06:30\", \"12:00-13:00\"] }",
    )
    .measuring;
    assert_eq!(
        (measuring.most, measuring.gain),
        (Duration::from_secs(60), 0.3)
    );
    let [night, noon] = measuring.quiet[..] else {
        panic!("two spans")
    };
    assert_eq!((night.from, night.to, noon.from), (1320, 390, 720));
}

#[test]
fn mistakes_in_the_choice_of_servers() {
    let cases: &[(&str, &[&str])] = &[
        (
            "select = \"best\"",
            &[":1:10:", "\"best\" is no way to choose", "\"bandwidth\""],
        ),
        (
            "expert.measurement_quiet_hours = \"22-6\"",
            &[":1:34:", "\"22-6\" is no span", "\"22:00-06:00\""],
        ),
        (
            "expert.measurement_quiet_hours = [\"24:00-06:00\"]",
            &[":1:35:", "is no span of hours"],
        ),
        (
            "expert.server_change_gain = \"200%\"",
            &[":1:29:", "\"200%\" is no share", "\"15%\""],
        ),
        (
            "expert.max_measurement_interval = \"1s\"",
            &[":1:35:", "is 1s, shorter than the shortest, 5s"],
        ),
    ];
    for (settings, words) in cases {
        let error = box_error(&choosing(settings));
        for word in *words {
            assert!(error.contains(word), "{word:?} in:\n{error}");
        }
    }
    for (name, what) in [
        ("server2", ":12:11: a second server is called \"server2\""),
        ("auto", "\"auto\" means no server in particular"),
        ("a b", "\"a b\" is no name"),
    ] {
        let error = box_error(&choosing("").replace("\"paris\"", &format!("{name:?}")));
        assert!(error.contains(what), "{what:?} in:\n{error}");
    }
}

#[test]
fn mistakes_in_a_box_file() {
    for (from, to, place, words) in BOX_MISTAKES {
        let text = minimal_box().replace(from, to);
        assert_ne!(text, minimal_box(), "{from} is in the file");
        let error = box_error(&text);
        assert!(
            error.starts_with(&format!("box.toml{}", place.trim_start_matches("box.toml"))),
            "{error}"
        );
        for word in *words {
            assert!(error.contains(word), "{word:?} in:\n{error}");
        }
    }
}

#[test]
fn places_are_seen_from_the_file() {
    let with = |extra: &str| format!("{extra}\n{}", minimal_box());
    let text = with("control = \"box.sock\"\nstate = \"/var/lib/braid\"");
    let c = BoxConfig::with_key("/etc/braid/box.toml", &text, own_key()).unwrap();
    assert_eq!(c.control.unwrap().to_str(), Some("/etc/braid/box.sock"));
    assert_eq!(c.state.unwrap().to_str(), Some("/var/lib/braid"));
    let long = format!("control = \"/{}\"", "x".repeat(107));
    for no_socket in [long.as_str(), "control = \"/\"", "control = \"..\""] {
        let error = box_error(&with(no_socket));
        assert!(error.contains("is no path of a socket"), "{error}");
        assert!(error.contains("at most 107 bytes"), "{error}");
    }
    let text = format!("control = \"s.sock\"\n{}", minimal_server());
    let c = read_server(&text).unwrap();
    assert_eq!(c.control.unwrap().to_str(), Some("s.sock"));
}

/// A server that denies joins at its initial address has to announce another one.
#[test]
fn joins_are_denied_where_others_are_announced() {
    let deny = "expert.deny_join_initial = true\n";
    let two = minimal_server().replace("\"203.0.113.7\"", "[\"203.0.113.7\", \"203.0.113.8\"]");
    let text = format!("{deny}expert.announce = true\n{two}");
    let config = read_server(&text).unwrap();
    assert!(config.engine().deny_join_initial);
    let one = format!("expert.announce = true\n{}", minimal_server());
    for text in [one, two] {
        let error = server_error(&format!("{deny}{text}"));
        let start = "server.toml:1:28: boxes would be told of no address to join at";
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn a_box_needs_links_and_a_server() {
    assert!(box_error("lan = \"eth0\"\n").contains("no [[link]] is given"));
    let no_server = "lan = \"eth0\"\n[[link]]\ninterface = \"wlan0\"\n";
    assert!(box_error(no_server).contains("no [server] is given"));
    let text = minimal_box().replace("203.0.113.7", "2001:db8::7").replace(
        "interface = \"wlan0\"\n[[link]]\ninterface = \"wwan0\"",
        "interface = \"wlan0\"\nv6 = false",
    );
    assert!(box_error(&text).contains("no link has the address family"));
}

#[test]
fn mistakes_in_a_server_file() {
    for (from, to, place, words) in SERVER_MISTAKES {
        let text = minimal_server().replace(from, to);
        let error = server_error(&text);
        assert!(error.starts_with(&format!("server.toml{place}")), "{error}");
        for word in *words {
            assert!(error.contains(word), "{word:?} in:\n{error}");
        }
    }
    let twice = format!(
        "{}[[user]]\nname = \"box\"\nkey = \"{KEY}\"\n",
        minimal_server()
    );
    assert!(server_error(&twice).starts_with("server.toml:6:8: a second user is called \"box\""));
    let twice = twice.replacen("\"box\"", "\"attic\"", 1);
    assert_eq!(
        server_error(&twice),
        format!(
            "server.toml:7:7: \"attic\" has the same key\n  7 | key = \"{KEY}\"\n    |       ^\n  \
             write instead: a key of its own, or one user for both"
        )
    );
}

/// After an upgrade, the error about a removed setting names its replacement.
#[test]
fn settings_that_are_no_more_say_what_took_their_place() {
    let key = format!("key = \"{KEY}\"");
    let server = "write instead: key = \"…\" (the server's public key: braid key show server.key)";
    for (old, shown) in [
        ("secret = \"hunter2hunter2\"", "secret = …"),
        ("secret_file = \"secret\"", "secret_file = \"secret\""),
    ] {
        let name = old.split(' ').next().unwrap();
        assert_eq!(
            box_error(&minimal_box().replace(&key, old)),
            format!("box.toml:8:1: `{name}` is no more\n  8 | {shown}\n    | ^\n  {server}")
        );
        let user = "write instead: key = \"…\" (the user's public key: braid key show box.key)";
        assert_eq!(
            server_error(&minimal_server().replace(&key, old)),
            format!("server.toml:4:1: `{name}` is no more\n  4 | {shown}\n    | ^\n  {user}")
        );
    }
    assert_eq!(
        box_error(&minimal_box().replace(&key, &format!("user = \"u\"\n{key}"))),
        "box.toml:8:1: `user` is no more\n  8 | user = \"u\"\n    | ^\n  write instead: \
         key_file = \"box.key\" at the top: its public key says which user the box is"
    );
    // In other tables the settings never existed.
    for elsewhere in ["secret = \"hunter2\"", "user = \"u\""] {
        let error = box_error(&format!("{elsewhere}\n{}", minimal_box()));
        assert!(
            error.starts_with("box.toml:1:1: there is no setting"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// Errors end up in logs, and secrets in files of earlier versions may still be in use elsewhere.
#[test]
fn no_error_shows_a_secret() {
    let given = format!("key = \"{KEY}\"");
    for wrong in [
        "secret = \"hunter2hunter2\"",
        "secret = \"hunter2hunter2",
        "secret=424242424242",
        "\"secret\" = \"hunter2\"",
    ] {
        let text = minimal_box().replace(&given, wrong);
        let error = box_error(&text);
        assert!(error.starts_with("box.toml:8:"), "{error}");
        assert!(
            !error.contains("hunter2") && !error.contains("4242"),
            "{error}"
        );
    }
    let inline = "lan = \"a\"\nserver = { address = \"x\", secret = \"hunter2\" }\n";
    let error = box_error(inline);
    assert!(
        error.contains("\"x\" is no IP address") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn a_server_listens_on_a_bounded_number_of_addresses() {
    let listen = |list: &[String]| {
        minimal_server().replace(
            "listen = \"203.0.113.7\"",
            &format!("listen = [{}]", list.join(", ")),
        )
    };
    let many: Vec<_> = (1..=17).map(|n| format!("\"203.0.113.{n}\"")).collect();
    assert!(server_error(&listen(&many)).contains("17 addresses are given, 16 are the most"));
    assert!(read_server(&listen(&many[..16])).is_ok());
    let twice = [many[0].clone(), many[0].clone()];
    assert!(server_error(&listen(&twice)).contains("203.0.113.1 is given twice"));
}

#[test]
fn key_files_are_beside_the_configuration() {
    let dir = std::env::temp_dir().join(format!("braid-config-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    own_key().create(&dir.join("own.key")).unwrap();
    std::fs::write(dir.join("bad.key"), "hunter2").unwrap();
    let files = [
        ("box.toml", minimal_box()),
        ("server.toml", minimal_server()),
    ];
    for (name, text) in &files {
        for key in ["own.key", "bad.key", "no.key"] {
            let text = format!("key_file = \"{key}\"\n{text}");
            std::fs::write(dir.join(format!("{key}.{name}")), text).unwrap();
        }
        std::fs::write(dir.join(name), text).unwrap();
    }
    let load = |key: &str| {
        let boxed = BoxConfig::load(&dir.join(format!("{key}box.toml"))).map(|c| c.key);
        let server = ServerConfig::load(&dir.join(format!("{key}server.toml"))).map(|c| c.key);
        [boxed, server].map(|key| key.map(|key| key.public()).map_err(|e| e.to_string()))
    };
    let loaded = ["own.key.", "bad.key.", "no.key.", "", "nothing."].map(load);
    std::fs::remove_dir_all(&dir).unwrap();
    let [own, bad, none, unnamed, nothing] = loaded;
    assert_eq!(own, [Ok(own_key().public()), Ok(own_key().public())]);
    let dir = dir.display();
    for (i, (name, _)) in files.iter().enumerate() {
        let error = bad[i].as_ref().unwrap_err();
        assert_eq!(
            error,
            &format!(
                "{dir}/bad.key.{name}:1:12: {dir}/bad.key holds no private key: it has 7 characters, \
                 but a key has 44\n  1 | key_file = \"bad.key\"\n    |            ^\n  write instead: a file \
                 that holds a private key (make one: braid key new {dir}/bad.key)"
            )
        );
        let error = none[i].as_ref().unwrap_err();
        let start =
            format!("{dir}/no.key.{name}:1:12: cannot read the private key in {dir}/no.key: ");
        assert!(error.starts_with(&start), "{error}");
        let error = unnamed[i].as_ref().unwrap_err();
        let key = name.replace("toml", "key");
        assert_eq!(
            error,
            &format!(
                "{dir}/{name}: `key_file` is missing\n  write instead: key_file = \"{key}\", a file \
                 made by: braid key new {key}"
            )
        );
        let error = nothing[i].as_ref().unwrap_err();
        let said = format!("nothing.{name}: cannot read the file");
        assert!(error.contains(&said), "{error}");
    }
}

/// An edit of a valid file (the text replaced, its replacement), the position that must be reported, and words of
/// the report.
type Mistake = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const SERVER_MISTAKES: &[Mistake] = &[
    (
        "listen = \"203.0.113.7\"",
        "listen = \"0.0.0.0\"",
        ":1:10:",
        &["no address of an interface"],
    ),
    (
        "listen = \"203.0.113.7\"",
        "listen = \"203.0.113.7:80\"",
        ":1:10:",
        &["no IP address"],
    ),
    (
        "listen = \"203.0.113.7\"",
        "listen = \"203.0.113.7\"\nexpert.time_window = \"3d\"",
        ":2:22:",
        &["between 1 s and 1 h"],
    ),
    (
        "listen = \"203.0.113.7\"",
        "listen = \"203.0.113.7\"\nunprotected = \"yes\"",
        ":2:15:",
        &["invalid type", "\"yes\""],
    ),
    (
        "name = \"box\"",
        "name = \"box\"\nunprotected = true",
        ":4:1:",
        &["no setting `unprotected`"],
    ),
    (
        "[[user]]",
        "[[user]]\nname = \"other\"\nkey = \"short\"\n[[user]]",
        ":4:7:",
        &["\"short\" is no public key: it has 5 characters, but a key has 44"],
    ),
    (
        "[[user]]",
        "[[users]]",
        ":2:3:",
        &["no setting `users`", "`user`"],
    ),
    (
        "name = \"box\"",
        "name = \"b x\"",
        ":3:8:",
        &["\"b x\" is no name"],
    ),
    (
        "key =",
        "# key =",
        ":3:8:",
        &["no key is given", "braid key show box.key"],
    ),
];

const BOX_MISTAKES: &[Mistake] = &[
    (
        "lan = \"eth0\"",
        "lam = \"eth0\"",
        ":1:1:",
        &["no setting `lam`", "`lan`"],
    ),
    ("lan = \"eth0\"", "", "box.toml", &["`lan` is missing"]),
    (
        "lan = \"eth0\"",
        "lan = []",
        ":1:7:",
        &["no interface", "lan = \"eth0\""],
    ),
    ("lan = \"eth0\"", "lan = 7", ":1:7:", &["integer `7`"]),
    (
        "[server]",
        "[tun]\nname = \"wwan0\"\n[server]",
        ":7:8:",
        &["\"wwan0\" is a link", "braid0"],
    ),
    (
        "[server]",
        "[expert]\nmax_connections = 0\n[server]",
        ":7:19:",
        &["0 is out of range", "from 1 to 1048576"],
    ),
    (
        "[server]",
        "[timeouts]\nidle = \"99999999d\"\n[server]",
        ":7:8:",
        &["up to a year"],
    ),
    (
        "[server]",
        "[timeouts]\nuser_timeout = \"29s\"\n[server]",
        ":7:16:",
        &["not between 30 s and a day", "\"15min\""],
    ),
    (
        "[server]",
        "[timeouts]\nuser_timeout = \"2d\"\n[server]",
        ":7:16:",
        &["not between 30 s and a day"],
    ),
    (
        "[server]",
        "port = \"1080\"\n[server]",
        ":6:1:",
        &["no setting `port`"],
    ),
    (
        "[server]",
        "[server]\nport = \"1080\"",
        ":7:8:",
        &["invalid type", "a whole number from 0 to 65535"],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"a b\"",
        ":1:7:",
        &["\"a b\" is no name of an interface", "eth0"],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"wlan0\"",
        ":3:13:",
        &["LAN's interface"],
    ),
    ("lan = \"eth0\"", "lan = \"eth0", ":1:", &["lan = \"eth0"]),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nquic = \"drop\"",
        ":2:8:",
        &["\"forward\" or \"reject\""],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nmptcp_hosts = \"join\"",
        ":2:15:",
        &["\"join\" is no way to treat", "\"forward\" or \"proxy\""],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\ncongestion = \"vegas\"",
        ":2:14:",
        &["\"vegas\" is no congestion control", "cubic"],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nstrategy = \"blast\"",
        ":2:12:",
        &["no strategy \"blast\"", "minrtt"],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nname = \"a b\"",
        ":2:8:",
        &["\"a b\" is no name"],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nbypass = [\"10.0.0.1/8\"]",
        ":2:11:",
        &["bits after the prefix", "\"10.0.0.0/8\""],
    ),
    (
        "lan = \"eth0\"",
        "lan = \"eth0\"\nbypass = [\"10.0.0.0/33\"]",
        ":2:11:",
        &["longer than the address"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wlan0\"",
        ":5:13:",
        &["called \"wlan0\""],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wlan0\"\nname = \"x\"",
        ":6:8:",
        &["same link as \"wlan0\""],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\nmtu = 576",
        ":6:7:",
        &["576", "1280"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\nv4 = false\nv6 = false",
        ":7:6:",
        &["no address family"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\ngateway = \"dhcp\"",
        ":6:11:",
        &["\"dhcp\" is no gateway", "\"auto\""],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\ngateway = [\"10.0.0.1\", \"10.0.0.2\"]",
        ":6:11:",
        &["two gateways of one family"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\ngateway = [\"auto\", \"10.0.0.2\"]",
        ":6:11:",
        &["beside"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\nv6 = false\ngateway = \"fe80::1\"",
        ":7:11:",
        &["switched off"],
    ),
    (
        "interface = \"wwan0\"",
        "interface = \"wwan0\"\nmetred = true",
        ":6:1:",
        &["no setting `metred`", "`metered`"],
    ),
    (
        "address = \"203.0.113.7\"",
        "address = \"example.net\"",
        ":7:11:",
        &["\"example.net\" is no IP address"],
    ),
    (
        "address = \"203.0.113.7\"",
        "address = \"0.0.0.0\"",
        ":7:11:",
        &["no address of a host"],
    ),
    (
        "address = \"203.0.113.7\"",
        "address = [\"192.0.2.1\", \"192.0.2.2\"]",
        ":7:11:",
        &["two addresses of one family"],
    ),
    (
        "address = \"203.0.113.7\"",
        "address = \"203.0.113.7\"\nport = 0",
        ":8:8:",
        &["port 0"],
    ),
    (
        "address = \"203.0.113.7\"",
        "address = \"203.0.113.7\"\nport = 70000",
        ":8:8:",
        &["70000"],
    ),
    (
        KEY,
        "short",
        ":8:7:",
        &[
            "\"short\" is no public key: it has 5 characters",
            "braid key show FILE",
        ],
    ),
    (
        KEY,
        "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuEx",
        ":8:7:",
        &["44 characters are not 43 of", "braid key show FILE"],
    ),
    (
        "key = \"",
        "key = 7 # \"",
        ":8:7:",
        &["integer `7`", "a string"],
    ),
    (
        "key =",
        "# key =",
        ":7:11:",
        &["no key is given", "braid key show server.key"],
    ),
    (
        "key =",
        "protection = \"ssl\"\nkey =",
        ":8:14:",
        &["\"ssl\" is no kind of protection", "\"tls\" or \"none\""],
    ),
    (
        "key =",
        "protection = true\nkey =",
        ":8:14:",
        &["boolean `true`", "a string"],
    ),
    (
        "[server]",
        "protection = \"tls\"\n[server]",
        ":6:1:",
        &["no setting `protection`"],
    ),
    (
        "[server]",
        "[timeouts]\nidle = \"2 weeks\"\n[server]",
        ":7:8:",
        &["\"2 weeks\" is no time", "\"2h\""],
    ),
    (
        "[server]",
        "[timeouts]\nidle = 0\n[server]",
        ":7:8:",
        &["no time above zero"],
    ),
    (
        "[server]",
        "[limits]\nmemory = \"1 MiX\"\n[server]",
        ":7:10:",
        &["\"1 MiX\" is no size", "\"64MB\""],
    ),
    (
        "[server]",
        "[limits]\nconections = 5\n[server]",
        ":7:1:",
        &["no setting `conections`", "`max_connections` in [expert]"],
    ),
    (
        "[server]",
        "[expert]\nidle_tmeout = \"1h\"\n[server]",
        ":7:1:",
        &["no setting `idle_tmeout`", "`idle_timeout`"],
    ),
    (
        "[server]",
        "[tun]\nv4 = \"10.0.0.0/30\"\n[server]",
        ":7:6:",
        &["/16 and /27"],
    ),
    (
        "[server]",
        "[tun]\nv4 = \"fd00::/64\"\n[server]",
        ":7:6:",
        &["wrong family"],
    ),
];
