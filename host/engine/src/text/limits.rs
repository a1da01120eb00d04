//! What a rendering may yield: the template engine and its JSON check both.

use minijinja::{Error, ErrorKind};

/// Most levels of lists and maps within each other in a value that is printed.
pub(super) const MAX_NESTING: usize = 512;

/// Most bytes that a rendering may yield.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// The error that a value exceeds them.
pub(super) fn too_deep() -> Error {
    let reason =
        format!("a value is nested deeper than {MAX_NESTING} levels, or too large to print");
    Error::new(ErrorKind::InvalidOperation, reason)
}
