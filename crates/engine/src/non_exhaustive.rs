//! The mark of structs that get more fields.

/// The last field of a struct that applications make and that gets more fields: settings, options and views.
///
/// It makes `..` necessary, as in `Config { memory: 1 << 20, ..Config::default() }`. The attribute
/// `non_exhaustive` would forbid that form in other crates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonExhaustive(());

impl NonExhaustive {
    pub(crate) const MARK: NonExhaustive = NonExhaustive(());
}
