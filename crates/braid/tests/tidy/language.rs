//! Rules on language: rustdoc begins with a statement, and pages speak of people by name or as "they".

/// Words that begin a question or a relative clause in place of a statement.
const OPENINGS: &[&str] = &[
    "How", "It", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Whoever", "Why",
];
/// Words for people of whom nothing is known.
const PERSONS: &[&str] = &["he", "him", "his", "himself", "whoever"];

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
    use super::{check_page, check_rustdoc};

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
    fn pages_name_people() {
        let found = check_page("a.md", "The other\nWhoever has his key.\n");
        let expected = [
            "a.md:2: \"whoever\" (name the person, or say \"they\")",
            "a.md:2: \"his\" (name the person, or say \"they\")",
        ];
        assert_eq!(found, expected);
    }
}
