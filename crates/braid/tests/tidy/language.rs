//! Rules on language: rustdoc begins with a statement, and pages speak of people by name or as "they".

/// Words that begin a question or a relative clause in place of a statement.
const OPENINGS: &[&str] = &[
    "How", "It", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Whoever", "Why",
];
/// Words for people of whom nothing is known.
const PERSONS: &[&str] = &["he", "him", "his", "himself", "whoever"];

/// Words that this project once had for things that the field has a word for.
const RENAMED: &[(&str, &str)] = &[
    ("crowded", "waiting for quota"),
    ("farewell", "fallback notice"),
    ("foreword", "early hints"),
    ("intake", "interception"),
    ("leftovers", "stale resources"),
    ("meddle", "middlebox"),
    ("meddling", "middlebox"),
    ("patience", "timeout, or grace period"),
    ("siege", "load"),
    ("starved", "waiting for pool"),
    ("strayed", "non-congestive loss"),
];
/// The most entries that the glossary may have.
const MAX_GLOSSARY: usize = 25;

/// Returns complaints about words in a source file, in identifiers too, that the field has another word for.
pub fn check_words(name: &str, text: &str) -> Vec<String> {
    // This list, and the names that old versions of the interfaces had.
    if name.ends_with("tidy/language.rs") || name.ends_with("admin/report.rs") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let lower = line.to_lowercase();
        for word in lower.split(|c: char| !c.is_alphabetic()) {
            if let Some((word, term)) = RENAMED.iter().find(|(old, _)| *old == word) {
                complaints.push(format!(
                    "{name}:{number}: \"{word}\" (the field says: {term})"
                ));
            }
        }
    }
    complaints
}

/// Returns complaints about the size of the glossary, the last table of ARCHITECTURE.md.
pub fn check_glossary(text: &str) -> Vec<String> {
    let (_, glossary) = text
        .split_once("\n## Words of the house\n")
        .unwrap_or_default();
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    // The first two rows are the heading.
    match rows.count().saturating_sub(2) {
        1..=MAX_GLOSSARY => Vec::new(),
        entries => vec![format!(
            "ARCHITECTURE.md: the glossary has {entries} entries (1 to {MAX_GLOSSARY})"
        )],
    }
}

/// Returns complaints about the first words of rustdoc in a source file.
pub fn check_rustdoc(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut goes_on = false;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or(line.strip_prefix("//!"));
        if let Some(first) = doc.filter(|_| !goes_on).and_then(|doc| words(doc).next())
            && OPENINGS.contains(&first)
        {
            complaints.push(format!(
                "{name}:{number}: rustdoc begins with \"{first}\", not with a statement"
            ));
        }
        goes_on = doc.is_some();
    }
    complaints
}

/// Returns complaints about the words of a page.
pub fn check_page(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let lower = line.to_lowercase();
        for word in words(&lower).filter(|word| PERSONS.contains(word)) {
            complaints.push(format!(
                "{name}:{number}: \"{word}\" (name the person, or say \"they\")"
            ));
        }
    }
    complaints
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{MAX_GLOSSARY, check_glossary, check_page, check_rustdoc, check_words};

    #[test]
    fn rustdoc_begins_with_a_statement() {
        let found = check_rustdoc(
            "a.rs",
            "//! What it is.\n\n/// Returns what there is.\n/// Where it is.\nfn a() {}\n    /// Whether it is.\n",
        );
        let expected = [
            "a.rs:1: rustdoc begins with \"What\", not with a statement",
            "a.rs:6: rustdoc begins with \"Whether\", not with a statement",
        ];
        assert_eq!(found, expected);
        // Other comments may begin in any way.
        let comment = "// Whether that is so nobody knows.\nfn a() {} // Of both.\n";
        assert_eq!(check_rustdoc("a.rs", comment), [""; 0]);
    }

    #[test]
    fn renamed_words_are_found_in_identifiers_too() {
        let found = check_words(
            "a.rs",
            "// A farewell.\nfn is_starved() {}\nfn impatience() {}\n",
        );
        let expected = [
            "a.rs:1: \"farewell\" (the field says: fallback notice)",
            "a.rs:2: \"starved\" (the field says: waiting for pool)",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_glossary_is_short() {
        let page = |entries: usize| {
            let rows = "| a | b |\n".repeat(entries);
            format!("| c | d |\n\n## Words of the house\n\n| word | means |\n| --- | --- |\n{rows}")
        };
        assert_eq!(check_glossary(&page(MAX_GLOSSARY)), [""; 0]);
        assert_eq!(check_glossary(&page(MAX_GLOSSARY + 1)).len(), 1);
        assert_eq!(check_glossary("no glossary").len(), 1);
    }

    #[test]
    fn pages_name_people() {
        let found = check_page("a.md", "The other\nWhoever has his key.\n");
        let expected = [
            "a.md:2: \"whoever\" (name the person, or say \"they\")",
            "a.md:2: \"his\" (name the person, or say \"they\")",
        ];
        assert_eq!(found, expected);
    }
}
