//! How large a type may grow: its methods over all `impl` blocks and files, its fields, its flags.
//!
//! A type that does everything hides behind limits on files and functions. One that owns little is
//! understood by itself.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

/// Methods of a type, in all its `impl` blocks.
const METHODS: usize = 90;
/// Fields of a type with behaviour.
const FIELDS: usize = 25;
/// Flags of a type with behaviour: beyond this they stand for a state that has a name.
const FLAGS: usize = 3;

/// Crates of the product.
const CRATES: &[&str] = &[
    "units", "wire", "engine", "strategy", "secure", "proxy", "linux", "braid",
];

/// A type that is larger than the limits, and how large it may be until it is cut. A figure within its
/// limit is 0.
pub struct Excess {
    /// Its crate and name, `engine::Stack`.
    name: &'static str,
    methods: usize,
    fields: usize,
    flags: usize,
}

/// Types that are still too large. The list only shrinks: a figure that was undercut is lowered, and an
/// entry within the limits is removed.
pub const EXCESSES: &[Excess] = &[excess("secure::Tls", 0, 30, 5)];

const fn excess(name: &'static str, methods: usize, fields: usize, flags: usize) -> Excess {
    Excess {
        name,
        methods,
        fields,
        flags,
    }
}

/// Size of a type.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Size {
    /// The file that defines it.
    file: String,
    methods: usize,
    fields: usize,
    flags: usize,
    /// A method changes it: it is no plain data, as settings and messages are.
    changes: bool,
}

/// What a file says of types.
#[derive(Default)]
struct Found {
    /// Fields and flags of each struct.
    structs: BTreeMap<String, (usize, Vec<syn::Type>)>,
    /// Enums and unions, which have methods as well.
    others: BTreeSet<String>,
    /// Flags that a type keeps in one number: constants of its own type.
    masks: BTreeMap<String, usize>,
    /// Methods, and whether one of them changes the type.
    methods: BTreeMap<String, (usize, bool)>,
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |a: &syn::Attribute| match &a.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

/// The last name of a type's path, without what it is generic over.
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

/// A constant of the type itself that is made of a shifted bit: `const A: Self = Self(1 << 3)`.
fn is_mask(ty: &syn::Type, value: &syn::Expr, name: &str) -> bool {
    let own = name_of(ty).is_some_and(|ty| ty == "Self" || ty == name);
    let shifts =
        |e: &syn::Expr| matches!(e, syn::Expr::Binary(b) if matches!(b.op, syn::BinOp::Shl(_)));
    own && matches!(value, syn::Expr::Call(call) if call.args.iter().any(shifts))
}

/// The crate of a source file of the product.
fn crate_of(file: &str) -> Option<&str> {
    let (name, rest) = file.strip_prefix("crates/")?.split_once('/')?;
    let is_code =
        rest.starts_with("src/") && !rest.ends_with("/tests.rs") && !rest.contains("/tests/");
    (CRATES.contains(&name) && is_code).then_some(name)
}

/// Settings have a field for each thing that an operator may write, and change when they are read again.
fn is_settings(file: &str) -> bool {
    file.contains("/config/")
}

/// How many directories and names two paths have in common.
fn shared(a: &str, b: &str) -> usize {
    let parts = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    let (a, b) = (parts(a), parts(b));
    a.iter().zip(&b).take_while(|(a, b)| a == b).count()
}

/// The size of each type, by its crate and name; several of one name stand behind each other.
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
            // Where several have the name, it is the nearest: that of the file itself, above all.
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

/// Complaints about types that are too large, or smaller than `excesses` has them.
pub fn check(files: &[(String, String)], excesses: &[Excess]) -> Vec<String> {
    let sizes = sizes(files);
    let mut complaints = Vec::new();
    for (name, all) in &sizes {
        let excess = excesses.iter().find(|excess| excess.name == name);
        for size in all {
            for (what, count, limit, listed) in figures(size, excess) {
                let most = limit.max(listed);
                if count > most {
                    let file = &size.file;
                    complaints.push(format!(
                        "{file}: {name} has {count} {what} (at most {most})"
                    ));
                }
            }
        }
    }
    for excess in excesses {
        let all = sizes.get(excess.name).map_or(&[][..], |all| all);
        let mut most = Size::default();
        for size in all {
            most.methods = most.methods.max(size.methods);
            if size.changes {
                most.fields = most.fields.max(size.fields);
                most.flags = most.flags.max(size.flags);
            }
        }
        most.changes = true;
        for (what, count, limit, listed) in figures(&most, Some(excess)) {
            let needed = if count > limit { count } else { 0 };
            if needed < listed {
                let name = excess.name;
                complaints.push(format!(
                    "{name} is listed with {listed} {what}: lower it to {needed}"
                ));
            }
        }
    }
    complaints
}

/// What is counted of a type, its limit, and what the list allows beyond. Plain data may have any number of
/// fields.
fn figures(
    size: &Size,
    excess: Option<&Excess>,
) -> impl Iterator<Item = (&'static str, usize, usize, usize)> {
    let listed = excess.map_or([0; 3], |e| [e.methods, e.fields, e.flags]);
    let all = [
        ("methods", size.methods, METHODS, listed[0]),
        ("fields", size.fields, FIELDS, listed[1]),
        ("flags", size.flags, FLAGS, listed[2]),
    ];
    let counted = if size.changes { 3 } else { 1 };
    all.into_iter().take(counted)
}

#[cfg(test)]
mod tests {
    use super::{EXCESSES, Excess, check, excess};

    fn complaints(files: &[(&str, &str)], excesses: &[Excess]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        check(&files, excesses)
    }

    /// A type with so many methods in an `impl` block.
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
        let found = complaints(&files, &[]);
        let expected = "crates/engine/src/a.rs: engine::A has 91 methods (at most 90)";
        assert_eq!(found, [expected]);
        assert!(complaints(&files[..1], &[]).is_empty());
        assert!(complaints(&files, &[excess("engine::A", 91, 0, 0)]).is_empty());
        let elsewhere = [("crates/sim/src/a.rs", first.as_str()); 2];
        assert!(complaints(&elsewhere, &[]).is_empty());
    }

    #[test]
    fn fields_and_flags_count_where_methods_change_the_type() {
        let body = format!("{}{}", fields(22, "u8"), fields(4, "bool"));
        let data = format!("struct A {{\n{body}}}\n{}", methods("A", 1, "&self"));
        assert!(complaints(&[("crates/proxy/src/a.rs", &data)], &[]).is_empty());
        let state = format!("struct A {{\n{body}}}\n{}", methods("A", 1, "&mut self"));
        let found = complaints(&[("crates/proxy/src/a.rs", &state)], &[]);
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
        let found = complaints(&[("crates/linux/src/a.rs", &text)], &[]);
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
        assert!(complaints(&[("crates/engine/src/a.rs", &text)], &[]).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        let text = format!("struct A {{}}\n{}", methods("A", 91, "&self"));
        let files = [("crates/engine/src/a.rs", text.as_str())];
        let found = complaints(&files, &[excess("engine::A", 95, 0, 0)]);
        assert_eq!(
            found,
            ["engine::A is listed with 95 methods: lower it to 91"]
        );
        let found = complaints(
            &files,
            &[excess("engine::A", 91, 0, 0), excess("engine::B", 0, 26, 0)],
        );
        assert_eq!(found, ["engine::B is listed with 26 fields: lower it to 0"]);
        assert!(EXCESSES.is_sorted_by(|a, b| a.name < b.name));
    }
}
