//! The rule that links between pages lead somewhere: to a file that exists, and to a heading in it.

use std::path::{Component, Path, PathBuf};

/// Returns complaints about the links of all `pages`, each given by its path from `root` and its text.
pub fn check(root: &Path, pages: &[(String, String)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, text) in pages {
        for (number, target) in targets(text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = resolve(name, file);
            let page = pages.iter().find(|(page, _)| Path::new(page) == path);
            let leads_to_heading = |text: &str| anchors(text).any(|anchor| anchor == heading);
            if let Some((_, text)) = page {
                if !heading.is_empty() && !leads_to_heading(text) {
                    complaints.push(format!("{name}:{number}: {target}: no such heading"));
                }
            } else if !root.join(&path).exists() {
                complaints.push(format!("{name}:{number}: {target}: no such file"));
            }
        }
    }
    complaints
}

/// Returns the path of `file` from the root, as a page at `page` links to it. Without a file it is the page.
fn resolve(page: &str, file: &str) -> PathBuf {
    if file.is_empty() {
        return PathBuf::from(page);
    }
    let beside = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for part in beside.join(file).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

/// Returns the targets of a page's links with their lines, without those to other sites.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let rests = line.split("](").skip(1);
        let targets = rests.filter_map(|rest| rest.split(')').next());
        let inside = targets.filter(|target| !target.contains("://"));
        inside.map(move |target| (number, target))
    })
}

/// Returns the names by which links reach the headings of a page.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings.map(|heading| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c })
            .collect::<String>()
    })
}

/// Returns the lines of a page outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

#[cfg(test)]
mod tests {
    use super::{Path, check};

    #[test]
    fn links_lead_to_files_and_headings() {
        let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let pages = [
            page(
                "src/a.md",
                "# Where do I …\n[a](#where-do-i-) [b](../Cargo.toml) [c](lib.rs#L1)\n\
                 ```text\n[d](none.md)\n```\n[e](https://example.org/none)\n",
            ),
            page("src/b.md", "[a](#none)\n[b](none.md)\n[c](lib.rs)\n"),
        ];
        let found = check(root, &pages);
        let expected = [
            "src/b.md:1: #none: no such heading",
            "src/b.md:2: none.md: no such file",
        ];
        assert_eq!(found, expected);
    }
}
