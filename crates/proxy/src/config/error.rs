//! Translation of errors of the crate `toml` into errors with a remedy, for the author of a configuration file.

use braid_units::ConfigError;

/// Converts an error of `toml` about the `text` of `file`. If an unknown setting resembles no setting of its
/// table, `elsewhere` returns the remedy.
pub(super) fn from_toml(
    file: &str,
    text: &str,
    error: &toml::de::Error,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> ConfigError {
    let (message, hint) = explain(error.message(), elsewhere);
    ConfigError::at(file, text, error.span(), message, hint)
}

/// The character between problem and remedy in errors of this crate's `Deserialize` implementations. Errors of
/// serde have one string only.
pub(crate) const HINT: char = '\n';

/// Splits a deserialization error into problem and remedy.
fn explain(message: &str, elsewhere: impl Fn(&str) -> Option<String>) -> (String, Option<String>) {
    if let Some((unknown, known)) = unknown_field(message) {
        if let Some(hint) = in_place_of(unknown, &known) {
            return (format!("`{unknown}` is no more"), Some(hint.to_owned()));
        }
        let hint = match closest(unknown, &known) {
            Some(key) => format!("`{key}`, if that is what you mean"),
            None => elsewhere(unknown).unwrap_or_else(|| format!("one of {}", known.join(", "))),
        };
        return (format!("there is no setting `{unknown}` here"), Some(hint));
    }
    if let Some(field) = message
        .strip_prefix("missing field `")
        .and_then(|m| m.strip_suffix('`'))
    {
        let hint = format!("{field} = …");
        return (format!("`{field}` is missing"), Some(hint));
    }
    if let Some((what, hint)) = message.split_once(HINT) {
        return (what.to_owned(), Some(hint.to_owned()));
    }
    match message.rsplit_once(", expected ") {
        Some((what, expected))
            if what.starts_with("invalid type: ") || what.starts_with("invalid value: ") =>
        {
            let hint = match expected {
                "u16" => "a whole number from 0 to 65535",
                "a boolean" => "true or false",
                other => other,
            };
            (what.to_owned(), Some(hint.to_owned()))
        }
        _ => (message.to_owned(), None),
    }
}

/// Returns the replacement of a setting of early versions. serde does not name the table, so the settings `known`
/// in the table identify it.
fn in_place_of(unknown: &str, known: &[&str]) -> Option<&'static str> {
    // `[[server]]` of a box and `[[user]]` of a server have a key, and only `[[server]]` has an address.
    let is_server = known.contains(&"address");
    match unknown {
        _ if !known.contains(&"key") => None,
        "secret" | "secret_file" if is_server => Some(SERVER_KEY_HINT),
        "secret" | "secret_file" => Some(USER_KEY_HINT),
        "user" if is_server => {
            Some("key_file = \"box.key\" at the top: its public key says which user the box is")
        }
        _ => None,
    }
}

/// The remedy for a missing key of a box's server.
pub(super) const SERVER_KEY_HINT: &str =
    "key = \"…\" (the server's public key: braid key show server.key)";
/// The remedy for a missing key of a server's user.
pub(super) const USER_KEY_HINT: &str =
    "key = \"…\" (the user's public key: braid key show box.key)";

/// Returns the word of `known` of which `unknown` is most likely a misspelling, if any.
pub(super) fn closest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|k| (distance(unknown, k), *k));
    // A typo changes few letters. If more than about a third of the name differs (a guess), another word is meant.
    let close = distances.min().filter(|(d, k)| *d <= 1 + k.len() / 3);
    close.map(|(_, key)| key)
}

/// Parses serde's message about an unknown field. Returns the unknown name and the known names. The message has
/// each name between backquotes.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let known = rest.split('`').skip(1).step_by(2).collect();
    Some((unknown, known))
}

/// Returns the edit distance (Levenshtein) of two short words.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
