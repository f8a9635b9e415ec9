//! The rules on dependencies between crates, and on licences.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The crates from left to right; a crate imports only crates to its left. `strategy`, `secure`
/// and `tunnel` stand side by side, and so do `sim` and `linux`.
const ORDER: &[(&str, u32)] = &[
    ("wire", 0),
    ("units", 0),
    ("links", 1),
    ("engine", 2),
    ("strategy", 3),
    ("secure", 3),
    ("tunnel", 3),
    ("proxy", 4),
    ("sim", 5),
    ("linux", 5),
    ("braid", 6),
    ("testbed", 7),
    ("lab", 8),
];

/// The crates of the laboratory. The others are the product's, and import none of these.
const LABORATORY: &[&str] = &["links", "sim", "testbed", "lab"];

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

/// Returns the name of a crate's directory.
fn directory_name(crate_name: &str) -> &str {
    crate_name.strip_prefix("braid-").unwrap_or(crate_name)
}

fn rank(name: &str) -> Option<u32> {
    ORDER
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, rank)| *rank)
}

/// Returns whether the crate `name` may import the crate `dependency`.
fn may_import(name: &str, dependency: &str) -> bool {
    let is_laboratory = |name| LABORATORY.contains(&name);
    let is_left = rank(dependency).is_some_and(|other| rank(name).is_some_and(|own| other < own));
    is_left && (is_laboratory(name) || !is_laboratory(dependency))
}

/// Returns complaints about the manifests below `crates`.
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
        if rank(&name).is_none() {
            complaints.push(format!(
                "crates/{name}: a crate ARCHITECTURE.md does not know"
            ));
            continue;
        }
        let manifest: toml::Table = text.parse().expect("a valid manifest");
        // Tests and examples are compiled after the crate, and may use crates to its right.
        for table in ["dependencies", "build-dependencies"] {
            let Some(entries) = manifest.get(table).and_then(toml::Value::as_table) else {
                continue;
            };
            let wrong = entries.keys().filter(|dependency| {
                dependency.starts_with("braid") && !may_import(&name, directory_name(dependency))
            });
            complaints.extend(wrong.map(|dependency| {
                format!("crates/{name}: {table}: {dependency} is not one it may import")
            }));
        }
    }
    complaints
}

/// Returns complaints about the licences of all crates in the lock file.
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

/// Returns whether at least one alternative of an SPDX expression needs only known licences.
fn is_permissive(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "");
    // Without the brackets, an OR inside an AND would be misread; then every name counts.
    if expression.contains('(') && expression.contains(" AND ") {
        return plain.split(" AND ").all(is_permissive);
    }
    plain
        .split(" OR ")
        .flat_map(|part| part.split('/'))
        .any(|all| all.split(" AND ").all(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn imports_are_judged_by_place() {
    assert!(may_import("proxy", "engine"));
    assert!(!may_import("engine", "proxy"));
    assert!(may_import("lab", "braid"));
    assert!(!may_import("braid", "lab"));
    // Both stand to the left.
    assert!(!may_import("proxy", "links"));
    assert!(!may_import("sim", "linux"));
    assert!(!may_import("engine", "nowhere"));
}

/// The manifests of the product's crates show all dependencies. This asks Cargo once more, which also knows
/// optional dependencies and renamed ones.
#[test]
fn the_product_is_linked_with_no_crate_of_the_laboratory() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "braid", "-e", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(tree.contains("braid-linux "), "no tree: {tree}");
    for name in LABORATORY {
        let linked = tree
            .lines()
            .any(|line| line.starts_with(&format!("braid-{name} ")));
        assert!(!linked, "braid is linked with braid-{name}");
    }
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
