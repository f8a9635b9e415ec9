//! The fields of messages: kind, length, value.

/// Appends a field. The value has at most 255 bytes.
pub(super) fn put(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    debug_assert!(
        value.len() <= usize::from(u8::MAX),
        "the length has one byte"
    );
    out.extend([kind, value.len() as u8]);
    out.extend_from_slice(value);
}

/// Calls `on_field` with kind and value of each complete field. The caller ignores unknown kinds, so that later
/// versions can add fields.
pub(super) fn each_field(mut fields: &[u8], mut on_field: impl FnMut(u8, &[u8])) {
    while let [kind, len, rest @ ..] = fields {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else {
            return;
        };
        on_field(*kind, value);
        fields = rest;
    }
}
