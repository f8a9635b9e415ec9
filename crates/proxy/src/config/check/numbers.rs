//! Checks of times and sizes: a missing unit, or an implausible value.

use core::time::Duration;

use braid_units::value;
use toml::{Table, Value};

use super::super::moved;
use super::Finding;

/// Settings that are times, by their table.
const TIMES: [(&str, &[&str]); 2] = [
    ("timeouts", &["user_timeout", "drain"]),
    (
        "expert",
        &[
            "idle_timeout",
            "idle_probe_interval",
            "max_measurement_interval",
            "time_window",
        ],
    ),
];
/// Settings that are sizes.
const SIZES: [(&str, &[&str]); 3] = [
    ("limits", &["memory"]),
    ("expert", &["connection_buffer"]),
    ("rule", &["size"]),
];

/// Minimum memory for all connections. The engine allocates blocks of 32 KiB, and a connection holds several
/// blocks in each direction, so less memory has no room for even a few connections.
const MIN_MEMORY: usize = 1 << 20;
/// Memory below which a warning is due: the windows of a few connections cannot fill an access link. A guess.
const LOW_MEMORY: usize = 16 << 20;
/// Minimum buffer of a connection: greeting, metadata and request of a user have to fit. A guess.
const MIN_BUFFER: usize = 4 << 10;
/// Buffer below which a warning is due: at a round-trip time of 50 ms, a window of 64 KiB allows 10 Mbit/s.
const LOW_BUFFER: usize = 64 << 10;

/// Finds settings whose value is a number without a unit. `old` are the settings of the last version.
pub(super) fn without_unit(text: &str, old: &[moved::Row]) -> Vec<Finding> {
    // A file that cannot be parsed is refused elsewhere, with the position of the mistake.
    let Some(table) = moved::current(text, old) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (section, keys) in TIMES {
        each(&table, section, keys, |name, value| {
            if let Some(number) = bare(value) {
                found.push(bare_time(name, number));
            }
        });
    }
    for (section, keys) in SIZES {
        each(&table, section, keys, |name, value| {
            if let Some(number) = bare(value) {
                found.push(bare_size(name, number));
            }
        });
    }
    found
}

/// Calls `on_value` with name and value of each of `keys` in `section`, a table that may occur several times.
fn each(table: &Table, section: &str, keys: &[&str], mut on_value: impl FnMut(&str, &Value)) {
    let mut visit = |table: &Table| {
        for key in keys {
            if let Some(value) = table.get(*key) {
                on_value(&format!("{section}.{key}"), value);
            }
        }
    };
    match table.get(section) {
        Some(Value::Table(table)) => visit(table),
        Some(Value::Array(tables)) => tables.iter().filter_map(Value::as_table).for_each(visit),
        _ => {}
    }
}

/// Returns the number of a value that has no unit, or `None`.
fn bare(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::String(text) => {
            let (number, unit) = value::number_and_unit(text)?;
            unit.is_empty().then_some(number)
        }
        _ => None,
    }
}

fn bare_time(name: &str, number: f64) -> Finding {
    let key = name.rsplit('.').next().unwrap_or(name);
    let message = format!(
        "{number} has no unit and was read as {number} seconds, while a time with its unit is expected"
    );
    let remedy = format!("write {key} = \"{number}s\", or \"{number}ms\" if that is meant");
    Finding::warning(("unit", name), message, remedy)
}

fn bare_size(name: &str, number: f64) -> Finding {
    let key = name.rsplit('.').next().unwrap_or(name);
    let message = format!(
        "{number} has no unit and was read as {number} bytes, while a size with its unit is expected"
    );
    let remedy = format!("write {key} = \"{number}MiB\", or \"{number}B\" if that is meant");
    Finding::warning(("unit", name), message, remedy)
}

/// Checks `limits.memory` and `expert.connection_buffer`, which a box and a server have.
pub(super) fn of_limits(buffer: usize, memory: usize) -> Vec<Finding> {
    let mut found = Vec::new();
    let at = |setting| ("limits", setting);
    let write = |key: &str, size: &str| {
        format!("write a size with its unit, such as {key} = \"{size}\", or leave it out")
    };
    if memory < MIN_MEMORY {
        let message = format!(
            "{memory} bytes for all connections together, at least 1 MiB is needed: every connection \
             would hang"
        );
        found.push(Finding::failure(
            at("limits.memory"),
            message,
            write("memory", "256MiB"),
        ));
    } else if memory < LOW_MEMORY {
        let message = format!(
            "{memory} bytes for all connections together, at least 16 MiB is expected: a few connections \
             use it up, and the others become slow"
        );
        found.push(Finding::warning(
            at("limits.memory"),
            message,
            write("memory", "256MiB"),
        ));
    }
    if buffer < MIN_BUFFER {
        let message = format!(
            "{buffer} bytes for a connection, at least 4 KiB is needed: no request of a user would fit"
        );
        found.push(Finding::failure(
            at("expert.connection_buffer"),
            message,
            write("connection_buffer", "8MiB"),
        ));
    } else if buffer < LOW_BUFFER {
        let message = format!(
            "{buffer} bytes for a connection, at least 64 KiB is expected: at a round trip of 50 ms that \
             is {:.1} Mbit/s at most",
            buffer as f64 * 8.0 / 0.05 / 1e6
        );
        found.push(Finding::warning(
            at("expert.connection_buffer"),
            message,
            write("connection_buffer", "8MiB"),
        ));
    } else if buffer > memory && memory >= LOW_MEMORY {
        let message = format!(
            "a connection may hold {buffer} bytes, all together {memory}: `memory` bounds it first, and \
             links with a long round trip are not filled"
        );
        let remedy =
            "make `memory` 8 times `connection_buffer` at least, or `connection_buffer` smaller";
        found.push(Finding::warning(
            at("expert.connection_buffer"),
            message,
            remedy,
        ));
    }
    found
}

/// Returns a warning about a timeout that is shorter than `min`, if it is. `harm` is the effect on users.
pub(super) fn too_short(name: &str, time: Duration, min: Duration, harm: &str) -> Option<Finding> {
    if time >= min {
        return None;
    }
    let message = format!("{time:?}, at least {min:?} is expected: {harm}");
    let remedy = "write a time with its unit, such as \"10s\", or leave it out";
    Some(Finding::warning(("times", name), message, remedy))
}

/// Adds to `found` the findings about `bare` numbers, except about settings that have another finding already. The
/// missing unit most likely is the cause of the other finding, which already reports the setting.
pub(super) fn add_bare(found: &mut Vec<Finding>, bare: Vec<Finding>) {
    for finding in bare {
        if !found.iter().any(|f| f.subject == finding.subject) {
            found.push(finding);
        }
    }
}
