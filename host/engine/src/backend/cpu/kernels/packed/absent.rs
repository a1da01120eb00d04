//! Stands in for `avx2.rs`, the kernel for packed weights, on other architectures than x86-64.

use super::Checked;

/// Stands for the AVX2 kernel that multiplies packed weights.
///
/// # Safety
/// Cannot be called: no proof of AVX2 exists on this architecture.
pub(in super::super) unsafe fn multiply(_: Checked<'_>) {}
