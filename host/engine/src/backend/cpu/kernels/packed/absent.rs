//! The twin of `avx2.rs` for other architectures.

use super::Checked;

/// # Safety
/// Cannot be called: there is no proof of AVX2.
pub(in super::super) unsafe fn multiply(_: Checked<'_>) {}
