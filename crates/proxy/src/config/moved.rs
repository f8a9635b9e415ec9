//! Settings of the last version that have moved to the table `[expert]`, or have no successor.
//!
//! This version reads them at the old place, with a warning. The next version refuses them. The module moves them
//! before the file is deserialized, so that the structs of the file have only the current settings. Values keep
//! their positions, so errors show the place where a value is written.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use braid_units::ConfigError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::common::Source;
use super::error::{closest, from_toml};

/// The table of settings that operators hardly need.
const EXPERT: &str = "expert";

/// The current place of an old setting.
#[derive(Debug, Clone, Copy)]
pub(super) enum Now {
    /// This key in `[expert]`.
    Expert(&'static str),
    /// No place: the value is a constant now, or follows from other settings.
    Nowhere,
}

use Now::{Expert, Nowhere};

/// An old setting: its table (empty for the root) and key, and its current place.
pub(super) type Row = (&'static str, &'static str, Now);

/// The old settings of a box.
pub(super) const OF_BOX: &[Row] = &[
    ("", "checksum", Expert("checksum")),
    ("", "ecn", Expert("ecn")),
    ("timeouts", "connect", Nowhere),
    ("timeouts", "attempt", Nowhere),
    ("timeouts", "idle", Expert("idle_timeout")),
    ("timeouts", "half_closed", Nowhere),
    ("limits", "connections", Expert("max_connections")),
    ("limits", "per_host", Expert("max_connections_per_host")),
    ("limits", "handshakes", Nowhere),
    ("limits", "buffer", Expert("connection_buffer")),
    ("probing", "busy", Nowhere),
    ("probing", "idle", Expert("idle_probe_interval")),
    ("probing", "failing", Nowhere),
    ("probing", "timeout", Nowhere),
    ("measuring", "least", Nowhere),
    ("measuring", "most", Expert("max_measurement_interval")),
    ("measuring", "gain", Expert("server_change_gain")),
    ("measuring", "quiet", Expert("measurement_quiet_hours")),
    ("warm", "max", Expert("idle_pool_size")),
    ("warm", "idle", Nowhere),
    ("warm", "age", Nowhere),
    ("warm", "metered", Expert("idle_pool_metered")),
];

/// The old settings of a server.
pub(super) const OF_SERVER: &[Row] = &[
    ("", "checksum", Expert("checksum")),
    ("", "ecn", Expert("ecn")),
    ("", "announce", Expert("announce")),
    ("", "deny_join_initial", Expert("deny_join_initial")),
    ("", "time_window", Expert("time_window")),
    ("timeouts", "handshake", Nowhere),
    ("timeouts", "waiting", Nowhere),
    ("timeouts", "connect", Nowhere),
    ("timeouts", "idle", Expert("idle_timeout")),
    ("timeouts", "half_closed", Nowhere),
    ("limits", "connections", Expert("max_connections")),
    ("limits", "per_user", Expert("max_connections_per_user")),
    ("limits", "handshakes", Nowhere),
    ("limits", "failures", Nowhere),
    ("limits", "waiting", Nowhere),
    ("limits", "lookups", Nowhere),
    ("limits", "trains", Nowhere),
    ("limits", "replay", Nowhere),
    ("limits", "buffer", Expert("connection_buffer")),
];

/// Tables of old settings that have current settings too (the empty name is the root). The other tables do not
/// exist any more.
const KEPT_TABLES: [&str; 3] = ["", "timeouts", "limits"];

/// The content of a file.
#[derive(Debug)]
pub(super) struct Parsed<C, O> {
    /// The current settings.
    pub current: C,
    /// The values of old settings without a successor.
    pub retired: O,
    /// A warning for each old setting in the file.
    pub deprecated: Vec<ConfigError>,
}

impl Source<'_> {
    /// Reads a file that may have old settings, which `rows` lists.
    pub(super) fn parse_with_old<C: DeserializeOwned, O: DeserializeOwned>(
        &self,
        rows: &[Row],
    ) -> Result<Parsed<C, O>, ConfigError> {
        let is_kept = |row: &&Row| KEPT_TABLES.contains(&row.0);
        let kept: Vec<Row> = rows.iter().filter(is_kept).copied().collect();
        let explain = |e: toml::de::Error| {
            from_toml(self.file, self.text, &e, |unknown| nearest(unknown, &kept))
        };
        let mut root = DeTable::parse(self.text).map_err(explain)?;
        let span = root.span();
        let Moved {
            retired,
            deprecated,
        } = update(self, root.get_mut(), rows)?;
        Ok(Parsed {
            current: C::deserialize(Deserializer::from(root)).map_err(explain)?,
            retired: O::deserialize(Deserializer::from(Spanned::new(span, retired)))
                .map_err(explain)?,
            deprecated,
        })
    }
}

/// Returns `text` with its old settings at their current places, and without old settings that have no successor.
/// `None` if the text cannot be read.
pub(super) fn current(text: &str, rows: &[Row]) -> Option<toml::Table> {
    let mut root = DeTable::parse(text).ok()?;
    update(&Source { file: "", text }, root.get_mut(), rows).ok()?;
    toml::Table::deserialize(Deserializer::from(root)).ok()
}

/// The result of an update.
struct Moved<'i> {
    /// The values of settings without a successor, by their old names.
    retired: DeTable<'i>,
    deprecated: Vec<ConfigError>,
}

/// Moves the old settings of `root` to their current places.
fn update<'i>(
    src: &Source<'_>,
    root: &mut DeTable<'i>,
    rows: &[Row],
) -> Result<Moved<'i>, ConfigError> {
    let mut retired = DeTable::new();
    let mut deprecated = warn_of_empty_tables(src, root, rows);
    for row in rows {
        let Some((key, value)) = take(root, row) else {
            continue;
        };
        deprecated.push(warning(src, row, key.span(), value.span()));
        match row.2 {
            Expert(name) => insert(src, root, (row, name), (key.span(), value))?,
            Nowhere => {
                retired.insert(Spanned::new(key.span(), name_of(row).into()), value);
            }
        }
    }
    remove_old_tables(src, root, rows)?;
    Ok(Moved {
        retired,
        deprecated,
    })
}

/// Removes the old setting of a row from its table, and returns its key and value if it was there.
fn take<'i>(
    root: &mut DeTable<'i>,
    (table, key, _): &Row,
) -> Option<(Spanned<Cow<'i, str>>, Spanned<DeValue<'i>>)> {
    if table.is_empty() {
        return root.remove_entry(*key);
    }
    match root.get_mut(*table)?.get_mut() {
        DeValue::Table(entries) => entries.remove_entry(*key),
        _ => None,
    }
}

/// Adds to `[expert]` a setting that was written at the position `at`.
fn insert<'i>(
    src: &Source<'_>,
    root: &mut DeTable<'i>,
    (row, name): (&Row, &'static str),
    (at, value): (Range<usize>, Spanned<DeValue<'i>>),
) -> Result<(), ConfigError> {
    // A file without `[expert]` gets the table at the position of the setting, for errors inside it.
    if !root.contains_key(EXPERT) {
        let empty = DeValue::Table(DeTable::new());
        root.insert(
            Spanned::new(at.clone(), EXPERT.into()),
            Spanned::new(at.clone(), empty),
        );
    }
    let expert = root.get_mut(EXPERT).map(Spanned::get_mut);
    let Some(DeValue::Table(expert)) = expert else {
        let message = format!(
            "`{EXPERT}` is no table, and `{}` belongs into it",
            name_of(row)
        );
        return Err(src.error(&Spanned::new(at, ()), message, "[expert]"));
    };
    if expert.contains_key(name) {
        let message = format!(
            "`{}` is the same setting as `{name}` in [expert], and both are given",
            name_of(row)
        );
        let hint = format!("`{name}` in [expert] alone");
        return Err(src.error(&Spanned::new(at, ()), message, hint));
    }
    expert.insert(Spanned::new(at, name.into()), value);
    Ok(())
}

/// Removes the tables that do not exist any more. The old settings have left these tables already, so a remaining
/// key is a mistake.
fn remove_old_tables(
    src: &Source<'_>,
    root: &mut DeTable<'_>,
    rows: &[Row],
) -> Result<(), ConfigError> {
    for table in old_tables(rows) {
        let Some(DeValue::Table(rest)) = root.get(table).map(Spanned::get_ref) else {
            continue;
        };
        if let Some(unknown) = rest.keys().next() {
            let of_table: Vec<Row> = rows.iter().filter(|row| row.0 == table).copied().collect();
            let hint = nearest(unknown.get_ref(), &of_table);
            let hint = hint.unwrap_or_else(|| "a setting of [expert]".to_owned());
            let message = format!("there is no setting `{}` here", unknown.get_ref());
            return Err(src.error(unknown, message, hint));
        }
        root.remove(table);
    }
    Ok(())
}

/// Returns a warning for each table in the file that does not exist any more and has no key. If such a table has
/// keys, there are warnings about these.
fn warn_of_empty_tables(src: &Source<'_>, root: &DeTable<'_>, rows: &[Row]) -> Vec<ConfigError> {
    let mut warnings = Vec::new();
    for table in old_tables(rows) {
        let given = root.get_key_value(table);
        let is_empty = |value: &DeValue<'_>| value.as_table().is_some_and(|t| t.is_empty());
        if let Some((key, _)) = given.filter(|(_, value)| is_empty(value.get_ref())) {
            let message = format!(
                "`{table}` is no table any more: this version skips it, the next one refuses the file"
            );
            warnings.push(src.error(key, message, "remove the line"));
        }
    }
    warnings
}

/// Returns the tables that do not exist any more.
fn old_tables(rows: &[Row]) -> impl Iterator<Item = &'static str> {
    let tables: BTreeSet<_> = rows.iter().map(|(table, ..)| *table).collect();
    tables
        .into_iter()
        .filter(|table| !KEPT_TABLES.contains(table))
}

/// Returns the warning about the old setting of a row.
fn warning(src: &Source<'_>, row: &Row, at: Range<usize>, value: Range<usize>) -> ConfigError {
    let name = name_of(row);
    let (message, hint) = match row.2 {
        Expert(new) => {
            let value = src.text.get(value).unwrap_or("…");
            (
                format!(
                    "`{name}` is `{new}` in [expert] now: this version still reads it here, the next one \
                     refuses the file"
                ),
                format!("write {new} = {value} in the table [expert]"),
            )
        }
        Nowhere => (
            format!(
                "`{name}` is no setting any more, Braid chooses the value: this version still uses what is \
                 written, the next one refuses the file"
            ),
            "remove the line".to_owned(),
        ),
    };
    src.error(&Spanned::new(at, ()), message, hint)
}

/// Returns the remedy for an `unknown` key that is most likely a misspelling of an old setting's key, if any.
fn nearest(unknown: &str, rows: &[Row]) -> Option<String> {
    let keys: Vec<&str> = rows.iter().map(|(_, key, _)| *key).collect();
    let close = closest(unknown, &keys)?;
    let row = rows.iter().find(|(_, key, _)| *key == close)?;
    Some(match row.2 {
        Expert(name) => format!("`{name}` in [expert], if that is what you mean"),
        Nowhere => format!("nothing: `{close}` is no setting any more"),
    })
}

/// Returns the name that an old setting had.
fn name_of((table, key, _): &Row) -> String {
    match table.is_empty() {
        true => (*key).to_owned(),
        false => format!("{table}.{key}"),
    }
}
