//! The limits on a type's size: its methods over all `impl` blocks and files, its fields, its flags.
//!
//! A type that does everything escapes limits on files and functions. A type that owns little is understood
//! by itself.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

/// Most methods of a type, in all its `impl` blocks.
const METHODS: usize = 90;
/// Most fields of a type with behaviour.
const FIELDS: usize = 25;
/// Most flags of a type with behaviour: more of them stand for a state that has a name.
const FLAGS: usize = 3;

/// Crates of the product.
const CRATES: &[&str] = &[
    "units", "wire", "engine", "strategy", "secure", "tunnel", "proxy", "linux", "braid",
];

/// The size of a type.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Size {
    /// The file that defines it.
    file: String,
    methods: usize,
    fields: usize,
    flags: usize,
    /// A method changes the type, so it is not plain data, as settings and messages are.
    changes: bool,
}

/// The types that a file defines or extends.
#[derive(Default)]
struct Found {
    /// Fields and flags of each struct.
    structs: BTreeMap<String, (usize, Vec<syn::Type>)>,
    /// Enums and unions, which have methods as well.
    others: BTreeSet<String>,
    /// Flags that a type keeps in one number: constants of its own type.
    masks: BTreeMap<String, usize>,
    /// Number of methods, and whether one of them changes the type.
    methods: BTreeMap<String, (usize, bool)>,
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |a: &syn::Attribute| match &a.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

/// Returns the last name of a type's path, without generic arguments.
fn name_of(ty: &syn::Type) -> Option<String> {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let types = item.fields.iter().map(|field| field.ty.clone()).collect();
        let size = (item.fields.len(), types);
        self.structs.insert(item.ident.to_string(), size);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.others.insert(item.ident.to_string());
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let Some(name) = name_of(&item.self_ty).filter(|_| !is_for_tests(&item.attrs)) else {
            return;
        };
        for inner in &item.items {
            match inner {
                syn::ImplItem::Fn(function) if !is_for_tests(&function.attrs) => {
                    let receiver = function.sig.receiver();
                    let changes =
                        receiver.is_some_and(|r| r.reference.is_some() && r.mutability.is_some());
                    let methods = self.methods.entry(name.clone()).or_default();
                    methods.0 += 1;
                    methods.1 |= changes;
                }
                syn::ImplItem::Const(constant) if is_mask(&constant.ty, &constant.expr, &name) => {
                    *self.masks.entry(name.clone()).or_default() += 1;
                }
                _ => {}
            }
        }
    }
}

/// Returns whether this is a constant of the type itself made of a shifted bit: `const A: Self = Self(1 << 3)`.
fn is_mask(ty: &syn::Type, value: &syn::Expr, name: &str) -> bool {
    let own = name_of(ty).is_some_and(|ty| ty == "Self" || ty == name);
    let shifts =
        |e: &syn::Expr| matches!(e, syn::Expr::Binary(b) if matches!(b.op, syn::BinOp::Shl(_)));
    own && matches!(value, syn::Expr::Call(call) if call.args.iter().any(shifts))
}

/// Returns the crate of a source file of the product.
fn crate_of(file: &str) -> Option<&str> {
    let (name, rest) = file.strip_prefix("crates/")?.split_once('/')?;
    let is_code =
        rest.starts_with("src/") && !rest.ends_with("/tests.rs") && !rest.contains("/tests/");
    (CRATES.contains(&name) && is_code).then_some(name)
}

/// Returns whether the file has settings: they have a field for each key, and change when they are read again.
fn is_settings(file: &str) -> bool {
    file.contains("/config/")
}

/// Returns the number of leading directories and names that two paths share.
fn shared(a: &str, b: &str) -> usize {
    let parts = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    let (a, b) = (parts(a), parts(b));
    a.iter().zip(&b).take_while(|(a, b)| a == b).count()
}

/// Returns the sizes of types, by crate and name; types of one name are in one list.
fn sizes(files: &[(String, String)]) -> BTreeMap<String, Vec<Size>> {
    let mut found = Vec::new();
    for (file, text) in files {
        if let (Some(krate), Ok(parsed)) = (crate_of(file), syn::parse_file(text)) {
            let mut here = Found::default();
            here.visit_file(&parsed);
            found.push((krate, file, here));
        }
    }
    let mut masks: BTreeMap<String, usize> = BTreeMap::new();
    for (krate, _, here) in &found {
        for (name, count) in &here.masks {
            *masks.entry(format!("{krate}::{name}")).or_default() += count;
        }
    }
    let mut sizes: BTreeMap<String, Vec<Size>> = BTreeMap::new();
    for (krate, file, here) in &found {
        let flags_of = |ty: &syn::Type| match name_of(ty) {
            Some(name) if name == "bool" => 1,
            Some(name) => masks.get(&format!("{krate}::{name}")).copied().unwrap_or(0),
            None => 0,
        };
        let structs = here.structs.iter();
        let structs = structs
            .map(|(name, (fields, types))| (name, *fields, types.iter().map(flags_of).sum()));
        let others = here.others.iter().map(|name| (name, 0, 0));
        for (name, fields, flags) in structs.chain(others) {
            let all = sizes.entry(format!("{krate}::{name}")).or_default();
            all.push(Size {
                file: (*file).clone(),
                fields,
                flags,
                ..Size::default()
            });
        }
    }
    for (krate, file, here) in &found {
        for (name, (methods, changes)) in &here.methods {
            // If several types have the name, the nearest is meant, above all the file's own.
            let all = sizes.get_mut(&format!("{krate}::{name}"));
            let nearest = all.and_then(|all| all.iter_mut().max_by_key(|s| shared(&s.file, file)));
            if let Some(size) = nearest {
                size.methods += methods;
                size.changes |= *changes && !is_settings(&size.file);
            }
        }
    }
    sizes
}

/// Returns complaints about types that are too large.
pub fn check(files: &[(String, String)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, all) in &sizes(files) {
        for size in all {
            for (what, count, limit) in figures(size) {
                if count > limit {
                    let file = &size.file;
                    complaints.push(format!(
                        "{file}: {name} has {count} {what} (at most {limit})"
                    ));
                }
            }
        }
    }
    complaints
}

/// Returns the counted figures of a type, each with its limit. Plain data may have any number of fields.
fn figures(size: &Size) -> impl Iterator<Item = (&'static str, usize, usize)> {
    let all = [
        ("methods", size.methods, METHODS),
        ("fields", size.fields, FIELDS),
        ("flags", size.flags, FLAGS),
    ];
    let counted = if size.changes { 3 } else { 1 };
    all.into_iter().take(counted)
}

#[cfg(test)]
mod tests {
    use super::check;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        check(&files)
    }

    /// Returns an `impl` block with so many methods.
    fn methods(of: &str, count: usize, receiver: &str) -> String {
        let methods = (0..count).map(|n| format!("fn f{n}({receiver}) {{}}\n"));
        format!("impl {of} {{\n{}}}\n", methods.collect::<String>())
    }

    fn fields(count: usize, ty: &str) -> String {
        (0..count).map(|n| format!("f{n}: {ty},\n")).collect()
    }

    #[test]
    fn methods_count_over_all_files() {
        let first = format!("struct A {{}}\n{}", methods("A", 50, "&self"));
        let second = methods("A", 41, "&self");
        let files = [
            ("crates/engine/src/a.rs", first.as_str()),
            ("crates/engine/src/b.rs", second.as_str()),
        ];
        let found = complaints(&files);
        let expected = "crates/engine/src/a.rs: engine::A has 91 methods (at most 90)";
        assert_eq!(found, [expected]);
        assert!(complaints(&files[..1]).is_empty());
        let elsewhere = [("crates/sim/src/a.rs", first.as_str()); 2];
        assert!(complaints(&elsewhere).is_empty());
    }

    #[test]
    fn fields_and_flags_count_where_methods_change_the_type() {
        let body = format!("{}{}", fields(22, "u8"), fields(4, "bool"));
        let data = format!("struct A {{\n{body}}}\n{}", methods("A", 1, "&self"));
        assert!(complaints(&[("crates/proxy/src/a.rs", &data)]).is_empty());
        let state = format!("struct A {{\n{body}}}\n{}", methods("A", 1, "&mut self"));
        let found = complaints(&[("crates/proxy/src/a.rs", &state)]);
        assert_eq!(
            found,
            [
                "crates/proxy/src/a.rs: proxy::A has 26 fields (at most 25)",
                "crates/proxy/src/a.rs: proxy::A has 4 flags (at most 3)",
            ]
        );
    }

    #[test]
    fn each_flag_of_a_mask_counts() {
        let flags = "const A: Self = Self(1 << 0);\nconst B: Self = Self(1 << 1);\n";
        let text = format!(
            "struct Mask(u8);\nimpl Mask {{\n{flags}}}\n\
             struct A {{ mask: Mask, a: bool, b: bool }}\n{}",
            methods("A", 1, "&mut self")
        );
        let found = complaints(&[("crates/linux/src/a.rs", &text)]);
        assert_eq!(
            found,
            ["crates/linux/src/a.rs: linux::A has 4 flags (at most 3)"]
        );
    }

    #[test]
    fn tests_do_not_count() {
        let text = format!(
            "struct A {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            methods("A", 91, "&self")
        );
        assert!(complaints(&[("crates/engine/src/a.rs", &text)]).is_empty());
    }
}
