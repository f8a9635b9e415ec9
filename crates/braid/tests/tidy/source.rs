//! Rules on the text of a source file.

use std::collections::BTreeSet;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Most lines of code in a file.
const FILE_LINES: usize = 800;
/// Most lines of code in a function.
const FUNCTION_LINES: usize = 70;
/// Most lines of a function around the one `match` that it consists of.
const AROUND_MATCH: usize = 10;
/// Most arguments of a function, without `self`.
const ARGUMENTS: usize = 6;
/// Least length of a reason, bytes.
const REASON_LEN: usize = 15;

/// Crates that may read the clock.
const CLOCK: &[&str] = &[
    "crates/linux/",
    "crates/testbed/",
    "crates/lab/",
    "crates/braid/",
];
/// Crates whose runs must repeat exactly from a seed.
const ORDERED: &[&str] = &[
    "crates/engine/",
    "crates/strategy/",
    "crates/tunnel/",
    "crates/proxy/",
    "crates/sim/",
];
/// Methods that walk a collection in its own order.
const WALKS: &[&str] = &[
    "iter",
    "iter_mut",
    "keys",
    "values",
    "values_mut",
    "into_iter",
    "into_keys",
    "into_values",
    "drain",
    "retain",
    "extract_if",
];

/// The valid reasons to ignore a test: the tiers that run it.
const TIERS: &[&str] = &["network", "soak", "tshark", "ffmpeg", "make aggregation"];
/// The module of tests that judge rates or times of the wall clock: `make test` skips it by name.
const SOAK: &str = "soak";

/// Returns complaints about one file.
pub fn check(name: &str, text: &str) -> Vec<String> {
    let file = match syn::parse_file(text) {
        Ok(file) => file,
        Err(error) => return vec![format!("{name}: does not parse: {error}")],
    };
    let mut checker = Checker {
        name,
        lines: text.lines().collect(),
        is_test: name.contains("/tests/") || name.contains("/benches/"),
        hash_names: BTreeSet::new(),
        modules: Vec::new(),
        complaints: Vec::new(),
    };
    let code = checker.code_lines(1, checker.lines.len());
    if code > FILE_LINES {
        checker.complaints.push(format!(
            "{name}: {code} lines of code (at most {FILE_LINES})"
        ));
    }
    HashNames(&mut checker.hash_names).visit_file(&file);
    checker.visit_file(&file);
    checker.complaints
}

struct Checker<'a> {
    name: &'a str,
    lines: Vec<&'a str>,
    is_test: bool,
    /// Fields, arguments and variables of this file whose type is a hash map or set.
    hash_names: BTreeSet<String>,
    /// The modules of this file around the visited item.
    modules: Vec<String>,
    complaints: Vec<String>,
}

impl Checker<'_> {
    fn complain(&mut self, line: usize, what: &str) {
        if !self.has_reason(line) {
            self.complaints
                .push(format!("{}:{line}: {what}", self.name));
        }
    }

    fn within(&self, crates: &[&str]) -> bool {
        crates.iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// Returns whether a `// tidy: …` is on the line, or in the comments and attributes directly above it.
    fn has_reason(&self, line: usize) -> bool {
        let is_reason = |text: &str| {
            text.split_once("// tidy: ")
                .is_some_and(|(_, why)| why.trim().len() >= REASON_LEN)
        };
        let above = self.lines[..line - 1].iter().rev();
        is_reason(self.lines[line - 1])
            || above
                .map(|text| text.trim_start())
                .take_while(|text| text.starts_with("//") || text.starts_with("#["))
                .any(is_reason)
    }

    /// Counts the lines from `first` to `last`, both counted from 1, that are not blank or comments.
    fn code_lines(&self, first: usize, last: usize) -> usize {
        self.lines[first - 1..last]
            .iter()
            .map(|line| line.trim_start())
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count()
    }

    fn span_lines(&self, span: Span) -> usize {
        self.code_lines(span.start().line, span.end().line)
    }

    fn check_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let lines = self.code_lines(first, block.span().end().line);
        let one_match = longest_match(block).map_or(0, |span| self.span_lines(span));
        if lines > FUNCTION_LINES && lines - one_match > AROUND_MATCH {
            let name = &signature.ident;
            self.complain(
                first,
                &format!("fn {name} has {lines} lines of code (at most {FUNCTION_LINES})"),
            );
        }
        let arguments = signature
            .inputs
            .iter()
            .filter(|a| matches!(a, syn::FnArg::Typed(_)))
            .count();
        if arguments > ARGUMENTS {
            let name = &signature.ident;
            self.complain(
                first,
                &format!("fn {name} takes {arguments} arguments (at most {ARGUMENTS})"),
            );
        }
        if let Some(unsafety) = &signature.unsafety {
            self.check_unsafe(unsafety.span);
        }
    }

    fn check_unsafe(&mut self, span: Span) {
        let line = span.start().line;
        if !self.name.starts_with("crates/linux/") {
            self.complaints
                .push(format!("{}:{line}: unsafe outside crates/linux", self.name));
        } else if !self.has_safety(line) {
            self.complaints
                .push(format!("{}:{line}: unsafe without SAFETY", self.name));
        }
    }

    /// `SAFETY:` (or a `# Safety` section) in the comments above the statement that holds `line`.
    fn has_safety(&self, line: usize) -> bool {
        let above = self.lines[..line - 1].iter().rev().take(12);
        above
            .map(|text| text.trim_start())
            .take_while(|text| !text.is_empty() && !text.ends_with('}'))
            .any(|text| text.contains("SAFETY:") || text.contains("# Safety"))
    }

    /// Checks that an ignored test names the tier that runs it, and is in the module in which that tier looks
    /// for it.
    fn check_ignore(&mut self, attribute: &syn::Attribute) {
        let line = attribute.span().start().line;
        let reason = match &attribute.meta {
            syn::Meta::NameValue(reason) => string_literal(&reason.value),
            _ => None,
        };
        let reason = reason.unwrap_or_default();
        if !TIERS.contains(&reason.as_str()) {
            let message = format!("ignored for {reason:?}: the tiers are {}", TIERS.join(", "));
            self.complain(line, &message);
        }
        if (reason == SOAK) != self.modules.iter().any(|module| module == SOAK) {
            self.complain(
                line,
                "`#[ignore = \"soak\"]` goes with a module `soak`, and with no other",
            );
        }
    }

    fn check_walk(&mut self, collection: &syn::Expr, line: usize) {
        let hashed = last_name(collection).filter(|name| self.hash_names.contains(name));
        if let Some(name) = hashed
            && self.within(ORDERED)
            && !self.is_test
        {
            self.complain(
                line,
                &format!("walks the hash table `{name}` in no stated order"),
            );
        }
    }
}

impl<'ast> Visit<'ast> for Checker<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check_function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check_function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.check_function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_unsafe(&mut self, item: &'ast syn::ExprUnsafe) {
        self.check_unsafe(item.unsafe_token.span);
        visit::visit_expr_unsafe(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(unsafety) = &item.unsafety {
            self.check_unsafe(unsafety.span);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.modules.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.modules.pop();
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let line = attribute.span().start().line;
        if attribute.path().is_ident("ignore") {
            self.check_ignore(attribute);
        }
        if attribute.path().is_ident("allow") {
            self.complain(line, "allow: use #[expect(…, reason = \"…\")]");
        }
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("expect")
            && !list.tokens.to_string().contains("reason")
        {
            self.complain(line, "expect without a reason");
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [a, b, c, ..] = names.as_slice()
            && a == "std"
            && b == "time"
            && matches!(c.as_str(), "Instant" | "SystemTime")
        {
            self.check_clock(path.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if names_std_clock(&item.tree) {
            self.check_clock(item.span());
        }
        visit::visit_item_use(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if WALKS.iter().any(|walk| call.method == walk) {
            self.check_walk(&call.receiver, call.method.span().start().line);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_for_loop(&mut self, item: &'ast syn::ExprForLoop) {
        self.check_walk(&item.expr, item.for_token.span.start().line);
        visit::visit_expr_for_loop(self, item);
    }
}

impl Checker<'_> {
    fn check_clock(&mut self, span: Span) {
        if !self.within(CLOCK) {
            self.complain(span.start().line, "reads a clock: time is handed in");
        }
    }
}

/// Returns the span of the longest `match` that is a statement of `block` itself, or of the one loop that it
/// consists of.
fn longest_match(block: &syn::Block) -> Option<Span> {
    let spans = block.stmts.iter().filter_map(|statement| match statement {
        syn::Stmt::Expr(syn::Expr::Match(item), _) => Some(item.span()),
        syn::Stmt::Expr(syn::Expr::Loop(item), _) => longest_match(&item.body),
        syn::Stmt::Local(local) => match local.init.as_ref().map(|init| &*init.expr) {
            Some(syn::Expr::Match(item)) => Some(item.span()),
            _ => None,
        },
        _ => None,
    });
    spans.max_by_key(|span| span.end().line - span.start().line)
}

/// Finds `std::time::{Instant, SystemTime}` in any grouping of a `use`.
fn names_std_clock(tree: &syn::UseTree) -> bool {
    fn walk(tree: &syn::UseTree, path: &mut Vec<String>) -> bool {
        match tree {
            syn::UseTree::Path(item) => {
                path.push(item.ident.to_string());
                let found = walk(&item.tree, path);
                path.pop();
                found
            }
            syn::UseTree::Name(item) => is_clock(path, &item.ident),
            syn::UseTree::Rename(item) => is_clock(path, &item.ident),
            syn::UseTree::Glob(_) => path == &["std", "time"],
            syn::UseTree::Group(group) => group.items.iter().any(|item| walk(item, path)),
        }
    }
    fn is_clock(path: &[String], name: &syn::Ident) -> bool {
        path == ["std", "time"] && (name == "Instant" || name == "SystemTime")
    }
    walk(tree, &mut Vec::new())
}

/// Returns the text of a string literal.
fn string_literal(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// Returns the last name of `self.table`, `&table`, `(table)` …
fn last_name(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Reference(item) => last_name(&item.expr),
        syn::Expr::Paren(item) => last_name(&item.expr),
        syn::Expr::Field(item) => match &item.member {
            syn::Member::Named(name) => Some(name.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        syn::Expr::Path(item) => item.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// Collects the names declared with a hash map or set as their type.
struct HashNames<'a>(&'a mut BTreeSet<String>);

impl HashNames<'_> {
    fn is_hash(ty: &syn::Type) -> bool {
        match ty {
            syn::Type::Reference(item) => Self::is_hash(&item.elem),
            syn::Type::Path(item) => item
                .path
                .segments
                .last()
                .is_some_and(|segment| segment.ident == "HashMap" || segment.ident == "HashSet"),
            _ => false,
        }
    }

    fn add_pattern(&mut self, pattern: &syn::Pat) {
        if let syn::Pat::Ident(item) = pattern {
            self.0.insert(item.ident.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for HashNames<'_> {
    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = field.ident.as_ref().filter(|_| Self::is_hash(&field.ty)) {
            self.0.insert(name.to_string());
        }
    }

    fn visit_pat_type(&mut self, item: &'ast syn::PatType) {
        if Self::is_hash(&item.ty) {
            self.add_pattern(&item.pat);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let made = local.init.as_ref().map(|init| &*init.expr);
        if let Some(syn::Expr::Call(call)) = made
            && let syn::Expr::Path(function) = &*call.func
            && function
                .path
                .segments
                .iter()
                .any(|segment| segment.ident == "HashMap" || segment.ident == "HashSet")
        {
            self.add_pattern(&local.pat);
        }
        visit::visit_local(self, local);
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    /// Returns the lines with complaints in a file of this name and text.
    fn lines(name: &str, text: &str) -> Vec<String> {
        let prefix = format!("{name}:");
        let complaints = check(name, text);
        complaints
            .iter()
            .map(|c| {
                c.strip_prefix(&prefix)
                    .unwrap_or(c)
                    .split(':')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    fn long_function(inner: &str, reason: &str) -> String {
        format!("{reason}fn long() {{\n{}}}\n", inner.repeat(80))
    }

    #[test]
    fn long_functions_need_a_reason() {
        let text = long_function("    step();\n", "");
        assert_eq!(lines("crates/engine/src/a.rs", &text), ["1"]);
        let text = long_function("    // why\n", "");
        assert!(lines("crates/engine/src/a.rs", &text).is_empty());
        let text = long_function(
            "    step();\n",
            "// tidy: one table, read from top to bottom\n",
        );
        assert!(lines("crates/engine/src/a.rs", &text).is_empty());
        let text = long_function("    step();\n", "// tidy: long\n");
        assert_eq!(lines("crates/engine/src/a.rs", &text), ["2"]);
    }

    #[test]
    fn one_match_may_be_long() {
        let arms = "        A => step(),\n".repeat(80);
        let text = format!("fn f(x: X) {{\n    match x {{\n{arms}    }}\n}}\n");
        assert!(lines("crates/engine/src/a.rs", &text).is_empty());
    }

    #[test]
    fn clocks_and_unsafe_stay_where_they_belong() {
        let text = "use std::{io, time::{Duration, Instant}};\n";
        assert_eq!(lines("crates/engine/src/a.rs", text), ["1"]);
        assert!(lines("crates/linux/src/a.rs", text).is_empty());
        assert!(lines("crates/engine/src/a.rs", "use std::time::Duration;\n").is_empty());
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(lines("crates/engine/src/a.rs", text), ["2"]);
        assert_eq!(lines("crates/linux/src/a.rs", text), ["2"]);
        let text = "fn f() {\n    // SAFETY: g asks for nothing.\n    unsafe { g() }\n}\n";
        assert!(lines("crates/linux/src/a.rs", text).is_empty());
    }

    #[test]
    fn hash_tables_are_not_walked() {
        let text = "struct S {\n    table: HashMap<u8, u8>,\n}\nimpl S {\n    fn f(&self) {\n        \
                    for x in &self.table {}\n        self.table.keys();\n        \
                    self.table.get(&1);\n    }\n}\n";
        assert_eq!(lines("crates/engine/src/a.rs", text), ["6", "7"]);
        assert!(lines("crates/braid/src/a.rs", text).is_empty());
    }

    #[test]
    fn allow_and_silent_expect_are_refused() {
        let text = "#[allow(dead_code)]\nfn f() {}\n#[expect(dead_code)]\nfn g() {}\n";
        assert_eq!(lines("crates/wire/src/a.rs", text), ["1", "3"]);
        let text = "#[expect(dead_code, reason = \"used by the next step\")]\nfn g() {}\n";
        assert!(lines("crates/wire/src/a.rs", text).is_empty());
    }

    #[test]
    fn ignored_tests_name_the_tier_that_runs_them() {
        let text = "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n\
                    #[ignore = \"network\"]\nfn c() {}\n#[ignore = \"soak\"]\nfn d() {}\n";
        assert_eq!(lines("crates/lab/tests/a.rs", text), ["1", "3", "7"]);
        let text = "mod soak {\n    #[ignore = \"soak\"]\n    fn a() {}\n    \
                    #[ignore = \"network\"]\n    fn b() {}\n}\n";
        assert_eq!(lines("crates/lab/tests/a.rs", text), ["4"]);
    }

    #[test]
    fn long_files_are_refused() {
        let text = "const A: u8 = 0;\n".repeat(801);
        assert_eq!(check("crates/wire/src/a.rs", &text).len(), 1);
    }
}
