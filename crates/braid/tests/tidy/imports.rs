//! Which crate may depend on which, and under which licences.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The crates from left to right; a crate imports only what stands to its left. `strategy` and `secure`
/// stand side by side, and so do `sim` and `linux`.
const ORDER: &[(&str, u32)] = &[
    ("wire", 0),
    ("links", 1),
    ("engine", 2),
    ("strategy", 3),
    ("secure", 3),
    ("proxy", 4),
    ("sim", 5),
    ("linux", 5),
    ("testbed", 6),
    ("lab", 7),
    ("braid", 8),
];

/// Licences that may be linked into a binary under MIT or Apache-2.0; as in deny.toml.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    "0BSD",
    "Unlicense",
    "CC0-1.0",
];

fn rank(name: &str) -> Option<u32> {
    let name = name.strip_prefix("braid-").unwrap_or(name);
    ORDER
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, rank)| *rank)
}

/// Complaints about the manifests below `crates`.
pub fn check(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).expect("crates exists") {
        let directory = entry.expect("a readable directory").path();
        let manifest = directory.join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&manifest) else {
            continue;
        };
        let name = directory
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let Some(own) = rank(&name) else {
            complaints.push(format!(
                "crates/{name}: a crate ARCHITECTURE.md does not know"
            ));
            continue;
        };
        let manifest: toml::Table = text.parse().expect("a valid manifest");
        // Tests and examples are compiled after the crate, and may use what stands on it.
        for table in ["dependencies", "build-dependencies"] {
            let Some(entries) = manifest.get(table).and_then(toml::Value::as_table) else {
                continue;
            };
            let wrong = entries.keys().filter(|dependency| {
                dependency.starts_with("braid") && rank(dependency).is_none_or(|other| other >= own)
            });
            complaints.extend(wrong.map(|dependency| {
                format!("crates/{name}: {table}: {dependency} does not stand to its left")
            }));
        }
    }
    complaints
}

/// Complaints about the licences of everything the lock file names.
pub fn check_licences(root: &Path) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(
        packages.len() > 10,
        "cargo metadata names only {} packages",
        packages.len()
    );
    packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_permissive))
        .map(|package| format!("{}: licence {}", package["name"], package["license"]))
        .collect()
}

/// An SPDX expression of which at least one alternative asks for known licences only.
fn is_permissive(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "");
    // With the brackets gone, an OR inside an AND would be read wrongly: then every name counts.
    if expression.contains('(') && expression.contains(" AND ") {
        return plain.split(" AND ").all(is_permissive);
    }
    plain
        .split(" OR ")
        .flat_map(|part| part.split('/'))
        .any(|all| all.split(" AND ").all(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn licence_expressions_are_read() {
    assert!(is_permissive("MIT OR Apache-2.0"));
    assert!(is_permissive("MIT/Apache-2.0"));
    assert!(is_permissive("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(is_permissive("GPL-3.0 OR MIT"));
    assert!(!is_permissive("GPL-3.0"));
    assert!(!is_permissive("MIT AND GPL-3.0"));
    assert!(!is_permissive("(MIT OR Apache-2.0) AND GPL-3.0"));
}
