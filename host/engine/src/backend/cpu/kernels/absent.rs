//! The twin of `x86.rs` for other architectures, with instruction sets that no CPU has.

use super::{Checked, Loop, Scalar};

/// Proof of AVX-512, which does not exist on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx512 {}

/// Proof of AVX2, which does not exist on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx2 {}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        None
    }
}

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        None
    }
}

/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn multiply_avx512<E: Scalar>(_: Checked<'_, E>) {}

/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn multiply_avx2<E: Scalar>(_: Checked<'_, E>) {}

/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn widen_avx512<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn widen_avx2<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn run_avx512(_: impl Loop) {}

/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn run_avx2(_: impl Loop) {}
