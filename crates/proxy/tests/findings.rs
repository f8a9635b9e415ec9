//! Mistakes in files that can be read, and the findings about them.

use braid_proxy::config::{BoxConfig, Finding, ServerConfig, Verdict};
use braid_secure::keys::{PrivateKey, PublicKey};

const SERVER: &str = "203.0.113.7";

fn box_key() -> PrivateKey {
    PrivateKey::generate([1; 32])
}

fn server_key() -> PrivateKey {
    PrivateKey::generate([2; 32])
}

/// Returns the key of a third party.
fn other_key() -> PrivateKey {
    PrivateKey::generate([3; 32])
}

/// Returns the text of a private key, to be put in place of a public one.
fn private_text(key: &PrivateKey) -> String {
    key.to_text().to_string()
}

/// Reads a box's file: `top` stands above its links, `servers` after them.
fn boxed(top: &str, link: &str, servers: &str) -> (BoxConfig, String) {
    let text = format!(
        "lan = \"eth0\"\n{top}\n[[link]]\ninterface = \"wlan0\"\n[[link]]\ninterface = \"wwan0\"\n{link}\n\
         {servers}"
    );
    let config = BoxConfig::with_key("box.toml", &text, box_key());
    (config.unwrap_or_else(|e| panic!("{e}")), text)
}

fn usual_server() -> String {
    server(SERVER, &server_key().public().to_string())
}

fn server(address: &str, key: &str) -> String {
    format!("[[server]]\naddress = \"{address}\"\nkey = \"{key}\"\n")
}

fn of_box(top: &str, link: &str, servers: &str) -> Vec<Finding> {
    let (config, text) = boxed(top, link, servers);
    config.findings(&text)
}

/// Returns the findings of a box with `top` above its links.
fn of_top(top: &str) -> Vec<Finding> {
    of_box(top, "", &usual_server())
}

/// Returns the findings of a box with `table` at the end.
fn of_table(table: &str) -> Vec<Finding> {
    of_box("", "", &format!("{}{table}\n", usual_server()))
}

fn of_server(rest: &str, users: &str) -> Vec<Finding> {
    let text = format!("listen = \"{SERVER}\"\n{rest}\n{users}");
    let config = ServerConfig::with_key("server.toml", &text, server_key());
    config.unwrap_or_else(|e| panic!("{e}")).findings(&text)
}

fn user(key: &str) -> String {
    format!("[[user]]\nname = \"attic\"\nkey = \"{key}\"\n")
}

fn usual_user() -> String {
    user(&box_key().public().to_string())
}

/// Asserts that there is exactly one finding, with this verdict, id and subject, all of `words` in its message,
/// and a remedy.
#[track_caller]
fn expect(findings: &[Finding], verdict: Verdict, (id, subject): (&str, &str), words: &[&str]) {
    let [finding] = findings else {
        panic!("{findings:#?}")
    };
    assert_eq!(
        (finding.verdict, finding.id, finding.subject.as_str()),
        (verdict, id, subject),
        "{finding:#?}"
    );
    for word in words {
        assert!(finding.message.contains(word), "{word:?} in {finding:#?}");
    }
    assert!(!finding.remedy.is_empty(), "{finding:#?}");
}

use Verdict::{Failure, Warning};

#[test]
fn valid_files_have_no_findings() {
    assert_eq!(of_top(""), []);
    assert_eq!(of_server("", &usual_user()), []);
    let rules = "[[rule]]\nport = 22\nurgency = 1\n[[rule]]\nport = [22, 443]\nurgency = 2\n\
                 [[rule]]\ndomain = \"a.example\"\nurgency = 7\n[[rule]]\ndomain = \"example\"\nurgency = 6\n\
                 [[rule]]\nurgency = 4\n[limits]\nmemory = \"64MB\"\n[expert]\nconnection_buffer = \"1MiB\"\n\
                 [timeouts]\nuser_timeout = \"1min\"\n";
    assert_eq!(of_table(rules), []);
    assert_eq!(of_top("bypass = [\"10.0.0.0/8\", \"2001:db8::/32\"]"), []);
    let sound = "allow = [\"10.1.0.0/16\", \"64:ff9b::/96\"]\ndeny = [\"10.1.2.0/24\", \"192.0.2.0/24\"]\n\
                 targets = \"198.51.100.1:443\"";
    assert_eq!(of_server(sound, &usual_user()), []);
}

#[test]
fn the_examples_are_sound() {
    for (file, is_box) in [("box.toml", true), ("server.toml", false)] {
        let path = format!("{}/../../examples/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let found = match is_box {
            true => BoxConfig::with_key(file, &text, box_key())
                .unwrap()
                .findings(&text),
            false => ServerConfig::with_key(file, &text, server_key())
                .unwrap()
                .findings(&text),
        };
        assert_eq!(found, [], "{file}");
    }
}

/// Sizes without a unit, or too small.
#[test]
fn sizes_without_a_unit_are_named() {
    for value in ["\"256\"", "256", "\"256 \""] {
        let found = of_table(&format!("[limits]\nmemory = {value}"));
        let words = ["256 bytes", "every connection would hang"];
        expect(&found, Failure, ("limits", "limits.memory"), &words);
        assert!(found[0].remedy.contains("memory = \"256MiB\""));
    }
    let found = of_table("[limits]\nmemory = 300000000");
    expect(
        &found,
        Warning,
        ("unit", "limits.memory"),
        &["300000000 bytes"],
    );
    let found = of_table("[limits]\nmemory = \"2MiB\"");
    expect(
        &found,
        Warning,
        ("limits", "limits.memory"),
        &["16 MiB is expected"],
    );
    for (value, verdict) in [("8", Failure), ("\"8kB\"", Warning)] {
        let found = of_table(&format!("[expert]\nconnection_buffer = {value}"));
        expect(
            &found,
            verdict,
            ("limits", "expert.connection_buffer"),
            &["bytes for a connection"],
        );
    }
    let found = of_table("[expert]\nconnection_buffer = \"1GiB\"");
    expect(
        &found,
        Warning,
        ("limits", "expert.connection_buffer"),
        &["`memory` bounds it"],
    );
    let found = of_table("[[rule]]\nport = 80\nsize = 64");
    expect(&found, Warning, ("unit", "rule.size"), &["64 bytes"]);
    let found = of_server("[limits]\nmemory = \"1\"", &usual_user());
    expect(&found, Failure, ("limits", "limits.memory"), &["1 bytes"]);
}

/// Times without a unit.
#[test]
fn times_without_a_unit_are_named() {
    for (table, key) in [
        ("timeouts", "user_timeout"),
        ("timeouts", "drain"),
        ("expert", "idle_timeout"),
        ("expert", "idle_probe_interval"),
        ("expert", "max_measurement_interval"),
    ] {
        let found = of_table(&format!("[{table}]\n{key} = 30"));
        let subject = format!("{table}.{key}");
        let words = ["30 has no unit", "read as 30 seconds"];
        expect(&found, Warning, ("unit", &subject), &words);
        assert!(found[0].remedy.contains(&format!("{key} = \"30s\"")));
    }
    let found = of_server("expert.time_window = 60", &usual_user());
    expect(
        &found,
        Warning,
        ("unit", "expert.time_window"),
        &["60 seconds"],
    );
    let found = of_table("[expert]\nidle_timeout = \"30ms\"");
    expect(
        &found,
        Warning,
        ("times", "expert.idle_timeout"),
        &["30ms", "users who pause"],
    );
}

/// Settings of the last version, with and without a current place.
#[test]
fn old_settings_are_named_with_their_line() {
    let found = of_top("warm.max = 0");
    let words = ["`warm.max` is `idle_pool_size` in [expert] now"];
    expect(&found, Warning, ("deprecated", "box.toml:2"), &words);
    assert_eq!(
        found[0].remedy,
        "write idle_pool_size = 0 in the table [expert]"
    );
    let found = of_top("timeouts = { attempt = \"3s\" }");
    let words = ["`timeouts.attempt` is no setting any more", "still uses"];
    expect(&found, Warning, ("deprecated", "box.toml:2"), &words);
    assert_eq!(found[0].remedy, "remove the line");
    let found = of_server("time_window = \"1min\"", &usual_user());
    expect(&found, Warning, ("deprecated", "server.toml:2"), &[]);
    assert_eq!(
        found[0].remedy,
        "write time_window = \"1min\" in the table [expert]"
    );
    // Two faults of one line.
    let found = of_table("[timeouts]\nidle = 600");
    let ids: Vec<_> = found.iter().map(|f| (f.id, f.subject.as_str())).collect();
    assert_eq!(
        ids,
        [
            ("unit", "expert.idle_timeout"),
            ("deprecated", "box.toml:12")
        ]
    );
}

/// Addresses of servers inside `[tun]`, and addresses that no server can have.
#[test]
fn addresses_that_no_server_has_are_named() {
    for (address, reason) in [
        ("10.215.77.9", "10.215.77.0/24 of [tun]"),
        ("fdb7:a1d0:77::9", "fdb7:a1d0:77::/64 of [tun]"),
        ("127.0.0.1", "this machine itself"),
        ("::1", "this machine itself"),
        ("169.254.1.1", "one link only"),
        ("255.255.255.255", "many hosts"),
    ] {
        let key = server_key().public().to_string();
        let found = of_box("", "", &server(address, &key));
        let words = [address, reason, "no server is left"];
        expect(
            &found,
            Failure,
            ("server.address", "server server1"),
            &words,
        );
        // Another server remains.
        let both = format!("{}{}", server(address, &key), usual_server());
        let found = of_box("", "", &both);
        expect(
            &found,
            Warning,
            ("server.address", "server server1"),
            &[reason],
        );
    }
    let text = boxed("", "", &usual_server()).1;
    for unspecified in ["0.0.0.0", "::"] {
        let text = text.replace(SERVER, unspecified);
        let error = BoxConfig::with_key("box.toml", &text, box_key()).unwrap_err();
        assert!(
            error.to_string().contains("no address of a host"),
            "{error}"
        );
    }
}

/// Two servers with the same address.
#[test]
fn servers_in_one_place_are_named() {
    let (key, other) = (
        server_key().public().to_string(),
        other_key().public().to_string(),
    );
    let both = format!("{}{}", server(SERVER, &key), server(SERVER, &other));
    let found = of_box("", "", &both);
    let words = ["203.0.113.7:1080", "server server1 too", "another key"];
    expect(&found, Warning, ("server.twice", "server server2"), &words);

    let same = format!("{}{}", server(SERVER, &key), server(SERVER, &key));
    let found = of_box("", "", &same);
    expect(
        &found,
        Warning,
        ("never.server", "server server2"),
        &["is server server1 already"],
    );

    let clear = format!("{same}protection = \"none\"\n");
    let found = of_box("", "", &clear);
    expect(
        &found,
        Warning,
        ("never.server", "server server2"),
        &["protected there"],
    );

    // Servers that share one of two addresses.
    let list = "[[server]]\naddress = [\"203.0.113.7\", \"2001:db8::7\"]\n";
    let two = format!("{list}key = \"{key}\"\n{}", server("2001:db8::7", &other));
    let found = of_box("", "", &two);
    expect(
        &found,
        Warning,
        ("server.twice", "server server2"),
        &["[2001:db8::7]:1080"],
    );

    let ports = format!(
        "{}{}port = 1081\n",
        server(SERVER, &key),
        server(SERVER, &other)
    );
    assert_eq!(of_box("", "", &ports), []);
}

/// The box's own keys, and private keys, in place of a server's public key.
#[test]
fn keys_in_the_place_of_the_servers_are_named() {
    let cases = [
        (box_key().public().to_string(), "box's own public key"),
        (private_text(&box_key()), "box's own private key"),
        (private_text(&server_key()), "most likely a private one"),
        (private_text(&other_key()), "most likely a private one"),
    ];
    for (key, words) in cases {
        let found = of_box("", "", &server(SERVER, &key));
        expect(
            &found,
            Failure,
            ("server.key", "server server1"),
            &[words, "no server is left"],
        );
        assert!(
            !found[0].to_string().contains(&key) || words.contains("public"),
            "{found:?}"
        );
    }
}

/// The server's own keys, and private keys, in place of a user's public key.
#[test]
fn keys_in_the_place_of_users_are_named() {
    let cases = [
        (server_key().public().to_string(), "server's own public key"),
        (private_text(&server_key()), "server's own private key"),
        (private_text(&box_key()), "most likely a private one"),
    ];
    for (key, words) in cases {
        let found = of_server("", &user(&key));
        expect(
            &found,
            Failure,
            ("user.key", "user attic"),
            &[words, "no user is left"],
        );
        let other = user(&other_key().public().to_string()).replace("attic", "cellar");
        let found = of_server("", &format!("{}{other}", user(&key)));
        expect(&found, Warning, ("user.key", "user attic"), &[words]);
    }
}

/// A public key in place of the private one.
#[test]
fn a_public_key_in_the_key_file_is_found() {
    let with = |key: &PublicKey| {
        let key = PrivateKey::from_text(&key.to_string()).unwrap();
        let text = boxed("", "", &usual_server()).1;
        BoxConfig::with_key("box.toml", &text, key)
            .unwrap()
            .findings(&text)
    };
    let found = with(&box_key().public());
    expect(
        &found,
        Warning,
        ("key.private", "key_file"),
        &["may hold a public key"],
    );
    let found = with(&server_key().public());
    expect(
        &found,
        Failure,
        ("key.private", "key_file"),
        &["the public key of server1"],
    );

    let text = format!("listen = \"{SERVER}\"\n{}", usual_user());
    let key = PrivateKey::from_text(&box_key().public().to_string()).unwrap();
    let found = ServerConfig::with_key("server.toml", &text, key)
        .unwrap()
        .findings(&text);
    expect(
        &found,
        Failure,
        ("key.private", "key_file"),
        &["the public key of user attic"],
    );
}

/// Gateways that no router can have, and two links with the same gateway.
#[test]
fn gateways_that_lead_nowhere_are_named() {
    for (gateway, reason) in [
        ("0.0.0.0", "no address in particular"),
        ("10.215.77.1", "10.215.77.0/24 of [tun]"),
        (SERVER, "the server server1"),
        ("::1", "this machine itself"),
    ] {
        let found = of_box("", &format!("gateway = \"{gateway}\""), &usual_server());
        expect(
            &found,
            Warning,
            ("link.gateway", "link wwan0"),
            &[gateway, reason],
        );
    }
    assert_eq!(of_box("", "gateway = \"fe80::1\"", &usual_server()), []);

    let same = "gateway = [\"192.168.1.1\", \"fe80::1\"]\n[[link]]\nname = \"lte\"\ninterface = \"wwan0\"\n\
                gateway = \"192.168.1.1\"";
    let found = of_box("", same, &usual_server());
    expect(
        &found,
        Warning,
        ("link.same", "link lte"),
        &["192.168.1.1", "link wwan0 too"],
    );
}

/// Entries of `bypass` that never match.
#[test]
fn bypasses_that_never_match_are_named() {
    let found = of_top("bypass = [\"10.0.0.0/8\", \"10.1.0.0/16\"]");
    let words = ["10.0.0.0/8 has it already"];
    expect(
        &found,
        Warning,
        ("never.bypass", "bypass 10.1.0.0/16"),
        &words,
    );
    let found = of_top("bypass = [\"10.1.0.0/16\", \"10.0.0.0/8\"]");
    expect(
        &found,
        Warning,
        ("never.bypass", "bypass 10.1.0.0/16"),
        &words,
    );
    let found = of_top("bypass = [\"2001:db8::/32\", \"2001:db8::/32\"]");
    expect(
        &found,
        Warning,
        ("never.bypass", "bypass 2001:db8::/32"),
        &["already"],
    );
    for fixed in ["127.0.0.1/32", "0.0.0.0/32", "fe80::/16", "203.0.113.7/32"] {
        let found = of_top(&format!("bypass = \"{fixed}\""));
        let subject = format!("bypass {fixed}");
        expect(
            &found,
            Warning,
            ("never.bypass", &subject),
            &["in any case"],
        );
    }
    for all in ["0.0.0.0/0", "::/0"] {
        let found = of_top(&format!("bypass = \"{all}\""));
        let subject = format!("bypass {all}");
        expect(
            &found,
            Warning,
            ("never.bypass", &subject),
            &["connection is aggregated"],
        );
    }
}

/// Returns the findings of a box with these rules.
fn rules(rules: &[&str]) -> Vec<Finding> {
    let tables = rules
        .iter()
        .map(|rule| format!("[[rule]]\n{rule}\nurgency = 1\n"));
    of_table(&tables.collect::<String>())
}

/// Rules that earlier rules shadow.
#[test]
fn rules_that_never_match_are_named() {
    for (all, number) in [
        (&["port = 443", "port = 443"][..], "rule 1 before"),
        (&["", "port = 443"], "rule 1 before"),
        (
            &["port = \"1-1000\"", "port = [22, \"80-90\"]"],
            "rule 1 before",
        ),
        (
            &["port = [\"1-50\", \"51-99\"]", "port = \"40-60\""],
            "rule 1 before",
        ),
        (
            &["port = 22", "port = 443", "port = [22, 443]"],
            "rule 1 and 2 before",
        ),
        (
            &[
                "address = \"192.0.2.0/24\"",
                "address = \"192.0.2.9\"\nport = 1",
            ],
            "rule 1 before",
        ),
        (
            &["domain = \"example.com\"", "domain = \"a.example.com\""],
            "rule 1 before",
        ),
    ] {
        let found = rules(all);
        let subject = format!("rule {}", all.len());
        expect(
            &found,
            Warning,
            ("never.rule", &subject),
            &[number, "never matches"],
        );
    }
    for sound in [
        &["port = 443", "port = \"442-443\""][..],
        &["port = [\"1-50\", \"52-99\"]", "port = \"40-60\""],
        &["domain = \"a.example.com\"", "domain = \"example.com\""],
        &["domain = \"ample.com\"", "domain = \"example.com\""],
        &[
            "port = 1\naddress = \"192.0.2.0/24\"",
            "address = \"192.0.2.9\"",
        ],
        &["domain = \"example.com\"", ""],
    ] {
        assert_eq!(rules(sound), [], "{sound:?}");
    }
}

/// Rules for destinations that are only forwarded.
#[test]
fn rules_for_what_is_forwarded_are_named() {
    for address in ["127.0.0.1", SERVER, "0.0.0.0"] {
        let found = rules(&[&format!("address = \"{address}\"")]);
        expect(
            &found,
            Warning,
            ("never.rule", "rule 1"),
            &[address, "never matches"],
        );
    }
    let bypassed = "bypass = \"192.0.2.0/24\"";
    let rule = format!(
        "{}[[rule]]\naddress = \"192.0.2.7\"\nurgency = 1\n",
        usual_server()
    );
    let found = of_box(bypassed, "", &rule);
    expect(
        &found,
        Warning,
        ("never.rule", "rule 1"),
        &["192.0.2.0/24 is in `bypass`"],
    );
    // SOCKS clients reach these destinations.
    let socks = format!("{bypassed}\nsocks = \"192.168.1.1:1080\"");
    assert_eq!(of_box(&socks, "", &rule), []);
}

/// Modes of packets in the tunnel that change nothing.
#[test]
fn modes_without_effect_are_named() {
    let of = |top: &str, rule: &str| {
        let rule = format!("{}[[rule]]\n{rule}\n", usual_server());
        of_box(top, "", &rule)
    };
    let forward = "datagrams = \"forward\"";
    for (top, rule, words) in [
        (
            forward,
            "mode = \"single\"",
            ["mode = \"single\"", "`datagrams = \"forward\"`"],
        ),
        (
            "",
            "domain = \"example.com\"\nmode = \"fastest\"",
            ["mode = \"fastest\"", "which show no name"],
        ),
        (
            "",
            "mode = \"redundant\"\nurgency = 3",
            ["urgency 0 to 2, and the rule sets 3", "it copies none"],
        ),
    ] {
        let found = of(top, rule);
        expect(&found, Warning, ("never.rule", "rule 1"), &words);
    }
    for rule in [
        "mode = \"redundant\"",
        "mode = \"redundant\"\nurgency = 2",
        "mode = \"fastest\"\nurgency = 7\nport = 5060",
        "domain = \"example.com\"\nurgency = 7",
    ] {
        assert_eq!(of("", rule), [], "{rule}");
    }
}

/// Entries of a server's lists that never match.
#[test]
fn destinations_that_never_match_are_named() {
    let of = |lists: &str| of_server(lists, &usual_user());
    let found = of("allow = \"10.1.0.0/16\"\ndeny = \"10.0.0.0/8\"");
    expect(
        &found,
        Warning,
        ("never.list", "allow 10.1.0.0/16"),
        &["10.0.0.0/8", "takes precedence"],
    );
    for wide in ["0.0.0.0/0", "93.184.216.0/24", "8.0.0.0/6"] {
        let found = of(&format!("allow = \"{wide}\""));
        let subject = format!("allow {wide}");
        expect(
            &found,
            Warning,
            ("never.list", &subject),
            &["it opens nothing"],
        );
    }
    let found = of("deny = [\"192.0.2.0/24\", \"192.0.2.7\"]");
    expect(
        &found,
        Warning,
        ("never.list", "deny 192.0.2.7/32"),
        &["already"],
    );
    let found = of("deny = \"::/0\"");
    expect(
        &found,
        Warning,
        ("never.list", "deny ::/0"),
        &["no IPv6 destination"],
    );
    for (target, reason) in [
        ("127.0.0.1:80", "this machine itself"),
        ("203.0.113.7:80", "this server"),
    ] {
        let found = of(&format!("targets = \"{target}\""));
        let subject = format!("target {target}");
        expect(&found, Warning, ("targets", &subject), &[reason]);
    }
}

/// Listening addresses inside `[tun]`, or that no box reaches.
#[test]
fn listening_addresses_that_lead_nowhere_are_named() {
    for (listen, reason) in [
        ("10.215.78.5", "10.215.78.0/24 of [tun]"),
        ("fdb7:a1d0:78::5", "fdb7:a1d0:78::/64 of [tun]"),
        ("127.0.0.1", "this machine itself"),
    ] {
        let text = format!("listen = \"{listen}\"\n{}", usual_user());
        let config = ServerConfig::with_key("server.toml", &text, server_key()).unwrap();
        let subject = format!("listen {listen}");
        let words = [reason, "no address is left"];
        expect(
            &config.findings(&text),
            Failure,
            ("listen", &subject),
            &words,
        );
    }
}

#[test]
fn a_proxy_inside_of_the_device_is_found() {
    let found = of_top("socks = \"10.215.77.1:1080\"");
    expect(
        &found,
        Warning,
        ("socks", "socks 10.215.77.1:1080"),
        &["10.215.77.0/24 of [tun]"],
    );
}
