//! The rules of the house as a test: which crate may import which, the length of files and functions, the size of
//! types, the language, and what is forbidden in which crates. `make lint` runs it apart, `cargo test` with the rest.
//!
//! If a limit would make the code worse, a comment `// tidy: <why>` directly above the function (or on the
//! line itself, for the line rules) lifts it.

mod circles;
mod conformance;
mod imports;
mod language;
mod links;
mod rooms;
mod source;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace exists")
}

/// Returns every Rust file below `crates` and `fuzz`: its path from the root, and its text.
fn rust_files() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    let mut pending = vec![root.join("crates"), root.join("fuzz")];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a readable directory").path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(&root)
                    .expect("below the root")
                    .display()
                    .to_string();
                files.push((name, fs::read_to_string(&path).expect("a readable file")));
            }
        }
    }
    files.sort();
    files
}

/// Returns the pages for people: those at the root and in `docs`, by path and text.
fn pages() -> Vec<(String, String)> {
    let root = root();
    let mut pages = Vec::new();
    for directory in ["", "docs"] {
        let entries = fs::read_dir(root.join(directory)).expect("a readable directory");
        for entry in entries {
            let path = entry.expect("a readable directory").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(&root).expect("below the root");
                let text = fs::read_to_string(&path).expect("a readable file");
                pages.push((name.display().to_string(), text));
            }
        }
    }
    pages.sort();
    pages
}

/// Fails with every complaint at once.
fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Fails with every complaint of `check` about the files, each given by path and text.
fn report_each(files: &[(String, String)], check: fn(&str, &str) -> Vec<String>) {
    let complaints = files.iter().flat_map(|(name, text)| check(name, text));
    report(&complaints.collect::<Vec<_>>());
}

#[test]
fn crates_import_only_what_stands_to_their_left() {
    report(&imports::check(&root()));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    report(&circles::check(&rust_files()));
}

#[test]
fn crates_have_few_rooms_and_few_arrows_between_them() {
    report(&rooms::check(&rust_files()));
}

#[test]
fn licences_are_permissive() {
    report(&imports::check_licences(&root()));
}

#[test]
fn source_keeps_the_rules() {
    let files = rust_files();
    assert!(
        files.len() > 20,
        "the search for source files is broken: {} found",
        files.len()
    );
    report_each(&files, source::check);
}

/// With `autotests = false`, nothing builds a file of `tests/` that no `[[test]]` and no `mod` names.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let files = rust_files();
    let mut complaints = Vec::new();
    for (main, text) in &files {
        let Some((of_crate, program)) = main
            .strip_suffix("main.rs")
            .and_then(|folder| folder.split_once("/tests/"))
        else {
            continue;
        };
        let manifest = fs::read_to_string(root().join(of_crate).join("Cargo.toml"));
        let manifest = manifest.expect("a crate has a manifest");
        let name = program.trim_end_matches('/');
        let is_named = manifest.contains(&format!("name = \"{name}\"\n"))
            || manifest.contains(&format!("path = \"tests/{program}main.rs\""));
        if manifest.contains("autotests = false") && !is_named {
            complaints.push(format!("{main}: no [[test]] of its crate has it"));
        }
        let folder = main.trim_end_matches("main.rs");
        let beside = files.iter().filter_map(|(file, _)| {
            let module = file.strip_prefix(folder)?.strip_suffix(".rs")?;
            let module = module.strip_suffix("/mod").unwrap_or(module);
            (!module.contains('/') && module != "main").then_some(module)
        });
        let names = |module: &&str| {
            let line = format!("mod {module};");
            let mut lines = text.lines();
            lines.any(|l| l.trim().trim_start_matches("pub ") == line)
        };
        complaints.extend(
            beside
                .filter(|module| !names(module))
                .map(|module| format!("{main}: has no `mod {module};`")),
        );
    }
    report(&complaints);
}

#[test]
fn rustdoc_begins_with_a_statement() {
    report_each(&rust_files(), language::check_rustdoc);
}

#[test]
fn source_speaks_the_words_of_the_field() {
    report_each(&rust_files(), language::check_words);
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md"));
    report(&language::check_glossary(
        &architecture.expect("a readable page"),
    ));
}

#[test]
fn pages_speak_of_people_by_name() {
    let pages = pages();
    assert!(pages.len() > 10, "the search for pages is broken");
    report_each(&pages, language::check_page);
}

#[test]
fn links_between_pages_lead_somewhere() {
    report(&links::check(&root(), &pages()));
}

#[test]
fn types_are_no_larger_than_a_reader_can_hold() {
    report(&types::check(&rust_files()));
}

/// `BRAID_WRITE=1` (`make conformance`) writes the page instead of comparing it.
#[test]
fn the_conformance_page_is_as_the_sources_say() {
    let docs = root().join("docs");
    let demands = fs::read_to_string(docs.join("conformance.toml")).expect("the list of demands");
    let is_own = |(name, _): &(String, String)| name.contains("/tidy/");
    let files: Vec<_> = rust_files().into_iter().filter(|f| !is_own(f)).collect();
    let page = match conformance::page(&demands, &files) {
        Ok(page) => page,
        Err(complaints) => return report(&complaints),
    };
    let file = docs.join("conformance.md");
    if std::env::var_os("BRAID_WRITE").is_some() {
        fs::write(file, page).expect("docs is writable");
    } else {
        let found = fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == page,
            "docs/conformance.md is stale: make conformance"
        );
    }
}
