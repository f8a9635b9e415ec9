//! The rule that a crate has few rooms, and few arrows between them.
//!
//! A room is a module at the root of a crate, with all files below it. A room points to another if any of its
//! files points to a file of the other, as `circles` finds that. Rooms keep the crate readable only while
//! they are few, while most of what a file needs is in its own room, and while they can be read in one order.
//! So their number and the number of arrows have a bound, and no arrows lead in a circle.

use std::collections::BTreeSet;

use super::circles::{self, Arrows};

/// The crates that have rooms, with the most rooms, and the most arrows between them.
const BOUNDS: &[(&str, usize, usize)] = &[("crates/proxy", 11, 40)];

/// Returns complaints about all of `files`, given by name and text.
pub fn check(files: &[(String, String)]) -> Vec<String> {
    let crates = circles::arrows(files);
    let complaints = BOUNDS.iter().flat_map(|(root, rooms, arrows)| {
        let Some(of_files) = crates.get(root) else {
            return vec![format!("{root}: no such crate")];
        };
        complaints(root, &between_rooms(root, of_files), (*rooms, *arrows))
    });
    complaints.collect()
}

/// Returns complaints about the rooms of a crate, which has at most so many rooms and arrows.
fn complaints(root: &str, rooms: &Arrows<'_>, most: (usize, usize)) -> Vec<String> {
    let mut complaints = Vec::new();
    if rooms.len() > most.0 {
        let names: Vec<&str> = rooms.keys().copied().collect();
        let (n, names) = (rooms.len(), names.join(", "));
        complaints.push(format!("{root}: {n} rooms, more than {}: {names}", most.0));
    }
    let arrows = rooms.values().map(BTreeSet::len).sum::<usize>();
    if arrows > most.1 {
        let all = rooms
            .iter()
            .flat_map(|(from, to)| to.iter().map(move |to| format!("{from} -> {to}")));
        let all = all.collect::<Vec<_>>().join(", ");
        complaints.push(format!(
            "{root}: {arrows} arrows, more than {}: {all}",
            most.1
        ));
    }
    let circles = circles::circles(rooms).into_iter();
    complaints
        .extend(circles.map(|way| format!("{root}: {}: a circle of rooms", way.join(" -> "))));
    complaints
}

/// Returns the arrows between rooms that follow from those between files. The root of the crate is no room.
fn between_rooms<'a>(root: &str, files: &Arrows<'a>) -> Arrows<'a> {
    let mut rooms = Arrows::new();
    for (file, targets) in files {
        let Some(from) = room(root, file) else {
            continue;
        };
        let targets = targets.iter().filter_map(|to| room(root, to));
        rooms
            .entry(from)
            .or_default()
            .extend(targets.filter(|to| *to != from));
    }
    rooms
}

/// Returns the room of a file.
fn room<'a>(root: &str, file: &'a str) -> Option<&'a str> {
    let path = file.strip_prefix(root)?.strip_prefix("/src/")?;
    let name = path.split('/').next()?;
    Some(name.strip_suffix(".rs").unwrap_or(name)).filter(|name| *name != "lib")
}

#[cfg(test)]
mod tests {
    use super::{between_rooms, circles, complaints};

    fn found(files: &[(&str, &str)], most: (usize, usize)) -> Vec<String> {
        let named =
            |(name, text): &(&str, &str)| (format!("crates/x/src/{name}"), (*text).to_owned());
        let files: Vec<_> = files.iter().map(named).collect();
        let of_files = &circles::arrows(&files)["crates/x"];
        complaints("crates/x", &between_rooms("crates/x", of_files), most)
    }

    #[test]
    fn rooms_and_their_arrows_are_counted() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::c::C;"),
            ("a/mod.rs", "pub mod c; mod d;"),
            ("a/c.rs", "pub struct C;"),
            ("a/d.rs", "use super::c::C; use crate::b::e::E;"),
            ("b/mod.rs", "pub mod e; mod f;"),
            ("b/e.rs", "pub struct E;"),
            ("b/f.rs", "pub struct F;"),
        ];
        assert!(found(&files, (2, 1)).is_empty());
        assert_eq!(
            found(&files, (1, 0)),
            [
                "crates/x: 2 rooms, more than 1: a, b",
                "crates/x: 1 arrows, more than 0: a -> b"
            ]
        );
    }

    /// Files that are in no circle may still put two rooms into one.
    #[test]
    fn circles_of_rooms_are_found() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::c::C;"),
            ("a/mod.rs", "pub mod c; mod d;"),
            ("a/c.rs", "pub struct C;"),
            ("a/d.rs", "use crate::b::e::E;"),
            ("b/mod.rs", "pub mod e; mod f;"),
            ("b/e.rs", "pub struct E;"),
            ("b/f.rs", "use crate::C;"),
        ];
        assert_eq!(
            found(&files, (2, 2)),
            ["crates/x: a -> b: a circle of rooms"]
        );
    }
}
