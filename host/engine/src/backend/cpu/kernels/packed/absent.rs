//! Stands in for `avx2.rs` and `vnni.rs`, the kernels for packed weights, on other architectures than x86-64.

use super::Checked;

/// Stands for the proof that the CPU has VNNI, of which no value exists on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Vnni {}

impl Vnni {
    pub(in super::super) fn detect() -> Option<Self> {
        None
    }
}

/// Stands for the kernels that multiply packed weights.
///
/// # Safety
/// Cannot be called: no proof of AVX2 or VNNI exists on this architecture.
pub(in super::super) unsafe fn multiply(_: Checked<'_>) {}
