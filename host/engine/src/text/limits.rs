//! Bounds on what a chat template renders. The template engine and its `tojson` filter check them.

use minijinja::{Error, ErrorKind};

/// Maximum number of levels of nested lists and maps in a value that a chat template prints.
pub(super) const MAX_NESTING: usize = 512;

/// Maximum number of bytes that one rendering of a chat template may yield.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// Returns the error for a value that a template may not print, because it exceeds [`MAX_NESTING`] or [`MAX_BYTES`].
pub(super) fn too_deep() -> Error {
    let reason =
        format!("a value is nested deeper than {MAX_NESTING} levels, or too large to print");
    Error::new(ErrorKind::InvalidOperation, reason)
}
