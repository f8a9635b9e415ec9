//! `[[rule]]` and `socks` of `box.toml`: their syntax, and the connections that a rule matches.

use braid_engine::Urgency;
use braid_proxy::BoxConfig;
use braid_proxy::config::Rule;
use braid_proxy::socks::Destination;
use braid_secure::keys::PrivateKey;
use braid_tunnel::Mode;

/// Reads a file whose first lines are `top` and whose last are `bottom`.
fn read(top: &str, bottom: &str) -> Result<BoxConfig, String> {
    let text = format!(
        "{top}\nlan = \"eth0\"\nlink = {{ interface = \"wlan0\" }}\n[server]\n\
         address = \"203.0.113.7\"\nkey = \"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"\n\
         {bottom}"
    );
    BoxConfig::with_key("box.toml", &text, PrivateKey::from_seed([1; 32]))
        .map_err(|error| error.to_string())
}

fn rule(text: &str) -> Rule {
    let mut rules = read("", &format!("[[rule]]\n{text}")).unwrap().rules;
    assert_eq!(rules.len(), 1);
    rules.remove(0)
}

fn address(text: &str) -> Destination {
    Destination::Address(text.parse().unwrap())
}

fn name(text: &str, port: u16) -> Destination {
    Destination::Name(text.to_owned(), port)
}

#[test]
fn a_rule_is_read() {
    let full = rule(
        "port = [443, \"6881-6889\"]\naddress = [\"192.0.2.0/24\", \"2001:db8::1\"]\n\
         domain = \"CDN.Example.\"\nurgency = 7\nstrategy = \"redundant\"\nsize = \"64KiB\"\n\
         mode = \"fastest\"\n",
    );
    let expected = Rule {
        ports: vec![443..=443, 6881..=6889],
        addresses: vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::1/128".parse().unwrap(),
        ],
        domains: vec!["cdn.example".to_owned()],
        urgency: Some(Urgency::LEAST_URGENT),
        strategy: Some("redundant".to_owned()),
        size: Some(65_536),
        mode: Some(Mode::Fastest),
    };
    assert_eq!(full, expected);
    let bare = rule("urgency = 0");
    assert!(bare.ports.is_empty() && bare.addresses.is_empty() && bare.domains.is_empty());
    assert_eq!(bare.urgency, Some(Urgency::MOST_URGENT));
    assert_eq!((bare.strategy, bare.size, bare.mode), (None, None, None));
    assert_eq!(read("", "").unwrap().rules, []);
}

#[test]
fn a_rule_may_have_a_mode_alone() {
    for (name, mode) in [
        ("aggregate", Mode::Aggregate),
        ("fastest", Mode::Fastest),
        ("redundant", Mode::Redundant),
        ("single", Mode::Single),
    ] {
        let rule = rule(&format!("mode = {name:?}"));
        assert_eq!((rule.mode, rule.urgency), (Some(mode), None));
    }
}

#[test]
fn rules_keep_their_order() {
    let text = "[[rule]]\nport = 22\nurgency = 1\n[[rule]]\nurgency = 5\n";
    let rules = read("", text).unwrap().rules;
    let urgencies = rules.iter().map(|r| r.urgency.unwrap().level());
    assert_eq!(urgencies.collect::<Vec<_>>(), [1, 5]);
}

#[test]
fn every_condition_must_hold_and_one_of_its_values() {
    let v4 = address("192.0.2.9:443");
    let all = rule("urgency = 7");
    assert!(all.is_for(&v4, None) && all.is_for(&name("a.example", 1), Some("a.example")));

    let ports = rule("port = [80, \"400-500\"]\nurgency = 7");
    assert!(ports.is_for(&v4, None) && ports.is_for(&name("a.example", 80), None));
    assert!(!ports.is_for(&address("192.0.2.9:81"), None));

    let addresses = rule("address = \"192.0.2.0/24\"\nurgency = 7");
    assert!(addresses.is_for(&v4, Some("a.example")));
    assert!(!addresses.is_for(&address("192.0.3.1:443"), None));
    assert!(!addresses.is_for(&name("192.0.2.9", 443), Some("192.0.2.9")));

    let domains = rule("domain = [\"example\", \"a.test\"]\nurgency = 7");
    for host in ["example", "a.example", "b.a.example", "a.test"] {
        assert!(domains.is_for(&v4, Some(host)), "{host}");
    }
    for host in ["anexample", "test", "ba.test", "example.test"] {
        assert!(!domains.is_for(&v4, Some(host)), "{host}");
    }
    assert!(!domains.is_for(&v4, None), "its name is not known");

    let both = rule("port = 443\ndomain = \"example\"\nurgency = 7");
    assert!(both.is_for(&v4, Some("example")));
    assert!(!both.is_for(&v4, Some("a.test")));
    assert!(!both.is_for(&address("192.0.2.9:80"), Some("example")));
}

#[test]
fn mistakes_in_rules_say_what_was_read_and_what_to_write() {
    let cases: [(&str, &[&str]); 18] = [
        ("port = 0\nurgency = 1", &["0 is no port", "1 to 65535"]),
        ("port = 65536\nurgency = 1", &["65536 is no port"]),
        (
            "port = \"90-80\"\nurgency = 1",
            &["\"90-80\" is no port", "6881-6889"],
        ),
        ("port = []\nurgency = 1", &[":8:8", "no port is given"]),
        ("port = true\nurgency = 1", &["boolean"]),
        (
            "address = \"192.0.2.0/33\"\nurgency = 1",
            &["192.0.2.0/33", "range"],
        ),
        (
            "domain = \"*.example\"\nurgency = 1",
            &["\"*.example\" is no domain", "example.com"],
        ),
        ("domain = \"192.0.2.1\"\nurgency = 1", &["is no domain"]),
        ("domain = \"\"\nurgency = 1", &["is no domain"]),
        (
            "urgency = 8",
            &[":8:11", "8 is no urgency", "0 (most urgent) to 7"],
        ),
        ("urgency = -1", &["-1 is no urgency"]),
        ("urgency = \"high\"", &["\"high\"", "0 (most urgent) to 7"]),
        (
            "strategy = \"fastest\"",
            &["there is no strategy \"fastest\"", "minrtt"],
        ),
        (
            "mode = \"fast\"",
            &[
                ":8:8",
                "\"fast\" is no mode of packets in the tunnel",
                "\"aggregate\" or \"fastest\" or \"redundant\" or \"single\"",
            ],
        ),
        ("mode = 2", &["integer `2`", "a string"]),
        ("size = 0", &["\"0\" is no size above zero", "64MB"]),
        ("size = \"-5kB\"", &["\"-5kB\" is no size"]),
        (
            "port = 443",
            &[":8:8", "the rule sets no hint", "urgency = 7", "mode ="],
        ),
    ];
    for (text, words) in cases {
        let error = read("", &format!("[[rule]]\n{text}")).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{word:?} in:\n{error}");
        }
    }
}

#[test]
fn rules_and_their_conditions_are_bounded() {
    let many = "[[rule]]\nurgency = 1\n";
    assert!(read("", &many.repeat(256)).is_ok());
    let error = read("", &many.repeat(257)).unwrap_err();
    assert!(
        error.contains("257 rules are given, 256 are the most"),
        "{error}"
    );
    let ports = |n| format!("[[rule]]\nurgency = 1\nport = {:?}\n", vec![1; n]);
    assert!(read("", &ports(256)).is_ok());
    let error = read("", &ports(257)).unwrap_err();
    assert!(error.contains("257 values are given"), "{error}");
}

#[test]
fn the_proxy_of_the_lan_listens_where_it_is_told() {
    let listens = |text: &str| read(&format!("socks = {text}"), "").map(|config| config.socks);
    assert_eq!(read("", "").unwrap().socks, []);
    let one = "192.168.1.1:1080".parse().unwrap();
    assert_eq!(listens("\"192.168.1.1:1080\""), Ok(vec![one]));
    let both = vec![one, "[fd00::1]:1080".parse().unwrap()];
    assert_eq!(
        listens("[\"192.168.1.1:1080\", \"[fd00::1]:1080\"]"),
        Ok(both)
    );
    for (text, word) in [
        ("\"192.168.1.1\"", "\"192.168.1.1\" is nowhere to listen"),
        ("\"192.168.1.1:0\"", "192.168.1.1:1080"),
        ("\"224.0.0.1:1080\"", "nowhere to listen"),
        ("1080", "integer `1080`"),
        (
            "[\"10.0.0.1:1\", \"10.0.0.1:1\"]",
            "10.0.0.1:1 is given twice",
        ),
    ] {
        let error = listens(text).unwrap_err();
        assert!(error.contains(word), "{word:?} in:\n{error}");
    }
}
