//! The rule that files inside a crate do not import each other in a circle.
//!
//! Files are nodes, and a file points to the file that defines what it names. It names things by `use`, and
//! by paths that start with `crate`, `super`, `self` or a module below it. Going from file to file along
//! these arrows never leads back. A module and those below it are a family and do not count: the parent
//! defines what its children share, and names them. A `pub use` is only a sign: a file that imports through
//! it points to the file of the definition, and the file with the sign does not point there unless it uses
//! the name itself. Tests are left out, and so are method calls, whose file the text does not show.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use syn::visit::{self, Visit};

/// By the name of a file, the files that it points to.
pub type Arrows<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns complaints about all of `files`, given by name and text.
pub fn check(files: &[(String, String)]) -> Vec<String> {
    let crates = arrows(files);
    let circles = crates.values().flat_map(circles);
    circles
        .map(|circle| format!("{}: a circle of files", circle.join(" -> ")))
        .collect()
}

/// Returns the arrows between the files of each crate, by the directory of the crate.
pub fn arrows(files: &[(String, String)]) -> BTreeMap<&str, Arrows<'_>> {
    let mut crates: BTreeMap<&str, Vec<(&str, Module)>> = BTreeMap::new();
    for (name, text) in files {
        let Some((root, path)) = name.split_once("/src/") else {
            continue;
        };
        if let (Some(path), Ok(file)) = (module_path(path), syn::parse_file(text)) {
            let modules = crates.entry(root).or_default();
            modules.push((name, Module::read(path, &file)));
        }
    }
    let arrows = crates
        .into_iter()
        .map(|(root, files)| (root, arrows_within(&files)));
    arrows.collect()
}

/// Returns the names from the crate's root to the module in the file `path` below `src`; `None` for a
/// program's own file.
fn module_path(path: &str) -> Option<Vec<String>> {
    let path = path.strip_suffix(".rs")?;
    if path == "main" {
        return None;
    }
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let names = path.split('/').filter(|name| *name != "lib");
    Some(names.map(str::to_owned).collect())
}

/// The names that a file defines and uses.
#[derive(Default)]
struct Module {
    path: Vec<String>,
    /// Names that `use` introduces, with their paths, from the root of the crate or relative.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules all of whose names are imported.
    globs: Vec<Vec<String>>,
    /// Imports that are public.
    signs: BTreeSet<String>,
    /// Paths named, including those of private imports.
    named: BTreeSet<Vec<String>>,
    /// Things defined here.
    items: BTreeSet<String>,
}

impl Module {
    fn read(path: Vec<String>, file: &syn::File) -> Module {
        let mut module = Module {
            path,
            ..Module::default()
        };
        module.visit_file(file);
        module
    }

    fn add_use(&mut self, tree: &syn::UseTree, mut path: Vec<String>, is_sign: bool) {
        let (ident, name) = match tree {
            syn::UseTree::Path(item) => {
                path.push(item.ident.to_string());
                return self.add_use(&item.tree, path, is_sign);
            }
            syn::UseTree::Group(group) => {
                let add = |tree| self.add_use(tree, path.clone(), is_sign);
                return group.items.iter().for_each(add);
            }
            syn::UseTree::Glob(_) => {
                self.globs.push(path.clone());
                if !is_sign {
                    self.named.insert(path);
                }
                return;
            }
            syn::UseTree::Name(item) => (&item.ident, &item.ident),
            syn::UseTree::Rename(item) => (&item.ident, &item.rename),
        };
        if ident != "self" {
            path.push(ident.to_string());
        }
        let name = if name == "self" {
            path.last().cloned().unwrap_or_default()
        } else {
            name.to_string()
        };
        if is_sign {
            self.signs.insert(name.clone());
        } else {
            self.named.insert(path.clone());
        }
        self.imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, name) = match item {
            syn::Item::Const(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Enum(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
            syn::Item::Static(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Struct(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Trait(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Type(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Impl(i) => (&i.attrs, None),
            syn::Item::Mod(i) => (&i.attrs, None),
            syn::Item::Use(i) => (&i.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        let is_test = |a: &syn::Attribute| {
            a.path().is_ident("cfg")
                && matches!(&a.meta, syn::Meta::List(l) if l.tokens.to_string() == "test")
        };
        if attributes.iter().any(is_test) {
            return;
        }
        self.items.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_sign = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_use(&item.tree, Vec::new(), is_sign);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|s| s.ident.to_string());
        self.named.insert(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// Returns the arrows between the files of one crate.
fn arrows_within<'a>(files: &[(&'a str, Module)]) -> Arrows<'a> {
    let by_path: BTreeMap<_, _> = files.iter().map(|(_, m)| (&m.path[..], m)).collect();
    let name_of: BTreeMap<_, _> = files.iter().map(|(n, m)| (&m.path[..], *n)).collect();
    let mut arrows = Arrows::new();
    for (name, module) in files {
        let mut targets = BTreeSet::new();
        for path in &module.named {
            // An import counts by its `use`; a mere name counts only if it is a public import.
            let is_told = module.imports.contains_key(&path[0]) && !module.signs.contains(&path[0]);
            let target = resolve(&by_path, module, path, 0).filter(|_| !is_told);
            targets.extend(
                target
                    .filter(|t| !t.path.starts_with(&module.path))
                    .filter(|t| !module.path.starts_with(&t.path))
                    .map(|t| name_of[&t.path[..]]),
            );
        }
        arrows.insert(name, targets);
    }
    arrows
}

/// Returns the circles along `arrows`: the shortest one through each node of one, and each circle once.
pub fn circles<'a>(arrows: &Arrows<'a>) -> Vec<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let shortest = arrows.keys().filter_map(|name| way_back(arrows, name));
    shortest
        .filter(|circle| seen.insert(circle.iter().copied().collect::<BTreeSet<_>>()))
        .collect()
}

/// Returns the file of the thing that `path` names in `from`; `None` if that is in another crate, or does not
/// exist.
fn resolve<'a>(
    modules: &BTreeMap<&[String], &'a Module>,
    from: &'a Module,
    path: &[String],
    depth: usize,
) -> Option<&'a Module> {
    let mut here = from;
    let mut rest = path;
    let mut is_local = false;
    while let Some((first, more)) = rest.split_first() {
        let is_anchor = !is_local;
        is_local = true;
        match first.as_str() {
            "crate" => here = modules[&[][..]],
            "self" => {}
            "super" => here = modules.get(&here.path[..here.path.len().checked_sub(1)?])?,
            name => {
                let child: Vec<String> = here.path.iter().cloned().chain([first.clone()]).collect();
                if let Some(module) = modules.get(&child[..]) {
                    here = module;
                } else if let Some(import) = here.imports.get(name).filter(|_| depth < 8) {
                    let import: Vec<String> = import.iter().chain(more).cloned().collect();
                    // An imported name may equal its crate: `use toml`.
                    return match import.first() == Some(first) && is_anchor {
                        true => None,
                        false => resolve(modules, here, &import, depth + 1),
                    };
                } else if is_anchor && !here.items.contains(name) {
                    return glob(modules, here, rest, depth);
                } else {
                    return glob(modules, here, rest, depth).or(Some(here));
                }
            }
        }
        rest = more;
    }
    Some(here)
}

/// Resolves like [`resolve`], among the glob imports of `here`.
fn glob<'a>(
    modules: &BTreeMap<&[String], &'a Module>,
    here: &'a Module,
    path: &[String],
    depth: usize,
) -> Option<&'a Module> {
    if here.items.contains(&path[0]) {
        return Some(here);
    }
    let targets = here.globs.iter().filter(|_| depth < 8);
    targets
        .filter_map(|target| resolve(modules, here, target, depth + 1))
        .find(|target| target.items.contains(&path[0]))
}

/// Returns the shortest way along `arrows` from `start` back to it.
fn way_back<'a>(arrows: &Arrows<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in &arrows[way[way.len() - 1]] {
            if *next == start {
                return Some(way);
            }
            if seen.insert(*next) {
                ways.push_back(way.iter().copied().chain([*next]).collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::check;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let named =
            |(name, text): &(&str, &str)| (format!("crates/x/src/{name}"), (*text).to_owned());
        check(&files.iter().map(named).collect::<Vec<_>>())
    }

    #[test]
    fn circles_are_found_through_signs() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::A;");
        let b = ("b.rs", "use crate::A; pub struct B;");
        assert!(complaints(&[lib, ("a.rs", "pub struct A;"), b]).is_empty());
        let a = ("a.rs", "use super::b; pub struct A(b::B);");
        assert_eq!(
            complaints(&[lib, a, b]),
            ["crates/x/src/a.rs -> crates/x/src/b.rs: a circle of files"]
        );
        let a = (
            "a.rs",
            "pub struct A; #[cfg(test)] mod t { use crate::b::B; }",
        );
        assert!(complaints(&[lib, a, b]).is_empty());
        let parent = ("a/mod.rs", "mod c; pub struct A(c::C);");
        let child = ("a/c.rs", "pub struct C; fn f(_: super::A) {}");
        assert!(complaints(&[("lib.rs", "mod a;"), parent, child]).is_empty());
    }
}
