//! Settings of the last version at their old places, and limits that follow from others.

use braid_proxy::config::{BoxConfig, ConfigError, ServerConfig};
use braid_secure::keys::PrivateKey;

const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

fn own_key() -> PrivateKey {
    PrivateKey::from_seed([1; 32])
}

fn read_box(line: &str) -> Result<BoxConfig, ConfigError> {
    read_box_with(line, "")
}

/// Reads a file with the line `first` before other lines, and the line `last` behind them.
fn read_box_with(first: &str, last: &str) -> Result<BoxConfig, ConfigError> {
    let text = format!(
        "{first}\nlan = \"eth0\"\n[[link]]\ninterface = \"wlan0\"\n[server]\naddress = \"203.0.113.7\"\n\
         key = \"{KEY}\"\n{last}\n"
    );
    BoxConfig::with_key("box.toml", &text, own_key())
}

fn read_server(line: &str) -> Result<ServerConfig, ConfigError> {
    let user = format!("[[user]]\nname = \"box\"\nkey = \"{KEY}\"\n");
    let text = format!("{line}\nlisten = \"203.0.113.7\"\n{user}");
    ServerConfig::with_key("server.toml", &text, own_key())
}

/// An old setting, a value other than its default, and its current name, empty where it is no setting any more.
type Old = (&'static str, &'static str, &'static str);

const OLD_OF_BOX: &[Old] = &[
    ("checksum", "true", "expert.checksum"),
    ("ecn", "\"ask\"", "expert.ecn"),
    ("timeouts.idle", "\"1h\"", "expert.idle_timeout"),
    ("limits.connections", "99", "expert.max_connections"),
    ("limits.per_host", "9", "expert.max_connections_per_host"),
    ("limits.buffer", "\"1MiB\"", "expert.connection_buffer"),
    ("probing.idle", "\"9s\"", "expert.idle_probe_interval"),
    (
        "measuring.most",
        "\"9min\"",
        "expert.max_measurement_interval",
    ),
    ("measuring.gain", "\"30%\"", "expert.server_change_gain"),
    (
        "measuring.quiet",
        "\"22:00-06:00\"",
        "expert.measurement_quiet_hours",
    ),
    ("warm.max", "0", "expert.idle_pool_size"),
    ("warm.metered", "true", "expert.idle_pool_metered"),
    ("timeouts.connect", "\"9s\"", ""),
    ("timeouts.attempt", "\"9s\"", ""),
    ("timeouts.half_closed", "\"9s\"", ""),
    ("limits.handshakes", "9", ""),
    ("probing.busy", "\"9s\"", ""),
    ("probing.failing", "\"9s\"", ""),
    ("probing.timeout", "\"9s\"", ""),
    ("measuring.least", "\"9s\"", ""),
    ("warm.idle", "\"9s\"", ""),
    ("warm.age", "\"9s\"", ""),
];

const OLD_OF_SERVER: &[Old] = &[
    ("checksum", "true", "expert.checksum"),
    ("ecn", "\"off\"", "expert.ecn"),
    ("time_window", "\"1min\"", "expert.time_window"),
    ("timeouts.idle", "\"1h\"", "expert.idle_timeout"),
    ("limits.connections", "99", "expert.max_connections"),
    ("limits.per_user", "9", "expert.max_connections_per_user"),
    ("limits.buffer", "\"1MiB\"", "expert.connection_buffer"),
    ("timeouts.handshake", "\"9s\"", ""),
    ("timeouts.waiting", "\"9s\"", ""),
    ("timeouts.connect", "\"9s\"", ""),
    ("timeouts.half_closed", "\"9s\"", ""),
    ("limits.handshakes", "9", ""),
    ("limits.failures", "9", ""),
    ("limits.waiting", "9", ""),
    ("limits.lookups", "9", ""),
    ("limits.trains", "9", ""),
    ("limits.replay", "9", ""),
];

/// Returns the configuration as text, without its warnings, and the headlines of these.
fn read_either(server: bool, line: &str) -> Result<(String, Vec<String>), ConfigError> {
    let headlines = |warnings: &mut Vec<ConfigError>| {
        let taken = std::mem::take(warnings).into_iter();
        taken.map(|warning| warning.headline()).collect()
    };
    if server {
        let mut c = read_server(line)?;
        let warnings = headlines(&mut c.deprecated);
        return Ok((format!("{c:?}"), warnings));
    }
    let mut c = read_box(line)?;
    let warnings = headlines(&mut c.deprecated);
    Ok((format!("{c:?}"), warnings))
}

/// Each old setting is read for this version, with a warning, and is the same as the one at its new place.
#[test]
fn old_settings_are_still_read() {
    for (server, file, all) in [
        (false, "box.toml", OLD_OF_BOX),
        (true, "server.toml", OLD_OF_SERVER),
    ] {
        let unset = read_either(server, "").unwrap();
        assert_eq!(unset.1, [""; 0]);
        for (old, value, new) in all {
            let (read, warnings) = read_either(server, &format!("{old} = {value}")).unwrap();
            assert_ne!(read, unset.0, "{old}");
            let column = old.find('.').map_or(1, |dot| dot + 2);
            let start = format!("{file}:1:{column}: `{old}` is ");
            let [warning] = &warnings[..] else {
                panic!("{warnings:?}")
            };
            assert!(warning.starts_with(&start), "{warning}");
            if new.is_empty() {
                assert!(warning.contains("no setting any more"), "{warning}");
                continue;
            }
            let line = format!("{new} = {value}");
            let moved = read_either(server, &line).unwrap();
            assert_eq!((&read, &moved.1), (&moved.0, &Vec::new()), "{old}");
            let both = format!("{line}\n{old} = {value}");
            let error = read_either(server, &both).unwrap_err().to_string();
            let said = format!("{file}:2:{column}: `{old}` is the same setting as ");
            assert!(error.starts_with(&said), "{error}");
        }
    }
}

/// A table that does not exist any more is warned of even if it has no key, because the next version refuses it.
/// The other tables may be empty.
#[test]
fn empty_old_tables_are_warned_of() {
    let warnings = |first: &str, last: &str| {
        let config = read_box_with(first, last).unwrap();
        let headlines = config.deprecated.iter().map(ConfigError::headline);
        headlines.collect::<Vec<_>>()
    };
    for table in ["probing", "measuring", "warm"] {
        let said = format!(
            "`{table}` is no table any more: this version skips it, the next one refuses the file"
        );
        let inline = warnings(&format!("{table} = {{}}"), "");
        assert_eq!(inline, [format!("box.toml:1:1: {said}")]);
        let header = warnings("", &format!("[{table}]"));
        assert_eq!(header, [format!("box.toml:8:2: {said}")]);
    }
    for table in ["timeouts", "limits", "expert"] {
        assert_eq!(warnings("", &format!("[{table}]")), [""; 0]);
    }
}

/// More memory has room for more connections and larger ones; what is written stands.
#[test]
fn limits_follow_from_memory() {
    let of_box = |lines: &str| read_box(lines).unwrap();
    let all = |c: BoxConfig| {
        let l = c.limits;
        [l.connections(), l.per_host(), l.handshakes(), l.buffer()]
    };
    let usual = [16_384, 4_096, 4_096, 8 << 20];
    assert_eq!(all(of_box("")), usual);
    assert_eq!(all(of_box("limits.memory = \"16MiB\"")), usual);
    let large = [65_536, 16_384, 16_384, 32 << 20];
    assert_eq!(all(of_box("limits.memory = \"1GiB\"")), large);
    let given = of_box("limits.memory = \"1GiB\"\nexpert.max_connections = 100");
    assert_eq!(all(given), [100, 4_096, 4_096, 32 << 20]);
    let of_server = |lines: &str| {
        let l = read_server(lines).unwrap().limits;
        [l.connections(), l.per_user(), l.handshakes(), l.buffer()]
    };
    assert_eq!(of_server(""), [32_768, 16_384, 4_096, 8 << 20]);
    assert_eq!(
        of_server("limits.memory = \"4GiB\""),
        [131_072, 65_536, 16_384, 32 << 20]
    );
}

#[test]
fn mistakes_at_old_places_are_shown_there() {
    let both = "warm.max = 3\nexpert.idle_pool_size = 3";
    for (lines, words) in [
        (
            both,
            [
                ":1:6: `warm.max` is the same setting as `idle_pool_size` in [expert]",
                "both are given",
            ],
        ),
        (
            "warm.max = \"many\"",
            [":1:12: invalid type", "a whole number from 0 to 1048576"],
        ),
        (
            "limits.per_host = 9223372036854775807",
            [":1:19:", "out of range"],
        ),
        (
            "expert = true\nwarm.max = 3",
            [":2:6: `expert` is no table", "`warm.max` belongs into it"],
        ),
        ("warm = true", [":1:1:", "no setting `warm`"]),
        (
            "measuring.least = \"1h\"",
            [":1:19:", "is 300s, shorter than the shortest, 3600s"],
        ),
        ("measuring.often = 1", [":1:11:", "no setting `often`"]),
        (
            "measuring.gian = 1",
            ["no setting `gian`", "`server_change_gain` in [expert]"],
        ),
    ] {
        let error = read_box(lines).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} in:\n{error}");
        }
    }
}
