//! The type of the last field of structs that may get more fields in later versions.

/// The last field of a struct that applications construct and that may get more fields: settings, options, views.
///
/// Other crates cannot construct this type, so they have to write `..`, as in `Config { memory: 1 << 20,
/// ..Config::default() }`. The attribute `non_exhaustive` would forbid that form as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonExhaustive(());

impl NonExhaustive {
    pub(crate) const MARK: NonExhaustive = NonExhaustive(());
}
